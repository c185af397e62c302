'use strict';

const { describe, test } = require('node:test');
const assert = require('node:assert');
const { backoff, parseRetryAfter } = require('../lib');

const settings = { base: 100, factor: 2, cap: 1000, jitter: 0, random: () => 0.5 };

describe('schedule', () => {
  test('waits grow by the factor', () => {
    assert.strictEqual(backoff(3, settings) / backoff(2, settings), 2);
  });

  test('waits are capped', () => {
    assert.strictEqual(backoff(9, settings), 1000);
  });

  test('values that are no Retry-After are ignored', () => {
    assert.strictEqual(parseRetryAfter(undefined, 0), null);
    assert.strictEqual(parseRetryAfter('soon', 0), null);
  });
});
