//! Lanes: what a replacement lacks.
//!
//! A lane is begun before the superblock says that its slot is rebuilding, so that no crash leaves
//! a rebuilding slot without stale marks. From then on regions written for the first time get the
//! mark too, until [`RegionMap::lane_joined`] says that first writes reach the replacement.

use std::ops::Range;

use super::{MapError, MapStore, RegionMap, WRITTEN};

/// Memory for the bits of regions that are partly rebuilt, at most (but always for
/// [`PARTIAL_REGIONS_MIN`] regions). 320 GB in units of 4 KiB take 10 MB of bits; in units of 64
/// KiB 0.6 MB.
pub const PARTIAL_BYTES_MAX: u64 = 32 << 20;

/// Regions that can be partly rebuilt at a time, however large they are.
pub const PARTIAL_REGIONS_MIN: u64 = 1024;

/// What a partly rebuilt region takes beside its bits.
const PARTIAL_ENTRY_BYTES: u64 = 96;

/// The stripes of a region that are rebuilt, in memory.
#[derive(Debug)]
pub(super) struct Rebuilt {
    /// Told apart from another rebuild of the same region in the same lane.
    pub(super) number: u64,
    pub(super) left: u64,
    words: Vec<u64>,
}

impl Rebuilt {
    fn new(number: u64, stripes: u64) -> Self {
        let words = usize::try_from(stripes.div_ceil(64)).expect("a region fits in memory");
        Self { number, left: stripes, words: vec![0; words] }
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
        self.end_absence(lane);
        self.begin_joining(lane);
        let bit = 1 << lane;
        for region in 0..self.config.regions() {
            self.change(region, |entry| {
                let others = entry.lanes & !bit;
                entry.lanes = if entry.has(WRITTEN) { others | bit } else { others };
            });
        }
        self.write_all(store).await
    }

    /// Regions that are first written from now on are stale in `lane`, also those that are being
    /// zeroed for that.
    pub fn begin_joining(&self, lane: u8) {
        self.joining.set(self.joining.get() | 1 << lane);
        self.zeroing.borrow_mut().values_mut().for_each(|late| *late |= 1 << lane);
    }

    /// First writes to regions reach the replacement from now on, so such regions are not stale.
    /// Without this they are rebuilt like the others, which is always right.
    pub fn lane_joined(&self, lane: u8) {
        self.joining.set(self.joining.get() & !(1 << lane));
    }

    /// Forgets what is kept in memory of a lane: its slot is active now, or its replacement is
    /// lost. The marks stay in the map, where nobody asks for them until the lane is begun again.
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
        if all.len() >= self.partial_max() && !all.contains_key(&(lane, region)) {
            // The region with the fewest stripes done is forgotten, and rebuilt from its
            // beginning. One that is done waits for its flush and stays.
            let partial = all.iter().filter(|(_, rebuilt)| rebuilt.left > 0);
            let least = partial.max_by_key(|(_, rebuilt)| rebuilt.left).map(|(key, _)| *key);
            least.map(|key| all.remove(&key));
        }
        let fresh = || Rebuilt::new(self.finishing.next_number(), stripes.end - stripes.start);
        let rebuilt = all.entry((lane, region)).or_insert_with(fresh);
        let before = rebuilt.left;
        rebuilt.add(stripe - stripes.start);
        before > 0 && rebuilt.left == 0
    }

    /// Regions that may be partly rebuilt at a time.
    fn partial_max(&self) -> usize {
        let each = self.config.region_stripes.div_ceil(64) * 8 + PARTIAL_ENTRY_BYTES;
        let most = (PARTIAL_BYTES_MAX / each).max(PARTIAL_REGIONS_MIN);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Whether no further region may be begun without forgetting one: those that are begun should
    /// be ended first.
    #[must_use]
    pub fn is_partial_full(&self) -> bool {
        // Some room is left for stripes in flight.
        self.rebuilt.borrow().len() + 128 >= self.partial_max()
    }

    /// Whether some stripes of the region are rebuilt in `lane`, and not all.
    #[must_use]
    pub fn is_partial(&self, lane: u8, region: u64) -> bool {
        self.rebuilt.borrow().get(&(lane, region)).is_some_and(|rebuilt| rebuilt.left > 0)
    }

    /// Regions of `lane` whose stripes are all rebuilt while the mark is still there.
    #[must_use]
    pub fn unfinished(&self, lane: u8) -> Vec<u64> {
        let rebuilt = self.rebuilt.borrow();
        let of_lane = rebuilt.range((lane, 0)..=(lane, u64::MAX));
        of_lane.filter(|(_, rebuilt)| rebuilt.left == 0).map(|((_, region), _)| *region).collect()
    }

    /// What the replacement of `lane` has of a region may not be what it should be: all of it is
    /// stale again, durably on return. The caller holds the lock of one of its stripes.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn make_stale(
        &self,
        store: &dyn MapStore,
        lane: u8,
        region: u64,
    ) -> Result<(), MapError> {
        self.change(region, |entry| entry.lanes |= 1 << lane);
        self.rebuilt.borrow_mut().remove(&(lane, region));
        self.persist_pages(store, Self::pages_of(&[region])).await
    }

    /// Returns when no region is being zeroed that was before `lane` began: those are stale in it
    /// once they are zeroed, and unknown to [`RegionMap::stale_count`] until then.
    pub async fn late_regions_known(&self, lane: u8) {
        loop {
            let wait = self.zeroed.wait();
            if self.zeroing.borrow().values().all(|late| late >> lane & 1 == 0) {
                return;
            }
            wait.await;
        }
    }

    /// The first of `stripes` that is stale in one of `lanes` (bit i is lane i) and is `wanted`.
    #[must_use]
    pub fn next_stale_in(
        &self,
        lanes: u8,
        stripes: Range<u64>,
        wanted: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let end = stripes.end.min(self.config.stripes);
        let mut from = stripes.start;
        while from < end {
            let regions = self.region_of(from)..self.region_of(end - 1) + 1;
            let region = self.next_open(lanes, regions)?;
            let of = self.stripes_of(region);
            let is_stale = |stripe: &u64| self.is_stale_in(lanes, *stripe) && wanted(*stripe);
            let found = (of.start.max(from)..of.end.min(end)).find(is_stale);
            if found.is_some() {
                return found;
            }
            from = of.end;
        }
        None
    }

    /// The first of `regions` that has a stale stripe in one of `lanes`.
    fn next_open(&self, lanes: u8, mut regions: Range<u64>) -> Option<u64> {
        let entries = self.entries.borrow();
        let rebuilt = self.rebuilt.borrow();
        regions.find(|region| {
            let marked = entries[super::to_index(*region)].lanes & lanes;
            let is_done = |lane| rebuilt.get(&(lane, *region)).is_some_and(|r| r.left == 0);
            marked != 0 && (0..8).any(|lane| marked >> lane & 1 == 1 && !is_done(lane))
        })
    }

    /// Whether the replacement of one of `lanes` (bit i is lane i) lacks this stripe.
    #[must_use]
    pub fn is_stale_in(&self, lanes: u8, stripe: u64) -> bool {
        (0..8).any(|lane| lanes >> lane & 1 == 1 && self.is_stale(lane, stripe))
    }

    /// Stripes that are stale in one of `lanes` (bit i is lane i).
    #[must_use]
    pub fn stale_stripes(&self, lanes: u8) -> u64 {
        let count = |region: u64| {
            let stripes = self.stripes_of(region);
            let marked = self.entry(region).lanes & lanes;
            let begun = (0..8).any(|lane| self.rebuilt.borrow().contains_key(&(lane, region)));
            match (marked, begun) {
                (0, _) => 0,
                (_, false) => stripes.end - stripes.start,
                (_, true) => stripes.filter(|s| self.is_stale_in(lanes, *s)).count() as u64,
            }
        };
        (0..self.config.regions()).map(count).sum()
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
