//! Whose batch is open: the store has one open transaction, and connections take turns.
//!
//! They wait in the order in which they came. Who has the turn keeps it until its batch ends, or
//! until its node has been silent for [`SILENCE`]. Time that the keeper itself takes does not
//! count: however long a batch is, it comes to its end as long as its parts do.

use std::cell::RefCell;

use weft_rt::Nanos;
use weft_rt::sync::{Permit, Semaphore};

use super::remote::SILENCE;

/// A node, and its connection.
pub(super) type Connected = (u16, u64);

struct Open {
    of: Connected,
    /// Since when its node has had nothing to wait for; none while the keeper works for it.
    silent_since: Option<Nanos>,
    _turn: Permit,
}

/// The batch that is open, and who waits to open one.
pub(super) struct Turns {
    line: Semaphore,
    open: RefCell<Option<Open>>,
}

/// The keeper works on a batch.
pub(super) struct Work<'a> {
    turns: &'a Turns,
    rt: weft_rt::Rt,
    of: Connected,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let mut open = self.turns.open.borrow_mut();
        if let Some(open) = open.as_mut().filter(|open| open.of == self.of) {
            open.silent_since = Some(self.rt.now());
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { line: Semaphore::new(1), open: RefCell::default() }
    }
}

impl Turns {
    /// Whether this connection has the turn.
    pub(super) fn is_of(&self, of: Connected) -> bool {
        self.open.borrow().as_ref().is_some_and(|open| open.of == of)
    }

    /// Waits in line for the turn.
    pub(super) fn line(&self) -> impl Future<Output = Permit> + use<> {
        self.line.acquire(1)
    }

    /// This connection has the turn now.
    pub(super) fn open(&self, of: Connected, turn: Permit, now: Nanos) {
        *self.open.borrow_mut() = Some(Open { of, silent_since: Some(now), _turn: turn });
    }

    /// The keeper works for this connection, until that is dropped.
    pub(super) fn work(&self, of: Connected, rt: &weft_rt::Rt) -> Work<'_> {
        if let Some(open) = self.open.borrow_mut().as_mut().filter(|open| open.of == of) {
            open.silent_since = None;
        }
        Work { turns: self, rt: rt.clone(), of }
    }

    /// The batch of this connection is not open any more.
    pub(super) fn end(&self, of: Connected) {
        let ended = {
            let mut open = self.open.borrow_mut();
            if open.as_ref().is_some_and(|open| open.of == of) { open.take() } else { None }
        };
        // The next in line is told when nothing is borrowed.
        drop(ended);
    }

    /// How long who waits may do so before it is time to look at [`Self::silent`].
    pub(super) fn patience(&self, now: Nanos) -> Nanos {
        let since = self.open.borrow().as_ref().and_then(|open| open.silent_since);
        since.map_or(SILENCE, |since| (since + SILENCE).saturating_sub(now).max(1))
    }

    /// The connection that has the turn, if its node was silent for too long.
    pub(super) fn silent(&self, now: Nanos) -> Option<Connected> {
        let open = self.open.borrow();
        let is_over = |since: Nanos| now >= since + SILENCE;
        open.as_ref().filter(|open| open.silent_since.is_some_and(is_over)).map(|open| open.of)
    }
}
