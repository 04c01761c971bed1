//! The folder where the daemon and the commands meet: one daemon per folder.
//!
//! It is `--runtime-dir` or `$WEFT_RUNTIME_DIR`, or else `/run/weft` for root and
//! `$XDG_RUNTIME_DIR/weft` for other users. It holds the control socket, the NBD socket, the mount
//! points of attached arrays, and a lock that keeps a second daemon out.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::process::{Uid, geteuid};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::owned_folder;

/// Arrays whose daemon has a runtime folder that is not root's are mounted below this folder.
const ATTACHED_FOR_OTHERS: &str = "/run/weft-attach";

/// The folder where a daemon and the commands meet.
#[derive(Debug, Clone)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// The folder asked for, or this user's default.
    pub fn choose(asked: Option<&Path>) -> Result<Self, Failure> {
        let from_environment = std::env::var_os("WEFT_RUNTIME_DIR").filter(|dir| !dir.is_empty());
        if let Some(path) = asked.or_else(|| from_environment.as_deref().map(Path::new)) {
            let path = std::path::absolute(path)
                .map_err(|e| Failure::new(format!("runtime directory {}: {e}", path.display())))?;
            return Ok(Self(path));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self("/run/weft".into()));
        }
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(dir) if !dir.is_empty() => Ok(Self(Path::new(&dir).join("weft"))),
            _ => Err(Failure::usage("no runtime directory: XDG_RUNTIME_DIR is not set")
                .hint("name a folder of your own with --runtime-dir or WEFT_RUNTIME_DIR")),
        }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The socket that commands use.
    pub fn control_socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// The Unix socket for NBD clients, unless the daemon was given another.
    pub fn nbd_socket(&self) -> PathBuf {
        self.0.join("nbd.sock")
    }

    /// Where an array named `array` is mounted while it is attached. Root mounts only below folders
    /// that no other user can change: a runtime folder of another user gets a place in `/run`.
    pub fn mount_point(&self, array: &str) -> PathBuf {
        let is_roots = fs::symlink_metadata(&self.0).map_or(true, |folder| folder.uid() == 0);
        if is_roots {
            return self.0.join("attach").join(array);
        }
        let escape = |c| match c {
            '/' => "-".to_owned(),
            '-' | '\\' => format!("\\x{:02x}", u32::from(c)),
            c => c.to_string(),
        };
        let path = self.0.to_string_lossy();
        let name: String = path.trim_matches('/').chars().map(escape).collect();
        Path::new(ATTACHED_FOR_OTHERS).join(name).join(array)
    }

    fn failure(&self, e: &io::Error) -> Failure {
        Failure::new(format!("runtime directory {}: {e}", self.0.display()))
            .hint("choose another with --runtime-dir or WEFT_RUNTIME_DIR")
    }

    /// Creates the folder, for this user only, unless it exists, and opens it.
    pub fn make(&self) -> Result<OwnedFd, Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|e| self.failure(&e))?;
        owned_folder::open(&self.0, geteuid())
    }

    /// Creates the folder and takes its lock; the lock ends with the file.
    pub fn claim(&self) -> Result<File, Failure> {
        let failed = |e: io::Error| self.failure(&e);
        let folder = self.make()?;
        // By the descriptor: the checked path is the path used.
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let lock = openat(&folder, "daemon.lock", flags, mode).map_err(|e| failed(e.into()))?;
        let lock = File::from(lock);
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(Failure::new(format!("a daemon already runs in {}", self.0.display())).hint(
                    "stop it with `weft stop`, or give this one its own folder with --runtime-dir",
                ))
            }
            Err(e) => Err(failed(e.into())),
        }
    }

    /// Lets the members of a group reach their socket in the folder. They cannot list the folder,
    /// and the mode of everything else in it keeps them out.
    pub fn let_enter(&self, group: u32) -> Outcome {
        let failed = |e: io::Error| {
            Failure::new(format!("cannot give group {group} access to {}: {e}", self.0.display()))
                .hint("only root, or a member of the group, can do that; or choose --nbd-socket")
        };
        let mode = fs::metadata(&self.0).map_err(failed)?.permissions().mode();
        if mode & 0o001 != 0 {
            return Ok(());
        }
        std::os::unix::fs::chown(&self.0, None, Some(group)).map_err(failed)?;
        let permissions = fs::Permissions::from_mode(mode & 0o7700 | 0o010);
        fs::set_permissions(&self.0, permissions).map_err(failed)
    }

    /// As root, refuses to talk to a daemon that another user may have put there. That user would
    /// choose what root is told, and what `weft attach` mounts. A daemon of another user is
    /// accepted if root gave it its folder (`User=` and `RuntimeDirectory=` of systemd), or if it
    /// belongs to the user who called `sudo`.
    pub fn check_for_client(&self) -> Outcome {
        if !geteuid().is_root() {
            return Ok(());
        }
        // A missing daemon is reported when the connection fails.
        let Ok(folder) = fs::symlink_metadata(&self.0) else { return Ok(()) };
        let by_root = || self.0.parent().is_some_and(owned_folder::is_roots);
        let by_caller = || {
            let caller = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse::<u32>().ok());
            caller.is_some_and(|caller| caller == folder.uid())
        };
        if by_caller() || (folder.uid() != 0 && by_root()) {
            return Ok(());
        }
        owned_folder::open(&self.0, Uid::ROOT).map(drop)
    }

    /// Removes the sockets of a daemon that has ended; only for the holder of the lock.
    pub fn clear_sockets(&self) {
        for socket in [self.control_socket(), self.nbd_socket()] {
            let _ = fs::remove_file(socket);
        }
    }
}
