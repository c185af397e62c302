//! Integration tests: real processes, real git, real servers on loopback.
//!
//! Tests that need the folder `shared` beside the checkout say so and are skipped without it.

mod edits; // file edits, byte for byte
mod fake_server; // a model server that checks the protocol
mod formats; // event logs: written, cut off, read, shown
mod grade; // gradings in fresh sandboxes
mod logs; // test logs against the official verdicts
mod model; // model clients against servers of many kinds
mod repository; // repository copies without a future
mod tasks; // rows, selection, predictions
