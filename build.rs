//! Compiles the guest as a static program, packs the data folders, and leaves both where the library embeds them.
//!
//! A static link needs `crt-static` for the whole compilation, and flags in `.cargo/config.toml` are dropped by
//! `RUSTFLAGS` and by `cargo install --git`. So the guest is built by a cargo of its own, with its own flags.

use std::env;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=PATCHGYM_GUEST");
    for path in [
        "build.rs",
        "Cargo.toml",
        "src/bin",
        "src/guest",
        "src/protocol",
        "src/sandbox/local",
        "src/text.rs",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    if env::var_os("CARGO_FEATURE_HOST").is_none() {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    // A packager may bring a guest built elsewhere, for example for another architecture.
    let guest = match env::var_os("PATCHGYM_GUEST") {
        Some(path) => PathBuf::from(path),
        None => build_guest(&out),
    };
    if let Err(error) = pack_data(&out.join("data.tar")) {
        panic!("cannot pack the data folders: {error}");
    }
    if let Err(error) = std::fs::copy(&guest, out.join("patchgym-guest")) {
        panic!("cannot take the guest from {}: {error}", guest.display());
    }
}

/// Packs `tools/`, `envs/` and the demonstrations: names, contents and permission bits, nothing that differs between
/// machines.
#[expect(clippy::disallowed_methods, reason = "a build script has no other use for fs_err")]
fn pack_data(to: &Path) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(std::fs::File::create(to)?);
    archive.mode(tar::HeaderMode::Deterministic);
    archive.follow_symlinks(false);
    for folder in ["envs", "tools", "trajectories/demos"] {
        println!("cargo::rerun-if-changed={folder}");
        archive.append_dir_all(folder, folder)?;
    }
    archive.finish()
}

fn build_guest(out: &Path) -> PathBuf {
    let target = env::var("TARGET").unwrap_or_default();
    let directory = out.join("guest");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args([
            "build",
            "--no-default-features",
            "--bin",
            "patchgym-guest",
            "--profile",
            "guest",
            "--target",
            &target,
        ])
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    // Lint drivers and coverage flags are meant for the host program only.
    for name in ["RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    // Settings of the outer build must not reach the inner one: its features would make it build a guest as well.
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if ["CARGO_PROFILE_", "CARGO_FEATURE_"].iter().any(|prefix| name_text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    match command.status() {
        Ok(status) if status.success() => directory.join(target).join("guest/patchgym-guest"),
        Ok(status) => panic!("building the guest failed: {status}"),
        Err(error) => panic!("building the guest failed: {error}"),
    }
}
