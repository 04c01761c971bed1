//! One mount of a file system on a machine.
//!
//! Disks are opened by one program at a time, but copies of all of them – images, snapshots of the
//! volumes below – are other disks with the same labels. Mounted beside the originals, they would
//! be taken for them at the next mount that looks for disks. So a mount locks the identity of its
//! file system. The file that it locks also tells where the file system is mounted, by its name.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use weft_cli::failure::Failure;
use weft_fuse::mount;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

/// The kernel ends a process that was killed, and with it its lock, some time after it is gone.
const PATIENCE: Nanos = 2 * SECOND;

/// Where the lock of an identity is.
fn lock_of(id: &str) -> PathBuf {
    Path::new("/run").join(format!("weftfs-{id}.lock"))
}

/// The lock of an identity. Its file goes with it.
#[derive(Debug)]
pub(super) struct IdentityLock {
    file: File,
    path: PathBuf,
}

impl Drop for IdentityLock {
    fn drop(&mut self) {
        // While it is locked: what waits for it finds that it is another file, and takes a new one.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether a file is still the one of this name: one whose lock has ended is removed.
fn is_current(file: &File, path: &Path) -> bool {
    let inode = |data: std::io::Result<Metadata>| data.ok().map(|data| (data.dev(), data.ino()));
    inode(file.metadata()) == inode(std::fs::symlink_metadata(path))
}

/// Locks the identity of the file system `name` that is about to be mounted on `folder`, as long as
/// what this returns exists. Where there is no `/run`, nothing is locked.
pub(super) async fn lock(
    rt: &Rt,
    (id, name): (&str, &str),
    folder: &Path,
) -> Result<Option<IdentityLock>, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
    let path = lock_of(id);
    let patience = rt.now().saturating_add(PATIENCE);
    let mut lock = loop {
        let Ok(mut file) = options.open(&path) else { return Ok(None) };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_current(&file, &path) => break IdentityLock { file, path },
            // The name belongs to another file by now.
            Ok(()) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(_) => return Ok(None),
        }
        if rt.now() >= patience {
            let mut text = String::new();
            // It only locates it.
            let _ = file.read_to_string(&mut text);
            let at = text.lines().next().map_or_else(String::new, |at| format!(" on {at}"));
            return Err(Failure::new(format!(
                "a file system with the same identity is mounted{at}: these disks are copies of its disks"
            ))
            .hint("unmount it first, or mount the copies on another machine"));
        }
        rt.sleep(20 * MILLISECOND).await;
    };
    // Its text only helps to find the mount.
    let file = &mut lock.file;
    let _ = file.set_len(0).and_then(|()| file.rewind());
    let _ = write!(file, "{}\n{name}\n", folder.display());
    Ok(Some(lock))
}

/// The names of mounted file systems, and where they are mounted.
pub(super) fn mounted() -> Vec<(String, PathBuf)> {
    let mounts = mount::folders_of_weftfs();
    let names = std::fs::read_dir("/run").into_iter().flatten().flatten().filter_map(|entry| {
        let file = entry.file_name().into_string().ok()?;
        let is_lock = file.starts_with("weftfs-") && file.ends_with(".lock");
        let text = is_lock.then(|| std::fs::read_to_string(entry.path()))?.ok()?;
        let (folder, name) = text.trim_end().split_once('\n')?;
        // One that was killed has left its file.
        let folder = PathBuf::from(folder);
        mounts.contains(&folder).then(|| (name.to_owned(), folder))
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// The folder on which the file system is mounted that a command is about: `place` is this folder,
/// a path below it, or the name of the file system.
pub(super) fn place_of(place: &Path) -> Result<PathBuf, Failure> {
    let is_fuse = rustix::fs::statfs(place).is_ok_and(|of| of.f_type == super::FUSE);
    let Some(name) = place.to_str().filter(|name| !is_fuse && !name.contains('/')) else {
        return Ok(place.to_owned());
    };
    let all = mounted();
    let found: Vec<&PathBuf> =
        all.iter().filter(|(of, _)| of == name).map(|(_, folder)| folder).collect();
    match found[..] {
        [folder] => Ok(folder.clone()),
        [] if place.exists() => Ok(place.to_owned()),
        [] => {
            let all: Vec<String> =
                all.iter().map(|(name, at)| format!("{name} on {}", at.display())).collect();
            let hint = match all.is_empty() {
                true => "none is mounted: `weft fs mount` mounts one; give its folder or its name"
                    .into(),
                false => format!(
                    "give the folder or the name of one that is mounted: {}",
                    all.join(", ")
                ),
            };
            let what = "no file system of this name is mounted, and there is no such folder";
            Err(Failure::new(format!("{name}: {what}")).hint(hint))
        }
        _ => Err(Failure::new(format!("{} file systems are called '{name}'", found.len()))
            .hint("give the folder on which the one that is meant is mounted")),
    }
}
