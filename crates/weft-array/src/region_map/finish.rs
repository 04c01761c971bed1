//! The end of a region's rebuild: its stale mark is cleared, while users read and write.
//!
//! All stripes of the region are on the replacement, and requests use them there; on disk the
//! region is still marked stale. Until the mark is gone a crash makes the replacement's units lost
//! once more, and afterwards they count as there. So when the mark goes, *both* must be true: the
//! replacement holds what the array says, durably; and whatever the log holds of the region must be
//! right for a crash that finds the mark and for one that does not.
//!
//! *What the replacement holds.* A stripe is noted as rebuilt after its units were written, and all
//! later writes go to the replacement too. So a flush that begins after the last stripe was noted
//! makes all of them durable, provided that the disk is the same all along: each rebuild of a
//! region has a number, which is compared after the flush.
//!
//! *What the log holds.* A record that is made while the mark stands counts the replacement's unit
//! u as lost: it carries u's **new** value (`log.rs`, "Lost units"). If a crash finds no mark, u
//! is taken as it is found, and the record is right only if that is the new value. A record that is
//! made afterwards leaves u out like any other unit. If a crash does find the mark, u is lost, and
//! nothing says what it was. So no write may be under way in the region while the mark is being
//! cleared, and of those before it all must be durable. Neither needs users to wait for a flush:
//!
//! 1. *Durable writes.* From now on the region's stripes are written with FUA
//!    ([`RegionMap::is_finishing`]).
//! 2. The writes that began before 1 end, and then the members are flushed. Users go on reading and
//!    writing meanwhile, however long this takes. Afterwards every completed write of the region is
//!    durable: it was FUA, or the flush covered it. So u is found as new as any record says, and
//!    applying the record once more gives the parity that is there.
//! 3. *The gate.* New writes of the region wait, and those under way end. If they do not end soon
//!    (`patience`), the gate opens again and the region is finished some other time.
//! 4. In one turn the mark is cleared in memory: from here on records leave u out. The page is
//!    written, durably, and the gate opens.
//!
//! A crash before 4 finds the mark, and only records that count u as lost. A crash in 4 finds it or
//! not, and no write is under way: everything is durable, and the records agree with both. A crash
//! after 4 finds no mark, and records of either kind, of which the older ones are of durable
//! writes. So writers wait for other writers and for one write of a page, as whoever makes a
//! region dirty does; readers, degraded ones too, wait for nothing.
//!
//! Arrays without a log need step 2's flush only: what was being written is resynced, whether the
//! replacement's unit is there or not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use futures_util::future::select;
use weft_rt::sync::{Notify, Semaphore};

use super::{MapError, MapStore, RegionMap};

/// What is known of the regions that are being finished.
#[derive(Debug)]
pub(super) struct Finishing {
    regions: RefCell<BTreeMap<u64, State>>,
    /// Finishing is done once at a time.
    turn: Semaphore,
    /// Counts finishings: tells the writes that began before one.
    count: Cell<u64>,
    /// A write has ended, or a gate was opened.
    changed: Notify,
    /// Numbers given to rebuilds of regions.
    numbers: Cell<u64>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// Writes under way that began before.
    before: u32,
    /// Writes under way that began since.
    since: u32,
    closed: bool,
}

impl Default for Finishing {
    fn default() -> Self {
        Self {
            regions: RefCell::default(),
            turn: Semaphore::new(1),
            count: Cell::new(0),
            changed: Notify::default(),
            numbers: Cell::new(0),
        }
    }
}

impl Finishing {
    /// A write of `region` begins, once the region's gate is open. Gives the finishing it began
    /// in, for [`Finishing::end_write`].
    pub async fn begin_write(&self, region: u64) -> u64 {
        loop {
            let changed = self.changed.wait();
            match self.regions.borrow_mut().get_mut(&region) {
                Some(state) if state.closed => {}
                Some(state) => {
                    state.since += 1;
                    return self.count.get();
                }
                None => return self.count.get(),
            }
            changed.await;
        }
    }

    /// A write has ended.
    pub fn end_write(&self, region: u64, began_in: u64) {
        {
            let mut regions = self.regions.borrow_mut();
            let Some(state) = regions.get_mut(&region) else { return };
            let began_before = began_in < self.count.get();
            let count = if began_before { &mut state.before } else { &mut state.since };
            *count -= 1;
        }
        self.changed.notify_all();
    }

    /// A number that no rebuild of a region had before.
    pub fn next_number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Returns when `holds` is true of every region.
    async fn wait(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.wait();
            if self.regions.borrow().values().all(&holds) {
                return;
            }
            changed.await;
        }
    }
}

/// Opens the gates when dropped.
struct Gates<'a>(&'a Finishing);

impl Drop for Gates<'_> {
    fn drop(&mut self) {
        self.0.regions.borrow_mut().clear();
        self.0.changed.notify_all();
    }
}

impl RegionMap {
    /// Whether writes of this region are to be durable when they complete.
    #[must_use]
    pub fn is_finishing(&self, region: u64) -> bool {
        self.finishing.regions.borrow().contains_key(&region)
    }

    /// Ends the rebuild of regions whose stripes were all rebuilt: flushes, then clears their
    /// marks, durably on return. Regions of which a stripe is stale stay, and so do those with
    /// writes under way that do not end before `patience` does. `logged`: writes are logged.
    ///
    /// # Errors
    /// If the members cannot be flushed or written.
    pub async fn finish_regions(
        &self,
        store: &dyn MapStore,
        lane: u8,
        regions: &[u64],
        logged: bool,
        patience: impl Future<Output = ()>,
    ) -> Result<(), MapError> {
        let finishing = &self.finishing;
        let _turn = finishing.turn.acquire(1).await;
        let number = |region: u64| {
            let rebuilt = self.rebuilt.borrow();
            rebuilt.get(&(lane, region)).filter(|rebuilt| rebuilt.left == 0).map(|r| r.number)
        };
        let mut done: Vec<(u64, u64)> =
            regions.iter().filter_map(|region| Some((*region, number(*region)?))).collect();
        let _gates = Gates(finishing);
        if logged {
            finishing.count.set(finishing.count.get() + 1);
            for (region, _) in &done {
                let before = self.entry(*region).writers;
                let state = State { before, since: 0, closed: false };
                finishing.regions.borrow_mut().insert(*region, state);
            }
            finishing.wait(|state| state.before == 0).await;
        }
        store.flush_data().await?;
        if logged {
            finishing.regions.borrow_mut().values_mut().for_each(|state| state.closed = true);
            let quiet = std::pin::pin!(finishing.wait(|state| state.since == 0));
            select(quiet, std::pin::pin!(patience)).await;
            let regions = finishing.regions.borrow();
            done.retain(|(region, _)| regions.get(region).is_some_and(|state| state.since == 0));
        }
        // The lane may have ended meanwhile, or the region have become stale and be rebuilt anew.
        done.retain(|(region, was)| number(*region) == Some(*was));
        let done: Vec<u64> = done.into_iter().map(|(region, _)| region).collect();
        for region in &done {
            self.change(*region, |entry| entry.lanes &= !(1 << lane));
            self.rebuilt.borrow_mut().remove(&(lane, *region));
        }
        self.persist_pages(store, Self::pages_of(&done)).await
    }
}
