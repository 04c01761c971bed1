//! Whether the array takes requests: it may be read-only, stopped, or broken.

use std::cell::{Cell, RefCell};

use weft_code::SlotSet;

use crate::error::ArrayError;

/// See the [module](self).
pub(crate) struct Service {
    read_only: Cell<bool>,
    stopped: Cell<bool>,
    /// The stop is complete: no superblock is written any more.
    closed: Cell<bool>,
    /// Why the array takes no more writes.
    broken: RefCell<Option<String>>,
    /// The slots whose loss broke it.
    broken_slots: Cell<SlotSet>,
    /// The same, by the order in which they failed.
    in_order: RefCell<Vec<SlotSet>>,
}

impl Service {
    /// That of an array that is being assembled: read-only.
    pub fn new() -> Self {
        Self {
            read_only: Cell::new(true),
            stopped: Cell::new(false),
            closed: Cell::new(false),
            broken: RefCell::default(),
            broken_slots: Cell::new(SlotSet::new()),
            in_order: RefCell::default(),
        }
    }

    /// Whether nothing on the members may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only.get()
    }

    /// Lets users write, or not.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.set(read_only);
    }

    /// Whether the array is being stopped, or has been: it takes no more requests.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// The array takes no more requests. Returns false if that was so before.
    pub fn stop(&self) -> bool {
        !self.stopped.replace(true)
    }

    /// Whether the stop is complete.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The stop is complete: no superblock may be written any more.
    pub fn close(&self) {
        self.closed.set(true);
    }

    /// Whether the array takes no more writes because of a failure.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }

    /// Why the array takes no more writes.
    pub fn cause(&self) -> Option<String> {
        self.broken.borrow().clone()
    }

    /// The array takes no more writes. Returns false if another cause came first, which stays.
    pub fn break_off(&self, cause: impl FnOnce() -> String) -> bool {
        let mut broken = self.broken.borrow_mut();
        if broken.is_some() {
            return false;
        }
        *broken = Some(cause());
        true
    }

    /// The slots whose loss broke the array.
    pub fn broken_slots(&self) -> SlotSet {
        self.broken_slots.get()
    }

    /// The loss of these slots breaks the array, too.
    pub fn note_broken_slots(&self, slots: SlotSet) {
        let before = self.broken_slots.get();
        self.in_order.borrow_mut().push(slots.difference(&before));
        self.broken_slots.set(before.union(&slots));
    }

    /// What `find` finds in the slots that failed last, or else in those before them.
    pub fn last_broken<T>(&self, find: impl FnMut(&SlotSet) -> Option<T>) -> Option<T> {
        self.in_order.borrow().iter().rev().find_map(find)
    }

    /// Fails if the array takes no writes.
    #[inline]
    pub fn check_writable(&self) -> Result<(), ArrayError> {
        let refuses = self.is_stopped() || self.is_read_only() || self.is_broken();
        if refuses { Err(self.why_not_writable()) } else { Ok(()) }
    }

    #[cold]
    fn why_not_writable(&self) -> ArrayError {
        match self.cause() {
            _ if self.is_stopped() => ArrayError::Stopped,
            Some(cause) if !self.is_read_only() => ArrayError::Broken { cause },
            _ => ArrayError::ReadOnly,
        }
    }

    /// Fails if the array is broken.
    #[inline]
    pub fn check_whole(&self) -> Result<(), ArrayError> {
        match &*self.broken.borrow() {
            Some(cause) => Err(ArrayError::Broken { cause: cause.clone() }),
            None => Ok(()),
        }
    }
}
