//! A persistent shell that cannot desynchronise.
//!
//! A command is never typed at a prompt: it is written to a file that the shell sources. When the shell is done with
//! it, exit status, working directory and exports come back through a named pipe with a number that belongs to this
//! command alone. The end of a command is never looked for in its output. When the shell itself ends (`exit`, `exec`,
//! a signal), its wait status is the command's, and the next command gets a new shell with the last known state.

use fs_err::os::unix::fs::OpenOptionsExt as _;
use std::io;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
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
use rustix::fs::OFlags;
use rustix::process::PidfdFlags;
use rustix::process::Signal;

use crate::guest::cancel::Cancel;
use crate::guest::output::Output;
use crate::guest::processes;
use crate::protocol::wire::CommandResult;
use crate::protocol::wire::Ending;
use crate::protocol::wire::SessionStart;

/// Time between asking processes to end and ending them, so that they can say where they were.
const GRACE: Duration = Duration::from_millis(300);
/// Bytes of late output that are kept.
const LATE: usize = 16 << 10;
/// Most bytes of a status report; a longer one is not the shell's.
const MAX_REPORT: usize = 8 << 20;

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
    directory: PathBuf,
    program: &'static str,
    env: Vec<(String, String)>,
    state: State,
    shell: Option<Shell>,
    output: OwnedFd,
    output_end: OwnedFd,
    status: OwnedFd,
    late: Output,
    commands: u64,
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

/// What a session's loop waits for.
enum Ready {
    Output,
    Status,
    Ended,
    Woken,
    Time,
}

impl Session {
    /// Opens a session whose files live in `directory`.
    pub(crate) fn open(directory: &Path, start: SessionStart) -> io::Result<Self> {
        // After a loss of the guest the directory is still there, with a pipe an old shell may write to.
        match fs_err::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let status_path = directory.join("status");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &status_path,
            rustix::fs::Mode::from_raw_mode(0o600),
        )?;
        // Opened for both directions, so that it neither blocks nor ends while no shell has it open.
        let status = fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default())
            .open(&status_path)?;
        let (output, output_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        // A large pipe means fewer switches between a command and this reader. The default will do where it is refused.
        let _ = rustix::pipe::fcntl_setpipe_size(&output, 1 << 20);
        let program = ["/bin/bash", "/usr/bin/bash", "/bin/sh"]
            .into_iter()
            .find(|path| Path::new(path).exists())
            .unwrap_or("/bin/sh");
        Ok(Self {
            directory: directory.to_owned(),
            program,
            env: start.env,
            state: State { cwd: start.cwd, exports: start.exports },
            shell: None,
            output,
            output_end,
            status: status.into_parts().0.into(),
            late: Output::new(LATE),
            commands: 0,
        })
    }

    /// Keeps background jobs from blocking on a full pipe until `wake` is readable.
    pub(crate) fn idle(&mut self, wake: &OwnedFd) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.wait(Some(wake), None, Instruments { shell: false, status: false })? {
                Ready::Output => {
                    if let Some(count) = read_now(&self.output, &mut buffer)? {
                        self.late.push(&buffer[..count]);
                    }
                }
                Ready::Woken | Ready::Status | Ready::Ended | Ready::Time => return Ok(()),
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
        self.drain_late()?;
        let late = std::mem::replace(&mut self.late, Output::new(LATE));
        fs_err::write(self.directory.join("bash"), &job.command)?;
        self.ensure_shell()?;
        let spared = processes::all();
        let mut output = Output::new(job.keep);
        let nonce = self.begin()?;
        let deadline = job.limit.map(|limit| started + limit);
        let mut report = Vec::new();
        let mut buffer = vec![0; 256 << 10];
        let ending = loop {
            match self.wait(Some(wake), deadline, Instruments { shell: true, status: true })? {
                Ready::Output => {
                    if let Some(count) = read_now(&self.output, &mut buffer)? {
                        output.push(&buffer[..count]);
                    }
                }
                Ready::Status => {
                    if let Some(count) = read_now(&self.status, &mut buffer)? {
                        report.extend_from_slice(&buffer[..count]);
                    }
                    if let Some((code, state)) = parse_report(&report, nonce) {
                        self.state = state;
                        break Ending::Exited(code);
                    }
                    if report.len() > MAX_REPORT {
                        break self.end_all(&spared, &mut output, &mut buffer)?;
                    }
                }
                Ready::Ended => break self.reap()?,
                Ready::Woken if !cancel.check().is_err() => {
                    let _ = rustix::io::read(wake, &mut [0; 8]);
                }
                Ready::Woken | Ready::Time => {
                    break self.end_all(&spared, &mut output, &mut buffer)?;
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

    /// Tells the shell to source the command file; gives the number its report will carry.
    fn begin(&mut self) -> io::Result<u64> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let nonce = u64::from_le_bytes(random);
        let Some(shell) = &mut self.shell else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let file = self.directory.join("bash");
        let line = format!(
            "{{ . {}; }} <&8 >&9 2>&9 8<&- 9>&-; __patchgym_done $? {nonce}\n",
            file.display()
        );
        match shell.input.write_all(line.as_bytes()) {
            // A shell that ended meanwhile is seen by its wait status.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.commands += 1;
        Ok(nonce)
    }

    fn ensure_shell(&mut self) -> io::Result<()> {
        if let Some(shell) = &mut self.shell
            && shell.child.try_wait()?.is_none()
        {
            return Ok(());
        }
        self.shell = None;
        // What an earlier shell left unread belongs to no command.
        let mut buffer = vec![0; 64 << 10];
        while read_now(&self.status, &mut buffer)?.is_some() {}
        let exports = self.directory.join("exports");
        fs_err::write(&exports, &self.state.exports)?;
        let mut command = Command::new(self.program);
        if self.program.ends_with("bash") {
            command.args(["--noprofile", "--norc"]);
        }
        command
            .arg("-s")
            .env_clear()
            .current_dir(if Path::new(&self.state.cwd).is_dir() { &self.state.cwd } else { "/" })
            .stdin(Stdio::piped())
            .stdout(self.output_end.try_clone()?)
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
        input.write_all(include_bytes!("session.sh"))?;
        let status = self.directory.join("status");
        input.write_all(
            format!("__patchgym_status={}\n. {}\n", status.display(), exports.display()).as_bytes(),
        )?;
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
        spared: &std::collections::HashSet<i32>,
        output: &mut Output,
        buffer: &mut [u8],
    ) -> io::Result<Ending> {
        let mut spared = spared.clone();
        if let Some(shell) = &self.shell {
            spared.remove(&i32::try_from(shell.child.id()).unwrap_or_default());
        }
        // An interrupt makes many programs tell where they were. The shell would start its next line: it is stopped.
        if let Some(shell) = &self.shell {
            let _ = rustix::process::pidfd_send_signal(&shell.ended, Signal::STOP);
        }
        processes::signal_others(&spared, Signal::INT);
        let deadline = Instant::now() + GRACE;
        while let Ready::Output =
            self.wait(None, Some(deadline), Instruments { shell: false, status: false })?
        {
            if let Some(count) = read_now(&self.output, buffer)? {
                output.push(&buffer[..count]);
            }
        }
        processes::end_others(&spared);
        if let Some(mut shell) = self.shell.take() {
            let _ = shell.child.kill();
            shell.child.wait()?;
        }
        Ok(Ending::TimedOut)
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

    fn drain_late(&mut self) -> io::Result<()> {
        let mut late = std::mem::take(&mut self.late);
        let mut buffer = vec![0; 64 << 10];
        self.drain(&mut late, &mut buffer)?;
        self.late = late;
        Ok(())
    }

    fn wait(
        &self,
        wake: Option<&OwnedFd>,
        deadline: Option<Instant>,
        watched: Instruments,
    ) -> io::Result<Ready> {
        let nothing = PollFlags::empty();
        let readable = PollFlags::IN;
        loop {
            let watched_shell = self.shell.as_ref().filter(|_| watched.shell);
            let watch_shell = watched_shell.is_some();
            let shell = watched_shell.map_or(self.output.as_fd(), |shell| shell.ended.as_fd());
            let mut polled = [
                PollFd::new(&self.output, readable),
                PollFd::new(&self.status, if watched.status { readable } else { nothing }),
                PollFd::new(&shell, if watch_shell { readable } else { nothing }),
                PollFd::new(
                    wake.unwrap_or(&self.output),
                    if wake.is_some() { readable } else { nothing },
                ),
            ];
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Ready::Time);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut polled, left.as_ref()) {
                Ok(0) => return Ok(Ready::Time),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let is = |index: usize| polled[index].revents().contains(readable);
            // The report comes first: a job that floods the output must not hide that the command is done.
            if watched.status && is(1) {
                return Ok(Ready::Status);
            }
            if wake.is_some() && is(3) {
                return Ok(Ready::Woken);
            }
            if is(0) {
                return Ok(Ready::Output);
            }
            if watch_shell && is(2) {
                return Ok(Ready::Ended);
            }
        }
    }
}

/// Which events besides output a wait is for.
#[derive(Clone, Copy)]
struct Instruments {
    shell: bool,
    status: bool,
}

/// Reads what is there without waiting; `None` when nothing is.
fn read_now(source: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::io::read(source, buffer) {
        Ok(0) | Err(rustix::io::Errno::AGAIN) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(rustix::io::Errno::INTR) => Ok(Some(0)),
        Err(error) => Err(error.into()),
    }
}

/// Reads `NONCE STATUS\nCWD\n\0EXPORTS\0NONCE\n`, once it is all there.
fn parse_report(report: &[u8], nonce: u64) -> Option<(i32, State)> {
    let nonce = nonce.to_string();
    let end = [b"\0", nonce.as_bytes(), b"\n"].concat();
    let body = report.strip_suffix(end.as_slice())?;
    let start = find(body, [nonce.as_bytes(), b" "].concat().as_slice())?;
    let body = &body[start + nonce.len() + 1..];
    let (code, body) = split(body, b'\n')?;
    let (cwd, exports) = split(body, 0)?;
    let cwd = cwd.strip_suffix(b"\n").unwrap_or(cwd);
    let code = std::str::from_utf8(code).ok()?.parse().ok()?;
    Some((
        code,
        State { cwd: String::from_utf8_lossy(cwd).into_owned(), exports: exports.to_vec() },
    ))
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn split(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = bytes.iter().position(|byte| *byte == at)?;
    Some((&bytes[..index], &bytes[index + 1..]))
}
