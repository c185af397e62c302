//! Integration tests: real processes, real git, real servers on loopback.
//!
//! Tests that need the folder `shared` beside the checkout say so and are skipped without it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails loudly, says why it was skipped, and need not name what it does not expect"
)]

mod cli; // the program as a user runs it
mod edits; // file edits, byte for byte
mod env; // the gym, from reset to close
mod fake_server; // a model server that checks the protocol
mod formats; // event logs: written, cut off, read, shown
mod grade; // gradings in fresh sandboxes
mod install; // installed from a clone
mod isolation; // sandboxes of the levels below namespaces
mod killed; // runs that are killed at random moments
mod layers; // imports point one way
mod logs; // test logs against the official verdicts
mod model; // model clients against servers of many kinds
mod prepare; // environments of real repositories, made from recipes
mod real_rows; // real SWE-bench rows
mod repository; // repository copies without a future
mod sandbox; // what a sandbox keeps apart and what it leaves
mod server; // whole runs against model servers
mod shell; // commands that try to break the shell
mod tasks; // rows, selection, predictions
mod world; // what the tests of sandboxes and environments work in
