//! Why this machine refuses namespaces, and what allows them.

use rustix::thread::CapabilitySet;

/// What to change so that namespaces can be made: a kernel setting, a profile, a container's options. Empty when none
/// of the known causes is there.
pub fn advice() -> Vec<String> {
    let read = |path: &str| fs_err::read_to_string(path).unwrap_or_default().trim().to_owned();
    let mut advice = Vec::new();
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
        advice.push(
            "AppArmor refuses them: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or a profile for \
             patchgym in /etc/apparmor.d with the rule `userns,`"
                .to_owned(),
        );
    }
    for (path, setting) in [
        ("/proc/sys/kernel/unprivileged_userns_clone", "kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", "user.max_user_namespaces=10000"),
    ] {
        if read(path) == "0" {
            advice.push(format!("the kernel refuses them: `sysctl -w {setting}`"));
        }
    }
    let is_root = rustix::process::geteuid().is_root();
    let held = rustix::thread::capabilities(None).map(|held| held.effective);
    let options = container_options(
        &read("/proc/self/status"),
        &read("/proc/self/attr/current"),
        &read("/proc/self/mountinfo"),
        is_root && held.is_ok_and(|held| !held.contains(CapabilitySet::SYS_ADMIN)),
    );
    if !options.is_empty() {
        let options = options.join(" ");
        advice.push(format!("this container refuses them: start it with `{options}`"));
    }
    advice
}

/// Docker's options that take away what is around a container's process, by the files that show it.
fn container_options(
    status: &str,
    apparmor: &str,
    mounts: &str,
    lacks_admin: bool,
) -> Vec<&'static str> {
    let mut options = Vec::new();
    // A filter of system calls.
    if status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])) {
        options.push("--security-opt seccomp=unconfined");
    }
    if apparmor.starts_with("docker-default") {
        options.push("--security-opt apparmor=unconfined");
    }
    // Where something of `/proc` is covered, no new one can be mounted.
    if mounts.lines().any(|line| line.split(' ').nth(4) == Some("/proc/sys")) {
        options.push("--security-opt systempaths=unconfined");
    }
    // Not needed by an ordinary user, who makes a user namespace first.
    if lacks_admin {
        options.push("--cap-add SYS_ADMIN");
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_around_a_container_is_seen() {
        let status = "NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let mounts = "22 1 0:5 / / rw - overlay overlay rw\n712 680 0:6 /sys /proc/sys ro,nosuid - proc proc rw\n";
        assert_eq!(
            container_options(status, "docker-default (enforce)", mounts, true),
            [
                "--security-opt seccomp=unconfined",
                "--security-opt apparmor=unconfined",
                "--security-opt systempaths=unconfined",
                "--cap-add SYS_ADMIN",
            ]
        );
        let status = "Seccomp:\t0\nSeccomp_filters:\t2\n";
        let mounts = "30 22 0:31 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n";
        assert!(container_options(status, "unconfined", mounts, false).is_empty());
    }
}
