//! Which changes of the metadata were made, and which of them are in effect on disk.
//!
//! Each change gets a number, in memory, when it is made. A commit writes all changes that were
//! made before it started (`engine/membership.rs`). At the end of every write, one check decides
//! whether to wait: is each change of the *membership* in effect? It compares two numbers. For
//! other changes (a spare is added, a scrub makes progress) only the operation that made them
//! waits.

use std::cell::Cell;

use weft_rt::sync::Notify;

/// The changes of an array's metadata, by number.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    made: Cell<u64>,
    /// The newest change of membership.
    membership: Cell<u64>,
    /// All changes up to this one are in effect.
    in_effect: Cell<u64>,
    /// Whether the committing task is running.
    committing: Cell<bool>,
    progress: Notify,
}

impl Changes {
    /// Notes a change that requests do not rely on. Returns its number.
    pub(super) fn note(&self) -> u64 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }

    /// Notes a change of membership.
    pub(super) fn note_membership(&self) {
        self.membership.set(self.note());
    }

    /// The newest change.
    pub fn made(&self) -> u64 {
        self.made.get()
    }

    /// The newest change of membership.
    pub fn membership(&self) -> u64 {
        self.membership.get()
    }

    /// Whether every change of membership is in effect.
    pub fn is_settled(&self) -> bool {
        self.is_in_effect(self.membership.get())
    }

    /// Whether this change and all before it are in effect.
    pub fn is_in_effect(&self, change: u64) -> bool {
        self.in_effect.get() >= change
    }

    /// Changes up to `change` are now in effect.
    pub fn take_effect(&self, change: u64) {
        self.in_effect.set(change);
        self.progress.notify_all();
    }

    /// Completes when changes have taken effect, or never will.
    pub fn progress(&self) -> impl Future<Output = ()> + '_ {
        self.progress.wait()
    }

    /// The array is broken or stopped: no more changes take effect.
    pub fn give_up(&self) {
        self.progress.notify_all();
    }

    /// Whether the committing task must be started; it counts as running from now on.
    pub fn begin_committing(&self) -> bool {
        !self.committing.replace(true)
    }

    /// The committing task has ended.
    pub fn end_committing(&self) {
        self.committing.set(false);
        self.progress.notify_all();
    }

    /// Waits until the committing task is not running.
    pub async fn committed(&self) {
        loop {
            let progress = self.progress();
            if !self.committing.get() {
                return;
            }
            progress.await;
        }
    }
}
