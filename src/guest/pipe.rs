//! Named pipes and files between a shell and the guest.

use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use fs_err::os::unix::fs::OpenOptionsExt;
use rustix::fs::Mode;
use rustix::fs::OFlags;

/// A named pipe, opened for both directions, so that it neither blocks nor ends while no shell has it open.
pub(super) fn pipe(path: &Path) -> io::Result<OwnedFd> {
    if !is_pipe(path) {
        if let Some(directory) = path.parent() {
            make_directory(directory)?;
        }
        gone(fs_err::remove_file(path))?;
        rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::from_raw_mode(0o600))?;
        // Programs of other users open `/dev/stdout` again; they cannot reach the pipe by its name.
        fs_err::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    }
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = fs_err::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    Ok(file.into_parts().0.into())
}

/// Writes a file that is new, so that nothing else that a command put there is opened.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    gone(fs_err::remove_file(path))?;
    let mut file = fs_err::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(content)
}

/// That nothing was there to be removed is as good.
pub(super) fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether a named pipe stands at a path.
pub(super) fn is_pipe(path: &Path) -> bool {
    fs_err::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Makes a directory that only its owner may use, and those above it.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Reads what is there without waiting; `None` when nothing is.
pub(super) fn read_now(source: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::io::read(source, buffer) {
        Ok(0) | Err(rustix::io::Errno::AGAIN) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(rustix::io::Errno::INTR) => Ok(Some(0)),
        Err(error) => Err(error.into()),
    }
}
