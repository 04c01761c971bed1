//! What can go wrong on a disk, apart from power.

use std::collections::BTreeSet;

use weft_disk::{DISK_TIMEOUT, DiskOp};
use weft_rt::Nanos;

use crate::rng::Rng;

/// The faults of one disk: what is wrong with it now, and what is waiting to go wrong.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The disk answers nothing any more.
    pub gone: bool,
    /// The disk goes after this many more operations.
    pub gone_after_ops: Option<u64>,
    /// Sectors (by number) that cannot be read until they are written.
    pub unreadable: BTreeSet<u64>,
    /// The next write that reaches the given range (bytes) is acknowledged and never stored.
    pub lose_write_in: Option<std::ops::Range<u64>>,
    /// The next write that reaches the given range (bytes) is stored this many bytes further on.
    pub misdirect_write_in: Option<(std::ops::Range<u64>, u64)>,
    /// Writes that need new room fail: the file system under the disk is full.
    pub full: bool,
    /// Overwriting needs new room, too.
    pub copies_on_write: bool,
    /// It answers nothing until then, and then carries out what it was asked meanwhile, whoever
    /// still waits for it.
    pub hangs_until: Nanos,
    /// Percentage of writes that fail for no stated reason.
    pub write_errors_percent: u64,
    /// It has failed an operation for which a member is excluded, or was excluded by command.
    pub failed: bool,
    /// A command says that it is to be excluded; it is when the engine cuts it off.
    pub condemned: bool,
    /// Where writes failed, though parts of them may be stored: who was told so does not count on
    /// it.
    pub denied: Vec<std::ops::Range<u64>>,
}

/// What becomes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Stored,
    Lost,
    Elsewhere(u64),
    Fails(Errno),
}

/// A Linux error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errno {
    Io = 5,
    NoDevice = 19,
    NoSpace = 28,
}

impl Faults {
    /// Counts an operation; whether the disk still answers.
    pub(crate) fn answers(&mut self) -> bool {
        if let Some(left) = &mut self.gone_after_ops {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => self.gone = true,
            }
        }
        !self.gone
    }

    /// When an operation that was started at `since` may go on; `None` if that is now. One that
    /// takes longer than the time limit costs the disk its place.
    pub(crate) fn hangs(&mut self, since: Nanos, now: Nanos) -> Option<Nanos> {
        self.failed |= self.hangs_until.saturating_sub(since) >= DISK_TIMEOUT;
        (now < self.hangs_until).then_some(self.hangs_until)
    }

    /// What becomes of a write to this range.
    pub(crate) fn fate(
        &mut self,
        range: std::ops::Range<u64>,
        allocates: bool,
        size: u64,
        op: DiskOp,
        rng: &mut Rng,
    ) -> Fate {
        let meets =
            |other: &std::ops::Range<u64>| range.start < other.end && other.start < range.end;
        if self.full && (allocates || self.copies_on_write) && op == DiskOp::Write {
            return Fate::Fails(Errno::NoSpace);
        }
        if self.write_errors_percent > 0 && rng.chance(self.write_errors_percent) {
            return Fate::Fails(Errno::Io);
        }
        if self.lose_write_in.as_ref().is_some_and(meets) {
            self.lose_write_in = None;
            return Fate::Lost;
        }
        if let Some((target, by)) = &self.misdirect_write_in
            && meets(target)
            && range.end + by <= size
        {
            let offset = range.start + by;
            self.misdirect_write_in = None;
            return Fate::Elsewhere(offset);
        }
        Fate::Stored
    }

    /// A write to this range succeeded.
    pub(crate) fn is_stored(&mut self, range: std::ops::Range<u64>, sector: u64) {
        for number in range.start / sector..range.end / sector {
            self.unreadable.remove(&number);
        }
        self.denied.retain(|other| other.end <= range.start || range.end <= other.start);
    }

    /// The first unreadable sector of a range of sectors.
    pub(crate) fn first_unreadable(&self, sectors: std::ops::Range<u64>) -> Option<u64> {
        self.unreadable.range(sectors).next().copied()
    }
}
