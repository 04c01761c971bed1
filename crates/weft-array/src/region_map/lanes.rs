//! Lanes: what a replacement lacks.
//!
//! A lane starts before the superblock names its slot as rebuilding, so that no crash leaves a
//! rebuilding slot without stale marks. From then on, regions also get the mark at their first
//! write, until first writes reach the replacement ([`RegionMap::lane_joined`]).

use std::ops::Range;

use weft_stripe::{Generation, StripeId};

use super::{MapError, MapStore, RegionMap, WRITTEN};
use crate::format::lane::{Lane, LaneSet};
use crate::region_map::RegionNo;

/// Most memory for the bits of partly rebuilt regions ([`PARTIAL_REGIONS_MIN`] regions are always
/// allowed). 320 GB in units of 4 KiB take 10 MB of bits; in units of 64 KiB 0.6 MB.
pub const PARTIAL_BYTES_MAX: u64 = 32 << 20;

/// Regions that may always be partly rebuilt at a time, regardless of their size.
pub const PARTIAL_REGIONS_MIN: u64 = 1024;

/// Memory of a partly rebuilt region in addition to its bits.
const PARTIAL_ENTRY_BYTES: u64 = 96;

/// The rebuilt stripes of a region, in memory.
#[derive(Debug)]
pub(super) struct Rebuilt {
    /// Distinguishes this from other rebuilds of the same region in the same lane.
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
    /// Starts `lane`: every written region becomes stale in it, and the whole map is written to
    /// every member that [`MapStore::write_page`] writes to, the replacement included. Durable on
    /// return. Must be called before the superblock names the slot as rebuilding.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn start_lane(&self, store: &dyn MapStore, lane: Lane) -> Result<(), MapError> {
        self.end_lane(lane);
        self.absent.set(self.absent.get().without(lane));
        self.begin_joining(lane);
        for region in self.all() {
            self.change(region, |entry| {
                let others = entry.lanes.without(lane);
                entry.lanes = if entry.has(WRITTEN) { others.with(lane) } else { others };
            });
        }
        self.write_all(store).await
    }

    /// From now on regions become stale in `lane` at their first write. Those that are being zeroed
    /// for it are zeroed again.
    pub fn begin_joining(&self, lane: Lane) {
        self.joining.set(self.joining.get().with(lane));
        self.zeroing.borrow_mut().values_mut().for_each(|late| *late = late.with(lane));
    }

    /// From now on first writes to regions reach the replacement, so these regions are not stale.
    /// Without this call they would be rebuilt like all other regions, which is correct too.
    pub fn lane_joined(&self, lane: Lane) {
        self.joining.set(self.joining.get().without(lane));
    }

    /// Drops the state of a lane in memory: its slot is active now, or its replacement is lost. The
    /// marks stay in the map; they are not used until the lane starts again.
    pub fn end_lane(&self, lane: Lane) {
        self.lane_joined(lane);
        self.rebuilt.borrow_mut().retain(|(of, _), _| *of != lane);
    }

    /// Whether the stripe is stale on the replacement of `lane`. One that is not live is.
    #[must_use]
    pub fn is_stale(&self, lane: Lane, stripe: StripeId) -> bool {
        let Some((region, place)) = self.live.get().place_of(stripe) else { return true };
        if !self.is_stale_region(lane, region) {
            return false;
        }
        let rebuilt = self.rebuilt.borrow();
        rebuilt.get(&(lane, region)).is_none_or(|rebuilt| !rebuilt.has(place))
    }

    /// Whether the region is marked stale in `lane`. The mark stays while its stripes are rebuilt
    /// in memory: a crash makes the whole region stale again.
    #[must_use]
    pub fn is_stale_region(&self, lane: Lane, region: RegionNo) -> bool {
        self.entry(region).lanes.contains(lane)
    }

    /// Notes that a stale stripe was rebuilt: from now on it is not stale, and writes must reach
    /// the replacement. Returns true if that completes the region, which must then be passed to
    /// [`RegionMap::finish_regions`].
    pub fn mark_stripe_rebuilt(&self, lane: Lane, stripe: StripeId) -> bool {
        let live = self.live.get();
        let Some((region, place)) = live.place_of(stripe) else { return false };
        if !self.is_stale_region(lane, region) {
            return false;
        }
        let mut all = self.rebuilt.borrow_mut();
        if all.len() >= self.partial_max() && !all.contains_key(&(lane, region)) {
            // The progress in the region with the fewest rebuilt stripes is dropped; that region is
            // rebuilt from its start. A complete region waits for its flush and stays.
            let partial = all.iter().filter(|(_, rebuilt)| rebuilt.left > 0);
            let least = partial.max_by_key(|(_, rebuilt)| rebuilt.left).map(|(key, _)| *key);
            least.map(|key| all.remove(&key));
        }
        let fresh = || Rebuilt::new(self.finishing.next_number(), live.count_of(region));
        let rebuilt = all.entry((lane, region)).or_insert_with(fresh);
        let before = rebuilt.left;
        rebuilt.add(place);
        before > 0 && rebuilt.left == 0
    }

    /// Most regions that may be partly rebuilt at a time.
    fn partial_max(&self) -> usize {
        let each = self.live.get().stripes_max().div_ceil(64) * 8 + PARTIAL_ENTRY_BYTES;
        let most = (PARTIAL_BYTES_MAX / each).max(PARTIAL_REGIONS_MIN);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Whether start another region may drop the progress of one that was started: the started ones
    /// should be completed first.
    #[must_use]
    pub fn is_partial_full(&self) -> bool {
        // Some entries are left for stripes in flight.
        self.rebuilt.borrow().len() + 128 >= self.partial_max()
    }

    /// Whether some, but not all, stripes of the region are rebuilt in `lane`.
    #[must_use]
    pub fn is_partial(&self, lane: Lane, region: RegionNo) -> bool {
        self.rebuilt.borrow().get(&(lane, region)).is_some_and(|rebuilt| rebuilt.left > 0)
    }

    /// Regions of `lane` with some, but not all, stripes rebuilt; those with the fewest left first.
    #[must_use]
    pub fn partial(&self, lane: Lane) -> Vec<RegionNo> {
        let rebuilt = self.rebuilt.borrow();
        let of_lane = rebuilt.range((lane, RegionNo(0))..=(lane, RegionNo(u64::MAX)));
        let partial = of_lane.filter(|(_, rebuilt)| rebuilt.left > 0);
        let mut partial: Vec<_> = partial.map(|((_, region), r)| (r.left, *region)).collect();
        partial.sort_unstable();
        partial.into_iter().map(|(_, region)| region).collect()
    }

    /// Regions of `lane` whose stripes are all rebuilt but whose mark is still set.
    #[must_use]
    pub fn unfinished(&self, lane: Lane) -> Vec<RegionNo> {
        let rebuilt = self.rebuilt.borrow();
        let of_lane = rebuilt.range((lane, RegionNo(0))..=(lane, RegionNo(u64::MAX)));
        of_lane.filter(|(_, rebuilt)| rebuilt.left == 0).map(|((_, region), _)| *region).collect()
    }

    /// Makes a region stale again, because its contents on the replacement of `lane` may be wrong.
    /// Durable on return. The caller holds the lock of one of its stripes.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn make_stale(
        &self,
        store: &dyn MapStore,
        lane: Lane,
        region: RegionNo,
    ) -> Result<(), MapError> {
        self.change(region, |entry| entry.lanes = entry.lanes.with(lane));
        self.rebuilt.borrow_mut().remove(&(lane, region));
        self.persist_pages(store, Self::pages_of(&[region])).await
    }

    /// Waits until every region that was being zeroed when `lane` started is being zeroed again,
    /// also on the replacement.
    pub async fn late_regions_known(&self, lane: Lane) {
        loop {
            let wait = self.zeroed.wait();
            if self.zeroing.borrow().values().all(|late| !late.contains(lane)) {
                return;
            }
            wait.await;
        }
    }

    /// The first of these stripes of a geometry that is live, stale in one of `lanes`, and
    /// satisfies `wanted`.
    #[must_use]
    pub fn next_stale_in(
        &self,
        lanes: LaneSet,
        generation: Generation,
        stripes: Range<u64>,
        wanted: impl Fn(StripeId) -> bool,
    ) -> Option<StripeId> {
        let part = self.live.get().part(generation)?;
        let end = stripes.end.min(part.end);
        let mut from = stripes.start.max(part.first);
        while from < end {
            let region = self.next_open(lanes, part.regions.holding(from..end))?;
            let of = part.regions.stripes_of(region);
            let all =
                (of.start.max(from)..of.end.min(end)).map(|number| StripeId { generation, number });
            let is_stale = |stripe: &StripeId| self.is_stale_in(lanes, *stripe) && wanted(*stripe);
            let found = { all }.find(is_stale);
            if found.is_some() {
                return found;
            }
            from = of.end;
        }
        None
    }

    /// The first of `regions` that has a stale stripe in one of `lanes`.
    fn next_open(
        &self,
        lanes: LaneSet,
        mut regions: impl Iterator<Item = RegionNo>,
    ) -> Option<RegionNo> {
        let entries = self.entries.borrow();
        let rebuilt = self.rebuilt.borrow();
        regions.find(|region| {
            let marked = entries[super::to_index(*region)].lanes.intersection(lanes);
            let is_done = |lane| rebuilt.get(&(lane, *region)).is_some_and(|r| r.left == 0);
            marked.iter().any(|lane| !is_done(lane))
        })
    }

    /// Whether the stripe is stale on the replacement of one of `lanes`.
    #[must_use]
    pub fn is_stale_in(&self, lanes: LaneSet, stripe: StripeId) -> bool {
        lanes.iter().any(|lane| self.is_stale(lane, stripe))
    }

    /// Number of live stripes that are stale in one of `lanes`.
    #[must_use]
    pub fn stale_stripes(&self, lanes: LaneSet) -> u64 {
        let live = self.live.get();
        let count = |region: RegionNo| {
            let marked = self.entry(region).lanes.intersection(lanes);
            let begun = Lane::all().any(|lane| self.rebuilt.borrow().contains_key(&(lane, region)));
            match (marked.is_empty(), begun) {
                (true, _) => 0,
                (false, false) => live.count_of(region),
                (false, true) => {
                    let stripes = live.stripes_of(region);
                    stripes.filter(|s| self.is_stale_in(lanes, *s)).count() as u64
                }
            }
        };
        self.all().map(count).sum()
    }

    /// Number of regions that are stale in `lane`, and have live stripes.
    #[must_use]
    pub fn stale_count(&self, lane: Lane) -> u64 {
        let live = self.live.get();
        let is_stale =
            |region: &RegionNo| self.is_stale_region(lane, *region) && live.count_of(*region) > 0;
        self.all().filter(is_stale).count() as u64
    }

    pub(super) fn forget_rebuilt(&self, region: RegionNo) {
        self.rebuilt.borrow_mut().retain(|(_, of), _| *of != region);
    }
}
