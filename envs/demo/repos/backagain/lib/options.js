'use strict';

const DEFAULTS = {
  attempts: 4,
  base: 100,
  factor: 2,
  cap: 30000,
  jitter: 0,
  maxElapsed: Infinity,
  retryIf: () => true,
  onRetry: () => {},
  sleep: (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
  now: Date.now,
  random: Math.random,
};

function withDefaults(options = {}) {
  for (const name of Object.keys(options)) {
    if (!(name in DEFAULTS)) throw new TypeError(`unknown option '${name}'`);
  }
  const all = { ...DEFAULTS, ...options };
  if (!Number.isInteger(all.attempts) || all.attempts < 1) {
    throw new RangeError('attempts must be a positive integer');
  }
  if (all.jitter < 0 || all.jitter > 1) throw new RangeError('jitter must be from 0 to 1');
  return all;
}

module.exports = { withDefaults };
