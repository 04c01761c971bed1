//! Maps a sector to zone, cylinder, head and angle.
//!
//! Outer tracks are longer and hold more sectors. A *zone* is a range of cylinders with the same
//! number of sectors per track. The model has `zones` zones with equally many cylinders, whose
//! numbers of sectors fall linearly from the outer rate to the inner. Sectors are numbered along a
//! track, then over the heads of a cylinder, then over the cylinders from the outside in. The first
//! sector of each track is offset from that of the previous one by the time of a head switch, or of
//! a seek to the next cylinder (*skew*), so that a sequential stream loses only that time and not a
//! whole revolution.
//!
//! The sustained rate of a zone, including skews, is:
//!
//! ```text
//! rate = heads · sectors · bytes / (heads · T + (heads − 1) · track skew + cylinder skew)
//! ```
//!
//! The number of sectors per track follows from the rate that the data sheet states.

use super::spec::HddSpec;
use crate::number::{Divisor, MS, fraction, whole};

/// Skews contain this much extra time, so that rounding never costs a revolution.
const SKEW_SPARE_MS: f64 = 0.02;

#[derive(Debug, Clone, Copy)]
struct Zone {
    first_sector: u64,
    first_cylinder: u64,
    track: Divisor,
    /// Angle of one sector, in revolutions.
    sector_angle: f64,
    sector_ns: f64,
    /// Time of one sector, including its share of the skews.
    mean_sector_ns: f64,
}

/// The position of a sector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SectorPosition {
    pub(super) cylinder: u64,
    pub(super) head: u64,
    /// Angle of its start, in revolutions.
    pub(super) angle: f64,
}

#[derive(Debug)]
pub(super) struct Geometry {
    zones: Vec<Zone>,
    heads: Divisor,
    cylinders_each: u64,
    pub(super) cylinders: u64,
    pub(super) sectors: u64,
    /// Time of one revolution.
    pub(super) turn_ns: f64,
    pub(super) turns_per_ns: f64,
    track_skew_ns: f64,
    cylinder_skew_ns: f64,
}

impl Geometry {
    pub(super) fn new(spec: &HddSpec, capacity_bytes: u64, sector_bytes: u32) -> Self {
        let heads = u64::from(spec.heads.max(1));
        let turn_ns = 60e9 / f64::from(spec.rpm);
        let track_skew_ns = (spec.head_switch_ms + SKEW_SPARE_MS) * MS;
        let cylinder_skew_ns =
            (spec.seek.track_to_track_ms + spec.write_settle_ms + SKEW_SPARE_MS) * MS;
        let cylinder_ns =
            heads as f64 * turn_ns + (heads - 1) as f64 * track_skew_ns + cylinder_skew_ns;
        let count = spec.zones.max(2);
        let per_track = |zone: u32| {
            let inward = f64::from(zone) / f64::from(count - 1);
            let mb_s = spec.outer_mb_s + (spec.inner_mb_s - spec.outer_mb_s) * inward;
            let bytes = mb_s / 1e3 * cylinder_ns / heads as f64;
            whole(bytes / f64::from(sector_bytes)).max(1)
        };
        let sectors = capacity_bytes / u64::from(sector_bytes);
        let per_round: u64 = (0..count).map(per_track).sum::<u64>() * heads;
        let cylinders_each = sectors.div_ceil(per_round);
        let (mut first_sector, mut first_cylinder) = (0, 0);
        let zones = (0..count).map(|zone| {
            let sectors_per_track = per_track(zone);
            let zone = Zone {
                first_sector,
                first_cylinder,
                track: Divisor::new(sectors_per_track),
                sector_angle: 1.0 / sectors_per_track as f64,
                sector_ns: turn_ns / sectors_per_track as f64,
                mean_sector_ns: cylinder_ns / (heads * sectors_per_track) as f64,
            };
            first_sector += cylinders_each * heads * sectors_per_track;
            first_cylinder += cylinders_each;
            zone
        });
        Self {
            zones: zones.collect(),
            heads: Divisor::new(heads),
            cylinders_each,
            cylinders: cylinders_each * u64::from(count),
            sectors,
            turn_ns,
            turns_per_ns: 1.0 / turn_ns,
            track_skew_ns,
            cylinder_skew_ns,
        }
    }

    fn zone(&self, sector: u64) -> &Zone {
        let index = self.zones.partition_point(|zone| zone.first_sector <= sector);
        &self.zones[index.saturating_sub(1)]
    }

    /// The first sector after a zone.
    fn end(&self, zone: &Zone) -> u64 {
        zone.first_sector + self.cylinders_each * self.heads.by * zone.track.by
    }

    /// The position of a sector.
    pub(super) fn place(&self, sector: u64) -> SectorPosition {
        let zone = self.zone(sector);
        let inside = sector - zone.first_sector;
        let (track, on_track) = zone.track.divide(inside);
        let (cylinder, head) = self.heads.divide(track);
        let skew = self.skew_ns(track, cylinder) * self.turns_per_ns;
        let angle = fraction(skew + on_track as f64 * zone.sector_angle);
        SectorPosition { cylinder: zone.first_cylinder + cylinder, head, angle }
    }

    /// Total skew of `tracks` track changes; `cylinders` of them change the cylinder.
    fn skew_ns(&self, tracks: u64, cylinders: u64) -> f64 {
        (tracks - cylinders) as f64 * self.track_skew_ns + cylinders as f64 * self.cylinder_skew_ns
    }

    /// Nanoseconds from the start of sector `from` until `count` sectors have passed. The loop
    /// takes one step per zone.
    pub(super) fn pass_ns(&self, mut from: u64, mut count: u64) -> f64 {
        let mut total = 0.0;
        while count > 0 {
            let zone = self.zone(from);
            let here = count.min(self.end(zone).saturating_sub(from)).max(1);
            let (first, on_track) = zone.track.divide(from - zone.first_sector);
            total += here as f64 * zone.sector_ns;
            if on_track + here > zone.track.by {
                let (last, _) = zone.track.divide(from + here - 1 - zone.first_sector);
                let cylinders = self.heads.divide(last).0 - self.heads.divide(first).0;
                total += self.skew_ns(last - first, cylinders);
            }
            from += here;
            count -= here;
            if count > 0 {
                total += self.cylinder_skew_ns;
            }
        }
        total
    }

    /// Approximately how many sectors pass in `span` nanoseconds from the start of `from` (with
    /// evenly spread skews).
    pub(super) fn passed(&self, from: u64, span: f64) -> u64 {
        whole(span / self.zone(from.min(self.sectors - 1)).mean_sector_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, catalog};

    fn geometries() -> Vec<(Geometry, u64, HddSpec)> {
        let hdds = catalog::MODELS.iter().filter_map(|model| match model.kind {
            Kind::Hdd(spec) => {
                let geometry = Geometry::new(&spec, model.capacity_bytes, model.sector_bytes);
                Some((geometry, u64::from(model.sector_bytes), spec))
            }
            Kind::Ssd(_) => None,
        });
        hdds.collect()
    }

    /// Passing a range at once, or in two parts with a positioning in between, takes the same time,
    /// up to whole revolutions at zone boundaries.
    #[test]
    fn a_pass_ends_at_the_angle_where_the_next_begins() {
        for (geometry, _, _) in geometries() {
            let zone = geometry.zones[3];
            for from in (0..40_000).map(|i| zone.first_sector + i * 97) {
                for count in [1, 8, 1000, 20_000] {
                    if from + count >= geometry.end(&zone) {
                        continue;
                    }
                    let turned =
                        geometry.pass_ns(from, count + 1) - geometry.pass_ns(from + count, 1);
                    let expected = geometry.place(from + count).angle - geometry.place(from).angle;
                    let off = fraction(turned / geometry.turn_ns - expected + 0.5) - 0.5;
                    assert!(off.abs() < 1e-6, "{from}+{count}: off by {off} turns");
                }
            }
        }
    }

    #[test]
    fn the_outer_and_inner_rates_are_those_asked_for() {
        for (geometry, bytes, spec) in geometries() {
            let count = 100_000_000 / bytes;
            let rate = |from| (count * bytes) as f64 / geometry.pass_ns(from, count) * 1e3;
            let last = geometry.zones.last().expect("zones").first_sector;
            let (outer, inner) = (rate(0), rate(last));
            assert!((outer / spec.outer_mb_s - 1.0).abs() < 0.02, "{outer} {}", spec.outer_mb_s);
            assert!((inner / spec.inner_mb_s - 1.0).abs() < 0.02, "{inner} {}", spec.inner_mb_s);
            assert!(geometry.end(geometry.zones.last().expect("zones")) >= geometry.sectors);
        }
    }
}
