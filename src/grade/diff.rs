//! What a diff says about itself: the files it names, and whether it lost its last lines.

use std::collections::BTreeMap;

/// Context lines that `git diff` puts behind a change.
const CONTEXT: u64 = 3;

/// The files a diff names; paths relative to the tree, unquoted, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Files that are there before it is applied: changed, deleted, renamed or copied ones.
    pub present: Vec<Vec<u8>>,
    /// Files that it brings.
    pub added: Vec<Vec<u8>>,
}

/// The files a diff names, in its `diff --git` headers or, without these, in its `---` and `+++` lines.
pub fn files(diff: &[u8]) -> Files {
    let mut known = BTreeMap::new();
    let mut section = Section::default();
    let mut hunk = Hunk::default();
    let mut before = None;
    for line in diff.split(|byte| *byte == b'\n') {
        if hunk.take(line) {
            continue;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(next) = Hunk::begin(line) {
            hunk = next;
        } else if let Some(names) = line.strip_prefix(b"diff --git ") {
            std::mem::take(&mut section).close(&mut known);
            section.name_both(names);
        } else if line.starts_with(b"new file mode ") {
            section.added = true;
        } else if let Some(name) = strip_either(line, [b"rename from ", b"copy from "]) {
            section.old = Some(unquoted(name));
        } else if let Some(name) = strip_either(line, [b"rename to ", b"copy to "]) {
            section.new = Some(unquoted(name));
            section.added = true;
        } else if let Some(name) = line.strip_prefix(b"--- ") {
            before = Some(name);
            continue;
        } else if let Some((old, new)) = before.zip(line.strip_prefix(b"+++ ")) {
            if section.has_text {
                std::mem::take(&mut section).close(&mut known);
            }
            section.name_text(old, new);
        }
        before = None;
    }
    section.close(&mut known);
    let mut files = Files::default();
    for (path, origin) in known {
        match origin {
            Origin::Present => files.present.push(path),
            Origin::Added => files.added.push(path),
        }
    }
    files
}

/// Whether the last hunk is short of lines that can only be context: as many on both sides, and no more than a diff
/// puts behind a change. Writers that trim a diff's end take blank ones away.
pub fn lost_context(diff: &[u8]) -> bool {
    let mut hunk = Hunk::default();
    for line in diff.strip_suffix(b"\n").unwrap_or(diff).split(|byte| *byte == b'\n') {
        if !hunk.take(line) {
            hunk = Hunk::begin(line).unwrap_or_default();
        }
    }
    hunk.old == hunk.new && (1..=CONTEXT).contains(&hunk.old)
}

/// Whether a file was there before.
#[derive(Clone, Copy)]
enum Origin {
    Present,
    Added,
}

/// What the headers of one file say.
#[derive(Default)]
struct Section {
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
    added: bool,
    /// Its `---` and `+++` lines were read.
    has_text: bool,
}

impl Section {
    /// Takes `a/NAME b/NAME`. When the names differ, later lines give them, so that spaces in them need no guess.
    fn name_both(&mut self, names: &[u8]) {
        let space = (1..names.len()).filter(|at| names[*at] == b' ').find(|at| {
            (!names.starts_with(b"\"") || names[..*at].ends_with(b"\""))
                && without_prefix(&names[..*at]) == without_prefix(&names[*at + 1..])
        });
        if let Some(at) = space {
            self.old = without_prefix(&names[..at]);
            self.new.clone_from(&self.old);
        }
    }

    fn name_text(&mut self, old: &[u8], new: &[u8]) {
        // What follows a tab is a time, or nothing when the tab only ends a name with spaces.
        let name =
            |name: &[u8]| without_prefix(name.split(|byte| *byte == b'\t').next().unwrap_or(name));
        self.has_text = true;
        self.added |= old.starts_with(b"/dev/null");
        if !old.starts_with(b"/dev/null") {
            self.old = name(old);
        }
        if !new.starts_with(b"/dev/null") {
            self.new = name(new);
        }
    }

    /// A path's first mention says whether it was there: a change of a file's type deletes and adds it.
    fn close(self, known: &mut BTreeMap<Vec<u8>, Origin>) {
        let Section { old, new, added, .. } = self;
        let old = old.filter(|old| !added || new.as_ref() != Some(old));
        for (path, origin) in
            [(old, Origin::Present), (new, if added { Origin::Added } else { Origin::Present })]
        {
            if let Some(path) = path.filter(|path| !path.is_empty()) {
                known.entry(path).or_insert(origin);
            }
        }
    }
}

/// Lines of a hunk that are still to come, by side.
#[derive(Default)]
struct Hunk {
    old: u64,
    new: u64,
}

impl Hunk {
    /// Reads `@@ -FIRST,COUNT +FIRST,COUNT @@`.
    fn begin(line: &[u8]) -> Option<Hunk> {
        let line =
            std::str::from_utf8(line.strip_prefix(b"@@ -")?.split(|byte| *byte == b'@').next()?)
                .ok()?;
        let (old, new) = line.trim_end().split_once(" +")?;
        let count = |range: &str| match range.split_once(',') {
            Some((_, count)) => count.parse().ok(),
            None => Some(1),
        };
        Some(Hunk { old: count(old)?, new: count(new)? })
    }

    /// Whether the hunk goes on with this line.
    fn take(&mut self, line: &[u8]) -> bool {
        if self.old == 0 && self.new == 0 {
            return false;
        }
        let (old, new) = match line.first() {
            Some(b' ' | b'\r') | None => (1, 1),
            Some(b'-') => (1, 0),
            Some(b'+') => (0, 1),
            Some(b'\\') => (0, 0),
            Some(_) => {
                *self = Hunk::default();
                return false;
            }
        };
        self.old = self.old.saturating_sub(old);
        self.new = self.new.saturating_sub(new);
        true
    }
}

fn strip_either<'a>(line: &'a [u8], prefixes: [&[u8]; 2]) -> Option<&'a [u8]> {
    prefixes.into_iter().find_map(|prefix| line.strip_prefix(prefix))
}

/// A name without its first component, `a/` or `b/`.
fn without_prefix(name: &[u8]) -> Option<Vec<u8>> {
    let name = unquoted(name);
    let slash = name.iter().position(|byte| *byte == b'/')?;
    Some(name[slash + 1..].to_vec())
}

/// A name as it is on disk: git puts unusual ones in quotes, with the escapes of C.
fn unquoted(name: &[u8]) -> Vec<u8> {
    let Some(mut rest) = name.strip_prefix(b"\"") else { return name.to_vec() };
    let mut bytes = Vec::new();
    while let Some((&first, later)) = rest.split_first() {
        rest = later;
        match (first, later.split_first()) {
            (b'"', _) => break,
            (b'\\', Some((b'0'..=b'3', _))) if later.len() >= 3 => {
                let octal = later[..3].iter().fold(0_u8, |value, digit| value << 3 | (digit & 7));
                bytes.push(octal);
                rest = &later[3..];
            }
            (b'\\', Some((escape, later))) => {
                bytes.push(match escape {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    other => *other,
                });
                rest = later;
            }
            (other, _) => bytes.push(other),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn git(directory: &Path, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new("git");
        command
            .args(["-c", "user.name=t", "-c", "user.email=t@t.invalid"])
            .args(arguments)
            .current_dir(directory);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    #[test]
    fn the_files_of_a_diff_by_git_are_those_that_it_touches() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let before = [
            "changed",
            "a b/two words.py",
            "gone",
            "old name",
            "quo\"te\\d",
            "\u{e9}t\u{e9}",
            "mode",
            "binary",
            "type",
        ];
        git(root, &["init", "-q"]);
        fs_err::create_dir(root.join("a b")).unwrap();
        for (number, name) in before.iter().enumerate() {
            fs_err::write(
                root.join(name),
                format!("1\n2\n3\n--- a/not a name\n+++ b/nor this\n{number}\n"),
            )
            .unwrap();
        }
        fs_err::write(root.join("binary"), [0, 1, 2]).unwrap();
        git(root, &["add", "-A"]);
        git(root, &["commit", "-qm", "one"]);
        for name in ["changed", "a b/two words.py", "quo\"te\\d", "\u{e9}t\u{e9}"] {
            fs_err::write(root.join(name), "1\n2\n").unwrap();
        }
        fs_err::write(root.join("binary"), [0, 1, 3]).unwrap();
        for name in ["added", "added empty", "added\tbinary"] {
            fs_err::write(root.join(name), if name == "added\tbinary" { "\0" } else { "" })
                .unwrap();
        }
        fs_err::write(root.join("added"), "x\n").unwrap();
        fs_err::remove_file(root.join("gone")).unwrap();
        fs_err::rename(root.join("old name"), root.join("new name")).unwrap();
        fs_err::remove_file(root.join("type")).unwrap();
        std::os::unix::fs::symlink("mode", root.join("type")).unwrap();
        std::os::unix::fs::chown(root.join("mode"), None, None).unwrap();
        fs_err::set_permissions(
            root.join("mode"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        git(root, &["add", "-A"]);
        for options in
            [&["--binary", "-M"][..], &["-M"], &["--binary", "--full-index", "-M", "-U0"]]
        {
            let diff = git(root, &[&["diff", "--cached"], options].concat());
            let files = files(&diff);
            let names = |paths: &[Vec<u8>]| -> Vec<String> {
                paths.iter().map(|path| String::from_utf8(path.clone()).unwrap()).collect()
            };
            let mut expected = before.map(str::to_owned);
            expected.sort_unstable();
            assert_eq!(names(&files.present), expected, "{}", String::from_utf8_lossy(&diff));
            assert_eq!(names(&files.added), ["added", "added\tbinary", "added empty", "new name"]);
        }
    }

    #[test]
    fn a_diff_without_git_headers_names_its_files_too() {
        let diff = b"--- a/one.py\t2024-01-01\n+++ b/one.py\t2024-01-02\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n\
            +++ b/two.py\n@@ -0,0 +1 @@\n+c\n";
        let expected = Files { present: vec![b"one.py".to_vec()], added: vec![b"two.py".to_vec()] };
        assert_eq!(files(diff), expected);
        assert_eq!(files(b""), Files::default());
        assert_eq!(files(b"\x00\xff--- \n+++ \n@@ -x +y @@\ndiff --git \n"), Files::default());
    }

    #[test]
    fn only_lines_that_can_be_context_count_as_lost() {
        let hunk = |counts: &str, body: &str| {
            lost_context(format!("--- a/x\n+++ b/x\n@@ {counts} @@\n{body}").as_bytes())
        };
        assert!(hunk("-1,4 +1,5", " a\n+b\n c"));
        assert!(hunk("-1,4 +1,5", " a\n+b\n c\n"));
        assert!(!hunk("-1,2 +1,3", " a\n+b\n c"));
        assert!(!hunk("-1,3 +1,5", " a\n+b\n c"), "an addition is missing as well");
        assert!(!hunk("-1,9 +1,10", " a\n+b\n c"), "more than context is missing");
        assert!(!hunk("-1,4 +1,5", " a\n+b\n c\ngarbage"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..40),
            noise in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let diff = [pieces.concat().into_bytes(), noise].concat();
            let Files { present, added } = files(&diff);
            prop_assert!(present.iter().chain(&added).all(|path| !path.is_empty()));
            lost_context(&diff);
        }
    }

    const PIECES: [&str; 24] = [
        "diff --git ",
        "a/x",
        "b/x",
        "\"a/\\303\\251 \"",
        "\\",
        "\"",
        " ",
        "\n",
        "\t",
        "\r",
        "--- ",
        "+++ ",
        "/dev/null",
        "@@ -1,2 +1 @@",
        "@@ -0,0 +99999999999999999999 @@",
        "new file mode 100644\n",
        "deleted file mode 100644\n",
        "rename from ",
        "copy to ",
        "+",
        "-",
        "/",
        "GIT binary patch\n",
        "0",
    ];
}
