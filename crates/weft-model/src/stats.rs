//! Counters of a disk, for utilisation and for comparison with the kernel's `/proc/diskstats`.

use weft_rt::Nanos;

use crate::command::{Command, Verb, Work};

/// Counters since the disk was opened or since [`crate::ModelDisk::reset_stats`].
///
/// They correspond to `/proc/diskstats`: a request counts when it completes, `busy_ns` is the time
/// in which at least one request was in flight (`io_ticks`), and `depth_ns` is that time weighted
/// by the number of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskStats {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Zeroing commands completed.
    pub zeroes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes zeroed.
    pub zeroed_bytes: u64,
    /// Total time from arrival to completion of reads, in nanoseconds.
    pub read_ns: Nanos,
    /// Counts of writes and zeroing.
    pub write_ns: Nanos,
    /// Counts of flushes.
    pub flush_ns: Nanos,
    /// Total delay from completion by the model until the caller learned of it, in nanoseconds; 0
    /// in virtual time.
    pub late_ns: Nanos,
    /// Nanoseconds in which at least one command was in flight.
    pub busy_ns: Nanos,
    /// Commands in flight, integrated over time in nanoseconds.
    pub depth_ns: u128,
    /// Nanoseconds covered by the counters.
    pub elapsed_ns: Nanos,
    /// Commands in flight now.
    pub in_flight: u64,
    /// What the mechanism has done since the disk was opened.
    pub work: Work,
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl DiskStats {
    /// The fraction of time in which the disk was busy, 0 to 1 (iostat's `%util`).
    pub fn utilisation(&self) -> f64 {
        ratio(self.busy_ns as f64, self.elapsed_ns as f64)
    }

    /// Mean number of commands in flight over the whole time (iostat's `aqu-sz`).
    pub fn mean_depth(&self) -> f64 {
        ratio(self.depth_ns as f64, self.elapsed_ns as f64)
    }

    /// Mean nanoseconds from arrival to completion of reads.
    pub fn mean_read_ns(&self) -> f64 {
        ratio(self.read_ns as f64, self.reads as f64)
    }

    /// Mean nanoseconds from arrival to completion of writes and zeroing.
    pub fn mean_write_ns(&self) -> f64 {
        ratio(self.write_ns as f64, (self.writes + self.zeroes) as f64)
    }

    /// Mean delay, in nanoseconds, from completion by the model until the caller learned of it.
    pub fn mean_late_ns(&self) -> f64 {
        ratio(self.late_ns as f64, self.requests() as f64)
    }

    /// All completed commands.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.zeroes + self.flushes
    }
}

/// Keeps the counters.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    since: Nanos,
    last: Nanos,
    stats: DiskStats,
}

impl Accounts {
    pub(super) fn new(now: Nanos) -> Self {
        Self { since: now, last: now, ..Self::default() }
    }

    fn pass(&mut self, now: Nanos) {
        let span = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        if self.stats.in_flight > 0 {
            self.stats.busy_ns += span;
            self.stats.depth_ns += u128::from(span) * u128::from(self.stats.in_flight);
        }
    }

    pub(super) fn arrived(&mut self, now: Nanos) {
        self.pass(now);
        self.stats.in_flight += 1;
    }

    pub(super) fn left(&mut self, command: &Command, arrived: Nanos, now: Nanos) {
        self.pass(now);
        let stats = &mut self.stats;
        stats.in_flight -= 1;
        let took = now.saturating_sub(arrived);
        match command.verb {
            Verb::Read => {
                stats.reads += 1;
                stats.read_bytes += command.len;
                stats.read_ns += took;
            }
            Verb::Write => {
                stats.writes += 1;
                stats.written_bytes += command.len;
                stats.write_ns += took;
            }
            Verb::Zero => {
                stats.zeroes += 1;
                stats.zeroed_bytes += command.len;
                stats.write_ns += took;
            }
            Verb::Flush => {
                stats.flushes += 1;
                stats.flush_ns += took;
            }
        }
    }

    pub(super) fn learned(&mut self, late: Nanos) {
        self.stats.late_ns += late;
    }

    pub(super) fn stats(&mut self, now: Nanos, work: Work) -> DiskStats {
        self.pass(now);
        DiskStats { elapsed_ns: now.saturating_sub(self.since), work, ..self.stats }
    }

    /// Resets the counters; commands in flight remain.
    pub(super) fn reset(&mut self, now: Nanos) {
        let in_flight = self.stats.in_flight;
        *self = Self::new(now);
        self.stats.in_flight = in_flight;
    }
}
