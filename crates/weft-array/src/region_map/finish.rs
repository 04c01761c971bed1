//! Finishing a region's rebuild: clearing its stale mark while users read and write.
//!
//! All stripes of the region are on the replacement, and requests use them there, but on disk the
//! region is still marked stale. As long as the mark is there, a crash makes the replacement's
//! units lost again; once it is cleared, a crash finds them present. So when the mark is cleared,
//! two conditions must hold. The replacement must durably hold the array's contents. And the
//! records of the region in the log must be right for a crash that finds the mark and for one that
//! does not.
//!
//! *The replacement's contents.* A stripe is noted as rebuilt after its units were written, and all
//! later writes go to the replacement, too. So a flush that starts after the last stripe was noted
//! makes all of them durable, provided that the disk has not changed since: each rebuild of a
//! region has a number, which is compared after the flush.
//!
//! *The log's records.* A record made while the mark is set counts the replacement's unit u as
//! lost: it includes u's **new** value (`log.rs`, "Lost units"). If a crash finds no mark, recovery
//! takes u as found, and the record is right only if u is the new value. A record made after the
//! mark is cleared treats u like any other unit, and may leave it out. If a crash then finds the
//! mark, u is lost, and nothing tells its value. So no write may be in progress in the region while
//! the mark is cleared, and all earlier writes must be durable. Users need not wait for a flush for
//! that:
//!
//! 1. *Durable writes.* From now on the region's stripes are written with FUA
//!    ([`RegionMap::is_finishing`]).
//! 2. Writes that started before step 1 end; then the members are flushed. Users continue to read
//!    and write during this, however long it takes. Afterwards every completed write of the region
//!    is durable: it was FUA, or the flush covered it. So u on disk is as new as in any record, and
//!    applying a record again gives the parity that is there.
//! 3. *The gate.* New writes to the region wait, and those in progress end. If they do not end soon
//!    (`patience`), the gate opens again and the region is finished later.
//! 4. In one poll, the mark is cleared in memory; from here on records may leave u out. The page is
//!    written, durably, and the gate opens.
//!
//! A crash before step 4 finds the mark, and only records that count u as lost. A crash during step
//! 4 finds it or not, and no write is in progress: everything is durable, and the records are right
//! in both cases. A crash after step 4 finds no mark, and records of either kind; the older ones
//! belong to durable writes. So writers wait for other writers and for one page write, as a write
//! that makes a region dirty does. Readers, degraded ones included, do not wait.
//!
//! Arrays without a log need only the flush of step 2: writes in progress at a crash are resynced,
//! whether the replacement's unit is present or not.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::select;
use weft_rt::sync::{Notify, Semaphore};

use super::{MapError, MapStore, RegionMap};
use crate::format::lane::Lane;
use crate::region_map::RegionNo;

/// The regions that are being finished.
#[derive(Debug)]
pub(super) struct Finishing {
    regions: RefCell<BTreeMap<RegionNo, State>>,
    /// One finishing runs at a time.
    turn: Semaphore,
    /// Number of the finishing: tells which writes started before it.
    count: Cell<u64>,
    /// Rings when a write has ended or a gate was opened.
    changed: Notify,
    /// The last number given to the rebuild of a region.
    numbers: Cell<u64>,
    /// Marks that are cleared in memory, and may still be on disk.
    clearing: RefCell<BTreeSet<(Lane, RegionNo)>>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// Writes in progress that started before the finishing.
    before: u32,
    /// Writes in progress that started since.
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
            clearing: RefCell::default(),
        }
    }
}

impl Finishing {
    /// Starts a write of a region if none is being finished: see [`Finishing::begin_write`].
    pub fn try_begin_write(&self) -> Option<u64> {
        self.regions.borrow().is_empty().then(|| self.count.get())
    }

    /// Starts a write of `region`, once the region's gate is open. Returns the number of the
    /// finishing in which it started, for [`Finishing::end_write`].
    pub async fn begin_write(&self, region: RegionNo) -> u64 {
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

    /// Ends a write.
    pub fn end_write(&self, region: RegionNo, began_in: u64) {
        {
            let mut regions = self.regions.borrow_mut();
            let Some(state) = regions.get_mut(&region) else { return };
            let began_before = began_in < self.count.get();
            let count = if began_before { &mut state.before } else { &mut state.since };
            *count -= 1;
        }
        self.changed.notify_all();
    }

    /// Watches the writes of these regions, each with the number of those in progress.
    fn watch(&self, regions: impl Iterator<Item = (RegionNo, u32)>) {
        self.count.set(self.count.get() + 1);
        let state = |before| State { before, since: 0, closed: false };
        self.regions.borrow_mut().extend(regions.map(|(region, before)| (region, state(before))));
    }

    /// A new number for the rebuild of a region.
    pub fn next_number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Waits until `holds` is true for every region.
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

/// Marks that are being cleared on disk, until dropped.
struct Clearing<'a>(&'a RefCell<BTreeSet<(Lane, RegionNo)>>);

impl<'a> Clearing<'a> {
    /// One finishing runs at a time.
    fn begin(
        all: &'a RefCell<BTreeSet<(Lane, RegionNo)>>,
        lane: Lane,
        regions: &[RegionNo],
    ) -> Self {
        all.borrow_mut().extend(regions.iter().map(|region| (lane, *region)));
        Self(all)
    }
}

impl Drop for Clearing<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().clear();
    }
}

impl RegionMap {
    /// Whether writes of this region must be durable when they complete.
    #[must_use]
    pub fn is_finishing(&self, region: RegionNo) -> bool {
        self.finishing.regions.borrow().contains_key(&region)
    }

    /// Finishes the rebuild of regions whose stripes are all rebuilt: flushes, then clears their
    /// marks; durable on return. Regions with a stale stripe keep their marks, and so do regions
    /// with writes in progress that do not end before `patience` does. `logged` tells whether
    /// writes are logged.
    ///
    /// # Errors
    /// If the members cannot be flushed or written.
    pub async fn finish_regions(
        &self,
        store: &dyn MapStore,
        lane: Lane,
        regions: &[RegionNo],
        logged: bool,
        patience: impl Future<Output = ()>,
    ) -> Result<(), MapError> {
        let finishing = &self.finishing;
        let _turn = finishing.turn.acquire(1).await;
        let number = |region: RegionNo| {
            let rebuilt = self.rebuilt.borrow();
            rebuilt.get(&(lane, region)).filter(|rebuilt| rebuilt.left == 0).map(|r| r.number)
        };
        let mut done: Vec<(RegionNo, u64)> =
            regions.iter().filter_map(|region| Some((*region, number(*region)?))).collect();
        let _gates = Gates(finishing);
        if logged {
            finishing.watch(done.iter().map(|(region, _)| (*region, self.entry(*region).writers)));
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
        // The lane may have ended since, or the region may have become stale and be rebuilt again.
        done.retain(|(region, was)| number(*region) == Some(*was));
        let done: Vec<RegionNo> = done.into_iter().map(|(region, _)| region).collect();
        for region in &done {
            self.change(*region, |entry| entry.lanes = entry.lanes.without(lane));
            self.rebuilt.borrow_mut().remove(&(lane, *region));
        }
        let _clearing = Clearing::begin(&finishing.clearing, lane, &done);
        self.persist_pages(store, Self::pages_of(&done)).await
    }

    /// Waits until no write of this region or a later one is in progress.
    pub async fn writes_ended(&self, first: RegionNo) {
        let finishing = &self.finishing;
        let _turn = finishing.turn.acquire(1).await;
        loop {
            let written = self.being_written(first);
            if written.is_empty() {
                return;
            }
            let _gates = Gates(finishing);
            finishing.watch(written.into_iter());
            finishing.wait(|state| state.before == 0).await;
        }
    }

    /// The regions from this one on with writes in progress, each with their number.
    fn being_written(&self, first: RegionNo) -> Vec<(RegionNo, u32)> {
        let entries = self.entries.borrow();
        let writers = entries.iter().map(|entry| entry.writers);
        let is_written = |(region, writers): &(RegionNo, u32)| *region >= first && *writers > 0;
        (0..).map(RegionNo).zip(writers).filter(is_written).collect()
    }

    /// Whether a crash may find the region marked stale in `lane`.
    #[must_use]
    pub fn is_stale_on_disk(&self, lane: Lane, region: RegionNo) -> bool {
        self.is_stale_region(lane, region)
            || self.finishing.clearing.borrow().contains(&(lane, region))
    }
}
