//! DOR: one process per surviving disk that reads its own units in order, and a writer per
//! replacement (Holland, Gibson, Siewiorek: JDPD '94; RAIDframe). The original reads at low
//! priority; here a process has one read on its disk, so that a user waits for at most one.
//!
//! Every disk runs at its own speed (`process`). The pool of buffers bounds how far the disks run
//! apart; apart from that, no disk waits for the slowest.
//!
//! The units of a stripe are read at quite different times, and holding the stripe's lock
//! throughout would make users wait for the slowest disk. Instead they are read without the lock,
//! under a *watch*. When all are there, the lock is taken. The units are used if the stripe was not
//! locked for writing since, and if exactly those units are lost that were lost when the reads were
//! planned. Otherwise the stripe is rebuilt again, under its lock.

mod process;

use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_code::{Plan, UnitSet};
use weft_rt::Buf;
use weft_stripe::{Access, Owner, Stripe, StripeId, Units, compute};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::rebuild_policy::RebuildPace;
use crate::maintenance::RebuildSource;
use crate::maintenance::experiment::Executor;
use process::Process;

/// The pool: memory for the units that are read and not yet written.
const POOL_BYTES: usize = 16 << 20;

pub(super) struct DiskOriented {
    array: Rc<Engine>,
    users_first: bool,
    /// One per slot.
    processes: Vec<Process>,
}

impl DiskOriented {
    pub fn new(pace: RebuildPace, array: Rc<Engine>) -> Self {
        let processes = (0..array.members().len()).map(|_| Process::new()).collect();
        Self { array, users_first: pace == RebuildPace::UsersFirst, processes }
    }

    /// Reads what `plan` asks for, each unit when its disk's process reaches it. `None` if a unit
    /// cannot be read.
    async fn read(&self, stripe: StripeId, plan: &Plan) -> Option<Units> {
        let array = &self.array;
        let len = array.geometry_of(stripe).unit_len();
        array.jobs().rebuild().counts().count_reads(plan.reads.len(), len);
        let reads = plan.reads.iter().map(|unit| async move {
            let buf = self.read_unit(array.place(stripe, unit, 0), len).await?;
            Some((unit, buf))
        });
        join_all(reads).await.into_iter().collect()
    }

    /// Reads without the lock, and uses the result if nothing changed since. Returns whether the
    /// stripe is rebuilt.
    async fn attempt(&self, stripe: StripeId) -> bool {
        let array = &self.array;
        let geometry = array.geometry_of(stripe);
        if array.run_max(geometry) < geometry.unit_len() {
            // Too much to be held whole.
            return false;
        }
        let Some(watch) = array.locks().watch(stripe) else { return false };
        let targets = array.targets(stripe);
        let Stripe { coding, lost, .. } = array.stripe(stripe);
        let wanted = array.stale_of(stripe, &targets);
        let Ok(plan) = coding.plan(stripe.number, lost, wanted, UnitSet::new()) else {
            return false;
        };
        let Some(have) = self.read(stripe, &plan).await else { return false };
        let (_lock, undisturbed) = watch.lock().await;
        if !undisturbed || array.stripe(stripe).lost != lost || array.service().is_stopped() {
            return false;
        }
        if array.check_not_torn(stripe).is_err() {
            return false;
        }
        let units = wanted.iter().map(|unit| {
            let mut out = Buf::new(geometry.unit_len());
            compute(&plan, unit, &have, &mut out);
            (unit, out)
        });
        let units: Units = units.collect();
        let failed = array.write_targets(Access::maintenance(0), &targets, units).await;
        if array.out_of_space(&targets, failed).is_some() {
            return false;
        }
        array.note_rebuilt(stripe, &targets, wanted.difference(&failed), RebuildSource::Executor);
        true
    }
}

impl Executor for DiskOriented {
    fn window(&self) -> usize {
        let geometry = self.array.geometry();
        (POOL_BYTES / (geometry.unit_len() * geometry.code().width())).clamp(2, 1024)
    }

    fn rebuild(
        self: Rc<Self>,
        stripe: StripeId,
    ) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move {
            let array = &self.array;
            let _memory = array.job_memory(array.geometry_of(stripe)).await?;
            if self.attempt(stripe).await {
                return Ok(());
            }
            let _lock = array.locks().exclusive(stripe).await;
            array.rebuild_whole(stripe, RebuildSource::Executor).await
        })
    }
}
