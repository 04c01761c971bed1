//! What a member misses while it is absent.
//!
//! A member that leaves the array – its disk failed, or was absent at a start – may come back with
//! its data. To rebuild it then, it is enough to know what it misses: the regions written since,
//! and those whose last writes were not flushed when it left. Both are recorded without additional
//! page writes:
//!
//! - When the member leaves (and again at each assembly, from the map on disk), every region that
//!   is dirty or awaits a resync is marked in its lane. A region is dirty from before its first
//!   write until after a flush of all members, so all other regions are complete on the member.
//! - From then on a region gets the mark together with DIRTY or NEEDS_RESYNC, in the same page.
//!
//! *A crash* may lose the marks of the first step, because nothing waits for their pages. But a
//! region that lost its mark in this way is still dirty on disk: the page that clears DIRTY carries
//! the mark. Recovery makes dirty regions await a resync, and marks them in the lanes of all absent
//! members ([`RegionMap::resync_dirty`]). Marks of an earlier use of the lane may remain on disk;
//! they cause more work, never less.
//!
//! Regions do not become unwritten while a member is absent: it would keep old bytes where all
//! other members have zeros.

use super::{MapError, MapStore, RegionMap, UNSETTLED};
use crate::format::lane::{Lane, LaneSet};
use crate::region_map::RegionNo;

impl RegionMap {
    /// The member of `lane` leaves now: marks what it may lack, and from now on what it misses.
    pub fn start_absence(&self, lane: Lane) {
        self.end_lane(lane);
        for region in self.all() {
            self.change(region, |entry| entry.lanes = entry.lanes.without(lane));
        }
        self.resume_absence(lane);
    }

    /// Continues to mark what the absent member of `lane` misses: after an assembly, before
    /// recovery.
    pub fn resume_absence(&self, lane: Lane) {
        for region in self.all() {
            self.change(region, |entry| {
                if entry.flags & UNSETTLED != 0 || entry.writers > 0 {
                    entry.lanes = entry.lanes.with(lane);
                }
            });
        }
        self.absent.set(self.absent.get().with(lane));
    }

    /// Stops marking what the member of `lane` misses: it now gets all writes where the lane is not
    /// stale, or its data is of no use any more.
    pub fn end_absence(&self, lane: Lane) {
        self.absent.set(self.absent.get().without(lane));
    }

    /// Stops marking what the members of all lanes miss that are not among `used`: no superblock
    /// that may count after a crash takes them back.
    pub fn end_absence_outside(&self, used: LaneSet) {
        self.absent.set(self.absent.get().intersection(used));
    }

    /// Marks a region for absent members because its bytes are about to change outside a write.
    /// Durable on return.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn note_missed(
        &self,
        store: &dyn MapStore,
        region: RegionNo,
    ) -> Result<(), MapError> {
        if self.absent.get().is_empty() {
            return Ok(());
        }
        self.change(region, |entry| entry.set_lanes(self.absent.get()));
        self.persist_pages(store, Self::pages_of(&[region])).await
    }

    /// Writes the whole map to the member of `lane`, which [`MapStore::write_page`] includes again;
    /// durable on return. Regions written until [`RegionMap::end_absence`] are still marked.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn rejoin_lane(&self, store: &dyn MapStore, lane: Lane) -> Result<(), MapError> {
        self.begin_joining(lane);
        self.write_all(store).await
    }
}
