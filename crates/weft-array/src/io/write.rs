//! Writing.
//!
//! A request is cut into stripes, and each stripe is written under its lock. Writes that arrive
//! while their stripe is locked queue, and are carried out together as one stripe write unless they
//! overlap.
//!
//! Codes work on each offset within the units separately. So a stripe write is cut into *bands*:
//! ranges of offsets; within a range the same data units are written. A band is a small stripe of
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
//! taken               |     rmw     |    rcw     |    rmw    |
//! ```
//!
//! Each band takes the method that reads fewer units, and read-modify-write on a tie
//! (`weft_stripe::update`).
//!
//! The order of steps, for a write of 4 KiB to d1 under policy `ppl` (the payloads: `log.rs`):
//!
//! ```text
//! time -------->  1 mark dirty    2 read       3 log          4 write      5 acknowledge
//! every member    map page, FUA
//! d1, P, Q                        4 KiB each
//! rings of P, Q                                8 KiB, FUA
//! d1, P, Q                                                    4 KiB each
//! ```
//!
//! The map page is written only if the region is not dirty already. The reads (three), the batches
//! (two: a header block and the payload) and the unit writes (three) each go out together, and each
//! step waits for the one before. A FUA request writes d1, P and Q with FUA and ends without a
//! flush, unless a member failed or the record leaves out units of other writes
//! ([`Engine::end_durable`]). On disks without a volatile cache every write is durable when it
//! ends, which spares the next record what it would have to subtract (`log.rs`).
//!
//! *What a crash leaves.* Before step 4: the old stripe. During it: some units old and some new.
//! Replaying the log (`recovery.rs`) and resyncing the dirty region then make parity match the data
//! again, without changing a byte that was not being written.
//!
//! A member that fails a write holds old data, and must not come back as if it held the new. So its
//! exclusion is made durable (in the superblocks) *before* the request is acknowledged; every other
//! write that left the member out waits for the same (`engine/membership.rs`). A write that finds
//! no space waits, too (`io/full_member.rs`).

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{Either, join_all, select};
use weft_code::{SlotSet, UnitSet};
use weft_disk::{Class, WriteOpts};
use weft_rt::sync::oneshot;
use weft_rt::{Buf, Frozen, boxed};
use weft_stripe::{
    Access, Band, BandRecord, Crash, FailedWrite, Segment, Stripe, StripeId, UnitWrite, Units,
};
use weft_stripe::{Stored, Updated, store, update};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::length::to_len;
use crate::geometry::Piece;
use crate::io::WriteProgress;
use crate::log::{Log, LoggedWrite, Unflushed};
use crate::state::pending_writes::PendingWrite;

impl Engine {
    /// Writes `data` at `offset`; with `fua` it is durable when this returns.
    pub(crate) async fn write(
        &self,
        offset: u64,
        data: Frozen,
        fua: bool,
    ) -> Result<(), ArrayError> {
        self.check_writable()?;
        self.check_range(offset, data.len() as u64)?;
        let geometry = self.geometries().home(offset);
        let at = geometry.address(offset);
        let in_one_unit = at.unit_offset + data.len() as u64 <= geometry.unit_bytes;
        let fits = in_one_unit && data.len() <= self.run_max(geometry) && !data.is_empty();
        if fits && self.geometries().is_settled_in(at.stripe) {
            let segment = Segment { unit: at.unit, from: at.unit_offset, data };
            return self.write_part(at.stripe, vec![segment], fua).await;
        }
        let mut stripes: Vec<(StripeId, Vec<Segment>)> = Vec::new();
        let mut done = 0;
        for Piece { at, len } in self.geometries().pieces(offset, data.len()) {
            let data = data.slice(done, len);
            let segment = Segment { unit: at.unit, from: at.unit_offset, data };
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
        stripe: StripeId,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        let most = self.run_max(self.geometry_of(stripe)) as u64;
        let first = segments.iter().map(|segment| segment.from).min().unwrap_or(0);
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

    /// Writes segments of one stripe, merged with other writes that wait for the same stripe.
    async fn write_part(
        &self,
        stripe: StripeId,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        // Even if several units are written: at most one part of a stripe.
        let len = segments.iter().map(|segment| segment.data.len()).sum();
        let memory = self.write_memory(self.geometry_of(stripe), len).await;
        // The array may have been stopped while this waited.
        self.check_writable()?;
        if !self.may_write(stripe, &segments) {
            drop(memory);
            return Box::pin(self.write_again(stripe, segments, fua)).await;
        }
        let dirty = self.begin_write(self.region_of(stripe)).await?;
        // The stripe is idle, so no other write waits for it either.
        if let Some(_lock) = self.locks().try_exclusive(stripe)
            && self.may_write(stripe, &segments)
        {
            return self.write_locked(stripe, segments, fua).await;
        }
        if boxed(|| self.write_in_line(stripe, segments.clone(), fua)).await? {
            return Ok(());
        }
        drop((memory, dirty));
        Box::pin(self.write_again(stripe, segments, fua)).await
    }

    /// Whether these segments may be written to the stripe now: it is where their addresses are,
    /// and they are not being moved. The answer holds while the stripe is locked.
    #[inline]
    fn may_write(&self, stripe: StripeId, segments: &[Segment]) -> bool {
        self.geometries().is_settled_in(stripe) || self.may_change_all(stripe, segments)
    }

    #[cold]
    fn may_change_all(&self, stripe: StripeId, segments: &[Segment]) -> bool {
        let may_change =
            |segment: &Segment| self.may_change(stripe, &self.addresses_of(stripe, segment));
        segments.iter().all(may_change)
    }

    /// Whether these addresses are in the stripe now, and not being moved.
    pub(crate) fn may_change(&self, stripe: StripeId, addresses: &Range<u64>) -> bool {
        self.geometries().holds(stripe, addresses) && !self.moving().meets(addresses)
    }

    fn addresses_of(&self, stripe: StripeId, segment: &Segment) -> Range<u64> {
        let start = self.offset_of(stripe, segment.unit, segment.from);
        start..start + segment.data.len() as u64
    }

    /// Writes segments that cannot be written to this stripe where their addresses are, once these
    /// are not being moved.
    async fn write_again(
        &self,
        stripe: StripeId,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        for segment in segments {
            let addresses = self.addresses_of(stripe, &segment);
            self.moving().settled(&addresses, || self.check_writable().is_err()).await;
            self.write(addresses.start, segment.data, fua).await?;
        }
        Ok(())
    }

    /// Queues the write. A queued write that gets the stripe's lock carries out the queue, batch by
    /// batch, until its own is done. Returns false if nothing was written, as the addresses are
    /// being moved, or have moved.
    async fn write_in_line(
        &self,
        stripe: StripeId,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<bool, ArrayError> {
        let (done, mut served) = oneshot();
        self.pending().push(stripe, PendingWrite { segments, fua, done });
        let lock = std::pin::pin!(self.locks().exclusive(stripe));
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
    async fn write_batch(&self, stripe: StripeId) {
        let batch = self.pending().take_batch(stripe, self.geometry().sector_bytes);
        let fua = batch.iter().any(|pending| pending.fua);
        let mut segments = Vec::new();
        let mut waiters = Vec::new();
        for pending in batch {
            segments.extend(pending.segments);
            waiters.push(pending.done);
        }
        let result = match self.may_write(stripe, &segments) {
            true => self.write_locked(stripe, segments, fua).await.map(|()| true),
            false => Ok(false),
        };
        let result = result.map_err(Arc::new);
        for done in waiters {
            done.send(result.clone());
        }
    }

    /// Writes segments that do not overlap. The stripe must be locked and its region dirty.
    async fn write_locked(
        &self,
        stripe: StripeId,
        segments: Vec<Segment>,
        fua: bool,
    ) -> Result<(), ArrayError> {
        let segments = match segments.iter().all(|segment| self.is_aligned(segment)) {
            true => segments,
            false => Box::pin(self.align_segments(stripe, segments)).await?,
        };
        let segments = Segment::joined(segments);
        self.check_writable()?;
        let Updated { writes, records } = self.prepare(stripe, &segments).await?;
        let others = records.iter().any(BandRecord::leaves_out_others);
        let logged = match self.log() {
            Some(log) => Some(log.append(self, stripe, records).await?),
            None => None,
        };
        let through = fua || self.map().is_finishing(self.region_of(stripe));
        let write = || self.write_units(stripe, &writes, through);
        let written = match self.is_monitored() {
            true => Box::pin(self.write_and_piggyback(stripe, &segments, write())).await?,
            false => write().await?,
        };
        // Another request may have met a failed member, so that this write left it out without an
        // error.
        self.settled().await?;
        let durable = written.durable && written.whole && !others;
        if fua || durable { self.end_durable(logged, durable).await } else { Ok(()) }
    }

    /// Computes the parity of a stripe write, and the records that must be in the log first. What
    /// that relied on still holds when this returns: which units are lost, and which other units a
    /// crash may turn old again. If there is a log, the exclusion of lost members is durable.
    async fn prepare(&self, id: StripeId, segments: &[Segment]) -> Result<Updated, ArrayError> {
        loop {
            if let Some(log) = self.log() {
                self.flush_lost(log, id).await?;
                // A record counts a lost unit with its new value. If its member came back after a
                // crash with the old value, recovery would make parity agree with neither.
                self.settled().await?;
            }
            let stripe = self.stripe(id);
            let lost_later = || stripe.lost.union(&self.lost_after_crash(id));
            let later = if self.log().is_some() { lost_later() } else { stripe.lost };
            let mut updated = Updated {
                writes: Vec::with_capacity(segments.len() + stripe.code().p()),
                records: Vec::with_capacity(usize::from(self.log().is_some())),
            };
            // Bands in which a crash may turn other units old again: where, and which.
            let mut relied: Vec<(Band<'_>, Vec<Unflushed>)> = Vec::new();
            let flushes = self.log().map(Log::flushes);
            for band in Band::of(segments) {
                let Some(log) = self.log() else {
                    self.update(stripe, &band, None, &mut updated).await?;
                    continue;
                };
                let found = log.unflushed(id, band.from, band.len, band.units);
                let none = [Unflushed { from: band.from, len: band.len, units: UnitSet::new() }];
                let parts = if found.is_empty() { &none[..] } else { &found };
                for others in parts {
                    let part = band.part(others.from, others.len);
                    let whole =
                        part.units.union(&others.units) == self.geometry_of(id).data_units();
                    let crash = Crash {
                        lost: later,
                        unflushed: others.units,
                        superseding: whole && log.has_records(id, part.from, part.len),
                    };
                    self.update(stripe, &part, Some(crash), &mut updated).await?;
                }
                if !found.is_empty() {
                    relied.push((band, found));
                }
            }
            let same_lost = self.lost_units(id) == stripe.lost;
            let same_log = self.log().is_none_or(|log| {
                let same = |(band, found): &(Band<'_>, Vec<Unflushed>)| {
                    log.unflushed(id, band.from, band.len, band.units) == *found
                };
                self.members().changes().is_settled()
                    && self.lost_after_crash(id).is_subset(&later)
                    && (Some(log.flushes()) == flushes || relied.iter().all(same))
            });
            if same_lost && same_log {
                return Ok(updated);
            }
        }
    }

    /// Computes the parity of a band: see [`update`].
    pub(crate) async fn update(
        &self,
        stripe: Stripe<'_>,
        band: &Band<'_>,
        crash: Option<Crash>,
        updated: &mut Updated,
    ) -> Result<(), ArrayError> {
        let Err(error) = update(self, stripe, band, &[], crash, updated).await else {
            return Ok(());
        };
        // If the array broke since, that is the reason.
        self.check_whole()?;
        Err(self.unreadable(stripe.id, error))
    }

    /// Flushes all members if a unit of the stripe was lost after it was written and before it was
    /// flushed (see `log.rs`, "Lost units").
    async fn flush_lost(&self, log: &Log, stripe: StripeId) -> Result<(), ArrayError> {
        loop {
            self.check_writable()?;
            let lost = self.lost_units(stripe).union(&self.lost_after_crash(stripe));
            if lost.is_empty() || !log.any_unflushed(stripe, lost) {
                return Ok(());
            }
            let progress = log.progress();
            let before = log.completed_below();
            Box::pin(self.flush_members()).await;
            if log.any_unflushed(stripe, lost) && log.completed_below() == before {
                progress.await;
            }
        }
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

    /// Writes all units.
    async fn write_units(
        &self,
        stripe: StripeId,
        writes: &[UnitWrite],
        fua: bool,
    ) -> Result<WriteProgress, ArrayError> {
        let opts = WriteOpts { class: Class::User, fua };
        let Stored { failed, durable } = store(self, self.stripe(stripe), writes, opts).await;
        if failed.is_empty() {
            return Ok(WriteProgress { whole: true, durable });
        }
        let start = writes.iter().map(|write| write.from).min().unwrap_or(0);
        let end = writes.iter().map(|write| write.from + write.data.len() as u64).max();
        Box::pin(self.write_failed(Some((stripe, start..end.unwrap_or(start))), failed))
            .await
            .map(|()| WriteProgress { whole: false, durable })
    }

    /// Writes units to their members, where present. A member that fails is excluded.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if there was not enough space for all of them.
    pub(crate) async fn write_back(
        &self,
        stripe: StripeId,
        at: Access,
        units: Units,
    ) -> Result<(), ArrayError> {
        let write =
            |(unit, buf): (usize, Buf)| UnitWrite { unit, from: at.from, data: buf.freeze() };
        let writes: Vec<UnitWrite> = units.into_iter().map(write).collect();
        self.store_back(self.stripe(stripe), &writes).await
    }

    /// Writes units that need no preparation to all of their places.
    pub(crate) async fn store_back(
        &self,
        stripe: Stripe<'_>,
        writes: &[UnitWrite],
    ) -> Result<(), ArrayError> {
        let Stored { failed, .. } = store(self, stripe, writes, WriteOpts::MAINTENANCE).await;
        let mut result = Ok(());
        for FailedWrite { slot, disk, error } in failed {
            result = self.job_write_failed(slot, &disk, &error).await.and(result);
        }
        result
    }

    /// Excludes the members of failed writes to these offsets in the units of a stripe. If a disk
    /// stays in its slot all the same, as the array is broken or stopped, the stripe is torn. Must
    /// be called before the stripe's lock is released.
    pub(crate) async fn write_failed(
        &self,
        place: Option<(StripeId, Range<u64>)>,
        failed: Vec<FailedWrite>,
    ) -> Result<(), ArrayError> {
        for FailedWrite { slot, disk, error } in &failed {
            self.data_write_failed(*slot, disk, error).await;
        }
        let stays = |failed: &&FailedWrite| self.members().uses(failed.slot, &failed.disk);
        let staying: SlotSet = failed.iter().filter(stays).map(|failed| failed.slot).collect();
        if let Some((stripe, offsets)) = place.filter(|_| !staying.is_empty()) {
            let present = self.geometry_of(stripe).units().difference(&self.lost_units(stripe));
            self.note_torn(stripe, offsets, present, staying);
        }
        // The failed units now count as lost; they can be decoded as long as the array is not
        // broken.
        self.check_whole()
    }

    /// Whether a segment is made of whole sectors, in memory too.
    fn is_aligned(&self, segment: &Segment) -> bool {
        let sector = self.geometry().sector_bytes;
        segment.from.is_multiple_of(sector) && segment.data.is_aligned_to(to_len(sector))
    }

    /// Extends segments to whole sectors, with the bytes around them read from the array.
    async fn align_segments(
        &self,
        stripe: StripeId,
        mut segments: Vec<Segment>,
    ) -> Result<Vec<Segment>, ArrayError> {
        let sector = self.geometry().sector_bytes;
        for segment in &mut segments {
            let start = segment.from - segment.from % sector;
            let end = segment.end().next_multiple_of(sector);
            if start != segment.from || end != segment.end() {
                let whole = Box::pin(self.read_around(stripe, segment, start, end)).await?;
                *segment = Segment { unit: segment.unit, from: start, data: whole.freeze() };
            } else if !segment.data.is_aligned_to(to_len(sector)) {
                segment.data = Frozen::copy_from(&segment.data);
            }
        }
        Ok(segments)
    }

    async fn read_around(
        &self,
        stripe: StripeId,
        segment: &Segment,
        start: u64,
        end: u64,
    ) -> Result<Buf, ArrayError> {
        let buf = Buf::new(to_len(end - start));
        let wanted = vec![(segment.unit, buf)];
        let gathered = self.gather(self.stripe(stripe), Access::user(start), wanted);
        let (result, mut old) = gathered.await;
        result?;
        let (_, mut buf) = old.pop().expect("the unit comes back");
        let skip = to_len(segment.from - start);
        buf[skip..skip + segment.data.len()].copy_from_slice(&segment.data);
        Ok(buf)
    }
}

/// This waiter's copy of the batch's result.
fn own(result: Option<Result<bool, Arc<ArrayError>>>) -> Result<bool, ArrayError> {
    match result {
        Some(result) => Ok(result?),
        None => Err(ArrayError::Stopped),
    }
}
