//! The disks of the arrays: which hardware they are, and their I/O.
//!
//! Both are looked up when a disk is opened and kept when it fails, because the user must find the
//! failed disk. The path may lead to another disk later.

use weft_array::{MemberState, Status};
use weft_code::SlotNo;
use weft_disk::{Counters, Disk};

use crate::control::protocol::{DiskRole, DiskStatus};
use crate::daemon::Daemon;
use crate::daemon::watch::Identity;
use crate::device::Device;

/// A disk that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The file or device that its name led to; `None` if that is not a path.
    pub identity: Option<Identity>,
    device: Device,
    counters: Option<Counters>,
}

impl Opened {
    /// Looks up `disk`, which was opened as `place`.
    pub fn new(place: &str, disk: &dyn Disk) -> Self {
        let (identity, device) = (Identity::of(place), Device::at(place));
        Self { identity, device, counters: disk.counters() }
    }
}

impl Daemon {
    /// The disks of an array.
    pub(super) fn disks_of(&self, status: &Status) -> Vec<DiskStatus> {
        let opened = self.opened.borrow();
        let disk = |disk: &String, role: DiskRole, slot: Option<SlotNo>| {
            let opened = opened.get(disk);
            DiskStatus {
                disk: disk.clone(),
                role,
                slot,
                hardware: opened.map_or_else(|| Device::unseen(disk), |it| it.device.clone()),
                io: opened.and_then(|it| Some(it.counters.as_ref()?.get())),
            }
        };
        let slots = status.slots.iter();
        let known = slots.clone().filter(|s| s.state != MemberState::Missing || !s.disk.is_empty());
        let members = known.map(|s| disk(&s.disk, DiskRole::Member, Some(s.slot)));
        let replacements = slots.filter_map(|s| {
            Some(disk(s.replacement.as_ref()?, DiskRole::Replacement, Some(s.slot)))
        });
        let spares = status.spares.iter().map(|spare| disk(spare, DiskRole::Spare, None));
        members.chain(replacements).chain(spares).collect()
    }
}
