//! Who may write a node's part of the leases on a shared disk: the connection that came last.
//!
//! A process reads its node's block, and then writes it. Had another process of the node written in
//! between, that would be lost. So a connection that comes for the same number ends those before
//! it, and begins when their writes have ended: what a connection has read stays as it is until it
//! writes, or it writes nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_rt::sync::Notify;

#[derive(Debug, Default, Clone, Copy)]
struct State {
    /// The last turn.
    last: u64,
    in_flight: u64,
}

/// The turns at one disk.
#[derive(Debug, Default)]
pub(super) struct LeaseTurns {
    by_number: RefCell<BTreeMap<u32, State>>,
    changed: Notify,
}

/// A connection's turn.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    turns: Rc<LeaseTurns>,
    number: u32,
    turn: u64,
}

/// A write in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Writing(Turn);

impl LeaseTurns {
    fn state<T>(&self, number: u32, with: impl FnOnce(&mut State) -> T) -> T {
        with(self.by_number.borrow_mut().entry(number).or_default())
    }

    /// Ends the turns before, and returns when none of their writes is in flight.
    pub(super) async fn take(self: &Rc<Self>, number: u32) -> Turn {
        let turn = self.state(number, |state| {
            state.last += 1;
            state.last
        });
        self.changed.notify_all();
        loop {
            let changed = self.changed.wait();
            if self.state(number, |state| state.in_flight == 0 || state.last > turn) {
                return Turn { turns: self.clone(), number, turn };
            }
            changed.await;
        }
    }
}

impl Turn {
    fn has_ended(&self) -> bool {
        self.turns.state(self.number, |state| state.last > self.turn)
    }

    /// A write, if the turn has not ended.
    pub(super) fn admit(&self) -> Option<Writing> {
        if self.has_ended() {
            return None;
        }
        self.turns.state(self.number, |state| state.in_flight += 1);
        Some(Writing(self.clone()))
    }

    /// Waits for the end of the turn.
    pub(super) async fn ended(&self) {
        loop {
            let changed = self.turns.changed.wait();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }
}

impl Writing {
    /// It is not known when it ends: no later turn begins.
    pub(super) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Turn { turns, number, .. } = &self.0;
        turns.state(*number, |state| state.in_flight -= 1);
        turns.changed.notify_all();
    }
}
