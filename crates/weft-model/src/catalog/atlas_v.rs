//! Quantum Atlas V, 9.1 GB, Ultra160 SCSI: the disks of the file RAID paper.

use crate::hdd::{HddSpec, SeekSpec};
use crate::product::{Kind, Measure, Model, Sheet};

pub(super) const MODEL: Model = Model {
    name: "atlas-v",
    title: "Quantum Atlas V (9.1 GB, 7200 rpm, Ultra160 SCSI, 1999)",
    source: "Quantum, Atlas V data sheet; 29 MB/s and 6.3 ms also in the file RAID paper, §5",
    inferred: "full stroke, track to track, zones, settling, head switch, overhead, segments, \
               read-ahead, age limit; the write cache is taken as off, as is usual for SCSI disks of servers",
    sector_bytes: 512,
    capacity_bytes: 17_930_694 * 512,
    kind: Kind::Hdd(HddSpec {
        rpm: 7200,
        heads: 2,
        zones: 16,
        outer_mb_s: 29.0,
        inner_mb_s: 17.0,
        seek: SeekSpec { track_to_track_ms: 0.8, average_ms: 6.3, full_stroke_ms: 13.5 },
        write_settle_ms: 0.5,
        head_switch_ms: 0.9,
        overhead_us: 300.0,
        interface_mb_s: 160.0,
        cache_bytes: 4 << 20,
        segments: 8,
        read_ahead_bytes: 256 << 10,
        write_cache: false,
        queue_depth: 32,
        age_limit_ms: 500.0,
    }),
    sheet: &[
        Sheet::stated(Measure::OuterMbS, 29.0, 0.03),
        Sheet::stated(Measure::InnerMbS, 17.0, 0.05),
        Sheet::stated(Measure::AverageSeekMs, 6.3, 0.05),
        Sheet::derived(Measure::RandomReadIops(1), 92.9, 0.06),
    ],
};
