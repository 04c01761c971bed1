//! Watches that members still exist under the names they were opened by.
//!
//! A file that is deleted while it is open still works, and is lost when it is closed: the array
//! would look healthy until its next start, and then find a member missing. Failing the member at
//! once would throw away redundancy that still exists, so an ALERT asks the user to replace it
//! while it can be copied. The check uses only the names, on a thread of its own, so a hung disk
//! cannot delay it, and it delays no request.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::rc::Rc;

use weft_cli::disks::DiskAddress;
use weft_cli::thread;
use weft_rt::{Nanos, SECOND};

use crate::control::protocol::VanishedDisk;
use crate::daemon::alerts::{self, Alert};
use crate::daemon::{Daemon, log};

const LOOK_EVERY: Nanos = 3 * SECOND;

/// The file or device that a name led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// A file: file system and inode.
    File(u64, u64),
    /// A block device: its number.
    Device(u64),
}

impl Identity {
    /// The file or device at `place` now; `None` if that is not a path, or nothing is there.
    pub fn of(place: &str) -> Option<Self> {
        match DiskAddress::of(place) {
            DiskAddress::Path(path) => fs::metadata(path).ok().map(|data| Self::from(&data)),
            DiskAddress::Uri(_) => None,
        }
    }

    fn from(data: &Metadata) -> Self {
        if data.file_type().is_block_device() {
            Self::Device(data.rdev())
        } else {
            Self::File(data.dev(), data.ino())
        }
    }
}

/// What became of `disk`, which was `identity` when it was opened; `None` if it is still there.
fn fate_of(disk: &str, identity: Identity) -> Option<String> {
    let there = match fs::metadata(disk) {
        Ok(data) if Identity::from(&data) == identity => return None,
        Ok(_) => true,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
        // A failed look tells nothing about the disk.
        Err(_) => return None,
    };
    if let Identity::Device(_) = identity {
        return Some("its device node is gone (unplugged?)".to_owned());
    }
    let opened = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let own = opened
        .map(|entry| entry.path())
        .find(|path| fs::metadata(path).is_ok_and(|data| Identity::from(&data) == identity));
    let links = own.as_ref().and_then(|path| fs::metadata(path).ok()).map(|data| data.nlink());
    let renamed = own.and_then(|path| fs::read_link(path).ok()).filter(|_| links != Some(0));
    Some(match renamed {
        Some(name) if name != Path::new(disk) => format!("it was renamed to {}", name.display()),
        _ if there => "it was deleted, and another file took its name".to_owned(),
        _ => "it was deleted".to_owned(),
    })
}

impl Daemon {
    /// Checks regularly, until the daemon stops.
    pub(super) async fn watch_members(self: Rc<Self>) {
        while !self.stopping.get() {
            self.opener.rt.sleep(LOOK_EVERY).await;
            self.vhost.iter().for_each(|vhost| vhost.note_sizes());
            let mut watched = Vec::new();
            for (name, served) in &*self.arrays.borrow() {
                let opened = self.opened.borrow();
                for disk in served.array.status().disks() {
                    let identity = opened.get(&disk).and_then(|opened| opened.identity);
                    watched.extend(identity.map(|id| (name.clone(), disk.clone(), id)));
                }
            }
            let look = move || -> Vec<(String, VanishedDisk)> {
                let became = |(array, disk, id): (String, String, Identity)| {
                    let what = fate_of(&disk, id)?;
                    Some((array, VanishedDisk { disk, what }))
                };
                watched.into_iter().filter_map(became).collect()
            };
            let Ok(vanished) = thread::elsewhere(look).await else { continue };
            self.note_vanished(vanished);
        }
    }

    fn note_vanished(&self, found: Vec<(String, VanishedDisk)>) {
        let mut now: BTreeMap<String, Vec<VanishedDisk>> = BTreeMap::new();
        for (array, disk) in found {
            now.entry(array).or_default().push(disk);
        }
        let before = self.vanished.replace(now);
        let known = |array: &str, disk: &VanishedDisk| {
            before.get(array).is_some_and(|disks| disks.contains(disk))
        };
        for (array, disks) in &*self.vanished.borrow() {
            for disk in disks.iter().filter(|disk| !known(array, disk)) {
                let VanishedDisk { disk, what } = disk;
                alerts::tell(Alert {
                    event: "MemberDisappeared",
                    array: array.clone(),
                    member: Some(disk.clone()),
                    text: format!("{disk}: {what}"),
                    attention: true,
                });
                log::about(
                    array,
                    &format!(
                        "ALERT: {disk}: {what}; it works until weft stops, and will be missing \
                         after that: replace it now with `weft replace {array} {disk} NEWDISK`"
                    ),
                );
            }
        }
    }
}
