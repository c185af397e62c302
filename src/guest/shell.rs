//! A persistent shell that cannot desynchronise.
//!
//! A command is never typed at a prompt: it is written to a file that the shell sources. When the shell is done with
//! it, exit status, working directory and exports stand in a file, and a number that belongs to this command alone
//! comes back through a named pipe. The end of a command is never looked for in its output. When the shell itself ends (`exit`, `exec`,
//! a signal), its wait status is the command's, and the next command gets a new shell with the last known state.
//!
//! Output and report are opened by name for every command, so nothing that a command does to the shell's open files,
//! variables and functions outlives it.

use std::io;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::ChildStdin;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::process::PidfdFlags;
use rustix::process::Signal;

use crate::guest::cancel::Cancel;
use crate::guest::output::Output;
use crate::guest::pipe::gone;
use crate::guest::pipe::is_pipe;
use crate::guest::pipe::make_directory;
use crate::guest::pipe::pipe;
use crate::guest::pipe::read_now;
use crate::guest::pipe::replace;
use crate::guest::processes::Descendants;
use crate::guest::processes::Spared;
use crate::guest::report::Mark;
use crate::guest::report::Reported;
use crate::protocol::operation::CommandResult;
use crate::protocol::operation::Ending;
use crate::protocol::operation::SessionStart;

/// Time between asking processes to end and ending them, so that they can say where they were.
const GRACE: Duration = Duration::from_millis(300);
/// Bytes of late output that are kept.
const LATE: usize = 16 << 10;
/// How often a running command's pipes are looked after.
const CARE: Duration = Duration::from_secs(1);
/// How often in a row a shell may be found idle although its report is missing.
const MOST_IDLE: u32 = 2;

/// What to run, and how long.
pub(crate) struct Job {
    /// Shell source.
    pub(crate) command: Vec<u8>,
    /// The limit; none for no limit.
    pub(crate) limit: Option<Duration>,
    /// Bytes to keep of each end of the output.
    pub(crate) keep: usize,
}

/// One named shell session.
pub(crate) struct Session {
    /// Stays the same when the guest is lost: what background jobs of before have open is in it.
    directory: PathBuf,
    /// Another for every guest, so that what a lost one's shell is yet to report goes nowhere.
    own: PathBuf,
    processes: Descendants,
    program: &'static str,
    env: Vec<(String, String)>,
    state: State,
    shell: Option<Shell>,
    output: OwnedFd,
    status: OwnedFd,
    late: Output,
    /// Exit status of the command before, which the next one may ask for.
    code: i32,
}

/// What the next shell starts with.
struct State {
    cwd: String,
    exports: Vec<u8>,
}

struct Shell {
    child: Child,
    input: ChildStdin,
    ended: OwnedFd,
}

/// What a session has to see to; all false when the time is up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Ready {
    output: bool,
    status: bool,
    ended: bool,
    woken: bool,
}

/// What is waited for besides output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    Output,
    Everything,
}

impl Session {
    /// Opens a session whose files live in `directory`.
    pub(crate) fn open(
        directory: &Path,
        start: SessionStart,
        processes: Descendants,
    ) -> io::Result<Self> {
        for entry in fs_err::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name() != OUTPUT {
                // A shell that finds nothing there reports nothing; what else is left does no harm.
                let _ = fs_err::remove_dir_all(entry.path());
            }
        }
        let own = directory.join(format!("{:x}", random()?));
        make_directory(&own)?;
        let output = pipe(&directory.join(OUTPUT))?;
        // A large pipe means fewer switches between a command and this reader. The default will do where it is refused.
        let _ = rustix::pipe::fcntl_setpipe_size(&output, 1 << 20);
        let status = pipe(&own.join(STATUS))?;
        let program = ["/bin/bash", "/usr/bin/bash", "/bin/sh"]
            .into_iter()
            .find(|path| Path::new(path).exists())
            .unwrap_or("/bin/sh");
        Ok(Self {
            directory: directory.to_owned(),
            own,
            processes,
            program,
            env: start.env,
            state: State { cwd: start.cwd, exports: start.exports },
            shell: None,
            output,
            status,
            late: Output::new(LATE),
            code: 0,
        })
    }

    /// Keeps background jobs from blocking on a full pipe until `wake` is readable.
    pub(crate) fn idle(&mut self, wake: &OwnedFd) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let ready = self.wait(Some(wake), None, Watch::Output)?;
            if ready.woken {
                return Ok(());
            }
            if let Some(count) = read_now(&self.output, &mut buffer)? {
                self.late.push(&buffer[..count]);
                if count == buffer.len() {
                    // A job that prints without end must not keep a processor busy here as well.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Runs a command to its end. `wake` becoming readable means that it may have been cancelled.
    pub(crate) fn run(
        &mut self,
        job: &Job,
        cancel: &Cancel,
        wake: &OwnedFd,
    ) -> io::Result<CommandResult> {
        let started = Instant::now();
        let mut late = std::mem::replace(&mut self.late, Output::new(LATE));
        self.care()?;
        let mut buffer = vec![0; 256 << 10];
        self.drain(&mut late, &mut buffer)?;
        self.ensure_shell()?;
        let spared = self.processes.spare();
        let mut output = Output::new(job.keep);
        let nonce = random()?;
        self.begin(&job.command, nonce)?;
        let deadline = job.limit.map(|limit| started + limit);
        let mut mark = Mark::new(nonce);
        let mut look = started + CARE;
        let (mut idle, mut tried_again) = (0, false);
        let ending = loop {
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            let ready = self.wait(Some(wake), Some(until), Watch::Everything)?;
            if ready.status
                && let Some(count) = read_now(&self.status, &mut buffer)?
                && mark.push(&buffer[..count])
            {
                break self.reported()?;
            }
            if ready.output
                && let Some(count) = read_now(&self.output, &mut buffer)?
            {
                output.push(&buffer[..count]);
            }
            if ready.ended {
                let ending = self.reap()?;
                if self.has_begun() || tried_again {
                    break ending;
                }
                // It was about to end since the command before, which took away its input.
                tried_again = true;
                self.ensure_shell()?;
                self.begin(&job.command, nonce)?;
                continue;
            }
            if ready.woken {
                let _ = rustix::io::read(wake, &mut [0; 8]);
            }
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if late || cancel.check().is_err() {
                break self.end_all(&spared, &mut output, &mut buffer)?;
            }
            if Instant::now() >= look {
                look += CARE;
                self.care()?;
                idle = if self.is_idle()? { idle + 1 } else { 0 };
                if idle == MOST_IDLE {
                    // What the command did to the shell or its files keeps it from reporting.
                    self.end_shell()?;
                    break UNREPORTED;
                }
            }
        };
        // All that the command's foreground wrote is in the pipe by now; background jobs may go on writing.
        self.drain(&mut output, &mut buffer)?;
        let (head, tail, total) = output.take();
        let (late_head, late_tail, _) = late.take();
        Ok(CommandResult {
            ending,
            head,
            tail,
            total,
            late: if late_tail.is_empty() { late_head } else { late_tail },
            shell_lost: self.shell.is_none(),
            cwd: self.state.cwd.clone(),
            exports: self.state.exports.clone(),
            micros: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// Whether the shell came to the command; as far as its files can tell.
    fn has_begun(&self) -> bool {
        let is_there = |name: &str| self.own.join(name).exists();
        is_there(BEGUN) || !is_there(COMMAND)
    }

    /// Reads the state of a shell that is done with its command.
    fn reported(&mut self) -> io::Result<Ending> {
        let Some(state) = Reported::read(&self.own.join(STATE))? else {
            self.end_shell()?;
            return Ok(UNREPORTED);
        };
        self.state.cwd = state.cwd;
        if let Some(exports) = state.exports {
            self.state.exports = exports;
        }
        self.code = state.code;
        Ok(Ending::Exited(state.code))
    }

    /// Puts back the named pipes that a command removed, so that it can still report.
    fn care(&mut self) -> io::Result<()> {
        let output = self.directory.join(OUTPUT);
        if !is_pipe(&output) {
            self.output = pipe(&output)?;
        }
        let status = self.own.join(STATUS);
        if !is_pipe(&status) {
            make_directory(&self.own)?;
            self.status = pipe(&status)?;
        }
        Ok(())
    }

    /// Tells the shell to source the command, and then to send the report that carries the number `nonce`.
    fn begin(&mut self, command: &[u8], nonce: u64) -> io::Result<()> {
        let file = |name: &str| self.own.join(name);
        replace(&file(COMMAND), command)?;
        for left in [STATE, BEGUN] {
            gone(fs_err::remove_file(file(left)))?;
        }
        let state = quoted(&file(STATE));
        // The first line must not change what `$?` is, nor assume that the shell overwrites files.
        let report = format!(
            "command printf '%s\\n' \"$?\" >|{state}
command . {}
command trap - HUP INT QUIT TERM EXIT
{{ command pwd; command printf '\\0'; command export -p; command export -p -f; command printf '\\0'; }} >>{state}
command printf '{nonce}\\n' >{}
",
            quoted(&file(OPTIONS)),
            quoted(&file(STATUS))
        );
        replace(&file(REPORT), report.as_bytes())?;
        let before = match self.code {
            0 => String::new(),
            code => format!("(exit {code}); "),
        };
        let line = format!(
            ">|{}; {before}{{ . {}; }} </dev/null 1<>{} 2>&1; command . {}\n\n",
            quoted(&file(BEGUN)),
            quoted(&file(COMMAND)),
            quoted(&self.directory.join(OUTPUT)),
            quoted(&file(REPORT))
        );
        let Some(shell) = &mut self.shell else { return Err(io::ErrorKind::BrokenPipe.into()) };
        match shell.input.write_all(line.as_bytes()) {
            // A shell that ended meanwhile is seen by its wait status.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn ensure_shell(&mut self) -> io::Result<()> {
        if let Some(shell) = &mut self.shell
            && shell.child.try_wait()?.is_none()
        {
            return Ok(());
        }
        self.shell = None;
        self.code = 0;
        // A pipe of its own, because whoever has the old one open may still write to it.
        let status = self.own.join(STATUS);
        gone(fs_err::remove_file(&status))?;
        self.status = pipe(&status)?;
        let exports = self.own.join("exports");
        replace(&exports, &self.state.exports)?;
        gone(fs_err::remove_file(self.own.join(OPTIONS)))?;
        let mut command = Command::new(self.program);
        if self.program.ends_with("bash") {
            command.args(["--noprofile", "--norc"]);
        }
        command
            .arg("-s")
            .env_clear()
            .current_dir(nearest_directory(Path::new(&self.state.cwd)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // Once there are known exports they are the whole environment: what was unset stays unset.
        if self.state.exports.is_empty() {
            command.envs(self.env.iter().map(|(name, value)| (name, value)));
        }
        let mut child = command.spawn()?;
        let Some(mut input) = child.stdin.take() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
        else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        // What a model starts is the first to go when memory is short.
        let start = format!(
            "printf 500 >\"/proc/$$/oom_score_adj\"\nset +o >{}\n. {}\n",
            quoted(&self.own.join(OPTIONS)),
            quoted(&exports)
        );
        input.write_all(start.as_bytes())?;
        self.shell = Some(Shell { child, input, ended });
        Ok(())
    }

    fn reap(&mut self) -> io::Result<Ending> {
        let Some(mut shell) = self.shell.take() else { return Err(io::ErrorKind::NotFound.into()) };
        let status = shell.child.wait()?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Exited(code),
            (None, signal) => Ending::Signalled(signal.unwrap_or_default()),
        })
    }

    /// Ends the command, everything it started, and the shell.
    fn end_all(
        &mut self,
        spared: &Spared,
        output: &mut Output,
        buffer: &mut [u8],
    ) -> io::Result<Ending> {
        // An interrupt makes many programs tell where they were. The shell would start its next line: it is stopped.
        if let Some(shell) = &self.shell {
            let _ = rustix::process::pidfd_send_signal(&shell.ended, Signal::STOP);
        }
        self.processes.signal_others(spared, Signal::INT);
        let deadline = Instant::now() + GRACE;
        while self.wait(None, Some(deadline), Watch::Output)?.output {
            if let Some(count) = read_now(&self.output, buffer)? {
                output.push(&buffer[..count]);
            }
        }
        self.processes.end_others(spared);
        self.end_shell()?;
        Ok(Ending::TimedOut)
    }

    fn end_shell(&mut self) -> io::Result<()> {
        if let Some(mut shell) = self.shell.take() {
            let _ = shell.child.kill();
            shell.child.wait()?;
        }
        Ok(())
    }

    /// Whether the shell is done with all it was told: it takes the last line only then. Not every shell does so.
    fn is_idle(&self) -> io::Result<bool> {
        match &self.shell {
            Some(shell) if self.program.ends_with("bash") => {
                Ok(rustix::io::ioctl_fionread(&shell.input)? == 0)
            }
            Some(_) | None => Ok(false),
        }
    }

    fn drain(&mut self, output: &mut Output, buffer: &mut [u8]) -> io::Result<()> {
        // A background job that never stops writing must not keep the command from ending.
        let mut left = rustix::pipe::fcntl_getpipe_size(&self.output)?;
        while left > 0 {
            let Some(count) = read_now(&self.output, buffer)? else { break };
            output.push(&buffer[..count]);
            left = left.saturating_sub(count);
        }
        Ok(())
    }

    fn wait(
        &self,
        wake: Option<&OwnedFd>,
        until: Option<Instant>,
        watch: Watch,
    ) -> io::Result<Ready> {
        let everything = watch == Watch::Everything;
        let events = |watched: bool| if watched { PollFlags::IN } else { PollFlags::empty() };
        let shell = self.shell.as_ref().filter(|_| everything);
        let ended = shell.map_or(self.output.as_fd(), |shell| shell.ended.as_fd());
        loop {
            let mut polled = [
                PollFd::new(&self.output, PollFlags::IN),
                PollFd::new(&self.status, events(everything)),
                PollFd::new(&ended, events(shell.is_some())),
                PollFd::new(wake.unwrap_or(&self.output), events(wake.is_some())),
            ];
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Ready::default());
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut polled, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {
                    let is = |index: usize| polled[index].revents().contains(PollFlags::IN);
                    return Ok(Ready { output: is(0), status: is(1), ended: is(2), woken: is(3) });
                }
            }
        }
    }
}

/// Names of a session's files. That of the command stands in the shell's own messages.
const COMMAND: &str = "bash";
const REPORT: &str = "report";
const OPTIONS: &str = "options";
const OUTPUT: &str = "output";
const STATUS: &str = "status";
const STATE: &str = "state";
const BEGUN: &str = "begun";
/// How a command ends whose shell could not say how.
const UNREPORTED: Ending = Ending::Signalled(libc::SIGKILL);

/// The directory itself, or the nearest one above it that exists.
fn nearest_directory(path: &Path) -> &Path {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"))
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

/// A path as one word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_gone_is_replaced_by_the_nearest() {
        let top = tempfile::tempdir().unwrap();
        assert_eq!(nearest_directory(&top.path().join("a/b")), top.path());
        assert_eq!(nearest_directory(Path::new("")), Path::new("/"));
    }
}
