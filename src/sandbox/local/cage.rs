//! What a process of a sandbox may never do: capabilities and system calls taken away before any model's process runs.

use std::collections::BTreeMap;
use std::io;

use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;
use seccompiler::BpfProgram;
use seccompiler::SeccompAction;
use seccompiler::SeccompCmpArgLen;
use seccompiler::SeccompCmpOp;
use seccompiler::SeccompCondition;
use seccompiler::SeccompFilter;
use seccompiler::SeccompRule;

/// Keeps other processes of the same user from tracing this one or reading its memory and file descriptors.
pub(crate) fn hide_from_tracing() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

/// Drops every capability that a container has not by default (Docker's set), for this process and all it starts.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let kept = CapabilitySet::CHOWN
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
        | CapabilitySet::SETFCAP;
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

/// Gives up the right to gain privileges and forbids the system calls that change mounts, namespaces, keys and the
/// kernel.
pub(crate) fn forbid_system_calls() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    for program in programs().map_err(io::Error::other)? {
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
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

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

fn programs() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> =
        FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    let flags = NAMESPACE_FLAGS.iter().map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        SeccompRule::new(vec![SeccompCondition::new(
            0,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(flag),
            flag,
        )?])
    });
    denied.insert(libc::SYS_clone, flags.collect::<Result<_, _>>()?);
    // Characters pushed into a terminal are read by whoever reads it next, inside the sandbox or outside.
    let terminal = [libc::TIOCSTI, libc::TIOCLINUX].into_iter().map(|request| {
        SeccompRule::new(vec![SeccompCondition::new(
            1,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            request,
        )?])
    });
    denied.insert(libc::SYS_ioctl, terminal.collect::<Result<_, _>>()?);
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
    #[test]
    fn the_filters_compile() {
        for program in super::programs().unwrap() {
            assert!(!program.is_empty());
        }
    }
}
