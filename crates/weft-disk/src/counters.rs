//! Counts of a disk's requests, as `iostat` and `zpool iostat` show them.

use std::cell::Cell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::{DiskError, DiskErrorKind, DiskOp};

/// Requests to a disk that have ended, since it was opened, and those in progress. Metadata counts
/// like data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounts {
    /// Reads that were carried out.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes that were carried out.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Flushes that were carried out.
    pub flushes: u64,
    /// Requests to zero or to discard a range that were carried out.
    pub zeroes: u64,
    /// Their bytes.
    pub zeroed_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes, and requests to zero or to discard, that failed. That a file found no room is no
    /// error.
    pub write_errors: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Requests that ended because the disk did not answer in time.
    pub timeouts: u64,
    /// Requests in progress.
    pub in_flight: u64,
}

/// The counts of a disk; they can still be read when the disk is closed.
#[derive(Debug, Clone, Default)]
pub struct Counters(Rc<Cell<IoCounts>>);

impl Counters {
    /// Their current values.
    pub fn get(&self) -> IoCounts {
        self.0.get()
    }

    fn change(&self, change: impl FnOnce(&mut IoCounts)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }

    pub(crate) fn begin(&self) {
        self.change(|counts| counts.in_flight += 1);
    }

    pub(crate) fn end(&self) {
        self.change(|counts| counts.in_flight -= 1);
    }

    /// A request ended with the result of the disk below.
    pub(crate) fn ended(&self, op: DiskOp, len: u64, result: Result<(), &DiskError>) {
        self.change(|counts| match (op, result) {
            (DiskOp::Read, Ok(())) => {
                counts.reads += 1;
                counts.read_bytes += len;
            }
            (DiskOp::Write, Ok(())) => {
                counts.writes += 1;
                counts.written_bytes += len;
            }
            (DiskOp::Flush, Ok(())) => counts.flushes += 1,
            (DiskOp::WriteZeroes | DiskOp::Discard, Ok(())) => {
                counts.zeroes += 1;
                counts.zeroed_bytes += len;
            }
            (DiskOp::Open, Ok(())) => {}
            (_, Err(error)) if error.is_no_space() => {}
            (_, Err(error)) if error.kind == DiskErrorKind::TimedOut => counts.timeouts += 1,
            (DiskOp::Read | DiskOp::Open, Err(_)) => counts.read_errors += 1,
            (DiskOp::Write | DiskOp::WriteZeroes | DiskOp::Discard, Err(_)) => {
                counts.write_errors += 1;
            }
            (DiskOp::Flush, Err(_)) => counts.flush_errors += 1,
        });
    }
}
