//! What a process may touch of the machine's files and processes where there is no mount namespace: Landlock.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use landlock::ABI;
use landlock::Access;
use landlock::AccessFs;
use landlock::BitFlags;
use landlock::CompatLevel;
use landlock::Compatible;
use landlock::Ruleset;
use landlock::RulesetAttr;
use landlock::RulesetCreated;
use landlock::RulesetCreatedAttr;
use landlock::Scope;
use landlock::path_beneath_rules;

/// The first version that confines signals; Linux 6.12.
const VERSION: ABI = ABI::V6;
/// Devices that are harmless. Shared memory and terminals are not: they are the whole machine's.
const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Rules that processes can be put under.
pub(crate) struct Fence {
    rules: RulesetCreated,
}

impl Fence {
    /// Rules that let processes write in `folder`, read and execute what is below `readable`, and signal each other.
    /// What is not there is left out.
    pub(crate) fn new(folder: &Path, readable: &[Vec<u8>]) -> io::Result<Self> {
        let read = AccessFs::from_read(VERSION);
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
        let everything: BitFlags<AccessFs> = AccessFs::from_all(VERSION);
        let readable = readable.iter().map(|path| OsStr::from_bytes(path));
        // A kernel that lacks a part of this must refuse: half a fence is none.
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(everything)
            .and_then(|rules| rules.scope(Scope::from_all(VERSION)))
            .and_then(Ruleset::create)
            .and_then(|rules| rules.add_rules(path_beneath_rules([folder], everything & !devices)))
            .and_then(|rules| rules.add_rules(path_beneath_rules(readable, read)))
            .and_then(|rules| {
                let access = AccessFs::from_file(VERSION) & !AccessFs::Execute;
                rules.add_rules(path_beneath_rules(DEVICES, access))
            })
            .and_then(|rules| {
                let list = AccessFs::ReadFile | AccessFs::ReadDir;
                rules.add_rules(path_beneath_rules(["/proc"], list))
            })
            .map_err(io::Error::other)?;
        Ok(Self { rules })
    }

    /// Puts the calling process, which must have one thread, and all it starts under the rules, for good. Each call makes
    /// a group of its own: what a lost guest left cannot be signalled by the next one's processes.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.rules.try_clone()?.restrict_self().map(|_| ()).map_err(io::Error::other)
    }
}

/// Keeps the calling process, which must have one thread, and all it starts from the machine's sockets without a path,
/// such as those of a desktop: in the machine's network namespace they can be reached by name. Before Linux 6.12 it
/// does nothing.
pub(crate) fn confine_sockets() -> io::Result<()> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket)
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self)
        .map(|_| ())
        .map_err(io::Error::other)
}
