//! Samsung SSD 990 Pro, 2 TB: a current NVMe disk.

use crate::product::{Kind, Measure, Model, Sheet};
use crate::ssd::SsdSpec;

pub(super) const MODEL: Model = Model {
    name: "990pro-2t",
    title: "Samsung SSD 990 PRO MZ-V9P2T0 (2 TB, TLC V-NAND, PCIe 4.0 x4 NVMe, 2022)",
    source: "Samsung, SSD 990 PRO data sheet",
    inferred: "ways (8 channels of 4 dies with 4 independent planes), page and program sizes and times, shares \
               of overhead in the stated latencies, buffer, flush",
    sector_bytes: 512,
    capacity_bytes: 2_000_398_934_016,
    kind: Kind::Ssd(SsdSpec {
        channels: 8,
        ways_per_channel: 16,
        page_bytes: 16 << 10,
        read_us: 33.0,
        program_bytes: 16 << 10,
        program_us: 180.0,
        suspend_us: 15.0,
        channel_mb_s: 2000.0,
        link_read_mb_s: 7450.0,
        link_write_mb_s: 6900.0,
        duplex: true,
        read_command_us: 0.164,
        write_command_us: 0.05,
        read_overhead_us: 9.1,
        write_overhead_us: 11.85,
        buffer_bytes: 64 << 20,
        fast_bytes: 226_000_000_000,
        slow_mb_s: 1400.0,
        protected: false,
        flush_us: 500.0,
        queue_depth: 1024,
        lone_flush: false,
    }),
    sheet: &[
        Sheet::stated(Measure::OuterMbS, 7450.0, 0.05),
        Sheet::stated(Measure::WriteMbS, 6900.0, 0.05),
        Sheet::stated(Measure::RandomReadIops(1), 22_000.0, 0.05),
        Sheet::stated(Measure::RandomReadIops(512), 1_400_000.0, 0.05),
        Sheet::stated(Measure::RandomWriteIops(1), 80_000.0, 0.05),
        Sheet::stated(Measure::RandomWriteIops(512), 1_550_000.0, 0.05),
    ],
};
