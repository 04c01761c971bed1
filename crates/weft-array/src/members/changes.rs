//! Which changes of the metadata were made, and which of them are in effect on disk.
//!
//! Each change gets a number, in memory, at the moment it is made. A commit writes all that were
//! made before it began (`commit.rs`). Requests ask one question, on every write: is each change of
//! the *membership* in effect? It is a comparison of two numbers. Other changes (a spare is added,
//! the progress of a scrub) are waited for by those who made them, and by nobody else.

use std::cell::Cell;

use weft_rt::sync::Notify;

/// The changes of an array's metadata, by number.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    made: Cell<u64>,
    /// The newest change of the membership.
    membership: Cell<u64>,
    /// All changes up to this one are in effect.
    in_effect: Cell<u64>,
    /// Whether the task that commits them runs.
    committing: Cell<bool>,
    progress: Notify,
}

impl Changes {
    /// A change was made that requests do not rely on. Returns its number.
    pub fn note(&self) -> u64 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }

    /// The membership was changed.
    pub fn note_membership(&self) {
        self.membership.set(self.note());
    }

    /// The newest change.
    pub fn made(&self) -> u64 {
        self.made.get()
    }

    /// The newest change of the membership.
    pub fn membership(&self) -> u64 {
        self.membership.get()
    }

    /// Whether every change of the membership is in effect.
    pub fn is_settled(&self) -> bool {
        self.is_in_effect(self.membership.get())
    }

    /// Whether this change, and all before it, are in effect.
    pub fn is_in_effect(&self, change: u64) -> bool {
        self.in_effect.get() >= change
    }

    /// Changes up to `change` have come into effect.
    pub fn take_effect(&self, change: u64) {
        self.in_effect.set(change);
        self.progress.notify_all();
    }

    /// Returns when something has changed for those who wait: changes came into effect, or never
    /// will.
    pub fn progress(&self) -> impl Future<Output = ()> + '_ {
        self.progress.wait()
    }

    /// The array is broken: nothing comes into effect any more.
    pub fn give_up(&self) {
        self.progress.notify_all();
    }

    /// Whether the committing task is to be started; from now on it counts as running.
    pub fn begin_committing(&self) -> bool {
        !self.committing.replace(true)
    }

    /// The committing task ends.
    pub fn end_committing(&self) {
        self.committing.set(false);
    }
}
