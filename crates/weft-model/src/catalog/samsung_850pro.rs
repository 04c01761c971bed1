//! Samsung SSD 850 Pro, 256 GB: the disks of the DRC paper.

use crate::product::{Kind, Measure, Model, Sheet};
use crate::ssd::SsdSpec;

pub(super) const MODEL: Model = Model {
    name: "850pro-256g",
    title: "Samsung SSD 850 Pro MZ-7KE256 (256 GB, MLC V-NAND, SATA 6 Gb/s, 2014)",
    source: "Samsung, SSD 850 PRO data sheet",
    inferred: "channels, ways, page and program sizes and times (32 dies of 86 Gbit MLC on 8 channels), shares \
               of overhead in the stated latencies, buffer, flush",
    sector_bytes: 512,
    capacity_bytes: 256_060_514_304,
    kind: Kind::Ssd(SsdSpec {
        channels: 8,
        ways_per_channel: 8,
        page_bytes: 16 << 10,
        read_us: 49.0,
        program_bytes: 16 << 10,
        program_us: 600.0,
        suspend_us: 30.0,
        channel_mb_s: 400.0,
        link_read_mb_s: 550.0,
        link_write_mb_s: 520.0,
        duplex: false,
        read_command_us: 2.55,
        write_command_us: 3.2,
        read_overhead_us: 30.5,
        write_overhead_us: 16.5,
        buffer_bytes: 32 << 20,
        fast_bytes: u64::MAX,
        slow_mb_s: 520.0,
        protected: false,
        flush_us: 1000.0,
        queue_depth: 32,
        lone_flush: true,
    }),
    sheet: &[
        Sheet::stated(Measure::OuterMbS, 550.0, 0.05),
        Sheet::stated(Measure::WriteMbS, 520.0, 0.05),
        Sheet::stated(Measure::RandomReadIops(1), 10_000.0, 0.05),
        Sheet::stated(Measure::RandomReadIops(32), 100_000.0, 0.05),
        Sheet::stated(Measure::RandomWriteIops(1), 36_000.0, 0.05),
        Sheet::stated(Measure::RandomWriteIops(32), 90_000.0, 0.05),
    ],
};
