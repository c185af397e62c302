'use strict';

const test = require('node:test');
const assert = require('node:assert');
const { compile, render, TemplateError } = require('../lib');

test('replaces a name', () => {
  assert.strictEqual(render('Hello {{name}}!', { name: 'Ann' }), 'Hello Ann!');
});

test('follows a path', () => {
  assert.strictEqual(render('{{ a.b.c }}', { a: { b: { c: 'x' } } }), 'x');
});

test('escapes a single bracket', () => {
  assert.strictEqual(render('{{a}}', { a: '1 > 0' }).includes('>'), false);
});

test('leaves raw values alone', () => {
  assert.strictEqual(render('{{{a}}}', { a: '<b>' }), '<b>');
});

test('missing values are empty', () => {
  assert.strictEqual(render('[{{a}}{{b.c}}{{d}}]', { d: null }), '[]');
});

test('if depends on the value', () => {
  const page = compile('{{#if ok}}yes{{/if}}');
  assert.strictEqual(page({ ok: true }), 'yes');
  assert.strictEqual(page({ ok: false }), '');
  assert.strictEqual(page({ ok: [] }), '');
});

test('each goes through a list', () => {
  const page = compile('{{#each list}}<{{this}}>{{/each}}');
  assert.strictEqual(page({ list: ['a', 'b'] }), '<a><b>');
});

test('each finds names of the element first', () => {
  const page = compile('{{#each list}}{{name}}{{sep}}{{/each}}');
  assert.strictEqual(page({ name: 'x', sep: ';', list: [{ name: 'a' }, {}] }), 'a;x;');
});

test('blocks must be balanced', () => {
  assert.throws(() => compile('{{#if a}}'), TemplateError);
  assert.throws(() => compile('{{/if}}'), TemplateError);
  assert.throws(() => compile('{{#if a}}{{#each b}}{{/if}}{{/each}}'), TemplateError);
});
