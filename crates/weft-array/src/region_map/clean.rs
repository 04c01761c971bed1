//! Clearing marks: dirty, awaiting resync, written. Always in three steps: pick the quiet regions,
//! flush the members, clear the regions that stayed quiet.

use weft_rt::sync::Permit;

use super::{
    DIRTY, MapError, MapStore, NEEDS_RESYNC, PENDING, RESYNC_AGAIN, RegionMap, TOUCHED, UNWRITING,
    WRITTEN,
};
use crate::format::lane::LaneSet;
use crate::region_map::RegionNo;

/// When the limit of dirty regions is reached, this fraction of them is cleaned at once.
const CLEAN_SHARE: usize = 8;

/// A permit for one more dirty region, until the region is dirty.
pub(super) struct DirtyPermit<'a>(&'a RegionMap);

impl Drop for DirtyPermit<'_> {
    fn drop(&mut self) {
        self.0.reserved.set(self.0.reserved.get() - 1);
    }
}

impl RegionMap {
    /// Cleans the dirty regions without a write since the previous call. Must be called
    /// periodically: a region is then clean one to two periods after its last write. Returns how
    /// many were cleaned.
    ///
    /// # Errors
    /// If the members cannot be flushed or written.
    pub async fn clean_idle(&self, store: &dyn MapStore) -> Result<usize, MapError> {
        let permit = self.cleaner.acquire(1).await;
        let quiet = self.quiet(|touched| !touched, usize::MAX);
        for region in self.dirty.borrow().iter() {
            self.entries.borrow_mut()[super::to_index(*region)].flags &= !TOUCHED;
        }
        self.clean(store, permit, quiet).await
    }

    /// Cleans all dirty regions without writes in flight, before the array is stopped. Returns how
    /// many were cleaned. Page writes that other operations had started have ended, too.
    ///
    /// # Errors
    /// If the members cannot be flushed or written.
    pub async fn clean_all(&self, store: &dyn MapStore) -> Result<usize, MapError> {
        let permit = self.cleaner.acquire(1).await;
        let quiet = self.quiet(|_| true, usize::MAX);
        let cleaned = self.clean(store, permit, quiet).await?;
        let pages = self.pages.borrow().len();
        self.persist_pages(store, 0..pages).await?;
        Ok(cleaned)
    }

    /// Reserves one more dirty region, cleaning other regions if there are too many.
    pub(super) async fn reserve_dirty(
        &self,
        store: &dyn MapStore,
    ) -> Result<DirtyPermit<'_>, MapError> {
        let max = self.config.dirty_max.max(1);
        let taken = || self.dirty_count() + self.reserved.get();
        if taken() >= max {
            let permit = self.cleaner.acquire(1).await;
            if taken() >= max {
                let most = (max / CLEAN_SHARE).max(1) + (taken() - max);
                let mut quiet = self.quiet(|touched| !touched, most);
                quiet.extend(self.quiet(|touched| touched, most - quiet.len()));
                self.clean(store, permit, quiet).await?;
            }
        }
        self.reserved.set(self.reserved.get() + 1);
        Ok(DirtyPermit(self))
    }

    /// Dirty regions without writes in flight, longest dirty first.
    fn quiet(&self, wanted: impl Fn(bool) -> bool, most: usize) -> Vec<RegionNo> {
        let dirty = self.dirty.borrow();
        let quiet = dirty.iter().copied().filter(|region| {
            let entry = self.entry(*region);
            entry.writers == 0 && wanted(entry.has(TOUCHED))
        });
        quiet.take(most).collect()
    }

    async fn clean(
        &self,
        store: &dyn MapStore,
        permit: Permit,
        quiet: Vec<RegionNo>,
    ) -> Result<usize, MapError> {
        let cleared = self.clear_quiet(store, permit, quiet).await?;
        self.persist_pages(store, Self::pages_of(&cleared)).await?;
        Ok(cleared.len())
    }

    /// Flushes, then cleans those of the regions that had no write during it. The permit keeps
    /// other operations from clearing TOUCHED, which tells that.
    async fn clear_quiet(
        &self,
        store: &dyn MapStore,
        permit: Permit,
        mut regions: Vec<RegionNo>,
    ) -> Result<Vec<RegionNo>, MapError> {
        if regions.is_empty() {
            return Ok(regions);
        }
        for region in &regions {
            self.entries.borrow_mut()[super::to_index(*region)].flags &= !TOUCHED;
        }
        store.flush_data().await?;
        regions.retain(|region| {
            let entry = self.entry(*region);
            entry.writers == 0 && !entry.has(TOUCHED)
        });
        for region in &regions {
            self.change(*region, |entry| entry.flags &= !DIRTY);
        }
        drop(permit);
        Ok(regions)
    }

    /// Makes every dirty region need a resync: after a crash, before the first write. All regions
    /// that need one, also the ones that did before, become stale in the lanes of `stale` (one bit
    /// each), because a resync writes without making its region dirty. Durable on return.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn resync_dirty(&self, store: &dyn MapStore, stale: LaneSet) -> Result<(), MapError> {
        let is_open = |region: &RegionNo| {
            let entry = self.entry(*region);
            entry.has(DIRTY) || !stale.is_empty() && entry.has(NEEDS_RESYNC)
        };
        let open: Vec<RegionNo> = self.all().filter(is_open).collect();
        for region in &open {
            self.change(*region, |entry| {
                entry.flags = entry.flags & !DIRTY | NEEDS_RESYNC;
                entry.set_lanes(stale);
            });
        }
        self.persist_pages(store, Self::pages_of(&open)).await
    }

    /// Makes every written region need a resync, and stale in the lanes of `stale`: after a crash
    /// of an array that keeps no dirty regions. Durable on return.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn resync_written(
        &self,
        store: &dyn MapStore,
        stale: LaneSet,
    ) -> Result<(), MapError> {
        let written: Vec<RegionNo> = self.all().filter(|region| self.is_written(*region)).collect();
        written.iter().for_each(|region| self.change(*region, |entry| entry.set_lanes(stale)));
        self.set_needs_resync(store, &written).await
    }

    /// Marks regions for a resync, even while one is in progress. Durable on return.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn set_needs_resync(
        &self,
        store: &dyn MapStore,
        regions: &[RegionNo],
    ) -> Result<(), MapError> {
        for region in regions.iter().filter(|region| self.is_written(**region)) {
            self.change(*region, |entry| entry.flags |= NEEDS_RESYNC | RESYNC_AGAIN);
        }
        self.persist_pages(store, Self::pages_of(regions)).await
    }

    /// Must be called before the first stripe of a region is resynced: [`RegionMap::clear_resync`]
    /// then keeps any mark set after this call.
    pub fn resync_begins(&self, region: RegionNo) {
        self.entries.borrow_mut()[super::to_index(region)].flags &= !RESYNC_AGAIN;
    }

    /// Ends the resync of regions whose stripes all match: flushes, then clears the mark unless it
    /// was set again since [`RegionMap::resync_begins`].
    ///
    /// # Errors
    /// If the members cannot be flushed or written.
    pub async fn clear_resync(
        &self,
        store: &dyn MapStore,
        regions: &[RegionNo],
    ) -> Result<(), MapError> {
        store.flush_data().await?;
        for region in regions {
            self.change(*region, |entry| {
                if !entry.has(RESYNC_AGAIN) {
                    entry.flags &= !NEEDS_RESYNC;
                }
            });
        }
        self.persist_pages(store, Self::pages_of(regions)).await
    }

    /// First step of making a region unwritten, under a [`RegionMap::begin_write`] that lasts until
    /// its bytes are zeroed. Any write that starts after this cancels it. So do other writes in
    /// flight: their data may land after the zeros, and would reappear at the region's next first
    /// write.
    pub fn unwriting_begins(&self, region: RegionNo) {
        let entry = &mut self.entries.borrow_mut()[super::to_index(region)];
        if entry.writers <= 1 && self.absent.get().is_empty() {
            entry.flags |= UNWRITING;
        }
    }

    /// Makes regions unwritten again: they read as zeros, and take no part in resync, scrub and
    /// rebuild. This applies only to regions for which [`RegionMap::unwriting_begins`] was called,
    /// and in which no write started since or is in flight. Returns these; they are durably
    /// unwritten.
    ///
    /// Their bytes on the members must be ready for the next first write. Either the caller has
    /// written zeros to all members between the two calls (this flushes before it clears), or
    /// [`MapStore::zero_region`] zeroes regions before their first write anyway. A crash before the
    /// end leaves a region written, with those zeros or its old contents.
    ///
    /// # Errors
    /// If the members cannot be flushed or written.
    pub async fn mark_unwritten(
        &self,
        store: &dyn MapStore,
        regions: &[RegionNo],
    ) -> Result<Vec<RegionNo>, MapError> {
        store.flush_data().await?;
        let mut cleared = regions.to_vec();
        cleared.retain(|region| {
            let entry = self.entry(*region);
            entry.has(WRITTEN | UNWRITING) && entry.writers == 0 && self.absent.get().is_empty()
        });
        for region in &cleared {
            self.change(*region, |entry| {
                entry.flags &= PENDING;
                entry.lanes = LaneSet::EMPTY;
            });
            self.forget_rebuilt(*region);
        }
        self.persist_pages(store, Self::pages_of(&cleared)).await?;
        Ok(cleared)
    }
}
