//! Fibers: synchronous code that waits for futures.
//!
//! A library that reads its file in the middle of a call cannot be told to come back later. Such
//! code runs as a *fiber*: on a stack of its own, as a future. Where it needs a future it calls
//! [`wait`], which polls it with the waker of the task that polls the fiber. While that is pending
//! the stack is left as it is, and the fiber is pending, too.
//!
//! ```text
//!   task      poll ──▶ resume ─┐            ┌─▶ Pending     poll ──▶ resume ─┐      ┌─▶ Ready
//!   fiber              closure ▼ ─▶ wait ─▶ suspend                          ▼ ─▶ … ─┘
//! ```
//!
//! A fiber that is dropped where it is suspended cannot just be forgotten: its stack has values
//! that own something, and may refer to what its owner is about to free. So it is *cancelled*: it
//! is resumed once more, and this and every later [`wait`] fails at once. The closure ends as it
//! does after any other error. Nothing is unwound.
//!
//! A fiber never leaves its thread. Stacks are used again, so a fiber that never waits costs two
//! switches and no allocation.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::ptr;
use std::task::{Context, Poll, Waker};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Bytes of a stack. Only its touched pages take memory.
const STACK_BYTES: usize = 1 << 20;
/// Stacks that are kept to be used again.
const STACKS_MAX: usize = 8;

/// What a fiber is resumed with: the waker of the poll, or null if it is cancelled.
type Resumed = *const Waker;

/// [`wait`] did not wait: the fiber was dropped, or there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled;

impl std::fmt::Display for Cancelled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the operation was dropped before it had ended")
    }
}

impl std::error::Error for Cancelled {}

/// What [`wait`] needs to know of the fiber that calls it. It lies on that fiber's stack.
struct Frame {
    yielder: *const Yielder<Resumed, ()>,
    resumed: Cell<Resumed>,
    /// The frame of the fiber that polls this one, if it is polled by one.
    outer: Cell<*const Frame>,
}

thread_local! {
    /// The fiber that runs now; null if none does.
    static RUNNING: Cell<*const Frame> = const { Cell::new(ptr::null()) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Runs a closure as a fiber.
///
/// # Panics
/// When polled, if the closure panics, or if there is no memory for its stack.
pub fn run<'a, T: 'a>(closure: impl FnOnce() -> T + 'a) -> Fiber<'a, T> {
    let stack = STACKS.try_with(|stacks| stacks.borrow_mut().pop()).ok().flatten();
    let stack =
        stack.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a stack"));
    let body = move |yielder: &Yielder<Resumed, ()>, resumed| {
        let (resumed, outer) = (Cell::new(resumed), Cell::new(ptr::null()));
        let frame = Frame { yielder, resumed, outer };
        let running = Running::enter(&frame);
        let result = closure();
        drop(running);
        result
    };
    // SAFETY: what the closure borrows lives for 'a, and so longer than the fiber. The fiber drives
    // the coroutine to its end before it is dropped. If the fiber is forgotten, the closure never
    // runs again.
    let coroutine = unsafe { Coroutine::with_stack_unchecked(stack, body) };
    Fiber { coroutine: Some(coroutine), borrowed: PhantomData }
}

/// The frame is that of the running fiber, until this is dropped.
struct Running<'a>(&'a Frame);

impl<'a> Running<'a> {
    fn enter(frame: &'a Frame) -> Self {
        frame.outer.set(RUNNING.replace(frame));
        Self(frame)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        RUNNING.set(self.0.outer.get());
    }
}

/// Waits for a future, from within a fiber. Other tasks run during this.
///
/// # Errors
/// If the fiber was dropped, or this is called outside of any fiber.
pub fn wait<F: Future>(future: F) -> Result<F::Output, Cancelled> {
    let frame = RUNNING.get();
    if frame.is_null() {
        return Err(Cancelled);
    }
    // SAFETY: the frame that RUNNING points to lies on the stack that is running, below this call:
    // code that leaves that stack has set RUNNING to another one.
    let frame = unsafe { &*frame };
    let mut future = pin!(future);
    loop {
        let waker = frame.resumed.get();
        if waker.is_null() {
            return Err(Cancelled);
        }
        // SAFETY: it is borrowed by the poll that resumed this stack, and that poll lasts until the
        // stack is suspended again.
        let waker = unsafe { &*waker };
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            return Ok(value);
        }
        RUNNING.set(frame.outer.get());
        // SAFETY: the yielder lives as long as the stack, and it is this stack's: see above.
        let resumed = unsafe { &*frame.yielder }.suspend(());
        frame.resumed.set(resumed);
        frame.outer.set(RUNNING.replace(frame));
    }
}

/// A closure that runs on a stack of its own: see [`run`].
pub struct Fiber<'a, T> {
    /// None once it has ended.
    coroutine: Option<Coroutine<Resumed, (), T, DefaultStack>>,
    borrowed: PhantomData<&'a mut ()>,
}

impl<T> std::fmt::Debug for Fiber<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fiber").field("has_ended", &self.coroutine.is_none()).finish()
    }
}

impl<T> Fiber<'_, T> {
    fn keep_stack(&mut self) {
        let Some(coroutine) = self.coroutine.take_if(|coroutine| coroutine.done()) else { return };
        let stack = coroutine.into_stack();
        let _ = STACKS.try_with(|stacks| {
            let mut stacks = stacks.borrow_mut();
            if stacks.len() < STACKS_MAX {
                stacks.push(stack);
            }
        });
    }
}

impl<T> Future for Fiber<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let coroutine = self.coroutine.as_mut().expect("a fiber is not polled after its end");
        match coroutine.resume(ptr::from_ref(cx.waker())) {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(value) => {
                self.keep_stack();
                Poll::Ready(value)
            }
        }
    }
}

impl<T> Drop for Fiber<'_, T> {
    fn drop(&mut self) {
        if let Some(coroutine) = self.coroutine.as_mut()
            && coroutine.started()
            && !coroutine.done()
        {
            let ended = coroutine.resume(ptr::null());
            assert!(matches!(ended, CoroutineResult::Return(_)), "a cancelled fiber does not wait");
        }
        self.keep_stack();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;
    use crate::sync::{Notify, Semaphore, oneshot};
    use crate::{SECOND, Schedule, virtual_rt};

    /// A future is polled once.
    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn stacks() -> usize {
        STACKS.with_borrow(Vec::len)
    }

    #[test]
    fn others_run_while_a_fiber_waits() {
        let rt = virtual_rt(Schedule::Fifo);
        let sum = rt.clone();
        let sum = rt.block_on(async move {
            let said = Rc::new(RefCell::new(Vec::new()));
            let (from_fiber, from_other) = (said.clone(), said.clone());
            let (clock, other_clock) = (sum.clone(), sum.clone());
            let other = sum.spawn(async move {
                other_clock.sleep(SECOND).await;
                from_other.borrow_mut().push("other");
            });
            // What it borrows and what lies on its stack is there when it goes on.
            let (mut total, numbers) = (0, [1, 2, 3]);
            run(|| {
                let own = [10, 20, 30];
                for (number, more) in numbers.iter().zip(&own) {
                    wait(clock.sleep(SECOND)).expect("not cancelled");
                    total += number + more;
                }
                from_fiber.borrow_mut().push("fiber");
            })
            .await;
            other.await;
            assert_eq!(*said.borrow(), ["other", "fiber"]);
            total
        });
        assert_eq!(sum, 66);
    }

    #[test]
    fn a_fiber_in_a_fiber_suspends_both_or_one() {
        let rt = virtual_rt(Schedule::Fifo);
        let clock = rt.clone();
        rt.block_on(async move {
            let slept = run(|| {
                let inner = wait(run(|| {
                    wait(clock.sleep(SECOND)).expect("not cancelled");
                    wait(clock.sleep(SECOND)).expect("not cancelled");
                    clock.now()
                }));
                wait(clock.sleep(SECOND)).expect("not cancelled");
                (inner.expect("not cancelled"), clock.now())
            });
            assert_eq!(slept.await, (2 * SECOND, 3 * SECOND));
        });
    }

    #[test]
    fn a_dropped_fiber_ends_with_errors_and_leaves_nothing() {
        let (permits, mark) = (Semaphore::new(1), Rc::new(()));
        let mut errors = Vec::new();
        let kept = mark.clone();
        {
            let mut fiber = Box::pin(run(|| {
                let _kept = kept;
                let _permit = wait(permits.acquire(1)).expect("it is free");
                errors.push(wait(Notify::default().wait()).err());
                errors.push(wait(std::future::ready(())).err());
            }));
            assert!(poll_once(fiber.as_mut()).is_pending());
            assert_eq!((permits.available(), Rc::strong_count(&mark)), (0, 2));
        }
        assert_eq!(errors, [Some(Cancelled), Some(Cancelled)]);
        assert_eq!((permits.available(), Rc::strong_count(&mark)), (1, 1));
        assert_eq!((stacks(), wait(std::future::ready(()))), (1, Err(Cancelled)));
    }

    #[test]
    fn a_fiber_that_never_began_drops_its_closure() {
        let mark = Rc::new(());
        let kept = mark.clone();
        drop(run(move || drop(kept)));
        assert_eq!(Rc::strong_count(&mark), 1);
    }

    #[test]
    fn a_panic_is_one_of_whoever_polls() {
        let mark = Rc::new(());
        let kept = mark.clone();
        let (sender, receiver) = oneshot::<()>();
        let mut fiber = Box::pin(run(move || {
            let _kept = kept;
            let _ = wait(receiver);
            panic!("in a fiber");
        }));
        assert!(poll_once(fiber.as_mut()).is_pending());
        sender.send(());
        let polled = catch_unwind(AssertUnwindSafe(|| poll_once(fiber.as_mut()).is_pending()));
        let payload = polled.expect_err("it panicked");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"in a fiber"));
        assert_eq!(Rc::strong_count(&mark), 1);
        drop(fiber);
        assert_eq!((stacks(), wait(std::future::ready(()))), (1, Err(Cancelled)));
    }

    #[test]
    fn stacks_are_used_again() {
        for n in 0..100 {
            let mut fiber = Box::pin(run(|| wait(std::future::ready(n)).expect("ready")));
            assert_eq!(poll_once(fiber.as_mut()), Poll::Ready(n));
            assert_eq!(stacks(), 1);
        }
        let fibers: Vec<_> = (0..2 * STACKS_MAX).map(|_| run(|| ())).collect();
        for mut fiber in fibers {
            assert!(poll_once(Pin::new(&mut fiber)).is_ready());
        }
        assert_eq!(stacks(), STACKS_MAX);
    }
}
