//! The metadata: a redb database on a mirrored array, behind an [`Image`] in memory.
//!
//! One write transaction is always open. Every operation is a closure that runs in it without
//! interruption ([`Meta::run`]), and sees what those before it did. A commit ends the transaction
//! and writes its epochs; meanwhile operations go on in the next one. An operation checks
//! everything before it changes anything: what it has changed cannot be undone alone.
//!
//! ```text
//! array    0       header: magic, version, identity, length of the database, CRC32C
//!          64 KiB  RAID log
//!          …       database
//! ```

mod bad;
mod changes;
mod image;
mod maps;
mod room;
mod tables;

use std::cell::{Cell, RefCell};
use std::ops::Range;

use redb::{Builder, Database, WriteTransaction};
use weft_array::{Array, Id};
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, Frozen};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::block::{BLOCK, BLOCK_BYTES};
use crate::checksum::crc32c;
use crate::error::{FsError, InDatabase as _, Result};
use crate::inode::Ino;
use changes::Changes;
use image::Image;
pub(crate) use room::step_below;
pub(crate) use tables::{DiskRow, Entry, Tx};

const MAGIC: [u8; 8] = *b"weftmeta";
const VERSION: u32 = 1;
/// Bytes of the header: it is written as one sector.
const HEADER_BYTES: usize = 512;
/// Where the log begins.
const LOG_AT: u64 = 64 << 10;
/// Bytes of the log.
const LOG_BYTES: Range<u64> = 256 << 10..64 << 20;
/// Bytes that redb itself may keep of the image.
const CACHE_BYTES: usize = 16 << 20;
/// Bytes of all rows, in the state.
const ROW_BYTES: &str = "row bytes";
/// Bytes of one write to the array at most.
const WRITE_BYTES_MAX: usize = 1 << 20;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    crc32c: U32,
    version: U32,
    fs_id: [u8; 16],
    db_bytes: U64,
}

/// The parts of the metadata array.
#[derive(Debug, Clone)]
pub(crate) struct Areas {
    /// The RAID log.
    pub(crate) log: Range<u64>,
    /// The database.
    pub(crate) db: Range<u64>,
}

/// Bytes of a metadata array whose database may have so many bytes of pages.
pub(crate) fn array_bytes(pages: u64) -> u64 {
    let db = room::capacity_for(pages) + LOG_AT;
    (db / 7 * 8 + BLOCK_BYTES).min(db + LOG_BYTES.end)
}

impl Areas {
    fn of(size: u64) -> Result<Self> {
        let log_bytes = (size / 8).clamp(LOG_BYTES.start, LOG_BYTES.end);
        let log = LOG_AT..LOG_AT + log_bytes / BLOCK_BYTES * BLOCK_BYTES;
        let db = log.end..size / BLOCK_BYTES * BLOCK_BYTES;
        if db.end < db.start + (2 << 20) {
            return Err(FsError::Invalid("the metadata slices are too small".into()));
        }
        Ok(Self { log, db })
    }
}

/// The metadata of a mounted file system.
pub(crate) struct Meta {
    pub(crate) array: Array,
    fs_id: Id,
    areas: Areas,
    image: Image,
    db: Database,
    open: RefCell<Option<WriteTransaction>>,
    /// Held while a commit is under way.
    committing: Semaphore,
    /// Why no more requests are taken.
    failed: RefCell<Option<String>>,
    db_bytes: Cell<u64>,
    changes: Changes,
}

impl Meta {
    /// Makes an empty database.
    pub(crate) async fn create(array: Array, fs_id: Id) -> Result<Self> {
        let meta = Self::with(array, fs_id, Vec::new())?;
        meta.write_epochs().await?;
        Ok(meta)
    }

    /// Opens the database that is on the array.
    pub(crate) async fn open(array: Array, fs_id: Id) -> Result<Self> {
        let (result, header) = array.read(0, Buf::new(BLOCK)).await;
        result?;
        let damaged = |why: &str| FsError::Damaged(why.to_owned());
        let (mut raw, _) =
            Header::read_from_prefix(&header[..]).map_err(|_| damaged("its header is short"))?;
        let stored = std::mem::replace(&mut raw.crc32c, U32::ZERO);
        if raw.magic != MAGIC || stored.get() != crc32c(raw.as_bytes()) {
            return Err(damaged("its header cannot be read"));
        }
        if raw.version.get() != VERSION {
            let why = format!("metadata of version {}, and not {VERSION}", raw.version);
            return Err(FsError::Unmountable(why));
        }
        if raw.fs_id != fs_id.0 {
            return Err(damaged("it belongs to another file system"));
        }
        let Range { start, end } = Areas::of(array.size_bytes())?.db;
        if raw.db_bytes.get() > end - start {
            return Err(damaged("the database is longer than its place"));
        }
        let len = usize::try_from(raw.db_bytes.get()).map_err(|_| FsError::TooLarge)?;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let step = (len - bytes.len()).min(WRITE_BYTES_MAX);
            let buf = Buf::new(step.next_multiple_of(BLOCK));
            let (result, buf) = array.read(start + bytes.len() as u64, buf).await;
            result?;
            bytes.extend_from_slice(&buf[..step]);
        }
        let meta = Self::with(array, fs_id, bytes)?;
        meta.write_epochs().await?;
        // Older versions did not store it.
        let stored = meta.run(|tx| tx.state(ROW_BYTES)).await?;
        let rows = match stored {
            0 => meta.run(|tx| tx.count_row_bytes()).await?,
            _ => stored,
        };
        meta.changes.set_row_bytes(rows);
        Ok(meta)
    }

    fn with(array: Array, fs_id: Id, bytes: Vec<u8>) -> Result<Self> {
        let areas = Areas::of(array.size_bytes())?;
        let capacity = usize::try_from(areas.db.end - areas.db.start).unwrap_or(usize::MAX);
        let db_bytes = Cell::new(bytes.len() as u64);
        let image = Image::new(bytes, capacity);
        let db =
            Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(image.clone()).db()?;
        let open = RefCell::new(Some(begin(&db)?));
        let (committing, failed) = (Semaphore::new(1), RefCell::default());
        let changes = Changes::default();
        Ok(Self { array, fs_id, areas, image, db, open, committing, failed, db_bytes, changes })
    }

    /// The log's place on the array.
    pub(crate) fn log_area(&self) -> Range<u64> {
        self.areas.log.clone()
    }

    /// Bytes of all rows, and the most that there may be.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let most = room::row_bytes_max(self.areas.db.end - self.areas.db.start);
        (self.changes.row_bytes(), most)
    }

    /// Whether there may be more files, names, attributes and places.
    pub(crate) fn has_room(&self) -> bool {
        let (rows, most) = self.usage();
        rows < most
    }

    /// Whether the rows have as many bytes as was counted.
    pub(crate) fn is_counted(&self, tx: &Tx<'_>) -> Result<bool> {
        Ok(tx.count_row_bytes()? == self.changes.row_bytes())
    }

    fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(why) => Err(FsError::Stopped(why.clone())),
            None => Ok(()),
        }
    }

    /// Whether no more requests are taken.
    pub(crate) fn is_failed(&self) -> bool {
        self.check().is_err()
    }

    /// Takes no more requests.
    pub(crate) fn fail(&self, why: &str) {
        self.failed.borrow_mut().get_or_insert_with(|| why.to_owned());
    }

    /// Runs an operation. An error of the database itself ends everything: the transaction may hold
    /// a part of the operation.
    ///
    /// It does not wait today. It may once the image holds only a part of the database.
    #[allow(clippy::unused_async, reason = "callers must expect other operations meanwhile")]
    pub(crate) async fn run<T>(&self, operation: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        self.check()?;
        let open = self.open.borrow();
        let tx = open.as_ref().ok_or_else(|| FsError::Stopped("no transaction".into()))?;
        let result = operation(&Tx::new(tx, &self.changes));
        if let Err(FsError::Database(error)) = &result {
            self.fail(&error.to_string());
        }
        result
    }

    /// Whether there is nothing to commit. What was being committed is durable when this returns.
    pub(crate) async fn is_settled(&self) -> Result<bool> {
        let _none = self.committing.acquire(1).await;
        self.check()?;
        Ok(!self.changes.any())
    }

    /// Ends the transaction, with `last` as its last operation. When this returns it is durable, and
    /// so is every one before it.
    pub(crate) async fn commit<T>(&self, last: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        let _alone = self.committing.acquire(1).await;
        let last = |tx: &Tx<'_>| {
            let given = last(tx)?;
            tx.set_state(ROW_BYTES, self.changes.row_bytes())?;
            Ok(given)
        };
        let given = self.run(last).await?;
        self.changes.begin_commit();
        let open = self.open.borrow_mut().take();
        let next = open.map(|open| open.commit().db()).transpose().and_then(|_| begin(&self.db));
        match next {
            Ok(next) => *self.open.borrow_mut() = Some(next),
            Err(error) => {
                self.fail(&error.to_string());
                return Err(error);
            }
        }
        if let Err(error) = self.write_epochs().await {
            self.fail(&error.to_string());
            return Err(error);
        }
        self.changes.end_commit();
        Ok(given)
    }

    /// Whether a file was changed, since the last durable commit, in a way that the RAID log does not
    /// have. Fails if no more requests are taken.
    pub(crate) fn has_changed(&self, ino: Ino) -> Result<bool> {
        self.check()?;
        Ok(self.changes.has(ino))
    }

    /// Whether a line got another column since the last durable commit.
    pub(crate) fn is_reshaped(&self, ino: Ino, block: u64) -> bool {
        self.changes.is_reshaped(ino, block)
    }

    /// Writes the image's epochs to the array.
    async fn write_epochs(&self) -> Result<()> {
        while let Some(epoch) = self.image.next_epoch() {
            let mut run: Vec<u8> = Vec::new();
            let mut from = 0;
            for (number, page) in &epoch.pages {
                let follows = from + run.len() / BLOCK == *number;
                if !follows || run.len() >= WRITE_BYTES_MAX {
                    self.write_pages(from, &run).await?;
                    run.clear();
                }
                if run.is_empty() {
                    from = *number;
                }
                run.extend_from_slice(page);
            }
            self.write_pages(from, &run).await?;
            if epoch.len != self.db_bytes.get() {
                self.write_header(epoch.len).await?;
                self.db_bytes.set(epoch.len);
            }
            self.array.flush().await?;
        }
        Ok(())
    }

    async fn write_pages(&self, first: usize, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.areas.db.start + (first * BLOCK) as u64;
        Ok(self.array.write(at, Frozen::copy_from(bytes), false).await?)
    }

    async fn write_header(&self, db_bytes: u64) -> Result<()> {
        let mut raw = Header {
            magic: MAGIC,
            crc32c: U32::ZERO,
            version: U32::new(VERSION),
            fs_id: self.fs_id.0,
            db_bytes: U64::new(db_bytes),
        };
        raw.crc32c = U32::new(crc32c(raw.as_bytes()));
        let mut sector = Buf::zeroed(HEADER_BYTES);
        sector[..size_of::<Header>()].copy_from_slice(raw.as_bytes());
        Ok(self.array.write(0, sector.freeze(), false).await?)
    }
}

fn begin(db: &Database) -> Result<WriteTransaction> {
    let mut open = db.begin_write().db()?;
    open.set_two_phase_commit(true);
    Ok(open)
}
