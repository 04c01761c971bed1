//! A fair counting semaphore: first come, first served, for any number of permits. A request for
//! more than all of them fails at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Counts permits; clones share the count.
#[derive(Debug, Clone)]
pub struct Semaphore(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    /// All permits, given out or not.
    total: usize,
    available: usize,
    next_id: u64,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    wanted: usize,
    waker: Waker,
}

impl State {
    /// Wakes the first in line if its request can now be met.
    fn wake_first(&self) {
        if let Some(first) = self.queue.front()
            && first.wanted <= self.available
        {
            first.waker.wake_by_ref();
        }
    }
}

impl Semaphore {
    /// A semaphore with `permits` to give.
    pub fn new(permits: usize) -> Self {
        Self::with(permits, permits)
    }

    /// A semaphore whose `permits` were all taken before it was made; [`Semaphore::give_back`]
    /// returns them.
    pub fn all_taken(permits: usize) -> Self {
        Self::with(permits, 0)
    }

    fn with(total: usize, available: usize) -> Self {
        let queue = VecDeque::new();
        Self(Rc::new(RefCell::new(State { total, available, next_id: 0, queue })))
    }

    /// Waits for `wanted` permits; they come back when the [`Permit`] is dropped.
    ///
    /// # Panics
    /// If the semaphore has fewer in all: the wait would never end, and all later requests would
    /// wait in line after it. A request whose size comes from outside is limited before.
    pub fn acquire(&self, wanted: usize) -> Acquire {
        let total = self.0.borrow().total;
        assert!(wanted <= total, "{wanted} permits wanted of {total} in all");
        Acquire { semaphore: self.clone(), wanted, id: None }
    }

    /// Takes `wanted` permits if they are free and the line is empty.
    pub fn try_acquire(&self, wanted: usize) -> Option<Permit> {
        let mut state = self.0.borrow_mut();
        if !state.queue.is_empty() || state.available < wanted {
            return None;
        }
        state.available -= wanted;
        drop(state);
        Some(Permit { semaphore: self.clone(), count: wanted })
    }

    /// Permits not given out.
    pub fn available(&self) -> usize {
        self.0.borrow().available
    }

    /// Whether all permits are free and the line is empty.
    pub fn is_idle(&self) -> bool {
        let state = self.0.borrow();
        state.available == state.total && state.queue.is_empty()
    }

    /// Whether anyone waits in line.
    pub fn is_wanted(&self) -> bool {
        !self.0.borrow().queue.is_empty()
    }

    /// Returns `permits` that were taken without a [`Permit`]: see [`Semaphore::all_taken`].
    ///
    /// # Panics
    /// If fewer are taken.
    pub fn give_back(&self, permits: usize) {
        let mut state = self.0.borrow_mut();
        state.available += permits;
        assert!(state.available <= state.total, "{permits} permits that were not taken");
        state.wake_first();
    }
}

/// Future of [`Semaphore::acquire`].
#[derive(Debug)]
pub struct Acquire {
    semaphore: Semaphore,
    wanted: usize,
    id: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        if self.id.is_none()
            && let Some(permit) = self.semaphore.try_acquire(self.wanted)
        {
            return Poll::Ready(permit);
        }
        let semaphore = self.semaphore.clone();
        let mut state = semaphore.0.borrow_mut();
        let first = state.queue.front().is_some_and(|waiter| Some(waiter.id) == self.id);
        if first && state.available >= self.wanted {
            state.available -= self.wanted;
            state.queue.pop_front();
            self.id = None;
            state.wake_first();
            drop(state);
            return Poll::Ready(Permit { semaphore, count: self.wanted });
        }
        match self.id {
            Some(id) => {
                if let Some(waiter) = state.queue.iter_mut().find(|waiter| waiter.id == id) {
                    waiter.waker.clone_from(cx.waker());
                }
            }
            None => {
                let id = state.next_id;
                state.next_id += 1;
                let (wanted, waker) = (self.wanted, cx.waker().clone());
                state.queue.push_back(Waiter { id, wanted, waker });
                self.id = Some(id);
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut state = self.semaphore.0.borrow_mut();
            state.queue.retain(|waiter| waiter.id != id);
            state.wake_first();
        }
    }
}

/// Permits held; dropping gives them back.
#[derive(Debug)]
pub struct Permit {
    semaphore: Semaphore,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.semaphore.0.borrow_mut();
        state.available += self.count;
        state.wake_first();
    }
}
