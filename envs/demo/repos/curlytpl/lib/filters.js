'use strict';

const { TemplateError } = require('./errors');

const builtin = {
  upper: (value) => String(value).toUpperCase(),
  lower: (value) => String(value).toLowerCase(),
  trim: (value) => String(value).trim(),
  json: (value) => JSON.stringify(value),
};

/** Apply the filters called `names`, from left to right. */
function applyFilters(value, names, filters) {
  return names.reduce((current, name) => {
    const filter = filters[name];
    if (!filter) throw new TemplateError(`unknown filter '${name}'`);
    return filter(current);
  }, value);
}

module.exports = { applyFilters, builtin };
