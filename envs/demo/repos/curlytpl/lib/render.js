'use strict';

const { applyFilters } = require('./filters');
const { escapeHtml } = require('./escape');

const RAW = /\{\{\{\s*([\w.]+)((?:\s*\|\s*\w+)*)\s*\}\}\}/;
const TAG = /\{\{\s*([\w.]+)((?:\s*\|\s*\w+)*)\s*\}\}/;

/** Find a path in a list of scopes, the innermost first. */
function lookup(path, scopes) {
  const [first, ...rest] = path.split('.');
  for (const scope of scopes) {
    if (scope && scope[first]) {
      return rest.reduce((value, name) => (value ? value[name] : undefined), scope[first]);
    }
  }
  return undefined;
}

function toText(value) {
  return value ? String(value) : '';
}

function valueOf(path, pipe, scopes, filters) {
  const names = pipe.split('|').map((name) => name.trim()).filter(Boolean);
  return toText(applyFilters(lookup(path, scopes), names, filters));
}

function renderText(text, scopes, filters) {
  let match;
  while ((match = RAW.exec(text))) {
    text = text.replace(match[0], valueOf(match[1], match[2], scopes, filters));
  }
  while ((match = TAG.exec(text))) {
    text = text.replace(match[0], escapeHtml(valueOf(match[1], match[2], scopes, filters)));
  }
  return text;
}

function isOn(value) {
  return Array.isArray(value) ? value.length > 0 : Boolean(value);
}

function renderNodes(nodes, scopes, filters) {
  let out = '';
  for (const node of nodes) {
    if (node.type === 'text') {
      out += renderText(node.text, scopes, filters);
    } else if (node.type === 'if') {
      if (isOn(lookup(node.path, scopes))) out += renderNodes(node.body, scopes, filters);
    } else {
      const list = lookup(node.path, scopes) || [];
      list.forEach((element, index) => {
        const inner = [{ this: element, index }, element, ...scopes];
        out += renderNodes(node.body, inner, filters);
      });
    }
  }
  return out;
}

module.exports = { renderNodes };
