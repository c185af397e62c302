//! Files and directories as they stand: line windows, bytes in and out, listings.

use std::ffi::OsString;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;

use memchr::memchr;

use crate::guest::cancel::Cancel;
use crate::guest::tree::Tree;
use crate::guest::tree::TreeError;
use crate::guest::tree::fault;
use crate::protocol::operation::Entry;
use crate::protocol::operation::Fault;
use crate::protocol::operation::Kind;
use crate::protocol::operation::Line;
use crate::protocol::operation::MAX_LINE;
use crate::protocol::operation::Refusal;
use crate::protocol::operation::Reply;
use crate::protocol::operation::Window;
use crate::protocol::wire::CHUNK;

/// Most lines in one window.
pub const MAX_LINES: u64 = 20_000;
/// Bytes of text in one reply; with lengths and numbers added it still fits a frame.
pub(super) const REPLY_BYTES: usize = 3 << 20;
/// A NUL byte among this many first ones makes a file binary.
pub(super) const BINARY_PREFIX: usize = 8 << 10;
/// What an entry of a list adds to the reply besides its path, at most.
const ENTRY_BYTES: usize = 32;

/// Takes content on its way to the host.
pub type Deliver<'a> = dyn FnMut(Vec<u8>) -> Result<(), Fault> + 'a;
/// Gives the next piece of content from the host; none at its end.
pub type Receive<'a> = dyn FnMut() -> Result<Option<Vec<u8>>, Fault> + 'a;

/// The lines `first..first + count` of a file. A line ends with LF or CR LF, neither of which is given; any other byte
/// is. A window behind the end becomes the last `count` lines. At most [`MAX_LINES`] lines and 3 MiB are given: the
/// rest is missing at the window's end.
///
/// # Errors
/// When the file is binary or cannot be read.
pub fn lines(
    tree: &dyn Tree,
    path: &str,
    first: u64,
    count: u64,
    cancel: &Cancel,
) -> Result<Reply, Fault> {
    let count = count.min(MAX_LINES);
    let mut window = window(tree, path, first.max(1), count, cancel)?;
    if window.first > window.total {
        let first = window.total.saturating_sub(count.max(1)) + 1;
        if window.total == 0 {
            window.first = first;
        } else {
            window = self::window(tree, path, first, count, cancel)?;
        }
    }
    Ok(Reply::Lines(window))
}

fn window(
    tree: &dyn Tree,
    path: &str,
    first: u64,
    count: u64,
    cancel: &Cancel,
) -> Result<Window, Fault> {
    let broken = |error: io::Error| stopped(cancel, tree, path, error);
    let opened = tree.open(Path::new(path), 0).map_err(|error| fault(tree, path, error))?;
    let mut reader = BufReader::with_capacity(64 << 10, cancel.guard(opened.contents));
    if is_binary(reader.fill_buf().map_err(broken)?) {
        return Err(Fault::Refused(Refusal::Binary { path: path.to_owned() }));
    }
    let mut window = Window { first, lines: Vec::new(), total: 0, size: 0 };
    let mut held = 0;
    let mut full = count == 0;
    loop {
        let number = window.total + 1;
        let read = if number < first || full {
            reader.skip_until(b'\n').map_err(broken)? as u64
        } else {
            let (read, line) = next_line(&mut reader).map_err(broken)?;
            held += line.text.len();
            full = held > REPLY_BYTES;
            if read > 0 && !full {
                window.lines.push(line);
                full = window.lines.len() as u64 == count;
            }
            read
        };
        if read == 0 {
            break;
        }
        window.size += read;
        window.total = number;
    }
    Ok(window)
}

/// The next line and the bytes it takes in the file; no more of it than the reply needs is held in memory.
fn next_line(reader: &mut impl BufRead) -> io::Result<(u64, Line)> {
    let mut kept = Vec::new();
    let mut read = 0;
    let mut last = 0;
    loop {
        let available = reader.fill_buf()?;
        let end = memchr(b'\n', available);
        let part = &available[..end.unwrap_or(available.len())];
        kept.extend_from_slice(&part[..part.len().min(MAX_LINE - kept.len())]);
        read += part.len() as u64;
        let used = part.len() + usize::from(end.is_some());
        let done = used == 0 || end.is_some();
        let before = last;
        last = part.last().copied().unwrap_or(before);
        reader.consume(used);
        if done {
            let carriage = u64::from(end.is_some() && read > 0 && last == b'\r');
            let line = cut_line(&kept, read - carriage);
            return Ok((read + u64::from(end.is_some()), line));
        }
    }
}

/// A line of `length` bytes, of which `kept` is at least the beginning that can be given; a character is not cut.
pub(super) fn cut_line(kept: &[u8], length: u64) -> Line {
    let mut end = kept.len().min(MAX_LINE).min(usize::try_from(length).unwrap_or(MAX_LINE));
    if (end as u64) < length {
        // Of the last character only its beginning may be there; a byte that starts none stays.
        let tail = &kept[end.saturating_sub(3)..end];
        if let Some(back) = tail.iter().rev().position(|byte| byte & 0xc0 != 0x80) {
            let lead = kept[end - 1 - back];
            let width = match lead {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            if width > back + 1 {
                end -= back + 1;
            }
        }
    }
    Line { text: kept[..end].to_vec(), cut: length - end as u64 }
}

/// Whether the first bytes of a file say that it is not text.
pub(super) fn is_binary(beginning: &[u8]) -> bool {
    memchr(0, &beginning[..beginning.len().min(BINARY_PREFIX)]).is_some()
}

/// The fault of a stream that broke: the operation was stopped, or the tree failed.
pub(super) fn stopped(cancel: &Cancel, tree: &dyn Tree, path: &str, error: io::Error) -> Fault {
    cancel.check().err().unwrap_or_else(|| fault(tree, path, error.into()))
}

/// Sends up to `limit` bytes of a file, from `offset` on, in pieces of [`CHUNK`].
///
/// # Errors
/// When the file cannot be read or `send` fails.
pub fn read(
    tree: &dyn Tree,
    path: &str,
    offset: u64,
    limit: u64,
    cancel: &Cancel,
    send: &mut Deliver<'_>,
) -> Result<Reply, Fault> {
    let opened = tree.open(Path::new(path), offset).map_err(|error| fault(tree, path, error))?;
    let mut contents = cancel.guard(opened.contents).take(limit);
    let mut end = offset;
    loop {
        let mut chunk = Vec::new();
        let read = contents.by_ref().take(CHUNK as u64).read_to_end(&mut chunk);
        if read.map_err(|error| stopped(cancel, tree, path, error))? == 0 {
            break;
        }
        end += chunk.len() as u64;
        send(chunk)?;
    }
    // Files of /proc hold more than their size says; reading behind the end says nothing about the size.
    let size = if end > offset { opened.size.max(end) } else { opened.size };
    Ok(Reply::Sent { size })
}

/// Makes or replaces a file with what `receive` gives. The old contents stand until all of it has arrived.
///
/// # Errors
/// When something other than a file stands at the path, the file system refuses, or `receive` fails.
pub fn write(
    tree: &dyn Tree,
    path: &str,
    mode: Option<u32>,
    cancel: &Cancel,
    receive: &mut Receive<'_>,
) -> Result<Reply, Fault> {
    let refused = |error| fault(tree, path, error);
    make_parents(tree, path)?;
    let mut replacement = tree.replace(Path::new(path), mode).map_err(refused)?;
    while let Some(chunk) = receive()? {
        cancel.check()?;
        replacement.write_all(&chunk).map_err(|error| refused(error.into()))?;
    }
    cancel.check()?;
    replacement.commit().map_err(refused)?;
    Ok(Reply::Done)
}

/// Makes the directories a new file needs.
pub(super) fn make_parents(tree: &dyn Tree, path: &str) -> Result<(), Fault> {
    match Path::new(path).parent() {
        Some(parent) => tree
            .make_directories(parent)
            .map_err(|error| fault(tree, &parent.to_string_lossy(), error)),
        None => Ok(()),
    }
}

/// What stands at a path, links not followed.
///
/// # Errors
/// When nothing does.
pub fn stat(tree: &dyn Tree, path: &str) -> Result<Reply, Fault> {
    tree.stat(Path::new(path)).map(Reply::Stat).map_err(|error| fault(tree, path, error))
}

/// The entries of a directory down to `depth` levels, sorted bytewise by path; those of `.git` are left out. At most
/// `limit` entries and 3 MiB of paths are given.
///
/// # Errors
/// When no readable directory stands at the path.
pub fn list(
    tree: &dyn Tree,
    path: &str,
    depth: u32,
    limit: u32,
    cancel: &Cancel,
) -> Result<Reply, Fault> {
    let root = Path::new(path);
    let mut entries = Vec::new();
    let mut held = 0;
    let mut ahead =
        steps(tree, root, Path::new(""), depth).map_err(|error| fault(tree, path, error))?;
    while let Some(step) = ahead.pop() {
        cancel.check()?;
        match step.kind {
            StepKind::Show => {
                // What vanished since its directory was read is no entry any more.
                let Ok(stat) = tree.stat(&root.join(&step.path)) else { continue };
                let shown = step.path.to_string_lossy().into_owned();
                held += shown.len() + ENTRY_BYTES;
                if entries.len() == limit as usize || held > REPLY_BYTES {
                    return Ok(Reply::List { entries, more: true });
                }
                entries.push(Entry { path: shown, stat });
            }
            StepKind::Descend { depth } => {
                ahead.extend(steps(tree, root, &step.path, depth).unwrap_or_default());
            }
        }
    }
    Ok(Reply::List { entries, more: false })
}

struct Step {
    key: OsString,
    path: PathBuf,
    kind: StepKind,
}

enum StepKind {
    Show,
    Descend { depth: u32 },
}

/// What is to be done for one directory, last step first. A directory is shown under its name and descended into under
/// its name and a slash, so that the paths come out in bytewise order.
fn steps(
    tree: &dyn Tree,
    root: &Path,
    directory: &Path,
    depth: u32,
) -> Result<Vec<Step>, TreeError> {
    let mut steps = Vec::new();
    let names = tree.entries(&root.join(directory))?;
    if depth == 0 {
        return Ok(steps);
    }
    for (name, kind) in names {
        let path = directory.join(&name);
        if kind == Kind::Directory && depth > 1 && name != ".git" {
            let mut key = name.clone();
            key.push("/");
            steps.push(Step {
                key,
                path: path.clone(),
                kind: StepKind::Descend { depth: depth - 1 },
            });
        }
        steps.push(Step { key: name, path, kind: StepKind::Show });
    }
    steps.sort_unstable_by(|a, b| b.key.cmp(&a.key));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guest::disk::Disk;
    use crate::guest::tree::tests::Memory;

    fn never() -> Cancel {
        Cancel::after(None)
    }

    fn window_of(tree: &dyn Tree, path: &str, first: u64, count: u64) -> Window {
        match lines(tree, path, first, count, &never()) {
            Ok(Reply::Lines(window)) => window,
            other => panic!("{other:?}"),
        }
    }

    fn texts(window: &Window) -> Vec<String> {
        window.lines.iter().map(|line| String::from_utf8(line.text.clone()).unwrap()).collect()
    }

    #[test]
    fn a_window_is_clamped_to_the_file() {
        let tree = Memory::with(&[("ten", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10"), ("empty", b"")]);
        let middle = window_of(&tree, "ten", 4, 3);
        assert_eq!(
            (middle.first, texts(&middle), middle.total, middle.size),
            (4, vec!["4".into(), "5".into(), "6".into()], 10, 20)
        );
        assert_eq!(texts(&window_of(&tree, "ten", 9, 5)), ["9", "10"]);
        let behind = window_of(&tree, "ten", 99, 3);
        assert_eq!((behind.first, texts(&behind)), (8, vec!["8".into(), "9".into(), "10".into()]));
        assert_eq!(window_of(&tree, "ten", 0, 1).first, 1);
        assert_eq!(window_of(&tree, "ten", 1, 0).total, 10);
        assert_eq!(
            window_of(&tree, "empty", 5, 3),
            Window { first: 1, lines: vec![], total: 0, size: 0 }
        );
    }

    #[test]
    fn line_ends_are_not_part_of_a_line_and_everything_else_is() {
        let tree = Memory::with(&[("mixed", b"\ttab\r\nlone\rreturn\n\r\nlast\r"), ("lf", b"a\n")]);
        assert_eq!(
            texts(&window_of(&tree, "mixed", 1, 9)),
            ["\ttab", "lone\rreturn", "", "last\r"]
        );
        assert_eq!(texts(&window_of(&tree, "lf", 1, 9)), ["a"]);
    }

    #[test]
    fn long_lines_are_cut_between_characters_and_replies_stay_below_a_frame() {
        let mut long = vec![b'a'; MAX_LINE - 1];
        long.extend("\u{20ac}uro\r\n".as_bytes());
        long.extend([0x80; MAX_LINE + 2]);
        let wide = "b".repeat(5000) + "\n";
        let tree = Memory::with(&[("long", &long), ("wide", wide.repeat(2000).as_bytes())]);
        let window = window_of(&tree, "long", 1, 2);
        assert_eq!((window.lines[0].text.len(), window.lines[0].cut), (MAX_LINE - 1, 6));
        assert_eq!((window.lines[1].text.len(), window.lines[1].cut), (MAX_LINE, 2));
        let window = window_of(&tree, "wide", 1, 2000);
        assert_eq!(
            (window.total, window.lines.len(), window.size),
            (2000, REPLY_BYTES / MAX_LINE, 5001 * 2000)
        );
        let frame =
            crate::protocol::wire::FromGuest::Done { id: 1, result: Ok(Reply::Lines(window)) };
        assert!(crate::protocol::wire::encode(&frame).is_ok());
    }

    #[test]
    fn what_is_no_text_file_is_refused() {
        let tree = Memory::with(&[("bin", b"\x7fELF\0"), ("dir/file", b"")]);
        let refusal = |path: &str| lines(&tree, path, 1, 1, &never()).unwrap_err();
        assert_eq!(refusal("bin"), Fault::Refused(Refusal::Binary { path: "bin".into() }));
        assert_eq!(refusal("dir"), Fault::Refused(Refusal::IsDirectory { path: "dir".into() }));
        let similar = vec!["dir/file".to_owned()];
        assert_eq!(
            refusal("file"),
            Fault::Refused(Refusal::NotFound { path: "file".into(), similar })
        );
    }

    #[test]
    fn bytes_go_in_and_out_in_pieces() {
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::new(place.path());
        let content: Vec<u8> = (0..CHUNK + 1000).map(|index| (index % 251) as u8).collect();
        let mut chunks = content.chunks(1000).map(<[u8]>::to_vec);
        let reply = write(&disk, "new/deep/file", Some(0o755), &never(), &mut || Ok(chunks.next()));
        assert_eq!(reply, Ok(Reply::Done));
        let mut got = Vec::new();
        let mut take = |chunk: Vec<u8>| {
            assert!(chunk.len() <= CHUNK);
            got.extend(chunk);
            Ok(())
        };
        let size = content.len() as u64;
        assert_eq!(
            read(&disk, "new/deep/file", 10, u64::MAX, &never(), &mut take),
            Ok(Reply::Sent { size })
        );
        assert_eq!(
            read(&disk, "new/deep/file", 0, 10, &never(), &mut take),
            Ok(Reply::Sent { size })
        );
        assert_eq!(
            read(&disk, "new/deep/file", 1 << 40, 10, &never(), &mut take),
            Ok(Reply::Sent { size })
        );
        assert_eq!(got, [&content[10..], &content[..10]].concat());
        assert!(
            matches!(stat(&disk, "new/deep/file"), Ok(Reply::Stat(stat)) if stat.mode == 0o755)
        );
        let mut broken = [Ok(Some(vec![1])), Err(Fault::Cancelled)].into_iter();
        let reply = write(&disk, "new/deep/file", None, &never(), &mut || broken.next().unwrap());
        assert_eq!(reply, Err(Fault::Cancelled));
        assert_eq!(fs_err::read(place.path().join("new/deep/file")).unwrap(), content);
        assert_eq!(fs_err::read_dir(place.path().join("new/deep")).unwrap().count(), 1);
    }

    #[test]
    fn files_that_hide_their_size_are_read_whole() {
        let disk = Disk::new("/");
        let mut got = Vec::new();
        let reply = read(&disk, "/proc/self/status", 0, u64::MAX, &never(), &mut |chunk| {
            got.extend(chunk);
            Ok(())
        });
        assert_eq!(reply, Ok(Reply::Sent { size: got.len() as u64 }));
        assert!(got.starts_with(b"Name:"));
        assert!(window_of(&disk, "/proc/self/status", 1, 5).total > 5);
    }

    #[test]
    fn a_listing_is_bounded_and_leaves_git_closed() {
        let place = tempfile::tempdir().unwrap();
        for directory in [".git/objects", ".github", "pkg/inner"] {
            fs_err::create_dir_all(place.path().join(directory)).unwrap();
        }
        for file in ["pkg-info", "pkg.py", "pkg/a", "pkg/inner/b"] {
            fs_err::write(place.path().join(file), "x").unwrap();
        }
        fs_err::os::unix::fs::symlink("pkg", place.path().join("zlink")).unwrap();
        let disk = Disk::new(place.path());
        let listed = |depth, limit| match list(&disk, "", depth, limit, &never()) {
            Ok(Reply::List { entries, more }) => {
                (entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>(), more)
            }
            other => panic!("{other:?}"),
        };
        let top = [".git", ".github", "pkg", "pkg-info", "pkg.py", "zlink"];
        assert_eq!(listed(1, 99), (top.map(String::from).to_vec(), false));
        let all = [
            ".git",
            ".github",
            "pkg",
            "pkg-info",
            "pkg.py",
            "pkg/a",
            "pkg/inner",
            "pkg/inner/b",
            "zlink",
        ];
        assert_eq!(listed(9, 99), (all.map(String::from).to_vec(), false));
        assert_eq!(listed(9, 9), (all.map(String::from).to_vec(), false));
        assert_eq!(listed(9, 4), (all[..4].iter().map(ToString::to_string).collect(), true));
        let refused = Fault::Refused(Refusal::NotDirectory { path: "pkg.py".into() });
        assert_eq!(list(&disk, "pkg.py", 1, 9, &never()), Err(refused));
    }

    proptest! {
        #[test]
        fn windows_agree_with_splitting_the_whole_file(
            text in "[ab\r\n]{0,40}", first in 1u64..20, count in 1u64..20,
        ) {
            let mut all: Vec<&str> = text.split('\n').collect();
            if all.last() == Some(&"") {
                all.pop();
            }
            let ended = text.matches('\n').count();
            let shown: Vec<String> = all.iter().enumerate().map(|(index, line)| {
                let line = if index < ended { line.strip_suffix('\r').unwrap_or(line) } else { line };
                line.to_owned()
            }).collect();
            let window = window_of(&Memory::with(&[("f", text.as_bytes())]), "f", first, count);
            prop_assert_eq!(window.total, shown.len() as u64);
            prop_assert_eq!(window.size, text.len() as u64);
            let from = usize::try_from(window.first - 1).unwrap();
            let expected: Vec<String> = shown.iter().skip(from).take(usize::try_from(count).unwrap()).cloned().collect();
            prop_assert_eq!(texts(&window), expected);
            prop_assert!(first > window.total || window.first == first);
        }

        #[test]
        fn a_cut_line_ends_with_a_whole_character(text in "\\PC{1000,3000}") {
            let line = cut_line(text.as_bytes(), text.len() as u64);
            prop_assert!(std::str::from_utf8(&line.text).is_ok());
            prop_assert_eq!(line.text.len() as u64 + line.cut, text.len() as u64);
            prop_assert!(line.cut == 0 || line.text.len() > MAX_LINE - 4);
        }
    }
}
