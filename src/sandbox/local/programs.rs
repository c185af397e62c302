//! Programs of the machine that a task needs, and the directories that must be shown for them to work.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use crate::sandbox::Access;
use crate::sandbox::Mount;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;

/// Directories every sandbox shows.
const SHOWN: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt"];

/// Adds to `spec` what the programs `names` need.
///
/// # Errors
/// When a program is not on this machine.
pub fn require(spec: &mut SandboxSpec, names: &[String]) -> Result<(), SandboxError> {
    for name in names {
        let program = find(name).ok_or_else(|| SandboxError::MissingProgram(name.clone()))?;
        for prefix in prefixes(name, &program) {
            if SHOWN.iter().any(|shown| prefix.starts_with(shown))
                || spec.mounts.iter().any(|m| m.source == prefix)
            {
                continue;
            }
            let target = prefix.to_string_lossy().into_owned();
            spec.path.push(format!("{target}/bin"));
            spec.mounts.push(Mount { source: prefix, target, access: Access::ReadOnly });
        }
    }
    Ok(())
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

/// The directories a program's installation consists of. Version managers put scripts into `PATH` that look for the
/// real program under the caller's home, so the interpreter itself is asked where it lives.
fn prefixes(name: &str, program: &Path) -> Vec<PathBuf> {
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

/// Lines that are directories and no home: showing a home would show what is in it.
fn answer(program: &Path, arguments: &[&str]) -> Vec<PathBuf> {
    let Ok(output) = Command::new(program).args(arguments).output() else { return Vec::new() };
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let mut prefixes: Vec<PathBuf> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir() && !home.starts_with(path))
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}
