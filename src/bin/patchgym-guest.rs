//! The program inside every sandbox.

fn main() -> std::process::ExitCode {
    patchgym::guest::main()
}
