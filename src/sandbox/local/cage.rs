//! What a process of a sandbox may never do: capabilities and system calls taken away before any model's process runs.

use std::collections::BTreeMap;
use std::io;

use rustix::process::DumpableBehavior;
use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;
use seccompiler::BpfProgram;
use seccompiler::SeccompAction;
use seccompiler::SeccompCmpArgLen;
use seccompiler::SeccompCmpOp;
use seccompiler::SeccompCondition;
use seccompiler::SeccompFilter;
use seccompiler::SeccompRule;

use crate::protocol::setup::Reach;

/// Keeps other processes of the same user from tracing this one or reading its memory and file descriptors.
pub(crate) fn hide_from_tracing() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

/// Most processes and threads of a sandbox: those of a program that starts itself without end are the machine's too.
const PROCESSES: u64 = 4096;

/// Limits the processes of the calling one's user namespace.
pub(crate) fn limit_processes() -> io::Result<()> {
    set_limit(Resource::Nproc, PROCESSES)
}

/// Keeps processes that crash from leaving anything on the machine.
pub(crate) fn forbid_core_dumps() -> io::Result<()> {
    // With exactly one byte neither is a file written nor the machine's own program for crashes started.
    set_limit(Resource::Core, 1)
}

fn set_limit(resource: Resource, limit: u64) -> io::Result<()> {
    let limit = Some(limit);
    Ok(rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })?)
}

/// The capabilities that a container has by default (Docker's set).
pub(crate) fn container_capabilities() -> CapabilitySet {
    CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID
        | CapabilitySet::SETPCAP
        | CapabilitySet::NET_BIND_SERVICE
        | CapabilitySet::NET_RAW
        | CapabilitySet::SYS_CHROOT
        | CapabilitySet::MKNOD
        | CapabilitySet::AUDIT_WRITE
        | CapabilitySet::SETFCAP
}

/// Drops every capability but those `kept`, for this process and all it starts.
pub(crate) fn drop_capabilities(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        // Numbers beyond the kernel's last capability are refused; there is nothing to drop then.
        if !kept.contains(one)
            && rustix::thread::remove_capability_from_bounding_set(one).is_err()
            && number > 40
        {
            break;
        }
    }
    let held = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective & kept,
            permitted: held.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// What keeps a process from the machine besides the filter of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Besides {
    /// Namespaces: what it can name is the sandbox's.
    Namespaces,
    /// Landlock, which leaves sockets, shared memory and other processes' limits to the filter.
    Landlock {
        /// What the sandbox can reach.
        network: Reach,
    },
}

/// Gives up the right to gain privileges and forbids the system calls that change mounts, namespaces, keys and the
/// kernel, and those that would get past what stands around the process besides.
pub(crate) fn forbid_system_calls(besides: Besides) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    for program in programs(besides).map_err(io::Error::other)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

const FORBIDDEN: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_vhangup,
    libc::SYS_kcmp,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Memory, semaphores and messages that processes of the whole machine share.
const SHARED: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// What sockets a network namespace confines. Others, of virtual machines or radios, reach past it.
const CONFINED: &[i32] =
    &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];

const NAMESPACE_FLAGS: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Added to a system call's number by programs of the x32 interface, which is another door to the same calls.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

fn programs(besides: Besides) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> =
        FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    let flags = NAMESPACE_FLAGS.iter().map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        rule(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)
    });
    denied.insert(libc::SYS_clone, flags.collect::<Result<_, _>>()?);
    // Characters pushed into a terminal are read by whoever reads it next, inside the sandbox or outside.
    let terminal = [libc::TIOCSTI, libc::TIOCLINUX]
        .into_iter()
        .map(|request| rule(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request));
    denied.insert(libc::SYS_ioctl, terminal.collect::<Result<_, _>>()?);
    denied.insert(libc::SYS_socket, vec![other_sockets()?]);
    if let Besides::Landlock { network } = besides {
        denied.extend(SHARED.iter().map(|call| (*call, Vec::new())));
        let (word, equal) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
        // Every process that may be signalled, the guest among them.
        denied.insert(
            libc::SYS_kill,
            vec![rule(0, word.clone(), equal.clone(), u64::from(u32::MAX))?],
        );
        // The limits of any process of the same user can be set, and a limit on processor time ends it.
        denied.insert(libc::SYS_prlimit64, vec![rule(0, word.clone(), SeccompCmpOp::Ne, 0)?]);
        // Landlock confines neither sockets with a path, such as those of daemons that run commands for their user,
        // nor other protocols than TCP. Pairs of sockets have another call.
        let sockets = match network {
            Reach::Nothing => Vec::new(),
            Reach::Machine => vec![
                rule(0, word, equal, u64::from(libc::AF_UNIX.unsigned_abs()))?,
                other_sockets()?,
            ],
        };
        denied.insert(libc::SYS_socket, sockets);
    }
    // The flags of clone3 stand in memory that a filter cannot read. "Not implemented" makes libraries use clone.
    let mut absent: BTreeMap<i64, Vec<SeccompRule>> =
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    #[cfg(target_arch = "x86_64")]
    for rules in [&mut denied, &mut absent] {
        let doubled: Vec<_> =
            rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(doubled);
    }
    Ok([program(denied, libc::EPERM)?, program(absent, libc::ENOSYS)?])
}

/// Applies to sockets that no namespace confines.
fn other_sockets() -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = CONFINED.iter().map(|family| {
        let family = u64::from(family.unsigned_abs());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

/// Applies when an argument compares so with a value.
fn rule(
    argument: u8,
    length: SeccompCmpArgLen,
    compare: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, length, compare, value)?])
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: i32,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile() {
        for besides in [
            Besides::Namespaces,
            Besides::Landlock { network: Reach::Nothing },
            Besides::Landlock { network: Reach::Machine },
        ] {
            for program in programs(besides).unwrap() {
                assert!(!program.is_empty());
            }
        }
    }
}
