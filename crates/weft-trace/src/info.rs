//! The statistics of a trace.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::footprint::Footprint;
use crate::record::{Op, Record};
use crate::replay::Volumes;
use weft_disk::Histogram;

/// Number of volumes that are counted separately; requests to further ones count as of the last.
const DEVICES_MAX: usize = 65_536;

/// How long requests are, in bytes. Percentiles are never too large and at most 1/128 too small,
/// and exact for multiples of 512 up to 64 KiB and of 4 KiB up to 512 KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Mean.
    pub mean: u64,
    /// Least.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Greatest.
    pub max: u64,
}

impl From<&Histogram> for Sizes {
    fn from(histogram: &Histogram) -> Self {
        Self {
            mean: histogram.mean(),
            min: histogram.min(),
            p50: histogram.percentile_low(500),
            p90: histogram.percentile_low(900),
            p99: histogram.percentile_low(990),
            max: histogram.max(),
        }
    }
}

/// One volume of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Its number.
    pub device: u32,
    /// Requests of all kinds.
    pub requests: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Bytes read and written.
    #[serde(rename = "transferred_bytes")]
    pub bytes: u64,
    /// Bytes touched by reads and writes, in whole blocks.
    pub footprint_bytes: u64,
    /// The end of the highest request, in bytes: the minimum size of the volume.
    pub end_bytes: u64,
}

/// Statistics of a trace. Shares are in millionths, rates in requests per 1000 seconds, so that no
/// figure depends on how a machine rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Requests of all kinds.
    pub requests: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Trims.
    pub trims: u64,
    /// Reads among reads and writes.
    pub read_ppm: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Lengths of reads and writes.
    #[serde(rename = "sizes_bytes")]
    pub sizes: Sizes,
    /// Lengths of reads.
    #[serde(rename = "read_sizes_bytes")]
    pub read_sizes: Sizes,
    /// Lengths of writes.
    #[serde(rename = "write_sizes_bytes")]
    pub write_sizes: Sizes,
    /// Time from the first request to the last, in nanoseconds.
    pub span_ns: u64,
    /// Requests in 1000 seconds of the span.
    pub requests_per_1000_s: u64,
    /// Bytes read and written in a second of the span.
    pub bytes_per_s: u64,
    /// Bytes touched by reads and writes, each once, in whole blocks.
    pub footprint_bytes: u64,
    /// The length of these blocks: 4096, or more for traces with a very large footprint.
    pub footprint_block_bytes: u64,
    /// The share of touches of blocks that were touched before.
    pub reuse_ppm: u64,
    /// Reads and writes that start where the one before of the same volume ended.
    pub sequential_ppm: u64,
    /// Every volume.
    pub devices: Vec<DeviceInfo>,
}

/// Gathers an [`Info`] from the requests of a trace.
#[derive(Default)]
pub struct Survey {
    info: Info,
    all: Histogram,
    of_reads: Histogram,
    of_writes: Histogram,
    footprint: Footprint,
    sequential: u64,
    devices: BTreeMap<u32, Seen>,
}

/// A volume, and where its last request ended.
#[derive(Default)]
struct Seen {
    info: DeviceInfo,
    last_end: Option<u64>,
}

impl std::fmt::Debug for Survey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Survey").field("requests", &self.info.requests).finish_non_exhaustive()
    }
}

impl Survey {
    /// Adds the next request.
    pub fn add(&mut self, record: &Record) {
        let Record { at_ns, device, offset, len, op } = *record;
        let info = &mut self.info;
        info.requests += 1;
        info.span_ns = info.span_ns.max(at_ns);
        let known = self.devices.contains_key(&device) || self.devices.len() < DEVICES_MAX;
        let last = self.devices.last_key_value().map_or(device, |(last, _)| *last);
        let seen = self.devices.entry(if known { device } else { last }).or_default();
        seen.info.device = device;
        seen.info.requests += 1;
        seen.info.end_bytes = seen.info.end_bytes.max(record.end());
        match op {
            Op::Flush => info.flushes += 1,
            Op::Trim => info.trims += 1,
            Op::Read => {
                info.reads += 1;
                info.read_bytes = info.read_bytes.saturating_add(len);
                seen.info.reads += 1;
                self.of_reads.add(len);
            }
            Op::Write => {
                info.writes += 1;
                info.written_bytes = info.written_bytes.saturating_add(len);
                self.of_writes.add(len);
            }
        }
        if matches!(op, Op::Read | Op::Write) {
            self.all.add(len);
            seen.info.bytes = seen.info.bytes.saturating_add(len);
            self.sequential += u64::from(seen.last_end == Some(offset));
            seen.last_end = Some(record.end());
            self.footprint.touch(device, offset, len);
        }
    }

    /// The statistics.
    pub fn finish(self) -> Info {
        let share = |part: u64, whole: u64| {
            u64::try_from(u128::from(part) * 1_000_000 / u128::from(whole.max(1))).unwrap_or(0)
        };
        let rate = |count: u64, unit: u128, span_ns: u64| {
            let per = u128::from(count) * unit / u128::from(span_ns.max(1));
            if span_ns == 0 { 0 } else { u64::try_from(per).unwrap_or(u64::MAX) }
        };
        let block_bytes = self.footprint.block_bytes();
        let blocks = self.footprint.blocks();
        let touched: u64 = blocks.values().sum();
        let info = self.info;
        let bytes = info.read_bytes.saturating_add(info.written_bytes);
        let devices = self.devices.into_iter().map(|(device, seen)| DeviceInfo {
            device,
            footprint_bytes: blocks.get(&device).map_or(0, |blocks| blocks * block_bytes),
            ..seen.info
        });
        Info {
            read_ppm: share(info.reads, info.reads + info.writes),
            sizes: Sizes::from(&self.all),
            read_sizes: Sizes::from(&self.of_reads),
            write_sizes: Sizes::from(&self.of_writes),
            requests_per_1000_s: rate(info.requests, 1_000_000_000_000, info.span_ns),
            bytes_per_s: rate(bytes, 1_000_000_000, info.span_ns),
            footprint_bytes: touched.saturating_mul(block_bytes),
            footprint_block_bytes: block_bytes,
            reuse_ppm: share(self.footprint.accesses() - touched, self.footprint.accesses()),
            sequential_ppm: share(self.sequential, info.reads + info.writes),
            devices: devices.collect(),
            ..info
        }
    }
}

impl Info {
    /// The sizes of the volumes that hold all requests.
    pub fn volumes(&self) -> Volumes {
        let mut volumes = Volumes::default();
        for device in &self.devices {
            volumes.set(device.device, device.end_bytes);
        }
        volumes
    }
}
