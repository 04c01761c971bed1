//! Slots: what an operation in flight owns, and who waits for it.
//!
//! ```text
//!            submit                 completion              future takes it
//!   free ────────────▶ waiting ────────────────▶ done ─────────────────────▶ free
//!                         │ future dropped         │ future dropped            ▲
//!                         ▼                        └───────────────────────────┤
//!                     detached ────────────────────────────────────────────────┘
//!                                   completion
//! ```
//! Only a completion takes a slot out of `waiting` and `detached`, so what it holds outlives the
//! kernel's use of it.

use std::future::Future;
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use io_uring::{opcode, squeue};

use super::{Fd, Ring};
use crate::sync::Permit;
use crate::{Buf, Frozen};

/// What a completion belongs to.
pub(super) enum Tag {
    Slot(u32),
    Cancel,
    Bell,
}

impl Tag {
    pub(super) fn encode(&self) -> u64 {
        match self {
            Self::Slot(index) => u64::from(*index),
            Self::Cancel => u64::MAX,
            Self::Bell => u64::MAX - 1,
        }
    }

    pub(super) fn decode(user_data: u64) -> Self {
        match u32::try_from(user_data) {
            Ok(index) => Self::Slot(index),
            Err(_) if user_data == u64::MAX => Self::Cancel,
            Err(_) => Self::Bell,
        }
    }
}

/// A message of several parts for `sendmsg`.
pub(super) struct Message {
    pub(super) parts: Vec<Frozen>,
    pub(super) iovecs: Vec<libc::iovec>,
    pub(super) header: libc::msghdr,
}

/// Memory that the kernel uses until the completion.
pub(super) enum Held {
    Nothing,
    Buf(Buf),
    Frozen(Frozen),
    /// Of a command that cannot be cancelled.
    Command(Buf),
    Message(Box<Message>),
    #[expect(dead_code, reason = "only kept alive for the kernel")]
    Address(Box<libc::sockaddr_storage>),
    /// The result is a new descriptor, to be closed if it is not taken.
    NewFd,
}

/// What a slot keeps alive.
pub(super) struct Owned {
    pub(super) held: Held,
    _fd: Option<Fd>,
    _permit: Permit,
}

enum State {
    Free,
    Waiting(Option<Waker>, Owned),
    Detached(Owned),
    Done(i32, Owned),
}

impl State {
    fn is_left_command(&self) -> bool {
        matches!(self, Self::Detached(Owned { held: Held::Command(_), .. }))
    }
}

/// What a completion leads to.
pub(super) enum Outcome {
    Wake(Waker),
    Unobserved,
    Abandoned(Abandoned),
}

/// The remains of an operation whose future was dropped.
pub(super) struct Abandoned {
    _owned: Owned,
    _new_fd: Option<OwnedFd>,
}

impl Abandoned {
    fn new(result: i32, owned: Owned) -> Self {
        let new_fd = (result >= 0 && matches!(owned.held, Held::NewFd)).then(|| {
            // SAFETY: the completion of an accept gave this new descriptor only to us.
            unsafe { OwnedFd::from_raw_fd(result) }
        });
        Self { _owned: owned, _new_fd: new_fd }
    }
}

pub(super) struct Slab {
    slots: Vec<State>,
    free: Vec<u32>,
}

impl Slab {
    pub(super) fn new(slots: u32) -> Self {
        Self { slots: (0..slots).map(|_| State::Free).collect(), free: (0..slots).rev().collect() }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, owned: Owned) -> u32 {
        let index = self.free.pop().expect("a permit stands for a free slot");
        self.slots[index as usize] = State::Waiting(None, owned);
        index
    }

    fn take(&mut self, index: u32) -> State {
        std::mem::replace(&mut self.slots[index as usize], State::Free)
    }

    pub(super) fn complete(&mut self, index: u32, result: i32) -> Outcome {
        match self.take(index) {
            State::Waiting(waker, owned) => {
                self.slots[index as usize] = State::Done(result, owned);
                waker.map_or(Outcome::Unobserved, Outcome::Wake)
            }
            State::Detached(owned) => {
                self.free.push(index);
                Outcome::Abandoned(Abandoned::new(result, owned))
            }
            State::Free | State::Done(..) => {
                unreachable!("slot {index} completed twice")
            }
        }
    }

    /// The future is gone. Returns the rest if the operation has completed.
    fn detach(&mut self, index: u32) -> Option<Abandoned> {
        match self.take(index) {
            State::Waiting(_, owned) | State::Detached(owned) => {
                self.slots[index as usize] = State::Detached(owned);
                None
            }
            State::Done(result, owned) => {
                self.free.push(index);
                Some(Abandoned::new(result, owned))
            }
            State::Free => None,
        }
    }

    /// Commands whose future is gone, and which the kernel has.
    pub(super) fn commands(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_left_command()).count()
    }

    /// Leaves their memory to the kernel for good.
    pub(super) fn leave_commands(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_left_command()) {
            if let State::Detached(owned) = std::mem::replace(slot, State::Free) {
                std::mem::forget(owned.held);
            }
        }
    }

    /// Every future is gone.
    pub(super) fn detach_all(&mut self) {
        for index in 0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX) {
            self.detach(index);
        }
    }
}

/// A submitted operation; gives its result and what it held.
pub(super) struct Op<'a> {
    ring: &'a Ring,
    index: u32,
    /// Whether it may wait forever and must be cancelled when its future is dropped.
    endless: bool,
    taken: bool,
}

impl Ring {
    /// Queues an operation. `build` gets the memory at the place where it stays.
    pub(super) fn start_op(
        &self,
        permit: Permit,
        fd: Option<&Fd>,
        held: Held,
        endless: bool,
        entry: squeue::Entry,
    ) -> Op<'_> {
        let owned = Owned { held, _fd: fd.cloned(), _permit: permit };
        let index = self.0.slab.borrow_mut().insert(owned);
        self.0.push(&entry.user_data(Tag::Slot(index).encode()));
        Op { ring: self, index, endless, taken: false }
    }
}

impl Future for Op<'_> {
    type Output = (i32, Held);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(i32, Held)> {
        let mut slab = self.ring.0.slab.borrow_mut();
        let slot = &mut slab.slots[self.index as usize];
        if let State::Waiting(waker, _) = slot {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let State::Done(result, owned) = slab.take(self.index) else {
            unreachable!("slot {} was freed under its future", self.index)
        };
        slab.free.push(self.index);
        drop(slab);
        self.taken = true;
        Poll::Ready((result, owned.held))
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let remains = self.ring.0.slab.borrow_mut().detach(self.index);
        if remains.is_none() && self.endless {
            // It cannot hit a later operation of the same slot: that one would come after this
            // entry in the submission queue.
            let target = Tag::Slot(self.index).encode();
            let cancel = opcode::AsyncCancel::new(target).build();
            self.ring.0.push(&cancel.user_data(Tag::Cancel.encode()));
        }
    }
}
