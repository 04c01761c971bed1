//! The access monitor: which parts of the space that is being rebuilt users access.
//!
//! An access counts if its unit is stale on the replacement: there a rebuild would help. Accesses
//! to units that are not lost, or are rebuilt already, do not come here, so the healthy path pays
//! nothing.
//!
//! *Zones* are aligned runs of stripes. The monitor keeps a limited number of them, each with its
//! popularity (a sum of accesses; each counts half after one half-life) and the stripe at which its
//! rebuild continues. When a new zone comes and the table is full, it replaces the coldest zone and
//! *inherits its popularity* (Space-Saving: Metwally et al., ICDT '05; under forward decay: Cormode
//! et al., ICDE '09). So every zone with more than 1/zones of the recent accesses is in the table,
//! however many zones pass by.
//!
//! *Ageing costs nothing.* Old accesses are not scaled down; new ones count more. An access at time
//! t counts 2^(t/half-life). Order and ratios are the same, and no entry changes until the numbers
//! grow large; then all are scaled down together.
//!
//! An access costs one look-up among the zones kept (at most [`super::policy::ZONES_MAX`]). An
//! access to a new zone takes the coldest zone from a heap whose entries may be out of date:
//! popularity only grows, so an outdated entry at the top is corrected and sinks, and each access
//! causes at most one correction. The cost of an access depends neither on the size of the space
//! nor on the length of the run. Memory: some 80 bytes per zone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use weft_rt::Nanos;

use crate::format::rebuild_policy::RebuildPolicy;

/// Weights are scaled down after 64 half-lives.
const RESCALE_BELOW: f64 = 1.0 / (1u128 << 64) as f64;

/// Zones with fewer accesses are cold.
const COLD: f64 = 1.0 / 64.0;

/// A zone is hot if it was accessed again within about two half-lives: a single access does not
/// make another one likely, and the way there costs every disk a seek.
const HOT: f64 = 1.25;

/// A zone in the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zone {
    pub number: u64,
    /// The stripe at which its rebuild continues.
    pub next: u64,
    /// The weighted sum of its accesses.
    pub popularity: f64,
}

/// Counts accesses by zone.
#[derive(Debug)]
pub(crate) struct Monitor {
    zone_stripes: u64,
    zones_max: usize,
    half_life: Nanos,
    /// Weights are relative to this time.
    landmark: Nanos,
    zones: BTreeMap<u64, Zone>,
    /// Coldest first. Each zone has at least one entry that is not above its popularity. Entries of
    /// retired zones stay until they come up, or until there are too many.
    coldest: BinaryHeap<Reverse<Entry>>,
}

/// A popularity as bits (for positive numbers these sort in the same order), and the zone's number.
type Entry = (u64, u64);

impl Monitor {
    pub fn new(policy: &RebuildPolicy) -> Self {
        Self {
            zone_stripes: policy.zone_stripes,
            zones_max: policy.zones,
            half_life: policy.half_life(),
            landmark: 0,
            zones: BTreeMap::new(),
            coldest: BinaryHeap::new(),
        }
    }

    /// Adopts other parameters. Popularity is kept if the zones stay the same.
    pub fn set(&mut self, policy: &RebuildPolicy) {
        if (self.zone_stripes, self.half_life) != (policy.zone_stripes, policy.half_life()) {
            *self = Self::new(policy);
        }
        self.zones_max = policy.zones;
        while self.zones.len() > self.zones_max {
            self.take_coldest();
        }
    }

    pub fn clear(&mut self) {
        self.zones.clear();
        self.coldest.clear();
    }

    /// Counts a user's access to a stripe that is not rebuilt.
    pub fn note(&mut self, stripe: u64, now: Nanos) {
        let weight = self.weight(now);
        let number = stripe / self.zone_stripes;
        if let Some(zone) = self.zones.get_mut(&number) {
            zone.popularity += weight;
            return;
        }
        let mut popularity = weight;
        if self.zones.len() >= self.zones_max {
            popularity += self.take_coldest().map_or(0.0, |zone| zone.popularity);
        }
        self.zones.insert(number, Zone { number, next: stripe, popularity });
        self.coldest.push(Reverse((popularity.to_bits(), number)));
        if self.coldest.len() > 2 * self.zones_max.max(self.zones.len()) {
            self.sort_out();
        }
    }

    /// The weight of an access now.
    fn weight(&mut self, now: Nanos) -> f64 {
        let scale = self.scale(now);
        if scale >= RESCALE_BELOW {
            return scale.recip();
        }
        self.landmark = now;
        self.zones.retain(|_, zone| {
            zone.popularity *= scale;
            zone.popularity >= COLD
        });
        self.sort_out();
        1.0
    }

    /// Rebuilds the heap, with one entry for each zone.
    fn sort_out(&mut self) {
        let entries =
            self.zones.values().map(|zone| Reverse((zone.popularity.to_bits(), zone.number)));
        self.coldest = entries.collect();
    }

    /// Removes the coldest zone.
    fn take_coldest(&mut self) -> Option<Zone> {
        loop {
            let Reverse((bits, number)) = self.coldest.pop()?;
            match self.zones.get(&number).map(|zone| zone.popularity.to_bits()) {
                None => {}
                Some(now) if now > bits => self.coldest.push(Reverse((now, number))),
                Some(_) => return self.zones.remove(&number),
            }
        }
    }

    /// The most popular zone; `None` if none is hot.
    pub fn hottest(&self, now: Nanos) -> Option<Zone> {
        let hotter = |a: &&Zone, b: &&Zone| a.popularity.total_cmp(&b.popularity);
        let hottest = self.zones.values().max_by(hotter)?;
        (hottest.popularity * self.scale(now) >= HOT).then_some(*hottest)
    }

    /// The factor that turns weights into accesses as they count at `now`.
    #[expect(clippy::cast_precision_loss, reason = "half-lives, not nanoseconds, matter")]
    fn scale(&self, now: Nanos) -> f64 {
        (-(now.saturating_sub(self.landmark) as f64) / self.half_life as f64).exp2()
    }

    /// The popularity of a zone, comparable with that of other zones.
    pub fn popularity(&self, number: u64) -> f64 {
        self.zones.get(&number).map_or(0.0, |zone| zone.popularity)
    }

    /// The stripes of a zone.
    pub fn stripes_of(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.zone_stripes);
        start..start.saturating_add(self.zone_stripes)
    }

    /// Notes that a zone was rebuilt up to `next`.
    pub fn reached(&mut self, number: u64, next: u64) {
        if let Some(zone) = self.zones.get_mut(&number) {
            zone.next = next;
        }
    }

    /// Removes a zone that is rebuilt.
    pub fn retire(&mut self, number: u64) {
        self.zones.remove(&number);
    }

    /// The zones, hottest first, with their popularity in accesses as they count at `now`.
    pub fn zones(&self, now: Nanos) -> Vec<(Range<u64>, f64)> {
        let scale = self.scale(now);
        let mut zones: Vec<Zone> =
            self.zones.values().filter(|zone| zone.popularity * scale >= COLD).copied().collect();
        zones.sort_by(|a, b| b.popularity.total_cmp(&a.popularity));
        zones.iter().map(|zone| (self.stripes_of(zone.number), zone.popularity * scale)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::SECOND;

    fn monitor(zones: usize) -> Monitor {
        let policy =
            RebuildPolicy { zone_stripes: 10, zones, half_life_ms: 1000, ..Default::default() };
        Monitor::new(&policy)
    }

    #[test]
    fn popular_zones_survive_any_number_of_single_accesses() {
        let mut monitor = monitor(8);
        for n in 0..10_000u64 {
            let now = n * SECOND / 100;
            // One access in five; the rest never come back.
            monitor.note(if n % 5 == 0 { 7 } else { 1000 + n * 10 }, now);
            assert!(monitor.zones.len() <= 8);
            if n > 100 {
                assert_eq!(monitor.hottest(now).map(|zone| zone.number), Some(0), "{n}");
            }
        }
    }

    /// However zones come, grow, retire and age: the zone that is replaced is one of the coldest.
    #[test]
    fn the_coldest_gives_way() {
        let mut monitor = monitor(16);
        let mut random = 1u64;
        for n in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 60).pow(2) + (random >> 40) % 24;
            let now = n / 64 * SECOND;
            // Rescale now, not during the look-up.
            monitor.weight(now);
            let aged = monitor.zones.clone();
            let (known, full) = (aged.contains_key(&number), aged.len() == 16);
            monitor.note(number * 10, now);
            let gone: Vec<f64> = aged
                .values()
                .filter(|zone| !monitor.zones.contains_key(&zone.number))
                .map(|zone| zone.popularity)
                .collect();
            let least = aged.values().map(|zone| zone.popularity).min_by(f64::total_cmp);
            match gone[..] {
                [] => assert!(known || !full, "{n}"),
                [gone] => assert!(!known && Some(gone) == least, "{n}: {gone} {least:?}"),
                _ => panic!("{n}: more than one gave way"),
            }
            if random >> 32 & 15 == 0 {
                monitor.retire(number);
            }
            assert!(monitor.coldest.len() <= 32);
        }
    }

    #[test]
    fn an_access_counts_half_after_a_half_life_also_when_weights_are_scaled() {
        let mut monitor = monitor(8);
        for _ in 0..8 {
            monitor.note(5, 0);
        }
        for seconds in [0u32, 1, 2, 3] {
            let (zone, popularity) = monitor.zones(u64::from(seconds) * SECOND)[0].clone();
            assert_eq!((zone, popularity), (0..10, 8.0 / f64::from(1 << seconds)));
        }
        // Three accesses now outweigh eight from two half-lives ago.
        for _ in 0..3 {
            monitor.note(15, 2 * SECOND);
        }
        assert_eq!(monitor.hottest(2 * SECOND).map(|zone| zone.number), Some(1));
        for n in 0..100 {
            monitor.note(25, 40 * SECOND + n);
        }
        monitor.note(35, 100 * SECOND);
        monitor.note(35, 101 * SECOND);
        assert_eq!(monitor.hottest(101 * SECOND).map(|zone| zone.number), Some(3));
        assert_eq!(monitor.zones(101 * SECOND)[0].1, 1.5);
        assert_eq!(monitor.zones(1000 * SECOND), []);
        assert!(monitor.hottest(1000 * SECOND).is_none());
    }

    #[test]
    fn changed_parameters_keep_zones_that_still_fit() {
        let mut monitor = monitor(8);
        for stripe in [5, 5, 5, 15, 25, 25] {
            monitor.note(stripe, 0);
        }
        let policy =
            RebuildPolicy { zone_stripes: 10, zones: 2, half_life_ms: 1000, ..Default::default() };
        monitor.set(&policy);
        assert_eq!(monitor.zones.keys().copied().collect::<Vec<_>>(), [0, 2]);
        monitor.set(&RebuildPolicy { zone_stripes: 20, ..policy });
        assert!(monitor.hottest(0).is_none());
    }
}
