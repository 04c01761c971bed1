//! Members as users name them: paths and NBD URIs.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use weft_disk::{BoundedDisk, DISK_TIMEOUT, Disk, FileDisk, FileOptions};
use weft_nbd::{NbdDisk, NbdOptions, NbdUri};
use weft_rt::ring::Ring;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::failure::{Failure, Outcome};
use crate::size;

/// Where a disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file or block device.
    Path(PathBuf),
    /// A remote disk.
    Uri(String),
}

impl Place {
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
pub fn absolute(text: &str) -> Result<String, Failure> {
    match Place::of(text) {
        Place::Uri(uri) => Ok(uri),
        Place::Path(path) if text.contains("://") && !path.exists() => {
            Err(Failure::usage(format!("{text} is not a disk's address"))
                .hint("write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH"))
        }
        Place::Path(path) => {
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
    /// How long a disk may take to answer a request before it is given up.
    pub disk_timeout: Nanos,
}

impl Opener {
    /// Opens disks for `rt` and its ring, with the usual time limit.
    pub fn new(rt: &Rt, ring: Ring) -> Self {
        Self { rt: rt.clone(), ring, disk_timeout: DISK_TIMEOUT }
    }

    /// Opens a disk and becomes its owner; with `look_only` neither owns nor changes it.
    pub async fn open(&self, place: &str, look_only: bool) -> Result<Rc<dyn Disk>, OpenError> {
        let disk = self.open_unbounded(place, look_only).await?;
        Ok(Rc::new(BoundedDisk::new(&self.rt, disk, self.disk_timeout)))
    }

    async fn open_unbounded(
        &self,
        place: &str,
        look_only: bool,
    ) -> Result<Rc<dyn Disk>, OpenError> {
        match Place::of(place) {
            Place::Path(path) => Ok(Rc::new(self.open_file(&path, look_only).await?)),
            Place::Uri(uri) => {
                let parsed: NbdUri = uri.parse().map_err(|e| {
                    Failure::new(format!("{uri}: {e}"))
                        .hint("write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")
                })?;
                let mut options = NbdOptions {
                    read_only: look_only,
                    request_timeout: self.disk_timeout,
                    ..NbdOptions::default()
                };
                if look_only {
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
    async fn open_file(&self, path: &Path, look_only: bool) -> Result<FileDisk, OpenError> {
        let options = FileOptions { look_only, ..FileOptions::default() };
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
                io::ErrorKind::InvalidInput => {
                    failure.hint("name a block device, or a regular file of some MiB")
                }
                _ => failure,
            };
            return Err(OpenError { failure, busy: kind == io::ErrorKind::ResourceBusy });
        }
    }
}

/// A member holds users' data: only its owner may read it.
const MEMBER_MODE: u32 = 0o600;

/// Reserves the space of those members that are files, if their file system supports it. Their
/// contents stay. With `dry_run` only checks whether there is enough.
pub fn reserve<'a>(paths: impl Iterator<Item = &'a Path> + Clone, dry_run: bool) -> Outcome {
    let mut wanted: BTreeMap<u64, (&Path, u64)> = BTreeMap::new();
    for path in paths.clone() {
        // One that cannot be examined is reported when it is opened.
        let Ok(file) = fs::metadata(path) else { continue };
        let holes = file.len().saturating_sub(file.blocks().saturating_mul(512));
        if file.is_file() && holes > 0 {
            wanted.entry(file.dev()).or_insert((path, 0)).1 += holes;
        }
    }
    for (path, bytes) in wanted.into_values() {
        let space = rustix::fs::statvfs(path).map_err(|e| cannot_reserve(path, &e.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if bytes > free {
            let (missing, bytes) = (size::show(bytes - free), size::show(bytes));
            return Err(Failure::new(format!(
                "the file system of {} has too little space: the members need {bytes}, {missing} more than is free",
                path.display()
            ))
            .hint("free some space, make them smaller, or add --sparse: writes then stall whenever it is full"));
        }
    }
    for path in paths.filter(|path| !dry_run && path.is_file()) {
        let failed = |e: io::Error| cannot_reserve(path, &e);
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, len) {
            // Not every file system supports it.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    Ok(())
}

fn cannot_reserve(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot reserve the space of {}: {error}", path.display())).hint(
        "free some space, or add --sparse: writes then stall whenever its file system is full",
    )
}

/// Refuses a member that does not exist and that no `--size` creates.
pub fn require(member: &str) -> Outcome {
    match Place::of(member) {
        Place::Path(path) if !member.contains("://") && !path.exists() => {
            Err(Failure::new(format!("{member}: no such file or device"))
                .hint("check the name, or create a file with `--size 10G`"))
        }
        _ => Ok(()),
    }
}

/// Files created for members; removed again on drop unless kept.
#[derive(Debug, Default)]
pub struct NewFiles(Vec<PathBuf>);

impl NewFiles {
    /// Creates a sparse file of `bytes` unless something of that name exists.
    pub fn create_if_missing(&mut self, path: &Path, bytes: u64) -> Result<(), Failure> {
        let failed = |e: io::Error| {
            let size = size::show(bytes);
            let failure = Failure::new(format!("cannot create {} of {size}: {e}", path.display()));
            match e.kind() {
                io::ErrorKind::NotFound => failure.hint("create its folder first"),
                io::ErrorKind::FileTooLarge => failure
                    .hint("its file system cannot hold a file of that size: give a smaller --size"),
                _ => failure,
            }
        };
        match OpenOptions::new().write(true).create_new(true).mode(MEMBER_MODE).open(path) {
            Ok(file) => {
                self.0.push(path.to_owned());
                // Regardless of the umask.
                file.set_permissions(Permissions::from_mode(MEMBER_MODE)).map_err(failed)?;
                file.set_len(bytes).map_err(failed)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(failed(e)),
        }
    }

    /// Keeps them.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}
