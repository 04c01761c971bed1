//! A disk that answers within a time limit, or is severed.
//!
//! A disk can stop answering without failing: a controller that resets forever, a cable, a file
//! system that hangs, a host that accepts and never replies. A request that waits for it holds
//! stripe locks, log space and memory, so one such disk would stop the whole array. [`BoundedDisk`]
//! wraps a disk and severs it
//! * when a request has taken longer than the limit, or
//! * when its owner asks for it ([`Disk::sever`]): the array does when it excludes a member.
//!
//! From that moment every request in progress ends with an error, and every later one fails at
//! once. A severed disk stays severed; its owner must open it again.
//!
//! **What an abandoned request leaves.** Its future is dropped, which ends only the caller's wait:
//! the driver keeps the buffer until the kernel (or the server) has ended the request, which may be
//! much later, and a write may still be carried out then. So the memory of an abandoned request is
//! never reused early; a read gets another buffer back. No other program may write to such a disk
//! before those requests have ended: a file or block device stays claimed until then, because each
//! request holds the descriptor that holds the claim.
//!
//! **Cost.** The limit is divided into [`TICKS`] ticks. A request only increments the count of the
//! tick in which it starts, and decrements it when it ends. One timer per disk, which runs while
//! there are requests, advances the tick and checks the count that is now too old. Requests read no
//! clock and compare nothing. A request times out after the limit and before a further tick has
//! passed. Because ticks are counted, and not compared with a clock, a machine that was suspended,
//! or a process that was stopped, has lost one tick and not its disks.
//!
//! **Counts.** Every member goes through this layer, so requests are counted here as they end
//! ([`Counters`]): a few words are copied for each request, without a lock or an allocation.
//! Requests that the owner ended, and requests that fail at once because the disk is severed, do
//! not count.
//!
//! **Long requests.** Zeroing or discarding a whole disk is one call and may take minutes on a
//! working disk. Both are split into pieces of [`ZEROES_BYTES_MAX`], and the limit applies to each.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use weft_rt::sync::Semaphore;
use weft_rt::{Buf, Frozen, Nanos, Rt, SECOND};

use crate::given_up::{GivenUpDisk, UnlessGivenUp};
use crate::{
    Class, Counters, Disk, DiskError, DiskOp, DoneFuture, IoFuture, Layer, ReadFuture, WriteOpts,
};

/// How long a request may take, unless something else was asked for: as long as the kernel's
/// drivers wait for a SCSI or SATA disk.
pub const DISK_TIMEOUT: Nanos = 30 * SECOND;

/// Parts of the limit. A request times out at most one part late.
pub const TICKS: usize = 8;

/// Bytes zeroed or discarded by one request to the disk, at most.
pub const ZEROES_BYTES_MAX: u64 = 64 << 20;

/// Flushes with the disk at most. The queue counts all else: so what a hung disk keeps of the
/// driver's places, which other disks need, is bounded.
const FLUSHES_MAX: usize = 8;

/// A disk before which the time is watched.
pub struct BoundedDisk {
    disk: Rc<dyn Disk>,
    rt: Rt,
    limit: Nanos,
    watch: Rc<Watch>,
    counters: Counters,
    flushes: Semaphore,
}

impl fmt::Debug for BoundedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedDisk")
            .field("disk", &self.disk.info().name)
            .field("limit_ns", &self.limit)
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}

/// What is known of a disk's requests.
#[derive(Default)]
struct Watch {
    tick: Cell<usize>,
    /// Whether the timer runs.
    running: Cell<bool>,
    /// Whether a request started in this tick.
    begun: Cell<bool>,
    /// Requests in progress, by the tick in which they started. One more than the ticks of the
    /// limit, since a request may start at the end of its tick, and one for the tick that runs.
    began_in: [Cell<usize>; TICKS + 2],
    under_way: Cell<usize>,
    given_up: GivenUpDisk,
}

impl BoundedDisk {
    /// Gives `disk` up once a request takes longer than `limit`.
    pub fn new(rt: &Rt, disk: Rc<dyn Disk>, limit: Nanos) -> Self {
        let (watch, counters) = (Rc::default(), Counters::default());
        let flushes = Semaphore::new(FLUSHES_MAX);
        Self { disk, rt: rt.clone(), limit: limit.max(1), watch, counters, flushes }
    }

    /// Requests that a caller waits for.
    pub fn under_way(&self) -> usize {
        self.watch.under_way.get()
    }

    /// Fails if the disk is severed.
    fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        self.watch.given_up.check(&self.disk.info().name, op, offset, len)
    }

    /// Waits for a request to the disk; `None` if it is severed.
    fn bound<'a, T>(&'a self, request: IoFuture<'a, T>) -> Bound<'a, T> {
        let watch = &self.watch;
        watch.begun.set(true);
        if !watch.running.replace(true) {
            let tick = (self.limit / TICKS as u64).max(1);
            drop(self.rt.spawn(keep_time(self.rt.clone(), Rc::downgrade(watch), tick, self.limit)));
        }
        let began_in = watch.tick.get() % watch.began_in.len();
        watch.began_in[began_in].set(watch.began_in[began_in].get() + 1);
        watch.under_way.set(watch.under_way.get() + 1);
        self.counters.begin();
        let request = watch.given_up.unless(request);
        Bound { watch, counters: &self.counters, request, began_in }
    }

    async fn done<'a>(
        &'a self,
        op: DiskOp,
        offset: u64,
        len: u64,
        request: impl FnOnce() -> DoneFuture<'a>,
    ) -> Result<(), DiskError> {
        self.check(op, offset, len)?;
        let result = match self.bound(request()).await {
            Some(result) => result,
            None => self.check(op, offset, len),
        };
        self.count(op, len, &result);
        result
    }

    /// Counts a request that has ended, unless its owner has ended it.
    fn count(&self, op: DiskOp, len: u64, result: &Result<(), DiskError>) {
        if !self.watch.given_up.is_severed() {
            self.counters.ended(op, len, result.as_ref().copied());
        }
    }
}

fn seconds(limit: Nanos) -> String {
    if limit.is_multiple_of(SECOND) {
        format!("{} s", limit / SECOND)
    } else {
        format!("{} ms", limit / 1_000_000)
    }
}

/// Moves the tick on for as long as there are requests.
async fn keep_time(rt: Rt, watch: Weak<Watch>, tick: Nanos, limit: Nanos) {
    loop {
        rt.sleep(tick).await;
        let Some(watch) = watch.upgrade() else { return };
        if !watch.next_tick(limit) {
            watch.running.set(false);
            return;
        }
    }
}

impl Watch {
    /// Moves the tick on, and gives the disk up if a request is older than the limit. False if
    /// there is nothing to watch.
    fn next_tick(&self, limit: Nanos) -> bool {
        let tick = self.tick.get() + 1;
        self.tick.set(tick);
        // What started at the end of its tick is as old as the limit only now.
        let oldest = (tick + 1) % self.began_in.len();
        if self.began_in[oldest].get() > 0 {
            let text = format!("the disk gave no answer within {}", seconds(limit));
            self.given_up.time_out(text);
        }
        let begun = self.begun.replace(false);
        (begun || self.under_way.get() > 0) && !self.given_up.is_given_up()
    }
}

/// A request in progress; gives `None` if the disk is severed.
struct Bound<'a, T> {
    watch: &'a Watch,
    counters: &'a Counters,
    request: UnlessGivenUp<'a, T>,
    began_in: usize,
}

impl<T> Future for Bound<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.request).poll(cx)
    }
}

impl<T> Drop for Bound<'_, T> {
    fn drop(&mut self) {
        let count = &self.watch.began_in[self.began_in];
        count.set(count.get() - 1);
        self.watch.under_way.set(self.watch.under_way.get() - 1);
        self.counters.end();
    }
}

impl Layer for BoundedDisk {
    fn below(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let len = buf.len();
            if let Err(error) = self.check(DiskOp::Read, offset, len as u64) {
                return (Err(error), buf);
            }
            let (result, buf) = match self.bound(self.disk.read(offset, buf, class)).await {
                Some(done) => done,
                None => (self.check(DiskOp::Read, offset, len as u64), Buf::new(len)),
            };
            self.count(DiskOp::Read, len as u64, &result);
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.done(DiskOp::Write, offset, len, || self.disk.write(offset, data, opts)).await
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            let _turn = self.flushes.acquire(1).await;
            self.done(DiskOp::Flush, 0, 0, || self.disk.flush()).await
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            for (offset, len) in pieces(offset, len) {
                let zeroes = || self.disk.write_zeroes(offset, len, opts);
                self.done(DiskOp::WriteZeroes, offset, len, zeroes).await?;
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            for (offset, len) in pieces(offset, len) {
                let discard = || self.disk.discard(offset, len);
                self.done(DiskOp::Discard, offset, len, discard).await?;
            }
            Ok(())
        })
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.counters.clone())
    }

    fn sever(&self, why: &str) {
        self.watch.given_up.sever(why);
        self.disk.sever(why);
    }
}

/// The pieces of a range that are zeroed by one request each; at least one.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..len.max(1)).step_by(usize::try_from(ZEROES_BYTES_MAX).unwrap_or(usize::MAX));
    starts.map(move |start| (offset + start, ZEROES_BYTES_MAX.min(len - start)))
}
