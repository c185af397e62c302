#!/usr/bin/env python3
"""Check the bundled demo tasks and their demonstration scripts.

    python3 check.py                 check every task
    python3 check.py --write         also store the computed base commits in the rows
    python3 check.py demo__spanset-1 check only the named tasks

For every row the repository is built as a commit with a fixed hash, then:

  * the gold patch and the test patch apply with `git apply`;
  * with the test patch, FAIL_TO_PASS fails before the gold patch and passes after it,
    PASS_TO_PASS passes in both states, and an empty patch does not resolve the task;
  * replaying <id>.yaml resolves the task and leaves no stray file behind;
  * replaying <id>.fail.yaml, where there is one, does not resolve it.

Only the standard library is used. Programs named in a row's "requires" must be on PATH.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows"
REPOS = HERE / "repos"
SCRIPTS = HERE.parent.parent / "trajectories" / "demos" / "scripts"

WHO = "patchgym demo"
MAIL = "demo@patchgym.invalid"
WHEN = "2026-01-01T00:00:00+0000"
TOOLS = {"open_file", "goto_line", "scroll_up", "scroll_down", "search_dir", "search_file",
         "find_file", "edit", "run", "submit"}


class Problem(Exception):
    """Something about a task is not as it should be."""


# --------------------------------------------------------------------------- processes

def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "NODE_"))}
    env.update(
        GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null",
        GIT_AUTHOR_NAME=WHO, GIT_AUTHOR_EMAIL=MAIL, GIT_AUTHOR_DATE=WHEN,
        GIT_COMMITTER_NAME=WHO, GIT_COMMITTER_EMAIL=MAIL, GIT_COMMITTER_DATE=WHEN,
        PYTHONDONTWRITEBYTECODE="1", LC_ALL="C",
    )
    return env


def git(repo, *args, stdin=None):
    command = ["git", "-c", "core.autocrlf=false", "-c", "commit.gpgsign=false",
               "-c", "core.fileMode=true", "-c", "core.hooksPath=/dev/null", *args]
    done = subprocess.run(command, cwd=repo, env=environment(), input=stdin,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    if done.returncode != 0:
        raise Problem("git %s: %s" % (args[0], done.stderr.strip()))
    return done.stdout


def bash(repo, command, timeout=120):
    done = subprocess.run(["bash", "-c", command], cwd=repo, env=environment(), timeout=timeout,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    return done.stdout


# ------------------------------------------------------------------------- repositories

def build_repo(name, dest):
    """Copy repos/<name> to dest and commit it; the hash depends on the content only."""
    source = REPOS / name
    for path in sorted(source.rglob("*")):
        target = dest / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o755 if path.stat().st_mode & 0o111 else 0o644)
    git(dest, "init", "-q", "-b", "main", "--template=")
    git(dest, "add", "-A", "-f")
    git(dest, "commit", "-q", "-m", "%s: initial import" % name)
    return git(dest, "rev-parse", "HEAD").strip()


class Checkout:
    """A fresh repository of a row in a temporary directory."""

    def __init__(self, row):
        self.name = row["repo"].split("/", 1)[1]

    def __enter__(self):
        self.root = Path(tempfile.mkdtemp(prefix="patchgym-demo-"))
        self.path = self.root / "repo"
        self.path.mkdir()
        self.commit = build_repo(self.name, self.path)
        return self

    def __exit__(self, *_):
        shutil.rmtree(str(self.root), ignore_errors=True)

    def apply(self, patch):
        if patch.strip():
            git(self.path, "apply", "-", stdin=patch)

    def diff(self):
        git(self.path, "add", "-A")
        return git(self.path, "diff", "--cached", "--binary", "HEAD")


# ------------------------------------------------------------------------------- grading

UNITTEST_LINE = re.compile(r"^(\w+) \(([\w.]+)\) \.\.\. (.+)$")
TAP_LINE = re.compile(r"^\s*(not ok|ok)\s+\d+(?:\s+-)?\s+(.*)$")


def parse_unittest(log):
    results = {}
    for line in log.splitlines():
        found = UNITTEST_LINE.match(line)
        if found:
            test, where, status = found.groups()
            key = where if where.endswith("." + test) else "%s.%s" % (where, test)
            results[key] = status.strip() == "ok"
    return results


def parse_tap(log):
    results = {}
    for line in log.splitlines():
        found = TAP_LINE.match(line)
        if found:
            results[re.sub(r"\s+#.*$", "", found.group(2)).strip()] = found.group(1) == "ok"
    return results


PARSERS = {"unittest": parse_unittest, "tap": parse_tap}


def run_tests(row, patch):
    """Results of the hidden tests on the base commit with `patch`."""
    with Checkout(row) as checkout:
        checkout.apply(patch)
        checkout.apply(row["test_patch"])
        return PARSERS[row["log_parser"]](bash(checkout.path, row["test_cmd"]))


def is_resolved(row, results):
    wanted = json.loads(row["FAIL_TO_PASS"]) + json.loads(row["PASS_TO_PASS"])
    return all(results.get(test, False) for test in wanted)


# --------------------------------------------------- the scripts: a small subset of YAML
# Block maps, block lists of maps, one-line flow maps, |, |-, >- scalars (with an optional
# indentation digit) and plain or JSON-style quoted scalars.

def load_script(text):
    value, end = _block(text.splitlines() + [""], 0, 0)
    return value["turns"]


def _indent(line):
    return len(line) - len(line.lstrip(" "))


def _skip(lines, pos):
    while pos < len(lines) and (not lines[pos].strip() or lines[pos].lstrip().startswith("#")):
        pos += 1
    return pos


def _block(lines, pos, indent):
    pos = _skip(lines, pos)
    if lines[pos].lstrip().startswith("- "):
        items = []
        while pos < len(lines) and _indent(lines[pos]) == indent and lines[pos][indent:indent + 2] == "- ":
            lines[pos] = " " * (indent + 2) + lines[pos][indent + 2:]
            item, pos = _block(lines, pos, indent + 2)
            items.append(item)
            pos = _skip(lines, pos)
        return items, pos
    result = {}
    while pos < len(lines) and _indent(lines[pos]) == indent and not lines[pos][indent:].startswith("- "):
        key, _, rest = lines[pos].strip().partition(":")
        rest = rest.strip()
        pos += 1
        if rest[:1] in ("|", ">"):
            result[key], pos = _scalar_block(lines, pos, indent, rest)
        elif rest.startswith("{"):
            result[key] = _flow(rest)
        elif rest:
            result[key] = _scalar(rest)
        else:
            pos = _skip(lines, pos)
            result[key], pos = _block(lines, pos, _indent(lines[pos]))
        pos = _skip(lines, pos)
    if pos < len(lines) and _indent(lines[pos]) > indent:
        raise Problem("script line %d: unexpected indentation" % (pos + 1))
    return result, pos


def _scalar_block(lines, pos, indent, header):
    digit = re.search(r"\d", header)
    width = indent + int(digit.group()) if digit else None
    body = []
    while pos < len(lines) and (not lines[pos].strip() or _indent(lines[pos]) > indent):
        if width is None and lines[pos].strip():
            width = _indent(lines[pos])
        body.append(lines[pos][width or 0:])
        pos += 1
    while body and not body[-1].strip():
        body.pop()
    text = " ".join(body) if header[0] == ">" else "\n".join(body)
    return (text if "-" in header else text + "\n"), pos


def _scalar(text):
    if text.startswith('"'):
        return json.loads(text)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _flow(text):
    pairs = re.findall(r'(\w+):\s*("(?:[^"\\]|\\.)*"|[^,{}"]+)\s*[,}]', text)
    return {key: _scalar(value.strip()) for key, value in pairs}


# ------------------------------------------------------------------- replaying a script

class Replay:
    """Performs the edit and run calls of a script in a checkout."""

    def __init__(self, root):
        self.root = root
        self.history = {}

    def turn(self, turn):
        if not turn.get("thought") or not turn.get("calls"):
            raise Problem("a turn needs a thought and calls")
        for call in turn["calls"]:
            tool, arguments = call["tool"], call.get("arguments", {})
            if tool not in TOOLS:
                raise Problem("unknown tool %r" % tool)
            self.call(tool, arguments)

    def call(self, tool, arguments):
        if tool == "edit":
            self.edit(**arguments)
        elif tool == "run":
            bash(self.root, arguments["command"], arguments.get("timeout", 120))
        elif tool in ("open_file", "search_file") and "path" in arguments:
            if not (self.root / arguments["path"]).is_file():
                raise Problem("%s: no file %s" % (tool, arguments["path"]))
        elif tool == "find_file":
            if not any(self.root.rglob(arguments["file_name"])):
                raise Problem("find_file: nothing named %s" % arguments["file_name"])

    def edit(self, command, path, old_str=None, new_str=None, insert_line=None, file_text=None):
        target = self.root / path
        before = target.read_text(encoding="utf-8") if target.exists() else None
        past = self.history.setdefault(path, [])
        if command == "undo":
            if not past:
                raise Problem("undo: nothing to undo in %s" % path)
            after = past.pop()
        else:
            past.append(before)
            if command == "create":
                if before is not None:
                    raise Problem("create: %s exists" % path)
                after = file_text
                target.parent.mkdir(parents=True, exist_ok=True)
            elif command == "replace":
                if before is None or before.count(old_str) != 1:
                    raise Problem("replace: old_str does not occur exactly once in %s:\n%s"
                                  % (path, old_str))
                after = before.replace(old_str, new_str)
            elif command == "insert":
                lines = before.splitlines(True)
                text = new_str if new_str.endswith("\n") else new_str + "\n"
                after = "".join(lines[:insert_line]) + text + "".join(lines[insert_line:])
            else:
                raise Problem("edit: unknown command %r" % command)
        if after is None:
            target.unlink()
        else:
            target.write_text(after, encoding="utf-8")


def replay(row, script):
    """The patch that the model of a script ends with."""
    turns = load_script(script.read_text(encoding="utf-8"))
    if turns[-1]["calls"][-1]["tool"] != "submit":
        raise Problem("%s does not end with submit" % script.name)
    with Checkout(row) as checkout:
        player = Replay(checkout.path)
        for turn in turns:
            player.turn(turn)
        return checkout.diff()


# ------------------------------------------------------------------------------- checks

def touched(patch):
    return set(re.findall(r"^diff --git a/\S+ b/(\S+)$", patch, re.M))


def check(path, write):
    row = json.loads(path.read_text(encoding="utf-8"))
    name = row["instance_id"]
    missing = [program for program in row["requires"] if shutil.which(program) is None]
    if missing:
        raise Problem("programs not found: %s" % ", ".join(missing))
    for field in ("patch", "test_patch"):
        if not row[field].endswith("\n"):
            raise Problem("%s does not end with a newline" % field)
    if touched(row["patch"]) & touched(row["test_patch"]):
        raise Problem("patch and test_patch touch the same file")

    with Checkout(row) as checkout:
        commit = checkout.commit
    if write:
        row["base_commit"] = row["environment_setup_commit"] = commit
        path.write_text(json.dumps(row, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    elif row["base_commit"] != commit:
        raise Problem("base_commit is %r, the tree gives %s" % (row["base_commit"], commit))

    fail, keep = json.loads(row["FAIL_TO_PASS"]), json.loads(row["PASS_TO_PASS"])
    if not fail:
        raise Problem("FAIL_TO_PASS is empty")
    before, after = run_tests(row, ""), run_tests(row, row["patch"])
    for test in fail:
        if before.get(test, False):
            raise Problem("passes before the patch: %s" % test)
    for test in keep:
        if not before.get(test, False):
            raise Problem("fails before the patch: %s" % test)
    for test in fail + keep:
        if not after.get(test, False):
            raise Problem("fails after the patch: %s" % test)
    if is_resolved(row, before):
        raise Problem("an empty patch resolves the task")

    notes = ["%d to fix, %d to keep" % (len(fail), len(keep))]
    script = SCRIPTS / (name + ".yaml")
    patch = replay(row, script)
    stray = touched(patch) - touched(row["patch"])
    if stray:
        raise Problem("%s leaves or changes %s" % (script.name, ", ".join(sorted(stray))))
    if not is_resolved(row, run_tests(row, patch)):
        raise Problem("%s does not resolve the task" % script.name)
    notes.append("script resolves")
    script = SCRIPTS / (name + ".fail.yaml")
    if script.exists():
        if is_resolved(row, run_tests(row, replay(row, script))):
            raise Problem("%s resolves the task" % script.name)
        notes.append("failing script does not")
    return "%s  %s" % (commit[:12], ", ".join(notes))


def main():
    parser = argparse.ArgumentParser(description="Check the bundled demo tasks.")
    parser.add_argument("--write", action="store_true", help="store base commits in the rows")
    parser.add_argument("tasks", nargs="*", help="instance ids (default: all)")
    options = parser.parse_args()
    paths = [p for p in sorted(ROWS.glob("*.json")) if not options.tasks or p.stem in options.tasks]
    bad = 0
    for path in paths:
        try:
            print("ok    %-24s %s" % (path.stem, check(path, options.write)))
        except Exception as problem:  # report every task before giving up
            bad += 1
            print("FAIL  %-24s %s" % (path.stem, problem))
    print("%d tasks, %d with problems" % (len(paths), bad))
    return 1 if bad or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
