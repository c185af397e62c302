//! What the host tells a sandbox's init, and what init tells the host, over the control socket.
//!
//! The frames are those of [`crate::protocol::wire`]. The host sends one [`Setup`], then a [`ToInit`] per request.

use serde::Deserialize;
use serde::Serialize;

/// How a local sandbox is to be built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// What keeps the sandbox apart from the machine.
    pub walls: Walls,
    /// What stands in it, in the order it is put there; nothing but with namespaces.
    pub layers: Vec<Layer>,
    /// Most bytes that can be written, all directories together; with namespaces.
    pub disk: u64,
    /// Most bytes of the guest's private directory; with namespaces.
    pub private: u64,
    /// Where commands start.
    pub workdir: String,
}

/// What keeps the sandbox apart from the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Walls {
    /// Namespaces and overlays.
    Namespaces {
        /// Which ids of the machine the sandbox's users have.
        ids: Ids,
        /// What the sandbox can reach.
        network: Reach,
    },
    /// Landlock and seccomp around a folder of the machine.
    Landlock {
        /// The folder, which can be written. It is removed when the sandbox ends.
        folder: String,
        /// Files and directories of the machine that can be read and executed.
        readable: Vec<Vec<u8>>,
        /// What the sandbox can reach.
        network: Reach,
    },
    /// Nothing.
    None {
        /// The sandbox's folder, removed when it ends.
        folder: String,
    },
}

/// Which ids of the machine the sandbox's users have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ids {
    /// Root in the sandbox is the calling user; there is no other.
    Caller,
    /// Users 0 to 65535 of the sandbox are this id and the following ones, which nobody on the machine has.
    Range(u32),
}

/// What a sandbox can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// Its own loopback.
    Nothing,
    /// What the machine can reach.
    Machine,
}

/// Something that stands in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Absolute path in the sandbox; missing parents are made.
    pub target: String,
    /// What stands there.
    pub content: Content,
}

/// What stands at a path of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// A directory of the machine, shared until it is written to.
    Overlay {
        /// The directory.
        source: Vec<u8>,
        /// Paths below it that are taken away.
        hide: Vec<Vec<u8>>,
    },
    /// A directory or file of the machine that cannot be written.
    ReadOnly {
        /// The directory or file.
        source: Vec<u8>,
        /// Paths below it that are taken away.
        hide: Vec<Vec<u8>>,
    },
    /// An empty directory with these permission bits.
    Directory(u32),
    /// A small file.
    File(Vec<u8>),
    /// A symbolic link to this path.
    Symlink(Vec<u8>),
}

/// Host to init, after the [`Setup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// Start a guest; its stream is the file descriptor that comes with the next byte.
    StartGuest,
}

/// Init to host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// The sandbox stands.
    Ready,
    /// It could not be built, or a guest could not be started.
    Failed {
        /// What was being done.
        what: String,
        /// The system's error number; 0 when there is none.
        errno: i32,
    },
    /// A guest ended.
    GuestEnded {
        /// Which one, counted from 1.
        number: u64,
        /// The signal that ended it; 0 when it exited.
        signal: i32,
    },
}
