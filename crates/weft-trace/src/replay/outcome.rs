//! The outcome of a replay.

use serde::Serialize;
pub use weft_disk::Latency;
use weft_rt::Nanos;

use crate::replay::verify::Verified;

/// The lateness with which requests of an open loop started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Late {
    /// Requests that started later than
    /// [`Options::late_after_ns`](crate::replay::Options::late_after_ns).
    pub requests: u64,
    /// Mean lateness of all requests, in nanoseconds.
    pub mean_ns: Nanos,
    /// 99th percentile.
    pub p99_ns: Nanos,
    /// Greatest.
    pub max_ns: Nanos,
}

/// Requests that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Trims.
    pub trims: u64,
    /// The first of them, described.
    pub first: Vec<String>,
}

impl Failed {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.trims
    }
}

/// One interval of the series: the requests that completed in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Point {
    /// Where the interval starts, in nanoseconds since measuring started.
    pub at_ns: Nanos,
    /// Its length; the last one may be shorter.
    pub len_ns: Nanos,
    /// Latency of the requests that completed in it.
    pub latency: Latency,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests in flight at its end.
    pub in_flight: u64,
    /// How busy each known disk was, in thousandths.
    pub busy_per_mille: Vec<u16>,
}

/// How busy a disk was during the measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Utilisation {
    /// Its name.
    pub disk: String,
    /// In thousandths of the time.
    pub busy_per_mille: u16,
}

/// The complete outcome of a replay. Unless stated otherwise, a figure leaves out the warm-up and
/// requests that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Time from when the first measured request was due until the last one was complete.
    pub elapsed_ns: Nanos,
    /// Response times of all requests: from when a request was due (open loop) or issued (closed
    /// loop) until it was complete.
    pub all: Latency,
    /// Those of reads.
    pub reads: Latency,
    /// Those of writes.
    pub writes: Latency,
    /// Those of flushes.
    pub flushes: Latency,
    /// Those of trims.
    pub trims: Latency,
    /// From issue to completion: without the lateness of the start.
    pub service: Latency,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests in 1000 seconds.
    pub requests_per_1000_s: u64,
    /// Bytes read and written in a second.
    pub bytes_per_s: u64,
    /// How late requests started (open loop).
    pub late: Late,
    /// Requests issued, of the whole run.
    pub issued: u64,
    /// Requests completed, of the whole run. Equal to `issued`: none is lost.
    pub completed: u64,
    /// Of these, the warm-up's.
    pub warm_up: u64,
    /// Requests that failed, of the whole run.
    pub failed: Failed,
    /// Requests of the trace that lie beyond the target: not issued.
    pub beyond: u64,
    /// Requests that were widened to whole sectors.
    pub widened: u64,
    /// Trims of less than a sector: not issued.
    pub trims_too_small: u64,
    /// Writes and trims skipped because they were not allowed.
    pub writes_skipped: u64,
    /// Most requests in flight at the same time.
    pub in_flight_max: u64,
    /// The results of verification, if requested.
    pub verified: Option<Verified>,
    /// How busy each disk was, where that is known.
    pub utilisation: Vec<Utilisation>,
    /// The series, if requested; intervals in which nothing completed are left out.
    pub series: Vec<Point>,
}
