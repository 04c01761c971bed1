//! The ublk devices of attached arrays.

use std::collections::BTreeSet;

use rustix::io::Errno;
use weft_cli::failure::{Failure, Outcome};
use weft_ublk::device::{self, Device, Service};

use crate::block::node::Node;
use crate::block::{link, users};

/// How the words start for a device that programs have open and that is not used otherwise.
pub const OPEN_IN: &str = "open in ";

/// A ublk device: `/dev/ublkbN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UblkDevice {
    number: u32,
    node: Node,
}

impl UblkDevice {
    /// The device of this number.
    pub fn new(number: u32) -> Self {
        Self { number, node: Node::new(name_of(number)) }
    }

    /// What `/sys` shows of it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Whether a daemon serves it.
    pub fn is_served(&self) -> bool {
        let all = device::all().unwrap_or_default().into_iter();
        let mut own = all.filter(|device| device.number == self.number);
        own.any(|device| matches!(device.service, Service::By(_)))
    }

    /// Who uses it, in words; `None` if it is not in use. Also a program that has only opened it:
    /// the driver would not wait for it.
    pub fn user(&self) -> Option<String> {
        self.node.user().or_else(|| {
            let processes = users::processes_in(&[self.node.path()]);
            (!processes.is_empty()).then(|| format!("{OPEN_IN}{processes}"))
        })
    }

    /// Gives it another size.
    pub fn resize(&self, size_bytes: u64) -> Outcome {
        device::resize(self.number, size_bytes).map_err(|e| {
            let place = self.node.path();
            Failure::new(format!("{} keeps its size: {e}", place.display()))
                .hint("detach the array and attach it again")
        })
    }

    /// Removes it. Refused while it is claimed, unless `force`: then its users get errors.
    pub fn remove(&self, force: bool) -> Outcome {
        let place = self.node.path();
        let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", place.display()));
        // Held until it is stopped, so that it cannot be mounted in the meantime. One that was
        // added and did not start has no file to open.
        let claim = match self.node.claim() {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) && !force => {
                return Err(Failure::new(format!("{} is in use", place.display())));
            }
            claim => claim.ok(),
        };
        link::clear(&name_of(self.number));
        let removed = match force {
            true => device::remove_in_use(self.number),
            false => device::remove(self.number, claim),
        };
        removed.map_err(failed)
    }
}

fn name_of(number: u32) -> String {
    format!("ublkb{number}")
}

/// The tag of the device of the array with this id.
pub fn tag_of(array_id: &str) -> u64 {
    device::tag_of(array_id.as_bytes())
}

/// Links an array to its ublk device. A link to another device of weft's stays.
pub fn set_link(array: &str, number: u32) -> bool {
    link::set(array, &name_of(number), is_attached)
}

/// Whether the device of this name, to which a link of weft's leads, still is that of an array:
/// numbers of ublk devices are given again, and loop devices stay when they are not in use.
pub fn is_attached(name: &str) -> bool {
    match device::number_of(name) {
        Some(number) => numbers().contains(&number),
        None => ["loop/backing_file", "backend"]
            .iter()
            .any(|setting| Node::new(name.to_owned()).setting(setting).is_some()),
    }
}

/// A ublk device of weft's that no daemon serves.
#[derive(Debug)]
pub struct Orphan {
    /// The array, by its link; the device's own name if there is none.
    pub array: String,
    /// The device.
    pub device: UblkDevice,
}

/// The devices of weft's that no daemon serves. Only root can see them.
pub fn orphans() -> Vec<Orphan> {
    let all = device::all().unwrap_or_default().into_iter();
    let orphaned = all.filter(|device| !matches!(device.service, Service::By(_)));
    orphaned
        .map(|Device { number, .. }| {
            let array = link::array_of(&name_of(number)).unwrap_or_else(|| name_of(number));
            Orphan { array, device: UblkDevice::new(number) }
        })
        .collect()
}

/// The device of an array that no daemon serves, by the array's link, or by its own name.
pub fn by_name(array: &str) -> Option<UblkDevice> {
    let target = link::target_of(array).unwrap_or_else(|| array.to_owned());
    let number = device::number_of(&target)?;
    // The number may be that of another program's device by now.
    let all = device::all().ok()?;
    all.iter().any(|device| device.number == number).then(|| UblkDevice::new(number))
}

/// The device of the array with this id.
pub fn by_id(array_id: &str) -> Option<UblkDevice> {
    let found = device::find(tag_of(array_id)).ok().flatten();
    found.map(|device| UblkDevice::new(device.number))
}

/// Numbers of the devices of weft's.
pub fn numbers() -> BTreeSet<u32> {
    device::all().unwrap_or_default().into_iter().map(|device| device.number).collect()
}
