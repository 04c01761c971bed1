//! Resolving a stripe: the one place that asks layout, members and region map what a stripe is.
//!
//! What follows – gathering, parity, records, writing – is `weft-stripe`'s, which knows none of
//! these.

use std::rc::Rc;

use weft_code::{SlotNo, UnitSet};
use weft_disk::Disk;
use weft_stripe::{Access, Gathered, Location, Stripe, StripeId, Units};
use weft_stripe::{Unreadable, gather};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::lane::Lane;

/// A unit that belongs on a replacement.
pub(crate) struct ReplacementUnit {
    pub unit: usize,
    /// Where the unit starts.
    pub place: Location,
    pub lane: Lane,
    pub disk: Rc<dyn Disk>,
}

impl Engine {
    /// The units of `stripe` that belong on replacements.
    pub fn targets(&self, stripe: StripeId) -> Vec<ReplacementUnit> {
        let targets = self.members.rebuilding().into_iter().filter_map(|(slot, lane)| {
            let unit = self.unit_on(stripe, slot)?;
            let (place, disk) = (self.location(stripe, unit, 0), self.members.rebuilt_disk(slot)?);
            Some(ReplacementUnit { unit, place, lane, disk })
        });
        targets.collect()
    }

    /// The targets' units that are stale on their replacements.
    pub fn stale_of(&self, stripe: StripeId, targets: &[ReplacementUnit]) -> UnitSet {
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
    #[inline]
    pub fn stripe(&self, id: StripeId) -> Stripe<'_> {
        let (lost, unsure) = (self.lost_units(id), self.awaits_resync(id));
        Stripe { id, coding: &self.geometry_of(id).coding, lost, pinned: false, unsure }
    }

    /// Where an offset in a unit lies.
    pub fn location(&self, id: StripeId, unit: usize, from: u64) -> Location {
        let (slot, offset) = self.geometry_of(id).locate(id.number, unit, from);
        Location { slot, offset }
    }

    /// The array offset of an offset in a data unit.
    pub fn offset_of(&self, stripe: StripeId, unit: usize, from: u64) -> u64 {
        self.geometry_of(stripe).offset(stripe.number, unit, from)
    }

    /// Whether the copies or the parity of `stripe` may disagree until its region is resynced.
    pub(crate) fn awaits_resync(&self, stripe: StripeId) -> bool {
        self.map.needs_resync(self.region_of(stripe))
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
