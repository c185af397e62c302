'use strict';

/** Escape a text for HTML, in elements and in quoted attributes. */
function escapeHtml(text) {
  return text
    .replace('<', '&lt;')
    .replace('>', '&gt;')
    .replace('"', '&quot;')
    .replace('&', '&amp;');
}

module.exports = { escapeHtml };
