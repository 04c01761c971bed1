//! The parts of the metadata array, and its header.

use std::ops::Range;

use weft_array::{Array, Id};
use weft_rt::Buf;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::journal::Tail;
use super::room;
use super::sums::table_bytes;
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;
use crate::raid_log::ring;

const MAGIC: [u8; 8] = *b"weftmeta";
/// Since version 4 there is a table of the pages' checksums.
const VERSION: u32 = 4;
/// Since version 3 long values are cut into parts; before, each was one row, as it still may be.
const NO_SUMS: u32 = 3;
/// Without a page journal: then there is no table of checksums either.
const NO_JOURNAL: u32 = 5;
/// The version without a page journal, and without parts.
const OLD_NO_JOURNAL: u32 = 1;
/// Bytes of the header: it is written as one sector.
const HEADER_BYTES: usize = 512;
/// Where the log begins.
const LOG_AT: u64 = 64 << 10;
/// Bytes of the log.
const LOG_BYTES: Range<u64> = 256 << 10..64 << 20;
/// Bytes of the page journal.
const JOURNAL_BYTES: Range<u64> = 256 << 10..16 << 20;

/// What all versions have.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// Of this part.
    crc32c: U32,
    version: U32,
    fs_id: [u8; 16],
    db_bytes: U64,
}

/// Where the journal begins; behind it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct JournalPart {
    /// Of this part.
    crc32c: U32,
    reserved: U32,
    generation: U64,
    number: U64,
    position: U64,
}

/// What the header says.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeaderFields {
    /// The length of the database.
    pub(super) db_bytes: u64,
    /// Where the page journal begins. None: this file system was made without one.
    pub(super) journal: Option<Tail>,
    /// Whether there is a table of checksums.
    pub(super) has_sums: bool,
}

impl HeaderFields {
    /// That of a new file system.
    pub(super) const NEW: Self = Self { db_bytes: 0, journal: Some(Tail::NEW), has_sums: true };
}

/// The parts of the metadata array.
#[derive(Debug, Clone)]
pub(super) struct Areas {
    /// The RAID log.
    pub(super) log: Range<u64>,
    /// The page journal.
    pub(super) journal: Range<u64>,
    /// The database.
    pub(super) db: Range<u64>,
    /// The checksums of its pages.
    pub(super) sums: Range<u64>,
}

/// Bytes of a metadata array whose database may have so many bytes of pages.
pub(crate) fn array_bytes(pages: u64) -> u64 {
    let db = room::capacity_for(pages);
    // The table is as long as all that is left for both would need.
    let db = db + table_bytes(db + table_bytes(db)) + 2 * BLOCK_BYTES + LOG_AT;
    (db / 13 * 16 + 4 * BLOCK_BYTES).min(db + LOG_BYTES.end + JOURNAL_BYTES.end)
}

impl Areas {
    pub(super) fn of(size: u64, has_journal: bool, has_sums: bool) -> Result<Self> {
        let part = |from: u64, bytes: u64, bounds: Range<u64>| {
            from..from + bytes.clamp(bounds.start, bounds.end) / BLOCK_BYTES * BLOCK_BYTES
        };
        let log = part(LOG_AT, size / 8, LOG_BYTES);
        let journal = match has_journal {
            true => part(log.end, size / 16, JOURNAL_BYTES),
            false => log.end..log.end,
        };
        let mut db = journal.end..size / BLOCK_BYTES * BLOCK_BYTES;
        let end = db.end;
        if has_sums {
            db.end -= table_bytes(db.end.saturating_sub(db.start)).min(db.end);
        }
        if db.end < db.start + (2 << 20) {
            return Err(FsError::Invalid("the metadata slices are too small".into()));
        }
        let sums = db.end..end;
        Ok(Self { log, journal, db, sums })
    }

    /// Those with a table of checksums, for a file system that has none yet: if its database may
    /// become as large as before.
    pub(super) fn upgraded(size: u64, stored: HeaderFields) -> Option<Self> {
        let before = Self::of(size, true, false).ok()?;
        let after = Self::of(size, true, true).ok()?;
        let capacity = |areas: &Self| areas.db.end - areas.db.start;
        let has_room = room::pages_bytes(capacity(&after)) == room::pages_bytes(capacity(&before))
            && stored.db_bytes <= capacity(&after);
        (stored.journal.is_some() && !stored.has_sums && has_room).then_some(after)
    }
}

/// Reads the header: the first copy that is right. All copies have it then, durably.
pub(super) async fn read(array: &Array, fs_id: Id) -> Result<HeaderFields> {
    let size = array.size_bytes();
    let decode = |header: &mut [u8]| decode_header(header, size, fs_id).ok();
    match ring::read_any(array, 0, |_| Some(BLOCK), decode).await? {
        Some((_, stored)) => {
            // With the version of today: an older weft would take long values for empty ones.
            write(array, fs_id, stored, true).await?;
            Ok(stored)
        }
        None => {
            let (result, header) = array.read(0, Buf::new(BLOCK)).await;
            result?;
            decode_header(&header, size, fs_id)
        }
    }
}

fn decode_header(header: &[u8], size: u64, fs_id: Id) -> Result<HeaderFields> {
    let damaged = |why: &str| FsError::Damaged(why.to_owned());
    let (mut raw, rest) =
        Header::read_from_prefix(header).map_err(|_| damaged("its header is short"))?;
    let stored = std::mem::replace(&mut raw.crc32c, U32::ZERO);
    if raw.magic != MAGIC || stored.get() != crc32c(raw.as_bytes()) {
        return Err(damaged("its header cannot be read"));
    }
    let version = raw.version.get();
    if !(OLD_NO_JOURNAL..=NO_JOURNAL).contains(&version) {
        let why = format!("metadata of version {version}: this weft reads up to {NO_JOURNAL}");
        return Err(FsError::Unmountable(why));
    }
    if raw.fs_id != fs_id.0 {
        return Err(damaged("it belongs to another file system"));
    }
    let journal = match version {
        OLD_NO_JOURNAL | NO_JOURNAL => None,
        _ => {
            let (mut raw, _) =
                JournalPart::read_from_prefix(rest).map_err(|_| damaged("its header is short"))?;
            let stored = std::mem::replace(&mut raw.crc32c, U32::ZERO);
            if stored.get() != crc32c(raw.as_bytes()) {
                return Err(damaged("its header does not say where the journal begins"));
            }
            let [generation, number, position] =
                [raw.generation, raw.number, raw.position].map(U64::get);
            Some(Tail { generation, number, position })
        }
    };
    let has_sums = version == VERSION;
    let Range { start, end } = Areas::of(size, journal.is_some(), has_sums)?.db;
    if raw.db_bytes.get() > end - start {
        return Err(damaged("the database is longer than its place"));
    }
    Ok(HeaderFields { db_bytes: raw.db_bytes.get(), journal, has_sums })
}

/// Writes the header; with `durable` it is so on return.
pub(super) async fn write(
    array: &Array,
    fs_id: Id,
    stored: HeaderFields,
    durable: bool,
) -> Result<()> {
    let version = match (stored.journal, stored.has_sums) {
        (None, _) => NO_JOURNAL,
        (Some(_), false) => NO_SUMS,
        (Some(_), true) => VERSION,
    };
    let mut sector = Buf::zeroed(HEADER_BYTES);
    let (first, rest) = sector.split_at_mut(size_of::<Header>());
    let mut raw = Header {
        magic: MAGIC,
        crc32c: U32::ZERO,
        version: U32::new(version),
        fs_id: fs_id.0,
        db_bytes: U64::new(stored.db_bytes),
    };
    raw.crc32c = U32::new(crc32c(raw.as_bytes()));
    first.copy_from_slice(raw.as_bytes());
    if let Some(Tail { generation, number, position }) = stored.journal {
        let mut raw = JournalPart {
            crc32c: U32::ZERO,
            reserved: U32::ZERO,
            generation: U64::new(generation),
            number: U64::new(number),
            position: U64::new(position),
        };
        raw.crc32c = U32::new(crc32c(raw.as_bytes()));
        rest[..size_of::<JournalPart>()].copy_from_slice(raw.as_bytes());
    }
    Ok(array.write(0, sector.freeze(), durable).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn checksums_come_only_where_the_database_may_become_as_large_as_before() {
        let stored = HeaderFields { has_sums: false, ..HeaderFields::NEW };
        // As slices are made by default: there is room for checksums in what the array does not
        // need.
        for pages in [4 * MIB, 64 * MIB, 1024 * MIB, 8192 * MIB] {
            let size = array_bytes(pages);
            let areas = Areas::of(size, true, true).expect("room");
            assert!(room::pages_bytes(areas.db.end - areas.db.start) >= pages, "{pages}");
            assert!(areas.sums.end <= size && areas.db.end == areas.sums.start);
            let longest = HeaderFields { db_bytes: areas.db.end - areas.db.start + 1, ..stored };
            assert!(Areas::upgraded(size, stored).is_some(), "{pages}");
            assert!(Areas::upgraded(size, longest).is_none(), "{pages}");
        }
        // One that has just enough for 1 GiB of pages.
        let exact = room::capacity_for(1024 * MIB) + LOG_AT + LOG_BYTES.end + JOURNAL_BYTES.end;
        assert!(Areas::of(exact, true, false).is_ok());
        assert!(Areas::upgraded(exact, stored).is_none());
        assert!(Areas::upgraded(64 * MIB, HeaderFields { journal: None, ..stored }).is_none());
    }
}
