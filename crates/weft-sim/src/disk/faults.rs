//! Faults of a disk, except power cuts.

use std::collections::BTreeSet;

use weft_disk::{DISK_TIMEOUT, DiskOp};
use weft_rt::{Nanos, Rng};

/// The present and pending faults of a disk.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The disk no longer answers.
    pub gone: bool,
    /// The disk fails after this many more operations.
    pub gone_after_ops: Option<u64>,
    /// Sectors, by number, that cannot be read until they are written.
    pub unreadable: BTreeSet<u64>,
    /// The next write that overlaps this byte range is acknowledged and not stored.
    pub lose_write_in: Option<std::ops::Range<u64>>,
    /// The next write that overlaps this byte range is stored this many bytes further on.
    pub misdirect_write_in: Option<(std::ops::Range<u64>, u64)>,
    /// Writes that need new space fail: the file system under the disk is full.
    pub full: bool,
    /// Overwriting needs new space, too.
    pub copies_on_write: bool,
    /// The disk answers nothing until this time, and then carries out all requests, including
    /// requests that timed out.
    pub hangs_until: Nanos,
    /// Percentage of writes that fail with an I/O error.
    pub write_errors_percent: u64,
    /// Writes that touch this byte range fail with an I/O error; everything can be read.
    pub unwritable: Option<std::ops::Range<u64>>,
    /// The disk was made read-only: writes fail with `EPERM`, and it cannot be opened for writing.
    pub write_protected: bool,
    /// It has refused a write for that: the array gives it up, also if it is writable again by
    /// then.
    pub has_refused: bool,
    /// The disk has become shorter and lost its contents beyond the new end: every operation fails
    /// until it has its old length again. The contents do not come back with that.
    pub shrunk: bool,
    /// The disk failed an operation in a way that excludes a member, or a command excluded it.
    pub failed: bool,
    /// A command is excluding it; it is excluded once the engine severs the disk.
    pub fail_requested: bool,
    /// Ranges of failed writes. Parts of them may be stored, but the engine was told that they
    /// failed and does not rely on them.
    pub failed_writes: Vec<std::ops::Range<u64>>,
}

/// What happens to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Stored,
    Lost,
    Elsewhere(u64),
    Fails(Errno),
}

/// A Linux error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errno {
    NotPermitted = 1,
    Io = 5,
    NoDevice = 19,
    NoSpace = 28,
}

impl Faults {
    /// Counts an operation. Returns whether the disk still answers.
    pub(crate) fn answers(&mut self) -> bool {
        // The error of each operation.
        if self.shrunk {
            return true;
        }
        if let Some(left) = &mut self.gone_after_ops {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => self.gone = true,
            }
        }
        !self.gone
    }

    /// Until when an operation hangs that started at `since`; `None`: it does not. An operation
    /// that exceeds the time limit excludes the member.
    pub(crate) fn hangs(&mut self, since: Nanos, now: Nanos) -> Option<Nanos> {
        self.failed |= self.hangs_until.saturating_sub(since) >= DISK_TIMEOUT;
        (now < self.hangs_until).then_some(self.hangs_until)
    }

    /// Determines what happens to a write to this range.
    pub(crate) fn write_outcome(
        &mut self,
        range: std::ops::Range<u64>,
        allocates: bool,
        size: u64,
        op: DiskOp,
        rng: &mut Rng,
    ) -> WriteOutcome {
        let meets =
            |other: &std::ops::Range<u64>| range.start < other.end && other.start < range.end;
        if self.full && (allocates || self.copies_on_write) && op == DiskOp::Write {
            return WriteOutcome::Fails(Errno::NoSpace);
        }
        if self.write_protected {
            self.has_refused = true;
            return WriteOutcome::Fails(Errno::NotPermitted);
        }
        if self.write_errors_percent > 0 && rng.chance(self.write_errors_percent) {
            return WriteOutcome::Fails(Errno::Io);
        }
        if self.shrunk {
            return WriteOutcome::Fails(Errno::Io);
        }
        if self.unwritable.as_ref().is_some_and(meets) {
            return WriteOutcome::Fails(Errno::Io);
        }
        if self.lose_write_in.as_ref().is_some_and(meets) {
            self.lose_write_in = None;
            return WriteOutcome::Lost;
        }
        if let Some((target, by)) = &self.misdirect_write_in
            && meets(target)
            && range.end + by <= size
        {
            let offset = range.start + by;
            self.misdirect_write_in = None;
            return WriteOutcome::Elsewhere(offset);
        }
        WriteOutcome::Stored
    }

    /// Whether a write to this range will be lost or misdirected. Nothing of it is stored before
    /// that: the first part of a lost write may already hold all that is new in it.
    pub(crate) fn goes_astray(&self, range: &std::ops::Range<u64>) -> bool {
        let meets =
            |other: &std::ops::Range<u64>| range.start < other.end && other.start < range.end;
        let misdirected = self.misdirect_write_in.as_ref().map(|(target, _)| target);
        self.lose_write_in.iter().chain(misdirected).any(meets)
    }

    /// A write to this range succeeded.
    pub(crate) fn write_stored(&mut self, range: std::ops::Range<u64>, sector: u64) {
        for number in range.start / sector..range.end / sector {
            self.unreadable.remove(&number);
        }
        self.failed_writes.retain(|other| other.end <= range.start || range.end <= other.start);
    }

    /// The first unreadable sector of a range of sectors.
    pub(crate) fn first_unreadable(&self, sectors: std::ops::Range<u64>) -> Option<u64> {
        self.unreadable.range(sectors).next().copied()
    }
}
