//! Western Digital Caviar Blue, 1 TB: the disks of the VDF paper.

use crate::hdd::{HddSpec, SeekSpec};
use crate::product::{Kind, Measure, Model, Sheet};

pub(super) const MODEL: Model = Model {
    name: "wd10eals",
    title: "Western Digital Caviar Blue WD10EALS (1 TB, 7200 rpm, SATA, 2010)",
    source: "Western Digital, WD Caviar Blue data sheet (2879-701277)",
    inferred: "seek times (the maker's figures for Caviar disks of 7200 rpm), inner rate, zones, settling, \
               head switch, overhead, segments, read-ahead, age limit",
    sector_bytes: 512,
    capacity_bytes: 1_953_525_168 * 512,
    kind: Kind::Hdd(HddSpec {
        rpm: 7200,
        heads: 4,
        zones: 16,
        outer_mb_s: 126.0,
        inner_mb_s: 62.0,
        seek: SeekSpec { track_to_track_ms: 1.2, average_ms: 8.9, full_stroke_ms: 19.0 },
        write_settle_ms: 0.2,
        head_switch_ms: 0.9,
        overhead_us: 200.0,
        interface_mb_s: 300.0,
        cache_bytes: 32 << 20,
        segments: 32,
        read_ahead_bytes: 512 << 10,
        write_cache: true,
        queue_depth: 32,
        age_limit_ms: 500.0,
    }),
    sheet: &[
        Sheet::stated(Measure::OuterMbS, 126.0, 0.03),
        Sheet::derived(Measure::AverageSeekMs, 8.9, 0.05),
        Sheet::derived(Measure::RandomReadIops(1), 75.3, 0.06),
    ],
};
