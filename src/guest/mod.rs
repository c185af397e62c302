//! What runs inside a sandbox: a small static program without dependencies on what the sandbox holds.
//!
//! Takes frames from the host, gives frames back. It must not know of tasks, models or the host's file system. Each
//! operation is a function over a [`tree::Tree`] or a shell; [`server`] carries them over the stream.

pub mod archive;
pub mod cancel;
mod change;
pub mod disk;
pub mod edit;
pub mod files;
mod git;
mod init;
mod nearest;
mod output;
pub mod patch;
mod pipe;
mod processes;
mod report;
pub mod search;
pub mod server;
pub mod shell;
pub mod tree;
mod written;

use std::process::ExitCode;

/// The program `patchgym-guest`: `init` is the first process of a local sandbox.
pub fn main() -> ExitCode {
    let code = match std::env::args().nth(1).as_deref() {
        Some("init") => init::main(),
        _ => 2,
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
