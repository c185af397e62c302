'use strict';

const test = require('node:test');
const assert = require('node:assert');
const { render, TemplateError } = require('../lib');

test('builtin filters', () => {
  assert.strictEqual(render('{{a | upper}}', { a: 'x' }), 'X');
  assert.strictEqual(render('{{{a|json}}}', { a: [1] }), '[1]');
});

test('filters run from left to right', () => {
  assert.strictEqual(render('{{a | trim | upper}}.', { a: ' x ' }), 'X.');
});

test('own filters', () => {
  const filters = { twice: (value) => value + value };
  assert.strictEqual(render('{{a | twice}}', { a: 'ab' }, { filters }), 'abab');
});

test('unknown filters are an error', () => {
  assert.throws(() => render('{{a | nope}}', { a: 1 }), TemplateError);
});
