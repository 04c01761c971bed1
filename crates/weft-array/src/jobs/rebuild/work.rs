//! The stripes that are left, as orders see them. Only the region map decides: stripes that were
//! rebuilt in any way, or need no rebuild any more, are not left, and this file keeps no state of
//! its own.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use weft_stripe::{Generation, StripeId};

use crate::format::lane::LaneSet;
use crate::region_map::RegionMap;

/// Stripes that must not be started: stripes in flight, and stripes that could not be rebuilt.
pub(crate) type Taken = RefCell<BTreeSet<StripeId>>;

/// The stripes of a geometry that are left to rebuild. Orders know them by their numbers.
pub(crate) struct Work<'a> {
    pub map: &'a RegionMap,
    pub generation: Generation,
    /// The lanes that are being rebuilt.
    pub lanes: LaneSet,
    pub taken: &'a Taken,
    /// Number of units that a stripe has lost.
    pub lost: &'a dyn Fn(StripeId) -> usize,
    /// Incomplete members: no stripe has lost more units.
    pub lost_max: usize,
}

impl Work<'_> {
    /// The end of the stripes.
    pub fn stripes(&self) -> u64 {
        self.map.live().part(self.generation).map_or(0, |part| part.end)
    }

    /// Number of units that a stripe has lost.
    pub fn lost(&self, number: u64) -> usize {
        (self.lost)(StripeId { generation: self.generation, number })
    }

    /// The first of `stripes` that is left.
    pub fn next_in(&self, stripes: Range<u64>) -> Option<u64> {
        let taken = self.taken.borrow();
        self.next_where(stripes, |stripe| !taken.contains(&stripe))
    }

    /// The first stripe left from `from` on, wrapping at the end.
    pub fn next_wrapping(&self, from: u64) -> Option<u64> {
        self.next_in(from..self.stripes()).or_else(|| self.next_in(0..from))
    }

    /// A stripe of a region that is partly rebuilt.
    pub fn next_begun(&self) -> Option<u64> {
        let taken = self.taken.borrow();
        let is_begun = |stripe: StripeId| {
            let place = self.map.live().place_of(stripe);
            let in_region = |lane, region| self.map.is_partial(lane, region);
            place.is_some_and(|(region, _)| self.lanes.iter().any(|lane| in_region(lane, region)))
        };
        let wanted = |stripe: StripeId| !taken.contains(&stripe) && is_begun(stripe);
        self.next_where(0..self.stripes(), wanted)
    }

    fn next_where(&self, stripes: Range<u64>, wanted: impl Fn(StripeId) -> bool) -> Option<u64> {
        let found = self.map.next_stale_in(self.lanes, self.generation, stripes, wanted);
        found.map(|stripe| stripe.number)
    }
}
