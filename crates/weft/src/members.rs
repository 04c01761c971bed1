//! The files of new members: they are created, and their space is reserved.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use weft_array::superblock::read_superblock;
use weft_cli::disks::{DiskAddress, OpenError, Opener};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::size;
use weft_fs::Label;

/// Adds to the failure of a disk that another program uses what the disk belongs to, if weft made
/// it.
pub async fn with_owner(opener: &Opener, place: &str, mut error: OpenError) -> OpenError {
    if !error.busy {
        return error;
    }
    let Ok(disk) = opener.open(place, true).await else { return error };
    let (what, hint) = if let Ok(Some(label)) = Label::read(&*disk).await {
        let what = format!("it is a disk of the file system '{}'", label.name);
        (what, "unmount that file system, or choose another disk".to_owned())
    } else if let Ok(Some(superblock)) = read_superblock(&*disk).await {
        let name = superblock.name;
        let hint = format!("`weft stop {name}` frees its disks; or choose another disk");
        (format!("it is a member of the array '{name}'"), hint)
    } else {
        return error;
    };
    error.failure.message = format!("{}; {what}", error.failure.message);
    error.failure.hint = Some(hint);
    error
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
    match DiskAddress::of(member) {
        DiskAddress::Path(path) if !member.contains("://") && !path.exists() => {
            let failure = Failure::new(format!("{member}: no such file or device"));
            Err(match is_device_name(&path) {
                true => failure.hint("check the name: `lsblk` lists block devices"),
                false => failure.hint("check the name, or create a file with `--size 10G`"),
            })
        }
        _ => Ok(()),
    }
}

/// Whether `path` would be a device: a file created there would be in memory only.
fn is_device_name(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
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
        if is_device_name(path) && !path.exists() {
            return Err(Failure::new(format!("{}: no such device", path.display())).hint(
                "check the name: `lsblk` lists block devices; files are not created in /dev",
            ));
        }
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
