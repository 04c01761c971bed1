//! The stripes that are left, as orders see them. The region map alone decides: stripes that were
//! rebuilt in any way, or need no rebuild any more, are not left, and this file keeps no state of
//! its own.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use crate::lane::LaneSet;
use crate::region_map::RegionMap;

/// Stripes that must not be begun: those in flight, and those that could not be rebuilt.
pub(crate) type Taken = RefCell<BTreeSet<u64>>;

/// The stripes that are left to rebuild.
pub(crate) struct Work<'a> {
    pub map: &'a RegionMap,
    /// The lanes that are being rebuilt.
    pub lanes: LaneSet,
    pub taken: &'a Taken,
    /// Number of units that a stripe has lost.
    pub lost: &'a dyn Fn(u64) -> usize,
    /// Incomplete members: no stripe has lost more units.
    pub lost_max: usize,
}

impl Work<'_> {
    /// Stripes of the array.
    pub fn stripes(&self) -> u64 {
        self.map.regions().stripes
    }

    /// The first of `stripes` that is left.
    pub fn next_in(&self, stripes: Range<u64>) -> Option<u64> {
        let taken = self.taken.borrow();
        self.map.next_stale_in(self.lanes, stripes, |stripe| !taken.contains(&stripe))
    }

    /// The first stripe left from `from` on, wrapping at the end.
    pub fn next_wrapping(&self, from: u64) -> Option<u64> {
        self.next_in(from..self.stripes()).or_else(|| self.next_in(0..from))
    }

    /// A stripe of a region that is partly rebuilt.
    pub fn next_begun(&self) -> Option<u64> {
        let taken = self.taken.borrow();
        let is_begun = |stripe: u64| {
            let region = self.map.regions().of(stripe);
            self.lanes.iter().any(|lane| self.map.is_partial(lane, region))
        };
        let wanted = |stripe: u64| !taken.contains(&stripe) && is_begun(stripe);
        self.map.next_stale_in(self.lanes, 0..self.stripes(), wanted)
    }
}
