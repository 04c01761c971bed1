//! Disks as users name them: paths and NBD URIs.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use weft_disk::{BoundedDisk, DISK_TIMEOUT, Disk, FileDisk, FileOptions};
use weft_nbd::{NbdDisk, NbdOptions, NbdUri};
use weft_rt::ring::Ring;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::failure::Failure;

/// Where a disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskAddress {
    /// A file or block device.
    Path(PathBuf),
    /// A remote disk.
    Uri(String),
}

impl DiskAddress {
    /// Parses what the user wrote.
    pub fn of(text: &str) -> Self {
        if text.starts_with("nbd:") || text.starts_with("nbd+unix:") {
            Self::Uri(text.to_owned())
        } else {
            Self::Path(text.into())
        }
    }
}

/// The place as another process finds it: an absolute path or a URI.
///
/// # Errors
/// If `text` is neither, or not UTF-8.
pub fn absolute(text: &str) -> Result<String, Failure> {
    match DiskAddress::of(text) {
        DiskAddress::Uri(uri) => Ok(uri),
        DiskAddress::Path(path) if text.contains("://") && !path.exists() => {
            Err(Failure::usage(format!("{text} is not a disk's address"))
                .hint("write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH"))
        }
        DiskAddress::Path(path) => {
            let path =
                std::path::absolute(&path).map_err(|e| Failure::new(format!("{text}: {e}")))?;
            path.into_os_string().into_string().map_err(|path| {
                Failure::new(format!("{}: the name is not UTF-8", path.display()))
                    .hint("rename the file: the disks store member names as text")
            })
        }
    }
}

/// How long a disk may stay in use after its daemon was killed: the kernel tears down the ring, and
/// with it the claim on the disks, some time after the process is gone.
const BUSY_PATIENCE: Nanos = 2 * SECOND;

/// How long a remote disk that is only examined may take to answer a request: with the time to
/// connect, no longer than one request of a disk in use.
const LOOK_PATIENCE: Nanos = 20 * SECOND;

/// What is wanted of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// To own it, read and write it.
    Own,
    /// To own it and to read it.
    OwnReadOnly,
    /// To look at it, regardless of its owner.
    Look,
    /// To write what its owner on this machine does not.
    Beside,
}

/// Why a disk was not opened.
#[derive(Debug)]
pub struct OpenError {
    /// The failure to report.
    pub failure: Failure,
    /// Another program has claimed the disk; the disk itself is present and sound.
    pub busy: bool,
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        Self { failure, busy: false }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        error.failure
    }
}

/// Opens disks for a thread's ring.
#[derive(Debug, Clone)]
pub struct Opener {
    /// The thread's executor.
    pub rt: Rt,
    /// Its ring.
    pub ring: Ring,
    /// How long a disk may take to answer a request before it is severed.
    pub disk_timeout: Nanos,
}

impl Opener {
    /// Opens disks for `rt` and its ring, with the usual time limit.
    pub fn new(rt: &Rt, ring: Ring) -> Self {
        Self { rt: rt.clone(), ring, disk_timeout: DISK_TIMEOUT }
    }

    /// Opens a disk and becomes its owner; with `look_only` neither owns nor changes it.
    ///
    /// # Errors
    /// If it cannot be opened or reached, or another program uses it.
    pub async fn open(&self, place: &str, look_only: bool) -> Result<Rc<dyn Disk>, OpenError> {
        let access = if look_only { Access::Look } else { Access::Own };
        self.open_with(place, access).await
    }

    /// Opens a disk and becomes its owner, who only reads it. It may be write-protected.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub async fn open_read_only(&self, place: &str) -> Result<Rc<dyn Disk>, OpenError> {
        self.open_with(place, Access::OwnReadOnly).await
    }

    async fn open_with(&self, place: &str, access: Access) -> Result<Rc<dyn Disk>, OpenError> {
        let disk = self.open_unbounded(place, access).await?;
        Ok(Rc::new(BoundedDisk::new(&self.rt, disk, self.disk_timeout)))
    }

    async fn open_unbounded(&self, place: &str, access: Access) -> Result<Rc<dyn Disk>, OpenError> {
        match DiskAddress::of(place) {
            DiskAddress::Path(path) => Ok(Rc::new(self.open_file(&path, access).await?)),
            DiskAddress::Uri(uri) => {
                let parsed: NbdUri = uri.parse().map_err(|e| {
                    Failure::new(format!("{uri}: {e}"))
                        .hint("write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")
                })?;
                let mut options = NbdOptions {
                    read_only: !matches!(access, Access::Own | Access::Beside),
                    request_timeout: self.disk_timeout,
                    ..NbdOptions::default()
                };
                if access == Access::Look {
                    options.request_timeout = LOOK_PATIENCE.min(self.disk_timeout);
                }
                let disk = NbdDisk::open(&self.rt, &self.ring, &parsed, options).await;
                Ok(Rc::new(disk.map_err(|e| {
                    Failure::new(format!("{uri}: {e}"))
                        .hint("check that the server is running and can be reached from here")
                })?))
            }
        }
    }
}

impl Opener {
    /// As [`Opener::open`], for a file or block device whose name need not be text.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub async fn open_path(&self, path: &Path, look_only: bool) -> Result<Rc<dyn Disk>, OpenError> {
        let access = if look_only { Access::Look } else { Access::Own };
        self.open_path_with(path, access).await
    }

    /// Opens a block device for writing beside the process of this machine that owns it: for what
    /// that one does not write.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub async fn open_beside_owner(&self, path: &Path) -> Result<Rc<dyn Disk>, OpenError> {
        self.open_path_with(path, Access::Beside).await
    }

    async fn open_path_with(&self, path: &Path, access: Access) -> Result<Rc<dyn Disk>, OpenError> {
        let disk = self.open_file(path, access).await?;
        Ok(Rc::new(BoundedDisk::new(&self.rt, Rc::new(disk), self.disk_timeout)))
    }

    async fn open_file(&self, path: &Path, access: Access) -> Result<FileDisk, OpenError> {
        let options = FileOptions {
            look_only: access == Access::Look,
            beside_owner: access == Access::Beside,
            read_only: access == Access::OwnReadOnly,
            ..FileOptions::default()
        };
        let patience = self.rt.now().saturating_add(BUSY_PATIENCE);
        loop {
            let error = match FileDisk::open(&self.ring, path, &options) {
                Ok(disk) => return Ok(disk),
                Err(error) => error,
            };
            let kind = error.source.kind();
            if kind == io::ErrorKind::ResourceBusy && self.rt.now() < patience {
                self.rt.sleep(20 * MILLISECOND).await;
                continue;
            }
            let failure = Failure::new(format!("{}: {}", path.display(), error.source));
            let failure = match kind {
                io::ErrorKind::NotFound => failure.hint("check the name"),
                io::ErrorKind::PermissionDenied => {
                    failure.hint("check that you may read and write it")
                }
                io::ErrorKind::ResourceBusy => failure.hint(
                    "end what uses it, and try again; a disk that has just failed is in use until \
                     the kernel has ended the requests to it",
                ),
                io::ErrorKind::ReadOnlyFilesystem => failure.hint(
                    "allow writes to it (a switch on the device, `blockdev --setrw`, or mount its \
                     file system for writing)",
                ),
                io::ErrorKind::InvalidInput => {
                    failure.hint("name a block device, or a regular file of some MiB")
                }
                _ => failure,
            };
            return Err(OpenError { failure, busy: kind == io::ErrorKind::ResourceBusy });
        }
    }
}
