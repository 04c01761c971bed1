//! The parts of the metadata array, and its header.

use std::ops::Range;

use weft_array::{Array, Id};
use weft_rt::Buf;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::room;
use crate::block::{BLOCK, BLOCK_BYTES};
use crate::checksum::crc32c;
use crate::error::{FsError, Result};

const MAGIC: [u8; 8] = *b"weftmeta";
const VERSION: u32 = 1;
/// Bytes of the header: it is written as one sector.
const HEADER_BYTES: usize = 512;
/// Where the log begins.
const LOG_AT: u64 = 64 << 10;
/// Bytes of the log.
const LOG_BYTES: Range<u64> = 256 << 10..64 << 20;

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
pub(super) struct Areas {
    /// The RAID log.
    pub(super) log: Range<u64>,
    /// The database.
    pub(super) db: Range<u64>,
}

/// Bytes of a metadata array whose database may have so many bytes of pages.
pub(crate) fn array_bytes(pages: u64) -> u64 {
    let db = room::capacity_for(pages) + LOG_AT;
    (db / 7 * 8 + BLOCK_BYTES).min(db + LOG_BYTES.end)
}

impl Areas {
    pub(super) fn of(size: u64) -> Result<Self> {
        let log_bytes = (size / 8).clamp(LOG_BYTES.start, LOG_BYTES.end);
        let log = LOG_AT..LOG_AT + log_bytes / BLOCK_BYTES * BLOCK_BYTES;
        let db = log.end..size / BLOCK_BYTES * BLOCK_BYTES;
        if db.end < db.start + (2 << 20) {
            return Err(FsError::Invalid("the metadata slices are too small".into()));
        }
        Ok(Self { log, db })
    }
}

/// Reads the header: the length of the database.
pub(super) async fn read(array: &Array, fs_id: Id) -> Result<u64> {
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
    Ok(raw.db_bytes.get())
}

/// Writes the header.
pub(super) async fn write(array: &Array, fs_id: Id, db_bytes: u64) -> Result<()> {
    let mut raw = Header {
        magic: MAGIC,
        crc32c: U32::ZERO,
        version: U32::new(VERSION),
        fs_id: fs_id.0,
        db_bytes: U64::new(db_bytes),
    };
    raw.crc32c = U32::new(crc32c(raw.as_bytes()));
    let mut sector = Buf::zeroed(HEADER_BYTES);
    sector[..size_of::<Header>()].copy_from_slice(raw.as_bytes());
    Ok(array.write(0, sector.freeze(), false).await?)
}
