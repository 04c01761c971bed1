//! Lanes: what a replacement lacks.
//!
//! A lane is begun before the superblock says that its slot is rebuilding, so that no crash leaves
//! a rebuilding slot without stale marks. From then on regions written for the first time get the
//! mark too, until [`RegionMap::lane_joined`] says that first writes reach the replacement.

use super::{MapError, MapStore, RegionMap, WRITTEN};

/// Regions that are partly rebuilt at a time, at most: beyond that the one with the fewest stripes
/// done is forgotten, and rebuilt from its beginning.
pub const PARTIAL_REGIONS_MAX: usize = 4096;

/// The stripes of a region that are rebuilt, in memory.
#[derive(Debug)]
pub(super) struct Rebuilt {
    left: u64,
    words: Vec<u64>,
}

impl Rebuilt {
    fn new(stripes: u64) -> Self {
        let words = usize::try_from(stripes.div_ceil(64)).expect("a region fits in memory");
        Self { left: stripes, words: vec![0; words] }
    }

    fn has(&self, stripe: u64) -> bool {
        self.words[Self::word(stripe)] >> (stripe % 64) & 1 == 1
    }

    fn add(&mut self, stripe: u64) {
        if !self.has(stripe) {
            self.words[Self::word(stripe)] |= 1 << (stripe % 64);
            self.left -= 1;
        }
    }

    fn word(stripe: u64) -> usize {
        usize::try_from(stripe / 64).expect("a region fits in memory")
    }
}

impl RegionMap {
    /// Begins lane `lane` (below 8): every written region is stale in it, and the whole map is on
    /// every member that [`MapStore::write_page`] writes to, the replacement included, durably on
    /// return. To be called before the superblock says that the slot is rebuilding.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn start_lane(&self, store: &dyn MapStore, lane: u8) -> Result<(), MapError> {
        self.end_lane(lane);
        self.resume_lane(lane);
        let bit = 1 << lane;
        self.zeroing.borrow_mut().values_mut().for_each(|late| *late |= bit);
        for region in 0..self.config.regions() {
            self.change(region, |entry| {
                let others = entry.lanes & !bit;
                entry.lanes = if entry.has(WRITTEN) { others | bit } else { others };
            });
        }
        self.write_all(store).await
    }

    /// Takes lane `lane` up again after assembly: what the map says is stale is so.
    pub fn resume_lane(&self, lane: u8) {
        self.joining.set(self.joining.get() | 1 << lane);
    }

    /// First writes to regions reach the replacement from now on, so such regions are not stale. Without this
    /// they are rebuilt like the others, which is always right.
    pub fn lane_joined(&self, lane: u8) {
        self.joining.set(self.joining.get() & !(1 << lane));
    }

    /// Forgets what is kept in memory of a lane: its slot is active now, or its replacement is lost.
    /// The marks stay in the map, where nobody asks for them until the lane is begun again.
    pub fn end_lane(&self, lane: u8) {
        self.lane_joined(lane);
        self.rebuilt.borrow_mut().retain(|(of, _), _| *of != lane);
    }

    /// Whether the replacement of `lane` lacks this stripe.
    #[must_use]
    pub fn is_stale(&self, lane: u8, stripe: u64) -> bool {
        let region = self.region_of(stripe);
        if !self.is_stale_region(lane, region) {
            return false;
        }
        let start = self.stripes_of(region).start;
        let rebuilt = self.rebuilt.borrow();
        rebuilt.get(&(lane, region)).is_none_or(|rebuilt| !rebuilt.has(stripe - start))
    }

    /// Whether the region is marked stale in `lane`: also while some or all of its stripes are
    /// rebuilt in memory, a crash makes all of it stale again.
    #[must_use]
    pub fn is_stale_region(&self, lane: u8, region: u64) -> bool {
        self.entry(region).lanes >> lane & 1 == 1
    }

    /// Notes that a stale stripe was rebuilt: from now on it is not stale, and writes must reach
    /// the replacement. True if the whole region is rebuilt by this: then it is to be given to
    /// [`RegionMap::finish_regions`].
    pub fn mark_stripe_rebuilt(&self, lane: u8, stripe: u64) -> bool {
        let region = self.region_of(stripe);
        if !self.is_stale_region(lane, region) {
            return false;
        }
        let stripes = self.stripes_of(region);
        let mut all = self.rebuilt.borrow_mut();
        if all.len() >= PARTIAL_REGIONS_MAX && !all.contains_key(&(lane, region)) {
            // A region that is done waits for its flush and stays.
            let partial = all.iter().filter(|(_, rebuilt)| rebuilt.left > 0);
            let least = partial.max_by_key(|(_, rebuilt)| rebuilt.left).map(|(key, _)| *key);
            least.map(|key| all.remove(&key));
        }
        let fresh = || Rebuilt::new(stripes.end - stripes.start);
        let rebuilt = all.entry((lane, region)).or_insert_with(fresh);
        let before = rebuilt.left;
        rebuilt.add(stripe - stripes.start);
        before > 0 && rebuilt.left == 0
    }

    /// Ends the rebuild of regions whose stripes were all rebuilt: flushes, then clears their
    /// marks, durably on return. Regions of which a stripe is stale stay.
    ///
    /// # Errors
    /// If the members cannot be flushed or written.
    pub async fn finish_regions(
        &self,
        store: &dyn MapStore,
        lane: u8,
        regions: &[u64],
    ) -> Result<(), MapError> {
        let mut done = regions.to_vec();
        let is_done = |region: &u64| {
            self.rebuilt.borrow().get(&(lane, *region)).is_some_and(|rebuilt| rebuilt.left == 0)
        };
        done.retain(is_done);
        store.flush_data().await?;
        // The lane may have ended meanwhile.
        done.retain(is_done);
        for region in &done {
            self.change(*region, |entry| entry.lanes &= !(1 << lane));
            self.rebuilt.borrow_mut().remove(&(lane, *region));
        }
        self.persist_pages(store, Self::pages_of(&done)).await
    }

    /// The first region from `from` on that is stale in `lane`.
    #[must_use]
    pub fn next_stale(&self, lane: u8, from: u64) -> Option<u64> {
        self.next_where(from, |entry| entry.lanes >> lane & 1 == 1)
    }

    /// The first stripe from `from` on that is stale in `lane`.
    #[must_use]
    pub fn next_stale_stripe(&self, lane: u8, from: u64) -> Option<u64> {
        let mut region = self.next_stale(lane, self.region_of(from))?;
        loop {
            let stripes = self.stripes_of(region);
            let found =
                (stripes.start.max(from)..stripes.end).find(|stripe| self.is_stale(lane, *stripe));
            if found.is_some() {
                return found;
            }
            region = self.next_stale(lane, region + 1)?;
        }
    }

    /// Regions that are stale in `lane`.
    #[must_use]
    pub fn stale_count(&self, lane: u8) -> u64 {
        let entries = self.entries.borrow();
        entries.iter().filter(|entry| entry.lanes >> lane & 1 == 1).count() as u64
    }

    pub(super) fn forget_rebuilt(&self, region: u64) {
        self.rebuilt.borrow_mut().retain(|(_, of), _| *of != region);
    }
}
