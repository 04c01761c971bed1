//! Writing.
//!
//! A request is cut into stripes; each stripe is written under its lock. Writes to one stripe
//! that arrive while it is locked wait together and become one stripe write, unless they overlap.
//!
//! Within a stripe the columns fall into *bands*, in each of which a fixed set of data units is
//! written; codes work column by column, so a band is a small stripe of its own. For each band the
//! touched parity rows are updated in the way that reads less: *read-modify-write* (old data and
//! old parity, fold the delta in) or *reconstruct-write* (all other data, encode anew), counting
//! what it takes to reconstruct a lost unit that is needed. A band that writes every data unit
//! reads nothing.
//!
//! Order, and what a crash leaves: the region is durably dirty, then the partial parity is durable
//! in the log (policy `ppl`, see `log.rs`), and only then data and parity are written, all at once.
//! A crash in between leaves some of them old and some new; the log, or the resync of dirty
//! regions, makes the stripe whole again without touching a byte that was not being written.
//!
//! A member that fails a write is excluded durably (superblock) *before* the request is
//! acknowledged: it holds old data, and must not come back as if it held the new. So does every
//! other write wait that left the member out (`commit.rs`). One that finds no room waits, too
//! (`room.rs`).

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

/// New bytes for a run of columns of one data unit.
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

    /// What of it lies between two offsets in the unit.
    fn part(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (from.max(self.unit_offset), to.min(self.end()));
        (from < to).then(|| {
            let data = self.data.slice(to_len(from - self.unit_offset), to_len(to - from));
            Self { unit: self.unit, unit_offset: from, data }
        })
    }
}

/// A write that waits for its stripe.
#[derive(Debug)]
pub(crate) struct Pending {
    segments: Vec<Segment>,
    fua: bool,
    done: Sender<Result<(), Arc<ArrayError>>>,
}

/// One I/O of a stripe write.
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
    /// Writes `data` at `offset`; with `fua` it is durable on return.
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

    /// Writes one stripe's segments; units too large to be held at once in parts.
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

    /// Writes segments of one stripe, alone or together with others that wait for the same stripe.
    async fn write_part(
        &self,
        stripe: u64,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        // Of several units, together no more than a part of the stripe.
        let len = segments.iter().map(|segment| segment.data.len()).sum();
        let _memory = self.write_memory(len).await;
        // The array may have been stopped while this waited.
        self.check_writable()?;
        let _dirty = self.begin_write(self.map.region_of(stripe)).await?;
        // Nobody is at work here, so nobody waits either.
        if let Some(_lock) = self.locks.try_exclusive(stripe) {
            return self.write_locked(stripe, segments, fua).await;
        }
        Box::pin(self.write_in_line(stripe, segments, fua)).await
    }

    /// Waits for the stripe together with others, of whom one carries out the writes of all.
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

    /// Carries out what waits for a locked stripe: all writes from the first on that do not
    /// overlap an earlier one.
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

    /// Writes segments that do not overlap, of a stripe whose lock is held and whose region is
    /// dirty.
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
        // Others may have found a member failed, so that this write left it out without an error.
        self.settled().await?;
        if fua { self.end_durable(logged, whole && !others).await } else { Ok(()) }
    }

    /// The end of a write or zeroing that is to be durable. If not everything that its parity counts
    /// on is (`all_durable`), that takes a flush: see `log.rs`, "What a flush must wait for". So it
    /// does if a member failed: what was written is durable on the others, but the next record would
    /// leave it out as being written, and a further lost disk would take it.
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

    /// Writes all units; says whether all of them could be.
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

    /// After writes that failed: their members are excluded.
    pub(crate) async fn write_failed(&self, failed: Vec<FailedWrite>) -> Result<(), ArrayError> {
        for FailedWrite { slot, disk, error } in failed {
            self.data_write_failed(slot, &disk, &error).await;
        }
        // The units that failed are now lost ones, and decodable as long as the array is whole
        // enough.
        self.check_whole()
    }

    /// Issues all writes at once to the members that are there; returns those that failed.
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

    /// Widens segments to whole sectors, with the bytes around them read from the array.
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

/// Whether two writes touch a common sector.
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

/// Sorts segments and joins those that touch, so that bands are as long as can be.
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

/// The own share of a result that several writes have in common.
fn own(result: Option<Result<(), Arc<ArrayError>>>) -> Result<(), ArrayError> {
    match result {
        Some(result) => Ok(result?),
        None => Err(ArrayError::Stopped),
    }
}
