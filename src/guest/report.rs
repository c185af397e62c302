//! What a shell reports through its pipe when it is done with a command.

use memchr::memmem;

/// Most bytes of exports that are kept. A shell with more hands on those it had before.
const MAX_EXPORTS: usize = 1 << 20;
/// Bytes of a longer report's beginning that are kept; a path is shorter.
const HEAD: usize = 64 << 10;

/// A report that is on its way: `NONCE STATUS\nCWD\n\0EXPORTS\0NONCE\n`, between whatever else was written to the pipe.
#[derive(Debug)]
pub(crate) struct Report {
    first: Vec<u8>,
    last: Vec<u8>,
    bytes: Vec<u8>,
    begun: bool,
    cut: bool,
}

/// What a report says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    /// Exit status.
    pub(crate) code: i32,
    /// Working directory.
    pub(crate) cwd: String,
    /// Shell source that restores the exports, unless there are too many.
    pub(crate) exports: Option<Vec<u8>>,
}

impl Report {
    /// The report that carries this number.
    pub(crate) fn new(nonce: u64) -> Self {
        Self {
            first: format!("{nonce} ").into(),
            last: format!("\0{nonce}\n").into(),
            bytes: Vec::new(),
            begun: false,
            cut: false,
        }
    }

    /// Takes in a piece; gives the report once it is whole.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Option<Reported> {
        // A mark may lie across two pieces.
        let overlap = if self.begun { self.last.len() } else { self.first.len() };
        let mut scanned = self.bytes.len().saturating_sub(overlap);
        self.bytes.extend_from_slice(piece);
        if !self.begun {
            let Some(at) = memmem::find(&self.bytes[scanned..], &self.first) else {
                self.bytes.drain(..self.bytes.len().saturating_sub(self.first.len()));
                return None;
            };
            self.bytes.drain(..scanned + at + self.first.len());
            (self.begun, scanned) = (true, 0);
        }
        if let Some(at) = memmem::find(&self.bytes[scanned..], &self.last) {
            return self.read(&self.bytes[..scanned + at]);
        }
        if self.bytes.len() > HEAD + MAX_EXPORTS {
            self.bytes.drain(HEAD..self.bytes.len() - self.last.len());
            self.cut = true;
        }
        None
    }

    fn read(&self, body: &[u8]) -> Option<Reported> {
        let (code, body) = split(body, b'\n')?;
        let (cwd, exports) = split(body, 0)?;
        let cwd = cwd.strip_suffix(b"\n").unwrap_or(cwd);
        let is_whole = !self.cut && exports.len() <= MAX_EXPORTS;
        Some(Reported {
            code: std::str::from_utf8(code).ok()?.parse().ok()?,
            cwd: String::from_utf8_lossy(cwd).into_owned(),
            exports: is_whole.then(|| exports.to_vec()),
        })
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
    fn a_report_is_found_among_other_bytes_and_only_when_it_is_whole() {
        let bytes = b"junk 7 0\n\x007\n12 3\n/a\nb\n\0declare -x A=\"\n\"\n\x0012\nmore";
        let expected = Reported {
            code: 3,
            cwd: "/a\nb".into(),
            exports: Some(b"declare -x A=\"\n\"\n".to_vec()),
        };
        for size in [1, 2, 3, 7, 100] {
            let mut report = Report::new(12);
            let mut given = 0;
            let found = bytes.chunks(size).find_map(|piece| {
                given += piece.len();
                report.push(piece)
            });
            assert_eq!(found.as_ref(), Some(&expected), "{size}");
            assert!(given >= bytes.len() - 4 && given < bytes.len() - 4 + size, "{size}");
        }
        assert_eq!(Report::new(1).push(bytes), None);
    }

    #[test]
    fn what_is_too_long_is_not_kept() {
        let mut report = Report::new(5);
        for _ in 0..100 {
            assert_eq!(report.push(&[b'x'; 100_000]), None);
            assert!(report.bytes.len() < 100);
        }
        assert_eq!(report.push(b"5 9\n/cwd\n\0"), None);
        for _ in 0..100 {
            assert_eq!(report.push(&[b'y'; 100_000]), None);
            assert!(report.bytes.len() <= HEAD + MAX_EXPORTS);
        }
        let expected = Reported { code: 9, cwd: "/cwd".into(), exports: None };
        assert_eq!(report.push(b"\0"), None);
        assert_eq!(report.push(b"5\n"), Some(expected));
    }
}
