//! The addresses that a reshape is moving, the writes that wait for it, and the requests to turn it
//! back.
//!
//! Data is read from the old places and written to the new ones, and only then does a checkpoint
//! record the move. A write to the old place in the meantime would be missing in the new one; a
//! write to the new place would be lost in a crash. So writes to these addresses wait until the
//! checkpoint is in effect, and then go to the new place. A write that waits makes the reshape end
//! its window early. Reads do not wait: the old places stay as they are.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use weft_rt::sync::Notify;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct MovingRange {
    addresses: RefCell<Range<u64>>,
    /// A write waits. Rings when the first does, or when the reshape is to turn back.
    wanted: Cell<bool>,
    bell: Notify,
    /// The reshape is to turn back.
    turning: Cell<bool>,
    changed: Notify,
}

impl MovingRange {
    /// Whether writes to some of these addresses must wait.
    pub fn meets(&self, addresses: &Range<u64>) -> bool {
        let moving = self.addresses.borrow();
        addresses.start < moving.end && moving.start < addresses.end
    }

    /// From now on writes to these addresses wait.
    pub fn begin(&self, addresses: Range<u64>) {
        self.wanted.set(false);
        *self.addresses.borrow_mut() = addresses;
        self.changed.notify_all();
    }

    /// Writes to these addresses wait as well, which adjoin those before.
    pub fn extend(&self, addresses: &Range<u64>) {
        let moving = &mut *self.addresses.borrow_mut();
        *moving = match moving.is_empty() {
            true => addresses.clone(),
            false => moving.start.min(addresses.start)..moving.end.max(addresses.end),
        };
    }

    /// No write waits any more.
    pub fn end(&self) {
        self.begin(0..0);
    }

    /// Whether a write waits.
    pub fn is_wanted(&self) -> bool {
        self.wanted.get()
    }

    /// Completes when a write starts to wait, or the reshape is to turn back.
    pub fn wanted(&self) -> impl Future<Output = ()> + '_ {
        self.bell.wait()
    }

    /// Waits until these addresses are not being moved, or `gives_up`. It is asked again at each
    /// [`MovingRange::look_again`].
    pub async fn settled(&self, addresses: &Range<u64>, gives_up: impl Fn() -> bool) {
        loop {
            let changed = self.changed.wait();
            if !self.meets(addresses) || gives_up() {
                return;
            }
            if !self.wanted.replace(true) {
                self.bell.notify_all();
            }
            changed.await;
        }
    }

    /// Whether the reshape is to turn back.
    pub fn is_to_turn(&self) -> bool {
        self.turning.get()
    }

    /// Asks the reshape to turn back. Waits until it has, or has ended, or `gives_up`.
    pub async fn turned(&self, gives_up: impl Fn() -> bool) {
        self.turning.set(true);
        self.bell.notify_all();
        loop {
            let changed = self.changed.wait();
            if !self.is_to_turn() {
                return;
            }
            if gives_up() {
                return self.turning.set(false);
            }
            changed.await;
        }
    }

    /// The reshape has turned back, or has ended.
    pub fn end_turn(&self) {
        self.turning.set(false);
        self.changed.notify_all();
    }

    /// The array was stopped, or is broken: what waits looks again.
    pub fn look_again(&self) {
        self.changed.notify_all();
    }
}
