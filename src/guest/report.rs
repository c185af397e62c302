//! What a shell reports when it is done with a command: a file with its state, then a number through a pipe.

use std::io;
use std::io::Read;
use std::path::Path;

use fs_err::os::unix::fs::OpenOptionsExt;
use memchr::memmem;
use rustix::fs::OFlags;

/// Most bytes of exports that are kept. A shell with more hands on those it had before.
const MAX_EXPORTS: usize = 1 << 20;
/// Bytes of a longer file's beginning that are read; a path is shorter.
const HEAD: usize = 64 << 10;

/// Waits for a number between whatever else is written to the pipe.
#[derive(Debug)]
pub(crate) struct Mark {
    line: Vec<u8>,
    last: Vec<u8>,
}

impl Mark {
    /// Waits for this number, as a line.
    pub(crate) fn new(nonce: u64) -> Self {
        Self { line: format!("{nonce}\n").into(), last: Vec::new() }
    }

    /// Takes in a piece; true once the number was there.
    pub(crate) fn push(&mut self, piece: &[u8]) -> bool {
        self.last.extend_from_slice(piece);
        let found = memmem::find(&self.last, &self.line).is_some();
        self.last.drain(..self.last.len().saturating_sub(self.line.len()));
        found
    }
}

/// The state of a shell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    /// Exit status of the command.
    pub(crate) code: i32,
    /// Working directory.
    pub(crate) cwd: String,
    /// Shell source that restores the exports, unless there are too many.
    pub(crate) exports: Option<Vec<u8>>,
}

impl Reported {
    /// Reads `STATUS\nCWD\n\0EXPORTS\0`; none when the file is not whole.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        // A pipe that a command put there must not be waited for.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = match fs_err::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take((HEAD + MAX_EXPORTS) as u64).read_to_end(&mut bytes)?;
        Ok(Self::parse(&bytes))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (code, rest) = split(bytes, b'\n')?;
        let (cwd, rest) = split(rest, 0)?;
        let cwd = cwd.strip_suffix(b"\n")?;
        let exports = match rest.split_last() {
            Some((0, exports)) => Some(exports.to_vec()),
            _ if bytes.len() == HEAD + MAX_EXPORTS => None,
            Some(_) | None => return None,
        };
        let code = std::str::from_utf8(code).ok()?.parse().ok()?;
        Some(Self { code, cwd: String::from_utf8_lossy(cwd).into_owned(), exports })
    }
}

fn split(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = bytes.iter().position(|byte| *byte == at)?;
    Some((&bytes[..index], &bytes[index + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_among_other_bytes() {
        for size in [1, 2, 3, 7, 100] {
            let mut mark = Mark::new(1234);
            let bytes = b"junk 12\n34\n\x00123\x00\n234\n 1234";
            assert!(!bytes.chunks(size).any(|piece| mark.push(piece)), "{size}");
            assert!(mark.push(b"\n"), "{size}");
            assert!(mark.last.len() <= 5);
        }
    }

    #[test]
    fn a_state_is_read_only_when_it_is_whole() {
        let bytes = b"3\n/a\nb\n\0declare -x A=\"\n\"\n\0";
        let exports = b"declare -x A=\"\n\"\n".to_vec();
        let expected = Reported { code: 3, cwd: "/a\nb".into(), exports: Some(exports) };
        assert_eq!(Reported::parse(bytes), Some(expected));
        for end in 0..bytes.len() - 1 {
            // The directory alone is as good as no exports at all.
            assert!(end == 8 || Reported::parse(&bytes[..end]).is_none(), "{end}");
        }
        let long = [b"3\n/\n\0".as_slice(), &vec![b'x'; HEAD + MAX_EXPORTS]].concat();
        let expected = Reported { code: 3, cwd: "/".into(), exports: None };
        assert_eq!(Reported::parse(&long[..HEAD + MAX_EXPORTS]), Some(expected));
    }
}
