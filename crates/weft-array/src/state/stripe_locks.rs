//! Stripe locks: shared to reconstruct, exclusive to write.
//!
//! A healthy read takes no lock: it reads one unit, and the disk's own ordering rules apply. An
//! operation that combines several units (a degraded read, a write, rebuild, resync, scrub) must
//! see all of them from the same moment. Locks are fair, first come first served. A lock exists
//! only while it is held or awaited, so memory follows the number of requests in progress.
//!
//! A *watch* is for an operation that reads units of a stripe slowly, at low priority, and must not
//! block users during this. It takes the lock only at the end, and then learns whether the stripe
//! was locked for writing since the watch started.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::rc::Rc;

use weft_rt::rng::Fold;
use weft_rt::sync::{Permit, Semaphore};
use weft_stripe::StripeId;

/// Shared holders that a stripe may have at once; an exclusive holder takes all shares.
const SHARES: usize = 1 << 16;

/// The lock of one stripe.
#[derive(Debug)]
enum Lock {
    /// Held for writing, without waiters.
    Sole,
    /// Held or awaited in any other way.
    Queue(Semaphore),
}

#[derive(Debug, Default)]
pub(crate) struct StripeLocks {
    /// Never iterated.
    table: RefCell<HashMap<StripeId, Lock, BuildHasherDefault<Fold>>>,
    /// For each watched stripe, whether it was locked for writing.
    watched: RefCell<BTreeMap<StripeId, Rc<Cell<bool>>>>,
}

/// Notices exclusive locks of a stripe.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    locks: &'a StripeLocks,
    stripe: StripeId,
    disturbed: Rc<Cell<bool>>,
}

/// A held lock; released when dropped.
#[derive(Debug)]
pub(crate) struct StripeGuard<'a> {
    locks: &'a StripeLocks,
    stripe: StripeId,
    /// None if the lock is held for writing, and was free when it was taken.
    permit: Option<Permit>,
}

impl StripeLocks {
    pub async fn shared(&self, stripe: StripeId) -> StripeGuard<'_> {
        self.lock(stripe, 1).await
    }

    pub async fn exclusive(&self, stripe: StripeId) -> StripeGuard<'_> {
        self.disturb(stripe);
        self.lock(stripe, SHARES).await
    }

    /// Watches a stripe. `None` if its lock is held or awaited, or if it is watched already.
    pub fn watch(&self, stripe: StripeId) -> Option<Watch<'_>> {
        let mut watched = self.watched.borrow_mut();
        if self.is_busy(stripe) || watched.contains_key(&stripe) {
            return None;
        }
        let disturbed = Rc::new(Cell::new(false));
        watched.insert(stripe, disturbed.clone());
        Some(Watch { locks: self, stripe, disturbed })
    }

    /// Takes the exclusive lock if no lock of the stripe is held or awaited.
    pub fn try_exclusive(&self, stripe: StripeId) -> Option<StripeGuard<'_>> {
        let mut table = self.table.borrow_mut();
        let Entry::Vacant(place) = table.entry(stripe) else { return None };
        place.insert(Lock::Sole);
        self.disturb(stripe);
        Some(StripeGuard { locks: self, stripe, permit: None })
    }

    /// Notes that the lock is being taken for writing.
    fn disturb(&self, stripe: StripeId) {
        if let Some(disturbed) = self.watched.borrow().get(&stripe) {
            disturbed.set(true);
        }
    }

    /// Whether a lock of this stripe is held or awaited.
    pub fn is_busy(&self, stripe: StripeId) -> bool {
        self.table.borrow().contains_key(&stripe)
    }

    async fn lock(&self, stripe: StripeId, shares: usize) -> StripeGuard<'_> {
        // Taking the semaphore from the table and queueing on it happen in one poll, so an idle
        // semaphore is not removed in between.
        let semaphore = self.queue(stripe);
        let mut waiting = Waiting { locks: self, stripe, armed: true };
        let permit = semaphore.acquire(shares).await;
        waiting.armed = false;
        StripeGuard { locks: self, stripe, permit: Some(permit) }
    }

    /// The semaphore of a stripe. A sole holder's shares are out of it.
    fn queue(&self, stripe: StripeId) -> Semaphore {
        let mut table = self.table.borrow_mut();
        let lock = table.entry(stripe).or_insert_with(|| Lock::Queue(Semaphore::new(SHARES)));
        if matches!(lock, Lock::Sole) {
            *lock = Lock::Queue(Semaphore::all_taken(SHARES));
        }
        let Lock::Queue(semaphore) = lock else { unreachable!("it has just become one") };
        semaphore.clone()
    }

    fn remove_if_idle(&self, stripe: StripeId) {
        let mut table = self.table.borrow_mut();
        if let Some(Lock::Queue(semaphore)) = table.get(&stripe)
            && semaphore.is_idle()
        {
            table.remove(&stripe);
        }
    }

    /// Releases the lock of a holder that had no competitor when it took it. Returns whether it
    /// still was.
    fn release_sole(&self, stripe: StripeId) -> bool {
        let mut table = self.table.borrow_mut();
        if let Some(Lock::Queue(semaphore)) = table.remove(&stripe) {
            semaphore.give_back(SHARES);
            table.insert(stripe, Lock::Queue(semaphore));
            return false;
        }
        true
    }
}

impl<'a> Watch<'a> {
    /// Takes the exclusive lock. The result also tells whether no one else took it, or queued for
    /// it earlier, since the watch started.
    pub async fn lock(self) -> (StripeGuard<'a>, bool) {
        let (locks, stripe, disturbed) = (self.locks, self.stripe, self.disturbed.clone());
        // Earlier requests for the lock are known by now; later ones queue after this one.
        drop(self);
        let guard = locks.lock(stripe, SHARES).await;
        (guard, !disturbed.get())
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.locks.watched.borrow_mut().remove(&self.stripe);
    }
}

/// Cleans the table up if a waiter is dropped before it gets the lock.
struct Waiting<'a> {
    locks: &'a StripeLocks,
    stripe: StripeId,
    armed: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.locks.remove_if_idle(self.stripe);
        }
    }
}

impl Drop for StripeGuard<'_> {
    fn drop(&mut self) {
        match self.permit.take() {
            Some(permit) => drop(permit),
            None if self.locks.release_sole(self.stripe) => return,
            None => {}
        }
        self.locks.remove_if_idle(self.stripe);
    }
}
