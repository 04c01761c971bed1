//! The region map: what the array knows about each of its regions.
//!
//! A region is a range of array addresses, and has the stripes that start there (`regions.rs`). On
//! disk it has two bytes, one of flags and one of lanes:
//!
//! | bit | means |
//! |---|---|
//! | `WRITTEN` | it was written; an unwritten region reads as zeros without I/O |
//! | `DIRTY` | a write may be in progress: after a crash data and parity may not match |
//! | `NEEDS_RESYNC` | it was dirty at a crash: parity must be recomputed |
//! | lane i | stale on the slot that is being rebuilt in lane i: must be rebuilt |
//!
//! **Order.** `begin_write` returns when `WRITTEN` and `DIRTY` are durable on every member; only
//! then may data be written. A change that means less work – clearing `DIRTY`, `NEEDS_RESYNC` or a
//! lane, making a region unwritten – is made only after a flush of the data that justifies it. So
//! after a crash the map may ask for more work than necessary, never for less.
//!
//! **Pages.** The map is stored in 4 KiB pages of 2016 regions. Each page has two places on each
//! member, and its sequence number selects one of them, so a torn write leaves the previous page. A
//! page has one write in progress at a time. Flags set during a write go with the next one, so a
//! burst of first writes costs two page writes, not one each (group commit). A failed write is
//! followed by sequence number + 2, in the same place: the last durable page is never overwritten,
//! and pages with the same number never differ.
//!
//! **After a crash** members may hold different newest pages. The newest of all is used. Since it
//! may be on one member only, it counts as not durable until it has been written, unchanged, to all
//! members; that happens before the first use of the page's bits. A page that is intact on no
//! member is replaced by the most conservative one: all regions written, to be resynced, and stale
//! in every lane.
//!
//! **Cleaning.** A region stays dirty for a while after its last write, so a busy region costs no
//! page writes. The owner of the clock calls [`RegionMap::clean_idle`] periodically; it flushes the
//! members and cleans the regions without a write since the previous call. At most `dirty_max`
//! regions are dirty; a write that needs one more first cleans the longest idle ones. Only regions
//! with writes in flight at the same time may exceed that bound.
//!
//! **Rebuild.** A replacement gets a lane, whose bit is set in every written region. Which stripes
//! of a partly rebuilt region are done is kept in memory only; after a crash the region is rebuilt
//! from its start. Unwritten regions need no rebuild.
//!
//! **Absence.** A member that leaves gets a lane too, if one is free. Its bit is set in every
//! region that was written, or may have been, since the last flush of that member (`absence.rs`).
//! If the member comes back, only these regions are rebuilt.
//!
//! **Memory**: 8 bytes per region, plus one bit per stripe in partly rebuilt regions (at most
//! [`PARTIAL_BYTES_MAX`]), plus a few words per page. A 10 TB array with the default of at most 131
//! 072 regions needs 1 MiB.
//!
//! Futures of this module must be polled to completion. If one is dropped while it writes a page,
//! it is unknown when that write will reach the disk, so the page takes no further writes
//! ([`MapError::Abandoned`]). Dropping the whole map is like a crash, and safe.

mod absence;
mod clean;
mod commit;
mod finish;
mod lanes;
mod load;
mod page;
mod regions;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;

use weft_disk::DiskError;
use weft_rt::Frozen;
use weft_rt::sync::{Notify, Semaphore};
use weft_stripe::Generation;

use crate::format::lane::{Lane, LaneSet};
use crate::format::uuid::Id;
use commit::Page;
use finish::Finishing;
use lanes::Rebuilt;
pub use lanes::{PARTIAL_BYTES_MAX, PARTIAL_REGIONS_MIN};
pub use load::LoadReport;
pub(crate) use page::PAGE_BYTES;
pub use page::{REGIONS_MAX, area_bytes};
pub use regions::{LiveStripes, Part, RegionNo, Regions};

const WRITTEN: u8 = 1;
const DIRTY: u8 = 2;
const NEEDS_RESYNC: u8 = 4;
/// While one of these is set the region's bytes may change.
const UNSETTLED: u8 = DIRTY | NEEDS_RESYNC;
/// The flags stored on disk.
const ON_DISK: u8 = WRITTEN | DIRTY | NEEDS_RESYNC;
/// In memory only: a resync was requested after the present one had started.
const RESYNC_AGAIN: u8 = 0x20;
/// In memory only: is to become unwritten unless a write starts first.
const UNWRITING: u8 = 0x10;
/// In memory only: had a write since the last check.
const TOUCHED: u8 = 0x40;
/// In memory only: has flags that are not durable yet.
const PENDING: u8 = 0x80;

/// A page could not be made durable, or the data not be flushed: more members failed than the array
/// survives, or the array is stopped.
#[derive(Debug, thiserror::Error)]
pub enum MapStoreError {
    /// A disk failed, and the array does not survive that.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The engine takes no more writes.
    #[error("{0}")]
    Refused(String),
}

/// An operation of the map failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The members could not be written.
    #[error(transparent)]
    Store(#[from] MapStoreError),
    /// A page write was dropped before it ended.
    #[error("a write of region map page {page} was dropped; assemble the array again")]
    Abandoned {
        /// The page.
        page: usize,
    },
}

/// Future of a [`MapStore`] operation.
pub type StoreFuture<'a> = Pin<Box<dyn Future<Output = Result<(), MapStoreError>> + 'a>>;

/// The storage below the map: all live members together.
pub trait MapStore {
    /// Writes a page at this byte offset of every live member (active, rebuilding), durably (FUA).
    /// If a member fails, it must be excluded, durably, before this succeeds without it.
    fn write_page(&self, offset: u64, page: Frozen) -> StoreFuture<'_>;
    /// Makes every data write that completed before this call durable, on every live member.
    fn flush_data(&self) -> StoreFuture<'_>;
    /// Makes an unwritten region read as zeros on every live member, parity included, durably;
    /// nothing needs to be done if they are known to read as zeros wherever regions are unwritten.
    /// Called once before the first write to each region.
    fn zero_region(&self, region: RegionNo) -> StoreFuture<'_>;
}

/// The shape of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapConfig {
    /// The array.
    pub array_id: Id,
    /// Where the map starts on each member, in bytes.
    pub area_offset: u64,
    /// The regions; their number may change.
    pub regions: Regions,
    /// Regions that the map has pages for, if these are more.
    pub room: u64,
    /// Whether dirty regions are kept (all policies but `none`).
    pub track_dirty: bool,
    /// Most dirty regions (apart from those with writes in flight).
    pub dirty_max: usize,
}

/// The state of a region in memory.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    flags: u8,
    lanes: LaneSet,
    /// Writes in flight.
    writers: u32,
}

impl Entry {
    fn has(self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    fn set_lanes(&mut self, lanes: LaneSet) {
        self.lanes = self.lanes.union(lanes);
    }
}

/// The map of one array. Its methods take `&self`: it is shared by the tasks of one thread.
#[derive(Debug)]
pub struct RegionMap {
    config: MapConfig,
    live: Cell<LiveStripes>,
    entries: RefCell<Vec<Entry>>,
    pages: RefCell<Vec<Page>>,
    /// Dirty regions, each once, in the order in which they became dirty.
    dirty: RefCell<VecDeque<RegionNo>>,
    written: Cell<u64>,
    /// Held while regions are checked, flushed and then cleared.
    cleaner: Semaphore,
    /// Writes that have a permit for one more dirty region and have not used it yet.
    reserved: Cell<usize>,
    /// Regions that are being zeroed for their first write, each with the lanes started since then:
    /// the replacements of those lanes were not zeroed.
    zeroing: RefCell<BTreeMap<RegionNo, LaneSet>>,
    zeroed: Notify,
    /// Rings when a write has marked its region, or has failed to.
    marked: Notify,
    /// Lanes whose bit is set in regions at their first write.
    joining: Cell<LaneSet>,
    /// Lanes of absent members: their bit is set together with DIRTY and NEEDS_RESYNC.
    absent: Cell<LaneSet>,
    rebuilt: RefCell<BTreeMap<(Lane, RegionNo), Rebuilt>>,
    /// The regions whose stale marks are being cleared.
    finishing: Finishing,
}

/// A write in flight; it ends when this is dropped.
#[derive(Debug)]
pub struct WriteGuard<'a> {
    map: &'a RegionMap,
    index: usize,
    /// See [`Finishing::begin_write`].
    began_in: u64,
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        {
            let entry = &mut self.map.entries.borrow_mut()[self.index];
            entry.writers -= 1;
            entry.flags |= TOUCHED;
        }
        self.map.finishing.end_write(RegionNo(self.index as u64), self.began_in);
    }
}

/// Rings when dropped, however that comes about.
struct Rings<'a>(&'a Notify);

impl Drop for Rings<'_> {
    fn drop(&mut self) {
        self.0.notify_all();
    }
}

fn to_index(region: RegionNo) -> usize {
    usize::try_from(region.0).expect("regions are bounded by REGIONS_MAX")
}

impl RegionMap {
    /// The map of a new array, with all regions unwritten.
    ///
    /// # Panics
    /// If the array has more than [`REGIONS_MAX`] regions.
    #[must_use]
    pub fn new(config: MapConfig) -> Self {
        let count = config.regions.count().max(config.room);
        assert!(count <= REGIONS_MAX, "{count} regions");
        let pages = (0..page::count(count)).map(|_| Page::default()).collect();
        Self {
            live: Cell::new(LiveStripes {
                newest: Part::all(Generation::default(), config.regions),
                former: None,
            }),
            config,
            entries: RefCell::new(vec![Entry::default(); to_index(RegionNo(count))]),
            pages: RefCell::new(pages),
            dirty: RefCell::default(),
            written: Cell::new(0),
            cleaner: Semaphore::new(1),
            reserved: Cell::new(0),
            zeroing: RefCell::default(),
            zeroed: Notify::default(),
            marked: Notify::default(),
            joining: Cell::default(),
            absent: Cell::default(),
            rebuilt: RefCell::default(),
            finishing: Finishing::default(),
        }
    }

    /// The configuration it was made with.
    #[must_use]
    pub fn config(&self) -> &MapConfig {
        &self.config
    }

    /// The stripes that hold the array's addresses.
    #[must_use]
    pub fn live(&self) -> LiveStripes {
        self.live.get()
    }

    /// All regions.
    pub fn all(&self) -> impl Iterator<Item = RegionNo> + use<> {
        (0..self.live.get().region_count()).map(RegionNo)
    }

    fn entry(&self, region: RegionNo) -> Entry {
        self.entries.borrow()[to_index(region)]
    }

    /// From now on these stripes hold the array's addresses. There must be room for their regions.
    /// Regions that are partly rebuilt are stale again: their stripes are noted by their places
    /// among the live ones.
    pub fn set_live(&self, live: LiveStripes) {
        if self.live.replace(live) != live {
            self.rebuilt.borrow_mut().clear();
        }
    }

    /// The pages that [`RegionMap::make_room`] will add for `regions` regions.
    #[must_use]
    pub fn pages_to_add(&self, regions: u64) -> std::ops::Range<usize> {
        let (before, count) = (self.pages.borrow().len(), to_index(RegionNo(page::count(regions))));
        before..count.max(before)
    }

    /// Makes room for this number of regions. New ones are unwritten, and their pages are durable
    /// on return. Where members hold a new page already, from a change that did not take effect,
    /// its numbers go on from the one in `found`: pages with the same number never differ.
    ///
    /// # Errors
    /// If the members cannot be written.
    ///
    /// # Panics
    /// If there are more than [`REGIONS_MAX`].
    pub async fn make_room(
        &self,
        store: &dyn MapStore,
        regions: u64,
        found: &BTreeMap<usize, u64>,
    ) -> Result<(), MapError> {
        assert!(regions <= REGIONS_MAX, "{regions} regions");
        let (before, count) = (self.entries.borrow().len(), to_index(RegionNo(regions)));
        if count <= before {
            return Ok(());
        }
        self.entries.borrow_mut().resize(count, Entry::default());
        let pages = page::of(before - 1)..page::of(count - 1) + 1;
        self.pages.borrow_mut().resize_with(pages.end, Page::default);
        for (page, seq) in found {
            if let Some(page) = self.pages.borrow_mut().get_mut(*page) {
                page.seq = page.seq.max(*seq);
            }
        }
        self.pages.borrow_mut()[pages.clone()].iter_mut().for_each(Page::note_change);
        self.persist_pages(store, pages).await
    }

    /// The regions from this one on hold nothing any more: they become unwritten, durably. What the
    /// members hold there may be anything. No write to them may be in progress.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn give_up_from(
        &self,
        store: &dyn MapStore,
        first: RegionNo,
    ) -> Result<(), MapError> {
        let end = self.entries.borrow().len() as u64;
        let kept = |region: &RegionNo| {
            let Entry { flags, lanes, .. } = self.entry(*region);
            flags & ON_DISK != 0 || lanes != LaneSet::EMPTY
        };
        let given_up: Vec<RegionNo> = (first.0..end).map(RegionNo).filter(kept).collect();
        for region in &given_up {
            self.change(*region, |entry| {
                entry.flags &= PENDING;
                entry.lanes = LaneSet::EMPTY;
            });
            self.forget_rebuilt(*region);
        }
        self.persist_pages(store, Self::pages_of(&given_up)).await
    }

    /// Regions that are to become unwritten stay as they are.
    pub fn keep_written(&self) {
        self.entries.borrow_mut().iter_mut().for_each(|entry| entry.flags &= !UNWRITING);
    }

    /// Waits until the region is not being zeroed for its first write.
    pub async fn zeroing_ended(&self, region: RegionNo) {
        loop {
            let zeroed = self.zeroed.wait();
            if !self.zeroing.borrow().contains_key(&region) {
                return;
            }
            zeroed.await;
        }
    }

    /// Whether a write is about to mark this region as written.
    #[must_use]
    pub fn is_being_marked(&self, region: RegionNo) -> bool {
        let entry = self.entry(region);
        entry.writers > 0 && !entry.has(WRITTEN)
    }

    /// Completes when a write has marked its region, or has failed to.
    pub fn marked(&self) -> impl Future<Output = ()> + '_ {
        self.marked.wait()
    }

    /// Whether the region was written; if not, it reads as zeros.
    #[must_use]
    pub fn is_written(&self, region: RegionNo) -> bool {
        self.entry(region).has(WRITTEN)
    }

    /// Whether parity may not match data since a crash.
    #[must_use]
    pub fn needs_resync(&self, region: RegionNo) -> bool {
        self.entry(region).has(NEEDS_RESYNC)
    }

    /// Whether a write may be in progress, as far as the disks know.
    #[must_use]
    pub fn is_dirty(&self, region: RegionNo) -> bool {
        self.entry(region).has(DIRTY)
    }

    /// Number of written regions.
    #[must_use]
    pub fn written_count(&self) -> u64 {
        self.written.get()
    }

    /// Number of dirty regions.
    #[must_use]
    pub fn dirty_count(&self) -> usize {
        self.dirty.borrow().len()
    }

    /// Number of regions that need a resync.
    #[must_use]
    pub fn resync_count(&self) -> u64 {
        self.entries.borrow().iter().filter(|entry| entry.has(NEEDS_RESYNC)).count() as u64
    }

    /// The first written region from `from` on.
    #[must_use]
    pub fn next_written(&self, from: RegionNo) -> Option<RegionNo> {
        self.next_where(from, |entry| entry.has(WRITTEN))
    }

    /// The last written region.
    #[must_use]
    pub fn last_written(&self) -> Option<RegionNo> {
        let last = self.entries.borrow().iter().rposition(|entry| entry.has(WRITTEN))?;
        Some(RegionNo(last as u64))
    }

    fn next_where(&self, from: RegionNo, wanted: impl Fn(&Entry) -> bool) -> Option<RegionNo> {
        let entries = self.entries.borrow();
        let found = entries.get(to_index(from)..)?.iter().position(wanted)?;
        Some(RegionNo(from.0 + found as u64))
    }

    /// Starts a write to `region`: returns when the region is durably written and dirty. No data
    /// may be issued before that. The write ends when the guard is dropped. If the region is
    /// written and dirty already, this returns in one poll and without I/O.
    ///
    /// # Errors
    /// If the members cannot be written; no data may be issued then.
    ///
    /// # Panics
    /// If there is no such region.
    pub async fn begin_write(
        &self,
        store: &dyn MapStore,
        region: RegionNo,
    ) -> Result<WriteGuard<'_>, MapError> {
        let index = to_index(region);
        let wanted = if self.config.track_dirty { WRITTEN | DIRTY } else { WRITTEN };
        let began_in = match self.finishing.try_begin_write() {
            Some(number) => number,
            None => Box::pin(self.finishing.begin_write(region)).await,
        };
        let flags = {
            let entry = &mut self.entries.borrow_mut()[index];
            entry.writers += 1;
            entry.flags = entry.flags & !UNWRITING | TOUCHED;
            entry.flags
        };
        let guard = WriteGuard { map: self, index, began_in };
        if flags & (wanted | PENDING) != wanted {
            let _marked = Rings(&self.marked);
            Box::pin(self.mark(store, region, wanted)).await?;
        }
        Ok(guard)
    }

    /// The slow path of `begin_write`: sets the missing flags and waits until they are durable.
    async fn mark(
        &self,
        store: &dyn MapStore,
        region: RegionNo,
        wanted: u8,
    ) -> Result<(), MapError> {
        let needs_permit = wanted & DIRTY != 0 && !self.is_dirty(region);
        let permit = if needs_permit { Some(self.reserve_dirty(store).await?) } else { None };
        // Held until the region is written: it must not be zeroed again after that.
        let zeroing = self.zero(store, region).await?;
        let index = to_index(region);
        let entry = self.entry(region);
        if !entry.has(wanted) {
            if !entry.has(WRITTEN) {
                self.written.set(self.written.get() + 1);
                self.entries.borrow_mut()[index].set_lanes(self.joining.get());
            }
            if wanted & DIRTY != 0 && !entry.has(DIRTY) {
                self.dirty.borrow_mut().push_back(region);
                self.entries.borrow_mut()[index].set_lanes(self.absent.get());
            }
            self.entries.borrow_mut()[index].flags |= wanted | PENDING;
            self.pages.borrow_mut()[page::of(index)].set_pending(index);
        }
        drop((zeroing, permit));
        let durable = || !self.entries.borrow()[index].has(PENDING);
        self.persist(store, page::of(index), durable).await
    }

    /// Zeroes an unwritten region, once, however many writes wait for it. A replacement that joins
    /// during this missed zeros, so the region is zeroed again: if it were stale there instead, and
    /// other members failed in the same moment, it could become unreadable before it ever held
    /// data.
    async fn zero(
        &self,
        store: &dyn MapStore,
        region: RegionNo,
    ) -> Result<Option<Zeroing<'_>>, MapError> {
        while !self.is_written(region) {
            let wait = self.zeroed.wait();
            if self.zeroing.borrow().contains_key(&region) {
                wait.await;
                continue;
            }
            self.zeroing.borrow_mut().insert(region, LaneSet::EMPTY);
            let zeroing = Zeroing { map: self, region };
            store.zero_region(region).await?;
            while zeroing.take_late() {
                store.zero_region(region).await?;
            }
            return Ok(Some(zeroing));
        }
        Ok(None)
    }

    /// Changes a region and notes that its page must be written.
    fn change(&self, region: RegionNo, change: impl FnOnce(&mut Entry)) {
        let index = to_index(region);
        let mut entries = self.entries.borrow_mut();
        let before = entries[index];
        change(&mut entries[index]);
        if entries[index].flags & !before.flags & UNSETTLED != 0 {
            entries[index].set_lanes(self.absent.get());
        }
        let after = entries[index];
        drop(entries);
        if (before.flags ^ after.flags) & ON_DISK != 0 || before.lanes != after.lanes {
            self.pages.borrow_mut()[page::of(index)].note_change();
        }
        match (before.has(DIRTY), after.has(DIRTY)) {
            (false, true) => self.dirty.borrow_mut().push_back(region),
            (true, false) => self.dirty.borrow_mut().retain(|dirty| *dirty != region),
            _ => {}
        }
        match (before.has(WRITTEN), after.has(WRITTEN)) {
            (false, true) => self.written.set(self.written.get() + 1),
            (true, false) => self.written.set(self.written.get() - 1),
            _ => {}
        }
    }
}

struct Zeroing<'a> {
    map: &'a RegionMap,
    region: RegionNo,
}

impl Zeroing<'_> {
    /// Whether lanes started since this was last asked.
    fn take_late(&self) -> bool {
        let mut zeroing = self.map.zeroing.borrow_mut();
        let late = zeroing.get_mut(&self.region).expect("it is being zeroed");
        let any = !std::mem::take(late).is_empty();
        self.map.zeroed.notify_all();
        any
    }
}

impl Drop for Zeroing<'_> {
    fn drop(&mut self) {
        self.map.zeroing.borrow_mut().remove(&self.region);
        self.map.zeroed.notify_all();
    }
}
