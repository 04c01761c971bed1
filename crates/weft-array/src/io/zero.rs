//! Discard, write-zeroes and clearing: making ranges read as zeros.
//!
//! Zeros are a codeword of every linear code. So a whole stripe is zeroed by zeroing each of its
//! units on its own disk, without transferring data. A range that covers only part of a stripe is
//! written as zeros like any data.
//!
//! A region that is zeroed as a whole becomes *unwritten* again if the members are known to read as
//! zeros where regions are unwritten. A rebuild then skips it, and it reads as a hole.

use std::ops::Range;

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::{Frozen, ZEROS_BYTES_MAX};
use weft_stripe::{BandRecord, FailedWrite, Location, Owner, ParityRecord, StripeId};

use crate::engine::Engine;
use crate::engine::runs::{Bit, grouped, span};
use crate::error::ArrayError;
use crate::format::length::to_len;
use crate::geometry::Geometry;
use crate::region_map::{MapStoreError, RegionNo};

/// Stripes zeroed concurrently.
const STRIPES_AT_ONCE: u64 = 32;

/// Zeros in one write, where data must be transferred.
const ZEROS_BYTES: u64 = ZEROS_BYTES_MAX as u64;

impl Engine {
    /// Makes a range read as zeros. With `may_deallocate` the storage below may be freed.
    pub(crate) async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> Result<(), ArrayError> {
        self.check_writable()?;
        self.check_range(offset, len)?;
        let mut next = offset;
        while next < offset + len {
            let (geometry, part) = self.part_in_one(next..offset + len);
            next = part.end;
            let stripe_bytes = geometry.stripe_bytes();
            let first = part.start.div_ceil(stripe_bytes);
            let last = part.end / stripe_bytes;
            if first >= last {
                self.write_zero_bytes(part.start, part.end - part.start, fua).await?;
                continue;
            }
            let (start, end) = (first * stripe_bytes, last * stripe_bytes);
            self.write_zero_bytes(part.start, start - part.start, fua).await?;
            self.write_zero_bytes(end, part.end - end, fua).await?;
            self.zero_stripes(geometry, first..last, fua, may_deallocate).await?;
        }
        Ok(())
    }

    /// Makes the whole stripes in a range read as zeros; the rest keeps its contents.
    pub(crate) async fn discard(&self, offset: u64, len: u64) -> Result<(), ArrayError> {
        self.check_range(offset, len)?;
        self.check_writable()?;
        let mut next = offset;
        while next < offset + len {
            let (geometry, part) = self.part_in_one(next..offset + len);
            next = part.end;
            let stripe_bytes = geometry.stripe_bytes();
            let start = part.start.next_multiple_of(stripe_bytes);
            let end = part.end / stripe_bytes * stripe_bytes;
            if start < end {
                self.write_zeroes(start, end - start, false, true).await?;
            }
        }
        Ok(())
    }

    /// The first part of a range of addresses that is in one geometry, and which that is.
    fn part_in_one(&self, addresses: Range<u64>) -> (&Geometry, Range<u64>) {
        let Range { start, end } = addresses;
        let end = match self.geometries().former() {
            Some((_, border)) if (start + 1..end).contains(&border.at) => border.at,
            _ => end,
        };
        (self.geometries().home(start), start..end)
    }

    async fn write_zero_bytes(
        &self,
        mut offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<(), ArrayError> {
        let end = offset + len;
        while offset < end {
            let step = (ZEROS_BYTES - offset % ZEROS_BYTES).min(end - offset);
            if self.is_hole(offset, step) {
                offset += step;
                continue;
            }
            self.write(offset, Frozen::zeros(to_len(step)), fua).await?;
            offset += step;
        }
        Ok(())
    }

    fn is_hole(&self, offset: u64, len: u64) -> bool {
        let mut pieces = self.geometries().pieces(offset, to_len(len));
        pieces.all(|piece| !self.map().is_written(self.region_of(piece.at.stripe)))
    }

    async fn zero_stripes(
        &self,
        geometry: &Geometry,
        stripes: Range<u64>,
        fua: bool,
        may_deallocate: bool,
    ) -> Result<(), ArrayError> {
        let mut next = stripes.start;
        while next < stripes.end {
            let region = geometry.regions().of(next);
            let all = geometry.regions().stripes_of(region);
            let end = stripes.end.min(all.end);
            let bytes = geometry.addresses(next).start..geometry.addresses(end).start;
            if !self.geometries().holds(geometry.id(next), &bytes) {
                // A reshape has moved some of them in the meantime.
                let len = bytes.end - bytes.start;
                Box::pin(self.write_zeroes(bytes.start, len, fua, may_deallocate)).await?;
            } else if self.map().is_written(region) {
                let whole = next == all.start && end == all.end;
                let forget = may_deallocate && self.members_zeroed() && whole;
                let moving = self.zero_within(geometry, region, next..end, fua, forget).await?;
                // Only now: a wait for moving data must not hold up a stop.
                for bytes in moving {
                    self.write_zero_bytes(bytes.start, bytes.end - bytes.start, fua).await?;
                }
            }
            next = end;
        }
        Ok(())
    }

    /// Zeroes whole stripes of a region. Returns the addresses of the stripes that it left out, as
    /// they are being moved, or have moved.
    async fn zero_within(
        &self,
        geometry: &Geometry,
        region: RegionNo,
        stripes: Range<u64>,
        fua: bool,
        forget: bool,
    ) -> Result<Vec<Range<u64>>, ArrayError> {
        // Held throughout: the array is not stopped while any of the budget is taken.
        let _memory = self.hold_off_stop().await;
        self.check_writable()?;
        let dirty = self.begin_write(region).await?;
        if forget {
            // A write that starts during the zeroing, or before the region is marked, keeps the
            // region written.
            self.map().unwriting_begins(region);
        }
        let mut moving = Vec::new();
        let mut next = stripes.start;
        while next < stripes.end {
            let end = stripes.end.min(next + STRIPES_AT_ONCE);
            let zeroed =
                join_all((next..end).map(|stripe| self.zero_stripe(geometry.id(stripe), fua)))
                    .await;
            for left_out in zeroed {
                moving.extend(left_out?);
            }
            next = end;
        }
        drop(dirty);
        if forget && moving.is_empty() {
            self.forget_region(region).await;
        }
        Ok(moving)
    }

    /// Zeroes a stripe, or returns its addresses if they are being moved, or have moved.
    async fn zero_stripe(
        &self,
        stripe: StripeId,
        fua: bool,
    ) -> Result<Option<Range<u64>>, ArrayError> {
        let _lock = self.locks().exclusive(stripe).await;
        self.check_writable()?;
        let addresses = self.geometry_of(stripe).addresses(stripe.number);
        if !self.may_change(stripe, &addresses) {
            return Ok(Some(addresses));
        }
        // The record counts lost units with their new value.
        self.settled().await?;
        let lost = self.stripe(stripe).lost;
        let lost_later = lost.union(&self.lost_after_crash(stripe));
        // Nothing may be written without the record: a lost unit would be neither old nor new.
        let logged = self.log_zero_stripe(stripe, lost, lost_later).await?;
        let durable = fua || self.map().is_finishing(self.region_of(stripe));
        let opts = WriteOpts { class: Class::User, fua: durable };
        let geometry = self.geometry_of(stripe);
        let len = geometry.unit_bytes;
        // Also on a replacement where the stripe is stale: it may hold old bytes of the stripe, and
        // no rebuild replaces them once the region is unwritten.
        let writes = geometry.units().iter().filter_map(|unit| {
            let Location { slot, offset } = self.place(stripe, unit, 0);
            let disk = self.disk(slot)?;
            Some(async move {
                let error = self.zero_both(stripe, slot, &disk, offset, len, opts).await.err()?;
                Some(FailedWrite { slot, disk, error })
            })
        });
        let failed: Vec<_> = join_all(writes).await.into_iter().flatten().collect();
        let whole = failed.is_empty();
        self.write_failed(Some((stripe, 0..len)), failed).await?;
        self.settled().await?;
        if fua {
            self.end_durable(logged, whole).await?;
        }
        Ok(None)
    }

    /// While degraded, logs the lost units' new value (zero), and supersedes records on disk, as
    /// any write of a whole stripe does.
    async fn log_zero_stripe(
        &self,
        stripe: StripeId,
        lost: UnitSet,
        lost_later: UnitSet,
    ) -> Result<Option<crate::log::LoggedWrite<'_>>, ArrayError> {
        let Some(log) = self.log() else { return Ok(None) };
        let geometry = self.geometry_of(stripe);
        let (code, len) = (geometry.code(), geometry.unit_len());
        let needed = !lost_later.is_empty() || log.has_records(stripe, 0, len);
        let parity = (code.k()..code.width()).filter(|unit| needed && !lost.contains(*unit));
        let record_of = |unit| {
            let slot = self.slot_of(stripe, unit);
            ParityRecord { slot, unit, payload: None }
        };
        let written = geometry.data_units().difference(&lost_later);
        let parities = parity.map(record_of).collect();
        let record = BandRecord { from: 0, len, written, own: written, parities };
        Ok(Some(log.append(self, stripe, vec![record]).await?))
    }

    /// Marks a zeroed region unwritten, unless a write has started since. Best effort: if the mark
    /// cannot be written, the region stays written and reads as zeros.
    async fn forget_region(&self, region: RegionNo) {
        if self.geometries().former().is_some() {
            return;
        }
        let _ = self.map().mark_unwritten(self, &[region]).await;
    }

    /// Zeroes all units of these stripes on all members, durably.
    ///
    /// # Errors
    /// If the array takes no writes any more.
    pub(crate) async fn zero_units(
        &self,
        stripes: impl Iterator<Item = StripeId>,
    ) -> Result<(), MapStoreError> {
        let mut units = Vec::new();
        for stripe in stripes {
            let geometry = self.geometry_of(stripe);
            for unit in geometry.units().iter() {
                let place = self.place(stripe, unit, 0);
                units.push(Bit { place, len: geometry.unit_bytes, what: () });
            }
        }
        let runs = grouped(&mut units, 0, u64::MAX).map(span);
        let zeroes = runs.filter_map(|(Location { slot, offset }, len)| {
            let disk = self.disk(slot)?;
            Some(async move {
                let second = self.members().second_disk(slot);
                let own = self.zero_with_room(slot, &disk, offset, len, WriteOpts::USER);
                let also = async |second: &dyn Disk| {
                    second.write_zeroes(offset, len, WriteOpts::USER).await
                };
                let error = self.on_both(slot, own, second.as_ref(), also).await.err()?;
                Some(FailedWrite { slot, disk, error })
            })
        });
        let failed = join_all(zeroes).await.into_iter().flatten().collect();
        // No region of theirs was ever written, so none of them is read.
        self.write_failed(None, failed)
            .await
            .map_err(|error| MapStoreError::Refused(error.to_string()))?;
        self.flush_members().await;
        Ok(())
    }
}
