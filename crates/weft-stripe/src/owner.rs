//! What a stripe is once it is resolved, and what it needs from its owner.

use std::cell::Cell;
use std::future::ready;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_code::{Code, SlotNo, UnitSet};
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Frozen;

use crate::Coding;
use crate::record::Payload;

/// A geometry of the owner: it may have two while it changes from one to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u16);

/// A stripe of a geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId {
    /// The geometry in which the number counts.
    pub generation: Generation,
    /// Its number.
    pub number: u64,
}

/// Where bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The owner's number of the device.
    pub slot: SlotNo,
    /// Byte offset on it.
    pub offset: u64,
}

/// A stripe as its owner resolves it at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Stripe<'a> {
    /// Which one.
    pub id: StripeId,
    /// The code that holds.
    pub coding: &'a Coding,
    /// The units that may not be read.
    pub lost: UnitSet,
    /// Whether that is so even if the owner gets some of them back during this.
    pub pinned: bool,
    /// Whether its parity, or copies, may be wrong: it was being written at a crash.
    pub unsure: bool,
}

impl<'a> Stripe<'a> {
    /// The code that holds.
    #[must_use]
    pub fn code(&self) -> &'a Code {
        self.coding.code()
    }

    /// The data units that parity row `row` covers.
    #[must_use]
    pub fn support(&self, row: usize) -> UnitSet {
        self.coding.support(self.id.number, row)
    }

    /// This stripe with exactly these units unreadable.
    #[must_use]
    pub fn with_lost(self, lost: UnitSet) -> Self {
        Self { lost, pinned: true, ..self }
    }

    /// This stripe, read from none but these units, as far as they are there.
    #[must_use]
    pub fn limited_to(self, units: UnitSet) -> Self {
        self.with_lost(self.lost.union(&self.coding.units().difference(&units)))
    }

    /// This stripe, read without further units for as long as that is possible.
    #[must_use]
    pub fn avoiding(self, units: UnitSet) -> Self {
        Self { lost: self.lost.union(&units), ..self }
    }
}

/// Something that happened on a device and that its owner counts or reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEvent {
    /// Sectors that could not be read.
    ReadError,
    /// They were reconstructed and written.
    Repaired {
        /// Byte offset on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// Who owns stripes: knows their places and the state of the devices.
pub trait Owner {
    /// The stripe as it is now.
    fn resolve(&self, id: StripeId) -> Stripe<'_>;

    /// Where offset `from` of a unit lies.
    fn place(&self, id: StripeId, unit: usize, from: u64) -> Location;

    /// The device in a slot; none if it is missing.
    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>>;

    /// Whether the device is still in the slot.
    fn holds(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool;

    /// The number of requests in progress on a slot.
    fn in_flight(&self, slot: SlotNo) -> &Cell<u32>;

    /// Requests must be aligned to this, in bytes.
    fn sector_bytes(&self) -> usize;

    /// Whether sectors that could not be read may be rewritten.
    fn may_repair(&self) -> bool {
        false
    }

    /// Whether repairs for users, and updates of parity, avoid devices with deep queues.
    fn balances_load(&self) -> bool {
        false
    }

    /// Whether any of the devices has rotating platters.
    fn is_rotational(&self) -> bool {
        false
    }

    /// Something happened on the device in a slot.
    fn met(&self, slot: SlotNo, what: DeviceEvent);

    /// The device failed a request. When this ends the owner has excluded it, or has decided to
    /// keep it.
    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        disk: &'a Rc<dyn Disk>,
        error: &'a DiskError,
    ) -> LocalBoxFuture<'a, ()>;

    /// A second device that must get what the slot's device gets of this stripe.
    fn second(&self, _id: StripeId, _slot: SlotNo) -> Option<Rc<dyn Disk>> {
        None
    }

    /// Writes to the slot's device and to its second. The result is that of the slot's device.
    fn write_both<'a>(
        &'a self,
        _id: StripeId,
        _slot: SlotNo,
        (disk, _second): (&'a Rc<dyn Disk>, Rc<dyn Disk>),
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> LocalBoxFuture<'a, Result<(), DiskError>> {
        disk.write(offset, data, opts)
    }

    /// A user's write found no space on the device: an owner that can wait for space repeats it
    /// then.
    fn wait_for_space<'a>(
        &'a self,
        _slot: SlotNo,
        _disk: &'a Rc<dyn Disk>,
        _offset: u64,
        _data: Frozen,
        _opts: WriteOpts,
        error: DiskError,
    ) -> LocalBoxFuture<'a, Result<(), DiskError>> {
        Box::pin(ready(Err(error)))
    }

    /// Room for the sum of a record that goes to the log of a slot, of `len` bytes: where the log
    /// need not copy it.
    fn record_room(&self, _slot: SlotNo, len: usize) -> Payload {
        Payload::new(len)
    }
}
