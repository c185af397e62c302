//! Edits of files, and taking them back.
//!
//! Works on bytes: what an edit does not name keeps its tabs, line ends, encoding and mode.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::guest::cancel::Cancel;
use crate::guest::change;
use crate::guest::change::Change;
use crate::guest::files::is_binary;
use crate::guest::files::make_parents;
use crate::guest::files::stopped;
use crate::guest::tree::Tree;
use crate::guest::tree::TreeError;
use crate::guest::tree::fault;
use crate::protocol::operation::Edit;
use crate::protocol::operation::Edited;
use crate::protocol::operation::Fault;
use crate::protocol::operation::Refusal;
use crate::protocol::operation::Reply;

/// Largest file that is edited, in bytes.
pub const MAX_EDITED: u64 = 32 << 20;
/// Edits of one file that can be taken back.
const MAX_STEPS: usize = 20;
/// Bytes held for taking edits back, over all files; the oldest go first.
const MAX_HELD: usize = 64 << 20;
/// What a step takes besides its bytes, roughly.
const STEP_BYTES: usize = 256;

/// What is needed to take the edits of one tree back; it also keeps them from running at the same time.
#[derive(Debug, Default)]
pub struct Edits {
    history: Mutex<History>,
}

/// Makes an edit. Paths that lead to the same file share their history.
///
/// # Errors
/// When the edit is refused; the file is as it was then.
pub fn edit(
    tree: &dyn Tree,
    edits: &Edits,
    path: &str,
    edit: &Edit,
    cancel: &Cancel,
) -> Result<Reply, Fault> {
    let mut history = edits.history.lock().unwrap_or_else(PoisonError::into_inner);
    let real = tree.resolve(Path::new(path)).map_err(|error| fault(tree, path, error))?;
    let target = Target { tree, path, real, cancel };
    match edit {
        Edit::Create { text } => target.create(&mut history, text),
        Edit::Replace { old, new } => {
            target.change(&mut history, |before| change::replace(path, before, old, new))
        }
        Edit::Insert { after, text } => {
            target.change(&mut history, |before| change::insert(path, before, *after, text))
        }
        Edit::Undo => target.undo(&mut history),
    }
    .map(Reply::Edited)
}

/// The file an edit is about.
struct Target<'a> {
    tree: &'a dyn Tree,
    path: &'a str,
    real: PathBuf,
    cancel: &'a Cancel,
}

impl Target<'_> {
    fn fault(&self, error: TreeError) -> Fault {
        fault(self.tree, self.path, error)
    }

    fn load(&self) -> Result<Vec<u8>, Fault> {
        let opened = self.tree.open(&self.real, 0).map_err(|error| self.fault(error))?;
        let too_large = |size| self.fault(TreeError::TooLarge { size, limit: MAX_EDITED });
        if opened.size > MAX_EDITED {
            return Err(too_large(opened.size));
        }
        let mut bytes = Vec::new();
        let mut contents = self.cancel.guard(opened.contents).take(MAX_EDITED + 1);
        contents
            .read_to_end(&mut bytes)
            .map_err(|error| stopped(self.cancel, self.tree, self.path, error))?;
        if bytes.len() as u64 > MAX_EDITED { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
    }

    fn save(&self, bytes: &[u8]) -> Result<(), Fault> {
        self.cancel.check()?;
        let mut replacement =
            self.tree.replace(&self.real, None).map_err(|error| self.fault(error))?;
        replacement.write_all(bytes).map_err(|error| self.fault(error.into()))?;
        replacement.commit().map_err(|error| self.fault(error))
    }

    fn create(&self, history: &mut History, text: &str) -> Result<Edited, Fault> {
        // A link that leads nowhere stands in the way as well.
        match self.tree.stat(Path::new(self.path)) {
            Ok(_) => return Err(Fault::Refused(Refusal::Exists { path: self.path.to_owned() })),
            Err(TreeError::NotFound) => {}
            Err(error) => return Err(self.fault(error)),
        }
        make_parents(self.tree, self.path)?;
        self.save(text.as_bytes())?;
        history.push(Step {
            real: self.real.clone(),
            back: Back::Remove,
            left: Print::of(text.as_bytes()),
        });
        Ok(change::edited(b"", text.as_bytes()))
    }

    fn change(
        &self,
        history: &mut History,
        decide: impl FnOnce(&[u8]) -> Result<Change, Refusal>,
    ) -> Result<Edited, Fault> {
        let before = self.load()?;
        if is_binary(&before) {
            return Err(Fault::Refused(Refusal::Binary { path: self.path.to_owned() }));
        }
        let change = decide(&before).map_err(Fault::Refused)?;
        let after = change.apply(&before);
        self.save(&after)?;
        let back = Back::Change(change.inverse(&before));
        history.push(Step { real: self.real.clone(), back, left: Print::of(&after) });
        Ok(change::edited(&before, &after))
    }

    /// A file that something else changed since its last edit is left alone, and the edit can still be taken back once
    /// the file is again as the edit left it: work of others is never lost.
    fn undo(&self, history: &mut History) -> Result<Edited, Fault> {
        let Some(index) = history.steps.iter().rposition(|step| step.real == self.real) else {
            return Err(Fault::Refused(Refusal::NoUndo { path: self.path.to_owned() }));
        };
        let step = &history.steps[index];
        let now = self.load()?;
        if Print::of(&now) != step.left {
            let reason = "changed by something else since its last edit".to_owned();
            return Err(Fault::Refused(Refusal::Denied { path: self.path.to_owned(), reason }));
        }
        let edited = match &step.back {
            Back::Remove => {
                self.tree.remove(&self.real).map_err(|error| self.fault(error))?;
                Edited { first: 1, lines: 0, total: 0, removed: true }
            }
            Back::Change(change) => {
                let restored = change.apply(&now);
                self.save(&restored)?;
                change::edited(&now, &restored)
            }
        };
        history.remove(index);
        Ok(edited)
    }
}

/// What was done, oldest first, over all files.
#[derive(Debug, Default)]
struct History {
    steps: Vec<Step>,
    held: usize,
}

impl History {
    fn push(&mut self, step: Step) {
        self.held += step.size();
        let mut same = self
            .steps
            .iter()
            .enumerate()
            .filter(|(_, old)| old.real == step.real)
            .map(|(index, _)| index);
        if let Some(oldest) = same.next()
            && same.count() + 1 >= MAX_STEPS
        {
            self.remove(oldest);
        }
        self.steps.push(step);
        while self.held > MAX_HELD && !self.steps.is_empty() {
            self.remove(0);
        }
    }

    fn remove(&mut self, index: usize) {
        self.held -= self.steps.remove(index).size();
    }
}

/// One edit that can be taken back.
#[derive(Debug)]
struct Step {
    real: PathBuf,
    back: Back,
    left: Print,
}

impl Step {
    fn size(&self) -> usize {
        let bytes = match &self.back {
            Back::Remove => 0,
            Back::Change(change) => change.text.len(),
        };
        STEP_BYTES + self.real.as_os_str().len() + bytes
    }
}

/// How an edit is taken back.
#[derive(Debug)]
enum Back {
    Remove,
    Change(Change),
}

/// Tells whether a file still has the contents an edit left.
#[derive(Debug, PartialEq, Eq)]
struct Print {
    size: usize,
    hash: u64,
}

impl Print {
    fn of(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self { size: bytes.len(), hash: hasher.finish() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;
    use crate::guest::disk::Disk;
    use crate::guest::tree::tests::Memory;

    fn apply(edits: &Edits, tree: &dyn Tree, path: &str, edit: Edit) -> Result<Edited, Fault> {
        match super::edit(tree, edits, path, &edit, &Cancel::after(None)) {
            Ok(Reply::Edited(edited)) => Ok(edited),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => Err(fault),
        }
    }

    fn swap(old: &str, new: &str) -> Edit {
        Edit::Replace { old: old.into(), new: new.into() }
    }

    fn create(text: &str) -> Edit {
        Edit::Create { text: text.into() }
    }

    fn refusal(outcome: Result<Edited, Fault>) -> Refusal {
        match outcome {
            Err(Fault::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mode_link_and_foreign_bytes_survive() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().join("latin1.sh");
        fs_err::write(&real, b"\xef\xbb\xbfcaf\xe9\tone\r\ntwo\n\xff end").unwrap();
        fs_err::set_permissions(&real, PermissionsExt::from_mode(0o755)).unwrap();
        fs_err::os::unix::fs::symlink("latin1.sh", place.path().join("link")).unwrap();
        let (edits, disk) = (Edits::default(), Disk::new(place.path()));
        let edited = apply(&edits, &disk, "link", swap("two", "2")).unwrap();
        assert_eq!(edited, Edited { first: 2, lines: 1, total: 3, removed: false });
        apply(&edits, &disk, "link", Edit::Insert { after: 3, text: "z".into() }).unwrap();
        assert_eq!(fs_err::read(&real).unwrap(), b"\xef\xbb\xbfcaf\xe9\tone\r\n2\n\xff end\nz");
        assert_eq!(fs_err::metadata(&real).unwrap().permissions().mode() & 0o7777, 0o755);
        assert!(fs_err::symlink_metadata(place.path().join("link")).unwrap().is_symlink());
        // Another name of the same file takes the edits back.
        apply(&edits, &disk, "latin1.sh", Edit::Undo).unwrap();
        apply(&edits, &disk, "latin1.sh", Edit::Undo).unwrap();
        assert_eq!(fs_err::read(&real).unwrap(), b"\xef\xbb\xbfcaf\xe9\tone\r\ntwo\n\xff end");
    }

    #[test]
    fn a_created_file_is_gone_after_an_undo() {
        let place = tempfile::tempdir().unwrap();
        let (edits, disk) = (Edits::default(), Disk::new(place.path()));
        let edited = apply(&edits, &disk, "new/deep/a.txt", create("a\nb\n")).unwrap();
        assert_eq!(edited, Edited { first: 1, lines: 2, total: 2, removed: false });
        let exists = Refusal::Exists { path: "new/deep/a.txt".into() };
        assert_eq!(refusal(apply(&edits, &disk, "new/deep/a.txt", create(""))), exists);
        fs_err::os::unix::fs::symlink("nowhere", place.path().join("dangling")).unwrap();
        assert!(matches!(
            refusal(apply(&edits, &disk, "dangling", create(""))),
            Refusal::Exists { .. }
        ));
        let below = refusal(apply(&edits, &disk, "new/deep/a.txt/b", create("")));
        assert_eq!(below, Refusal::NotDirectory { path: "new/deep/a.txt".into() });
        apply(&edits, &disk, "new/deep/a.txt", swap("b", "c")).unwrap();
        apply(&edits, &disk, "new/deep/a.txt", Edit::Undo).unwrap();
        assert!(apply(&edits, &disk, "new/deep/a.txt", Edit::Undo).unwrap().removed);
        assert!(!place.path().join("new/deep/a.txt").exists());
        let none = Refusal::NoUndo { path: "new/deep/a.txt".into() };
        assert_eq!(refusal(apply(&edits, &disk, "new/deep/a.txt", Edit::Undo)), none);
    }

    #[test]
    fn work_of_others_is_not_undone() {
        let place = tempfile::tempdir().unwrap();
        let (edits, disk) = (Edits::default(), Disk::new(place.path()));
        apply(&edits, &disk, "a", create("one\n")).unwrap();
        fs_err::write(place.path().join("a"), "other\n").unwrap();
        assert!(matches!(refusal(apply(&edits, &disk, "a", Edit::Undo)), Refusal::Denied { .. }));
        assert_eq!(fs_err::read(place.path().join("a")).unwrap(), b"other\n");
        fs_err::write(place.path().join("a"), "one\n").unwrap();
        assert!(apply(&edits, &disk, "a", Edit::Undo).unwrap().removed);
    }

    #[test]
    fn what_cannot_be_edited_is_refused_by_its_kind() {
        let place = tempfile::tempdir().unwrap();
        let (edits, disk) = (Edits::default(), Disk::new(place.path()));
        fs_err::write(place.path().join("utf16"), b"a\0\n\0").unwrap();
        fs_err::File::create(place.path().join("huge")).unwrap().set_len(MAX_EDITED + 1).unwrap();
        let refused = |path: &str| refusal(apply(&edits, &disk, path, swap("a", "b")));
        assert_eq!(refused("utf16"), Refusal::Binary { path: "utf16".into() });
        assert_eq!(
            refused("huge"),
            Refusal::TooLarge { path: "huge".into(), size: MAX_EDITED + 1, limit: MAX_EDITED }
        );
        assert_eq!(refused("."), Refusal::IsDirectory { path: ".".into() });
        assert_eq!(refused("/dev/null"), Refusal::NotRegular { path: "/dev/null".into() });
        assert_eq!(refused("none"), Refusal::NotFound { path: "none".into(), similar: vec![] });
    }

    #[test]
    fn the_history_is_bounded_per_file_and_in_all() {
        let tree = Memory::with(&[("a", b"0\n"), ("b", b"0\n")]);
        let edits = Edits::default();
        apply(&edits, &tree, "b", swap("0", "1")).unwrap();
        for number in 0..MAX_STEPS + 5 {
            apply(&edits, &tree, "a", swap(&number.to_string(), &(number + 1).to_string()))
                .unwrap();
        }
        for _ in 0..MAX_STEPS {
            apply(&edits, &tree, "a", Edit::Undo).unwrap();
        }
        assert_eq!(tree.bytes("a").unwrap(), b"5\n");
        assert!(matches!(refusal(apply(&edits, &tree, "a", Edit::Undo)), Refusal::NoUndo { .. }));
        apply(&edits, &tree, "b", Edit::Undo).unwrap();
        let big = "x".repeat(20 << 20);
        for name in ["c", "d", "e", "f"] {
            apply(&edits, &tree, name, create(&big)).unwrap();
            apply(&edits, &tree, name, swap(&big, "y")).unwrap();
        }
        assert!(edits.history.lock().unwrap().held <= MAX_HELD);
        apply(&edits, &tree, "f", Edit::Undo).unwrap();
        assert_eq!(tree.bytes("f").unwrap().len(), big.len());
        assert!(matches!(refusal(apply(&edits, &tree, "c", Edit::Undo)), Refusal::NoUndo { .. }));
    }

    /// What an edit does to a text with LF line ends, written as plainly as possible.
    fn model(now: &mut Option<String>, past: &mut Vec<Option<String>>, edit: &Edit) -> bool {
        let next = match (edit, now.as_ref()) {
            (Edit::Create { text }, None) => Some(text.clone()),
            (Edit::Replace { old, new }, Some(text)) => {
                let places = (0..text.len()).filter(|at| text[*at..].starts_with(old)).count();
                if places != 1 || old.is_empty() || old == new {
                    return false;
                }
                Some(text.replacen(old, new, 1))
            }
            (Edit::Insert { after, text: new }, Some(text)) => {
                let mut lines: Vec<&str> = text.lines().collect();
                let Some(after) = usize::try_from(*after)
                    .ok()
                    .filter(|after| *after <= lines.len() && !new.is_empty())
                else {
                    return false;
                };
                let new = new.strip_suffix('\n').unwrap_or(new);
                lines.splice(after..after, new.split('\n'));
                // An empty last line cannot be told without its end.
                let open_end =
                    !text.is_empty() && !text.ends_with('\n') && lines.last() != Some(&"");
                Some(lines.join("\n") + if open_end { "" } else { "\n" })
            }
            (Edit::Undo, Some(_)) => {
                let Some(before) = past.pop() else { return false };
                *now = before;
                return true;
            }
            _ => return false,
        };
        past.push(std::mem::replace(now, next));
        true
    }

    fn any_edit() -> impl Strategy<Value = Edit> {
        prop_oneof![
            4 => ("[ab\\n]{0,3}", "[ab\\n]{0,4}").prop_map(|(old, new)| Edit::Replace { old, new }),
            3 => (0u64..5, "[ab\\n]{0,4}").prop_map(|(after, text)| Edit::Insert { after, text }),
            1 => "[ab\\n]{0,6}".prop_map(|text| Edit::Create { text }),
            2 => Just(Edit::Undo),
        ]
    }

    proptest! {
        #[test]
        fn any_edits_do_what_the_model_says(
            start in proptest::option::of("[ab\\n]{0,10}"), list in proptest::collection::vec(any_edit(), 1..18),
        ) {
            let windows = |text: &str| text.replace('\n', "\r\n");
            let (tree, edits) = (Memory::default(), Edits::default());
            let (mut now, mut past) = (start, Vec::new());
            let mut has_ends = true;
            if let Some(text) = &now {
                has_ends = text.contains('\n');
                for (path, text) in [("lf", text.clone()), ("crlf", windows(text))] {
                    let mut made = tree.replace(Path::new(path), None).unwrap();
                    made.write_all(text.as_bytes()).unwrap();
                    made.commit().unwrap();
                }
            }
            for edit in list {
                let fine = model(&mut now, &mut past, &edit);
                let windows_edit = match &edit {
                    Edit::Create { text } => create(&windows(text)),
                    Edit::Replace { .. } | Edit::Insert { .. } | Edit::Undo => edit.clone(),
                };
                let unix = apply(&edits, &tree, "lf", edit);
                let other = apply(&edits, &tree, "crlf", windows_edit);
                prop_assert_eq!(unix.is_ok(), fine, "{:?}", unix);
                prop_assert_eq!(tree.bytes("lf"), now.clone().map(String::into_bytes));
                // A file without any line end has no habit to keep.
                has_ends &= now.as_ref().is_none_or(|text| text.contains('\n'));
                if has_ends {
                    prop_assert_eq!(tree.bytes("crlf"), now.as_ref().map(|text| windows(text).into_bytes()));
                    prop_assert_eq!(unix.ok(), other.ok());
                }
            }
        }
    }
}
