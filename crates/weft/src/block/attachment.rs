//! The block device of an attached array, as the kernel shows it: a FUSE file system with one file,
//! and loop devices over that file. It outlives a daemon that has died.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;
use weft_cli::failure::{Failure, Outcome};
use weft_disk::mounts;
use weft_fuse::mount::remove_mount_point;
use weft_fuse::session::FILE_NAME;

use crate::block::loop_device::LoopDevice;
use crate::block::users;
use crate::runtime_dir::RuntimeDir;

/// The kernel's side of an attached array.
#[derive(Debug)]
pub struct Attachment {
    /// The array.
    pub name: String,
    /// Its devices: one, unless a user created another by hand.
    pub devices: Vec<LoopDevice>,
    mount_point: PathBuf,
    mounted: bool,
}

impl Attachment {
    /// The attachment of the array `name`; `None` if it is not attached.
    pub fn of(dir: &RuntimeDir, name: &str) -> Option<Self> {
        if name.is_empty() || name.contains('/') {
            return None;
        }
        let mount_point = dir.mount_point(name);
        let mounted = mounts::is_mount_point(&mount_point).unwrap_or(false);
        let devices = LoopDevice::of_file(&mount_point.join(FILE_NAME));
        let name = name.to_owned();
        (mounted || !devices.is_empty()).then_some(Self { name, devices, mount_point, mounted })
    }

    /// All attachments below a runtime directory.
    pub fn all(dir: &RuntimeDir) -> Vec<Self> {
        let folder = dir.mount_point("");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| Self::of(dir, &name)).collect()
    }

    /// The device that users see.
    pub fn device(&self) -> Option<PathBuf> {
        self.devices.first().map(LoopDevice::path)
    }

    /// The size of that device.
    pub fn size_bytes(&self) -> Option<u64> {
        self.devices.first()?.size_bytes()
    }

    /// Who uses it, in words; `None` if it is not in use.
    pub fn user(&self) -> Option<String> {
        self.devices.iter().find_map(LoopDevice::user)
    }

    /// The same, with the names of some processes that have files open there.
    pub fn user_and_processes(&self) -> Option<String> {
        let user = self.user()?;
        let mounted = self.devices.iter().flat_map(LoopDevice::mounts);
        let processes = users::processes_in(&mounted.collect::<Vec<_>>());
        if processes.is_empty() { Some(user) } else { Some(format!("{user}, used by {processes}")) }
    }

    /// Gives its devices the size that the array has now. Needs root.
    pub fn resize(&self) -> Outcome {
        // Loop devices take the size that the kernel asked for last.
        let file = self.mount_point.join(FILE_NAME);
        fs::metadata(&file).map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
        self.devices.iter().try_for_each(LoopDevice::resize)
    }

    /// Removes it. Refused while it is in use.
    pub fn remove(&self) -> Outcome {
        for device in &self.devices {
            device.remove()?;
        }
        if self.mounted {
            unmount(&self.mount_point)?;
        }
        remove_mount_point(&self.mount_point);
        Ok(())
    }
}

fn unmount(mount_point: &Path) -> Outcome {
    rustix::mount::unmount(mount_point, UnmountFlags::NOFOLLOW).map_err(|e| {
        let place = mount_point.display();
        Failure::new(format!("{place}: {e}")).hint(format!("`fuser -m {place}` shows who uses it"))
    })
}
