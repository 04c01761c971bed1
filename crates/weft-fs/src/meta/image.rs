//! The database's file: where synchronous redb meets asynchronous disks.
//!
//! redb reads and writes the image, on a fiber ([`weft_rt::fiber`]). A page that is not in memory
//! is read from the metadata array; the fiber waits for it. When redb asks for a sync, the pages
//! that changed since the last one become an epoch, and redb goes on. Epochs that have come
//! together are made durable together, in the journal ([`super::journal`]); what it does not take
//! is written to its place, one epoch after the other, each flushed before the next starts. A disk
//! under redb may hold, after a crash, any part of the writes since the last completed sync; the
//! array holds no more than that.
//!
//! *Memory* has a bound ([`super::pages`]). If too much of it has changed, the changed pages are
//! written before redb asks for a sync, after all epochs: a disk may have them by then, too.
//!
//! Only the fiber that runs changes pages, and only one runs at a time. So a page that is absent
//! stays as the array has it while it is read, regardless of other writes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use redb::StorageBackend;
use weft_array::{Array, Id};
use weft_rt::sync::Semaphore;
use weft_rt::{Local, fiber};

use super::header::{Areas, HeaderFields, Pieces};
use super::journal::{Journal, Length, SUMS_MAX, Tail};
use super::pages::{Epoch, MetaCacheCounts, Page, PageSource, Pages};
use super::places::{CHECK_PAGES, MetaPageCounts, PageReport, Places};
use super::sums::sum_of;
use crate::error::Result;
use crate::format::block::{BLOCK, BLOCK_BYTES};

/// Pages that a checkpoint writes before commits have a turn.
const STEP_PAGES: usize = 64;
/// Pages that are read together, if memory has room for many times more.
const GROUP_MAX: usize = 16;

struct ImageState {
    places: Places,
    pages: RefCell<Pages>,
    /// Pages that are read together.
    group: u64,
    /// Held while epochs, or pages before their sync, are written.
    writing: Semaphore,
    /// None: the file system was made without one.
    journal: Option<Journal>,
    /// The length of the database, as the header has it.
    stored_len: Cell<u64>,
    /// Whether pages that were written early are not flushed.
    is_early: Cell<bool>,
    is_closed: Cell<bool>,
}

/// The database's file. Clones are handles of the same one.
#[derive(Clone)]
pub(super) struct Image(Arc<Local<ImageState>>);

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").finish_non_exhaustive()
    }
}

impl Image {
    /// The header's database; about `bytes` of it may be in memory. What the journal holds is
    /// written to its place.
    pub(super) async fn open(
        array: Array,
        fs_id: Id,
        areas: &Areas,
        stored: HeaderFields,
        bytes: u64,
    ) -> Result<Self> {
        let (places, stored) = Places::open(array, fs_id, areas, stored).await?;
        let pages = Pages::new(stored.db_bytes, bytes)?;
        let group = (pages.max() / GROUP_MAX).clamp(1, GROUP_MAX) as u64;
        let journal = |tail| Journal::new(areas.journal.clone(), fs_id, tail);
        let inner = ImageState {
            places,
            pages: RefCell::new(pages),
            group,
            writing: Semaphore::new(1),
            journal: stored.journal.map(journal),
            stored_len: Cell::new(stored.db_bytes),
            is_early: Cell::new(false),
            is_closed: Cell::new(false),
        };
        Ok(Self(Arc::new(Local::new(inner))))
    }

    /// The most bytes that the database may have.
    pub(super) fn capacity(&self) -> u64 {
        self.0.get().places.bytes()
    }

    /// What was found wrong with pages.
    pub(super) fn page_counts(&self) -> MetaPageCounts {
        self.0.get().places.counts()
    }

    /// Who is told which pages are wrong.
    pub(super) fn on_wrong(&self, tell: impl Fn(&str) + 'static) {
        self.0.get().places.on_wrong(tell);
    }

    /// Compares all pages on all copies, in steps, and makes them right.
    pub(super) async fn check(&self) -> Result<PageReport> {
        let all = 0..self.0.get().pages.borrow().in_place();
        self.check_pages(all).await
    }

    /// The same of pages of which copies may differ since a crash: the array would make them like
    /// the first copy.
    pub(super) async fn check_awaiting_resync(&self) -> Result<PageReport> {
        let due = self.0.get().places.awaiting_resync(self.bytes());
        let mut report = PageReport::default();
        for pages in due {
            let found = self.check_pages(pages).await?;
            report.repaired += found.repaired;
            report.damaged.extend(found.damaged);
        }
        Ok(report)
    }

    async fn check_pages(&self, pages: Range<u64>) -> Result<PageReport> {
        let inner = self.0.get();
        let mut report = PageReport::default();
        let mut from = pages.start;
        while from < pages.end {
            let _one = inner.writing.acquire(1).await;
            // It may have become shorter since.
            let end = (from + CHECK_PAGES).min(pages.end);
            let end = end.min(inner.pages.borrow().in_place());
            if end <= from {
                break;
            }
            let in_memory = |page| inner.pages.borrow().in_memory(page);
            inner.places.check(from..end, in_memory, &mut report).await?;
            from = end;
        }
        Ok(report)
    }

    /// Writes the header again.
    pub(super) async fn rewrite_header(&self) -> Result<()> {
        let inner = self.0.get();
        let _one = inner.writing.acquire(1).await;
        let journal = inner.journal.as_ref().map(Journal::tail);
        inner.places.write_header(inner.stored_len.get(), journal, true).await
    }

    /// Where the parts of the array are with a piece more, so that the database may have `capacity`
    /// bytes.
    pub(super) fn pieces_for(&self, capacity: u64) -> Result<Pieces> {
        self.0.get().places.pieces_for(capacity)
    }

    /// Whether the database can ever have more bytes: older ones cannot.
    pub(super) fn may_grow(&self) -> bool {
        let inner = self.0.get();
        inner.journal.is_some() && inner.places.has_sums() && inner.places.pieces().may_grow()
    }

    /// From now on the header says where the parts are, whatever the size of the array.
    pub(super) async fn fix_pieces(&self) -> Result<()> {
        let pieces = self.0.get().places.pieces();
        match self.0.get().places.has_pieces() {
            true => Ok(()),
            false => self.take_pieces(pieces).await,
        }
    }

    /// The database may have more bytes from now on, durably: those of all of these pieces.
    pub(super) async fn take_pieces(&self, pieces: Pieces) -> Result<()> {
        let inner = self.0.get();
        let _one = inner.writing.acquire(1).await;
        let journal = inner.journal.as_ref().map(Journal::tail);
        inner.places.take_pieces(pieces, inner.stored_len.get(), journal).await
    }

    /// Bytes of the database.
    pub(super) fn bytes(&self) -> u64 {
        self.0.get().pages.borrow().len
    }

    /// The most pages in memory.
    pub(super) fn pages_max(&self) -> usize {
        self.0.get().pages.borrow().max()
    }

    /// Bytes of the pages that have changed since the last sync, as far as redb has written them.
    pub(super) fn changed_bytes(&self) -> u64 {
        self.0.get().pages.borrow().dirtied() * BLOCK_BYTES
    }

    /// Whether there are epochs that are not durable.
    pub(super) fn has_epochs(&self) -> bool {
        self.0.get().pages.borrow().epochs() > 0
    }

    pub(super) fn counts(&self) -> MetaCacheCounts {
        self.0.get().pages.borrow().counts()
    }

    /// From now on nothing is read or written: what redb does at its end has no meaning any more.
    pub(super) fn close(&self) {
        self.0.get().is_closed.set(true);
    }

    /// Makes all epochs durable.
    pub(super) async fn write_epochs(&self) -> Result<()> {
        let inner = self.0.get();
        let _one = inner.writing.acquire(1).await;
        inner.write_epochs().await
    }

    /// Writes what is journaled to its place.
    pub(super) async fn checkpoint(&self) -> Result<()> {
        let inner = self.0.get();
        let _one = inner.writing.acquire(1).await;
        inner.checkpoint().await
    }

    /// Checkpoints in steps, between which epochs may be written, if half of the journal is taken.
    pub(super) async fn checkpoint_in_steps(&self) -> Result<()> {
        let inner = self.0.get();
        let Some(journal) = inner.journal.as_ref().filter(|journal| journal.is_half_full()) else {
            return Ok(());
        };
        let one = inner.writing.acquire(1).await;
        let ((pages, len), head) = (inner.pages.borrow().journaled(), journal.head());
        drop(one);
        let mut rest = pages.iter().peekable();
        while rest.peek().is_some() {
            let _one = inner.writing.acquire(1).await;
            // What is journaled no longer may have been written early since.
            let some = inner.pages.borrow().still_journaled(rest.by_ref().take(STEP_PAGES));
            inner.places.write(&some).await?;
        }
        let _one = inner.writing.acquire(1).await;
        match journal.tail().number < head.number {
            true => inner.end_checkpoint(journal, &pages, len, head).await,
            false => Ok(()),
        }
    }
}

impl ImageState {
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        if self.is_closed.get() {
            return Err(io::Error::other("the file system is unmounted"));
        }
        let end = offset.checked_add(len as u64);
        match end.is_some_and(|end| end <= self.pages.borrow().len) {
            true => Ok(()),
            false => Err(outside("beyond the end")),
        }
    }

    /// A page; none if it is zeros.
    fn page(&self, number: u64) -> io::Result<Option<Page>> {
        let found = self.pages.borrow_mut().get(number);
        match found {
            PageSource::Here(page) => Ok(Some(page)),
            PageSource::Zeros => Ok(None),
            PageSource::Absent => waited(fiber::wait(self.fetch(number))).map(Some),
        }
    }

    /// Reads a page that is absent, and some beside it.
    async fn fetch(&self, number: u64) -> Result<Page> {
        let range = self.pages.borrow().to_read(number, self.group);
        let count = usize::try_from(range.end - range.start).expect("few pages");
        let read = self.places.read(range.start, count).await?;
        let wanted = usize::try_from(number - range.start).expect("few pages");
        let page = match &read[wanted] {
            Some(page) => page.clone(),
            None => self.places.read_any(number).await?,
        };
        let mut pages = self.pages.borrow_mut();
        // One that is wrong is looked at again when it is wanted.
        let others = range.zip(read).filter(|(other, _)| *other != number);
        others.for_each(|(other, page)| {
            if let Some(page) = page {
                pages.put_read(other, page);
            }
        });
        pages.put_read(number, page.clone());
        Ok(page)
    }

    /// Writes what has changed, if that is too much for another page to change.
    fn make_room(&self) -> io::Result<()> {
        let may_change = self.pages.borrow().may_change();
        if may_change { Ok(()) } else { waited(fiber::wait(self.write_early())) }
    }

    /// Writes all epochs, and then what has changed since the last sync.
    async fn write_early(&self) -> Result<()> {
        let _one = self.writing.acquire(1).await;
        self.write_epochs().await?;
        self.empty_journal().await?;
        let (pages, zeros) = {
            let pages = self.pages.borrow();
            (pages.early(), pages.zeros(pages.len))
        };
        self.is_early.set(true);
        self.write_in_place(&pages, zeros).await?;
        self.pages.borrow_mut().early_written(&pages);
        Ok(())
    }

    /// Makes all epochs durable. The caller holds `writing`.
    async fn write_epochs(&self) -> Result<()> {
        loop {
            let count = self.pages.borrow().epochs();
            if count == 0 {
                return Ok(());
            }
            let together = self.pages.borrow().to_journal(self.stored_len.get());
            match (&self.journal, together) {
                (Some(journal), Some(epoch)) if journal.takes(epoch.pages.len()) => {
                    self.append(journal, &epoch).await?;
                    self.pages.borrow_mut().epochs_journaled(count);
                    if self.pages.borrow().is_much_journaled() {
                        self.checkpoint().await?;
                    }
                }
                _ => {
                    self.empty_journal().await?;
                    self.write_epoch().await?;
                }
            }
        }
    }

    /// Appends an epoch to the journal, durably.
    async fn append(&self, journal: &Journal, epoch: &Epoch) -> Result<()> {
        // It may name pages that were written early.
        if self.is_early.replace(false) {
            self.places.array().flush().await?;
        }
        let length =
            || Length { db_bytes: epoch.len, zeros_from: self.pages.borrow().zeros_from() };
        while !journal.append(self.places.array(), &epoch.pages, length()).await? {
            self.checkpoint().await?;
        }
        Ok(())
    }

    /// Writes the first epoch to its place, durably. Nothing is journaled.
    async fn write_epoch(&self) -> Result<()> {
        let Some(epoch) = self.pages.borrow().next_epoch() else { return Ok(()) };
        let zeros = self.pages.borrow().zeros(epoch.len);
        self.write_in_place(&epoch.pages, zeros).await?;
        if epoch.len != self.stored_len.replace(epoch.len) {
            let journal = self.journal.as_ref().map(Journal::tail);
            self.places.write_header(epoch.len, journal, false).await?;
        }
        self.is_early.set(false);
        self.places.array().flush().await?;
        self.pages.borrow_mut().epoch_written();
        Ok(())
    }

    /// Writes pages, and zeros around them, that are not journaled. The journal has their checksums
    /// before, and no pages. The caller holds `writing`.
    async fn write_in_place(&self, pages: &BTreeMap<u64, Page>, zeros: Range<u64>) -> Result<()> {
        let Some(journal) = self.journal.as_ref().filter(|_| self.places.has_sums()) else {
            self.places.write(pages).await?;
            return self.places.write_zeros(zeros, pages).await;
        };
        if !zeros.is_empty() {
            self.append_sums(journal, &[], &zeros).await?;
            self.places.write_zeros(zeros, pages).await?;
        }
        // A part is written before the journal may be cut to make room for the next one.
        let mut rest = pages.iter().map(|(number, page)| (*number, page.clone())).peekable();
        while rest.peek().is_some() {
            let part: BTreeMap<u64, Page> = rest.by_ref().take(SUMS_MAX).collect();
            let sums: Vec<(u64, u32)> =
                part.iter().map(|(number, page)| (*number, sum_of(&page[..]))).collect();
            self.append_sums(journal, &sums, &(0..0)).await?;
            self.places.write(&part).await?;
        }
        Ok(())
    }

    async fn append_sums(
        &self,
        journal: &Journal,
        sums: &[(u64, u32)],
        zeros: &Range<u64>,
    ) -> Result<()> {
        while !journal.append_sums(self.places.array(), sums, zeros).await? {
            self.cut_sums(journal).await?;
        }
        Ok(())
    }

    /// The journal has only checksums: what they are of is written, and they go to the table.
    async fn cut_sums(&self, journal: &Journal) -> Result<()> {
        let head = journal.head();
        self.places.write_sums().await?;
        self.places.array().flush().await?;
        self.places.write_header(self.stored_len.get(), Some(head), true).await?;
        journal.cut(head);
        Ok(())
    }

    /// The journal has no pages any more. The caller holds `writing`.
    async fn empty_journal(&self) -> Result<()> {
        match self.journal.as_ref().is_some_and(Journal::has_pages) {
            true => self.checkpoint().await,
            false => Ok(()),
        }
    }

    /// Writes what is journaled to its place. The caller holds `writing`.
    async fn checkpoint(&self) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if !journal.has_pages() {
            return match journal.tail() == journal.head() && self.places.has_sums_written() {
                true => Ok(()),
                false => self.cut_sums(journal).await,
            };
        }
        let ((pages, len), head) = (self.pages.borrow().journaled(), journal.head());
        self.places.write(&pages).await?;
        self.end_checkpoint(journal, &pages, len, head).await
    }

    /// These pages of a database of `len` bytes are in their places: the journal starts at `head`
    /// from now on.
    async fn end_checkpoint(
        &self,
        journal: &Journal,
        pages: &BTreeMap<u64, Page>,
        len: u64,
        head: Tail,
    ) -> Result<()> {
        let zeros = self.pages.borrow().zeros(len);
        self.places.write_zeros(zeros, pages).await?;
        self.places.write_sums().await?;
        self.is_early.set(false);
        self.places.array().flush().await?;
        self.places.write_header(len, Some(head), true).await?;
        self.stored_len.set(len);
        journal.cut(head);
        self.pages.borrow_mut().checkpointed(pages, len);
        Ok(())
    }
}

/// The parts of a range of bytes: page, where in it, and how many bytes are before the part.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = usize::try_from(at % BLOCK_BYTES).expect("less than a page");
        let part = within..BLOCK.min(within + len - done);
        let before = done;
        done += part.len();
        (!part.is_empty()).then_some((at / BLOCK_BYTES, part, before))
    })
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.0.get();
        inner.check(offset, out.len())?;
        for (number, part, before) in parts(offset, out.len()) {
            let out = &mut out[before..before + part.len()];
            match inner.page(number)? {
                Some(page) => out.copy_from_slice(&page[part]),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let inner = self.0.get();
        inner.check(0, 0)?;
        if len > inner.places.bytes() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inner.pages.borrow_mut().set_len(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let inner = self.0.get();
        inner.check(0, 0)?;
        inner.pages.borrow_mut().sync();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let inner = self.0.get();
        inner.check(offset, data.len())?;
        for (number, part, before) in parts(offset, data.len()) {
            let data = &data[before..before + part.len()];
            let page = match data.try_into() {
                Ok(whole) => Rc::new(whole),
                Err(_) => {
                    let mut page = inner.page(number)?.unwrap_or_else(|| Rc::new([0; BLOCK]));
                    Rc::make_mut(&mut page)[part].copy_from_slice(data);
                    page
                }
            };
            inner.make_room()?;
            inner.pages.borrow_mut().put_changed(number, page);
        }
        Ok(())
    }
}

/// What redb gets to know of a failure.
fn waited<T>(result: std::result::Result<Result<T>, fiber::Cancelled>) -> io::Result<T> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(io::Error::other(error.to_string())),
        Err(cancelled) => Err(io::Error::other(cancelled)),
    }
}

fn outside(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use futures_util::future::{Either, join, select};
    use weft_rt::Frozen;

    use super::*;
    use crate::meta::header;
    use crate::meta::tests::with_array;

    const ID: Id = Id([8; 16]);

    /// An image with the fewest pages in memory, of what the array has.
    async fn reopened(array: &Array) -> Image {
        let stored = header::read(array, ID).await.expect("read");
        let areas = Areas::of(array.size_bytes(), true, true).expect("room");
        Image::open(array.clone(), ID, &areas, stored, 0).await.expect("opened")
    }

    /// A new image, with the fewest pages in memory.
    async fn new(array: &Array) -> Image {
        new_in(array, 0).await
    }

    async fn new_in(array: &Array, bytes: u64) -> Image {
        let areas = Areas::of(array.size_bytes(), true, true).expect("room");
        // What was there before is not zeros.
        for at in (0..4).map(|n| areas.db.at(n << 20)) {
            array.write(at, Frozen::copy_from(&[9; 1 << 20]), false).await.expect("written");
        }
        let stored = HeaderFields::NEW;
        let image = Image::open(array.clone(), ID, &areas, stored, bytes).await.expect("opened");
        write(&image, 8, 0..8, 1).await;
        image.checkpoint().await.expect("written");
        image
    }

    /// A sync of a database of so many pages, of which some are written.
    async fn write(image: &Image, len: u64, pages: Range<u64>, of: u8) {
        let fiber = image.clone();
        let written = fiber::run(move || {
            fiber.set_len(len * BLOCK_BYTES)?;
            pages.into_iter().try_for_each(|page| fiber.write(page * BLOCK_BYTES, &[of; BLOCK]))?;
            fiber.sync_data()
        });
        written.await.expect("written");
        image.write_epochs().await.expect("durable");
    }

    /// Writes the first pages over and over until a checkpoint is due; gives what was written last.
    async fn until_due(image: &Image, first: u8) -> u8 {
        for of in first.. {
            write(image, 40, 0..3, of).await;
            if image.0.get().journal.as_ref().is_some_and(Journal::is_half_full) {
                return of;
            }
        }
        unreachable!("the journal is small")
    }

    async fn contents(image: &Image) -> Vec<u8> {
        let fiber = image.clone();
        let read = fiber::run(move || {
            let mut all = vec![0; usize::try_from(fiber.bytes()).expect("few")];
            fiber.read(0, &mut all).map(|()| all)
        });
        read.await.expect("read").chunks(BLOCK).map(|page| page[0]).collect()
    }

    /// What the journal knows nothing of, in a part of the database that only the journal knows.
    #[test]
    fn pages_that_were_written_early_are_there_after_a_crash() {
        with_array(|array| async move {
            let image = new(&array).await;
            // Of these the last two are in the journal.
            write(&image, 40, 8..34, 2).await;
            let expected = [vec![1; 8], vec![2; 26], vec![0; 6]].concat();
            assert_eq!(contents(&image).await, expected);
            let stored = header::read(&array, ID).await.expect("read");
            assert_eq!(stored.db_bytes, 8 * BLOCK_BYTES, "there was no checkpoint");
            drop(image);
            assert_eq!(contents(&reopened(&array).await).await, expected);
        });
    }

    /// Pages in the journal are older than what was written to their places early.
    #[test]
    fn what_is_journaled_does_not_come_back_over_newer_pages() {
        with_array(|array| async move {
            let image = new(&array).await;
            write(&image, 40, 0..2, 2).await;
            write(&image, 40, 0..26, 3).await;
            let expected = [vec![3; 26], vec![0; 14]].concat();
            drop(image);
            assert_eq!(contents(&reopened(&array).await).await, expected);
        });
    }

    #[test]
    fn a_database_that_was_cut_and_grew_again_has_zeros() {
        with_array(|array| async move {
            let image = new(&array).await;
            write(&image, 40, 8..12, 2).await;
            write(&image, 10, 0..1, 3).await;
            write(&image, 40, 1..2, 4).await;
            let expected = [vec![3, 4], vec![1; 6], vec![2; 2], vec![0; 30]].concat();
            assert_eq!(contents(&image).await, expected);
            drop(image);
            assert_eq!(contents(&reopened(&array).await).await, expected);
        });
    }

    /// What its second step would write has been written early, newer, after the first.
    #[test]
    fn a_step_of_a_checkpoint_leaves_what_was_written_early() {
        with_array(|array| async move {
            let image = new_in(&array, 2 << 20).await;
            for n in 0..3 {
                write(&image, 600, n * 25..n * 25 + 25, 2).await;
            }
            let (journaled, _) = image.0.get().pages.borrow().journaled();
            assert!(journaled.len() > STEP_PAGES, "{} pages", journaled.len());
            let (stepped, ()) =
                join(image.checkpoint_in_steps(), write(&image, 600, 60..600, 3)).await;
            stepped.expect("written");
            let expected = [vec![2; 60], vec![3; 540]].concat();
            drop(image);
            assert_eq!(contents(&reopened(&array).await).await, expected);
        });
    }

    /// Between its steps commits and early writes have a turn.
    #[test]
    fn a_checkpoint_in_steps_leaves_what_is_newer() {
        with_array(|array| async move {
            let image = new(&array).await;
            for of in 2..6 {
                write(&image, 40, 0..3, of).await;
            }
            image.checkpoint_in_steps().await.expect("not due");
            let before = header::read(&array, ID).await.expect("read");
            let of = until_due(&image, 6).await;
            let stepping = image.clone();
            let (stepped, ()) = join(stepping.checkpoint_in_steps(), async {
                write(&image, 40, 1..2, 200).await;
                write(&image, 40, 2..28, 201).await;
            })
            .await;
            stepped.expect("written");
            let stored = header::read(&array, ID).await.expect("read");
            assert!(stored.journal != before.journal, "it was due");
            let expected = [vec![of, 200], vec![201; 26], vec![0; 12]].concat();
            assert_eq!(contents(&image).await, expected);
            drop(image);
            assert_eq!(contents(&reopened(&array).await).await, expected);
        });
    }

    /// Its checkpoint must not take a record for dead of which it has not seen the pages.
    #[test]
    fn a_commit_that_is_on_its_way_outlives_a_checkpoint_in_steps() {
        with_array(|array| async move {
            let image = new(&array).await;
            let of = until_due(&image, 2).await;
            let head = || image.0.get().journal.as_ref().expect("there is one").head();
            let before = head();
            let begun = poll_fn(|_| if head() == before { Poll::Pending } else { Poll::Ready(()) });
            let writing = pin!(write(&image, 40, 1..2, 200));
            let Either::Right(((), writing)) = select(writing, begun).await else {
                panic!("it was durable at once");
            };
            let (stepped, ()) = join(image.checkpoint_in_steps(), writing).await;
            stepped.expect("written");
            let expected = [vec![of, 200, of], vec![1; 5], vec![0; 32]].concat();
            assert_eq!(contents(&reopened(&array).await).await, expected);
        });
    }
}
