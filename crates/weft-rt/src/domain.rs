//! Failure domains: tasks that fail together, without affecting other tasks.
//!
//! A panic in a task means that its state is not what the program believes. The task shares that
//! state with only some tasks: an array's tasks share the array. So the tasks of an array form a
//! domain. When one of them panics, none of them may continue: all are dropped where they stand, as
//! a crash of the whole program would leave them. Their on-disk state is built to survive that.
//! Requests that the kernel has by then still complete, and keep their buffers until they have.
//!
//! The executor catches the unwinding at the poll of a task. The memory stays sound (nothing is
//! freed twice, borrows end), but its contents cannot be trusted, and no task uses them any more.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Nanos;
use crate::waker::TaskId;

/// How many of its own nanoseconds a clock shows in a thousand.
const TRUE_RATE: u64 = 1000;

/// A domain; it fails once.
pub(crate) struct Domain {
    has_failed: Cell<bool>,
    failed: RefCell<Option<Box<dyn FnOnce()>>>,
    /// Of a simulated machine: the rate of its clock.
    rate: u64,
    /// Whether it stands still.
    is_stopped: Cell<bool>,
    /// Tasks that were to run meanwhile.
    held: RefCell<Vec<TaskId>>,
}

impl Domain {
    pub fn new(failed: impl FnOnce() + 'static) -> Self {
        Self::with_rate(TRUE_RATE, failed)
    }

    pub fn with_rate(rate: u64, failed: impl FnOnce() + 'static) -> Self {
        assert!(rate > 0, "a clock does not stand still: see stop_domain");
        Self {
            has_failed: Cell::new(false),
            failed: RefCell::new(Some(Box::new(failed))),
            rate,
            is_stopped: Cell::new(false),
            held: RefCell::default(),
        }
    }

    /// What its clock shows at a time of the driver.
    pub fn shown(&self, time: Nanos) -> Nanos {
        if self.rate == TRUE_RATE { time } else { scaled(time, self.rate, TRUE_RATE) }
    }

    /// The first time of the driver at which its clock shows `time`.
    pub fn due(&self, time: Nanos) -> Nanos {
        if self.rate == TRUE_RATE { time } else { scaled(time, TRUE_RATE, self.rate) }
    }

    /// Whether a task must not run now; it is kept for later then.
    pub fn holds(&self, task: TaskId) -> bool {
        if self.is_stopped.get() {
            self.held.borrow_mut().push(task);
        }
        self.is_stopped.get()
    }

    pub fn stop(&self) {
        self.is_stopped.set(true);
    }

    /// It goes on: which tasks were to run.
    pub fn go_on(&self) -> Vec<TaskId> {
        self.is_stopped.set(false);
        self.held.take()
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Marks it as failed; returns the callbacks, the first time.
    pub fn fail(&self) -> Option<Box<dyn FnOnce()>> {
        self.has_failed.set(true);
        self.failed.borrow_mut().take()
    }
}

/// `time · of / per`, rounded up.
fn scaled(time: Nanos, of: u64, per: u64) -> Nanos {
    let scaled = (u128::from(time) * u128::from(of)).div_ceil(u128::from(per));
    Nanos::try_from(scaled).unwrap_or(Nanos::MAX)
}

/// Calls `f`; `None` if it panicked. The panic hook was called by then.
pub(crate) fn contain<T>(f: impl FnOnce() -> T) -> Option<T> {
    // What `f` changed is not used after a panic: it is of a domain that fails with it.
    catch_unwind(AssertUnwindSafe(f)).ok()
}
