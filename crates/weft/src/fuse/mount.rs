//! Mounting the FUSE file system: what needs root.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::IFlags;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::failure::Failure;

/// A mounted FUSE file system; unmounted on drop unless kept.
#[derive(Debug)]
pub struct Mount {
    /// The channel that its requests come by.
    pub fuse: File,
    mount_point: Option<PathBuf>,
}

impl Mount {
    /// Mounts at `mount_point`, which is made; needs root.
    pub fn new(name: &str, mount_point: &Path) -> Result<Self, Failure> {
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let opened =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/fuse");
        let fuse = opened.map_err(|e| {
            Failure::new(format!("/dev/fuse: {e}")).hint(
                "the kernel's FUSE is needed: try `modprobe fuse`; or use an NBD client instead",
            )
        })?;
        let place = mount_point.display();
        let failed = |e: std::io::Error| Failure::new(format!("{place}: {e}"));
        fs::create_dir_all(mount_point).map_err(failed)?;
        // Whatever goes wrong, nobody shall write into the folder beneath, taking it for the array.
        set_immutable(mount_point, true);
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        let options = std::ffi::CString::new(options).map_err(|e| failed(e.into()))?;
        rustix::mount::mount(
            format!("weft:{name}"),
            mount_point,
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

    /// Lets it stay.
    pub fn keep(mut self) {
        self.mount_point = None;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mount_point) = self.mount_point.take() {
            let _ = rustix::mount::unmount(&mount_point, UnmountFlags::DETACH);
            remove_mount_point(&mount_point);
        }
    }
}

/// Removes the folder that something was mounted on.
pub fn remove_mount_point(mount_point: &Path) {
    set_immutable(mount_point, false);
    let _ = fs::remove_dir(mount_point);
}

/// A safeguard that some file systems (tmpfs before Linux 6.6) do not have; then it goes without.
fn set_immutable(folder: &Path, immutable: bool) {
    let Ok(folder) = File::open(folder) else { return };
    let Ok(flags) = rustix::fs::ioctl_getflags(&folder) else { return };
    let mut wanted = flags;
    wanted.set(IFlags::IMMUTABLE, immutable);
    if wanted != flags {
        let _ = rustix::fs::ioctl_setflags(&folder, wanted);
    }
}
