//! Mounts the FUSE file system: the part that needs root.
//!
//! Root creates a folder and mounts there, under a name that comes from the daemon and ultimately
//! from a disk. So the name must be that of one folder, the folders below the base are created and
//! opened one by one, by descriptor and without following links, in folders that only root can
//! change ([`weft_cli::owned_folder`]), and the mount uses the descriptor.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Uid;
use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_cli::owned_folder;

use crate::channel::READ_AHEAD_BYTES;

/// A mounted FUSE file system; unmounted on drop unless kept.
#[derive(Debug)]
pub struct Mount {
    /// The channel on which its requests arrive.
    pub fuse: File,
    mount_point: Option<PathBuf>,
}

impl Mount {
    /// Creates `mount_point`, a folder called `name`, and mounts there; needs root.
    ///
    /// # Errors
    /// If that fails at any step; nothing is left then.
    pub fn new(name: &str, mount_point: &Path) -> Result<Self, Failure> {
        let fuse = open_channel()?;
        let place = mount_point.display();
        let failed = |e: std::io::Error| Failure::new(format!("{place}: {e}"));
        let folder = make_mount_point(name, mount_point)?;
        // Even if a step fails, no program may write into the folder beneath, taking it for the
        // array.
        set_immutable(&folder, true);
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        let options = std::ffi::CString::new(options).map_err(|e| failed(e.into()))?;
        rustix::mount::mount(
            format!("weft:{name}"),
            format!("/proc/self/fd/{}", folder.as_raw_fd()),
            "fuse.weft",
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
            Some(options.as_c_str()),
        )
        .map_err(|e| {
            remove_mount_point(mount_point);
            failed(e.into())
        })?;
        Ok(Self { fuse, mount_point: Some(mount_point.to_owned()) })
    }

    /// Keeps it.
    pub fn keep(mut self) {
        self.mount_point = None;
    }
}

fn open_channel() -> Result<File, Failure> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/fuse");
    opened.map_err(|e| {
        Failure::new(format!("/dev/fuse: {e}"))
            .hint("the kernel must support FUSE: try `modprobe fuse`, or use an NBD client instead")
    })
}

/// The type of a mounted weftfs, and that of one for which the kernel has a block device.
const TYPES: [&str; 2] = ["fuse.weftfs", "fuseblk.weftfs"];

fn is_weftfs(kind: Option<&str>) -> bool {
    kind.is_some_and(|kind| TYPES.contains(&kind))
}

/// Mounts the weftfs `name` with these flags on a folder that is there; needs root. Returns the
/// channel. With a block `device` the kernel passes `sync` and `syncfs` on (since Linux 6.18): who
/// may mount devices is trusted not to hold them up. It opens the device for itself, shows its
/// name, and neither reads nor writes it.
///
/// # Errors
/// If it cannot be mounted.
pub fn mount_on(
    folder: &Path,
    name: &str,
    device: Option<&Path>,
    flags: MountFlags,
) -> Result<File, Failure> {
    let fuse = open_channel()?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other{}",
        fuse.as_raw_fd(),
        if device.is_some() { ",blksize=4096" } else { "" }
    );
    let failed = |e: std::io::Error| {
        Failure::new(format!("{}: {e}", folder.display())).hint("mounting needs root")
    };
    let options = std::ffi::CString::new(options).map_err(|e| failed(e.into()))?;
    let (source, kind) = match device {
        Some(device) => (device, TYPES[1]),
        None => (Path::new(name), TYPES[0]),
    };
    rustix::mount::mount(source, folder, kind, flags, Some(options.as_c_str()))
        .map_err(|e| failed(e.into()))?;
    set_read_ahead(folder);
    Ok(fuse)
}

/// Gives the weftfs that is mounted on a folder other flags; needs root.
///
/// # Errors
/// If none is mounted there, or the kernel refuses: to make one read-only in which files are open
/// for writing.
pub fn remount(folder: &Path, flags: MountFlags) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", folder.display()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
    if !is_weftfs(type_of_mount(&mounts, folder)) {
        let why = format!("{}: no weft file system is mounted there", folder.display());
        return Err(Failure::new(why));
    }
    rustix::mount::mount_remount(folder, flags, "").map_err(|e| failed(e.into()))
}

/// Lets the kernel read ahead as far as the server allows. It works without.
fn set_read_ahead(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(device) = device_of_mount(&mounts, folder) else { return };
    // Without the suffix it is that of the block device.
    let suffix = if type_of_mount(&mounts, folder) == Some(TYPES[1]) { "-fuseblk" } else { "" };
    let setting = format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
    let _ = fs::write(setting, (READ_AHEAD_BYTES / 1024).to_string());
}

/// The device number (`MAJOR:MINOR`) of the last mount on a folder.
fn device_of_mount<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    line_of_mount(mounts, folder)?.split(' ').nth(2)
}

/// The type of the last mount on a folder.
fn type_of_mount<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    line_of_mount(mounts, folder)?.split_once(" - ")?.1.split(' ').next()
}

/// The line of `/proc/self/mountinfo` for the last mount on a folder.
fn line_of_mount<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    let escaped = |byte: u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        _ => vec![byte],
    };
    let name: Vec<u8> = folder.as_os_str().as_bytes().iter().copied().flat_map(escaped).collect();
    let is_there = |line: &&str| line.split(' ').nth(4).is_some_and(|at| at.as_bytes() == name);
    mounts.lines().rev().find(is_there)
}

/// The folders on which a weftfs is mounted.
#[must_use]
pub fn folders_of_weftfs() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| {
        let kind = line.split_once(" - ")?.1.split(' ').next();
        is_weftfs(kind).then(|| unescaped(line.split(' ').nth(4)?))
    });
    places.flatten().collect()
}

/// A path as `/proc/self/mountinfo` has it, with spaces and the like as octal numbers.
fn unescaped(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('\\');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (code, rest) = part.split_at_checked(3)?;
        bytes.push(u8::from_str_radix(code, 8).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// The folder `path`, by a path without links, for mounting a file system on it. If a weftfs is
/// mounted there whose server has died, it is taken away.
///
/// # Errors
/// If there is no such folder.
pub fn folder_for(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    loop {
        let folder = without_links(path).map_err(failed)?;
        match fs::metadata(&folder) {
            Ok(of) if of.is_dir() => return Ok(folder),
            Ok(_) => return Err(Failure::new(format!("{} is not a folder", path.display()))),
            // Its server was dying just now: by now it is dead.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::CONNABORTED) => {}
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NOTCONN) => {
                let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
                if !is_weftfs(type_of_mount(&mounts, &folder)) {
                    return Err(failed(e));
                }
                // Nothing is lost with it: all that uses it gets errors already.
                let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                rustix::mount::unmount(&folder, flags).map_err(|e| failed(e.into()))?;
                log_line(&format!(
                    "{}: unmounted a file system whose server had died",
                    path.display()
                ));
            }
            Err(e) => return Err(failed(e)),
        }
    }
}

/// Whether an error is that of a mount whose server has died, or is dying just now.
fn is_dead(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// A path without links. Its last part may be a mount whose server has died.
fn without_links(path: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    match fs::canonicalize(&absolute) {
        Err(e) if is_dead(&e) => match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
            _ => Err(e),
        },
        found => found,
    }
}

/// Unmounts a folder, unless it is in use.
///
/// # Errors
/// `EBUSY` if it is in use.
pub fn unmount_unused(folder: &Path) -> Result<(), Errno> {
    rustix::mount::unmount(folder, UnmountFlags::NOFOLLOW)
}

/// Ends the service of a mount, although it is in use: after the kernel has written what it holds
/// of its files. The mount stays, so nothing is written beneath it by mistake.
pub fn end_service(folder: &Path) {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::empty()) {
        Ok(root) => drop(rustix::fs::syncfs(&root)),
        Err(e) => log_line(&format!("{}: {e}", folder.display())),
    }
    // With FORCE the kernel ends the connection, and then does not unmount, as it is in use.
    let _ = rustix::mount::unmount(folder, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
}

/// Ends the connection of a mount at once: what waits for its server gets errors, and so does what
/// the kernel has not written back. A mount that is in use stays.
pub fn cut_off(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if is_weftfs(type_of_mount(&mounts, folder)) {
        // The connection ends first, also of a mount that is in use.
        let _ = rustix::mount::unmount(folder, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mount_point) = self.mount_point.take() {
            let _ =
                rustix::mount::unmount(&mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            remove_mount_point(&mount_point);
        }
    }
}

/// Creates and opens `BASE/FOLDER/NAME`, each owned by root; the base must exist or be in `/run`.
fn make_mount_point(name: &str, mount_point: &Path) -> Result<OwnedFd, Failure> {
    let parent = mount_point.parent().filter(|_| mount_point.file_name() == Some(name.as_ref()));
    let base = parent.and_then(Path::parent).zip(parent.and_then(Path::file_name));
    let Some((base, last)) = base.and_then(|(base, last)| Some((base, last.to_str()?))) else {
        return Err(Failure::new(format!("{} is not a mount point", mount_point.display())));
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(base)
        .map_err(|e| Failure::new(format!("{}: {e}", base.display())))?;
    let folder = owned_folder::open(base, Uid::ROOT)?;
    let folder = owned_folder::make_below(&folder, last, &base.join(last), Uid::ROOT)?;
    owned_folder::make_below(&folder, name, mount_point, Uid::ROOT)
}

/// Removes the folder that something was mounted on.
pub fn remove_mount_point(mount_point: &Path) {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(folder) = rustix::fs::open(mount_point, flags, Mode::empty()) {
        set_immutable(&folder, false);
    }
    let _ = fs::remove_dir(mount_point);
}

/// A safeguard that some file systems lack (tmpfs before Linux 6.6); then it is skipped.
fn set_immutable(folder: &OwnedFd, immutable: bool) {
    let Ok(flags) = rustix::fs::ioctl_getflags(folder) else { return };
    let mut wanted = flags;
    wanted.set(IFlags::IMMUTABLE, immutable);
    if wanted != flags {
        let _ = rustix::fs::ioctl_setflags(folder, wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_mount_is_found_by_its_folder() {
        let mounts = "29 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      40 29 0:41 / /mnt rw - fuse.weftfs home rw\n\
                      41 29 0:42 / /mnt\\040x rw - fuse.weftfs home rw\n\
                      42 40 0:43 / /mnt rw - fuse.weftfs work rw\n";
        let device = |folder: &str| device_of_mount(mounts, Path::new(folder));
        assert_eq!(device("/mnt"), Some("0:43"));
        assert_eq!(device("/mnt x"), Some("0:42"));
        assert_eq!(device("/m"), None);
        assert_eq!(type_of_mount(mounts, Path::new("/mnt x")), Some("fuse.weftfs"));
        assert!(is_weftfs(Some("fuseblk.weftfs")) && !is_weftfs(Some("fuse")) && !is_weftfs(None));
        assert_eq!(type_of_mount(mounts, Path::new("/")), Some("ext4"));
        assert_eq!(unescaped("/mnt\\040x\\134"), Some("/mnt x\\".into()));
        assert_eq!(unescaped("/mnt\\04"), None);
    }
}
