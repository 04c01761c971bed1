//! What a faulty disk remembers.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_rt::{MILLISECOND, Nanos, SECOND};

use super::{Fault, OpCounts, RateLimit};
use crate::DiskOp;

/// A limited disk that was idle may be ahead of its rate by this time: timers are not exact, and
/// what one wakes up late the next operations catch up, so that the rate is held in the mean.
const BURST: Nanos = MILLISECOND;

#[derive(Default)]
pub(super) struct State {
    pub(super) counts: OpCounts,
    pub(super) gone: bool,
    pub(super) fail_flushes: bool,
    bad: Vec<Range<u64>>,
    fail_writes: Range<u64>,
    lose_writes: u64,
    misdirect: Option<u64>,
    flips: BTreeMap<u64, u8>,
    delay: Nanos,
    limit: RateLimit,
    /// When the limited disk has done all that was asked of it.
    busy_until: Nanos,
    script: BTreeMap<u64, Vec<Fault>>,
}

/// What becomes of a write.
pub(super) enum WriteFate {
    Do,
    Fail,
    Lose,
    Misdirect(u64),
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl State {
    pub(super) fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Gone => self.gone = true,
            Fault::Back => self.gone = false,
            Fault::Medium(range) => self.bad.push(range),
            Fault::FailWrites(range) => self.fail_writes = range,
            Fault::FailFlushes(fail) => self.fail_flushes = fail,
            Fault::LoseWrites(count) => self.lose_writes = count,
            Fault::MisdirectWrite(to) => self.misdirect = Some(to),
            Fault::BitFlip { offset, mask } => *self.flips.entry(offset).or_default() ^= mask,
            Fault::Delay(delay) => self.delay = delay,
            Fault::Limit(limit) => self.limit = limit,
        }
    }

    pub(super) fn schedule(&mut self, operation: u64, fault: Fault) {
        self.script.entry(operation).or_default().push(fault);
    }

    pub(super) fn clear(&mut self) {
        *self = Self { counts: self.counts, ..Self::default() };
    }

    /// Counts an operation; gives the time at which it may start, if that is not now.
    pub(super) fn begin(
        &mut self,
        op: DiskOp,
        len: u64,
        now: impl FnOnce() -> Nanos,
    ) -> Option<Nanos> {
        while let Some(due) = self.script.first_entry()
            && *due.key() <= self.counts.total()
        {
            for fault in due.remove() {
                self.inject(fault);
            }
        }
        self.count(op, len);
        let limited = self.limit != RateLimit::default();
        if !limited && self.delay == 0 {
            return None;
        }
        let now = now();
        let transfer = if matches!(op, DiskOp::Read | DiskOp::Write) { len } else { 0 };
        if limited {
            self.busy_until = self.busy_until.max(now.saturating_sub(BURST)) + self.cost(transfer);
        }
        let start = self.busy_until.max(now) + self.delay;
        (start > now).then_some(start)
    }

    fn count(&mut self, op: DiskOp, len: u64) {
        let counts = &mut self.counts;
        match op {
            DiskOp::Read => {
                counts.reads += 1;
                counts.read_bytes += len;
            }
            DiskOp::Write => {
                counts.writes += 1;
                counts.written_bytes += len;
            }
            DiskOp::Flush => counts.flushes += 1,
            DiskOp::WriteZeroes => counts.zeroes += 1,
            DiskOp::Discard => counts.discards += 1,
            DiskOp::Open => {}
        }
    }

    /// Time that the limit gives to one operation.
    fn cost(&self, bytes: u64) -> Nanos {
        let time = |amount: u64, rate: u64| {
            let nanos = u128::from(amount) * u128::from(SECOND);
            nanos.checked_div(u128::from(rate)).unwrap_or(0)
        };
        let cost = time(bytes, self.limit.bytes_per_s).max(time(1, self.limit.ops_per_s));
        Nanos::try_from(cost).unwrap_or(Nanos::MAX / 4)
    }

    pub(super) fn is_bad(&self, offset: u64, len: u64) -> bool {
        let range = offset..offset.saturating_add(len);
        self.bad.iter().any(|bad| overlap(bad, &range))
    }

    pub(super) fn flip(&self, offset: u64, bytes: &mut [u8]) {
        for (at, mask) in self.flips.range(offset..offset + bytes.len() as u64) {
            let index = usize::try_from(at - offset).expect("inside the buffer");
            bytes[index] ^= mask;
        }
    }

    pub(super) fn write_fails(&self, offset: u64, len: u64) -> bool {
        overlap(&self.fail_writes, &(offset..offset.saturating_add(len)))
    }

    pub(super) fn fate_of_write(&mut self, offset: u64, len: u64) -> WriteFate {
        if self.write_fails(offset, len) {
            return WriteFate::Fail;
        }
        if self.lose_writes > 0 {
            self.lose_writes -= 1;
            return WriteFate::Lose;
        }
        self.misdirect.take().map_or(WriteFate::Do, WriteFate::Misdirect)
    }

    /// These bytes have been written: their fault is over.
    pub(super) fn written(&mut self, offset: u64, len: u64) {
        let written = offset..offset.saturating_add(len);
        if !self.bad.is_empty() {
            let remains = |bad: &Range<u64>| {
                let before = bad.start..bad.end.min(written.start);
                let after = bad.start.max(written.end)..bad.end;
                [before, after].into_iter().filter(|part| !part.is_empty())
            };
            self.bad = self.bad.iter().flat_map(remains).collect();
        }
        if !self.flips.is_empty() {
            self.flips.retain(|at, _| !written.contains(at));
        }
    }
}
