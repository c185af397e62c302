//! The copy of a repository that a model sees.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;
use std::time::Duration;
use std::time::Instant;

use patchgym::data::Data;
use patchgym::task::RepositorySource;
use patchgym::task::Task;
use patchgym::task::repository::Prepared;
use patchgym::task::repository::Repositories;
use patchgym::task::repository::RepositoryError;
use tempfile::TempDir;

/// A command with an author, and without this machine's settings of git.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).envs([
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "dev"),
        ("GIT_AUTHOR_EMAIL", "dev@example.com"),
        ("GIT_AUTHOR_DATE", "2021-03-04T05:06:07+0000"),
        ("GIT_COMMITTER_NAME", "dev"),
        ("GIT_COMMITTER_EMAIL", "dev@example.com"),
        ("GIT_COMMITTER_DATE", "2021-03-04T05:06:07+0000"),
    ]);
    command
}

/// Runs git, which must succeed, and gives what it printed.
fn git(folder: &Path, arguments: &[&str]) -> String {
    let done = command("git", folder).args(arguments).output().unwrap();
    assert!(done.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim_end().to_owned()
}

fn try_git(folder: &Path, arguments: &[&str]) -> Output {
    command("git", folder).args(arguments).output().unwrap()
}

/// Runs a script of `sh`, which must succeed.
fn script(folder: &Path, text: &str) {
    let done = command("sh", folder).args(["-euc", text]).output().unwrap();
    assert!(done.status.success(), "{text}: {}", String::from_utf8_lossy(&done.stderr));
}

fn task(source: RepositorySource, base_commit: &str) -> Task {
    Task {
        id: "d__r-1".into(),
        repo: "d/r".into(),
        base_commit: base_commit.into(),
        problem_statement: "x".into(),
        version: String::new(),
        created_at: String::new(),
        image: None,
        workdir: "/testbed".into(),
        requires: Vec::new(),
        source,
    }
}

/// A folder for sources with a cache beside them.
struct Place {
    root: TempDir,
    repositories: Repositories,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let repositories = Repositories::at(root.path().join("cache"));
        Self { root, repositories }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn prepare(&self, source: RepositorySource, commit: &str) -> Result<Prepared, RepositoryError> {
        self.repositories.prepare(&task(source, commit), &Data::open(&[]).unwrap())
    }

    fn cloned(&self, name: &str, commit: &str) -> Result<Prepared, RepositoryError> {
        self.prepare(RepositorySource::Clone(self.path(name)), commit)
    }

    /// A clone `origin` of four commits: two files, one of them changed, then the future; gives the third's name.
    fn origin(&self) -> String {
        script(
            self.root.path(),
            "git init -q -b main origin; cd origin
             echo one > a; mkdir -p d/e; echo two > d/e/b; git add -A; git commit -qm first
             echo three > a; git commit -qam second; echo three > c; git add c; git commit -qm third
             echo SECRET > future; git add future; git commit -qm future; git tag v2",
        );
        git(&self.path("origin"), &["rev-parse", "HEAD~1"])
    }

    /// What the cache holds.
    fn cached(&self) -> Vec<String> {
        let mut names: Vec<String> = fs_err::read_dir(self.path("cache/repositories"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// The copy is at the commit with this many commits, is clean, and git finds nothing wrong.
fn is_sound(prepared: &Prepared, commits: usize) {
    let tree = &prepared.tree;
    assert_eq!(git(tree, &["rev-parse", "HEAD"]), prepared.commit);
    assert_eq!(git(tree, &["rev-list", "--count", "--all"]), commits.to_string());
    assert_eq!(git(tree, &["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
    assert_eq!(git(tree, &["symbolic-ref", "HEAD"]), "refs/heads/main");
    // Not `status`, which would write the index.
    assert_eq!(git(tree, &["--no-optional-locks", "status", "--porcelain", "--ignored"]), "");
    assert_eq!(git(tree, &["remote"]), "");
    let fsck = try_git(tree, &["fsck", "--full", "--strict"]);
    assert!(fsck.status.success(), "{fsck:?}");
    assert_eq!(String::from_utf8_lossy(&fsck.stdout), "");
    assert!(!tree.join(".git/objects/info/alternates").exists());
}

fn has(prepared: &Prepared, object: &str) -> bool {
    command("git", &prepared.tree)
        .env("GIT_NO_LAZY_FETCH", "1")
        .args(["cat-file", "-e", object])
        .output()
        .unwrap()
        .status
        .success()
}

/// Paths below a folder with mode, time and bytes.
fn listing(folder: &Path) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = fs_err::symlink_metadata(&path).unwrap();
        let mut bytes = Vec::new();
        if metadata.is_dir() {
            pending.extend(fs_err::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if metadata.is_symlink() {
            bytes = fs_err::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
        } else {
            bytes = fs_err::read(&path).unwrap();
        }
        found.insert(
            path.strip_prefix(folder).unwrap().to_owned(),
            (metadata.mode(), metadata.mtime(), bytes),
        );
    }
    found.retain(|path, _| !path.starts_with(".git"));
    found
}

#[test]
fn the_future_is_not_in_the_copy_and_the_past_is() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases/o04-git-future-leak");
    if !case.exists() {
        println!("skipped: no {}", case.display());
        return;
    }
    let run = |name: &str, arguments: &[&str]| {
        Command::new("sh").arg(case.join(name)).args(arguments).output().unwrap()
    };
    let place = Place::new();
    let leaky = place.path("leaky");
    assert!(run("make_repo.sh", &[leaky.to_str().unwrap()]).status.success());
    assert!(!run("probe.sh", &[leaky.to_str().unwrap()]).status.success());
    let base = fs_err::read_to_string(place.path("leaky.base")).unwrap().trim().to_owned();
    let future = fs_err::read_to_string(place.path("leaky.future")).unwrap().trim().to_owned();
    let prepared = place.cloned("leaky", &base).unwrap();
    is_sound(&prepared, 3);
    assert_eq!(prepared.missing, 0);
    let tree = prepared.tree.to_str().unwrap();
    let probe = run("probe.sh", &[tree, &future]);
    assert!(probe.status.success(), "{}", String::from_utf8_lossy(&probe.stdout));
    let keep = run("keep.sh", &[tree, &base]);
    assert!(keep.status.success(), "{}", String::from_utf8_lossy(&keep.stdout));
}

#[test]
fn a_partial_clone_gives_up_no_future_objects_and_says_what_its_past_lacks() {
    let place = Place::new();
    let base = place.origin();
    script(
        place.root.path(),
        "git init -q -b main --bare served; git -C served config uploadpack.allowFilter true
         git -C served config uploadpack.allowAnySHA1InWant true
         git -C origin push -q ../served HEAD~1:refs/heads/main
         git clone -q --no-local --filter=blob:none file://$PWD/served partial
         git -C origin push -q ../served main:refs/heads/main v2
         git -C partial pull -q",
    );
    let partial = place.path("partial");
    let future = git(&place.path("origin"), &["rev-parse", "main"]);
    let secret = git(&place.path("origin"), &["rev-parse", "main:future"]);
    let first = git(&place.path("origin"), &["rev-parse", "main~3:a"]);
    let packs = fs_err::read_dir(partial.join(".git/objects/pack"))
        .unwrap()
        .filter(|entry| {
            entry.as_ref().unwrap().path().extension().is_some_and(|suffix| suffix == "promisor")
        })
        .count();
    assert!(packs >= 3, "the clone is no partial one");

    let prepared = place.cloned("partial", &base).unwrap();
    assert_eq!(prepared.missing, 1);
    is_sound(&prepared, 3);
    assert!(has(&prepared, &base));
    for object in [&future, &secret, &first] {
        assert!(!has(&prepared, object), "{object}");
    }
    // What the past lacks was not fetched into the source either.
    let stored = command("git", &partial)
        .env("GIT_NO_LAZY_FETCH", "1")
        .args(["cat-file", "-e", &first])
        .output();
    assert!(!stored.unwrap().status.success());
    script(
        &prepared.tree,
        "echo x >> a; git stash -q; git stash pop -q; git commit -qam x; git gc -q; git fsck",
    );
    // A second attempt finds the receipt.
    assert_eq!(place.cloned("partial", &base).unwrap().missing, 1);
    // The first commit's own file is what is missing, so that commit cannot be a start.
    let error = place.cloned("partial", "main~3").unwrap_err();
    assert!(matches!(error, RepositoryError::Incomplete { missing: 1, .. }), "{error}");
    assert!(error.hint().unwrap().contains("archive"));
}

#[test]
fn a_clone_without_trees_keeps_its_commits() {
    let place = Place::new();
    let base = place.origin();
    script(
        place.root.path(),
        "git -C origin config uploadpack.allowFilter true; git -C origin config uploadpack.allowAnySHA1InWant true
         git clone -q --no-local --no-checkout --filter=tree:0 file://$PWD/origin treeless
         git -C treeless checkout -q main~1",
    );
    let prepared = place.cloned("treeless", &base).unwrap();
    assert!(prepared.missing > 0);
    is_sound(&prepared, 3);
}

#[test]
fn a_shallow_clone_keeps_its_boundary() {
    let place = Place::new();
    let base = place.origin();
    script(place.root.path(), "git clone -q --depth 3 file://$PWD/origin shallow");
    let short = place.cloned("shallow", &base).unwrap();
    is_sound(&short, 2);
    script(place.root.path(), "git -C shallow fetch -q --unshallow");
    is_sound(&place.cloned("shallow", &base).unwrap(), 3);
    is_sound(&short, 2);

    // A boundary that is not in the commit's past would tell of the future.
    script(
        place.root.path(),
        "git clone -q --bare origin other; git -C other rev-parse main > other/shallow",
    );
    let prepared = place.cloned("other", &base).unwrap();
    is_sound(&prepared, 3);
    assert!(!prepared.tree.join(".git/shallow").exists());
}

#[test]
fn every_kind_of_clone_gives_the_same_tree() {
    let place = Place::new();
    let base = place.origin();
    script(
        place.root.path(),
        "git clone -q --mirror origin mirror.git; git clone -q origin 'a:\"\\b'
         git -C origin worktree add -q ../linked HEAD~2
         git clone -q --shared origin shared; git init -q super; cd super
         git -c protocol.file.allow=always submodule add -q ../origin part; git commit -qm x",
    );
    let expected = listing(&place.cloned("origin", &base).unwrap().tree);
    assert_eq!(expected[Path::new("d/e/b")], (0o100_644, 1_614_834_367, b"two\n".to_vec()));
    assert_eq!(expected[Path::new("d")].1, 1_614_834_367);
    assert_eq!(expected[Path::new("")].1, 1_614_834_367);
    for name in ["mirror.git", "linked", "shared", "a:\"\\b", "super/part"] {
        let prepared = place.cloned(name, &base).unwrap();
        is_sound(&prepared, 3);
        assert_eq!(prepared.objects, prepared.tree.join(".git/objects"));
        assert_eq!(listing(&prepared.tree), expected, "{name}");
    }
    // HEAD is that of the worktree, and a gitlink is an empty directory.
    assert_eq!(
        place.cloned("linked", "HEAD").unwrap().commit,
        git(&place.path("origin"), &["rev-parse", "main~2"])
    );
    let outer = place.cloned("super", "HEAD").unwrap();
    is_sound(&outer, 1);
    assert_eq!(fs_err::read_dir(outer.tree.join("part")).unwrap().count(), 0);
    assert_eq!(place.cloned("origin", &base[..8]).unwrap(), place.cloned("origin", &base).unwrap());
}

#[test]
fn a_repository_of_longer_object_names_is_copied() {
    let place = Place::new();
    script(
        place.root.path(),
        "git init -q -b main --object-format=sha256 long; cd long; echo x > a; git add a; git commit -qm x",
    );
    let prepared = place.cloned("long", "HEAD").unwrap();
    assert_eq!(prepared.commit.len(), 64);
    is_sound(&prepared, 1);
}

#[test]
fn nothing_that_a_hostile_clone_names_is_run() {
    let place = Place::new();
    script(
        place.root.path(),
        "git init -q -b main hostile; cd hostile
         printf '* filter=evil diff=evil\n*.crlf text eol=crlf\n*.stored -text\n' > .gitattributes
         printf 'l\n' > a.crlf; printf 'r\r\n' > a.stored; echo x > ../outside; ln -s ../../../../outside link; ln -s ../.. up; echo x > file
         printf '#!/bin/sh\n' > run; chmod +x run
         git add -A; git commit -qm x
         marker=\"touch $PWD/../ran\"
         git config filter.evil.smudge \"$marker\"; git config filter.evil.required true
         git config core.fsmonitor \"$marker\"; git config core.sshCommand \"$marker\"
         git config core.alternateRefsCommand \"$marker\"; git config core.pager \"$marker\"
         git config core.autocrlf true
         mkdir -p .git/hooks
         for hook in post-checkout post-index-change reference-transaction; do
           printf '#!/bin/sh\n%s\n' \"$marker\" > .git/hooks/$hook; chmod +x .git/hooks/$hook
         done",
    );
    let prepared = place.cloned("hostile", "HEAD").unwrap();
    assert!(!place.path("ran").exists());
    is_sound(&prepared, 1);
    let files = listing(&prepared.tree);
    let bytes = |name: &str| files[Path::new(name)].2.as_slice();
    assert_eq!(
        [bytes("a.crlf"), bytes("a.stored"), bytes("link"), bytes("up"), bytes("file")],
        [b"l\r\n".as_slice(), b"r\r\n", b"../../../../outside", b"../..", b"x\n"]
    );
    assert_eq!(files[Path::new("run")].0, 0o100_755);
    assert_eq!(files[Path::new("link")].1, files[Path::new("file")].1);
    let outside = fs_err::canonicalize(prepared.tree.join("link")).unwrap();
    assert_eq!(outside, fs_err::canonicalize(place.path("outside")).unwrap());
    assert_ne!(fs_err::metadata(outside).unwrap().mtime(), files[Path::new("file")].1);
    // A commit that it lacks is not asked for over the network, which would run a command of its choice.
    script(
        &place.path("hostile"),
        "git config core.repositoryFormatVersion 1; git config extensions.partialClone origin
         git config remote.origin.promisor true; git config remote.origin.url ssh://host/x",
    );
    let absent = place.cloned("hostile", &"1".repeat(40)).unwrap_err();
    assert!(matches!(absent, RepositoryError::CommitMissing { .. }), "{absent}");
    assert!(!place.path("ran").exists());
    assert!(!prepared.tree.join(".git/hooks").exists());
    assert_eq!(
        fs_err::read_to_string(prepared.tree.join(".git/config")).unwrap(),
        "[core]\n\trepositoryFormatVersion = 0\n\tfileMode = true\n\tbare = false\n\tlogAllRefUpdates = true\n\
         \tcheckStat = minimal\n\ttrustCtime = false\n[gc]\n\tauto = 0\n"
    );
}

#[test]
fn a_file_stored_against_its_attributes_is_clean() {
    let place = Place::new();
    script(
        place.root.path(),
        "git init -q -b main odd; cd odd; printf 'a\r\n' > a.txt; git add a.txt
         echo '*.txt text' > .gitattributes; git add .gitattributes; git commit -qm x",
    );
    let prepared = place.cloned("odd", "HEAD").unwrap();
    is_sound(&prepared, 1);
    assert!(!prepared.tree.join(".git/info/attributes").exists());
}

#[test]
fn a_status_in_another_place_reads_no_file_and_an_edit_shows() {
    let place = Place::new();
    let base = place.origin();
    let prepared = place.cloned("origin", &base).unwrap();
    // Copied files have other inodes and change times.
    script(place.root.path(), &format!("cp -a {} moved", prepared.tree.display()));
    let moved = place.path("moved");
    let index = fs_err::read(moved.join(".git/index")).unwrap();
    assert_eq!(git(&moved, &["status", "--porcelain"]), "");
    // A status that had to compare a file would have written what it found.
    assert!(fs_err::read(moved.join(".git/index")).unwrap() == index);
    fs_err::write(moved.join("a"), "other\n").unwrap();
    assert_eq!(git(&moved, &["diff", "--name-only"]), "a");
}

#[test]
fn what_is_missing_is_named() {
    let place = Place::new();
    place.origin();
    let absent = "0123456789012345678901234567890123456789";
    for commit in [absent, "v9", "--all", ""] {
        let error = place.cloned("origin", commit).unwrap_err();
        assert!(
            matches!(&error, RepositoryError::CommitMissing { commit: named, .. } if named == commit),
            "{error}"
        );
        assert!(error.to_string().contains("origin"), "{error}");
        assert!(error.hint().unwrap().ends_with("origin fetch`"));
    }
    fs_err::create_dir(place.path("plain")).unwrap();
    assert!(matches!(place.cloned("plain", "HEAD"), Err(RepositoryError::NotRepository { .. })));
    assert!(matches!(place.cloned("nowhere", "HEAD"), Err(RepositoryError::SourceMissing { .. })));
    let plain = RepositorySource::Directory(place.path("plain"));
    assert!(matches!(place.prepare(plain, ""), Err(RepositoryError::Empty { .. })));
    assert!(matches!(
        place.prepare(RepositorySource::Unknown, absent),
        Err(RepositoryError::Unknown { .. })
    ));
    let embedded = RepositorySource::Embedded("nothing".into());
    assert!(matches!(place.prepare(embedded, absent), Err(RepositoryError::Empty { .. })));
    // A failed build leaves nothing.
    assert_eq!(place.cached(), Vec::<String>::new());
}

#[test]
fn the_demo_repositories_give_the_commits_of_their_rows() {
    let place = Place::new();
    let data = Data::open(&[]).unwrap();
    let mut rows = 0;
    for (_, file) in data.below("envs/demo/rows") {
        let row: serde_json::Value = serde_json::from_slice(&file.bytes).unwrap();
        let (repo, base) = (row["repo"].as_str().unwrap(), row["base_commit"].as_str().unwrap());
        let name = repo.rsplit('/').next().unwrap().to_owned();
        let prepared = place.prepare(RepositorySource::Embedded(name), base).unwrap();
        assert_eq!(prepared.commit, base, "{repo}");
        is_sound(&prepared, 1);
        rows += 1;
    }
    assert_eq!(rows, 10);
    let wrong = place.prepare(RepositorySource::Embedded("rotlog".into()), &"1".repeat(40));
    assert!(matches!(wrong, Err(RepositoryError::OtherCommit { .. })));
}

#[test]
fn a_plain_directory_becomes_one_commit_of_its_contents() {
    let place = Place::new();
    script(
        place.root.path(),
        "mkdir -p one/d one/empty one/.git; echo x > one/d/a; echo ignored > one/ignored; echo ignored > one/.gitignore
         echo '[user' > one/.git/config; ln -s d/a one/link; printf '#!/bin/sh\n' > one/run; chmod 700 one/run
         git init -q one/d/nested; cp -a one two; touch -d 2001-01-01 two/d/a",
    );
    let one = place.prepare(RepositorySource::Directory(place.path("one")), "").unwrap();
    is_sound(&one, 1);
    assert_eq!(
        git(&one.tree, &["ls-tree", "-r", "--format=%(objectmode) %(path)", "HEAD"]),
        "100644 .gitignore\n100644 d/a\n100644 ignored\n120000 link\n100755 run"
    );
    assert_eq!(
        place.prepare(RepositorySource::Directory(place.path("two")), &one.commit).unwrap(),
        one
    );
    fs_err::write(place.path("two/d/a"), "y\n").unwrap();
    assert_ne!(
        place.prepare(RepositorySource::Directory(place.path("two")), "").unwrap().commit,
        one.commit
    );
    assert_eq!(place.cached().len(), 2);
}

#[test]
fn makers_at_the_same_time_get_one_copy_and_the_next_waits_for_nothing() {
    let place = Place::new();
    let base = place.origin();
    let made: Vec<Prepared> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| place.cloned("origin", &base).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|prepared| *prepared == made[0]));
    assert_eq!(place.cached().len(), 1);
    let task = task(RepositorySource::Clone(place.path("origin")), &base);
    let data = Data::open(&[]).unwrap();
    let quickest = (0..5)
        .map(|_| {
            let start = Instant::now();
            place.repositories.prepare(&task, &data).unwrap();
            start.elapsed()
        })
        .min()
        .unwrap();
    assert!(quickest < Duration::from_millis(5), "{quickest:?}");
}

#[test]
fn an_interrupted_build_is_neither_used_nor_left() {
    let place = Place::new();
    let base = place.origin();
    let finished = place.cloned("origin", &base).unwrap();
    let name = place.cached().remove(0);
    let all = place.path("cache/repositories");
    // What a killed process leaves, and what a running one has.
    let (dead, alive) =
        (all.join(".unfinished-999999999-1-x"), all.join(format!(".unfinished-{}", own_process())));
    fs_err::rename(all.join(&name), &dead).unwrap();
    fs_err::create_dir(&alive).unwrap();
    fs_err::remove_file(dead.join("tree/a")).unwrap();
    assert_eq!(place.cloned("origin", &base).unwrap(), finished);
    is_sound(&finished, 3);
    assert!(place.repositories.clean().unwrap() > 0);
    assert!(!dead.exists());
    assert!(alive.exists());
    assert_eq!(place.repositories.clean().unwrap(), 0);
    assert!(place.repositories.remove_all().unwrap() > 0);
    assert_eq!(place.cached(), [alive.file_name().unwrap().to_str().unwrap()]);
    is_sound(&place.cloned("origin", &base).unwrap(), 3);
}

/// This process as the names of unfinished copies write it.
fn own_process() -> String {
    let stat = fs_err::read_to_string("/proc/self/stat").unwrap();
    let start = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap();
    format!("{}-{start}-x", std::process::id())
}

#[test]
fn a_real_clone_is_copied_in_seconds() {
    let Some(source) = std::env::var_os("PATCHGYM_TEST_CLONE") else {
        println!("skipped: PATCHGYM_TEST_CLONE names no clone");
        return;
    };
    let place = Place::new();
    let start = Instant::now();
    let prepared = place.prepare(RepositorySource::Clone(source.into()), "HEAD").unwrap();
    println!("copied in {:.1?}, {} objects missing", start.elapsed(), prepared.missing);
    assert_eq!(git(&prepared.tree, &["--no-optional-locks", "status", "--porcelain"]), "");
    let mode = fs_err::metadata(&prepared.tree).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}
