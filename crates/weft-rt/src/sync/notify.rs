//! A notification that wakes all waiters.

use std::cell::RefCell;
use std::task::{Poll, Waker};

/// Wakes all waiters at each [`Notify::notify_all`]. A wait sees every ring that comes after
/// the call of [`Notify::wait`] (not after its first poll), so a condition checked between
/// the two cannot be missed.
#[derive(Debug, Default)]
pub struct Notify(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    rings: u64,
    wakers: Vec<Waker>,
}

impl Notify {
    /// Rings.
    pub fn notify_all(&self) {
        let wakers = {
            let mut state = self.0.borrow_mut();
            state.rings += 1;
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Completes at the next ring after this call.
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let rings = self.0.borrow().rings;
        std::future::poll_fn(move |cx| {
            let mut state = self.0.borrow_mut();
            if state.rings != rings {
                return Poll::Ready(());
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}
