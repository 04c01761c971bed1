//! Resolving a stripe: the one place that asks layout, members and region map what a stripe is.
//!
//! What follows – gathering, parity, records, writing – is `weft-stripe`'s, which knows none of
//! these.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_code::{SlotNo, UnitSet};
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Frozen;
use weft_stripe::{Access, Gathered, Met, Owner, Payload, Place, Stripe, StripeId, Units};
use weft_stripe::{Unreadable, gather};

use crate::engine::Inner;
use crate::error::ArrayError;
use crate::format::lane::Lane;
use crate::format::length::to_len;
use crate::geometry::Geometry;
use crate::region_map::RegionNo;
use crate::state::events::Event;

/// A unit that belongs on a replacement.
pub(crate) struct Target {
    pub unit: usize,
    /// Where the unit begins.
    pub place: Place,
    pub lane: Lane,
    pub disk: Rc<dyn Disk>,
}

impl Inner {
    /// The units of `stripe` that belong on replacements.
    pub fn targets(&self, stripe: StripeId) -> Vec<Target> {
        let targets = self.members.rebuilding().into_iter().filter_map(|(slot, lane)| {
            let unit = self.unit_on(stripe, slot)?;
            let (place, disk) = (self.place(stripe, unit, 0), self.members.rebuilt_disk(slot)?);
            Some(Target { unit, place, lane, disk })
        });
        targets.collect()
    }

    /// The targets' units that are stale on their replacements.
    pub fn stale_of(&self, stripe: StripeId, targets: &[Target]) -> UnitSet {
        let stale = targets.iter().filter(|target| self.map.is_stale(target.lane, stripe));
        stale.map(|target| target.unit).collect()
    }

    /// The slot of a unit.
    pub fn slot_of(&self, stripe: StripeId, unit: usize) -> SlotNo {
        self.geometry_of(stripe).slot(stripe.number, unit)
    }

    /// The unit of a stripe that lies on a slot; none in a stripe without one there.
    pub fn unit_on(&self, stripe: StripeId, slot: SlotNo) -> Option<usize> {
        self.geometry_of(stripe).unit_on(stripe.number, slot)
    }

    /// The stripe as it is now.
    pub fn stripe(&self, id: StripeId) -> Stripe<'_> {
        self.resolve(id)
    }

    /// The geometry in which a stripe counts.
    pub fn geometry_of(&self, stripe: StripeId) -> &Geometry {
        self.geometries.of(stripe)
    }

    /// The array offset of an offset in a data unit.
    pub fn offset_of(&self, stripe: StripeId, unit: usize, from: u64) -> u64 {
        self.geometry_of(stripe).offset(stripe.number, unit, from)
    }

    /// The newest geometry.
    pub fn geometry(&self) -> &Geometry {
        self.geometries.newest()
    }

    /// The name of a stripe of the newest geometry.
    pub fn id(&self, number: u64) -> StripeId {
        self.geometry().id(number)
    }

    /// The region of a stripe.
    pub fn region_of(&self, stripe: StripeId) -> RegionNo {
        self.geometry_of(stripe).regions.of(stripe.number)
    }

    /// The error for a unit that the code cannot give.
    pub fn unreadable(&self, stripe: StripeId, error: Unreadable) -> ArrayError {
        let Unreadable { unit, from, len, lost } = error;
        let offset = self.offset_of(stripe, unit, from);
        ArrayError::Unreadable { offset, len: len as u64, lost }
    }

    /// Fills the buffers of `wanted`: see [`gather`].
    ///
    /// # Errors
    /// [`ArrayError::Unreadable`] if the code cannot give one of them. The buffers are returned in
    /// any case.
    pub async fn gather(
        &self,
        stripe: Stripe<'_>,
        at: Access,
        wanted: Units,
    ) -> (Result<(), ArrayError>, Units) {
        let Gathered { result, units, .. } = gather(self, stripe, at, &[], wanted).await;
        (result.map_err(|error| self.unreadable(stripe.id, error)), units)
    }
}

impl Owner for Inner {
    #[inline]
    fn resolve(&self, id: StripeId) -> Stripe<'_> {
        let (lost, unsure) = (self.lost_units(id), self.awaits_resync(id));
        Stripe { id, coding: &self.geometry_of(id).coding, lost, pinned: false, unsure }
    }

    fn place(&self, id: StripeId, unit: usize, from: u64) -> Place {
        let (slot, offset) = self.geometry_of(id).locate(id.number, unit, from);
        Place { slot, offset }
    }

    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        self.members.disk(slot)
    }

    fn holds(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        self.members.holds(slot, disk)
    }

    fn in_flight(&self, slot: SlotNo) -> &Cell<u32> {
        self.members.in_flight(slot)
    }

    fn sector_bytes(&self) -> usize {
        to_len(self.geometry().sector_bytes)
    }

    fn may_repair(&self) -> bool {
        self.check_writable().is_ok()
    }

    fn balances_load(&self) -> bool {
        self.load_aware_reconstruction.get()
    }

    fn is_rotational(&self) -> bool {
        self.members.any_rotational()
    }

    fn met(&self, slot: SlotNo, what: Met) {
        match what {
            Met::ReadError => self.members.count_read_error(slot),
            Met::Repaired { offset, len } => {
                self.members.count_repair(slot);
                self.events.emit(Event::ReadErrorRepaired { slot, offset, len });
            }
        }
    }

    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        disk: &'a Rc<dyn Disk>,
        error: &'a DiskError,
    ) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.member_failed(slot, disk, error))
    }

    fn second(&self, id: StripeId, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        self.members.second_for_write(slot, |lane| self.map.is_stale(lane, id))
    }

    fn write_both<'a>(
        &'a self,
        id: StripeId,
        slot: SlotNo,
        (disk, second): (&'a Rc<dyn Disk>, Rc<dyn Disk>),
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> LocalBoxFuture<'a, Result<(), DiskError>> {
        Box::pin(self.write_to_both(id, slot, (disk, second), offset, data, opts))
    }

    fn wait_for_space<'a>(
        &'a self,
        slot: SlotNo,
        disk: &'a Rc<dyn Disk>,
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
        error: DiskError,
    ) -> LocalBoxFuture<'a, Result<(), DiskError>> {
        let len = data.len() as u64;
        let write = move || disk.write(offset, data.clone(), opts);
        Box::pin(self.wait_for_room(slot, disk, len, write, error))
    }
    fn record_room(&self, slot: SlotNo, len: usize) -> Payload {
        match &self.log {
            Some(log) => log.room(slot, len),
            None => Payload::new(len),
        }
    }
}
