//! What is lost, and what that means for a stripe and for the array.
//!
//! A missing slot has lost all of its units; a slot that is being rebuilt has lost those of its
//! stale stripes. Questions about the whole array are not answered stripe by stripe: there may be
//! hundreds of millions. All stripes of a region have the same slots lost. If the code survives
//! those losses wherever the units lie, there is no need to look at their placement.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use weft_code::{Margin, SlotNo, SlotSet, UnitSet};

use crate::engine::Engine;
use crate::engine::status::ByteRange;
use crate::format::lane::Lane;
use crate::maintenance::experiment::Redirection;
use crate::region_map::RegionNo;
use crate::superblock::SlotState;
use weft_stripe::{Stripe, StripeId, is_dear};

/// Most unreadable ranges that are listed.
const RANGES_MAX: usize = 64;

/// Most stripes that are examined for unreadable ranges: a fraction of a second's work.
const STRIPES_MAX: u64 = 1 << 18;

impl Engine {
    /// The units of `stripe` that user reads of the units `asked` avoid. These are the lost ones,
    /// and as far as the code allows
    ///
    /// - in a broken array, which keeps disks that failed, the copies on these where copies may
    ///   differ: a disk that fails only now and then must not give another answer each time. If no
    ///   other copy is left, one is chosen ([`Engine::only_copy`]);
    /// - units on replacements that are dearer to read than to compute ([`weft_stripe::is_dear`]),
    ///   and in an experiment without redirection all of them.
    #[inline]
    pub fn avoided_units(&self, stripe: StripeId, asked: UnitSet) -> UnitSet {
        if self.members.all_active() && !self.service.is_broken() {
            return UnitSet::new();
        }
        let lost = self.lost_units(stripe);
        let geometry = self.geometry_of(stripe);
        let differ = self.service.is_broken()
            && geometry.mirrored
            && self.map.needs_resync(self.region_of(stripe));
        let replaced = || self.units_not_on_disk(stripe, |_| true).difference(&lost);
        let more = match self.jobs.rebuild().redirection() {
            _ if differ => geometry.units_on(stripe.number, self.service.broken_slots()),
            Redirection::Never => replaced(),
            // A mirror has a choice of copies. What a broken array holds may not match.
            Redirection::Priced if !geometry.mirrored && !self.service.is_broken() => {
                let unsure = self.map.needs_resync(self.region_of(stripe));
                let coding = &geometry.coding;
                let resolved = Stripe { id: stripe, coding, lost, pinned: false, unsure };
                let is_dear = |unit: &usize| is_dear(self, resolved, *unit);
                replaced().intersection(&asked).iter().filter(is_dear).collect()
            }
            Redirection::Priced | Redirection::Always => UnitSet::new(),
        };
        if more.is_empty() {
            return lost;
        }
        let avoided = lost.union(&more);
        if geometry.code().decodable(stripe.number, avoided) { avoided } else { lost }
    }

    /// In a broken mirror whose copies may differ and are all on disks that failed: the copy that
    /// is read. It is the one that failed last, from which reads were answered at the end. If it
    /// cannot be read, the read fails: another copy may take back what an earlier read returned.
    fn only_copy(&self, stripe: StripeId) -> Option<usize> {
        if !self.service.is_broken() {
            return None;
        }
        let geometry = self.geometry_of(stripe);
        if !geometry.mirrored || !self.map.needs_resync(self.region_of(stripe)) {
            return None;
        }
        let on = |slots: &SlotSet| geometry.units_on(stripe.number, *slots);
        let lost = self.lost_units(stripe);
        let all_gone = lost.union(&on(&self.service.broken_slots()));
        if geometry.code().decodable(stripe.number, all_gone) {
            return None;
        }
        self.service.last_broken(|slots| on(slots).difference(&lost).iter().next())
    }

    /// The only units from which the units `wanted` may be read at these offsets: where a write to
    /// the stripe stopped halfway, and where all copies failed that may differ
    /// ([`Engine::only_copy`]).
    #[inline]
    pub(crate) fn only_sources(
        &self,
        stripe: StripeId,
        offsets: &Range<u64>,
        wanted: UnitSet,
    ) -> Option<UnitSet> {
        let torn = self.torn_sources(stripe, offsets, wanted);
        torn.or_else(|| self.only_copy(stripe).map(UnitSet::one))
    }

    /// The units of `stripe` that are on no disk: their member is missing, or not rebuilt here.
    #[inline]
    pub fn lost_units(&self, stripe: StripeId) -> UnitSet {
        self.units_not_on_disk(stripe, |lane| self.map.is_stale(lane, stripe))
    }

    /// The units of `stripe` that would be lost after a crash now: the lost ones, and those on a
    /// replacement whose region is still marked stale on disk.
    #[inline]
    pub fn lost_after_crash(&self, stripe: StripeId) -> UnitSet {
        let is_stale = |lane| self.map.is_stale_on_disk(lane, self.region_of(stripe));
        self.units_not_on_disk(stripe, is_stale)
    }

    #[inline]
    fn units_not_on_disk(&self, stripe: StripeId, is_stale: impl Fn(Lane) -> bool) -> UnitSet {
        if self.members.all_active() {
            return UnitSet::new();
        }
        self.units_of_incomplete(stripe, is_stale)
    }

    #[inline(never)]
    fn units_of_incomplete(&self, stripe: StripeId, is_stale: impl Fn(Lane) -> bool) -> UnitSet {
        let is_lost = |slot: &SlotNo| match self.members.state(*slot) {
            SlotState::Active => false,
            SlotState::Missing => true,
            SlotState::Rebuilding { lane } => is_stale(lane),
        };
        // By slot: few are lost, and a stripe may have many units.
        let lost = self.members.incomplete().iter().filter(is_lost).collect();
        self.geometry_of(stripe).units_on(stripe.number, lost)
    }

    /// Whether all data remains readable with these slots lost everywhere.
    pub fn survives(&self, slots: SlotSet) -> bool {
        self.geometries.survives(slots)
    }

    /// Slots that lack some of their units.
    pub fn incomplete_slots(&self) -> SlotSet {
        self.members.incomplete()
    }

    /// The slots that lack units in `region`, if those in `failed` are missing.
    fn slots_lost_in(&self, region: RegionNo, failed: SlotSet) -> SlotSet {
        let is_lost = |slot: &SlotNo| match self.members.state(*slot) {
            _ if failed.contains(*slot) => true,
            SlotState::Active => false,
            SlotState::Missing => true,
            SlotState::Rebuilding { lane } => self.map.is_stale_on_disk(lane, region),
        };
        self.members.incomplete().union(&failed).iter().filter(is_lost).collect()
    }

    /// The written regions in which the code may not survive the losses, if the slots in `failed`
    /// are lost too: for some placement of the units it does not.
    fn regions_at_risk(&self, failed: SlotSet) -> impl Iterator<Item = RegionNo> + '_ {
        let mut known: BTreeMap<[u64; 4], bool> = BTreeMap::new();
        let next = |region: &RegionNo| self.map.next_written(region.next());
        std::iter::successors(self.map.next_written(RegionNo(0)), next).filter(move |region| {
            let slots = self.slots_lost_in(*region, failed);
            !*known.entry(slots.words()).or_insert_with(|| self.survives(slots))
        })
    }

    /// Whether losing the member of `slot` now would lose data.
    pub fn would_lose_data(&self, slot: SlotNo) -> bool {
        if self.survives(self.incomplete_slots().with(slot)) {
            return false;
        }
        // The members that are being rebuilt may hold enough of their units to help.
        let mut missing: SlotSet = self.members.missing().into_iter().collect();
        if self.members.copying(slot).is_none() {
            missing.insert(slot);
        }
        !self.survives(missing) || self.loses_existing_data(slot)
    }

    /// Whether losing the member of `slot` now loses existing data. Slots that are being rebuilt,
    /// and the member's own replacement, count with the regions that they hold.
    fn loses_existing_data(&self, slot: SlotNo) -> bool {
        let copying = self.members.copying(slot);
        self.any_undecodable(SlotSet::one(slot), |region| {
            let copied = copying.is_some_and(|lane| !self.map.is_stale_on_disk(lane, region));
            if copied { SlotSet::new() } else { SlotSet::one(slot) }
        })
    }

    /// Whether existing data is lost. Slots that are being rebuilt count with the regions that they
    /// hold.
    pub fn has_lost_data(&self) -> bool {
        self.any_undecodable(SlotSet::new(), |_| SlotSet::new())
    }

    /// Whether the code cannot decode a stripe of existing data if more slots are lost in some
    /// regions: some of `most`. What a crash would lose counts as lost: otherwise the array would
    /// continue, and could not be assembled after a crash.
    fn any_undecodable(&self, most: SlotSet, more: impl Fn(RegionNo) -> SlotSet) -> bool {
        self.regions_at_risk(most).any(|region| {
            let more = more(region);
            self.geometries.stripes_of(region).any(|stripe| {
                let geometry = self.geometry_of(stripe);
                let more = geometry.units_on(stripe.number, more);
                let lost = self.lost_after_crash(stripe).union(&more);
                !geometry.code().decodable(stripe.number, lost)
            })
        })
    }

    /// The slots that a crash now would leave without a complete member.
    fn gone(&self) -> SlotSet {
        let failed = self.service.broken_slots().union(&self.members.active_in_memory_only());
        self.incomplete_slots().union(&failed).union(&self.space.short())
    }

    /// How many more members could fail after the member of `slot` had failed.
    pub fn redundancy_without(&self, slot: SlotNo) -> Option<Margin> {
        self.geometries.margin(self.gone().with(slot))
    }

    /// How many more members may fail, in any combination.
    pub fn redundancy_remaining(&self) -> Option<Margin> {
        let gone = self.gone();
        let of = (gone, self.geometries.in_use());
        if let Some((known, remaining)) = self.remaining.get()
            && known == of
        {
            return remaining;
        }
        let remaining = self.geometries.margin(gone);
        self.remaining.set(Some((of, remaining)));
        remaining
    }

    /// What losses the code survives may have changed: the redundancy remaining is computed again.
    pub fn forget_remaining(&self) {
        self.remaining.set(None);
    }

    /// Ranges of the array whose data is unavailable, adjacent ones joined; at most the first few.
    pub fn unreadable_ranges(&self) -> Vec<ByteRange> {
        let mut ranges: Vec<ByteRange> = Vec::new();
        let broken = self.service.broken_slots();
        let torn = self.torn_stripes().into_iter().map(|stripe| self.region_of(stripe));
        let regions: BTreeSet<RegionNo> = self.regions_at_risk(broken).chain(torn).collect();
        let stripes = regions.into_iter().flat_map(|region| self.geometries.stripes_of(region));
        for stripe in stripes.take(usize::try_from(STRIPES_MAX).unwrap_or(usize::MAX)) {
            let (geometry, number) = (self.geometry_of(stripe), stripe.number);
            let lost = self.lost_units(stripe).union(&geometry.units_on(number, broken));
            for unit in geometry.data_units().iter() {
                let Some(Range { start, end }) = self.unreadable_of(stripe, unit, lost) else {
                    continue;
                };
                let (offset_bytes, length_bytes) =
                    (geometry.offset(number, unit, start), end - start);
                let full = ranges.len() == RANGES_MAX;
                match ranges.last_mut() {
                    Some(last) if last.offset_bytes + last.length_bytes == offset_bytes => {
                        last.length_bytes += length_bytes;
                    }
                    _ if full => return ranges,
                    _ => ranges.push(ByteRange { offset_bytes, length_bytes }),
                }
            }
        }
        ranges
    }

    /// The offsets in a data unit that cannot be read without the units `lost`.
    fn unreadable_of(&self, stripe: StripeId, unit: usize, lost: UnitSet) -> Option<Range<u64>> {
        let (geometry, one) = (self.geometry_of(stripe), UnitSet::one(unit));
        let whole = 0..geometry.unit_bytes;
        let is_lost = lost.contains(unit);
        if is_lost && geometry.coding.plan(stripe.number, lost, one, UnitSet::new()).is_err() {
            return Some(whole);
        }
        let only = self.only_sources(stripe, &whole, one)?;
        self.torn_offsets(stripe).filter(|_| only.intersects(&lost))
    }
}
