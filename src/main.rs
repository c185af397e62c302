//! The program `patchgym`.

use std::process::ExitCode;

fn main() -> ExitCode {
    patchgym::cli::main()
}
