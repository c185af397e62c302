'use strict';

/** A clock whose sleep takes no time but moves the clock, and that notes all waits. */
function fakeTime(start = 0) {
  const time = { current: start, waits: [] };
  time.now = () => time.current;
  time.sleep = async (ms) => {
    time.waits.push(ms);
    time.current += ms;
  };
  return time;
}

/** An action that fails with the given errors, one after the other, then returns 'done'. */
function failing(...errors) {
  const action = async () => {
    action.calls += 1;
    if (errors.length >= action.calls) throw errors[action.calls - 1];
    return 'done';
  };
  action.calls = 0;
  return action;
}

function errorWith(properties) {
  return Object.assign(new Error('failed'), properties);
}

module.exports = { errorWith, failing, fakeTime };
