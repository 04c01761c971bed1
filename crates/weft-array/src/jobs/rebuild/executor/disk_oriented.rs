//! DOR: one process per surviving disk that reads its own units in order, and a writer per
//! replacement (Holland, Gibson, Siewiorek: JDPD '94; RAIDframe). The original reads at low
//! priority; here a process has one read on its disk, so that a user waits for at most one.
//!
//! Every disk runs at its own speed. The pool of buffers bounds how far the disks run apart; apart
//! from that, no disk waits for the slowest. A process is the queue of a disk's semaphore, which
//! serves stripes in the order in which they were begun.
//!
//! *Turns.* A disk picks from its queue what is nearest, which is the process's next read as often
//! as a user's: each read between two of users costs two positionings of the heads for one unit.
//! With the pace `users-first` a process therefore waits while users have requests on its disk, but
//! no longer than it read itself since it last gave way. So users go first, and a rebuild still gets
//! half of the time of a disk that is never free; the longer users left the disk to it, the longer
//! it can leave the disk to them. Below its minimum rate it does not give way.
//!
//! The units of a stripe are read at quite different times, and holding the stripe's lock
//! throughout would make users wait for the slowest disk. Instead they are read without the lock,
//! under a *watch*. When all are there, the lock is taken. The units are used if the stripe was not
//! locked for writing meanwhile, and if exactly those units are lost that were lost when the reads
//! were planned. Otherwise the stripe is rebuilt again, under its lock.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_code::{Plan, SlotNo, UnitSet};
use weft_disk::Class;
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, MILLISECOND, Nanos};
use weft_stripe::{Access, Owner, Place, Stripe, Units, compute};

use super::Executor;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::maintenance::By;
use crate::rebuild_policy::RebuildPace;
use crate::resolve::id;

/// The pool: memory for the units that are read and not yet written.
const POOL_BYTES: usize = 16 << 20;

/// Time between two looks whether users still have requests on the disk.
const LOOK: Nanos = MILLISECOND / 4;

pub(super) struct DiskOriented {
    array: Rc<Inner>,
    users_first: bool,
    /// One per slot.
    processes: Vec<Process>,
}

struct Process {
    /// Its one read.
    turn: Semaphore,
    /// How long it has read since it last gave way.
    took: Cell<Nanos>,
}

impl DiskOriented {
    pub fn new(pace: RebuildPace, array: Rc<Inner>) -> Self {
        let process = |_| Process { turn: Semaphore::new(1), took: Cell::new(0) };
        let processes = (0..array.members.len()).map(process).collect();
        Self { array, users_first: pace == RebuildPace::UsersFirst, processes }
    }

    /// Lets the users of a disk go first; see the head of this file.
    async fn give_way(&self, slot: SlotNo) {
        let Self { array, processes, .. } = self;
        let users = || array.members.in_flight(slot).get() > 0;
        let waits = |now| self.users_first && users() && !array.jobs.throttle.is_late(now);
        if waits(array.rt.now()) {
            let end = array.rt.now() + processes[slot.0].took.take();
            while array.rt.now() < end && waits(array.rt.now()) {
                array.rt.sleep(LOOK).await;
            }
        }
    }

    /// Reads what `plan` asks for, each unit when its disk's process reaches it. `None` if a unit
    /// cannot be read.
    async fn read(&self, stripe: u64, plan: &Plan) -> Option<Units> {
        let array = &self.array;
        let len = array.geometry.unit_len();
        array.jobs.rebuild.counts.count_reads(plan.reads.len(), len);
        let reads = plan.reads.iter().map(|unit| async move {
            let Place { slot, offset } = array.place(id(stripe), unit, 0);
            let Process { turn, took } = &self.processes[slot.0];
            let _turn = turn.acquire(1).await;
            self.give_way(slot).await;
            let disk = array.disk(slot)?;
            let begun = array.rt.now();
            let (result, buf) = disk.read(offset, Buf::new(len), Class::Maintenance).await;
            took.set(took.get() + array.rt.now() - begun);
            // The cause is found and handled later, under the lock. The disk may also have left its
            // slot meanwhile, and be wiped for another use.
            result.ok().filter(|()| array.holds(slot, &disk)).map(|()| (unit, buf))
        });
        join_all(reads).await.into_iter().collect()
    }

    /// Reads without the lock, and uses the result if nothing changed meanwhile. Returns whether
    /// the stripe is rebuilt.
    async fn attempt(&self, stripe: u64) -> bool {
        let array = &self.array;
        if array.run_max() < array.geometry.unit_len() {
            // Too much to be held whole.
            return false;
        }
        let Some(watch) = array.locks.watch(id(stripe)) else { return false };
        let targets = array.targets(stripe);
        let Stripe { coding, lost, .. } = array.stripe(stripe);
        let wanted = array.stale_of(stripe, &targets);
        let Ok(plan) = coding.plan(stripe, lost, wanted, UnitSet::new()) else { return false };
        let Some(have) = self.read(stripe, &plan).await else { return false };
        let (_lock, undisturbed) = watch.lock().await;
        if !undisturbed || array.stripe(stripe).lost != lost || array.stopped.get() {
            return false;
        }
        let units = wanted.iter().map(|unit| {
            let mut out = Buf::new(array.geometry.unit_len());
            compute(&plan, unit, &have, &mut out);
            (unit, out)
        });
        let units: Units = units.collect();
        let failed = array.write_targets(Access::maintenance(0), &targets, units).await;
        if array.out_of_space(&targets, failed).is_some() {
            return false;
        }
        array.note_rebuilt(stripe, &targets, wanted.difference(&failed), By::Executor);
        true
    }
}

impl Executor for DiskOriented {
    fn window(&self) -> usize {
        let geometry = &self.array.geometry;
        (POOL_BYTES / (geometry.unit_len() * geometry.code().width())).clamp(2, 1024)
    }

    fn rebuild(self: Rc<Self>, stripe: u64) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move {
            let array = &self.array;
            let _memory = array.job_memory().await?;
            if self.attempt(stripe).await {
                return Ok(());
            }
            let _lock = array.locks.exclusive(id(stripe)).await;
            array.rebuild_whole(stripe, By::Executor).await
        })
    }
}
