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

/// A domain; it fails once.
pub(crate) struct Domain {
    has_failed: Cell<bool>,
    failed: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Domain {
    pub fn new(failed: impl FnOnce() + 'static) -> Self {
        Self { has_failed: Cell::new(false), failed: RefCell::new(Some(Box::new(failed))) }
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

/// Calls `f`; `None` if it panicked. The panic hook was called by then.
pub(crate) fn contain<T>(f: impl FnOnce() -> T) -> Option<T> {
    // What `f` changed is not used after a panic: it is of a domain that fails with it.
    catch_unwind(AssertUnwindSafe(f)).ok()
}
