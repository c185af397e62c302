'use strict';

const { retry } = require('./retry');
const { backoff } = require('./schedule');
const { parseRetryAfter } = require('./retry-after');

module.exports = { backoff, parseRetryAfter, retry };
