//! Whole trees in and out as tar streams.
//!
//! Links, modes and times are a disk's, so these operations take a [`Disk`]. Owners are not kept: whoever unpacks owns.

use std::fs::Metadata;
use std::io;
use std::io::Read;
use std::io::Write;
use std::path::Component;
use std::path::Path;
use std::path::PathBuf;

use fs_err::os::unix::fs::OpenOptionsExt;
use rustix::fs::OFlags;
use tar::Archive;
use tar::Builder;
use tar::EntryType;
use tar::Header;

use crate::guest::cancel::Cancel;
use crate::guest::disk::Disk;
use crate::guest::files::Deliver;
use crate::guest::files::Receive;
use crate::guest::tree::Tree;
use crate::guest::tree::fault;
use crate::protocol::operation::Fault;
use crate::protocol::operation::Refusal;
use crate::protocol::operation::Reply;
use crate::protocol::wire::CHUNK;

/// Unpacks a tar stream below a directory, which is made when missing. Modes, links and times of modification are
/// kept; existing files are replaced. What was unpacked before a failure stays.
///
/// # Errors
/// When an entry would be written outside the directory or is a device or pipe, the file system refuses, the stream is
/// no tar stream, or `receive` fails.
pub fn put(
    disk: &Disk,
    path: &str,
    cancel: &Cancel,
    receive: &mut Receive<'_>,
) -> Result<Reply, Fault> {
    disk.make_directories(Path::new(path)).map_err(|error| fault(disk, path, error))?;
    let directory = disk.resolve(Path::new(path)).map_err(|error| fault(disk, path, error))?;
    let mut archive = Archive::new(Incoming {
        receive,
        cancel,
        chunk: Vec::new(),
        at: 0,
        ended: false,
        fault: None,
    });
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    let outcome = unpack(disk, &mut archive, &directory);
    let mut incoming = archive.into_inner();
    // Padding may follow the end of the archive.
    let drained = outcome.and_then(|()| io::copy(&mut incoming, &mut io::sink()).map_err(broken));
    match incoming.fault {
        Some(fault) => Err(fault),
        None => drained.map(|_| Reply::Done),
    }
}

fn unpack(
    disk: &Disk,
    archive: &mut Archive<Incoming<'_, '_>>,
    directory: &Path,
) -> Result<(), Fault> {
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.into_owned();
        let shown = name.to_string_lossy().into_owned();
        let normal = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        let link = entry
            .link_name()
            .map_err(broken)?
            .filter(|_| entry.header().entry_type().is_hard_link());
        let parent = directory.join(name.parent().unwrap_or(Path::new("")));
        let targets = [Some(parent), link.map(|link| directory.join(link))];
        let inside =
            |place: &PathBuf| disk.resolve(place).is_ok_and(|real| real.starts_with(directory));
        if !name.components().all(normal) || !targets.iter().flatten().all(inside) {
            let reason = "outside of the directory".to_owned();
            return Err(Fault::Refused(Refusal::Denied { path: shown, reason }));
        }
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            // A directory without write permission could not be filled, so all of them come last.
            directories.push((shown, entry));
            continue;
        }
        if !(kind.is_file() || kind.is_symlink() || kind.is_hard_link() || kind.is_gnu_sparse()) {
            return Err(Fault::Refused(Refusal::NotRegular { path: shown }));
        }
        entry.unpack_in(directory).map_err(|error| fault(disk, &shown, error.into()))?;
    }
    directories.sort_by(|(a, _), (b, _)| b.cmp(a));
    for (name, mut entry) in directories {
        entry.unpack_in(directory).map_err(|error| fault(disk, &name, error.into()))?;
    }
    Ok(())
}

fn broken(error: io::Error) -> Fault {
    Fault::Failed(format!("tar stream: {error}"))
}

/// The stream from the host, as the tar reader wants it.
struct Incoming<'a, 'b> {
    receive: &'a mut Receive<'b>,
    cancel: &'a Cancel,
    chunk: Vec<u8>,
    at: usize,
    ended: bool,
    fault: Option<Fault>,
}

impl Read for Incoming<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() && !self.ended {
            match self.cancel.check().and_then(|()| (self.receive)()) {
                Ok(Some(chunk)) => {
                    self.chunk = chunk;
                    self.at = 0;
                }
                Ok(None) => self.ended = true,
                Err(fault) => {
                    self.ended = true;
                    self.fault = Some(fault);
                    return Err(io::Error::other("content stopped"));
                }
            }
        }
        let read = (&self.chunk[self.at..]).read(buffer)?;
        self.at += read;
        Ok(read)
    }
}

/// Sends a tar stream of a file, under its name, or of what a directory holds, under paths relative to it. Pipes,
/// sockets and devices are left out.
///
/// # Errors
/// When something cannot be read or `send` fails.
pub fn get(
    disk: &Disk,
    path: &str,
    cancel: &Cancel,
    send: &mut Deliver<'_>,
) -> Result<Reply, Fault> {
    let root = disk.resolve(Path::new(path)).map_err(|error| fault(disk, path, error))?;
    let mut tar = Builder::new(Outgoing { send, chunk: Vec::new(), sent: 0, fault: None });
    let outcome = pack(&mut tar, &root, cancel).and_then(|()| tar.finish());
    let outcome = outcome.and_then(|()| tar.get_mut().flush());
    let outgoing = tar.get_mut();
    if let Some(fault) = outgoing.fault.clone() {
        return Err(fault);
    }
    cancel.check()?;
    outcome.map_err(|error| fault(disk, path, error.into()))?;
    Ok(Reply::Sent { size: outgoing.sent })
}

fn pack(tar: &mut Builder<Outgoing<'_, '_>>, root: &Path, cancel: &Cancel) -> io::Result<()> {
    let metadata = fs_err::symlink_metadata(root)?;
    if !metadata.is_dir() {
        return append(
            tar,
            root,
            Path::new(root.file_name().unwrap_or_default()),
            &metadata,
            cancel,
        );
    }
    let mut ahead = children(root, Path::new(""))?;
    while let Some(below) = ahead.pop() {
        let place = root.join(&below);
        let metadata = match fs_err::symlink_metadata(&place) {
            // It vanished since its directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        append(tar, &place, &below, &metadata, cancel)?;
        if metadata.is_dir() {
            ahead.extend(children(root, &below)?);
        }
    }
    Ok(())
}

/// The names in a directory, last one first.
fn children(root: &Path, below: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(root.join(below))? {
        names.push(below.join(entry?.file_name()));
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

fn append(
    tar: &mut Builder<Outgoing<'_, '_>>,
    place: &Path,
    name: &Path,
    metadata: &Metadata,
    cancel: &Cancel,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_metadata(metadata);
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        header.set_entry_type(EntryType::Directory);
        header.set_size(0);
        tar.append_data(&mut header, name, io::empty())
    } else if file_type.is_symlink() {
        header.set_size(0);
        tar.append_link(&mut header, name, fs_err::read_link(place)?)
    } else if file_type.is_file() {
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
        let file = fs_err::OpenOptions::new().read(true).custom_flags(flags).open(place)?;
        let size = metadata.len();
        // The header promises the size, so a file that grows or shrinks meanwhile is cut or filled up.
        let contents = cancel.guard(file).take(size).chain(io::repeat(0)).take(size);
        tar.append_data(&mut header, name, contents)
    } else {
        Ok(())
    }
}

/// The stream to the host, as the tar writer wants it.
struct Outgoing<'a, 'b> {
    send: &'a mut Deliver<'b>,
    chunk: Vec<u8>,
    sent: u64,
    fault: Option<Fault>,
}

impl Write for Outgoing<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.fault.is_some() {
            return Err(io::Error::other("content stopped"));
        }
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.chunk);
        let size = chunk.len() as u64;
        match (self.send)(chunk) {
            Ok(()) => {
                self.sent += size;
                Ok(())
            }
            Err(fault) => {
                self.fault = Some(fault);
                Err(io::Error::other("content stopped"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn never() -> Cancel {
        Cancel::after(None)
    }

    fn put_bytes(disk: &Disk, path: &str, bytes: &[u8]) -> Result<Reply, Fault> {
        let mut chunks = bytes.chunks(700).map(<[u8]>::to_vec);
        put(disk, path, &never(), &mut || Ok(chunks.next()))
    }

    fn get_bytes(disk: &Disk, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let reply = get(disk, path, &never(), &mut |chunk| {
            bytes.extend(chunk);
            Ok(())
        });
        assert_eq!(reply, Ok(Reply::Sent { size: bytes.len() as u64 }));
        bytes
    }

    #[test]
    fn a_tree_comes_back_with_modes_links_and_times() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        let long = "d".repeat(120);
        fs_err::create_dir_all(from.join("locked").join(&long)).unwrap();
        fs_err::create_dir_all(from.join("empty")).unwrap();
        fs_err::write(from.join("locked").join(&long).join("run.sh"), "#!/bin/sh\n").unwrap();
        fs_err::write(from.join("big"), vec![b'x'; 3 * CHUNK + 5]).unwrap();
        fs_err::os::unix::fs::symlink("locked/nowhere", from.join("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            from.join("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        let script = from.join("locked").join(&long).join("run.sh");
        fs_err::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        fs_err::set_permissions(from.join("locked"), PermissionsExt::from_mode(0o555)).unwrap();
        let disk = Disk::new(place.path());
        let bytes = get_bytes(&disk, "from");
        assert_eq!(put_bytes(&disk, "new/to", &bytes), Ok(Reply::Done));
        // A second time over what is there.
        assert_eq!(put_bytes(&disk, "new/to", &bytes), Ok(Reply::Done));
        let to = place.path().join("new/to");
        let copied = to.join("locked").join(&long).join("run.sh");
        assert_eq!(fs_err::read(&copied).unwrap(), b"#!/bin/sh\n");
        assert_eq!(fs_err::metadata(&copied).unwrap().mode() & 0o7777, 0o755);
        assert_eq!(
            fs_err::metadata(&copied).unwrap().mtime(),
            fs_err::metadata(&script).unwrap().mtime()
        );
        assert_eq!(fs_err::metadata(to.join("locked")).unwrap().mode() & 0o7777, 0o555);
        assert_eq!(fs_err::read(to.join("big")).unwrap().len(), 3 * CHUNK + 5);
        assert_eq!(fs_err::read_link(to.join("link")).unwrap(), Path::new("locked/nowhere"));
        assert!(to.join("empty").is_dir());
        assert!(!to.join("pipe").exists());
        let alone = get_bytes(&disk, "from/big");
        assert_eq!(put_bytes(&disk, "alone", &alone), Ok(Reply::Done));
        assert!(place.path().join("alone/big").is_file());
        for directory in [from.join("locked"), to.join("locked")] {
            fs_err::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
        }
    }

    fn hostile(name: &[u8], kind: EntryType, link: &str) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(if link.is_empty() { 3 } else { 0 });
        if !link.is_empty() {
            header.set_link_name_literal(link).unwrap();
        }
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        if link.is_empty() {
            bytes.extend(b"bad");
            bytes.resize(1024, 0);
        }
        bytes
    }

    #[test]
    fn nothing_is_written_outside_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::new(place.path());
        let outside = place.path().join("outside");
        fs_err::create_dir(&outside).unwrap();
        let absolute = outside.join("file").to_str().unwrap().as_bytes().to_vec();
        let link = hostile(b"way", EntryType::Symlink, "../outside");
        let through = [link.clone(), hostile(b"way/file", EntryType::Regular, "")].concat();
        let hard = [link, hostile(b"hard", EntryType::Link, "way/kept")].concat();
        fs_err::write(outside.join("kept"), "kept").unwrap();
        for (number, bytes) in [
            hostile(b"../outside/file", EntryType::Regular, ""),
            hostile(&absolute, EntryType::Regular, ""),
            through,
            hard,
        ]
        .iter()
        .enumerate()
        {
            let stream = [bytes.as_slice(), &[0; 1024]].concat();
            let reply = put_bytes(&disk, &format!("in{number}"), &stream);
            assert!(
                matches!(reply, Err(Fault::Refused(Refusal::Denied { .. }))),
                "{number}: {reply:?}"
            );
        }
        let left: Vec<_> =
            fs_err::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
        // A link may lead outside as long as nothing is written through it, and a file replaces it.
        let link = hostile(b"a", EntryType::Symlink, "../outside/kept");
        let stream = [link, hostile(b"a", EntryType::Regular, ""), vec![0; 1024]].concat();
        assert_eq!(put_bytes(&disk, "fine", &stream), Ok(Reply::Done));
        assert_eq!(fs_err::read(outside.join("kept")).unwrap(), b"kept");
        let device = [hostile(b"null", EntryType::Char, ""), vec![0; 1024]].concat();
        let refused = Refusal::NotRegular { path: "null".to_owned() };
        assert_eq!(put_bytes(&disk, "device", &device), Err(Fault::Refused(refused)));
    }

    #[test]
    fn a_broken_stream_and_a_cancelled_one_are_no_refusals() {
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::new(place.path());
        assert!(matches!(put_bytes(&disk, "a", &[b'z'; 2000]), Err(Fault::Failed(_))));
        let cut =
            [hostile(b"file", EntryType::Regular, ""), hostile(b"more", EntryType::Regular, "")]
                .concat();
        let reply = put_bytes(&disk, "b", &cut[..cut.len() - 511]);
        assert!(matches!(reply, Err(Fault::Failed(_))), "{reply:?}");
        let stopped = put(&disk, "c", &never(), &mut || Err(Fault::Cancelled));
        assert_eq!(stopped, Err(Fault::Cancelled));
        let cancel = never();
        cancel.cancel();
        fs_err::write(place.path().join("big"), vec![b'x'; 2 * CHUNK]).unwrap();
        assert_eq!(get(&disk, "big", &cancel, &mut |_| Ok(())), Err(Fault::Cancelled));
        assert_eq!(
            get(&disk, "big", &never(), &mut |_| Err(Fault::Cancelled)),
            Err(Fault::Cancelled)
        );
    }
}
