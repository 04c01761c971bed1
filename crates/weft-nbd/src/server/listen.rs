//! Listening sockets, and the files of Unix sockets.
//!
//! A socket file outlives a server that died. To replace it without ever taking one from a live
//! server, we lock the directory and try to connect: a refusal means that the server is dead. The
//! file gets its permissions between `bind` and `listen`, so other users can never connect too
//! early.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen,
    socket_with, sockopt,
};
use weft_rt::ring::Fd;

use super::ServerError;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;
/// How long a process that was killed may take to end, and how often it is looked.
const END_OF_KILLED: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A listening socket; dropping it removes its file.
pub struct Listener {
    fd: Fd,
    _file: Option<SocketFile>,
}

struct SocketFile {
    path: PathBuf,
    /// Device and inode: only our own file is removed.
    identity: (u64, u64),
}

impl Listener {
    /// The socket.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Listens on a TCP address; gives the one that it got, which has a port.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tcp(address: SocketAddr) -> Result<(Self, SocketAddr), ServerError> {
        let bound = bind_tcp(address).map_err(|source| {
            let address = address.to_string();
            ServerError::Listen { address, source }
        })?;
        Ok((Self { fd: Fd::from(bound.0), _file: None }, bound.1))
    }

    /// Listens on a Unix socket at `path`, accessible to this user only, or also to a group (its
    /// number). A socket of a dead server is replaced; a live one is not.
    ///
    /// # Errors
    /// Another server is alive there, something else is in the way, or the kernel's.
    pub fn unix(path: &Path, group: Option<u32>) -> Result<Self, ServerError> {
        let address = path.display().to_string();
        let failed = |source| ServerError::Listen { address: address.clone(), source };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let lock = File::open(directory).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(ServerError::NotASocket(address));
            }
            Ok(_) if stays_alive(path).map_err(failed)? => return Err(ServerError::InUse(address)),
            Ok(_) => fs::remove_file(path).map_err(failed)?,
        }
        let fd = bind_unix(path, group).map_err(failed)?;
        let meta = fs::symlink_metadata(path).map_err(failed)?;
        let file = SocketFile { path: path.to_owned(), identity: (meta.dev(), meta.ino()) };
        Ok(Self { fd: Fd::from(fd), _file: Some(file) })
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity);
        if ours {
            // If it cannot be removed it is a stale one, which the next server replaces.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of a server that was just stopped would block the port.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    bind(&fd, &address)?;
    listen(&fd, BACKLOG)?;
    let bound = SocketAddr::try_from(getsockname(&fd)?)?;
    Ok((fd, bound))
}

fn bind_unix(path: &Path, group: Option<u32>) -> io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&fd, &SocketAddrUnix::new(path)?)?;
    if group.is_some() {
        std::os::unix::fs::lchown(path, None, group)?;
    }
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Whether a server listens on the socket at `path`, and goes on to. That of a process that was
/// just killed takes connections until the kernel has ended what its ring was doing.
fn stays_alive(path: &Path) -> io::Result<bool> {
    let start = Instant::now();
    while is_alive(path)? {
        if start.elapsed() > END_OF_KILLED {
            return Ok(true);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(false)
}

/// Whether a server listens on the socket at `path`.
fn is_alive(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&fd, &SocketAddrUnix::new(path)?) {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        // AGAIN: its backlog is full, so it lives.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
