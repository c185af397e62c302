//! Removes folders whose contents are not ours: directories in them may have lost their permissions.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Removes a folder, if it is there. No process may be working in it.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    if gone(fs_err::remove_dir_all(folder)).is_ok() {
        return Ok(());
    }
    open_up(folder);
    gone(fs_err::remove_dir_all(folder))
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Gives directories back the permissions that removing what is in them takes. What cannot be changed is told by the
/// removal.
fn open_up(directory: &Path) {
    if !fs_err::symlink_metadata(directory).is_ok_and(|metadata| metadata.is_dir()) {
        return;
    }
    let _ = fs_err::set_permissions(directory, std::fs::Permissions::from_mode(0o700));
    for entry in fs_err::read_dir(directory).into_iter().flatten().flatten() {
        open_up(&entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_directories_are_removed_and_links_are_not_followed() {
        let top = tempfile::tempdir().unwrap();
        let outside = top.path().join("outside");
        fs_err::create_dir(&outside).unwrap();
        fs_err::write(outside.join("kept"), "").unwrap();
        let folder = top.path().join("folder");
        fs_err::create_dir_all(folder.join("a/b")).unwrap();
        fs_err::write(folder.join("a/b/file"), "").unwrap();
        fs_err::os::unix::fs::symlink(&outside, folder.join("a/link")).unwrap();
        for locked in ["a/b", "a"] {
            let none = std::fs::Permissions::from_mode(0o000);
            fs_err::set_permissions(folder.join(locked), none).unwrap();
        }
        remove(&folder).unwrap();
        assert!(!folder.exists());
        assert!(outside.join("kept").exists());
        remove(&folder).unwrap();
    }
}
