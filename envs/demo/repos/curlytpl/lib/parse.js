'use strict';

const { TemplateError } = require('./errors');

const BLOCK = /\{\{\s*(#(if|each)\s+([\w.]+)|\/(if|each))\s*\}\}/g;

/**
 * Split a template into nodes: { type: 'text', text } with tags still in it, and
 * { type: 'if' | 'each', path, body } for blocks.
 */
function parse(template) {
  const root = { body: [] };
  const open = [root];
  let position = 0;
  for (const match of template.matchAll(BLOCK)) {
    const parent = open[open.length - 1];
    parent.body.push({ type: 'text', text: template.slice(position, match.index) });
    position = match.index + match[0].length;
    if (match[2]) {
      const node = { type: match[2], path: match[3], body: [] };
      parent.body.push(node);
      open.push(node);
    } else if (parent.type === match[4]) {
      open.pop();
    } else {
      throw new TemplateError(`unexpected {{/${match[4]}}}`);
    }
  }
  if (open.length > 1) {
    throw new TemplateError(`{{#${open[open.length - 1].type}}} is not closed`);
  }
  root.body.push({ type: 'text', text: template.slice(position) });
  return root.body;
}

module.exports = { parse };
