//! DOR: one process per surviving disk that reads its own units in order, and a writer per
//! replacement (Holland, Gibson, Siewiorek: JDPD '94; RAIDframe). The original reads at low
//! priority; here a process has one read on its disk, so that a user waits for at most one.
//!
//! Every disk runs at its own speed. The pool of buffers bounds how far the disks run apart; apart
//! from that, no disk waits for the slowest. A process is the queue of a disk's semaphore, which
//! serves stripes in the order in which they were begun.
//!
//! *Turns.* With the pace `users-first` a process learns from its own reads whether it and its
//! disk's users are in each other's way. A read that takes hardly longer than the shortest so far
//! was alone, or the disk serves several requests at once, as SSDs do: then one more may be in
//! flight. A longer one waited for others, and they for it: then one fewer may be, and the process
//! *owes* users the time that the read took. Before the next read it lets users go first: it waits
//! while they have requests on its disk, but no longer than it owes. So users come first, bursts of
//! them are served without a rebuild's reads in between (of which each costs a hard disk two seeks),
//! and a rebuild still gets half of a disk that is never free.
//!
//! *Below the minimum rate* a process does not give way, but reads in *batches*. A hard disk serves
//! the nearest request first, and a process's next always is the nearest: as long as there is one,
//! users elsewhere on the disk wait. Between two batches it is their turn, and a batch is long
//! enough to make the seeks there and back cheap.
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
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Buf, MILLISECOND, Nanos};
use weft_stripe::{Access, Owner, Place, Stripe, StripeId, Units, compute};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::maintenance::By;
use crate::maintenance::experiment::Executor;
use crate::rebuild_policy::RebuildPace;

/// The pool: memory for the units that are read and not yet written.
const POOL_BYTES: usize = 16 << 20;

/// Most reads of a process in flight while users are active, and while they are not. More beside
/// users makes reads of 4 KiB from a fast SSD wait longer than the rebuild gets shorter.
const DEPTH_BESIDE_USERS: usize = 4;
const DEPTH_ALONE: usize = 16;

/// Most that a process owes: users who never leave a disk idle do not stop it for longer.
const OWED_MAX: Nanos = 100 * MILLISECOND;

/// Shortest time between two looks whether users still have requests on the disk.
const LOOK: Nanos = MILLISECOND / 4;

/// A batch: on a hard disk some 20 ms of sequential access, then an access elsewhere of some 8 ms.
/// With a minimum that no disk reaches, half as much makes a rebuild under WebSearch take a quarter
/// longer, and twice as much makes users wait half as long again.
const BATCH_BYTES: usize = 5 << 18;

pub(super) struct DiskOriented {
    array: Rc<Inner>,
    users_first: bool,
    /// One per slot.
    processes: Vec<Process>,
}

/// What reads a disk.
struct Process {
    /// Whose turn it is to begin a read.
    turn: Semaphore,
    /// Kept back while no other read may begin.
    held: Cell<Option<Permit>>,
    /// Reads in flight.
    reading: Cell<usize>,
    /// How many there may be.
    depth: Cell<usize>,
    /// Reads begun of the present batch; 0 if there is none.
    batch: Cell<usize>,
    /// The shortest read so far.
    shortest: Cell<Nanos>,
    owed: Cell<Nanos>,
}

/// A read in flight.
struct Reading<'a> {
    process: &'a Process,
    begun: Nanos,
    /// Whether users were active, and whether they had requests on this disk.
    active: bool,
    met: bool,
}

impl Reading<'_> {
    /// Learns from a read that succeeded.
    fn learn(&self, now: Nanos) {
        let Process { depth, shortest, owed, .. } = self.process;
        let took = now - self.begun;
        shortest.set(shortest.get().min(took));
        if took > shortest.get() + shortest.get() / 2 {
            depth.set(depth.get().saturating_sub(1).max(1));
            owed.set((owed.get() + took).min(OWED_MAX));
        } else if self.met || !self.active {
            // Between two requests of active users, a fast read says nothing.
            depth.set((depth.get() + 1).min(DEPTH_ALONE));
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let Process { held, reading, batch, .. } = self.process;
        reading.set(reading.get() - 1);
        if reading.get() == 0 {
            batch.set(0);
        }
        // The next batch begins when all of this one has ended.
        if batch.get() == 0 {
            drop(held.take());
        }
    }
}

impl DiskOriented {
    pub fn new(pace: RebuildPace, array: Rc<Inner>) -> Self {
        let process = |_| Process {
            turn: Semaphore::new(1),
            held: Cell::new(None),
            reading: Cell::new(0),
            depth: Cell::new(1),
            batch: Cell::new(0),
            shortest: Cell::new(Nanos::MAX / 2),
            owed: Cell::new(0),
        };
        let processes = (0..array.members.len()).map(process).collect();
        Self { array, users_first: pace == RebuildPace::UsersFirst, processes }
    }

    /// Waits until the process of `slot` may begin a read; see the head of this file.
    async fn begin(&self, slot: SlotNo) -> Reading<'_> {
        let Self { array, users_first, .. } = self;
        let process = &self.processes[slot.0];
        let turn = process.turn.acquire(1).await;
        if *users_first {
            self.give_way(slot).await;
        }
        let (now, throttle) = (array.rt.now(), &array.jobs.throttle);
        let (active, met) = (throttle.users_are_active(now), self.has_users(slot));
        process.reading.set(process.reading.get() + 1);
        let more = if !users_first {
            false
        } else if throttle.is_late(now) {
            process.batch.set(process.batch.get() + 1);
            process.batch.get() * array.geometry().unit_len() < BATCH_BYTES
        } else {
            let most = if active { DEPTH_BESIDE_USERS } else { DEPTH_ALONE };
            process.reading.get() < process.depth.get().min(most)
        };
        process.held.set((!more).then_some(turn));
        Reading { process, begun: now, active, met }
    }

    /// Lets the users of a disk go first.
    async fn give_way(&self, slot: SlotNo) {
        let (rt, owed) = (&self.array.rt, &self.processes[slot.0].owed);
        let waits = |now| self.has_users(slot) && !self.array.jobs.throttle.is_late(now);
        if waits(rt.now()) {
            let owed = owed.take();
            let end = rt.now() + owed;
            while rt.now() < end && waits(rt.now()) {
                rt.sleep(LOOK.max(owed / 16)).await;
            }
        }
    }

    fn has_users(&self, slot: SlotNo) -> bool {
        self.array.members.in_flight(slot).get() > 0
    }

    /// Reads what `plan` asks for, each unit when its disk's process reaches it. `None` if a unit
    /// cannot be read.
    async fn read(&self, stripe: StripeId, plan: &Plan) -> Option<Units> {
        let array = &self.array;
        let len = array.geometry_of(stripe).unit_len();
        array.jobs.rebuild.counts.count_reads(plan.reads.len(), len);
        let reads = plan.reads.iter().map(|unit| async move {
            let Place { slot, offset } = array.place(stripe, unit, 0);
            let reading = self.begin(slot).await;
            let disk = array.disk(slot)?;
            let (result, buf) = disk.read(offset, Buf::new(len), Class::Maintenance).await;
            if result.is_ok() {
                reading.learn(array.rt.now());
            }
            // The cause is found and handled later, under the lock. The disk may also have left its
            // slot meanwhile, and be wiped for another use.
            result.ok().filter(|()| array.holds(slot, &disk)).map(|()| (unit, buf))
        });
        join_all(reads).await.into_iter().collect()
    }

    /// Reads without the lock, and uses the result if nothing changed meanwhile. Returns whether
    /// the stripe is rebuilt.
    async fn attempt(&self, stripe: StripeId) -> bool {
        let array = &self.array;
        let geometry = array.geometry_of(stripe);
        if array.run_max(geometry) < geometry.unit_len() {
            // Too much to be held whole.
            return false;
        }
        let Some(watch) = array.locks.watch(stripe) else { return false };
        let targets = array.targets(stripe);
        let Stripe { coding, lost, .. } = array.stripe(stripe);
        let wanted = array.stale_of(stripe, &targets);
        let Ok(plan) = coding.plan(stripe.number, lost, wanted, UnitSet::new()) else {
            return false;
        };
        let Some(have) = self.read(stripe, &plan).await else { return false };
        let (_lock, undisturbed) = watch.lock().await;
        if !undisturbed || array.stripe(stripe).lost != lost || array.stopped.get() {
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
        array.note_rebuilt(stripe, &targets, wanted.difference(&failed), By::Executor);
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
            let _lock = array.locks.exclusive(stripe).await;
            array.rebuild_whole(stripe, By::Executor).await
        })
    }
}
