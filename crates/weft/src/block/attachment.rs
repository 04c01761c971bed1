//! The block device of an attached array, as the kernel shows it: a ublk device, a device of its
//! NBD client, or a FUSE file system with one file and loop devices over that file. It outlives a
//! daemon that has died.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use weft_cli::failure::{Failure, Outcome};
use weft_disk::mounts;
use weft_fuse::mount::remove_mount_point;
use weft_fuse::session::FILE_NAME;

use crate::block::link;
use crate::block::loop_device::LoopDevice;
use crate::block::nbd_device::{self, NbdDevice};
use crate::block::node::Node;
use crate::block::ublk_device::{self, UblkDevice};
use crate::block::users;
use crate::runtime_dir::RuntimeDir;

/// The way from the kernel's block layer to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// A ublk device. When its daemon ends, its users wait for the next one.
    Ublk,
    /// A loop device over the one file of a FUSE file system. When its daemon ends, it returns
    /// errors.
    Fuse,
    /// A device of the kernel's NBD client. When its daemon ends, its users wait for the next one,
    /// for a time.
    Nbd,
}

/// The kernel's side of an attached array.
#[derive(Debug)]
pub struct Attachment {
    /// The array.
    pub name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Ublk(UblkDevice),
    Nbd(NbdDevice),
    Fuse {
        /// One, unless a user created another by hand.
        devices: Vec<LoopDevice>,
        mount_point: PathBuf,
        mounted: bool,
    },
}

impl Attachment {
    /// The attachment of the array `name`: the ublk device of this number, or the devices found in
    /// the runtime directory. `None` if it is not attached.
    pub fn of(dir: &RuntimeDir, name: &str, ublk: Option<u32>) -> Option<Self> {
        match ublk {
            Some(number) => Self::ublk(name, UblkDevice::new(number)),
            None => Self::fuse(dir, name).or_else(|| Self::nbd(dir, name)),
        }
    }

    /// The device of the kernel's NBD client for an array.
    fn nbd(dir: &RuntimeDir, name: &str) -> Option<Self> {
        let device = nbd_device::at(&dir.mount_point(name))?;
        Some(Self { name: name.to_owned(), kind: Kind::Nbd(device) })
    }

    /// All such devices for arrays of the daemon with this runtime directory.
    pub fn all_nbd(dir: &RuntimeDir) -> Vec<Self> {
        let named = |device: NbdDevice| {
            let name = device.place()?.file_name()?.to_str()?.to_owned();
            let is_own = device.place() == Some(&dir.mount_point(&name));
            is_own.then_some(Self { name, kind: Kind::Nbd(device) })
        };
        nbd_device::all().into_iter().filter_map(named).collect()
    }

    /// Whether it waits for another array than the one with this id: one that had its name.
    /// Requests of users that wait would be made there. Only known of a device of the kernel's NBD
    /// client, which anything can answer that has a socket for it.
    pub fn is_of_another(&self, id: &str) -> bool {
        matches!(&self.kind, Kind::Nbd(device) if device.array() != Some(id))
    }

    /// Goes on with the daemon at the other end of `socket`; only for a device of the kernel's NBD
    /// client.
    pub fn go_on(&self, socket: &UnixStream) -> Outcome {
        match &self.kind {
            Kind::Nbd(device) => device.go_on(&self.name, socket),
            _ => Ok(()),
        }
    }

    /// A ublk device, if the kernel has it.
    pub fn ublk(name: &str, device: UblkDevice) -> Option<Self> {
        let exists = device.node().exists();
        exists.then(|| Self { name: name.to_owned(), kind: Kind::Ublk(device) })
    }

    /// The FUSE file system of an array, and its loop devices.
    pub fn fuse(dir: &RuntimeDir, name: &str) -> Option<Self> {
        if name.is_empty() || name.contains('/') {
            return None;
        }
        let mount_point = dir.mount_point(name);
        let mounted = mounts::is_mount_point(&mount_point).unwrap_or(false);
        let devices = LoopDevice::of_file(&mount_point.join(FILE_NAME));
        let found = mounted || !devices.is_empty();
        let kind = Kind::Fuse { devices, mount_point, mounted };
        found.then(|| Self { name: name.to_owned(), kind })
    }

    /// All attachments by FUSE below a runtime directory.
    pub fn all_fuse(dir: &RuntimeDir) -> Vec<Self> {
        let folder = dir.mount_point("");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| Self::fuse(dir, &name)).collect()
    }

    /// The ublk devices that no daemon serves.
    pub fn orphans() -> Vec<Self> {
        let orphans = ublk_device::orphans().into_iter();
        let kinds = orphans.map(|orphan| (orphan.array, Kind::Ublk(orphan.device)));
        kinds.map(|(name, kind)| Self { name, kind }).collect()
    }

    /// How it is attached.
    pub fn via(&self) -> Via {
        match self.kind {
            Kind::Ublk(_) => Via::Ublk,
            Kind::Nbd(_) => Via::Nbd,
            Kind::Fuse { .. } => Via::Fuse,
        }
    }

    fn nodes(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Ublk(device) => vec![device.node()],
            Kind::Nbd(device) => vec![device.node()],
            Kind::Fuse { devices, .. } => devices.iter().map(LoopDevice::node).collect(),
        }
    }

    /// Whether a daemon serves it: for a ublk device, which knows.
    pub fn is_served(&self) -> bool {
        matches!(&self.kind, Kind::Ublk(device) if device.is_served())
    }

    /// The device that users see.
    pub fn device(&self) -> Option<PathBuf> {
        self.nodes().first().map(|node| node.path())
    }

    /// Its devices.
    pub fn devices(&self) -> Vec<PathBuf> {
        self.nodes().iter().map(|node| node.path()).collect()
    }

    /// The link that leads to it.
    pub fn link(&self) -> Option<PathBuf> {
        let device = self.device()?;
        let leads = link::target_of(&self.name)? == device.file_name()?.to_str()?;
        leads.then(|| link::path_of(&self.name))
    }

    /// The size of that device.
    pub fn size_bytes(&self) -> Option<u64> {
        self.nodes().first()?.size_bytes()
    }

    /// Whether its devices refuse writes.
    pub fn is_read_only(&self) -> bool {
        self.nodes().iter().all(|node| node.setting("ro").as_deref() == Some("1"))
    }

    /// The logical block of that device.
    pub fn block_bytes(&self) -> Option<u32> {
        self.nodes().first()?.block_bytes()
    }

    /// Who uses it, in words; `None` if it is not in use.
    pub fn user(&self) -> Option<String> {
        match &self.kind {
            Kind::Ublk(device) => device.user(),
            Kind::Nbd(device) => device.user(),
            Kind::Fuse { .. } => self.nodes().into_iter().find_map(Node::user),
        }
    }

    /// Its user, with the names of some processes that have files open there.
    pub fn user_and_processes(&self) -> Option<String> {
        let user = self.user()?;
        let mounted = self.nodes().into_iter().flat_map(Node::mounts);
        let processes = users::processes_in(&mounted.collect::<Vec<_>>());
        if processes.is_empty() { Some(user) } else { Some(format!("{user}, used by {processes}")) }
    }

    /// Gives its devices the size that the array has now. Needs root.
    pub fn resize(&self, size_bytes: u64) -> Outcome {
        match &self.kind {
            Kind::Ublk(device) => device.resize(size_bytes),
            Kind::Nbd(_) => Err(Failure::new("a device by NBD keeps its size")
                .hint(format!("run `weft detach {}`, and attach it again", self.name))),
            Kind::Fuse { devices, mount_point, .. } => {
                // Loop devices take the size that the kernel asked for last.
                let file = mount_point.join(FILE_NAME);
                fs::metadata(&file)
                    .map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
                devices.iter().try_for_each(LoopDevice::resize)
            }
        }
    }

    /// Removes it. Refused while it is in use, unless `force`: then its users get errors.
    pub fn remove(&self, force: bool) -> Outcome {
        match &self.kind {
            Kind::Ublk(device) => device.remove(force),
            Kind::Nbd(device) => device.remove(force),
            Kind::Fuse { devices, mount_point, mounted } => {
                if force && *mounted {
                    // It is in use by the loop device, and so stays; but nothing waits any more.
                    let _ = rustix::mount::unmount(
                        mount_point,
                        UnmountFlags::FORCE | UnmountFlags::NOFOLLOW,
                    );
                }
                for device in devices {
                    device.remove()?;
                    if let Some(name) = device.node().path().file_name() {
                        link::clear(&name.to_string_lossy());
                    }
                }
                if *mounted {
                    unmount(mount_point)?;
                }
                remove_mount_point(mount_point);
                Ok(())
            }
        }
    }
}

fn unmount(mount_point: &Path) -> Outcome {
    rustix::mount::unmount(mount_point, UnmountFlags::NOFOLLOW).map_err(|e| {
        let place = mount_point.display();
        Failure::new(format!("{place}: {e}")).hint(format!("`fuser -m {place}` shows who uses it"))
    })
}
