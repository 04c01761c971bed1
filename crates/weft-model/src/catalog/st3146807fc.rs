//! Seagate Cheetah 10K.6, 146.8 GB, Fibre Channel: the disks of the ALV paper.

use crate::hdd::{HddSpec, SeekSpec};
use crate::product::{Kind, Measure, Model, Sheet};

pub(super) const MODEL: Model = Model {
    name: "st3146807fc",
    title: "Seagate Cheetah 10K.6 ST3146807FC (146.8 GB, 10 000 rpm, 2 Gb/s Fibre Channel, 2002)",
    source: "Seagate, Cheetah 10K.6 data sheet and FC product manual (100195490)",
    inferred: "full stroke, zones, settling, head switch, overhead, segments, read-ahead, age limit",
    sector_bytes: 512,
    capacity_bytes: 286_749_488 * 512,
    kind: Kind::Hdd(HddSpec {
        rpm: 10_000,
        heads: 8,
        zones: 16,
        outer_mb_s: 68.5,
        inner_mb_s: 38.4,
        seek: SeekSpec { track_to_track_ms: 0.35, average_ms: 4.7, full_stroke_ms: 9.9 },
        write_settle_ms: 0.2,
        head_switch_ms: 0.5,
        overhead_us: 150.0,
        interface_mb_s: 200.0,
        cache_bytes: 8 << 20,
        segments: 16,
        read_ahead_bytes: 256 << 10,
        write_cache: true,
        queue_depth: 64,
        age_limit_ms: 300.0,
    }),
    sheet: &[
        Sheet::stated(Measure::OuterMbS, 68.5, 0.03),
        Sheet::stated(Measure::InnerMbS, 38.4, 0.05),
        Sheet::stated(Measure::AverageSeekMs, 4.7, 0.05),
        Sheet::derived(Measure::RandomReadIops(1), 127.0, 0.06),
    ],
};
