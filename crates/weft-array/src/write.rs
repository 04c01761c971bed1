//! Writing.
//!
//! A request is cut into stripes, and each stripe is written under its lock. Writes that arrive
//! while their stripe is locked queue, and are carried out together as one stripe write unless they
//! overlap.
//!
//! Codes work on each offset within the units separately. So a stripe write is cut into *bands*:
//! ranges of offsets in each of which the same data units are written. A band is a small stripe of
//! its own. Example: raid6 4+2 with 64 KiB units, and a write of 80 KiB at array offset 32 KiB:
//!
//! ```text
//! offset in the unit  0             32           48          64 KiB
//! d0                  |             |########################|
//! d1                  |##########################|           |
//! d2                  |             |            |           |
//! d3                  |             |            |           |
//! band                |    {d1}     |  {d0,d1}   |   {d0}    |
//! reconstruct-write   | d0  d2  d3  |  d2  d3    | d1 d2 d3  |  are read
//! read-modify-write   | d1  P   Q   |  d0 d1 P Q | d0 P  Q   |  are read
//! ```
//!
//! For each band, the parity units that it touches are updated by the method that reads fewer
//! units. *Reconstruct-write* reads all other data units and encodes anew; *read-modify-write*
//! reads the old data and the old parity, and folds the difference into the parity. What must be
//! read to reconstruct a lost unit counts too. On a tie the array takes reconstruct-write; so all
//! three bands use it here. A band that writes every data unit reads nothing.
//!
//! The order of steps, for a write of 4 KiB to d1 under policy `ppl` (the payloads: `log.rs`):
//!
//! ```text
//! time -------->  1 mark dirty    2 read       3 log          4 write      5 acknowledge
//! every member    map page, FUA
//! d0, d2, d3                      4 KiB each
//! rings of P, Q                                8 KiB, FUA
//! d1, P, Q                                                    4 KiB each
//! ```
//!
//! The map page is written only if the region is not dirty already. The reads (three), the batches
//! (two: a header block and the payload) and the unit writes (three) each go out together, and each
//! step waits for the one before. A FUA request writes d1, P and Q with FUA and ends without a
//! flush, unless a member failed or the record leaves out units of other writes
//! ([`Inner::end_durable`]).
//!
//! *What a crash leaves.* Before step 4: the old stripe. During it: some units old and some new.
//! Replaying the log (`recover.rs`) and resyncing the dirty region then make parity match the data
//! again, without changing a byte that was not being written.
//!
//! A member that fails a write holds old data, and must not come back as if it held the new. So its
//! exclusion is made durable (in the superblocks) *before* the request is acknowledged; every other
//! write that left the member out waits for the same (`commit.rs`). A write that finds no space
//! waits, too (`room.rs`).

use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{Either, join_all, select};
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::sync::{Sender, oneshot};
use weft_rt::{Buf, Frozen};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::gather::StripeAccess;
use crate::geometry::{Piece, to_len};
use crate::log::{LoggedWrite, Record};
use crate::parity::Ready;

/// New bytes for a range of offsets in one data unit.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub unit: usize,
    pub unit_offset: u64,
    pub data: Frozen,
}

impl Segment {
    fn end(&self) -> u64 {
        self.unit_offset + self.data.len() as u64
    }

    /// The part of it between two offsets in the unit.
    fn part(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (from.max(self.unit_offset), to.min(self.end()));
        (from < to).then(|| {
            let data = self.data.slice(to_len(from - self.unit_offset), to_len(to - from));
            Self { unit: self.unit, unit_offset: from, data }
        })
    }
}

/// A write that waits for its stripe's lock.
#[derive(Debug)]
pub(crate) struct Pending {
    segments: Vec<Segment>,
    fua: bool,
    done: Sender<Result<(), Arc<ArrayError>>>,
}

/// One disk write of a stripe write.
struct UnitWrite {
    unit: usize,
    unit_offset: u64,
    data: Frozen,
}

/// A disk that failed a write.
pub(crate) struct FailedWrite {
    pub slot: usize,
    pub disk: Rc<dyn Disk>,
    pub error: DiskError,
}

impl Inner {
    /// Writes `data` at `offset`; with `fua` it is durable when this returns.
    pub(crate) async fn write(
        &self,
        offset: u64,
        data: Frozen,
        fua: bool,
    ) -> Result<(), ArrayError> {
        self.check_writable()?;
        self.check_range(offset, data.len() as u64)?;
        let at = self.geometry.address(offset);
        if at.unit_offset + data.len() as u64 <= self.geometry.unit_bytes && !data.is_empty() {
            let segment = Segment { unit: at.unit, unit_offset: at.unit_offset, data };
            return self.write_stripe(at.stripe, vec![segment], fua).await;
        }
        let mut stripes: Vec<(u64, Vec<Segment>)> = Vec::new();
        let mut done = 0;
        for Piece { at, len } in self.geometry.pieces(offset, data.len()) {
            let segment =
                Segment { unit: at.unit, unit_offset: at.unit_offset, data: data.slice(done, len) };
            done += len;
            match stripes.last_mut() {
                Some((stripe, segments)) if *stripe == at.stripe => segments.push(segment),
                _ => stripes.push((at.stripe, vec![segment])),
            }
        }
        let writes =
            stripes.into_iter().map(|(stripe, segments)| self.write_stripe(stripe, segments, fua));
        join_all(writes).await.into_iter().collect()
    }

    /// Writes the segments of one stripe, in several parts if the units are too large for the
    /// memory limit.
    pub(crate) async fn write_stripe(
        &self,
        stripe: u64,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        let most = self.run_max() as u64;
        let first = segments.iter().map(|segment| segment.unit_offset).min().unwrap_or(0);
        let end = segments.iter().map(Segment::end).max().unwrap_or(0);
        if end - first <= most {
            return self.write_part(stripe, segments, fua).await;
        }
        for from in (first / most * most..end).step_by(to_len(most)) {
            let part = segments.iter().filter_map(|segment| segment.part(from, from + most));
            let part: Vec<Segment> = part.collect();
            if !part.is_empty() {
                Box::pin(self.write_part(stripe, part, fua)).await?;
            }
        }
        Ok(())
    }

    /// Writes segments of one stripe, alone or merged with others that wait for the same stripe.
    async fn write_part(
        &self,
        stripe: u64,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        // Even if several units are written: at most one part of a stripe.
        let len = segments.iter().map(|segment| segment.data.len()).sum();
        let _memory = self.write_memory(len).await;
        // The array may have been stopped while this waited.
        self.check_writable()?;
        let _dirty = self.begin_write(self.map.region_of(stripe)).await?;
        // The stripe is idle, so no other write waits for it either.
        if let Some(_lock) = self.locks.try_exclusive(stripe) {
            return self.write_locked(stripe, segments, fua).await;
        }
        Box::pin(self.write_in_line(stripe, segments, fua)).await
    }

    /// Queues the write. A queued write that gets the stripe's lock carries out the queue, batch by
    /// batch, until its own is done.
    async fn write_in_line(
        &self,
        stripe: u64,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        let (done, mut served) = oneshot();
        self.pending.borrow_mut().entry(stripe).or_default().push(Pending { segments, fua, done });
        let lock = std::pin::pin!(self.locks.exclusive(stripe));
        let _lock = match select(&mut served, lock).await {
            Either::Left((result, _)) => return own(result),
            Either::Right((lock, _)) => lock,
        };
        loop {
            if let Some(result) = served.try_take() {
                return own(Some(result));
            }
            self.write_batch(stripe).await;
        }
    }

    /// Carries out queued writes of a locked stripe: the first ones up to, but not including, the
    /// first that overlaps an earlier one.
    async fn write_batch(&self, stripe: u64) {
        let batch = self.take_batch(stripe);
        let fua = batch.iter().any(|pending| pending.fua);
        let mut segments = Vec::new();
        let mut waiters = Vec::new();
        for pending in batch {
            segments.extend(pending.segments);
            waiters.push(pending.done);
        }
        let result = self.write_locked(stripe, segments, fua).await.map_err(Arc::new);
        for done in waiters {
            done.send(result.clone());
        }
    }

    fn take_batch(&self, stripe: u64) -> Vec<Pending> {
        let mut table = self.pending.borrow_mut();
        let Some(waiting) = table.get_mut(&stripe) else { return Vec::new() };
        let mut batch: Vec<Pending> = Vec::new();
        let mut rest = Vec::new();
        let sector = self.geometry.sector_bytes;
        for pending in waiting.drain(..) {
            let fits =
                rest.is_empty() && !batch.iter().any(|taken| overlaps(taken, &pending, sector));
            if fits { batch.push(pending) } else { rest.push(pending) }
        }
        if rest.is_empty() {
            table.remove(&stripe);
        } else {
            *waiting = rest;
        }
        batch
    }

    /// Writes segments that do not overlap. The stripe must be locked and its region dirty.
    async fn write_locked(
        &self,
        stripe: u64,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        let segments = joined(self.align_segments(stripe, segments).await?);
        self.check_writable()?;
        let mut writes = Vec::new();
        let mut records = Vec::new();
        for Ready { band, parity, record, .. } in self.prepare(stripe, &segments).await? {
            for (unit, data) in &band.data {
                writes.push(UnitWrite { unit: *unit, unit_offset: band.from, data: data.clone() });
            }
            for (unit, data) in parity {
                writes.push(UnitWrite { unit, unit_offset: band.from, data: data.freeze() });
            }
            records.extend(record);
        }
        let others = records.iter().any(Record::leaves_out_others);
        let logged = match &self.log {
            Some(log) => Some(log.append(self, stripe, records).await?),
            None => None,
        };
        let durable = fua || self.map.is_finishing(self.map.region_of(stripe));
        let write = self.write_units(stripe, writes, durable);
        let whole = self.write_and_piggyback(stripe, &segments, write).await?;
        // Another request may have met a failed member, so that this write left it out without an
        // error.
        self.settled().await?;
        if fua { self.end_durable(logged, whole && !others).await } else { Ok(()) }
    }

    /// Ends a write or zeroing that must be durable. A flush is needed unless everything that the
    /// new parity counts on is durable (`all_durable`): see `log.rs`, "What a flush must wait for".
    /// A flush is also needed if a member failed. The data is then durable on the other members,
    /// but the next record would leave it out as being written, and losing another disk would lose
    /// it.
    pub(crate) async fn end_durable(
        &self,
        logged: Option<LoggedWrite<'_>>,
        all_durable: bool,
    ) -> Result<(), ArrayError> {
        if all_durable {
            logged.iter().for_each(LoggedWrite::mark_durable);
            return Ok(());
        }
        drop(logged);
        Box::pin(self.flush()).await
    }

    /// Writes all units. Returns whether every write succeeded.
    async fn write_units(
        &self,
        stripe: u64,
        writes: Vec<UnitWrite>,
        fua: bool,
    ) -> Result<bool, ArrayError> {
        let failed = self.issue(stripe, &writes, WriteOpts { class: Class::User, fua }).await;
        if failed.is_empty() {
            return Ok(true);
        }
        Box::pin(self.write_failed(failed)).await.map(|()| false)
    }

    /// Excludes the members of failed writes.
    pub(crate) async fn write_failed(&self, failed: Vec<FailedWrite>) -> Result<(), ArrayError> {
        for FailedWrite { slot, disk, error } in failed {
            self.data_write_failed(slot, &disk, &error).await;
        }
        // The failed units now count as lost; they can be decoded as long as the array is not
        // broken.
        self.check_whole()
    }

    /// Issues all writes at once to the members that are present; returns those that failed.
    async fn issue(&self, stripe: u64, writes: &[UnitWrite], opts: WriteOpts) -> Vec<FailedWrite> {
        let lost = self.lost_units(stripe);
        let issued = writes.iter().filter(|write| !lost.contains(write.unit)).filter_map(|write| {
            let (slot, offset) = self.geometry.locate(stripe, write.unit, write.unit_offset);
            let disk = self.members.disk(slot)?;
            let data = write.data.clone();
            Some(async move {
                let result = self.write_both(stripe, slot, &disk, offset, data, opts).await;
                result.err().map(|error| FailedWrite { slot, disk, error })
            })
        });
        join_all(issued).await.into_iter().flatten().collect()
    }

    /// Extends segments to whole sectors, with the bytes around them read from the array.
    async fn align_segments(
        &self,
        stripe: u64,
        mut segments: Vec<Segment>,
    ) -> Result<Vec<Segment>, ArrayError> {
        let sector = self.geometry.sector_bytes;
        for segment in &mut segments {
            let start = segment.unit_offset - segment.unit_offset % sector;
            let end = segment.end().next_multiple_of(sector);
            if start != segment.unit_offset || end != segment.end() {
                let whole = Box::pin(self.read_around(stripe, segment, start, end)).await?;
                *segment = Segment { unit: segment.unit, unit_offset: start, data: whole.freeze() };
            } else if !segment.data.is_aligned_to(to_len(sector)) {
                segment.data = Frozen::copy_from(&segment.data);
            }
        }
        Ok(segments)
    }

    async fn read_around(
        &self,
        stripe: u64,
        segment: &Segment,
        start: u64,
        end: u64,
    ) -> Result<Buf, ArrayError> {
        let buf = Buf::new(to_len(end - start));
        let at = StripeAccess::user(stripe, start);
        let wanted = vec![(segment.unit, buf)];
        let (result, mut old) = self.gather(at, self.lost_units(stripe), wanted).await;
        result?;
        let (_, mut buf) = old.pop().expect("the unit comes back");
        let skip = to_len(segment.unit_offset - start);
        buf[skip..skip + segment.data.len()].copy_from_slice(&segment.data);
        Ok(buf)
    }
}

/// Whether two writes touch the same sector.
fn overlaps(a: &Pending, b: &Pending, sector: u64) -> bool {
    let widen =
        |s: &Segment| (s.unit_offset - s.unit_offset % sector, s.end().next_multiple_of(sector));
    a.segments.iter().any(|x| {
        b.segments.iter().any(|y| {
            let ((x_from, x_to), (y_from, y_to)) = (widen(x), widen(y));
            x.unit == y.unit && x_from < y_to && y_from < x_to
        })
    })
}

/// Sorts segments and joins adjacent ones, so that bands are as long as possible.
fn joined(mut segments: Vec<Segment>) -> Vec<Segment> {
    segments.sort_by_key(|segment| (segment.unit, segment.unit_offset));
    let mut runs: Vec<Vec<Segment>> = Vec::new();
    for segment in segments {
        match runs.last_mut() {
            Some(run)
                if run
                    .last()
                    .is_some_and(|s| s.unit == segment.unit && s.end() == segment.unit_offset) =>
            {
                run.push(segment);
            }
            _ => runs.push(vec![segment]),
        }
    }
    runs.into_iter().map(join_run).collect()
}

fn join_run(run: Vec<Segment>) -> Segment {
    let len = run.iter().map(|segment| segment.data.len()).sum();
    let mut run = run.into_iter();
    let first = run.next().expect("a run is not empty");
    if first.data.len() == len {
        return first;
    }
    let mut buf = Buf::new(len);
    let mut done = 0;
    let (unit, unit_offset) = (first.unit, first.unit_offset);
    for segment in std::iter::once(first).chain(run) {
        buf[done..done + segment.data.len()].copy_from_slice(&segment.data);
        done += segment.data.len();
    }
    Segment { unit, unit_offset, data: buf.freeze() }
}

/// This waiter's copy of the batch's result.
fn own(result: Option<Result<(), Arc<ArrayError>>>) -> Result<(), ArrayError> {
    match result {
        Some(result) => Ok(result?),
        None => Err(ArrayError::Stopped),
    }
}
