//! Looking for text in files, and for files by name.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use globset::GlobBuilder;
use grep_regex::RegexMatcher;
use grep_regex::RegexMatcherBuilder;
use grep_searcher::BinaryDetection;
use grep_searcher::Searcher;
use grep_searcher::SearcherBuilder;
use grep_searcher::Sink;
use grep_searcher::SinkMatch;

use crate::guest::cancel::Cancel;
use crate::guest::files::BINARY_PREFIX;
use crate::guest::files::REPLY_BYTES;
use crate::guest::files::cut_line;
use crate::guest::files::is_binary;
use crate::guest::files::stopped;
use crate::guest::tree::Opened;
use crate::guest::tree::Scope;
use crate::guest::tree::Tree;
use crate::guest::tree::TreeError;
use crate::guest::tree::fault;
use crate::guest::tree::system_error;
use crate::protocol::operation::Fault;
use crate::protocol::operation::FileHits;
use crate::protocol::operation::Kind;
use crate::protocol::operation::Line;
use crate::protocol::operation::Refusal;
use crate::protocol::operation::Reply;
use crate::protocol::operation::SearchResult;

/// Memory one thread may take for the longest line of a file; a file with a longer one is left out of a tree's search.
const MAX_LINE_HELD: usize = 32 << 20;
/// Bytes of the reply that paths may take; lines get the rest.
const PATH_BYTES: usize = 1 << 20;
/// What a line adds to the reply besides its text, and a file besides its path, at most.
const ITEM_BYTES: usize = 32;

/// The lines that contain `term`, taken literally, below a directory or in a file.
///
/// Below a directory: hidden files are searched; `.git`, binary files, links, what cannot be read and, inside a git
/// repository, what its `.gitignore` files name are not. Everything is counted; of the sorted paths the first
/// `max_files` are given, and of their lines the first `max_lines`, in all no more than 3 MiB.
///
/// # Errors
/// When nothing stands at the path, it is a binary file or has a line of more than 32 MiB, or the term is empty or spans
/// lines.
pub fn search(
    tree: &dyn Tree,
    term: &str,
    path: &str,
    max_files: u32,
    max_lines: u32,
    cancel: &Cancel,
) -> Result<Reply, Fault> {
    let matcher = matcher(term)?;
    let refused = |error| fault(tree, path, error);
    let root = tree.resolve(Path::new(path)).map_err(refused)?;
    let stat = tree.stat(&root).map_err(refused)?;
    let most = Most { files: max_files as usize, lines: max_lines as usize };
    if stat.kind != Kind::Directory {
        let opened = tree.open(&root, 0).map_err(refused)?;
        let hits = hits_of(opened, &matcher, &mut searcher(), most, cancel);
        let hits = hits.map_err(|error| match system_error(&error) {
            // The searcher itself fails for one reason only: a line longer than it may hold.
            None if cancel.check().is_ok() => {
                refused(TreeError::TooLarge { size: stat.size, limit: MAX_LINE_HELD as u64 })
            }
            _ => stopped(cancel, tree, path, error),
        })?;
        let name = root.file_name().unwrap_or_default();
        let mut found = Found::default();
        match hits {
            Searched::Binary => {
                return Err(Fault::Refused(Refusal::Binary { path: path.to_owned() }));
            }
            Searched::Text(hits) => found.add(Path::new(&name), hits, most),
        }
        return Ok(Reply::Search(found.into_result(most)));
    }
    let found = Mutex::new(Found::default());
    let visit = |below: &Path, kind: Kind| {
        if cancel.check().is_err() {
            return ControlFlow::Break(());
        }
        if kind == Kind::File
            && let Ok(opened) = tree.open(&root.join(below), 0)
            && let Ok(Searched::Text(hits)) =
                hits_of(opened, &matcher, &mut searcher(), most, cancel)
        {
            lock(&found).add(below, hits, most);
        }
        ControlFlow::Continue(())
    };
    tree.walk(&root, Scope::NotIgnored, &visit).map_err(refused)?;
    cancel.check()?;
    Ok(Reply::Search(found.into_inner().unwrap_or_else(PoisonError::into_inner).into_result(most)))
}

fn matcher(term: &str) -> Result<RegexMatcher, Fault> {
    if term.is_empty() {
        return Err(bad_pattern(term, "it is empty"));
    }
    if term.contains('\n') {
        return Err(bad_pattern(term, "it spans more than one line"));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder.fixed_strings(true).line_terminator(Some(b'\n'));
    builder.build(term).map_err(|error| bad_pattern(term, &error.to_string()))
}

fn searcher() -> Searcher {
    let mut builder = SearcherBuilder::new();
    builder.line_number(true).bom_sniffing(false).binary_detection(BinaryDetection::none());
    builder.heap_limit(Some(MAX_LINE_HELD)).build()
}

/// How much of what is found is given.
#[derive(Debug, Clone, Copy)]
struct Most {
    files: usize,
    lines: usize,
}

enum Searched {
    Binary,
    Text(Hits),
}

/// What one file has.
#[derive(Debug, Default)]
struct Hits {
    total: u64,
    lines: Vec<(u64, Line)>,
    held: usize,
}

fn hits_of(
    opened: Opened,
    matcher: &RegexMatcher,
    searcher: &mut Searcher,
    most: Most,
    cancel: &Cancel,
) -> io::Result<Searched> {
    let mut contents = cancel.guard(opened.contents);
    let mut beginning = Vec::new();
    contents.by_ref().take(BINARY_PREFIX as u64).read_to_end(&mut beginning)?;
    if is_binary(&beginning) {
        return Ok(Searched::Binary);
    }
    let mut lines = LineSink { hits: Hits::default(), most, cancel };
    searcher.search_reader(matcher, beginning.chain(contents), &mut lines)?;
    Ok(Searched::Text(lines.hits))
}

struct LineSink<'a> {
    hits: Hits,
    most: Most,
    cancel: &'a Cancel,
}

impl Sink for LineSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.hits.total += 1;
        if self.hits.lines.len() < self.most.lines && self.hits.held < REPLY_BYTES {
            let line = found.bytes();
            let text = line
                .strip_suffix(b"\n")
                .map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
            let line = cut_line(text, text.len() as u64);
            self.hits.held += line.text.len() + ITEM_BYTES;
            self.hits.lines.push((found.line_number().unwrap_or(1), line));
        }
        Ok(self.cancel.check().is_ok())
    }
}

/// The first files so far, in the order of their paths.
#[derive(Debug, Default)]
struct Found {
    files: BTreeMap<String, Hits>,
    held: usize,
    total_files: u64,
    total_lines: u64,
}

impl Found {
    fn add(&mut self, path: &Path, hits: Hits, most: Most) {
        if hits.total == 0 {
            return;
        }
        self.total_files += 1;
        self.total_lines += hits.total;
        let path = path.to_string_lossy().into_owned();
        self.held += path.len() + ITEM_BYTES + hits.held;
        self.files.insert(path, hits);
        if self.held > 2 * REPLY_BYTES {
            self.trim(most);
        }
    }

    /// Keeps a beginning of the sorted files and a beginning of their lines. More files only move both ends towards
    /// the front, so what is dropped here could not have come into the result, whatever the order of the walk.
    fn trim(&mut self, most: Most) {
        let (mut path_room, mut line_room, mut lines_left) =
            (PATH_BYTES, REPLY_BYTES - PATH_BYTES, most.lines);
        let mut kept = 0;
        for (path, hits) in self.files.iter_mut().take(most.files) {
            let Some(room) = path_room.checked_sub(path.len() + ITEM_BYTES) else { break };
            path_room = room;
            kept += 1;
            let fits = |(_, line): &&(u64, Line)| match line_room
                .checked_sub(line.text.len() + ITEM_BYTES)
            {
                Some(room) => {
                    line_room = room;
                    true
                }
                None => false,
            };
            let lines = hits.lines.iter().take(lines_left).take_while(fits).count();
            hits.lines.truncate(lines);
            hits.held = hits.lines.iter().map(|(_, line)| line.text.len() + ITEM_BYTES).sum();
            lines_left = if lines as u64 == hits.total { lines_left - lines } else { 0 };
        }
        while self.files.len() > kept {
            self.files.pop_last();
        }
        self.held = self.files.iter().map(|(path, hits)| path.len() + ITEM_BYTES + hits.held).sum();
    }

    fn into_result(mut self, most: Most) -> SearchResult {
        self.trim(most);
        let file =
            |(path, hits): (String, Hits)| FileHits { path, total: hits.total, lines: hits.lines };
        SearchResult {
            files: self.files.into_iter().map(file).collect(),
            total_files: self.total_files,
            total_lines: self.total_lines,
        }
    }
}

/// The files below a directory whose name matches a glob, or is the pattern itself; links count as files. With a `/`
/// in it the pattern is compared with the path relative to the directory, or with the absolute path when it begins
/// with one. Ignored and hidden files are found, what `.git` holds is not. Of the sorted paths the first `limit` are
/// given, no more than 3 MiB.
///
/// # Errors
/// When no directory stands at the path or the glob cannot be read.
pub fn find(
    tree: &dyn Tree,
    pattern: &str,
    path: &str,
    limit: u32,
    cancel: &Cancel,
) -> Result<Reply, Fault> {
    let wanted = pattern.strip_prefix("./").unwrap_or(pattern);
    let glob = GlobBuilder::new(wanted).literal_separator(true).build();
    let glob =
        glob.map_err(|error| bad_pattern(pattern, &error.kind().to_string()))?.compile_matcher();
    if wanted.is_empty() {
        return Err(bad_pattern(pattern, "it is empty"));
    }
    let refused = |error| fault(tree, path, error);
    let root = tree.resolve(Path::new(path)).map_err(refused)?;
    let matches = |below: &Path| {
        if wanted.starts_with('/') {
            let whole = root.join(below);
            return whole == Path::new(wanted) || glob.is_match(whole);
        }
        let compared =
            if wanted.contains('/') { Some(below.as_os_str()) } else { below.file_name() };
        compared.is_some_and(|name| name == wanted || glob.is_match(name))
    };
    let found = Mutex::new(Names::default());
    let visit = |below: &Path, kind: Kind| {
        if cancel.check().is_err() {
            return ControlFlow::Break(());
        }
        if kind != Kind::Directory && matches(below) {
            lock(&found).add(below, limit as usize);
        }
        ControlFlow::Continue(())
    };
    tree.walk(&root, Scope::Everything, &visit).map_err(refused)?;
    cancel.check()?;
    let Names { paths, total, .. } = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Reply::Find { paths: paths.into_iter().collect(), total })
}

/// The first names so far.
#[derive(Debug, Default)]
struct Names {
    paths: BTreeSet<String>,
    held: usize,
    total: u64,
}

impl Names {
    fn add(&mut self, path: &Path, limit: usize) {
        self.total += 1;
        let path = path.to_string_lossy().into_owned();
        self.held += path.len() + ITEM_BYTES;
        self.paths.insert(path);
        while self.paths.len() > limit || self.held > REPLY_BYTES {
            let Some(last) = self.paths.pop_last() else { break };
            self.held -= last.len() + ITEM_BYTES;
        }
    }
}

fn bad_pattern(pattern: &str, reason: &str) -> Fault {
    Fault::Refused(Refusal::BadPattern { pattern: pattern.to_owned(), reason: reason.to_owned() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::disk::Disk;
    use crate::guest::tree::tests::Memory;

    fn hits(
        tree: &dyn Tree,
        term: &str,
        path: &str,
        max_files: u32,
        max_lines: u32,
    ) -> SearchResult {
        match search(tree, term, path, max_files, max_lines, &Cancel::after(None)) {
            Ok(Reply::Search(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    fn names(result: &SearchResult) -> Vec<&str> {
        result.files.iter().map(|file| file.path.as_str()).collect()
    }

    fn found(tree: &dyn Tree, pattern: &str, path: &str, limit: u32) -> (Vec<String>, u64) {
        match find(tree, pattern, path, limit, &Cancel::after(None)) {
            Ok(Reply::Find { paths, total }) => (paths, total),
            other => panic!("{other:?}"),
        }
    }

    fn fill(place: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = place.join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_term_is_taken_literally() {
        let tree = Memory::with(&[("odd", b"a.b\naxb\n-e (\n\\d+\nA.B\nfoo\tbar\r\n")]);
        let lines = |term: &str| -> Vec<u64> {
            let result = hits(&tree, term, "", 9, 9);
            result
                .files
                .iter()
                .flat_map(|file| file.lines.iter().map(|(number, _)| *number))
                .collect()
        };
        assert_eq!(
            (lines("a.b"), lines("-e ("), lines("\\d+"), lines("zzz")),
            (vec![1], vec![3], vec![4], vec![])
        );
        let result = hits(&tree, "foo\t", "odd", 9, 9);
        let line = Line { text: b"foo\tbar".to_vec(), cut: 0 };
        assert_eq!(
            result.files,
            [FileHits { path: "odd".into(), total: 1, lines: vec![(6, line)] }]
        );
        for term in ["", "a\nb"] {
            let refused = search(&tree, term, "", 9, 9, &Cancel::after(None));
            assert!(matches!(refused, Err(Fault::Refused(Refusal::BadPattern { .. }))));
        }
    }

    #[test]
    fn ignore_files_count_inside_a_repository_only() {
        let place = tempfile::tempdir().unwrap();
        let files = [
            (".gitignore", "build/\n*.log\n"),
            (".github/ci.yml", "needle"),
            (".ignore", "*.py\n"),
            ("build/out.py", "needle"),
            ("sp ace\u{e4}.py", "needle\nneedle\n"),
            ("src/a.py", "needle"),
            ("src/a.log", "needle"),
            ("src/b.bin", "needle\0"),
        ];
        fill(place.path(), &files);
        let disk = Disk::new(place.path());
        fs_err::os::unix::fs::symlink("..", place.path().join("src/loop")).unwrap();
        fs_err::os::unix::fs::symlink("a.py", place.path().join("src/link.py")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        let all = [".github/ci.yml", "build/out.py", "sp ace\u{e4}.py", "src/a.log", "src/a.py"];
        assert_eq!(names(&hits(&disk, "needle", "", 99, 99)), all);
        fill(
            place.path(),
            &[
                (".git/config", "needle"),
                (".git/info/exclude", "secret.py\n"),
                ("secret.py", "needle"),
            ],
        );
        let result = hits(&disk, "needle", ".", 99, 99);
        assert_eq!(names(&result), [".github/ci.yml", "sp ace\u{e4}.py", "src/a.py"]);
        assert_eq!((result.total_files, result.total_lines), (3, 4));
        // From below the root the rules of the root still hold; a path that was asked for is searched.
        assert_eq!(names(&hits(&disk, "needle", "src", 99, 99)), ["a.py"]);
        assert_eq!(names(&hits(&disk, "needle", "build", 99, 99)), ["out.py"]);
        assert_eq!(names(&hits(&disk, "needle", "src/a.log", 99, 99)), ["a.log"]);
        let refused = search(&disk, "needle", "src/b.bin", 9, 9, &Cancel::after(None));
        assert_eq!(refused, Err(Fault::Refused(Refusal::Binary { path: "src/b.bin".into() })));
        let one_line = "x".repeat(MAX_LINE_HELD + 1);
        fill(place.path(), &[("one_line", &one_line)]);
        let refused = search(&disk, "needle", "one_line", 9, 9, &Cancel::after(None));
        assert!(matches!(refused, Err(Fault::Refused(Refusal::TooLarge { .. }))));
        let refused = search(&disk, "needle", "pipe", 9, 9, &Cancel::after(None));
        assert_eq!(refused, Err(Fault::Refused(Refusal::NotRegular { path: "pipe".into() })));
        // Looking for names hides nothing but what git keeps.
        let (paths, total) = found(&disk, "*.py", "", 99);
        assert_eq!(
            paths,
            ["build/out.py", "secret.py", "sp ace\u{e4}.py", "src/a.py", "src/link.py"]
        );
        assert_eq!(total, 5);
        assert_eq!(found(&disk, "config", "", 99).1, 0);
        let cancel = Cancel::after(None);
        cancel.cancel();
        assert_eq!(search(&disk, "needle", "", 9, 9, &cancel), Err(Fault::Cancelled));
        assert_eq!(find(&disk, "*", "", 9, &cancel), Err(Fault::Cancelled));
    }

    #[test]
    fn limits_cut_the_end_and_everything_is_counted() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..200 {
            fill(
                place.path(),
                &[(&format!("d{}/f{number:03}", number % 7), &"needle\nhay\n".repeat(3))],
            );
        }
        let disk = Disk::new(place.path());
        let result = hits(&disk, "needle", "", 4, 7);
        assert_eq!(names(&result), ["d0/f000", "d0/f007", "d0/f014", "d0/f021"]);
        let given: Vec<usize> = result.files.iter().map(|file| file.lines.len()).collect();
        assert_eq!(given, [3, 3, 1, 0]);
        assert!(result.files.iter().all(|file| file.total == 3));
        assert_eq!((result.total_files, result.total_lines), (200, 600));
        assert_eq!(found(&disk, "f*", "", 2), (vec!["d0/f000".into(), "d0/f007".into()], 200));
    }

    #[test]
    fn large_results_fit_a_frame_and_do_not_depend_on_the_order_of_the_walk() {
        let long = format!("needle{}\n", "x".repeat(5000)).repeat(90);
        let files: Vec<(String, Vec<u8>)> =
            (0..60).map(|number| (format!("f{number:02}"), long.clone().into_bytes())).collect();
        let most = Most { files: 50, lines: 4000 };
        let matcher = matcher("needle").unwrap();
        let collect = |order: &mut dyn Iterator<Item = &(String, Vec<u8>)>| {
            let mut found = Found::default();
            for (path, bytes) in order {
                let opened = Opened {
                    contents: Box::new(io::Cursor::new(bytes.clone())),
                    size: bytes.len() as u64,
                };
                let hits =
                    hits_of(opened, &matcher, &mut searcher(), most, &Cancel::after(None)).unwrap();
                let Searched::Text(hits) = hits else { panic!() };
                found.add(Path::new(path), hits, most);
            }
            found.into_result(most)
        };
        let result = collect(&mut files.iter());
        assert_eq!(result, collect(&mut files.iter().rev()));
        assert_eq!((result.files.len(), result.total_lines), (50, 5400));
        let lines: usize = result.files.iter().map(|file| file.lines.len()).sum();
        assert_eq!(lines, (REPLY_BYTES - PATH_BYTES) / (4096 + ITEM_BYTES));
        let frame =
            crate::protocol::wire::FromGuest::Done { id: 1, result: Ok(Reply::Search(result)) };
        assert!(crate::protocol::wire::encode(&frame).is_ok());
    }

    #[test]
    fn globs_match_names_or_paths() {
        let tree = Memory::with(&[
            ("app/[id].tsx", b""),
            ("app/i.tsx", b""),
            ("src/.hidden", b""),
            ("src/x/y.c", b""),
            ("y.c", b""),
        ]);
        let paths = |pattern: &str| found(&tree, pattern, "", 99).0;
        assert_eq!(paths("y.c"), ["src/x/y.c", "y.c"]);
        assert_eq!(paths("[id].tsx"), ["app/[id].tsx", "app/i.tsx"]);
        assert_eq!(paths("*hid*"), ["src/.hidden"]);
        assert_eq!(paths("src/*.c"), Vec::<String>::new());
        assert_eq!(paths("src/**/*.c"), ["src/x/y.c"]);
        assert_eq!(paths("./src/x/y.c"), ["src/x/y.c"]);
        assert_eq!(paths("/src/x/*"), ["src/x/y.c"]);
        assert_eq!(found(&tree, "x/y.?", "src", 9).0, ["x/y.c"]);
        for pattern in ["[", "", "{a"] {
            let refused = find(&tree, pattern, "", 9, &Cancel::after(None));
            assert!(
                matches!(refused, Err(Fault::Refused(Refusal::BadPattern { .. }))),
                "{pattern}"
            );
        }
    }
}
