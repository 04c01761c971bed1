//! Domains of failure: tasks that fail together, so that others need not.
//!
//! A panic in a task says that what the task worked on is not what the program takes it for. That
//! state is shared with some tasks and not with others: an array's tasks share the array. So the
//! tasks of an array are a domain. When one of them panics, none of them may run on: all are dropped
//! where they stand, in the middle of what they did, as a crash of the whole program would leave
//! them. What they kept on disks is made for that. Requests that are with the kernel by then end
//! there, and keep their buffers until they have.
//!
//! What unwinds is caught at the poll of a task. The memory behind it stays sound (nothing is
//! freed twice, borrows end); its meaning is what nobody can trust, and nobody asks any more.

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

    /// Marks it as failed; what is to be called then, the first time.
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
