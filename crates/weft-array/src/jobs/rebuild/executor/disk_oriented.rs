//! DOR: a process for each surviving disk that reads its own units in order, and a writer for each
//! replacement (Holland, Gibson, Siewiorek: JDPD '94; RAIDframe). Theirs read at low priority; here
//! a process has one read on its disk, so that a user waits for one at most.
//!
//! Every disk goes at its own speed: none waits for the slowest but through the pool of buffers,
//! which bounds how far they run apart. A process is the line before a disk's semaphore, which
//! is served in the order in which stripes were begun.
//!
//! Units of a stripe are thus read at quite different times, and holding its lock all the while
//! would make users wait for the slowest disk. So they are read without it, under a *watch*: when
//! all are there the lock is taken, and they are used if nobody who may write had it, and no more
//! or other units are lost than when they were planned. Else the stripe is done once more, under
//! its lock.

use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_code::{Plan, UnitSet};
use weft_rt::Buf;
use weft_rt::sync::Semaphore;

use super::Executor;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::gather::{StripeAccess, Units, combine};
use crate::geometry::to_len;
use crate::jobs::rebuild::policy::RebuildPolicy;
use crate::jobs::rebuild::stripe::By;

pub(super) struct DiskOriented {
    /// A process for each slot.
    processes: Vec<Semaphore>,
    pool_bytes: usize,
}

impl DiskOriented {
    pub fn new(policy: &RebuildPolicy, array: &Inner) -> Self {
        let process = |_| Semaphore::new(policy.disk_depth);
        Self {
            processes: (0..array.members.len()).map(process).collect(),
            pool_bytes: to_len(policy.pool_bytes),
        }
    }

    /// Reads what `plan` asks for, each unit when its disk's process comes to it. Nothing if one
    /// cannot be read.
    async fn read(&self, array: &Inner, at: StripeAccess, plan: &Plan) -> Option<Units> {
        let len = array.geometry.unit_len();
        array.jobs.rebuild.counts.count_reads(plan.reads.len(), len);
        let reads = plan.reads.iter().map(|unit| async move {
            let (slot, offset) = array.geometry.locate(at.stripe, unit, at.from);
            let _turn = self.processes[slot].acquire(1).await;
            let disk = array.members.disk(slot)?;
            let (result, buf) = disk.read(offset, Buf::new(len), at.class).await;
            // What is wrong with it is found out, and seen to, under the lock; so is that it left
            // its slot meanwhile, and may be wiped for another use by now.
            result.ok().filter(|()| array.members.holds(slot, &disk)).map(|()| (unit, buf))
        });
        join_all(reads).await.into_iter().collect()
    }

    /// Reads without the lock, and uses what was read if nothing changed meanwhile. Says whether
    /// the stripe is done.
    async fn attempt(&self, array: &Inner, stripe: u64) -> bool {
        if array.run_max() < array.geometry.unit_len() {
            // Too much to be held whole.
            return false;
        }
        let Some(watch) = array.locks.watch(stripe) else { return false };
        let targets = array.targets(stripe);
        let lost = array.lost_units(stripe);
        let wanted = array.stale_of(stripe, &targets);
        let Ok(plan) = array.plan(stripe, lost, wanted, UnitSet::new()) else { return false };
        let at = StripeAccess::maintenance(stripe, 0);
        let Some(have) = self.read(array, at, &plan).await else { return false };
        let (_lock, undisturbed) = watch.lock().await;
        if !undisturbed || array.lost_units(stripe) != lost || array.stopped.get() {
            return false;
        }
        let units = wanted.iter().map(|unit| {
            let mut out = Buf::new(array.geometry.unit_len());
            combine(&plan, unit, &have, &mut out);
            (unit, out)
        });
        let units: Units = units.collect();
        let failed = array.write_targets(at, &targets, units).await;
        if array.without_room(&targets, failed).is_some() {
            return false;
        }
        array.note_rebuilt(stripe, &targets, wanted.difference(&failed), By::Executor);
        true
    }
}

impl Executor for DiskOriented {
    fn window(&self, array: &Inner) -> usize {
        let stripe = array.geometry.unit_len() * array.geometry.code.width();
        (self.pool_bytes / stripe).clamp(2, 1024)
    }

    fn rebuild(
        self: Rc<Self>,
        array: Rc<Inner>,
        stripe: u64,
    ) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move {
            let _memory = array.job_memory().await?;
            if self.attempt(&array, stripe).await {
                return Ok(());
            }
            let _lock = array.locks.exclusive(stripe).await;
            array.rebuild_whole(stripe, By::Executor).await
        })
    }
}
