//! The folder where a daemon and the commands meet: one daemon per folder.
//!
//! `--runtime-dir` or `$WEFT_RUNTIME_DIR`; else `/run/weft` for root, `$XDG_RUNTIME_DIR/weft` for
//! others. It holds the control socket, the NBD socket, the mount points of attached arrays,
//! and a lock that keeps a second daemon out.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::failure::{Failure, Outcome};

/// The folder where a daemon and the commands meet.
#[derive(Debug, Clone)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// The folder asked for, or the usual one for this user.
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

    /// The Unix socket that NBD clients use, unless the daemon was told another.
    pub fn nbd_socket(&self) -> PathBuf {
        self.0.join("nbd.sock")
    }

    /// Where an array named `array` is mounted while it is attached.
    pub fn mount_point(&self, array: &str) -> PathBuf {
        self.0.join("attach").join(array)
    }

    /// Makes the folder, for this user only, and takes its lock; the lock ends with the file.
    pub fn claim(&self) -> Result<File, Failure> {
        let failed = |e: io::Error| {
            Failure::new(format!("runtime directory {}: {e}", self.0.display()))
                .hint("choose another with --runtime-dir or WEFT_RUNTIME_DIR")
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(failed)?;
        let lock = File::create(self.0.join("daemon.lock")).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::new(format!(
                "a daemon already runs in {}",
                self.0.display()
            ))
            .hint(
                "end it with `weft stop`, or give this one a folder of its own with --runtime-dir",
            )),
            Err(e) => Err(failed(e.into())),
        }
    }

    /// Lets the members of a group reach what is theirs in the folder. They cannot list it, and
    /// everything else in it has a mode of its own that keeps them out.
    pub fn let_enter(&self, group: u32) -> Outcome {
        let failed = |e: io::Error| {
            Failure::new(format!("{} cannot be opened to group {group}: {e}", self.0.display()))
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

    /// Removes the sockets of a daemon that is gone; only for the holder of the lock.
    pub fn clear_sockets(&self) {
        for socket in [self.control_socket(), self.nbd_socket()] {
            let _ = fs::remove_file(socket);
        }
    }
}
