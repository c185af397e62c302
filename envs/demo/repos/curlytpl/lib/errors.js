'use strict';

class TemplateError extends Error {
  constructor(message) {
    super(message);
    this.name = 'TemplateError';
  }
}

module.exports = { TemplateError };
