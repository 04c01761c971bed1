//! The pages of the database that are in memory, and the state of the other pages.
//!
//! ```text
//!   read ──▶ clean ──▶ evicted (S3-FIFO)
//!              ▲ │ changed
//!    in its    │ ▼
//!    place   ┌─┴────── dirty ── sync ──▶ epoch ──▶ journaled ──┐
//!            │   written early             │ written           │ checkpoint
//!            └─────────────────────────────┴───────────────────┘
//! ```
//!
//! A page is *dirty* from when it is changed until the next sync; then it belongs to an *epoch*
//! until that is durable: in its place, and it is *clean*, or in the journal, and it is *journaled*
//! until a checkpoint. What is read is the newest of these. Clean pages are there to save a read,
//! and go when room is needed. Pages after `valid` are zeros, regardless of the array's contents
//! there, unless they are in memory: the database grew, and nothing was written there yet.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use weft_cache::{Base, Block, Cache, Choice, Penalty};

use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};

/// Which pages stay.
const POLICY: Choice = Choice { base: Base::S3Fifo, victim_first: false };
/// The fewest pages in memory.
const PAGES_MIN: usize = 16;

/// The contents of a page.
pub(super) type Page = Rc<[u8; BLOCK]>;

/// Every miss reads one page.
struct OnePage;

impl Penalty for OnePage {
    fn generation(&self) -> u64 {
        0
    }

    fn of(&self, _: Block) -> u32 {
        1
    }
}

/// Pages that must be durable before any page of the next epoch is written.
pub(super) struct Epoch {
    /// The length of the database.
    pub(super) len: u64,
    /// Pages that changed.
    pub(super) pages: BTreeMap<u64, Page>,
    /// From this page on, the database was cut since: what the epoch has there is not to be read.
    cut: Cell<u64>,
}

/// A page that is wanted.
pub(super) enum PageSource {
    /// It is in memory.
    Here(Page),
    /// It was never written.
    Zeros,
    /// The array has it.
    Absent,
}

/// What the memory has of a page.
pub(super) enum InMemory {
    /// Nothing, or it is not known whether that is what its place should have.
    Nothing,
    /// What its place should have.
    Same(Page),
    /// Something newer: its place will be written.
    Newer,
}

/// What the pages in memory were good for, since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetaCacheCounts {
    /// Bytes of the pages in memory.
    pub bytes: u64,
    /// The most that they may be.
    pub bytes_max: u64,
    /// The most that they were.
    pub bytes_most: u64,
    /// Pages that were wanted and in memory.
    pub hits: u64,
    /// Pages that were read.
    pub misses: u64,
}

/// The pages of the database.
pub(super) struct Pages {
    /// Bytes of the database.
    pub(super) len: u64,
    clean: Cache<Option<Page>>,
    dirty: BTreeMap<u64, Page>,
    epochs: VecDeque<Rc<Epoch>>,
    /// Pages whose newest durable contents are only in the journal.
    journaled: BTreeMap<u64, Page>,
    /// From this page on, the database was cut since: what is journaled there is not to be read.
    journaled_cut: u64,
    /// Bytes of the database as the last durable epoch has it.
    durable_len: u64,
    /// Pages from here on are zeros.
    valid: u64,
    /// Whether an epoch is due although no page is dirty: the length changed, or pages were written
    /// early.
    is_due: bool,
    /// How often a page has become dirty since the last sync.
    dirtied: u64,
    max: usize,
    most: usize,
}

/// The number of pages that hold `bytes`.
pub(super) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

fn key(number: u64) -> Block {
    Block { key: number, class: 0 }
}

impl Pages {
    /// A database of `len` bytes on the array; about `bytes` of it may be in memory.
    pub(super) fn new(len: u64, bytes: u64) -> Result<Self> {
        let none = |error: weft_cache::CacheError| FsError::Invalid(error.to_string());
        let pages = |bytes: u64| usize::try_from(bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        let clean = Cache::new(POLICY, pages(bytes).max(PAGES_MIN), 1).map_err(none)?;
        let index = clean.memory_bytes() as u64;
        let max = pages(bytes.saturating_sub(index)).max(PAGES_MIN);
        Ok(Self {
            len,
            clean,
            dirty: BTreeMap::new(),
            epochs: VecDeque::new(),
            journaled: BTreeMap::new(),
            journaled_cut: u64::MAX,
            durable_len: len,
            valid: pages_of(len),
            is_due: false,
            dirtied: 0,
            max,
            most: 0,
        })
    }

    /// The most pages.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Pages that cannot be evicted.
    fn pinned(&self) -> usize {
        let in_epochs = self.epochs.iter().map(|epoch| epoch.pages.len()).sum::<usize>();
        self.dirty.len() + in_epochs + self.journaled.len()
    }

    /// Whether one more page may be changed before changed pages are written.
    pub(super) fn may_change(&self) -> bool {
        self.pinned() < self.max * 3 / 4
    }

    /// Evicts pages until there is room for one more, if that is possible.
    fn make_room(&mut self) -> bool {
        let pinned = self.pinned();
        while pinned + self.clean.len() >= self.max {
            if self.clean.evict(&OnePage).is_none() {
                return false;
            }
        }
        true
    }

    fn note_most(&mut self) {
        self.most = self.most.max(self.pinned() + self.clean.len());
    }

    /// The last change of a page, if that is not in its place yet.
    fn changed(&self, number: u64) -> Option<&Page> {
        let in_epoch = |epoch: &'_ Rc<Epoch>| number < epoch.cut.get();
        let epochs = self.epochs.iter().rev().filter(|epoch| in_epoch(epoch));
        let journaled = || self.journaled.get(&number).filter(|_| number < self.journaled_cut);
        let in_epochs = || epochs.flat_map(|epoch| epoch.pages.get(&number)).next();
        self.dirty.get(&number).or_else(in_epochs).or_else(journaled)
    }

    /// A page that is wanted.
    pub(super) fn get(&mut self, number: u64) -> PageSource {
        if let Some(page) = self.changed(number) {
            return PageSource::Here(page.clone());
        }
        if number >= self.valid {
            return PageSource::Zeros;
        }
        match self.clean.get(key(number), &OnePage) {
            Some(page) => PageSource::Here(page.clone().expect("a page that is cached")),
            None => PageSource::Absent,
        }
    }

    /// Whether only the array has a page.
    fn is_absent(&self, number: u64) -> bool {
        number < self.valid && self.changed(number).is_none() && self.clean.peek(number).is_none()
    }

    /// Pages before this one have places that were written.
    pub(super) fn in_place(&self) -> u64 {
        self.valid.min(pages_of(self.len))
    }

    /// What the memory has of a page.
    pub(super) fn in_memory(&self, number: u64) -> InMemory {
        if self.changed(number).is_some() {
            return InMemory::Newer;
        }
        match self.clean.peek(number) {
            Some(Some(page)) => InMemory::Same(page.clone()),
            _ => InMemory::Nothing,
        }
    }

    /// The pages to read, if `number` is absent: it, and those beside it that are absent as well,
    /// out of an aligned group of `group`.
    pub(super) fn to_read(&self, number: u64, group: u64) -> Range<u64> {
        let start = number / group * group;
        let from = (start..number).rev().take_while(|n| self.is_absent(*n)).last();
        let to = (number + 1..start + group).take_while(|n| self.is_absent(*n)).last();
        from.unwrap_or(number)..to.unwrap_or(number) + 1
    }

    /// A page was read, which was absent.
    pub(super) fn put_read(&mut self, number: u64, page: Page) {
        debug_assert!(self.is_absent(number), "page {number} changed while it was read");
        if self.make_room() {
            self.clean.insert(key(number), Some(page), &OnePage);
            self.note_most();
        }
    }

    /// A page changes.
    pub(super) fn put_changed(&mut self, number: u64, page: Page) {
        self.clean.remove(number);
        self.make_room();
        if self.dirty.insert(number, page).is_none() {
            self.dirtied += 1;
        }
        self.note_most();
    }

    /// How many pages have changed since the last sync; pages that were written early and have
    /// changed again count twice.
    pub(super) fn dirtied(&self) -> u64 {
        self.dirtied
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.is_due |= self.len != len;
        if len < self.len {
            let (end, before) = (pages_of(len), pages_of(self.len));
            self.dirty.split_off(&end);
            (end..before.min(self.valid)).for_each(|number| drop(self.clean.remove(number)));
            self.epochs.iter().for_each(|epoch| epoch.cut.set(epoch.cut.get().min(end)));
            self.journaled_cut = self.journaled_cut.min(end);
            self.valid = self.valid.min(end);
        }
        self.len = len;
    }

    /// What is dirty becomes an epoch.
    pub(super) fn sync(&mut self) {
        self.dirtied = 0;
        if self.dirty.is_empty() && !self.is_due {
            return;
        }
        self.is_due = false;
        let (pages, cut) = (std::mem::take(&mut self.dirty), Cell::new(u64::MAX));
        self.epochs.push_back(Rc::new(Epoch { len: self.len, pages, cut }));
    }

    /// The epoch to write next.
    pub(super) fn next_epoch(&self) -> Option<Rc<Epoch>> {
        self.epochs.front().cloned()
    }

    /// The pages that the array does not have yet, although the database has them, if it has `len`
    /// bytes.
    pub(super) fn zeros(&self, len: u64) -> Range<u64> {
        self.valid..pages_of(len).max(self.valid)
    }

    /// All epochs as one, if they can be journaled: none of them cuts the database. `stored` is its
    /// length as the header has it.
    pub(super) fn to_journal(&self, stored: u64) -> Option<Epoch> {
        let mut len = self.durable_len;
        let mut grows = |epoch: &Rc<Epoch>| epoch.len >= std::mem::replace(&mut len, epoch.len);
        let is_uncut = self.journaled_cut == u64::MAX
            && self.valid >= pages_of(stored)
            && self.epochs.iter().all(|epoch| epoch.cut.get() == u64::MAX);
        if !is_uncut || !self.epochs.iter().all(&mut grows) {
            return None;
        }
        let mut pages = BTreeMap::new();
        self.epochs.iter().for_each(|epoch| pages.extend(epoch.pages.clone()));
        Some(Epoch { len, pages, cut: Cell::new(u64::MAX) })
    }

    /// Pages from this one on are zeros, if they are not in memory.
    pub(super) fn zeros_from(&self) -> u64 {
        self.valid
    }

    /// How many epochs there are.
    pub(super) fn epochs(&self) -> usize {
        self.epochs.len()
    }

    /// The first `count` epochs are in the journal.
    pub(super) fn epochs_journaled(&mut self, count: usize) {
        for epoch in self.epochs.drain(..count) {
            self.durable_len = epoch.len;
            self.journaled_cut = self.journaled_cut.min(epoch.cut.get());
            self.journaled.extend(epoch.pages.iter().map(|(number, page)| (*number, page.clone())));
        }
    }

    /// What a checkpoint of now writes, and the length of the database then.
    pub(super) fn journaled(&self) -> (BTreeMap<u64, Page>, u64) {
        (self.journaled.clone(), self.durable_len)
    }

    /// The pages among these that are journaled and unchanged since.
    pub(super) fn still_journaled<'a>(
        &self,
        pages: impl IntoIterator<Item = (&'a u64, &'a Page)>,
    ) -> BTreeMap<u64, Page> {
        let is_same = |(number, page): &(&u64, &Page)| {
            self.journaled.get(number).is_some_and(|now| Rc::ptr_eq(now, page))
        };
        let same = pages.into_iter().filter(is_same);
        same.map(|(number, page)| (*number, page.clone())).collect()
    }

    /// These pages have their places, if they are journaled still, and a database of `len` bytes
    /// has zeros where it has no pages.
    pub(super) fn checkpointed(&mut self, pages: &BTreeMap<u64, Page>, len: u64) {
        let (done, cut) = (self.still_journaled(pages), self.journaled_cut);
        done.keys().for_each(|number| drop(self.journaled.remove(number)));
        if self.journaled.is_empty() {
            self.journaled_cut = u64::MAX;
        }
        self.valid = self.valid.max(pages_of(len).min(cut));
        self.written(done.iter().take_while(|(number, _)| **number < cut));
    }

    /// Whether journaled pages take enough memory for a checkpoint to be due.
    pub(super) fn is_much_journaled(&self) -> bool {
        self.journaled.len() > self.max / 4
    }

    /// The first epoch is on the array.
    pub(super) fn epoch_written(&mut self) {
        let Some(epoch) = self.epochs.pop_front() else { return };
        let cut = epoch.cut.get();
        self.durable_len = epoch.len;
        self.valid = self.valid.max(pages_of(epoch.len).min(cut));
        self.written(epoch.pages.iter().take_while(|(number, _)| **number < cut));
    }

    /// Pages to write early: all that are dirty.
    pub(super) fn early(&self) -> BTreeMap<u64, Page> {
        debug_assert!(self.epochs.is_empty() && self.journaled.is_empty(), "these come first");
        self.dirty.clone()
    }

    /// These, all that are dirty, are on the array.
    pub(super) fn early_written(&mut self, pages: &BTreeMap<u64, Page>) {
        self.dirty.clear();
        self.is_due = true;
        self.valid = self.valid.max(pages_of(self.len));
        self.written(pages.iter());
    }

    fn written<'a>(&mut self, pages: impl Iterator<Item = (&'a u64, &'a Page)>) {
        for (number, page) in pages {
            if self.changed(*number).is_none() && self.make_room() {
                self.clean.insert(key(*number), Some(page.clone()), &OnePage);
            }
        }
    }

    pub(super) fn counts(&self) -> MetaCacheCounts {
        let bytes = |pages: usize| pages as u64 * BLOCK_BYTES;
        let stats = self.clean.stats();
        MetaCacheCounts {
            bytes: bytes(self.pinned() + self.clean.len()),
            bytes_max: bytes(self.max),
            bytes_most: bytes(self.most),
            hits: stats.hits,
            misses: stats.misses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 40 * BLOCK_BYTES;

    fn page(of: u8) -> Page {
        Rc::new([of; BLOCK])
    }

    /// What is found of a page: its contents, or 0 for zeros; none if only the array has it.
    fn found(pages: &mut Pages, number: u64) -> Option<u8> {
        match pages.get(number) {
            PageSource::Here(page) => Some(page[0]),
            PageSource::Zeros => Some(0),
            PageSource::Absent => None,
        }
    }

    #[test]
    fn an_epoch_has_what_changed_before_its_sync() {
        let mut pages = Pages::new(LEN, 0).expect("room");
        pages.put_changed(0, page(1));
        pages.put_changed(1, page(1));
        pages.sync();
        pages.put_changed(0, page(2));
        pages.sync();
        pages.sync();
        assert_eq!((found(&mut pages, 0), found(&mut pages, 1)), (Some(2), Some(1)));
        let first = pages.next_epoch().expect("an epoch");
        assert_eq!(first.pages.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(first.pages[&0][0], 1);
        pages.epoch_written();
        assert_eq!((found(&mut pages, 0), found(&mut pages, 1)), (Some(2), Some(1)));
        let second = pages.next_epoch().expect("an epoch");
        assert_eq!(second.pages.keys().copied().collect::<Vec<_>>(), [0]);
        pages.epoch_written();
        assert!(pages.next_epoch().is_none());
        assert_eq!((found(&mut pages, 0), found(&mut pages, 1)), (Some(2), Some(1)));
    }

    #[test]
    fn what_is_clean_gives_way_and_what_is_not_stays() {
        let mut pages = Pages::new(100 * BLOCK_BYTES, 0).expect("room");
        assert_eq!(pages.max(), PAGES_MIN);
        (0..8).for_each(|number| pages.put_changed(number, page(1)));
        pages.sync();
        (8..12).for_each(|number| pages.put_changed(number, page(1)));
        assert!(!pages.may_change());
        (20..100).for_each(|number| pages.put_read(number, page(2)));
        assert!((0..12).all(|number| found(&mut pages, number) == Some(1)));
        assert_eq!((20..100).filter(|number| found(&mut pages, *number).is_some()).count(), 4);
        pages.epoch_written();
        let early = pages.early();
        assert_eq!(early.len(), 4);
        pages.early_written(&early);
        (20..100).filter(|n| *n >= 60).for_each(|number| {
            if found(&mut pages, number).is_none() {
                pages.put_read(number, page(2));
            }
        });
        assert!((0..12).any(|number| found(&mut pages, number).is_none()));
        assert_eq!(pages.counts().bytes_most, PAGES_MIN as u64 * BLOCK_BYTES);
        pages.sync();
        assert!(pages.next_epoch().is_some_and(|epoch| epoch.pages.is_empty()), "it flushes them");
    }

    #[test]
    fn pages_behind_the_end_are_zeros_when_it_moves_over_them() {
        let mut pages = Pages::new(LEN, 0).expect("room");
        pages.put_read(39, page(9));
        pages.put_changed(38, page(8));
        pages.sync();
        pages.put_changed(37, page(7));
        pages.set_len(30 * BLOCK_BYTES);
        pages.set_len(LEN);
        assert!((30..40).all(|number| found(&mut pages, number) == Some(0)));
        assert_eq!(found(&mut pages, 29), None);
        // The epoch that had page 38 does not have it any more.
        pages.epoch_written();
        assert!((30..40).all(|number| found(&mut pages, number) == Some(0)));
        pages.put_changed(35, page(5));
        pages.sync();
        assert_eq!(pages.zeros(LEN), 30..40);
        pages.epoch_written();
        assert_eq!((found(&mut pages, 35), found(&mut pages, 34)), (Some(5), None));
        assert!(pages.zeros(LEN).is_empty());
    }

    #[test]
    fn journaled_pages_stay_in_memory_until_a_checkpoint_of_what_they_are() {
        let mut pages = Pages::new(LEN, 0).expect("room");
        pages.put_changed(0, page(1));
        pages.put_changed(1, page(1));
        pages.sync();
        pages.put_changed(0, page(2));
        pages.set_len(50 * BLOCK_BYTES);
        pages.sync();
        // Both epochs as one, with the newest of each page.
        let together = pages.to_journal(LEN).expect("it only grows");
        let contents: Vec<(u64, u8)> =
            together.pages.iter().map(|(n, page)| (*n, page[0])).collect();
        assert_eq!((contents, together.len), (vec![(0, 2), (1, 1)], 50 * BLOCK_BYTES));
        pages.epochs_journaled(2);
        assert_eq!(pages.epochs(), 0);
        (20..39).for_each(|number| pages.put_read(number, page(9)));
        assert_eq!((found(&mut pages, 0), found(&mut pages, 1)), (Some(2), Some(1)));
        let (snapshot, len) = pages.journaled();
        // One changes again before the checkpoint has ended.
        pages.put_changed(1, page(3));
        pages.sync();
        pages.epochs_journaled(1);
        let same = pages.still_journaled(&snapshot);
        assert_eq!(same.keys().copied().collect::<Vec<_>>(), [0]);
        assert_eq!(pages.zeros(len), 40..50);
        pages.checkpointed(&snapshot, len);
        assert!(pages.zeros(len).is_empty());
        assert_eq!(pages.journaled().0.keys().copied().collect::<Vec<_>>(), [1]);
        assert_eq!((found(&mut pages, 0), found(&mut pages, 1)), (Some(2), Some(3)));
    }

    #[test]
    fn what_was_cut_off_is_not_journaled_and_not_read() {
        let mut pages = Pages::new(LEN, 0).expect("room");
        pages.put_changed(39, page(1));
        pages.sync();
        pages.epochs_journaled(1);
        pages.set_len(30 * BLOCK_BYTES);
        pages.set_len(LEN);
        assert_eq!(found(&mut pages, 39), Some(0));
        pages.put_changed(2, page(2));
        pages.sync();
        assert!(pages.to_journal(LEN).is_none(), "its zeros must reach their places");
        // The checkpoint has the old page, as a crash may come first.
        let (snapshot, len) = pages.journaled();
        assert_eq!((snapshot.len(), len), (1, LEN));
        pages.checkpointed(&snapshot, len);
        assert_eq!((found(&mut pages, 39), pages.zeros(LEN)), (Some(0), 30..40));
        pages.epoch_written();
        pages.put_changed(3, page(3));
        pages.sync();
        assert!(pages.to_journal(LEN).is_some());
    }

    #[test]
    fn neighbours_are_read_as_far_as_they_are_absent() {
        let mut pages = Pages::new(LEN, 0).expect("room");
        pages.put_changed(18, page(1));
        pages.put_read(25, page(1));
        assert_eq!(pages.to_read(20, 16), 19..25);
        assert_eq!(pages.to_read(39, 16), 32..40);
        assert_eq!(pages.to_read(20, 1), 20..21);
        assert_eq!(pages.to_read(17, 16), 16..18);
    }
}
