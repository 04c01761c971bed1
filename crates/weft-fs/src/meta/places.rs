//! The places of the database's pages on the metadata array, and their correct contents.
//!
//! A page that is read is compared with its checksum ([`super::sums`]). If it is wrong, each copy
//! of it is read separately; a correct one is written to all of them. Checks look at all copies of
//! all pages in the same way. A page without a correct copy is an error, and is not overwritten.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use weft_array::{Array, Id};
use weft_code::SlotNo;
use weft_rt::{Buf, Frozen, ZEROS_BYTES_MAX};

use super::header::{self, Areas, HeaderFields, Pieces};
use super::journal::{self, Length, Tail};
use super::pages::{InMemory, Page, pages_of};
use super::spans::Spans;
use super::sums::{Sums, sum_of};
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};

/// Bytes of one write at most.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// Writes side by side: disks with platters take them in their own order.
const WRITES_MAX: usize = 16;
/// Pages that are compared on all copies together.
pub(super) const CHECK_PAGES: u64 = 64;

/// What was found wrong with pages of the metadata, since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetaPageCounts {
    /// Copies of pages that did not match their checksum, or differed from other copies.
    pub wrong: u64,
    /// Of these, written again from a copy that is right.
    pub repaired: u64,
}

/// Is told of wrong pages.
type Tell = Box<dyn Fn(&str)>;

/// What a check has found.
#[derive(Debug, Default)]
pub(crate) struct PageReport {
    /// Pages with wrong copies that are correct again.
    pub(crate) repaired: u64,
    /// Pages without a correct copy.
    pub(crate) damaged: Vec<u64>,
}

/// A copy of a page: in which slot, and its bytes.
type PageCopy<'a> = (SlotNo, &'a [u8]);

/// Consecutive pages as the copies have them, as far as these can be read.
struct Copies {
    first: u64,
    /// Of all of the pages.
    whole: Vec<(SlotNo, Buf)>,
    /// Of one page: the rest of that copy cannot be read.
    single: Vec<(u64, SlotNo, Buf)>,
}

impl Copies {
    /// The copies of a page.
    fn of(&self, page: u64) -> Vec<PageCopy<'_>> {
        let from = usize::try_from((page - self.first) * BLOCK_BYTES).expect("few pages");
        let whole = self.whole.iter().map(|(slot, copy)| (*slot, &copy[from..from + BLOCK]));
        let single = self.single.iter().filter(|(of, _, _)| *of == page);
        whole.chain(single.map(|(_, slot, copy)| (*slot, &copy[..]))).collect()
    }
}

/// The place of the database, and its header.
pub(super) struct Places {
    array: Array,
    fs_id: Id,
    /// Of all pages.
    db: RefCell<Spans>,
    /// None: they follow from the size of the array.
    pieces: RefCell<Option<Rc<Pieces>>>,
    /// None: the file system was made without them.
    sums: Option<RefCell<Sums>>,
    counts: Cell<MetaPageCounts>,
    tell: RefCell<Option<Tell>>,
}

impl Places {
    /// Of a metadata array with this header. What the journal holds is written to its place.
    /// Returns the header as it is then.
    pub(super) async fn open(
        array: Array,
        fs_id: Id,
        areas: &Areas,
        stored: HeaderFields,
    ) -> Result<(Self, HeaderFields)> {
        let (db, counts, tell) =
            (RefCell::new(areas.db.clone()), Cell::default(), RefCell::default());
        let pieces = RefCell::new(stored.pieces.clone());
        let mut places = Self { array, fs_id, db, pieces, sums: None, counts, tell };
        let stored = places.replay(areas, stored).await?;
        let stored = places.upgrade(stored).await?;
        Ok((places, stored))
    }

    /// A file system that has no checksums gets a table of them, if there is room: nothing is known
    /// yet.
    async fn upgrade(&mut self, stored: HeaderFields) -> Result<HeaderFields> {
        let upgraded = Areas::upgraded(self.array.size_bytes(), &stored);
        let Some(areas) = upgraded.filter(|_| stored.db_bytes > 0) else { return Ok(stored) };
        let sums = Sums::unknown(areas.sums, self.fs_id, pages_of(stored.db_bytes));
        (self.db, self.sums) = (RefCell::new(areas.db), Some(RefCell::new(sums)));
        self.write_sums().await?;
        self.array.flush().await?;
        let stored = HeaderFields { has_sums: true, ..stored };
        header::write(&self.array, self.fs_id, &stored, true).await?;
        Ok(stored)
    }

    /// The most bytes that a database may have here.
    pub(super) fn bytes(&self) -> u64 {
        self.db.borrow().bytes()
    }

    /// What the header says of the parts of the array, or would say.
    pub(super) fn pieces(&self) -> Pieces {
        let pieces = self.pieces.borrow();
        pieces.as_deref().cloned().unwrap_or_else(|| Pieces::none(self.array.size_bytes()))
    }

    /// Whether the header says where the parts are.
    pub(super) fn has_pieces(&self) -> bool {
        self.pieces.borrow().is_some()
    }

    /// The pieces with one more, so that the database may have `capacity` bytes.
    pub(super) fn pieces_for(&self, capacity: u64) -> Result<Pieces> {
        let pieces = self.pieces();
        let areas = self.areas(&pieces)?;
        Ok(pieces.with(&areas, capacity))
    }

    fn areas(&self, pieces: &Pieces) -> Result<Areas> {
        let pieces = Some(Rc::new(pieces.clone()));
        let stored = HeaderFields { pieces, ..HeaderFields::NEW };
        Areas::stored(u64::MAX, &stored)
    }

    /// The header says this of the parts of the array, durably: there is more of the database, or
    /// it is as before.
    pub(super) async fn take_pieces(
        &self,
        pieces: Pieces,
        db_bytes: u64,
        journal: Option<Tail>,
    ) -> Result<()> {
        let areas = self.areas(&pieces)?;
        let pieces = Some(Rc::new(pieces));
        let has_sums = self.has_sums();
        let stored = HeaderFields { db_bytes, journal, has_sums, pieces: pieces.clone() };
        header::write(&self.array, self.fs_id, &stored, true).await?;
        self.pieces.replace(pieces);
        self.db.replace(areas.db);
        if let Some(sums) = &self.sums {
            sums.borrow_mut().take_area(areas.sums);
        }
        Ok(())
    }

    /// The array that has them.
    pub(super) fn array(&self) -> &Array {
        &self.array
    }

    /// Whether pages have checksums.
    pub(super) fn has_sums(&self) -> bool {
        self.sums.is_some()
    }

    /// Whether the array has all checksums that are known.
    pub(super) fn has_sums_written(&self) -> bool {
        self.sums.as_ref().is_none_or(|sums| sums.borrow().is_written())
    }

    /// What was found wrong since the mount.
    pub(super) fn counts(&self) -> MetaPageCounts {
        self.counts.get()
    }

    /// The listener that is told of wrong pages.
    pub(super) fn on_wrong(&self, tell: impl Fn(&str) + 'static) {
        *self.tell.borrow_mut() = Some(Box::new(tell));
    }

    fn at(&self, page: u64) -> u64 {
        self.db.borrow().at(page * BLOCK_BYTES)
    }

    /// The parts of a run of pages that lie together.
    fn together(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let parts = self.db.borrow().parts(pages.start * BLOCK_BYTES..pages.end * BLOCK_BYTES);
        parts.into_iter().map(|part| part.start / BLOCK_BYTES..part.end / BLOCK_BYTES).collect()
    }

    fn fits(&self, page: u64, bytes: &[u8]) -> bool {
        self.sums.as_ref().is_none_or(|sums| sums.borrow().fits(page, bytes))
    }

    fn known_sum(&self, page: u64) -> Option<u32> {
        self.sums.as_ref().and_then(|sums| sums.borrow().get(page))
    }

    fn set_sum(&self, page: u64, sum: u32) {
        if let Some(sums) = &self.sums {
            sums.borrow_mut().set(page, sum);
        }
    }

    /// Reads `count` pages: those that are as they were written.
    pub(super) async fn read(&self, first: u64, count: usize) -> Result<Vec<Option<Page>>> {
        let mut read = Vec::with_capacity(count);
        for part in self.together(first..first + count as u64) {
            let bytes = usize::try_from((part.end - part.start) * BLOCK_BYTES).expect("few pages");
            let (result, buf) = self.array.read(self.at(part.start), Buf::new(bytes)).await;
            result?;
            let (whole, _) = buf.as_chunks::<BLOCK>();
            let page = |(page, bytes): (u64, &[u8; BLOCK])| {
                self.fits(page, bytes).then(|| Rc::new(*bytes))
            };
            read.extend((part.start..).zip(whole).map(page));
        }
        Ok(read)
    }

    /// A page that was wrong when it was read: as the first copy has it that is right. All copies
    /// have it then.
    pub(super) async fn read_any(&self, page: u64) -> Result<Page> {
        let copies = self.copies(page..page + 1).await;
        let of_page = copies.of(page);
        let right = of_page.iter().find(|(_, bytes)| self.fits(page, bytes));
        let Some((_, right)) = right else {
            self.note_wrong(page, &of_page, None);
            return Err(FsError::Damaged(format!("no copy of page {page} is right")));
        };
        let bytes: [u8; BLOCK] = (*right).try_into().expect("a page");
        self.repair(page, &of_page, &bytes).await?;
        Ok(Rc::new(bytes))
    }

    /// Pages, which lie together, as the copies have them.
    async fn copies(&self, pages: Range<u64>) -> Copies {
        let bytes = |count: u64| usize::try_from(count * BLOCK_BYTES).expect("few pages");
        let len = bytes(pages.end - pages.start);
        let (mut whole, mut single) = (Vec::new(), Vec::new());
        for slot in self.array.copies() {
            match self.array.read_copy(slot, self.at(pages.start), len).await {
                Some(copy) => whole.push((slot, copy)),
                // A sector that cannot be read hides the pages around it.
                None if len > BLOCK => {
                    for page in pages.clone() {
                        let copy = self.array.read_copy(slot, self.at(page), BLOCK).await;
                        single.extend(copy.map(|copy| (page, slot, copy)));
                    }
                }
                None => {}
            }
        }
        Copies { first: pages.start, whole, single }
    }

    /// Writes to all copies what a page has to be.
    async fn repair(&self, page: u64, copies: &[PageCopy<'_>], right: &[u8]) -> Result<()> {
        let bytes = Frozen::copy_from(right);
        let written = self.array.write(self.at(page), bytes, false).await;
        self.note_wrong(page, copies, Some(right));
        Ok(written?)
    }

    /// Some of these copies of a page were wrong; they are `right` now.
    fn note_wrong(&self, page: u64, copies: &[PageCopy<'_>], right: Option<&[u8]>) {
        let wrong: Vec<SlotNo> = copies
            .iter()
            .filter(|(_, bytes)| right.is_none_or(|right| *bytes != right))
            .map(|(slot, _)| *slot)
            .collect();
        let mut counts = self.counts.get();
        counts.wrong += wrong.len() as u64;
        counts.repaired += right.map_or(0, |_| wrong.len() as u64);
        self.counts.set(counts);
        let Some(tell) = &*self.tell.borrow() else { return };
        let slots = self.array.status().slots;
        let on = |slot: &SlotNo| slots.iter().find(|at| at.slot == *slot).map(|at| at.disk.clone());
        let disks = wrong.iter().filter_map(on).collect::<Vec<_>>().join(", ");
        match right {
            Some(_) => tell(&format!(
                "page {page} of the metadata was wrong on {disks}; it was written again from another copy"
            )),
            None => tell(&format!("page {page} of the metadata is wrong on all copies: {disks}")),
        }
    }

    /// Compares pages on all copies, and makes them right. Nothing else writes pages during this.
    pub(super) async fn check(
        &self,
        pages: Range<u64>,
        in_memory: impl Fn(u64) -> InMemory,
        report: &mut PageReport,
    ) -> Result<()> {
        for part in self.together(pages) {
            let copies = self.copies(part.clone()).await;
            for page in part {
                self.check_page(page, &copies.of(page), &in_memory, report).await?;
            }
        }
        Ok(())
    }

    async fn check_page(
        &self,
        page: u64,
        copies: &[PageCopy<'_>],
        in_memory: &impl Fn(u64) -> InMemory,
        report: &mut PageReport,
    ) -> Result<()> {
        let Some((_, first)) = copies.first() else { return Ok(()) };
        let alike = copies.iter().all(|(_, bytes)| bytes == first);
        if alike && self.fits(page, first) {
            if self.known_sum(page).is_none() {
                self.set_sum(page, sum_of(first));
            }
            return Ok(());
        }
        // If its checksum is not known, the first one counts.
        let right = copies.iter().find(|(_, bytes)| self.fits(page, bytes));
        let in_memory = in_memory(page);
        match (right, &in_memory) {
            (Some((_, right)), _) => {
                self.repair(page, copies, right).await?;
                if self.known_sum(page).is_none() {
                    self.set_sum(page, sum_of(right));
                }
                report.repaired += 1;
            }
            (None, InMemory::Same(same)) if self.fits(page, &same[..]) => {
                self.repair(page, copies, &same[..]).await?;
                report.repaired += 1;
            }
            (None, InMemory::Newer) => {}
            (None, _) => {
                self.note_wrong(page, copies, None);
                report.damaged.push(page);
            }
        }
        Ok(())
    }

    /// The pages of a database of this number of bytes whose copies may differ since a crash.
    pub(super) fn awaiting_resync(&self, db_bytes: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        for part in self.together(0..pages_of(db_bytes)) {
            let start = self.at(part.start);
            let (mut at, end) = (start, start + (part.end - part.start) * BLOCK_BYTES);
            while at < end {
                let (is_due, bytes) = self.array.awaits_resync(at);
                let until = bytes.end.min(end);
                if is_due {
                    let first = part.start + (at - start) / BLOCK_BYTES;
                    found.push(first..part.start + pages_of(until - start));
                }
                at = until.max(at + 1);
            }
        }
        found
    }

    /// Writes pages. Nothing else writes any during this.
    pub(super) async fn write(&self, pages: &BTreeMap<u64, Page>) -> Result<()> {
        let of_pages: Vec<(u64, &Page)> =
            pages.iter().map(|(number, page)| (*number, page)).collect();
        let follow = |a: &(u64, &Page), b: &(u64, &Page)| self.follows(a.0, b.0);
        let runs = of_pages.chunk_by(follow).flat_map(|run| run.chunks(WRITE_BYTES_MAX / BLOCK));
        let write = |run: &[(u64, &Page)]| {
            let mut bytes = Buf::zeroed(run.len() * BLOCK);
            let parts = bytes.chunks_exact_mut(BLOCK);
            run.iter().zip(parts).for_each(|((_, page), part)| part.copy_from_slice(&page[..]));
            self.array.write(self.at(run[0].0), bytes.freeze(), false)
        };
        let written = stream::iter(runs.map(write)).buffer_unordered(WRITES_MAX);
        written.try_collect::<()>().await?;
        if self.has_sums() {
            pages.iter().for_each(|(number, page)| self.set_sum(*number, sum_of(&page[..])));
        }
        Ok(())
    }

    /// Writes zeros where none of these pages is in a range.
    pub(super) async fn write_zeros<T>(
        &self,
        range: Range<u64>,
        pages: &BTreeMap<u64, T>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut from = range.start;
        for number in pages.range(range.clone()).map(|(number, _)| *number) {
            self.write_zero_run(from..number).await?;
            from = number + 1;
        }
        self.write_zero_run(from..range.end).await
    }

    /// Whether a page lies behind another one.
    fn follows(&self, page: u64, next: u64) -> bool {
        page + 1 == next && self.at(page) + BLOCK_BYTES == self.at(next)
    }

    async fn write_zero_run(&self, range: Range<u64>) -> Result<()> {
        let step = ZEROS_BYTES_MAX.min(WRITE_BYTES_MAX) as u64;
        for part in self.together(range.start..range.end.max(range.start)) {
            let mut at = self.at(part.start);
            let end = at + (part.end - part.start) * BLOCK_BYTES;
            while at < end {
                let len = (end - at).min(step);
                let zeros = Frozen::zeros(usize::try_from(len).expect("at most WRITE_BYTES_MAX"));
                self.array.write(at, zeros, false).await?;
                at += len;
            }
        }
        if self.has_sums() {
            let sum = sum_of(&[0; BLOCK]);
            range.for_each(|page| self.set_sum(page, sum));
        }
        Ok(())
    }

    /// Writes the checksums that the array does not have yet.
    pub(super) async fn write_sums(&self) -> Result<()> {
        let runs = self.sums.as_ref().map(|sums| sums.borrow_mut().take_changed());
        let runs = runs.unwrap_or_default().into_iter();
        let written = runs.map(|run| self.array.write(run.at, run.bytes, false));
        let written = stream::iter(written).buffer_unordered(WRITES_MAX);
        Ok(written.try_collect::<()>().await?)
    }

    /// Writes the header; with `durable` it is so on return.
    pub(super) async fn write_header(
        &self,
        db_bytes: u64,
        journal: Option<Tail>,
        durable: bool,
    ) -> Result<()> {
        let (has_sums, pieces) = (self.has_sums(), self.pieces.borrow().clone());
        let stored = HeaderFields { db_bytes, journal, has_sums, pieces };
        header::write(&self.array, self.fs_id, &stored, durable).await
    }

    /// Writes what the journal holds to its place. Returns the header as it is then.
    async fn replay(&mut self, areas: &Areas, stored: HeaderFields) -> Result<HeaderFields> {
        let Some(tail) = stored.journal else { return Ok(stored) };
        let found = journal::scan(&self.array, &areas.journal, self.fs_id, tail).await?;
        let Length { db_bytes, zeros_from } =
            found.length.unwrap_or(Length { db_bytes: stored.db_bytes, zeros_from: 0 });
        let pages = pages_of(db_bytes);
        let is_within = |number: &u64| *number < pages;
        if db_bytes > self.bytes() || !found.pages.keys().all(is_within) {
            return Err(FsError::Damaged("the journal names pages outside the database".into()));
        }
        if stored.has_sums {
            let area = areas.sums.clone();
            let sums = Sums::load(&self.array, area, self.fs_id, pages).await?;
            self.sums = Some(RefCell::new(sums));
        }
        // What the header speaks of is in its place, and what was written early.
        let zeros_from = zeros_from.max(pages_of(stored.db_bytes));
        self.write(&found.pages).await?;
        self.write_zeros(zeros_from..pages.max(zeros_from), &found.pages).await?;
        let mut sums = found.sums;
        sums.retain(|number, _| is_within(number));
        let mut known: BTreeMap<u64, ()> = found.pages.keys().map(|number| (*number, ())).collect();
        known.extend(sums.keys().map(|number| (*number, ())));
        for zeros in found.zeros {
            let zeros = zeros.start.min(pages)..zeros.end.min(pages);
            self.write_zeros(zeros, &known).await?;
        }
        sums.iter_mut().for_each(|(page, sums)| sums.extend(self.known_sum(*page)));
        self.settle(&sums, true).await?;
        let doubtful = self.sums.as_ref().map(|sums| sums.borrow().doubtful());
        self.settle(&doubtful.unwrap_or_default(), false).await?;
        self.write_sums().await?;
        self.array.flush().await?;
        let tail = Tail { generation: found.end.generation + 1, ..found.end };
        let stored = HeaderFields { db_bytes, journal: Some(tail), ..stored };
        // A new database has no header before it has pages.
        if db_bytes > 0 {
            header::write(&self.array, self.fs_id, &stored, true).await?;
        }
        Ok(stored)
    }

    /// These pages have one of these checksums. If they were being written when a crash came, the
    /// newest comes first, and counts if any copy has it; a page without any of them was torn.
    /// Otherwise the one counts that most copies have, and a page without any of them stays wrong.
    async fn settle(&self, pages: &BTreeMap<u64, Vec<u32>>, were_written: bool) -> Result<()> {
        let numbers: Vec<u64> = pages.keys().copied().collect();
        let follow = |a: &u64, b: &u64| self.follows(*a, *b);
        let few = usize::try_from(CHECK_PAGES).expect("few");
        for run in numbers.chunk_by(follow).flat_map(|run| run.chunks(few)) {
            let copies = self.copies(run[0]..run[0] + run.len() as u64).await;
            for page in run {
                let of_page = copies.of(*page);
                let rank = |bytes: &[u8]| {
                    let alike = of_page.iter().filter(|copy| copy.1 == bytes).count();
                    let known = pages[page].iter().position(|sum| *sum == sum_of(bytes));
                    match (known, were_written) {
                        (Some(age), true) => Some((age, usize::MAX - alike)),
                        (Some(_), false) => Some((0, usize::MAX - alike)),
                        (None, true) => Some((usize::MAX, usize::MAX - alike)),
                        (None, false) => None,
                    }
                };
                let may_be = of_page.iter().filter(|(_, bytes)| rank(bytes).is_some());
                // The first of the equally good ones.
                let Some((_, right)) = may_be.min_by_key(|(_, bytes)| rank(bytes)) else {
                    continue;
                };
                if of_page.iter().any(|(_, bytes)| bytes != right) {
                    self.array.write(self.at(*page), Frozen::copy_from(right), false).await?;
                }
                self.set_sum(*page, sum_of(right));
            }
        }
        Ok(())
    }
}
