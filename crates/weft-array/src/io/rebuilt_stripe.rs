//! The one place where a stripe becomes rebuilt, by an executor or by a user's request
//! (`piggyback`).
//!
//! Under the stripe's exclusive lock, the stale units are gathered, written to the replacements,
//! and only then noted as rebuilt in the region map. From that moment requests use the replacement,
//! so a unit may be noted only if all of it is there. A user's write must not come between
//! gathering and writing. So the lock is held over both; or, in the disk-oriented executor, units
//! read without the lock are used only if the stripe was not locked for writing since.
//!
//! A stripe in which a write stopped halfway is not rebuilt any more: the other members hold a
//! mixture of its old and new contents.
//!
//! The note is in memory. The region's mark on disk is cleared later, when all of its stripes are
//! rebuilt and flushed (`finish`). So a crash may make a rebuilt region stale again, but never a
//! stale one fresh.

use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_code::UnitSet;
use weft_disk::{Class, WriteOpts};
use weft_rt::Buf;
use weft_stripe::{Access, Stripe, StripeId, Units};

use crate::engine::Engine;
use crate::engine::resolve::ReplacementUnit;
use crate::error::ArrayError;
use crate::format::lane::LaneSet;
use crate::format::length::to_len;
use crate::maintenance::RebuildSource;
use crate::maintenance::experiment::{Rebuilder, Requests};

impl Engine {
    /// Rebuilds one stripe on every slot that is being rebuilt, with one request per unit. The
    /// caller holds its exclusive lock.
    pub(crate) async fn rebuild_whole(
        &self,
        stripe: StripeId,
        by: RebuildSource,
    ) -> Result<(), ArrayError> {
        let bytes = self.geometry_of(stripe).unit_bytes;
        let whole_units = Requests { bytes, class: Class::Maintenance, heads: None };
        self.rebuild_locked(stripe, &whole_units, by).await
    }

    /// Rebuilds one stripe on every slot that is being rebuilt. The caller holds its exclusive
    /// lock.
    async fn rebuild_locked(
        &self,
        stripe: StripeId,
        requests: &Requests,
        by: RebuildSource,
    ) -> Result<(), ArrayError> {
        self.check_not_torn(stripe)?;
        let targets = self.targets(stripe);
        let resolved = self.stripe(stripe);
        let wanted = self.stale_of(stripe, &targets);
        let mut failed = UnitSet::new();
        if !wanted.is_empty() {
            for (from, len) in self.runs(self.geometry_of(stripe)) {
                let end = from + len as u64;
                let starts = (from..end).step_by(to_len(requests.bytes));
                let parts = starts.map(|from| {
                    let at = Access { class: requests.class, ..Access::maintenance(from) };
                    let len = to_len(requests.bytes.min(end - from));
                    self.rebuild_range(resolved, at, len, wanted, &targets, requests)
                });
                for part in join_all(parts).await {
                    failed = failed.union(&part?);
                }
            }
        }
        if let Some(disk) = self.out_of_space(&targets, failed) {
            return Err(ArrayError::NoSpace { disk });
        }
        self.note_rebuilt(stripe, &targets, wanted.difference(&failed), by);
        Ok(())
    }

    /// Gathers and writes a range of offsets. Returns the units that could not be written.
    async fn rebuild_range(
        &self,
        stripe: Stripe<'_>,
        at: Access,
        len: usize,
        wanted: UnitSet,
        targets: &[ReplacementUnit],
        requests: &Requests,
    ) -> Result<UnitSet, ArrayError> {
        let _head = match &requests.heads {
            Some(heads) => Some(heads.acquire(1).await),
            None => None,
        };
        let number = stripe.id.number;
        if let Ok(plan) = stripe.coding.plan(number, stripe.lost, wanted, UnitSet::new()) {
            self.jobs().rebuild().counts().count_reads(plan.reads.len(), len);
        }
        let bufs: Units = wanted.iter().map(|unit| (unit, Buf::new(len))).collect();
        let (result, units) = self.gather(stripe, at, bufs).await;
        result?;
        Ok(self.write_targets(at, targets, units).await)
    }

    /// Writes units to their replacements. Returns the units that are not there afterwards.
    pub(crate) async fn write_targets(
        &self,
        at: Access,
        targets: &[ReplacementUnit],
        units: Units,
    ) -> UnitSet {
        let writes = units.into_iter().map(|(unit, data)| async move {
            let target = targets.iter().find(|target| target.unit == unit)?;
            self.jobs().rebuild().counts().count_write(data.len());
            let opts = WriteOpts { class: at.class, fua: false };
            let error = target
                .disk
                .write(target.place.offset + at.from, data.freeze(), opts)
                .await
                .err()?;
            // Neither users nor the rebuild wait for space on a replacement.
            let _ = self.job_write_failed(target.place.slot, &target.disk, &error).await;
            Some(unit)
        });
        join_all(writes).await.into_iter().flatten().collect()
    }

    /// The name of a replacement that is still in place and whose write failed: it has no space.
    pub(crate) fn out_of_space(
        &self,
        targets: &[ReplacementUnit],
        failed: UnitSet,
    ) -> Option<String> {
        let full = |t: &&ReplacementUnit| {
            failed.contains(t.unit) && self.members().holds(t.place.slot, &t.disk)
        };
        targets.iter().find(full).map(|target| target.disk.info().name.clone())
    }

    /// Notes that the units `written` of a stripe are on their replacements. The stripe is still
    /// locked: from here on requests use a replacement, provided that it still is the disk that was
    /// written. A target that was not stale when the other units were gathered may be stale now, if
    /// its lane has started since.
    pub(crate) fn note_rebuilt(
        &self,
        stripe: StripeId,
        targets: &[ReplacementUnit],
        written: UnitSet,
        by: RebuildSource,
    ) {
        let lanes = self.lanes();
        if !self.map().is_stale_in(lanes, stripe) {
            return;
        }
        let state = self.jobs().rebuild();
        let region = self.region_of(stripe);
        for ReplacementUnit { unit, place, lane, disk } in targets {
            let now = self.members().rebuilt_disk(place.slot);
            let is_target = now.is_some_and(|now| Rc::ptr_eq(&now, disk));
            let whole = written.contains(*unit) && is_target;
            if whole && self.map().mark_stripe_rebuilt(*lane, stripe) {
                state.region_done(*lane, region);
            }
        }
        // Replacements without a unit of the stripe: nothing had to be rebuilt there.
        for (slot, lane) in self.members().rebuilding() {
            let absent = self.unit_on(stripe, slot).is_none();
            if absent && self.map().mark_stripe_rebuilt(lane, stripe) {
                state.region_done(lane, region);
            }
        }
        if !self.map().is_stale_in(lanes, stripe) {
            state.counts().count_stripe(by);
            self.jobs().step(self.rt().now(), 1);
        }
    }

    /// The lanes of all slots that are being rebuilt.
    pub(crate) fn lanes(&self) -> LaneSet {
        self.members().rebuilding().into_iter().map(|(_, lane)| lane).collect()
    }
}

impl Rebuilder for Engine {
    fn unit_bytes(&self) -> u64 {
        self.geometry().unit_bytes
    }

    fn sector_bytes(&self) -> u64 {
        self.geometry().sector_bytes
    }

    fn rebuild<'a>(
        &'a self,
        stripe: StripeId,
        requests: &'a Requests,
    ) -> LocalBoxFuture<'a, Result<(), ArrayError>> {
        Box::pin(async move {
            let _memory = self.job_memory(self.geometry_of(stripe)).await?;
            let _lock = self.locks().exclusive(stripe).await;
            self.rebuild_locked(stripe, requests, RebuildSource::Executor).await
        })
    }
}
