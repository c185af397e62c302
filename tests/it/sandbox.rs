//! What a sandbox keeps apart, what it leaves, and how it comes back. All of it as root's and as an ordinary user's.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::io::BufReader;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use patchgym::protocol::operation::Ending;
use patchgym::protocol::operation::SessionStart;
use patchgym::sandbox::Access;
use patchgym::sandbox::Backend;
use patchgym::sandbox::Cause;
use patchgym::sandbox::Mount;
use patchgym::sandbox::Network;
use patchgym::sandbox::Root;
use patchgym::sandbox::SandboxError;
use patchgym::sandbox::SandboxSpec;
use patchgym::sandbox::local::backend::Local;

use crate::killed::wait_until;
use crate::world::KEEP;
use crate::world::LIMIT;
use crate::world::Opened;
use crate::world::has;
use crate::world::sh;
use crate::world::text_of;

/// Set for tests that this program runs in a process of its own; says where they work.
const ROLE: &str = "PATCHGYM_TEST_ROLE";

async fn plain() -> Opened {
    Opened::new(&SandboxSpec::default()).await
}

/// A command that runs one ignored test of this program.
fn itself(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

#[test]
fn the_same_holds_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: the tests already run as an ordinary user");
        return;
    }
    if !has("setpriv") {
        return;
    }
    // The toolchain may lie in a closed home, and so may this program.
    let folder =
        tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let program = folder.path().join("it");
    fs_err::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let home = folder.path().join("home");
    fs_err::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["sandbox::", "--test-threads=2"])
        .current_dir(&home)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("test sandbox::nothing_of_the_machine_can_be_changed ... ok"), "{said}");
}

#[tokio::test]
async fn nothing_of_the_machine_can_be_changed() {
    let watched = [
        "/dev/null",
        "/dev/random",
        "/etc",
        "/etc/passwd",
        "/opt",
        "/usr",
        "/usr/bin",
        "/usr/bin/env",
        "/home",
        "/root",
        "/var/tmp",
    ];
    let look = || {
        let files = watched.map(|path| {
            let metadata = fs_err::metadata(path).ok()?;
            Some((
                metadata.mode(),
                metadata.uid(),
                metadata.mtime(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            ))
        });
        let settings = ["core_pattern", "hostname", "domainname", "modprobe", "randomize_va_space"]
            .map(|name| fs_err::read_to_string(format!("/proc/sys/kernel/{name}")).ok());
        (files, settings, fs_err::read_to_string("/proc/self/mountinfo").unwrap())
    };
    let before = look();
    let opened = plain().await;
    // What the sandbox's root may do, it does to the sandbox's own files.
    opened
        .run(
            "for place in /etc /usr /usr/bin /opt /home /root /tmp /var /var/tmp /srv /mnt /run /testbed /dev/shm; do
                 echo x >$place/patchgym-was-here
             done; echo 0 >/etc/passwd; chmod 777 /usr/bin/env /usr; touch /usr/bin; rm -rf /usr/share/doc",
        )
        .await;
    for attempt in [
        "echo x >/proc/sys/kernel/core_pattern",
        "echo x >/proc/sys/kernel/modprobe",
        "echo x >/proc/sys/kernel/hostname",
        "echo 0 >/proc/sys/kernel/randomize_va_space",
        "echo 1 >/proc/sys/vm/drop_caches",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
        "echo x >/proc/sysrq-trigger",
        "mkdir /proc/sys/x",
        "chmod 777 /proc/sys/kernel/core_pattern",
        "mount -t proc proc /mnt",
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "umount -l /proc/sys",
        "umount /etc/shadow",
        "rm /etc/shadow",
        "mv /etc/shadow /etc/seen",
        "mv /proc/sys /proc/seen",
        "mv /etc /seen",
        "rmdir /run/patchgym/pristine /proc/acpi",
        "pivot_root / /mnt",
        "unshare --mount true",
        "unshare --user --map-root-user true",
        "unshare --net true",
        "nsenter --target 1 --mount true",
        "nsenter --target 1 --user true",
        "mknod /mnt/disk b 8 0",
        "mknod /mnt/memory c 1 1",
        "mknod /mnt/kmsg c 1 11",
        "chown 1 /dev/null",
        "chmod 700 /dev/null",
        "touch /dev/null",
        "rm /dev/null",
        "hostname outside",
        "date --set 2001-01-01",
        "dmesg",
        "swapoff -a && swapon /dev/zero",
        "cat /dev/kmsg",
        "cat /dev/mem",
        "ls -d /dev/[shv]d[a-z]* /dev/nvme*",
        "ip link set lo down",
        "ip addr add 10.0.0.1/8 dev lo",
    ] {
        let (ending, text) = opened.run(attempt).await;
        assert!(matches!(ending, Ending::Exited(1..)), "{attempt}: {ending:?} {text}");
    }
    opened.close().await;
    assert_eq!(look(), before);
    for place in [
        "/etc", "/usr", "/usr/bin", "/opt", "/home", "/root", "/tmp", "/var", "/srv", "/mnt",
        "/run", "/dev/shm",
    ] {
        assert!(!Path::new(place).join("patchgym-was-here").exists(), "{place}");
    }
}

#[tokio::test]
async fn system_calls_that_reach_past_the_walls_are_refused() {
    if !has("perl") {
        return;
    }
    let opened = plain().await;
    let refused = |call: i64, arguments: &str| {
        format!("perl -e '$! = 0; syscall({call}{arguments}); print $! + 0'")
    };
    let namespaces = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWUSER | libc::SIGCHLD,
    ];
    let mut attempts: Vec<(String, i32)> = namespaces
        .iter()
        .map(|flags| (refused(libc::SYS_clone, &format!(", {flags}, 0, 0, 0, 0")), libc::EPERM))
        .collect();
    attempts.push((refused(libc::SYS_clone3, ", 0, 0"), libc::ENOSYS));
    for call in [
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_fsopen,
        libc::SYS_mount_setattr,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_open_by_handle_at,
        libc::SYS_io_uring_setup,
        libc::SYS_syslog,
        libc::SYS_init_module,
        libc::SYS_kexec_load,
        libc::SYS_reboot,
    ] {
        attempts.push((refused(call, ", 0, 0, 0, 0, 0"), libc::EPERM));
        #[cfg(target_arch = "x86_64")]
        // The same call by the numbers of the x32 interface.
        attempts.push((refused(call | 0x4000_0000, ", 0, 0, 0, 0, 0"), libc::EPERM));
    }
    for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH, libc::AF_CAN, libc::AF_RDS] {
        attempts.push((refused(libc::SYS_socket, &format!(", {family}, 1, 0")), libc::EPERM));
    }
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        attempts.push((refused(libc::SYS_socket, &format!(", {family}, 1, 0")), 0));
    }
    attempts.push((refused(libc::SYS_ioctl, &format!(", 0, {}, 0", libc::TIOCSTI)), libc::EPERM));
    let all: Vec<&str> = attempts.iter().map(|(command, _)| command.as_str()).collect();
    let said = opened.ok(&all.join("; echo; ")).await;
    let seen: Vec<&str> = said.lines().collect();
    assert_eq!(seen.len(), attempts.len(), "{said}");
    for ((command, errno), seen) in attempts.iter().zip(seen) {
        assert_eq!(seen, errno.to_string(), "{command}");
    }
    opened.close().await;
}

#[tokio::test]
async fn nothing_of_the_machine_can_be_seen() {
    let opened = plain().await;
    let status = opened.ok("cat /proc/self/status").await;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        assert_eq!(field(set), "00000000a80425fb", "{set}");
    }
    for set in ["CapInh:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".into(), "2".into()));
    // Limits on processes, and on crashes, which would start a program of the machine.
    assert_eq!(opened.ok("ulimit -u; ulimit -c").await, "4096\n0");

    // Processes: only those of the sandbox, by their own numbers.
    let processes = opened.ok("ls /proc | grep -c '^[0-9]'").await.parse::<u32>().unwrap();
    assert!(processes < 10, "{processes}");
    let own = std::env::current_exe().unwrap();
    let commands = opened.ok("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
    assert!(!commands.contains(own.to_str().unwrap()), "{commands}");

    // Mounts: none whose place on the machine is told, besides devices.
    let mounts = opened.ok("cat /proc/self/mountinfo").await;
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let kind = fields.iter().skip_while(|field| **field != "-").nth(1).unwrap();
        let known = ["overlay", "tmpfs", "proc", "devpts", "devtmpfs"];
        assert!(known.contains(kind), "{line}");
        assert!(*kind != "devtmpfs" || fields[4].starts_with("/dev/"), "{line}");
    }
    assert_eq!(opened.ok("cat /proc/self/cgroup | sed 's/.*://' | sort -u").await, "/");

    // Devices and the kernel.
    let devices = opened.ok("for file in /dev/* /dev/*/*; do if [ ! -L $file ] && { [ -b $file ] || [ -c $file ]; }; then echo $file; fi; done; true").await;
    assert_eq!(
        devices.lines().filter(|line| !line.contains("pt")).collect::<Vec<_>>(),
        ["/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"]
    );
    assert_eq!(opened.ok("ls -A /sys /proc/bus /proc/acpi").await.matches(':').count(), 3);
    for path in ["partitions", "diskstats", "cmdline", "keys", "sys/kernel/core_pattern"] {
        assert_eq!(opened.ok(&format!("cat /proc/{path}")).await, "", "{path}");
    }
    assert_eq!(opened.ok("uname -n").await, "sandbox");

    // Files: no home, no credentials, no sockets, no environment.
    let readable = opened
        .ok("cat /etc/shadow /etc/gshadow /etc/gitconfig /etc/machine-id 2>/dev/null || true")
        .await;
    assert_eq!(readable, "");
    assert_eq!(
        opened
            .ok("ls -A /home /etc/ssh /etc/ssl/private 2>/dev/null | grep -v : || true")
            .await
            .trim(),
        ""
    );
    assert_eq!(opened.ok("ls -A /run").await, "patchgym");
    let home = std::env::var("HOME").unwrap();
    let at_home: BTreeSet<String> = fs_err::read_dir(&home)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let seen = opened.ok(&format!("ls -A {home} /root 2>/dev/null || true")).await;
    for name in seen.lines() {
        assert!(!at_home.contains(name), "{name}");
    }
    assert_eq!(
        opened.ok("find / -xdev -type s 2>/dev/null; find /etc /opt /usr/local -type s").await,
        ""
    );
    let environment =
        opened.ok("env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; true").await;
    assert!(
        !environment.contains("CARGO") && !environment.contains(&home.replace("/root", "//")),
        "{environment}"
    );
    opened.close().await;
}

#[tokio::test]
async fn what_is_to_be_hidden_is_not_there() {
    let taken = ["/usr/bin/yes", "/usr/share/doc"];
    let backend = Local::new().hiding(taken.map(Into::into));
    let mut sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    let guest = sandbox.connect().await.unwrap();
    guest.open_session("main", &sandbox.place().shell()).await.unwrap();
    let opened = Opened { sandbox, guest };
    let look = "cat /usr/bin/yes; ls -A /usr/share/doc 2>/dev/null; wc -c </usr/bin/env";
    assert_ne!(opened.ok(look).await, "0");
    assert_eq!(opened.ok("cat /usr/bin/yes; ls -A /usr/share/doc 2>/dev/null || true").await, "");
    opened.close().await;
}

#[tokio::test]
async fn the_guest_cannot_be_traced_or_read() {
    if !has("perl") {
        return;
    }
    let opened = plain().await;
    for process in ["1", "$PPID"] {
        for file in [
            "mem", "environ", "maps", "fd/", "root/", "cwd/", "exe", "ns/mnt", "stack", "syscall",
            "auxv",
        ] {
            let (ending, text) = opened
                .run(&format!("ls /proc/{process}/{file} && cat /proc/{process}/{file}"))
                .await;
            assert!(matches!(ending, Ending::Exited(1..)), "{process} {file}: {text}");
        }
        let call = |number: i64, rest: &str| {
            format!("perl -e '$! = 0; syscall({number}, {rest}); print $! + 0' {process}")
        };
        // PTRACE_ATTACH and PTRACE_SEIZE.
        for request in ["16", "16902"] {
            let said =
                opened.ok(&call(libc::SYS_ptrace, &format!("{request}, $ARGV[0] + 0, 0, 0"))).await;
            assert_eq!(said, libc::EPERM.to_string(), "{process}");
        }
        let read = opened
            .ok(&format!(
                "perl -e '$b = \"x\" x 64; $v = pack(\"QQ\", unpack(\"Q\", pack(\"p\", $b)), 64); $! = 0;
                 syscall({}, $ARGV[0] + 0, $v, 1, $v, 1, 0); print $! + 0' {process}",
                libc::SYS_process_vm_readv
            ))
            .await;
        assert_eq!(read, libc::EPERM.to_string(), "{process}");
        let taken = opened
            .ok(&format!(
                "perl -e '$p = syscall({}, $ARGV[0] + 0, 0); $! = 0; syscall({}, $p, 0, 0); print $! + 0' {process}",
                libc::SYS_pidfd_open,
                libc::SYS_pidfd_getfd
            ))
            .await;
        assert_eq!(taken, libc::EPERM.to_string(), "{process}");
    }
    // Init withstands every signal from inside.
    opened.ok("kill -9 1; kill -STOP 1; kill -TERM 1").await;
    assert_eq!(opened.ok("kill -0 1 && echo there").await, "there");
    opened.close().await;
}

#[tokio::test]
async fn set_user_id_gains_nothing() {
    let opened = plain().await;
    let (ending, _) = opened.run("setpriv --reuid=1000 --clear-groups true").await;
    if ending != Ending::Exited(0) {
        println!("in part skipped: an ordinary user's sandbox has one user only");
    } else {
        let said = opened
            .ok("cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && setpriv --reuid=1000 --clear-groups /tmp/id -u")
            .await;
        assert_eq!(said, "1000");
    }
    let bounding =
        "cp /bin/cat /tmp/cat && chmod 4755 /tmp/cat && /tmp/cat /proc/self/status | grep CapEff";
    assert_eq!(opened.ok(bounding).await, "CapEff:\t00000000a80425fb");
    let mounts = opened.ok("cut -d' ' -f5,6 /proc/self/mountinfo").await;
    assert!(mounts.lines().all(|line| line.contains("nosuid")), "{mounts}");
    opened.close().await;
}

#[tokio::test]
async fn the_network_is_what_the_policy_says() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("(exec 3<>/dev/tcp/127.0.0.1/{port})");
    let opened = plain().await;
    assert!(matches!(opened.run(&connect).await.0, Ending::Exited(1..)));
    assert_eq!(opened.ok("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo");
    assert_eq!(opened.ok("tail -n +2 /proc/net/route; tail -n +2 /proc/net/unix").await, "");
    let (ending, text) = opened.run("(exec 3<>/dev/tcp/192.0.2.1/80)").await;
    assert!(ending == Ending::Exited(1) && text.contains("unreachable"), "{text}");
    if has("perl") {
        let own = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\") or die;
            $c = IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", PeerPort => $s->sockport) or die; print $c \"over\\n\"; close $c;
            print $s->accept->getline'";
        assert_eq!(opened.ok(own).await, "over");
    }
    opened.close().await;
    let opened =
        Opened::new(&SandboxSpec { network: Network::Full, ..SandboxSpec::default() }).await;
    opened.ok(&connect).await;
    if has("perl") {
        // Sockets without a path, such as those of a desktop, are in the machine's namespace too.
        let name = format!("patchgym-{}", fastrand::u64(..));
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let own = format!(
            "perl -MSocket -e 'socket($s, PF_UNIX, SOCK_STREAM, 0); $! = 0; connect($s, pack(\"Sa*\", AF_UNIX, \"\\0{name}\")); print $! + 0'"
        );
        assert_eq!(sh(Path::new("/"), &own), "0");
        let said = opened.ok(&own).await;
        assert!(said == libc::EPERM.to_string() || !landlock(), "{said}");
    }
    let resolved = fs_err::read_to_string("/etc/resolv.conf").unwrap_or_default();
    assert_eq!(
        opened.ok("cat /etc/resolv.conf 2>/dev/null || true").await,
        resolved.trim_end_matches('\n')
    );
    opened.close().await;
}

/// Whether this kernel has Landlock that confines sockets.
fn landlock() -> bool {
    let version = "perl -e 'print syscall(444, 0, 0, 1)'";
    sh(Path::new("/"), version).parse().is_ok_and(|version: i32| version >= 6)
}

#[tokio::test]
async fn what_is_mounted_is_copied_or_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    sh(
        folder.path(),
        "mkdir closed open; chmod 700 closed; echo a >closed/file; echo a >open/file; chmod 600 closed/file
         mkdir -p tool/bin; printf '#!/bin/sh\\necho tool\\n' >tool/bin/tool; chmod +x tool/bin/tool
         echo secret >tool/pip.conf; echo one >single; touch -d 2001-02-03T04:05:06Z open",
    );
    let mount = |name: &str, target: &str, access| Mount {
        source: folder.path().join(name),
        target: target.into(),
        access,
    };
    let spec = SandboxSpec {
        mounts: vec![
            mount("open", "/testbed", Access::CopyOnWrite),
            mount("closed", "/closed", Access::ReadOnly),
            mount("tool", "/home/me/tool", Access::ReadOnly),
            mount("single", "/home/me/single", Access::ReadOnly),
        ],
        path: vec!["/home/me/tool/bin".into()],
        ..SandboxSpec::default()
    };
    let opened = Opened::new(&spec).await;
    assert_eq!(
        opened.ok("tool; cat /closed/file /home/me/single; stat -c %Y /testbed").await,
        "tool\na\none\n981173106"
    );
    // What an installation of an interpreter may hold of credentials is taken away.
    assert_eq!(opened.ok("cat /home/me/tool/pip.conf").await, "");
    for attempt in [
        "echo b >/closed/file",
        "rm /home/me/tool/bin/tool",
        "echo b >/home/me/single",
        "touch /home/me/tool/x",
    ] {
        assert!(matches!(opened.run(attempt).await.0, Ending::Exited(1..)), "{attempt}");
    }
    opened.ok("echo b >/testbed/file; rm -f /testbed/other; echo c >/testbed/other; chmod 000 /testbed").await;
    assert_eq!(opened.ok("cat /testbed/file /testbed/other").await, "b\nc");
    opened.close().await;
    assert_eq!(sh(folder.path(), "cat open/file closed/file; ls open"), "a\na\nfile");
    let missing = SandboxSpec {
        mounts: vec![mount("none", "/x", Access::ReadOnly)],
        ..SandboxSpec::default()
    };
    let error = Local::new().create(&missing).await.err().unwrap();
    assert!(matches!(error, SandboxError::MissingSource(_)), "{error}");
}

#[tokio::test]
async fn a_directory_can_be_the_root() {
    let folder = tempfile::tempdir().unwrap();
    sh(
        folder.path(),
        "mkdir -p etc dev proc sys run; echo mine >etc/name; ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64",
    );
    let usr = Mount { source: "/usr".into(), target: "/usr".into(), access: Access::CopyOnWrite };
    let spec = SandboxSpec {
        root: Root::Directory(folder.path().to_owned()),
        mounts: vec![usr],
        ..SandboxSpec::default()
    };
    let opened = Opened::new(&spec).await;
    assert_eq!(
        opened
            .ok("cat /etc/name; pwd; ls -A /home 2>/dev/null; echo new >/etc/name; cat /etc/name")
            .await,
        "mine\n/testbed\nnew"
    );
    assert!(matches!(
        opened.run("echo x >/proc/sys/kernel/core_pattern").await.0,
        Ending::Exited(1..)
    ));
    opened.close().await;
    assert_eq!(
        sh(folder.path(), "cat etc/name; ls"),
        "mine\nbin\ndev\netc\nlib\nlib64\nproc\nrun\nsys"
    );
}

#[tokio::test]
async fn a_full_disk_is_full_and_the_guest_still_works() {
    let spec = SandboxSpec { disk: 24 << 20, ..SandboxSpec::default() };
    let opened = Opened::new(&spec).await;
    for place in ["/testbed", "/tmp", "/usr", "/dev/shm"] {
        let (ending, text) = opened.run(&format!("head -c 40M /dev/zero >{place}/fill")).await;
        assert!(ending == Ending::Exited(1) && text.contains("No space left"), "{place}: {text}");
    }
    assert_eq!(opened.ok("echo still here").await, "still here");
    opened.ok("rm /testbed/fill; echo room >/testbed/file").await;
    opened.close().await;
}

#[tokio::test]
async fn processes_without_end_are_stopped() {
    let opened = plain().await;
    // Jobs that start themselves again, until there may be no more of them.
    let bomb = "ulimit -u 300; bomb() { bomb | bomb & }; bomb; sleep 60";
    let started = Instant::now();
    let result = opened.result(bomb, Duration::from_secs(2)).await;
    assert_eq!(result.ending, Ending::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    // What has ended may still be listed for a moment.
    let alive = "ps -eo stat=,comm= | grep -v '^Z' | grep -c";
    let left = opened.ok(&format!("{alive} .")).await;
    assert!(left.parse::<u32>().unwrap() < 8, "{left}");
    let flood = opened
        .result("for i in $(seq 400); do sleep 60 & done; wait", Duration::from_secs(2))
        .await;
    assert_eq!(flood.ending, Ending::TimedOut);
    assert_eq!(opened.run(&format!("{alive} sleep")).await.1, "0");
    opened.close().await;
}

#[tokio::test]
async fn a_lost_guest_is_replaced_and_its_end_explained() {
    let mut opened = plain().await;
    opened.ok("echo kept >/tmp/file; (sleep 4711 >/dev/null 2>&1 </dev/null &)").await;
    for (end, cause) in [
        ("kill -9 $PPID; sleep 5", Cause::GuestSignalled(9)),
        ("kill -9 -1; sleep 5", Cause::GuestSignalled(9)),
        ("kill -ABRT $PPID; sleep 5", Cause::GuestSignalled(6)),
    ] {
        let lost = opened.guest.run("main", end.as_bytes(), LIMIT, KEEP).await;
        assert!(lost.is_err() && opened.guest.is_lost(), "{end}: {lost:?}");
        assert_eq!(opened.sandbox.post_mortem().await, cause, "{end}");
        opened.guest = opened.sandbox.connect().await.unwrap();
        opened.guest.open_session("main", &opened.sandbox.place().shell()).await.unwrap();
        assert_eq!(opened.ok("cat /tmp/file").await, "kept", "{end}");
    }
    // One that does not answer any more is ended when another is asked for, and only the last one's end is told.
    let stopped =
        opened.guest.run("main", b"kill -STOP $PPID; sleep 5", Duration::from_millis(100), KEEP);
    let stopped = tokio::time::timeout(Duration::from_secs(2), stopped).await;
    assert!(stopped.is_err(), "{stopped:?}");
    opened.guest = opened.sandbox.connect().await.unwrap();
    opened.guest.open_session("main", &opened.sandbox.place().shell()).await.unwrap();
    let lost = opened.guest.run("main", b"kill -9 $PPID; sleep 5", LIMIT, KEEP).await;
    assert!(lost.is_err());
    opened.guest = opened.sandbox.connect().await.unwrap();
    opened.guest.open_session("main", &opened.sandbox.place().shell()).await.unwrap();
    let lost = opened.guest.run("main", b"kill -TERM $PPID; sleep 5", LIMIT, KEEP).await;
    assert!(lost.is_err());
    assert_eq!(opened.sandbox.post_mortem().await, Cause::GuestSignalled(15));
    opened.sandbox.close().await.unwrap();
}

/// Processes of the machine whose command line is this.
fn processes(command: &str) -> usize {
    let wanted = format!("{}\0", command.replace(' ', "\0"));
    let processes = fs_err::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| {
            fs_err::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes())
        })
        .count()
}

#[tokio::test]
async fn nothing_is_left_after_close() {
    let opened = plain().await;
    let mark = format!("sleep {}", fastrand::u32(1_000_000..2_000_000));
    opened.ok(&format!("{mark} & (setsid nohup {mark} &) ; trap '' TERM; cd /tmp; (trap '' TERM HUP INT; {mark}) & true")).await;
    wait_until("the jobs to start", || processes(&mark) == 3);
    opened.close().await;
    assert_eq!(processes(&mark), 0);
}

#[test]
fn nothing_is_left_after_the_harness_is_killed() {
    let mark = format!("sleep {}", fastrand::u32(2_000_000..3_000_000));
    let mounts = fs_err::read_to_string("/proc/self/mountinfo").unwrap();
    let mut harness =
        itself("sandbox::hold").env(ROLE, &mark).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(harness.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("holding")));
    assert_eq!(processes(&mark), 20);
    harness.kill().unwrap();
    harness.wait().unwrap();
    wait_until("everything to end", || processes(&mark) == 0);
    assert_eq!(fs_err::read_to_string("/proc/self/mountinfo").unwrap(), mounts);
}

#[tokio::test]
#[ignore = "is killed by another test"]
async fn hold() {
    let Ok(mark) = std::env::var(ROLE) else { return };
    let mut all = Vec::new();
    for _ in 0..10 {
        let opened = plain().await;
        // A job of an earlier command, and a running one.
        opened.ok(&format!("(setsid {mark} </dev/null >/dev/null 2>&1 &); true")).await;
        all.push(opened);
    }
    let running = all.iter().map(|opened| opened.result(&mark, Duration::ZERO));
    let ready = async {
        wait_until("the commands to start", || processes(&mark) == 20);
        println!("holding");
        std::future::pending::<()>().await;
    };
    tokio::join!(futures(running), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        ready.await;
    });
}

async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        for one in &mut all {
            let _ = one.as_mut().poll(context);
        }
        std::task::Poll::<()>::Pending
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_a_time_are_made_and_each_is_alone() {
    let started = Instant::now();
    let making: Vec<_> = (0..50)
        .map(|number| {
            tokio::spawn(async move {
                let opened = plain().await;
                opened.ok(&format!("echo {number} >/tmp/number; echo {number} >/usr/number")).await;
                opened
            })
        })
        .collect();
    let mut all = Vec::new();
    for one in making {
        all.push(one.await.unwrap());
    }
    println!("50 sandboxes in {:?}", started.elapsed());
    for (number, opened) in all.iter().enumerate() {
        assert_eq!(opened.ok("cat /tmp/number /usr/number").await, format!("{number}\n{number}"));
    }
    if rustix::process::geteuid().is_root() {
        // No two have the same ids on the machine.
        let mut ranges = BTreeSet::new();
        for opened in &all {
            ranges.insert(opened.ok("cat /proc/self/uid_map").await);
        }
        assert_eq!(ranges.len(), all.len());
    }
    for opened in all {
        opened.close().await;
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn a_machine_that_refuses_namespaces_is_told_with_what_it_refused() {
    if !has("unshare") {
        return;
    }
    let none = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
    let program = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", none, "sh"])
        .arg(program)
        .args(["--exact", "sandbox::be_refused", "--ignored", "--nocapture"])
        .env(ROLE, "refused")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("create sandbox: making namespaces: No space left on device"), "{said}");
    // Root of a container that may make namespaces is an ordinary user to the machine.
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::a_full_disk_is_full_and_the_guest_still_works"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[tokio::test]
#[ignore = "is run by another test where namespaces are refused"]
async fn be_refused() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    println!("{}", Local::new().create(&SandboxSpec::default()).await.err().unwrap());
}

#[tokio::test]
async fn two_sessions_do_not_disturb_each_other() {
    let opened = plain().await;
    let start = SessionStart { cwd: "/tmp".into(), ..opened.sandbox.place().shell() };
    opened.guest.open_session("other", &start).await.unwrap();
    let long = opened.guest.run("other", b"sleep 1; pwd", LIMIT, KEEP);
    let short = opened.result("sleep 100", Duration::from_millis(300));
    let (long, short) = tokio::join!(long, short);
    assert_eq!(short.ending, Ending::TimedOut);
    // The command was running when the other one started.
    assert_eq!(text_of(&long.unwrap()), "/tmp");
    opened.close().await;
}
