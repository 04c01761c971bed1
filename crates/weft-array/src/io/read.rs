//! Reading.
//!
//! The healthy path takes no lock and makes no copy: each piece of the request that lies in one
//! unit is read from its disk straight into the caller's buffer. This path also serves units on
//! healthy disks while the array is degraded or rebuilding, and rebuilt units (redirection). Only
//! pieces whose own unit is lost go through [`weft_stripe::gather`], stripe by stripe; pieces that
//! the request reads anyway serve as sources too, and so does what a cache above the array knows
//! (`io/cached_units.rs`).
//!
//! A region that was never written reads as zeros without I/O. In a mirror any copy may serve,
//! except where copies can differ, so that data once read does not change. Where the region was
//! dirty at a crash, or a write is in progress, the first remaining copy serves. Where a write
//! stopped halfway because it broke the array, one copy serves or the read fails
//! (`engine/torn.rs`).

use std::ops::Range;

use futures_util::future::join_all;
use weft_code::{SlotSet, UnitSet};
use weft_disk::{Class, DiskErrorKind};
use weft_rt::Buf;
use weft_rt::sync::Sender;
use weft_rt::sync::oneshot;
use weft_stripe::{Access, Busy, Gathered, Owner, StripeId, Units, gather};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::length::to_len;
use crate::geometry::{Address, Piece};
use crate::io::StripePieces;
use crate::maintenance::RebuildSource;
use crate::maintenance::experiment::Redirection;

/// The result for the pieces, with their buffers.
pub(crate) type ReadAnswer = (Result<(), ArrayError>, StripePieces);

impl Engine {
    /// Reads `buf.len()` bytes at `offset`.
    pub(crate) async fn read(&self, offset: u64, buf: Buf) -> (Result<(), ArrayError>, Buf) {
        if let Err(error) = self.check_range(offset, buf.len() as u64) {
            return (Err(error), buf);
        }
        if self.service().is_stopped() {
            return (Err(ArrayError::Stopped), buf);
        }
        if buf.is_empty() {
            // An empty range at the array's end lies in no stripe.
            return (Ok(()), buf);
        }
        let geometry = self.geometries().home(offset);
        let sector = geometry.sector_bytes;
        if !offset.is_multiple_of(sector) || !buf.is_aligned_to(to_len(sector)) {
            return Box::pin(self.read_unaligned(offset, buf)).await;
        }
        let at = geometry.address(offset);
        let in_one_unit = at.unit_offset + buf.len() as u64 <= geometry.unit_bytes;
        if in_one_unit && self.geometries().is_settled_in(at.stripe) {
            return self.read_piece(at, buf).await;
        }
        self.read_pieces(offset, buf).await
    }

    /// Reads whole sectors around an unaligned range, and copies the range out.
    async fn read_unaligned(&self, offset: u64, mut buf: Buf) -> (Result<(), ArrayError>, Buf) {
        let sector = self.geometry().sector_bytes;
        let start = offset - offset % sector;
        let end = (offset + buf.len() as u64).next_multiple_of(sector);
        let whole = Buf::new(to_len(end - start));
        let (result, whole) = self.read_pieces(start, whole).await;
        if result.is_ok() {
            let skip = to_len(offset - start);
            let len = buf.len();
            buf.copy_from_slice(&whole[skip..skip + len]);
        }
        (result, buf)
    }

    async fn read_pieces(&self, offset: u64, mut buf: Buf) -> (Result<(), ArrayError>, Buf) {
        let mut stripes: Vec<StripePieces> = Vec::new();
        for Piece { at, len } in self.geometries().pieces(offset, buf.len()) {
            let rest = buf.split_off(len);
            let piece = std::mem::replace(&mut buf, rest);
            match stripes.last_mut() {
                Some(pieces) if pieces[0].0.stripe == at.stripe => pieces.push((at, piece)),
                _ => stripes.push(vec![(at, piece)]),
            }
        }
        let done = join_all(stripes.into_iter().map(|pieces| self.read_stripe(pieces))).await;
        let mut result = Ok(());
        let mut parts = Vec::new();
        for (stripe_result, pieces) in done {
            result = result.and(stripe_result);
            parts.extend(pieces.into_iter().map(|(_, piece)| piece));
        }
        (result, if parts.is_empty() { buf } else { Buf::rejoin(parts) })
    }

    async fn read_stripe(&self, pieces: StripePieces) -> (Result<(), ArrayError>, StripePieces) {
        let stripe = pieces[0].0.stripe;
        let asked = pieces.iter().map(|(at, _)| at.unit).collect();
        let lost = self.avoided_units(stripe, self.may_wait(stripe, asked));
        let degraded = !self.geometry_of(stripe).mirrored
            && !lost.is_empty()
            && pieces.iter().any(|(at, _)| lost.contains(at.unit));
        if degraded && self.map().is_written(self.region_of(stripe)) {
            if self.is_monitored() {
                pieces.iter().for_each(|(at, _)| self.note_read(*at));
            }
            return self.read_detached(pieces).await;
        }
        let reads = pieces.into_iter().map(|(at, buf)| async move {
            let (result, buf) = self.read_piece(at, buf).await;
            (result, at, buf)
        });
        let mut result = Ok(());
        let mut back = Vec::new();
        for (piece_result, at, buf) in join_all(reads).await {
            result = result.and(piece_result);
            back.push((at, buf));
        }
        (result, back)
    }

    /// Reads a piece of one unit: directly if its disk is there, otherwise reconstructed.
    async fn read_piece(&self, at: Address, mut buf: Buf) -> (Result<(), ArrayError>, Buf) {
        let geometry = self.geometry_of(at.stripe);
        if !self.map().is_written(geometry.regions().of(at.stripe.number)) {
            buf.fill(0);
            return (Ok(()), buf);
        }
        let unit = if geometry.mirrored { self.source_of(at, buf.len()) } else { at.unit };
        if self.is_monitored() {
            self.note_read(at);
        }
        let asked = self.may_wait(at.stripe, UnitSet::one(unit));
        if !self.avoided_units(at.stripe, asked).contains(unit) {
            let (slot, offset) = geometry.locate(at.stripe.number, unit, at.unit_offset);
            if let Some(disk) = self.disk(slot) {
                let turns = self.geometries().turns();
                let _busy = Busy::on(self.in_flight(slot));
                let (result, back) = disk.read(offset, buf, Class::User).await;
                buf = back;
                match result {
                    // It is not there any more, or it was elsewhere and came back.
                    Ok(())
                        if turns != self.geometries().turns() || !self.is_home(at, buf.len()) =>
                    {
                        return Box::pin(self.read_again(at, buf)).await;
                    }
                    Ok(()) if self.holds(slot, &disk) => return (Ok(()), buf),
                    // It left its slot during the read, and may already be wiped for another use.
                    Ok(()) => {}
                    // The path below meets a medium error again, and repairs it. Where units may
                    // not match, its result may differ from an earlier read.
                    Err(error) if error.kind == DiskErrorKind::Medium => {
                        if self.awaits_resync(at.stripe) {
                            self.note_correction();
                        }
                    }
                    Err(error) => Box::pin(self.member_failed(slot, &disk, &error)).await,
                }
            }
        }
        let (result, mut pieces) = self.read_detached(vec![(at, buf)]).await;
        let (_, buf) = pieces.pop().expect("the piece comes back");
        (result, buf)
    }

    /// Those of the units asked for that may be computed although they can be read: to compute them
    /// waits for a write to the stripe, which may wait for room, and their own disks would not.
    fn may_wait(&self, stripe: StripeId, asked: UnitSet) -> UnitSet {
        if self.locks().is_busy(stripe) { UnitSet::new() } else { asked }
    }

    /// Whether these addresses are still in the geometry of their stripe.
    fn is_home(&self, at: Address, len: usize) -> bool {
        let held = || {
            let start = self.offset_of(at.stripe, at.unit, at.unit_offset);
            self.geometries().holds(at.stripe, &(start..start + len as u64))
        };
        self.geometries().is_settled_in(at.stripe) || held()
    }

    /// Reads a piece that has moved to another geometry since. Its old place may hold something
    /// else by now.
    async fn read_again(&self, at: Address, buf: Buf) -> (Result<(), ArrayError>, Buf) {
        self.read(self.offset_of(at.stripe, at.unit, at.unit_offset), buf).await
    }

    /// Reads pieces of one stripe, answers, and writes the reconstructed units to their
    /// replacements.
    async fn read_and_piggyback(&self, mut pieces: StripePieces, answer: Sender<ReadAnswer>) {
        let stripe = pieces[0].0.stripe;
        let geometry = self.geometry_of(stripe);
        let len = geometry.unit_len();
        let _memory = self.memory().acquire(self.memory_of(geometry, len)).await;
        let _lock = self.locks().exclusive(stripe).await;
        let resolved = self.stripe(stripe);
        let (targets, stale) = self.stale_targets(stripe);
        if stale.is_empty() || self.check_writable().is_err() {
            return answer.send(self.read_locked(pieces).await);
        }
        // Whole units that are read anyway serve as sources.
        let is_source =
            |piece: &(Address, Buf)| piece.1.len() == len && !stale.contains(piece.0.unit);
        let (sources, rest): (StripePieces, _) = pieces.into_iter().partition(is_source);
        pieces = rest;
        let mut units: Units = stale.iter().map(|unit| (unit, Buf::new(len))).collect();
        units.extend(sources.into_iter().map(|(at, buf)| (at.unit, buf)));
        let (result, units) = self.gather(resolved, Access::user(0), units).await;
        let (brought, sources): (Units, Units) =
            units.into_iter().partition(|(unit, _)| stale.contains(*unit));
        let mut back: StripePieces = sources
            .into_iter()
            .map(|(unit, buf)| (Address { stripe, unit, unit_offset: 0 }, buf))
            .collect();
        if result.is_err() {
            // The wanted part may be readable even if the whole unit is not.
            pieces.append(&mut back);
            pieces.sort_by_key(|(at, _)| (at.unit, at.unit_offset));
            return answer.send(self.read_locked(pieces).await);
        }
        let (mine, others): (StripePieces, StripePieces) =
            pieces.into_iter().partition(|(at, _)| stale.contains(at.unit));
        for (at, mut buf) in mine {
            let from = to_len(at.unit_offset);
            let unit = brought.iter().find(|(unit, _)| *unit == at.unit);
            let (_, unit) = unit.expect("stale units were gathered");
            let wanted = buf.len();
            buf.copy_from_slice(&unit[from..from + wanted]);
            back.push((at, buf));
        }
        let (result, others) = match others.is_empty() {
            true => (Ok(()), others),
            false => self.read_locked(others).await,
        };
        back.extend(others);
        back.sort_by_key(|(at, _)| (at.unit, at.unit_offset));
        answer.send((result, back));
        self.jobs().throttle().charge(self.rt().now(), geometry.unit_bytes);
        let at = Access::maintenance(0);
        let failed = self.write_targets(at, &targets, brought).await;
        self.note_rebuilt(stripe, &targets, stale.difference(&failed), RebuildSource::Piggyback);
    }

    /// As [`Engine::read_degraded`], in a task that continues if the reader is dropped: it may have
    /// a repair in progress, and must hold the stripe's lock until that has ended. While the unit
    /// is being rebuilt, the task may write it to the replacement as well (piggyback).
    async fn read_detached(&self, pieces: StripePieces) -> ReadAnswer {
        let array = self.handle();
        if self.can_piggyback(&pieces) {
            let (sender, answer) = oneshot();
            drop(self.rt().spawn(async move { array.read_and_piggyback(pieces, sender).await }));
            return answer.await.expect("the task answers before it ends");
        }
        self.rt().spawn(async move { array.read_degraded(pieces).await }).await
    }

    /// Reads pieces of one stripe, some of them lost.
    async fn read_degraded(&self, pieces: StripePieces) -> ReadAnswer {
        let longest = pieces.iter().map(|(_, buf)| buf.len()).max().unwrap_or(0);
        let stripe = pieces[0].0.stripe;
        let memory = self.memory_of(self.geometry_of(stripe), longest);
        let _memory = self.memory().acquire(memory).await;
        let _lock = self.locks().shared(stripe).await;
        self.read_locked(pieces).await
    }

    /// As [`Engine::read_degraded`]; the stripe's lock is held.
    pub(crate) async fn read_locked(&self, pieces: StripePieces) -> ReadAnswer {
        let stripe = pieces[0].0.stripe;
        if !pieces.iter().all(|(at, buf)| self.is_home(*at, buf.len())) {
            let again = pieces.into_iter().map(|(at, buf)| async move {
                let (result, buf) = Box::pin(self.read_again(at, buf)).await;
                (result, (at, buf))
            });
            let (results, pieces): (Vec<_>, _) = join_all(again).await.into_iter().unzip();
            return (results.into_iter().collect(), pieces);
        }
        let mut result = Ok(());
        let within = |(at, buf): &(Address, Buf)| at.unit_offset..at.unit_offset + buf.len() as u64;
        let cuts = self.cuts_of(stripe, pieces.iter().map(within));
        let mut parts: Vec<(Address, Vec<Buf>, Buf)> =
            pieces.into_iter().map(|(at, buf)| (at, Vec::new(), buf)).collect();
        for range in cuts.windows(2) {
            let (from, len) = (range[0], to_len(range[1] - range[0]));
            let mut wanted = Units::new();
            let mut owners = Vec::new();
            for (index, (at, done, rest)) in parts.iter_mut().enumerate() {
                let start = at.unit_offset + done.iter().map(|part| part.len() as u64).sum::<u64>();
                if start != from || rest.is_empty() {
                    continue;
                }
                let tail = rest.split_off(len);
                wanted.push((at.unit, std::mem::replace(rest, tail)));
                owners.push(index);
            }
            let asked = wanted.iter().map(|(unit, _)| *unit).collect();
            let only = self.only_sources(stripe, &(from..range[1]), asked);
            let (resolved, at_hand) = match only {
                Some(only) => (self.stripe(stripe).limited_to(only), Vec::new()),
                None => {
                    let resolved = self.stripe(stripe).avoiding(self.avoided_units(stripe, asked));
                    (resolved, self.at_hand(resolved, from, len, asked))
                }
            };
            let gathered = gather(self, resolved, Access::user(from), &at_hand, wanted).await;
            let Gathered { result: range_result, units: filled, .. } = gathered;
            let cause = |error| match (only, self.check_whole()) {
                (Some(_), Err(broken)) => broken,
                _ => self.unreadable(stripe, error),
            };
            let range_result = range_result.map_err(cause);
            result = result.and(range_result);
            for (index, (_, part)) in owners.into_iter().zip(filled) {
                parts[index].1.push(part);
            }
        }
        let back = parts.into_iter().map(|(at, mut done, rest)| {
            done.push(rest);
            (at, Buf::rejoin(done))
        });
        (result, back.collect())
    }

    /// Where a read of these offsets in the units of one stripe is cut: between two cuts the same
    /// units are wanted, and a write stopped halfway everywhere or nowhere. The pieces of a read
    /// start or end at most once inside a unit, so they make at most three ranges; but the size of
    /// one read is bounded.
    pub(crate) fn cuts_of(
        &self,
        stripe: StripeId,
        pieces: impl Iterator<Item = Range<u64>>,
    ) -> Vec<u64> {
        let most = self.run_max(self.geometry_of(stripe));
        let ends = |Range { start, end }| (start..end).step_by(most).chain([end]);
        let mut cuts: Vec<u64> = pieces.chain(self.torn_offsets(stripe)).flat_map(ends).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// The unit from which to read `len` bytes of a mirror: the most suitable copy.
    fn source_of(&self, at: Address, len: usize) -> usize {
        let geometry = self.geometry_of(at.stripe);
        let copies = geometry.units().difference(&self.avoided_units(at.stripe, UnitSet::new()));
        let offsets = at.unit_offset..at.unit_offset + len as u64;
        let only = self.only_sources(at.stripe, &offsets, copies);
        if only.is_some() || self.awaits_resync(at.stripe) || self.locks().is_busy(at.stripe) {
            return only.unwrap_or(copies).iter().next().unwrap_or(0);
        }
        self.least_busy_copy(at, copies)
    }

    fn least_busy_copy(&self, at: Address, copies: UnitSet) -> usize {
        // While load is even, neighbouring requests go to the same disk, so that each disk sees
        // sequential runs.
        let width = self.geometry_of(at.stripe).code().width();
        let turn = to_len(at.stripe.number / MIRROR_RUN_STRIPES % width as u64);
        let dear = match self.jobs().rebuild().redirection() {
            Redirection::Priced => self.incomplete_slots(),
            Redirection::Never | Redirection::Always => SlotSet::new(),
        };
        let rank = |unit: usize| {
            let slot = self.slot_of(at.stripe, unit);
            // A disk that a rebuild writes in order has to come back afterwards.
            (self.in_flight(slot).get(), dear.contains(slot), (unit + width - turn) % width)
        };
        copies.iter().min_by_key(|unit| rank(*unit)).unwrap_or(0)
    }
}

/// Number of consecutive stripes of a mirror that prefer the same copy.
const MIRROR_RUN_STRIPES: u64 = 16;
