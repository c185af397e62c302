'use strict';

/** The wait after attempt number `attempt` (1, 2, ...), in milliseconds. */
function backoff(attempt, { base, factor, cap, jitter, random }) {
  const wait = Math.min(cap, base * factor ** attempt);
  const spread = wait * jitter;
  return Math.round(wait - spread + 2 * spread * random());
}

module.exports = { backoff };
