'use strict';

/** Milliseconds to wait according to a Retry-After value, or null if it is none. */
function parseRetryAfter(value, now) {
  if (!value) return null;
  const seconds = Number(value);
  if (!Number.isNaN(seconds)) return seconds;
  const date = Date.parse(value);
  if (!Number.isNaN(date)) return date - now;
  return null;
}

module.exports = { parseRetryAfter };
