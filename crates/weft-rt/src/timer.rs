//! Timers: deadlines in order, each with the waker of the task that waits for it.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::Nanos;

/// Deadlines not yet passed. The second part of the key tells timers of one deadline apart and
/// keeps them in the order in which they were set, so that a run can be repeated exactly.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<(Nanos, u64), Waker>,
    next_id: u64,
}

impl Timers {
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.waiting.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Sets the timer `id`, or a new one, and returns its number.
    pub(crate) fn set(&mut self, deadline: Nanos, id: Option<u64>, waker: Waker) -> u64 {
        let id = id.unwrap_or_else(|| {
            self.next_id += 1;
            self.next_id
        });
        self.waiting.insert((deadline, id), waker);
        id
    }

    pub(crate) fn cancel(&mut self, deadline: Nanos, id: u64) {
        self.waiting.remove(&(deadline, id));
    }
}
