//! The gym: reset, step, patch, close, in real sandboxes.
