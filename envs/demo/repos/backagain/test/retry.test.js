'use strict';

const { describe, test } = require('node:test');
const assert = require('node:assert');
const { retry } = require('../lib');
const { errorWith, failing, fakeTime } = require('./helpers');

describe('retry', () => {
  test('returns the value of the first success', async () => {
    const { now, sleep, waits } = fakeTime();
    const action = failing(errorWith(), errorWith());
    assert.strictEqual(await retry(action, { now, sleep }), 'done');
    assert.strictEqual(action.calls, 3);
    assert.strictEqual(waits.length, 2);
  });

  test('passes the number of the attempt', async () => {
    const seen = [];
    const { now, sleep } = fakeTime();
    await retry(async (attempt) => {
      seen.push(attempt);
      if (attempt < 3) throw new Error('again');
    }, { now, sleep });
    assert.deepStrictEqual(seen, [1, 2, 3]);
  });

  test('does not retry what is not worth it', async () => {
    const { now, sleep } = fakeTime();
    const action = failing(errorWith({ fatal: true }));
    await assert.rejects(retry(action, { now, sleep, retryIf: (error) => !error.fatal }));
    assert.strictEqual(action.calls, 1);
  });

  test('refuses unknown options', async () => {
    await assert.rejects(retry(async () => 1, { tries: 3 }), TypeError);
    await assert.rejects(retry(async () => 1, { attempts: 0 }), RangeError);
  });
});
