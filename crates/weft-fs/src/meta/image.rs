//! The database's file: where synchronous redb meets asynchronous disks.
//!
//! redb reads and writes the image, on a fiber ([`weft_rt::fiber`]). A page that is not in memory is
//! read from the metadata array; the fiber waits meanwhile. When redb asks for a sync, the pages that
//! changed since the last one become an epoch, and redb goes on. Epochs are written to the array one
//! after the other, each flushed before the next begins. A disk under redb may hold, after a crash, any
//! part of what was written since the last sync that had ended; the array holds no more than that.
//!
//! *Memory* has a bound ([`super::pages`]). If too much of it has changed, the changed pages are
//! written before redb asks for a sync, behind all epochs: a disk, too, may have them by then.
//!
//! Only the fiber that runs changes pages, and only one runs at a time. So a page that is absent stays
//! as the array has it while it is read, whatever else is written meanwhile.

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
use weft_rt::{Buf, Frozen, Local, ZEROS_BYTES_MAX, fiber};

use super::header;
use super::pages::{Found, MetaCacheCounts, Page, Pages, pages_of};
use crate::block::{BLOCK, BLOCK_BYTES};
use crate::error::Result;

/// Bytes of one write to the array at most.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Pages that are read together, if memory has room for many times more.
const GROUP_MAX: usize = 16;

struct Inner {
    array: Array,
    fs_id: Id,
    /// The database's place on the array.
    place: Range<u64>,
    pages: RefCell<Pages>,
    /// Pages that are read together.
    group: u64,
    /// Held while epochs, or pages before their sync, are written.
    writing: Semaphore,
    /// The length of the database, as the header has it.
    stored_len: Cell<u64>,
    is_closed: Cell<bool>,
}

/// The database's file. Clones are handles of the same one.
#[derive(Clone)]
pub(super) struct Image(Arc<Local<Inner>>);

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").finish_non_exhaustive()
    }
}

impl Image {
    /// The database of `len` bytes at a place of the array, of which about `bytes` may be in memory.
    pub(super) fn new(
        array: Array,
        fs_id: Id,
        place: Range<u64>,
        len: u64,
        bytes: u64,
    ) -> Result<Self> {
        let pages = Pages::new(len, bytes)?;
        let group = (pages.max() / GROUP_MAX).clamp(1, GROUP_MAX) as u64;
        let inner = Inner {
            array,
            fs_id,
            place,
            pages: RefCell::new(pages),
            group,
            writing: Semaphore::new(1),
            stored_len: Cell::new(len),
            is_closed: Cell::new(false),
        };
        Ok(Self(Arc::new(Local::new(inner))))
    }

    /// Bytes of the database.
    pub(super) fn bytes(&self) -> u64 {
        self.0.get().pages.borrow().len
    }

    /// The most pages in memory.
    pub(super) fn pages_max(&self) -> usize {
        self.0.get().pages.borrow().max()
    }

    pub(super) fn counts(&self) -> MetaCacheCounts {
        self.0.get().pages.borrow().counts()
    }

    /// From now on nothing is read or written: what redb does at its end has no meaning any more.
    pub(super) fn close(&self) {
        self.0.get().is_closed.set(true);
    }

    /// Writes all epochs to the array.
    pub(super) async fn write_epochs(&self) -> Result<()> {
        let inner = self.0.get();
        let _one = inner.writing.acquire(1).await;
        inner.write_epochs().await
    }
}

impl Inner {
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
            Found::Here(page) => Ok(Some(page)),
            Found::Zeros => Ok(None),
            Found::Absent => waited(fiber::wait(self.fetch(number))).map(Some),
        }
    }

    /// Reads a page that is absent, and some beside it.
    async fn fetch(&self, number: u64) -> Result<Page> {
        let range = self.pages.borrow().to_read(number, self.group);
        let count = usize::try_from(range.end - range.start).expect("few pages");
        let at = self.place.start + range.start * BLOCK_BYTES;
        let (result, buf) = self.array.read(at, Buf::new(count * BLOCK)).await;
        result?;
        let (whole, _) = buf.as_chunks::<BLOCK>();
        let mut pages = self.pages.borrow_mut();
        let others = range.clone().zip(whole).filter(|(other, _)| *other != number);
        others.for_each(|(other, bytes)| pages.put_read(other, Rc::new(*bytes)));
        let wanted = usize::try_from(number - range.start).expect("few pages");
        let page: Page = Rc::new(whole[wanted]);
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
        let (pages, zeros) = {
            let pages = self.pages.borrow();
            (pages.early(), pages.zeros(pages.len))
        };
        self.write_pages(&pages, zeros).await?;
        self.pages.borrow_mut().early_written(&pages);
        Ok(())
    }

    /// Writes all epochs. The caller holds `writing`.
    async fn write_epochs(&self) -> Result<()> {
        loop {
            let next = self.pages.borrow().next_epoch();
            let Some(epoch) = next else { return Ok(()) };
            let zeros = self.pages.borrow().zeros(epoch.len);
            self.write_pages(&epoch.pages, zeros).await?;
            if epoch.len != self.stored_len.get() {
                header::write(&self.array, self.fs_id, epoch.len).await?;
                self.stored_len.set(epoch.len);
            }
            self.array.flush().await?;
            self.pages.borrow_mut().epoch_written();
        }
    }

    /// Writes pages, and zeros where none of them is in a range.
    async fn write_pages(&self, pages: &BTreeMap<u64, Page>, zeros: Range<u64>) -> Result<()> {
        let mut run: Vec<u8> = Vec::new();
        let (mut from, mut zero) = (0, zeros.start);
        for (number, page) in pages {
            let follows = from + pages_of(run.len() as u64) == *number;
            if !follows || run.len() >= WRITE_BYTES_MAX {
                self.write_run(from, &run).await?;
                run.clear();
            }
            if run.is_empty() {
                from = *number;
            }
            run.extend_from_slice(&page[..]);
            if zeros.contains(number) {
                self.write_zeros(zero..*number).await?;
                zero = number + 1;
            }
        }
        self.write_run(from, &run).await?;
        self.write_zeros(zero..zeros.end).await
    }

    async fn write_run(&self, first: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.place.start + first * BLOCK_BYTES;
        Ok(self.array.write(at, Frozen::copy_from(bytes), false).await?)
    }

    async fn write_zeros(&self, range: Range<u64>) -> Result<()> {
        let step = ZEROS_BYTES_MAX.min(WRITE_BYTES_MAX) as u64;
        let (mut at, end) = (range.start * BLOCK_BYTES, range.end * BLOCK_BYTES);
        while at < end {
            let len = (end - at).min(step);
            let zeros = Frozen::zeros(usize::try_from(len).expect("at most WRITE_BYTES_MAX"));
            self.array.write(self.place.start + at, zeros, false).await?;
            at += len;
        }
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
        if len > inner.place.end - inner.place.start {
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
