//! The production driver: one io_uring of one thread.
//!
//! **Ownership.** The kernel writes into memory we gave it until the completion (CQE) of that
//! operation has been reaped, regardless of the future that waits for it. So an operation's
//! buffer, descriptor and addresses live in a *slot* of the driver, and a slot is
//! freed only after its completion. A dropped future detaches its slot: disk operations run on
//! unobserved, socket operations are cancelled (they could wait forever), and in both cases the
//! memory is released by the completion and not before. Dropping the ring itself cancels
//! everything and waits for the last completion.
//!
//! **Bounds.** There are three kinds of slots, with fixed numbers: for disk operations, which
//! always end, for socket operations, which wait for a peer, and for commands, which wait for
//! requests to a block device. So idle clients can never take the slots that disks need. An
//! operation that finds no free slot waits in line. The completion queue holds one entry for every
//! slot and its cancellation; if it overflows nevertheless, the kernel keeps the rest and the next
//! turn fetches it.
//!
//! **System calls.** Operations are only queued when they are polled; the executor's turn ends in
//! [`Driver::poll`] or [`Driver::park`], which submits the whole batch and reaps in one call.
//! The kernel sets a flag when completions wait for us, so a busy turn with nothing to
//! submit and nothing to reap makes no call at all.
//!
//! **Modes.** The ring asks for DEFER_TASKRUN, SINGLE_ISSUER, COOP_TASKRUN and SUBMIT_ALL (Linux
//! 6.1): completions are then handled only inside our own calls, without interrupting the thread.
//! If the kernel refuses, the ring tries the next [`Mode`], down to a plain ring (Linux 5.11, for
//! timeouts as an argument). [`Ring::mode`] returns the result.
//!
//! **Wakes from other threads** write to an eventfd that the ring reads. Many wakes
//! before the ring looks cost one write.
//!
//! **Registered buffers.** Small buffers come from an arena that every ring registers
//! ([`crate::Buf`]), so that the kernel need not find and pin their pages for each request; other
//! buffers are used directly.

mod bell;
mod disk_ops;
mod net_ops;
mod op;
mod setup;
mod ublk_ops;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use crate::arena::Arena;
use crate::sync::{Permit, Semaphore};
use crate::{Driver, Nanos, Rt, Schedule};
use bell::Bell;
use op::{Slab, Tag};

pub use disk_ops::{RWF_DSYNC, TRANSFER_BYTES_MAX};
pub use net_ops::Shutdown;
pub use setup::Mode;
pub use ublk_ops::{Fetched, OpenedUblk, UblkChannel};

/// Completions taken out of the queue between two borrows of it.
const REAP_BATCH: usize = 64;

/// The bounds of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// Operations on disks in flight at most; more wait in line.
    pub disk_ops_max: u32,
    /// Operations on sockets in flight at most; more wait in line. A connection uses up to two at a
    /// time (one receive, one send), a listener one: a server should take no more connections than
    /// that allows.
    pub socket_ops_max: u32,
    /// Commands of block devices in flight at most; more wait in line. A device uses one for each
    /// request that it can have in flight, all the time.
    pub command_ops_max: u32,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self { disk_ops_max: 1024, socket_ops_max: 1024, command_ops_max: 0 }
    }
}

/// A descriptor that operations in flight keep open; clones share it.
#[derive(Debug, Clone)]
pub struct Fd(Rc<OwnedFd>);

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Self(Rc::new(fd))
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Fd {
    /// Whether a clone of this handle, or a request in flight, keeps the file open too.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    fn raw(&self) -> types::Fd {
        types::Fd(self.0.as_raw_fd())
    }
}

/// Handle of the calling thread's ring; clones are handles of the same one.
#[derive(Clone)]
pub struct Ring(Rc<RingState>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("mode", &self.0.mode)
            .field("registered", &self.0.arena.is_some())
            .field("in_flight", &self.0.slab.borrow().in_flight())
            .finish_non_exhaustive()
    }
}

struct RingState {
    uring: RefCell<IoUring>,
    slab: RefCell<Slab>,
    disk_slots: Semaphore,
    socket_slots: Semaphore,
    command_slots: Semaphore,
    config: RingConfig,
    mode: Mode,
    /// The registered memory.
    arena: Option<&'static Arena>,
    bell: Arc<Bell>,
    /// Where the ring's read of the eventfd lands. Never read by us; heap memory that lives
    /// until the ring has been drained.
    bell_count: Box<Cell<u64>>,
    bell_armed: Cell<bool>,
    closing: Cell<bool>,
}

/// An executor for the calling thread and the ring that drives it.
///
/// # Errors
/// If the kernel has no io_uring for us (older than 5.11, or switched off by
/// `kernel.io_uring_disabled` or a container's policy), or resources are exhausted.
pub fn start(config: RingConfig) -> io::Result<(Rt, Ring)> {
    let slots = config.disk_ops_max.saturating_add(config.socket_ops_max);
    let slots = slots.saturating_add(config.command_ops_max);
    let (uring, mode) = setup::build(slots)?;
    let arena = setup::register_arena(&uring);
    let inner = Rc::new(RingState {
        arena,
        uring: RefCell::new(uring),
        slab: RefCell::new(Slab::new(slots)),
        disk_slots: Semaphore::new(config.disk_ops_max as usize),
        socket_slots: Semaphore::new(config.socket_ops_max as usize),
        command_slots: Semaphore::new(config.command_ops_max as usize),
        config,
        mode,
        bell: Arc::new(Bell::new()?),
        bell_count: Box::default(),
        bell_armed: Cell::new(false),
        closing: Cell::new(false),
    });
    let rt = Rt::new(inner.clone(), Schedule::Fifo);
    Ok((rt, Ring(inner)))
}

impl Ring {
    /// The bounds that it was started with.
    pub fn config(&self) -> RingConfig {
        self.0.config
    }

    /// What the kernel granted.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// Operations that the kernel has not completed, or whose result was not taken yet.
    pub fn in_flight(&self) -> usize {
        self.0.slab.borrow().in_flight()
    }

    async fn disk_slot(&self) -> Permit {
        match self.0.disk_slots.try_acquire(1) {
            Some(permit) => permit,
            None => self.0.disk_slots.acquire(1).await,
        }
    }

    /// Commands that can be added without waiting.
    pub fn commands_free(&self) -> usize {
        self.0.command_slots.available()
    }

    async fn command_slot(&self) -> Permit {
        match self.0.command_slots.try_acquire(1) {
            Some(permit) => permit,
            None => self.0.command_slots.acquire(1).await,
        }
    }

    async fn socket_slot(&self) -> Permit {
        match self.0.socket_slots.try_acquire(1) {
            Some(permit) => permit,
            None => self.0.socket_slots.acquire(1).await,
        }
    }
}

impl RingState {
    /// Whether `len` bytes from `ptr` lie in the registered memory.
    fn is_registered(&self, ptr: *const u8, len: usize) -> bool {
        self.arena.is_some_and(|arena| arena.holds(ptr, len))
    }

    /// Queues an entry; makes room by submitting if the queue is full.
    fn push(&self, entry: &squeue::Entry) {
        loop {
            let mut uring = self.uring.borrow_mut();
            // SAFETY: what the entry points to lives in a slot (or in `self`) until its
            // completion has been reaped; see Slab and Drop below.
            if unsafe { uring.submission().push(entry) }.is_ok() {
                return;
            }
            check(uring.submit());
        }
    }

    fn arm_bell(&self) {
        if self.closing.get() || self.bell_armed.replace(true) {
            return;
        }
        let target = self.bell_count.as_ptr().cast::<u8>();
        let fd = types::Fd(self.bell.as_raw_fd());
        self.push(&opcode::Read::new(fd, target, 8).build().user_data(Tag::Bell.encode()));
    }

    /// Takes what has completed and wakes its tasks. No borrow is held while a waker runs.
    fn reap(&self) {
        loop {
            let mut batch = [(0u64, 0i32); REAP_BATCH];
            let mut taken = 0;
            {
                let mut uring = self.uring.borrow_mut();
                let mut queue = uring.completion();
                for (place, entry) in batch.iter_mut().zip(&mut queue) {
                    *place = (entry.user_data(), entry.result());
                    taken += 1;
                }
            }
            for (user_data, result) in &batch[..taken] {
                self.complete(*user_data, *result);
            }
            if taken < REAP_BATCH {
                return;
            }
        }
    }

    fn complete(&self, user_data: u64, result: i32) {
        match Tag::decode(user_data) {
            Tag::Bell => {
                self.bell.answered();
                self.bell_armed.set(false);
                self.arm_bell();
            }
            // The cancelled operation itself tells how it ended.
            Tag::Cancel => {}
            Tag::Slot(index) => {
                // The borrow ends before anything is woken or dropped.
                let outcome = self.slab.borrow_mut().complete(index, result);
                match outcome {
                    op::Outcome::Wake(waker) => waker.wake(),
                    op::Outcome::Unobserved => {}
                    op::Outcome::Abandoned(held) => drop(held),
                }
            }
        }
    }
}

impl Driver for RingState {
    fn now(&self) -> Nanos {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // The monotonic clock is never negative.
        time.tv_sec.unsigned_abs() * crate::SECOND + time.tv_nsec.unsigned_abs()
    }

    fn poll(&self) {
        {
            let mut uring = self.uring.borrow_mut();
            let queue = uring.submission();
            // Without the flag the kernel delivers completions on its own at any time.
            let call = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
            drop(queue);
            if call {
                check(uring.submit());
            }
        }
        self.reap();
    }

    fn park(&self, deadline: Option<Nanos>) {
        self.arm_bell();
        let wait = deadline.map(|deadline| deadline.saturating_sub(self.now()));
        {
            let mut uring = self.uring.borrow_mut();
            let ready = !uring.completion().is_empty();
            match wait {
                _ if ready => check(uring.submit()),
                Some(0) => check(uring.submit()),
                None => check(uring.submit_and_wait(1)),
                Some(wait) => {
                    let nanos = u32::try_from(wait % crate::SECOND).unwrap_or(0);
                    let time = types::Timespec::new().sec(wait / crate::SECOND).nsec(nanos);
                    let args = types::SubmitArgs::new().timespec(&time);
                    check(uring.submitter().submit_with_args(1, &args));
                }
            }
        }
        self.reap();
    }

    fn doorbell(&self) -> Arc<dyn Fn() + Send + Sync> {
        let bell = self.bell.clone();
        Arc::new(move || bell.ring())
    }
}

impl Drop for RingState {
    /// Memory given to the kernel must not be freed before the kernel is done with it.
    fn drop(&mut self) {
        self.closing.set(true);
        self.bell.ring();
        let all = types::CancelBuilder::any();
        self.push(&opcode::AsyncCancel2::new(all).build().user_data(Tag::Cancel.encode()));
        self.slab.borrow_mut().detach_all();
        let awaited = |slab: &Slab| slab.in_flight() - slab.commands();
        while self.bell_armed.get() || awaited(&self.slab.borrow()) > 0 {
            check(self.uring.borrow_mut().submit_and_wait(1));
            self.reap();
        }
        // Commands end when the kernel closes the ring, which may be after this.
        self.slab.borrow_mut().leave_commands();
    }
}

/// Judges the result of an enter call.
///
/// # Panics
/// If the ring itself is broken: nothing could complete any more, and no caller could help.
fn check(result: io::Result<usize>) {
    const ETIME: i32 = libc::ETIME;
    if let Err(error) = result {
        match error.raw_os_error() {
            // A timeout, a signal, or the kernel short of memory or completion room for now: the
            // caller reaps, and entries not submitted stay queued for the next turn.
            Some(ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
            _ => panic!("the io_uring of this thread broke: {error}"),
        }
    }
}
