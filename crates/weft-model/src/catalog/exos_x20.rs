//! Seagate Exos X20, 20 TB: a current disk of data centres.

use crate::hdd::{HddSpec, SeekSpec};
use crate::product::{Kind, Measure, Model, Sheet};

pub(super) const MODEL: Model = Model {
    name: "exos-x20",
    title: "Seagate Exos X20 ST20000NM007D (20 TB, 7200 rpm, SATA 6 Gb/s, 2021)",
    source: "Seagate, Exos X20 data sheet (DS2080)",
    inferred: "seek times (typical of the class; the sheet states none), inner rate, zones, settling, head \
               switch, overhead, segments, read-ahead, age limit; formatted with 4096-byte sectors",
    sector_bytes: 4096,
    capacity_bytes: 20_000_588_955_648,
    kind: Kind::Hdd(HddSpec {
        rpm: 7200,
        heads: 20,
        zones: 32,
        outer_mb_s: 285.0,
        inner_mb_s: 135.0,
        seek: SeekSpec { track_to_track_ms: 0.3, average_ms: 8.0, full_stroke_ms: 16.5 },
        write_settle_ms: 0.1,
        head_switch_ms: 0.6,
        overhead_us: 100.0,
        interface_mb_s: 600.0,
        cache_bytes: 256 << 20,
        segments: 32,
        read_ahead_bytes: 1 << 20,
        write_cache: true,
        queue_depth: 32,
        age_limit_ms: 1000.0,
    }),
    sheet: &[
        Sheet::stated(Measure::OuterMbS, 285.0, 0.03),
        Sheet::stated(Measure::RandomReadIops(16), 168.0, 0.10),
        Sheet::stated(Measure::RandomWriteIops(16), 550.0, 0.25),
        Sheet::derived(Measure::RandomReadIops(1), 81.5, 0.06),
    ],
};
