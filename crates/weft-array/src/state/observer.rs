//! Who watches the requests of an array's users. Without an observer a request pays one look at an
//! empty cell.

use std::cell::RefCell;
use std::rc::Rc;

use weft_rt::Nanos;

/// A read or write of a user that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServedRequest {
    /// Whether it was a write.
    pub is_write: bool,
    /// Byte offset in the array.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// When it began.
    pub begun: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// Whether it succeeded.
    pub succeeded: bool,
}

/// What is told of each request when it has ended. It must not wait.
pub(crate) trait Observer {
    /// A request has ended.
    fn served(&self, request: ServedRequest);
}

/// The observer of an array, if it has one.
#[derive(Default)]
pub(crate) struct ObserverCell(RefCell<Option<Rc<dyn Observer>>>);

impl ObserverCell {
    /// Sets the observer; `None` ends its work.
    pub fn set(&self, observer: Option<Rc<dyn Observer>>) {
        *self.0.borrow_mut() = observer;
    }

    /// Whether there is one.
    pub fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Tells the observer of the request that `request` describes.
    #[inline]
    pub fn tell(&self, request: impl FnOnce() -> ServedRequest) {
        if !self.is_set() {
            return;
        }
        // It may use other arrays, but its cell is not borrowed meanwhile.
        let observer = self.0.borrow().clone();
        if let Some(observer) = observer {
            observer.served(request());
        }
    }
}
