//! Which of the machine's directories a sandbox shows, and what is taken out of them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Component;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;

use ignore::WalkState;

use crate::protocol::setup::Content;
use crate::protocol::setup::Layer;
use crate::sandbox::Access;
use crate::sandbox::Mount;
use crate::sandbox::Network;
use crate::sandbox::Root;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;
use crate::sandbox::local::root::PRIVATE;

/// Directories that hold programs, libraries and their settings.
const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc"];
/// Where credentials are kept although everyone may read them.
const CREDENTIALS: &[&str] = &[
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/docker",
    "/etc/containerd",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/krb5.keytab",
    "/etc/pip.conf",
    "/etc/netrc",
    "/etc/apt/auth.conf",
    "/etc/apt/auth.conf.d",
    "/etc/apt/sources.list.d",
    "/etc/boto.cfg",
    "/etc/cloud",
    "/etc/consul.d",
    "/etc/environment",
    "/etc/fstab",
    "/etc/gitconfig",
    "/etc/letsencrypt",
    "/etc/msmtprc",
    "/etc/nomad.d",
    "/etc/npmrc",
    "/etc/systemd/system",
    "/etc/vault.d",
    "/etc/xdg/pip",
    "/etc/yum.repos.d",
    "/etc/zypp",
    "/usr/pip.conf",
    "/usr/etc/npmrc",
    "/usr/etc/gitconfig",
    "/usr/local/pip.conf",
    "/etc/NetworkManager",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/machine-id",
];
/// The same in an installation of an interpreter.
const IN_INSTALLATIONS: &[&str] = &["pip.conf", "etc/pip.conf", "etc/npmrc", "etc/gitconfig"];
/// Where files that only root may read are looked for; elsewhere below the system directories there are none.
const SCANNED: &[&str] = &["/etc", "/opt", "/usr/local"];

/// The layers of a sandbox.
///
/// # Errors
/// When a directory that was asked for does not exist.
pub(super) fn layers(spec: &SandboxSpec, hidden: &[PathBuf]) -> Result<Vec<Layer>, SandboxError> {
    let mut layers = Vec::new();
    match &spec.root {
        Root::System => {
            for (path, mode) in [
                ("/root", 0o700),
                ("/home", 0o755),
                ("/tmp", 0o1777),
                ("/run", 0o755),
                ("/var", 0o755),
                ("/var/tmp", 0o1777),
                ("/var/lib", 0o755),
                ("/var/cache", 0o755),
                ("/var/log", 0o755),
                ("/mnt", 0o755),
                ("/srv", 0o755),
            ] {
                layers.push(Layer { target: path.into(), content: Content::Directory(mode) });
            }
            // Links to `/run` that are written so are as old as `/var`.
            layers.push(layer(Path::new("/var/run"), Content::Symlink(b"/run".to_vec())));
            layers.extend(system().iter().map(|layer| without(layer.clone(), hidden)));
            if spec.network == Network::Full {
                layers.extend(name_servers(Path::new("/etc/resolv.conf")));
            }
        }
        Root::Directory(path) => {
            let source = existing(path)?;
            layers.push(Layer {
                target: "/".into(),
                content: Content::Overlay { source, hide: Vec::new() },
            });
        }
    }
    layers.push(Layer { target: PRIVATE.into(), content: Content::Directory(0o700) });
    if !spec.mounts.iter().any(|mount| mount.target == spec.workdir) {
        layers.push(Layer { target: spec.workdir.clone(), content: Content::Directory(0o755) });
    }
    for Mount { source: mount_source, target, access } in &spec.mounts {
        let source = existing(mount_source)?;
        let content = match access {
            Access::ReadOnly => {
                let hide = in_installation(mount_source);
                Content::ReadOnly { source, hide }
            }
            Access::CopyOnWrite => Content::Overlay { source, hide: Vec::new() },
        };
        layers.push(Layer { target: target.clone(), content });
    }
    Ok(layers)
}

/// A layer of the system from which more is taken away.
fn without(mut layer: Layer, hidden: &[PathBuf]) -> Layer {
    if let Content::Overlay { hide, .. } = &mut layer.content {
        let below = hidden.iter().filter_map(|path| path.strip_prefix(&layer.target).ok());
        let below = below.map(|path| path.as_os_str().as_bytes().to_vec());
        hide.extend(below.filter(|path| !path.is_empty()).collect::<Vec<_>>());
    }
    layer
}

/// Where the names of name servers stand, when `path` is a link to what a service keeps in a directory that is not
/// shown.
fn name_servers(path: &Path) -> Option<Layer> {
    let target = path.parent()?.join(fs_err::read_link(path).ok()?);
    let mut plain = PathBuf::new();
    for part in target.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => plain.push(part),
        }
    }
    let content = fs_err::read(path).ok()?;
    (!is_shown(&plain)).then(|| layer(&plain, Content::File(content)))
}

/// Files of an installation that may hold credentials.
fn in_installation(path: &Path) -> Vec<Vec<u8>> {
    let found = IN_INSTALLATIONS.iter().filter(|name| path.join(name).exists());
    found.map(|name| name.as_bytes().to_vec()).collect()
}

/// Whether every sandbox whose root is the system's shows this file or directory.
pub(super) fn is_shown(path: &Path) -> bool {
    let path = fs_err::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    system().iter().any(|Layer { target, content }| match content {
        Content::Overlay { hide, .. } => path.strip_prefix(target).is_ok_and(|below| {
            !hide.iter().any(|hidden| below.starts_with(OsStr::from_bytes(hidden)))
        }),
        Content::ReadOnly { .. } | Content::File(_) => path == Path::new(target),
        Content::Directory(_) | Content::Symlink(_) => false,
    })
}

fn existing(path: &Path) -> Result<Vec<u8>, SandboxError> {
    let path =
        fs_err::canonicalize(path).map_err(|_| SandboxError::MissingSource(path.to_owned()))?;
    Ok(path.into_os_string().into_vec())
}

/// The machine's system directories; looked at once.
fn system() -> &'static [Layer] {
    static SYSTEM_LAYERS: OnceLock<Vec<Layer>> = OnceLock::new();
    SYSTEM_LAYERS.get_or_init(|| {
        let mounts = mount_points();
        let mut layers = Vec::new();
        for path in SYSTEM.iter().map(Path::new) {
            match fs_err::symlink_metadata(path) {
                Ok(metadata) if metadata.is_symlink() => {
                    if let Ok(to) = fs_err::read_link(path) {
                        layers.push(layer(path, Content::Symlink(to.into_os_string().into_vec())));
                    }
                }
                Ok(metadata) if metadata.is_dir() => show(path, &mounts, &mut layers),
                Ok(_) | Err(_) => {}
            }
        }
        layers
    })
}

/// The files and directories that the system's layers show, for sandboxes without layers. Where something is taken out
/// of a directory, what is left in it is named one by one.
pub(super) fn readable(hidden: &[PathBuf]) -> Vec<PathBuf> {
    let mut readable = Vec::new();
    for Layer { target, content } in system().iter().map(|layer| without(layer.clone(), hidden)) {
        let path = PathBuf::from(target);
        match &content {
            Content::Overlay { hide, .. } => {
                let hidden: Vec<PathBuf> =
                    hide.iter().map(|below| path.join(OsStr::from_bytes(below))).collect();
                name_without(path, &hidden, &mut readable);
            }
            Content::ReadOnly { .. } | Content::File(_) => readable.push(path),
            Content::Directory(_) | Content::Symlink(_) => {}
        }
    }
    readable
}

fn name_without(path: PathBuf, hidden: &[PathBuf], readable: &mut Vec<PathBuf>) {
    if !hidden.iter().any(|hidden| hidden.starts_with(&path)) {
        readable.push(path);
        return;
    }
    let Ok(entries) = fs_err::read_dir(&path) else { return };
    for entry in entries.flatten().filter(|entry| !hidden.contains(&entry.path())) {
        // Rules are for what a link points to, which is shown at its own place or not at all.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            name_without(entry.path(), hidden, readable);
        }
    }
}

/// Shows a directory as one overlay; where something is mounted below it, which an overlay cannot have under it in a
/// user namespace, its entries one by one.
fn show(path: &Path, mounts: &BTreeSet<PathBuf>, layers: &mut Vec<Layer>) {
    let mounted_below = mounts.iter().any(|mount| mount != path && mount.starts_with(path));
    if !mounted_below {
        let hide = secrets_below(path)
            .into_iter()
            .filter_map(|secret| {
                Some(secret.strip_prefix(path).ok()?.as_os_str().as_bytes().to_vec())
            })
            .collect();
        layers.push(layer(
            path,
            Content::Overlay { source: path.as_os_str().as_bytes().to_vec(), hide },
        ));
        return;
    }
    layers.push(layer(path, Content::Directory(0o755)));
    let Ok(entries) = fs_err::read_dir(path) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = fs_err::symlink_metadata(&path) else { continue };
        if is_secret(&path, &metadata) {
            continue;
        }
        if metadata.is_symlink() {
            if let Ok(to) = fs_err::read_link(&path) {
                layers.push(layer(&path, Content::Symlink(to.into_os_string().into_vec())));
            }
        } else if metadata.is_dir() {
            show(&path, mounts, layers);
        } else if metadata.is_file()
            && metadata.len() <= 1 << 20
            && let Ok(bytes) = fs_err::read(&path)
        {
            layers.push(layer(&path, Content::File(bytes)));
        } else if metadata.is_file() {
            layers.push(layer(
                &path,
                Content::ReadOnly {
                    source: path.as_os_str().as_bytes().to_vec(),
                    hide: Vec::new(),
                },
            ));
        }
    }
}

fn layer(path: &Path, content: Content) -> Layer {
    Layer { target: path.to_string_lossy().into_owned(), content }
}

/// What must be taken out of a directory.
fn secrets_below(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = CREDENTIALS
        .iter()
        .map(PathBuf::from)
        .filter(|secret| secret.starts_with(path) && secret.exists())
        .collect();
    found.extend(homes().into_iter().filter(|home| home.starts_with(path) && home != path));
    // This program holds the answers to the bundled tasks.
    found.extend(std::env::current_exe().into_iter().filter(|program| program.starts_with(path)));
    for scanned in SCANNED.iter().map(Path::new) {
        let top = if scanned.starts_with(path) {
            scanned
        } else if path.starts_with(scanned) {
            path
        } else {
            continue;
        };
        let mut walk = ignore::WalkBuilder::new(top);
        walk.standard_filters(false).follow_links(false);
        let secrets = Mutex::new(Vec::new());
        walk.build_parallel().run(|| {
            Box::new(|entry| {
                let Ok(entry) = entry else { return WalkState::Continue };
                match fs_err::symlink_metadata(entry.path()) {
                    Ok(metadata) if is_secret(entry.path(), &metadata) => {
                        let path = entry.into_path();
                        secrets.lock().unwrap_or_else(PoisonError::into_inner).push(path);
                        // What is below is taken away with it.
                        WalkState::Skip
                    }
                    Ok(_) | Err(_) => WalkState::Continue,
                }
            })
        });
        found.extend(secrets.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    // One cover is enough, and what is below a cover can no longer be covered.
    found.sort_unstable();
    found.dedup_by(|later, earlier| later.starts_with(&*earlier));
    found
}

fn is_secret(path: &Path, metadata: &std::fs::Metadata) -> bool {
    let private = !metadata.is_symlink() && metadata.permissions().mode() & 0o004 == 0;
    private
        || metadata.file_type().is_socket()
        || CREDENTIALS.iter().any(|secret| Path::new(secret) == path)
}

/// Home directories of people, where they lie among the system's.
fn homes() -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = std::env::var_os("HOME").map(PathBuf::from).into_iter().collect();
    for line in fs_err::read_to_string("/etc/passwd").unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if let [_, _, user, _, _, home, ..] = fields[..]
            && user.parse::<u32>().is_ok_and(|user| (1000..65534).contains(&user))
        {
            homes.push(home.into());
        }
    }
    homes.retain(|home| home.components().count() > 2 || home.starts_with("/opt"));
    homes
}

/// Where something is mounted in this mount namespace.
fn mount_points() -> BTreeSet<PathBuf> {
    fs_err::read_to_string("/proc/self/mountinfo")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split(' ').nth(4).map(unescape))
        .collect()
}

/// Reads the octal escapes of `/proc/self/mountinfo`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, later)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| later.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &later[3..];
            }
            None => {
                bytes.push(*first);
                rest = later;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_caller_names_and_its_own_program_are_taken_away() {
        let overlay = Content::Overlay { source: b"/opt".to_vec(), hide: vec![b"a".to_vec()] };
        let opt = layer(Path::new("/opt"), overlay);
        let hidden = ["/opt/data/rows.jsonl", "/opt", "/optional", "/home/me"].map(PathBuf::from);
        let Content::Overlay { hide, .. } = without(opt, &hidden).content else { panic!() };
        assert_eq!(hide, [b"a".to_vec(), b"data/rows.jsonl".to_vec()]);
        let own = std::env::current_exe().unwrap();
        assert!(secrets_below(own.parent().unwrap()).contains(&own));
        assert_eq!(secrets_below(&own.join("none")), [] as [PathBuf; 0]);
    }

    #[test]
    fn what_is_shown_is_known() {
        assert!(is_shown(Path::new("/usr/bin")) && is_shown(Path::new("/bin/sh")));
        for path in ["/etc/shadow", "/root", "/home", "/etc/ssh/x", "/proc", "/var/lib"] {
            assert!(!is_shown(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn name_servers_are_put_where_the_link_leads() {
        let top = tempfile::tempdir().unwrap();
        let (etc, run) = (top.path().join("etc"), top.path().join("run/names"));
        fs_err::create_dir_all(&etc).unwrap();
        fs_err::create_dir_all(&run).unwrap();
        fs_err::write(run.join("stub"), "nameserver 192.0.2.1\n").unwrap();
        let link = etc.join("resolv.conf");
        for target in [Path::new("../run/./names/stub"), &run.join("stub")] {
            fs_err::os::unix::fs::symlink(target, &link).unwrap();
            let content = Content::File(b"nameserver 192.0.2.1\n".to_vec());
            assert_eq!(name_servers(&link), Some(layer(&run.join("stub"), content)));
            fs_err::remove_file(&link).unwrap();
        }
        fs_err::write(&link, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(name_servers(&link), None);
    }

    #[test]
    fn mount_points_with_spaces_are_read() {
        assert_eq!(unescape("/a\\040b"), Path::new("/a b"));
        assert_eq!(unescape("/plain"), Path::new("/plain"));
    }

    #[test]
    fn password_hashes_are_never_readable_and_their_neighbours_are() {
        let readable = readable(&[]);
        let is_readable =
            |path: &str| readable.iter().any(|shown| Path::new(path).starts_with(shown));
        assert!(!is_readable("/etc/shadow") && !is_readable("/root") && !is_readable("/etc/ssh/x"));
        assert!(is_readable("/etc/passwd") && is_readable("/usr/bin/env"), "{readable:?}");
    }

    #[test]
    fn password_hashes_are_never_shown() {
        for layer in system() {
            match &layer.content {
                Content::Overlay { source, hide } if source == b"/etc" => {
                    assert!(hide.iter().any(|path| path == b"shadow"), "{hide:?}");
                }
                Content::File(_) => assert_ne!(layer.target, "/etc/shadow"),
                Content::Overlay { .. }
                | Content::ReadOnly { .. }
                | Content::Directory(_)
                | Content::Symlink(_) => {}
            }
        }
    }
}
