//! Programs of the machine that a task needs, and the directories that must be shown for them to work.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::sandbox::Access;
use crate::sandbox::Mount;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;
use crate::sandbox::local::layers;

/// What is shown of an installation in a directory that holds other things as well, such as a home.
const PARTS: &[&str] = &["bin", "lib", "lib64", "libexec", "include"];

/// Adds to `spec` what the programs `names` need.
///
/// # Errors
/// When a program is not on this machine.
pub fn require(spec: &mut SandboxSpec, names: &[String]) -> Result<(), SandboxError> {
    for name in names {
        let program = find(name).ok_or_else(|| SandboxError::MissingProgram(name.clone()))?;
        for prefix in prefixes(name, &program) {
            let bin = prefix.join("bin");
            let mut is_new = false;
            for part in parts(prefix, &homes()) {
                is_new |= show(spec, part).is_some();
            }
            if is_new {
                spec.path.push(bin.to_string_lossy().into_owned());
            }
        }
    }
    Ok(())
}

/// Shows a file or directory of this machine in the sandbox, at the same place; gives the place unless it was shown
/// already.
pub fn show(spec: &mut SandboxSpec, source: PathBuf) -> Option<String> {
    if layers::is_shown(&source) || spec.mounts.iter().any(|mount| mount.source == source) {
        return None;
    }
    let target = source.to_string_lossy().into_owned();
    spec.mounts.push(Mount { source, target: target.clone(), access: Access::ReadOnly });
    Some(target)
}

/// A Python of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python {
    /// Its version, `3.11.7`.
    pub version: String,
    /// The interpreter itself, not a virtual environment's link to it.
    pub executable: PathBuf,
    /// The directory it is installed in.
    pub prefix: PathBuf,
}

/// The first Python on this machine that has one of the versions `wanted`, `3.11`, the best first.
pub fn python(wanted: &[String]) -> Option<Python> {
    let default = find("python3").and_then(|program| ask(&program));
    wanted.iter().find_map(|version| {
        let fits = |python: &Python| python.version.starts_with(&format!("{version}."));
        default
            .clone()
            .filter(fits)
            .or_else(|| ask(&find(&format!("python{version}"))?).filter(fits))
    })
}

/// What an interpreter says of itself; none when it is a version manager's script without one behind it.
fn ask(program: &Path) -> Option<Python> {
    const QUESTION: &str = "import os, platform, sys
print(platform.python_version())
print(os.path.realpath(getattr(sys, '_base_executable', sys.executable)))
print(sys.base_prefix)";
    let output = Command::new(program).args(["-c", QUESTION]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut lines = text.lines();
    let (version, executable, prefix) = (lines.next()?, lines.next()?, lines.next()?);
    Some(Python { version: version.into(), executable: executable.into(), prefix: prefix.into() })
}

/// The programs of `names` that are not on this machine.
pub fn missing(names: &[String]) -> Vec<String> {
    names.iter().filter(|name| find(name).is_none()).cloned().collect()
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| {
        rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
    })
}

/// The directories a program's installation consists of; found out once, because an interpreter takes its time to start.
fn prefixes(name: &str, program: &Path) -> Vec<PathBuf> {
    static KNOWN: Mutex<BTreeMap<PathBuf, Vec<PathBuf>>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(prefixes) = known().get(program) {
        return prefixes.clone();
    }
    let prefixes = find_prefixes(name, program);
    known().insert(program.to_owned(), prefixes.clone());
    prefixes
}

/// Version managers put scripts into `PATH` that look for the real program under the caller's home, so the interpreter
/// itself is asked where it lives.
fn find_prefixes(name: &str, program: &Path) -> Vec<PathBuf> {
    let question: Option<(&str, &[&str])> = match name {
        "python3" | "python" => {
            Some(("-c", &["import sys; print(sys.prefix); print(sys.base_prefix)"]))
        }
        "node" => {
            Some(("-p", &["require('path').dirname(require('path').dirname(process.execPath))"]))
        }
        "rustc" | "cargo" => return answer(Path::new("rustc"), &["--print", "sysroot"]),
        "go" => Some(("env", &["GOROOT"])),
        _ => None,
    };
    let prefixes = match question {
        Some((first, rest)) => answer(program, &[&[first], rest].concat()),
        None => Vec::new(),
    };
    if !prefixes.is_empty() {
        return prefixes;
    }
    let real = fs_err::canonicalize(program).unwrap_or_else(|_| program.to_owned());
    match real.parent() {
        Some(directory) if directory.ends_with("bin") => {
            directory.parent().map(Path::to_owned).into_iter().collect()
        }
        Some(_) | None => Vec::new(),
    }
}

/// What is shown of an installation: all of it, unless a home is in it or it is a part of one that holds more.
fn parts(prefix: PathBuf, homes: &[PathBuf]) -> Vec<PathBuf> {
    let holds_more =
        homes.iter().any(|home| home.starts_with(&prefix) || prefix == home.join(".local"));
    if !holds_more {
        return vec![prefix];
    }
    PARTS.iter().map(|part| prefix.join(part)).filter(|part| part.is_dir()).collect()
}

fn homes() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    home.into_iter().filter(|home| home.is_absolute()).collect()
}

/// Lines that are directories, in their order: an environment's programs come before those it is based on.
fn answer(program: &Path, arguments: &[&str]) -> Vec<PathBuf> {
    let Ok(output) = Command::new(program).args(arguments).output() else { return Vec::new() };
    let mut prefixes: Vec<PathBuf> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let prefix = PathBuf::from(line);
        if prefix.is_absolute() && prefix.is_dir() && !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_never_shown_whole() {
        let top = tempfile::tempdir().unwrap();
        let home = top.path().join("home/me");
        for part in ["bin", "lib", "Mail", ".local/bin", ".local/share/keyrings", "go/bin"] {
            fs_err::create_dir_all(home.join(part)).unwrap();
        }
        let homes = [home.clone()];
        assert_eq!(parts(home.join("go"), &homes), [home.join("go")]);
        assert_eq!(parts(home.clone(), &homes), [home.join("bin"), home.join("lib")]);
        assert_eq!(parts(home.join(".local"), &homes), [home.join(".local/bin")]);
        assert_eq!(parts(top.path().to_owned(), &homes), [] as [PathBuf; 0]);
    }

    #[test]
    fn an_environment_comes_before_what_it_is_based_on() {
        let top = tempfile::tempdir().unwrap();
        let lines = format!("echo {0}/b; echo {0}/a; echo {0}/b; echo no", top.path().display());
        for name in ["a", "b"] {
            fs_err::create_dir(top.path().join(name)).unwrap();
        }
        let found = answer(Path::new("sh"), &["-c", &lines]);
        assert_eq!(found, [top.path().join("b"), top.path().join("a")]);
    }
}
