//! Stripe locks: shared for those who reconstruct, exclusive for those who write.
//!
//! A healthy read takes none: it reads one unit, and the disk's own rules apply. Whoever combines
//! several units (a degraded read, a write, rebuild, resync, scrub) must see them all of one
//! moment. Locks are fair, first come first served, and exist only while somebody holds or awaits
//! them, so memory follows the requests in flight.
//!
//! A *watch* is for whoever reads units of a stripe over a long time, at a low priority, and must
//! not keep users out meanwhile: it takes the lock only at the end, and learns then whether anybody
//! had it for writing since the watch began.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

use weft_rt::sync::{Permit, Semaphore};

/// Shared holders that a stripe can have at once; an exclusive one takes all.
const SHARES: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct StripeLocks {
    table: RefCell<BTreeMap<u64, Semaphore>>,
    /// For each watched stripe, whether it was disturbed.
    watched: RefCell<BTreeMap<u64, Rc<Cell<bool>>>>,
}

/// Notices exclusive locks of a stripe.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    locks: &'a StripeLocks,
    stripe: u64,
    disturbed: Rc<Cell<bool>>,
}

/// A held lock; given back when dropped.
#[derive(Debug)]
pub(crate) struct StripeGuard<'a> {
    locks: &'a StripeLocks,
    stripe: u64,
    permit: Option<Permit>,
}

impl StripeLocks {
    pub async fn shared(&self, stripe: u64) -> StripeGuard<'_> {
        self.lock(stripe, 1).await
    }

    pub async fn exclusive(&self, stripe: u64) -> StripeGuard<'_> {
        self.disturb(stripe);
        self.lock(stripe, SHARES).await
    }

    /// Watches a stripe; nothing if somebody holds or awaits its lock, or watches it.
    pub fn watch(&self, stripe: u64) -> Option<Watch<'_>> {
        let mut watched = self.watched.borrow_mut();
        if self.is_busy(stripe) || watched.contains_key(&stripe) {
            return None;
        }
        let disturbed = Rc::new(Cell::new(false));
        watched.insert(stripe, disturbed.clone());
        Some(Watch { locks: self, stripe, disturbed })
    }

    /// The exclusive lock, if nobody holds or awaits any.
    pub fn try_exclusive(&self, stripe: u64) -> Option<StripeGuard<'_>> {
        let mut table = self.table.borrow_mut();
        let Entry::Vacant(place) = table.entry(stripe) else { return None };
        let permit = place.insert(Semaphore::new(SHARES)).try_acquire(SHARES);
        self.disturb(stripe);
        Some(StripeGuard { locks: self, stripe, permit })
    }

    /// Somebody takes the lock for writing.
    fn disturb(&self, stripe: u64) {
        if let Some(disturbed) = self.watched.borrow().get(&stripe) {
            disturbed.set(true);
        }
    }

    /// Whether somebody holds or awaits a lock of this stripe.
    pub fn is_busy(&self, stripe: u64) -> bool {
        self.table.borrow().contains_key(&stripe)
    }

    async fn lock(&self, stripe: u64, shares: usize) -> StripeGuard<'_> {
        // Taking the semaphore from the table and standing in its line happen in one poll, so
        // that no idle semaphore is removed in between.
        let semaphore =
            self.table.borrow_mut().entry(stripe).or_insert_with(|| Semaphore::new(SHARES)).clone();
        let mut waiting = Waiting { locks: self, stripe, armed: true };
        let permit = semaphore.acquire(shares).await;
        waiting.armed = false;
        StripeGuard { locks: self, stripe, permit: Some(permit) }
    }

    fn remove_if_idle(&self, stripe: u64) {
        let mut table = self.table.borrow_mut();
        if table.get(&stripe).is_some_and(|semaphore| semaphore.is_idle(SHARES)) {
            table.remove(&stripe);
        }
    }
}

impl<'a> Watch<'a> {
    /// Takes the exclusive lock. Says whether nobody else had it, or came before for it, since the
    /// watch began.
    pub async fn lock(self) -> (StripeGuard<'a>, bool) {
        let (locks, stripe, disturbed) = (self.locks, self.stripe, self.disturbed.clone());
        // Whoever came before this is known by now, and whoever comes later waits behind it.
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

/// Tidies the table when a waiter gives up before it was served.
struct Waiting<'a> {
    locks: &'a StripeLocks,
    stripe: u64,
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
        self.permit = None;
        self.locks.remove_if_idle(self.stripe);
    }
}
