//! Seagate Barracuda 7200.8, 300 GB, Serial ATA with NCQ: the disks of the PRO paper.

use crate::hdd::{HddSpec, SeekSpec};
use crate::product::{Kind, Measure, Model, Sheet};

pub(super) const MODEL: Model = Model {
    name: "st3300831as",
    title: "Seagate Barracuda 7200.8 ST3300831AS (300 GB, 7200 rpm, SATA, 2005)",
    source: "Seagate, Barracuda 7200.8 Serial ATA data sheet and product manual; 76 MB/s: PRO paper, §5.1",
    inferred: "full stroke, inner rate (from the stated average of 65 MB/s), zones, settling, head \
               switch, overhead, segments, read-ahead, age limit",
    sector_bytes: 512,
    capacity_bytes: 586_072_368 * 512,
    kind: Kind::Hdd(HddSpec {
        rpm: 7200,
        heads: 5,
        zones: 16,
        outer_mb_s: 76.0,
        inner_mb_s: 50.0,
        seek: SeekSpec { track_to_track_ms: 0.8, average_ms: 8.0, full_stroke_ms: 17.0 },
        write_settle_ms: 0.2,
        head_switch_ms: 0.9,
        overhead_us: 250.0,
        interface_mb_s: 150.0,
        cache_bytes: 8 << 20,
        segments: 16,
        read_ahead_bytes: 256 << 10,
        write_cache: true,
        queue_depth: 32,
        age_limit_ms: 500.0,
    }),
    sheet: &[
        Sheet::derived(Measure::OuterMbS, 76.0, 0.03),
        Sheet::stated(Measure::MeanMbS, 65.0, 0.05),
        Sheet::stated(Measure::AverageSeekMs, 8.0, 0.05),
        Sheet::derived(Measure::RandomReadIops(1), 80.4, 0.06),
    ],
};
