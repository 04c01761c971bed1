//! The access monitor: which parts of the space that is being rebuilt users access.
//!
//! An access counts if its unit is stale on the replacement: there a rebuild would help. Accesses
//! to units that are not lost, or are rebuilt already, do not come here, so the healthy path pays
//! nothing.
//!
//! *Zones* are aligned runs of stripes. The monitor keeps the most popular ones
//! ([`weft_stripe::PopularityTable`]), each with the stripe at which its rebuild continues.

use std::ops::Range;

use weft_rt::Nanos;
use weft_stripe::PopularityTable;

use crate::format::rebuild_policy::RebuildPolicy;

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
    half_life: Nanos,
    /// Each with the stripe at which its rebuild continues.
    zones: PopularityTable<u64, u64>,
}

impl Monitor {
    pub fn new(policy: &RebuildPolicy) -> Self {
        let (zone_stripes, half_life) = (policy.zone_stripes, policy.half_life());
        Self { zone_stripes, half_life, zones: PopularityTable::new(policy.zones, half_life) }
    }

    /// Adopts other parameters. Popularity is kept if the zones stay the same.
    pub fn set(&mut self, policy: &RebuildPolicy) {
        if (self.zone_stripes, self.half_life) != (policy.zone_stripes, policy.half_life()) {
            *self = Self::new(policy);
        }
        self.zones.keep(policy.zones);
    }

    pub fn clear(&mut self) {
        self.zones.clear();
    }

    /// Counts a user's access to a stripe that is not rebuilt.
    pub fn note(&mut self, stripe: u64, now: Nanos) {
        self.zones.note(stripe / self.zone_stripes, now, stripe);
    }

    /// The most popular zone; `None` if none is hot.
    pub fn hottest(&self, now: Nanos) -> Option<Zone> {
        let (number, popularity, next) = self.zones.hottest(now)?;
        Some(Zone { number, next: *next, popularity })
    }

    /// The popularity of a zone, comparable with that of other zones.
    pub fn popularity(&self, number: u64) -> f64 {
        self.zones.popularity(number)
    }

    /// The stripes of a zone.
    pub fn stripes_of(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.zone_stripes);
        start..start.saturating_add(self.zone_stripes)
    }

    /// Notes that a zone was rebuilt up to `next`.
    pub fn reached(&mut self, number: u64, next: u64) {
        if let Some(zone) = self.zones.value_mut(number) {
            *zone = next;
        }
    }

    /// Removes a zone that is rebuilt.
    pub fn retire(&mut self, number: u64) {
        self.zones.remove(number);
    }

    /// The zones, hottest first, with their popularity in accesses as they count at `now`.
    pub fn zones(&self, now: Nanos) -> Vec<(Range<u64>, f64)> {
        let all = self.zones.all(now).into_iter();
        all.map(|(number, count)| (self.stripes_of(number), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::SECOND;

    #[test]
    fn changed_parameters_keep_zones_that_still_fit() {
        let policy =
            RebuildPolicy { zone_stripes: 10, zones: 8, half_life_ms: 1000, ..Default::default() };
        let mut monitor = Monitor::new(&policy);
        for stripe in [5, 5, 5, 15, 25, 25] {
            monitor.note(stripe, 0);
        }
        assert_eq!(monitor.hottest(SECOND).map(|zone| (zone.number, zone.next)), Some((0, 5)));
        monitor.set(&RebuildPolicy { zones: 2, ..policy.clone() });
        assert_eq!(monitor.zones(0), [(0..10, 3.0), (20..30, 2.0)]);
        monitor.set(&RebuildPolicy { zone_stripes: 20, ..policy });
        assert!(monitor.hottest(0).is_none());
    }
}
