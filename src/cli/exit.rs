//! Exit codes. They are documented in the README.

/// Everything was done.
pub(super) const DONE: u8 = 0;
/// Attempts or gradings ended with an error that says nothing about the model; or a check found something.
pub(super) const ERRORS: u8 = 1;
/// The input or a setting is wrong; nothing was begun.
pub(super) const USAGE: u8 = 2;
/// The machine lacks something or refuses it.
pub(super) const MACHINE: u8 = 3;
/// The run folder belongs to another process or to a run with other settings.
pub(super) const CONFLICT: u8 = 4;
/// A signal stopped the run; what was done is kept.
pub(super) const INTERRUPTED: u8 = 130;
