//! The access monitor: which parts of the space that is being rebuilt users ask for.
//!
//! An access counts if it meets a unit that its replacement lacks: that is what a rebuild can make
//! better. Where nothing is lost, or what is asked for is rebuilt already, nobody comes here; the
//! healthy path knows nothing of it.
//!
//! *Zones* are aligned runs of stripes. At most so many are kept, each with its popularity (a sum of
//! accesses that count half after one half-life) and the stripe where it goes on. When a new
//! zone comes and the table is full, it takes the place *and the popularity* of the coldest
//! (Space-Saving: Metwally et al., ICDT '05; under forward decay: Cormode et al., ICDE '09): so
//! whatever has more than 1/zones of the recent accesses is in the table, however many zones
//! pass by.
//!
//! *Ageing costs nothing.* Instead of making old accesses smaller, new ones are made greater: one at time
//! t counts 2^(t/half-life). Order and ratios are the same, and no entry is touched until the
//! numbers grow large, when all are scaled down together.
//!
//! An access costs one look-up among the zones kept; one that meets a new zone looks at all
//! of them (at most [`super::policy::ZONES_MAX`]). Memory: some 50 bytes a zone.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_rt::Nanos;

use super::policy::RebuildPolicy;

/// Weights are scaled down after 64 half-lives.
const RESCALE_BELOW: f64 = 1.0 / (1u128 << 64) as f64;

/// Less than so many accesses is cold.
const COLD: f64 = 1.0 / 64.0;

/// A zone that is followed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zone {
    pub number: u64,
    /// The stripe to go on with.
    pub next: u64,
    /// Accesses, each with its weight.
    pub popularity: f64,
}

/// Follows accesses.
#[derive(Debug)]
pub(crate) struct Monitor {
    zone_stripes: u64,
    zones_max: usize,
    half_life: Nanos,
    /// Weights count from here.
    landmark: Nanos,
    zones: BTreeMap<u64, Zone>,
}

impl Monitor {
    pub fn new(policy: &RebuildPolicy) -> Self {
        Self {
            zone_stripes: policy.zone_stripes,
            zones_max: policy.zones,
            half_life: policy.half_life(),
            landmark: 0,
            zones: BTreeMap::new(),
        }
    }

    /// Takes other parameters. What was learnt is kept where zones stay what they are.
    pub fn set(&mut self, policy: &RebuildPolicy) {
        if (self.zone_stripes, self.half_life) != (policy.zone_stripes, policy.half_life()) {
            *self = Self::new(policy);
        }
        self.zones_max = policy.zones;
        while self.zones.len() > self.zones_max {
            self.coldest().map(|number| self.zones.remove(&number));
        }
    }

    pub fn clear(&mut self) {
        self.zones.clear();
    }

    /// A user met a stripe that is not rebuilt.
    pub fn note(&mut self, stripe: u64, now: Nanos) {
        let weight = self.weight(now);
        let number = stripe / self.zone_stripes;
        if let Some(zone) = self.zones.get_mut(&number) {
            zone.popularity += weight;
            return;
        }
        let mut popularity = weight;
        if self.zones.len() >= self.zones_max {
            let coldest = self.coldest().and_then(|coldest| self.zones.remove(&coldest));
            popularity += coldest.map_or(0.0, |zone| zone.popularity);
        }
        self.zones.insert(number, Zone { number, next: stripe, popularity });
    }

    /// What an access now counts.
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
        1.0
    }

    fn coldest(&self) -> Option<u64> {
        let colder = |a: &&Zone, b: &&Zone| a.popularity.total_cmp(&b.popularity);
        self.zones.values().min_by(colder).map(|zone| zone.number)
    }

    /// The most popular zone, unless all are cold.
    pub fn hottest(&self, now: Nanos) -> Option<Zone> {
        let hotter = |a: &&Zone, b: &&Zone| a.popularity.total_cmp(&b.popularity);
        let hottest = self.zones.values().max_by(hotter)?;
        (hottest.popularity * self.scale(now) >= COLD).then_some(*hottest)
    }

    /// What turns weights into accesses as they count at `now`.
    #[expect(clippy::cast_precision_loss, reason = "half-lives, not nanoseconds, matter")]
    fn scale(&self, now: Nanos) -> f64 {
        (-(now.saturating_sub(self.landmark) as f64) / self.half_life as f64).exp2()
    }

    /// The popularity of a zone, comparable with that of others.
    pub fn popularity(&self, number: u64) -> f64 {
        self.zones.get(&number).map_or(0.0, |zone| zone.popularity)
    }

    /// The stripes of a zone.
    pub fn stripes_of(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.zone_stripes);
        start..start.saturating_add(self.zone_stripes)
    }

    /// A zone was rebuilt up to `next`.
    pub fn reached(&mut self, number: u64, next: u64) {
        if let Some(zone) = self.zones.get_mut(&number) {
            zone.next = next;
        }
    }

    /// A zone is rebuilt.
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
    fn what_is_asked_for_often_outlives_any_number_of_passers_by() {
        let mut monitor = monitor(8);
        for n in 0..10_000u64 {
            let now = n * SECOND / 100;
            // One access in five; the others never come back.
            monitor.note(if n % 5 == 0 { 7 } else { 1000 + n * 10 }, now);
            assert!(monitor.zones.len() <= 8);
            if n > 100 {
                assert_eq!(monitor.hottest(now).map(|zone| zone.number), Some(0), "{n}");
            }
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
        // Three accesses now are more than eight two half-lives ago.
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
    fn other_parameters_keep_what_still_fits() {
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
