//! Where tasks run: sandboxes behind one trait, and the client that talks to the guest inside each.
//!
//! Takes in a [`SandboxSpec`], gives out a connected [`client::Guest`]. It must not know of tasks' answers, models or
//! agents. A backend only creates, connects, tells causes and destroys; all work inside a sandbox is the guest's.

#[cfg(feature = "host")]
pub mod client;
pub mod local;

#[cfg(feature = "host")]
pub use host::*;

#[cfg(feature = "host")]
mod host {
    use std::path::PathBuf;

    use async_trait::async_trait;

    use crate::protocol::operation::SessionStart;
    use crate::sandbox::client::Guest;

    /// Makes sandboxes of one kind.
    #[async_trait]
    pub trait Backend: Send + Sync {
        /// The isolation its sandboxes have, for tables and manifests.
        fn isolation(&self) -> Isolation;

        /// Makes a sandbox.
        ///
        /// # Errors
        /// When the machine refuses, or something the spec names is missing.
        async fn create(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError>;
    }

    /// One sandbox.
    ///
    /// ```no_run
    /// # use patchgym::sandbox::{Backend, SandboxSpec, SandboxError};
    /// # async fn pwd(backend: &dyn Backend) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sandbox = backend.create(&SandboxSpec::default()).await?;
    /// let guest = sandbox.connect().await?;
    /// guest.open_session("main", &sandbox.place().shell()).await?;
    /// let result = guest.run("main", b"pwd", std::time::Duration::from_secs(5), 1000).await?;
    /// assert_eq!(result.head, format!("{}\n", sandbox.place().workdir).as_bytes());
    /// sandbox.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[async_trait]
    pub trait Sandbox: Send + Sync {
        /// Where things are in it.
        fn place(&self) -> &Place;

        /// Starts a guest and connects to it; again after the one before was lost.
        ///
        /// # Errors
        /// When the sandbox itself is gone.
        async fn connect(&mut self) -> Result<Guest, SandboxError>;

        /// Says why the last guest was lost.
        async fn post_mortem(&mut self) -> Cause;

        /// Ends every process of the sandbox and removes all of it.
        ///
        /// # Errors
        /// When something could not be removed.
        async fn close(self: Box<Self>) -> Result<(), SandboxError>;
    }

    /// Where things are in a sandbox. Without a mount namespace that is not where the spec says.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Place {
        /// Where commands start.
        pub workdir: String,
        /// The guest's own directory.
        pub private: String,
        /// Environment of its shells.
        pub env: Vec<(String, String)>,
    }

    impl Place {
        /// What a new shell starts with.
        pub fn shell(&self) -> SessionStart {
            SessionStart { cwd: self.workdir.clone(), env: self.env.clone(), exports: Vec::new() }
        }
    }

    /// What a sandbox is to be.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SandboxSpec {
        /// What its file system starts from.
        pub root: Root,
        /// Where commands start.
        pub workdir: String,
        /// Directories of the machine put into it.
        pub mounts: Vec<Mount>,
        /// Environment of its shells, added to the defaults.
        pub env: Vec<(String, String)>,
        /// Directories put before the others in `PATH`.
        pub path: Vec<String>,
        /// What it can reach.
        pub network: Network,
        /// Most bytes that can be written in it.
        pub disk: u64,
    }

    impl Default for SandboxSpec {
        fn default() -> Self {
            Self {
                root: Root::System,
                workdir: "/testbed".into(),
                mounts: Vec::new(),
                env: Vec::new(),
                path: Vec::new(),
                network: Network::None,
                disk: 4 << 30,
            }
        }
    }

    impl SandboxSpec {
        /// The environment a shell of this sandbox starts with: fixed locale and time zone, no pagers, editors,
        /// colours or progress bars, nothing of the machine's.
        pub fn environment(&self) -> Vec<(String, String)> {
            const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
            let path =
                self.path.iter().map(String::as_str).chain([PATH]).collect::<Vec<_>>().join(":");
            let defaults = [
                ("PATH", path.as_str()),
                ("HOME", "/root"),
                ("USER", "root"),
                ("LOGNAME", "root"),
                ("SHELL", "/bin/bash"),
                ("LANG", "C.UTF-8"),
                ("LC_ALL", "C.UTF-8"),
                ("TZ", "UTC"),
                ("TERM", "dumb"),
                ("NO_COLOR", "1"),
                ("PAGER", "cat"),
                ("MANPAGER", "cat"),
                ("GIT_PAGER", "cat"),
                ("GIT_EDITOR", "true"),
                ("EDITOR", "true"),
                ("VISUAL", "true"),
                ("GIT_TERMINAL_PROMPT", "0"),
                ("DEBIAN_FRONTEND", "noninteractive"),
                ("PIP_PROGRESS_BAR", "off"),
                ("PIP_NO_INPUT", "1"),
                ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
                ("TQDM_DISABLE", "1"),
            ];
            let mut environment: Vec<(String, String)> =
                defaults.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            for (name, value) in &self.env {
                environment.retain(|(known, _)| known != name);
                environment.push((name.clone(), value.clone()));
            }
            environment
        }
    }

    /// What a sandbox's file system starts from.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Root {
        /// The machine's system directories, without homes, credentials and sockets.
        System,
        /// A directory that holds a root file system.
        Directory(PathBuf),
    }

    /// A directory of the machine in a sandbox.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Mount {
        /// The directory on the machine.
        pub source: PathBuf,
        /// Absolute path in the sandbox.
        pub target: String,
        /// What writing to it does.
        pub access: Access,
    }

    /// What writing to a mounted directory does.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Access {
        /// Fails.
        ReadOnly,
        /// Changes the sandbox's own copy.
        CopyOnWrite,
    }

    /// What a sandbox can reach over the network.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Network {
        /// Its own loopback.
        None,
        /// What the machine can reach.
        Full,
    }

    impl Network {
        /// The stable word for it.
        pub fn name(self) -> &'static str {
            match self {
                Network::None => "none",
                Network::Full => "full",
            }
        }

        /// The word for it where sandboxes of this isolation are recorded: without any, nothing keeps a sandbox from
        /// the network.
        pub fn recorded(self, isolation: Isolation) -> &'static str {
            match (self, isolation) {
                (Network::None, Isolation::Nothing) => "none (not enforced)",
                (
                    Network::None | Network::Full,
                    Isolation::Namespaces | Isolation::Landlock | Isolation::Nothing,
                ) => self.name(),
            }
        }
    }

    /// What keeps a sandbox apart from the machine, strongest first.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Isolation {
        /// Namespaces, overlays, dropped capabilities, seccomp.
        Namespaces,
        /// Landlock and seccomp on a copy in a folder. Of the machine's files, those of programs can be read, and no
        /// contents written; permissions, owners and times of the caller's own files can be changed, and names of
        /// processes be seen. No sockets but pairs, and no limits on memory and disk.
        Landlock,
        /// A copy of the repository and nothing else.
        Nothing,
    }

    impl Isolation {
        /// The stable word for it.
        pub fn name(self) -> &'static str {
            match self {
                Isolation::Namespaces => "namespaces",
                Isolation::Landlock => "landlock",
                Isolation::Nothing => "none",
            }
        }
    }

    /// Why a guest was lost.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Cause {
        /// A signal ended it.
        GuestSignalled(i32),
        /// It ended by itself.
        GuestExited,
        /// The whole sandbox is gone.
        SandboxGone,
    }

    /// Why a sandbox could not be made or used: an infrastructure error, never shown to a model.
    #[derive(Debug, thiserror::Error)]
    pub enum SandboxError {
        /// The machine refused while it was built.
        #[error("create sandbox: {what}: {source}")]
        Create {
            /// What was being done.
            what: String,
            /// The system's answer.
            source: std::io::Error,
        },
        /// The spec asks for what a sandbox without namespaces cannot have.
        #[error("create sandbox: {0} takes `--isolation namespaces`")]
        NeedsNamespaces(String),
        /// The kernel has no Landlock, or something keeps it from being used.
        #[error("create sandbox: Landlock is refused: {0}")]
        NoLandlock(std::io::Error),
        /// The kernel's Landlock does not confine signals.
        #[error(
            "create sandbox: Landlock of this kernel (version {0}) does not confine signals; that of Linux 6.12 does"
        )]
        SignalsUnconfined(i64),
        /// Its folder could not be removed.
        #[error("remove sandbox: {0}")]
        Remove(std::io::Error),
        /// A directory that was to be put into it is missing.
        #[error("create sandbox: {0} does not exist")]
        MissingSource(PathBuf),
        /// A program that the task needs is not on this machine.
        #[error("find `{0}` on this machine")]
        MissingProgram(String),
        /// The sandbox ended.
        #[error("use sandbox: it is gone")]
        Gone,
        /// The guest did not answer in time, or not sensibly.
        #[error("use sandbox: {0}")]
        Guest(String),
    }
}
