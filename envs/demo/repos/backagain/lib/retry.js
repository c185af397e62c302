'use strict';

const { withDefaults } = require('./options');
const { backoff } = require('./schedule');
const { parseRetryAfter } = require('./retry-after');

/** Call `action(attempt)` until it succeeds or there is no further attempt. */
async function retry(action, options) {
  const settings = withDefaults(options);
  const { attempts, maxElapsed, retryIf, onRetry, sleep, now } = settings;
  const started = now();
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await action(attempt);
    } catch (error) {
      if (attempt > attempts || !retryIf(error)) throw error;
      const wait = waitFor(error, attempt, settings);
      if (now() - started > maxElapsed) throw error;
      onRetry(error, attempt, wait);
      await sleep(wait);
    }
  }
}

function waitFor(error, attempt, settings) {
  const wish = parseRetryAfter(error.retryAfter, settings.now());
  return Math.min(settings.cap, wish || backoff(attempt, settings));
}

module.exports = { retry };
