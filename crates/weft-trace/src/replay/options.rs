//! Options of a replay.

use weft_rt::{MILLISECOND, Nanos};

/// When requests are issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At the times of the trace, regardless of the target.
    Open {
        /// Speed relative to the trace.
        speed: Speed,
        /// Maximum number of requests in flight: bounds memory. A request that finds no place
        /// starts late; its latency counts from when it should have started.
        in_flight_max: usize,
    },
    /// Whenever fewer than this many are in flight; the times of the trace are not used.
    Closed {
        /// Requests in flight.
        outstanding: usize,
    },
}

/// A factor of time as a fraction; no rounding accumulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speed {
    /// Faster by this …
    pub numerator: u32,
    /// … divided by this.
    pub denominator: u32,
}

impl Speed {
    /// The trace's own speed.
    pub const REAL: Self = Self { numerator: 1, denominator: 1 };

    /// When a request of the trace's time `at_ns` is due.
    pub fn due_ns(self, at_ns: Nanos) -> Nanos {
        let (up, down) = (u128::from(self.denominator), u128::from(self.numerator.max(1)));
        u64::try_from(u128::from(at_ns) * up / down).unwrap_or(u64::MAX)
    }
}

/// What to verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing.
    Off,
    /// Reads of data that the replay itself has written.
    Reads,
    /// These, and at the end everything written is read again (not measured).
    All,
}

/// How to treat writes and trims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// Perform them: the target's contents are lost.
    Perform,
    /// Skip and count them.
    Skip,
}

/// Options of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// When requests are issued.
    pub pace: Pace,
    /// This many requests at the start are carried out but not measured.
    pub warm_up_requests: u64,
    /// Requests due before this time (after speeding up, since the start) are not measured either.
    pub warm_up_ns: Nanos,
    /// No request is issued that is due (closed loop: would be issued) after this time.
    pub duration_ns: Option<Nanos>,
    /// Length of the intervals of the series; `None`: no series.
    pub interval_ns: Option<Nanos>,
    /// Writes and trims.
    pub writes: Writes,
    /// What to verify. Needs [`Writes::Perform`] to find anything to verify.
    pub verify: Verify,
    /// Distinguishes the data that different runs write.
    pub seed: u64,
    /// An open-loop request that starts later than this counts as late.
    pub late_after_ns: Nanos,
    /// Longer requests go to the target in pieces of this length, in bytes; none is cut.
    pub piece_bytes_max: u64,
    /// Maximum bytes of buffers; further pieces wait (and their waiting counts).
    pub memory_bytes_max: u64,
    /// Maximum number of blocks (sectors) whose contents are remembered, some 80 bytes each.
    pub verify_blocks_max: usize,
}

impl Default for Options {
    /// Open loop at the trace's own speed, everything measured, nothing verified, writes performed.
    fn default() -> Self {
        Self {
            pace: Pace::Open { speed: Speed::REAL, in_flight_max: 4096 },
            warm_up_requests: 0,
            warm_up_ns: 0,
            duration_ns: None,
            interval_ns: None,
            writes: Writes::Perform,
            verify: Verify::Off,
            seed: 1,
            late_after_ns: MILLISECOND,
            piece_bytes_max: 4 << 20,
            memory_bytes_max: 256 << 20,
            verify_blocks_max: 8 << 20,
        }
    }
}
