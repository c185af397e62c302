'use strict';

const { parse } = require('./parse');
const { renderNodes } = require('./render');
const { TemplateError } = require('./errors');
const { builtin } = require('./filters');

/** Compile a template into a function from data to text. */
function compile(template, options = {}) {
  const nodes = parse(template);
  const filters = { ...builtin, ...options.filters };
  return (data = {}) => renderNodes(nodes, [data], filters);
}

function render(template, data, options) {
  return compile(template, options)(data);
}

module.exports = { compile, render, TemplateError };
