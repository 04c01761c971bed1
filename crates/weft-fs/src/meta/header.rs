//! The parts of the metadata array, and its header.
//!
//! The parts of a new file system follow from the size of the array. When the metadata grows, the
//! array gets larger first, and then the header has another *piece* behind all that there was:
//! pages of the database, and the rest of the table of checksums that these need. Nothing moves.
//! Before the array gets larger for the first time, the header says how large it was when the parts
//! were laid out (version 6). The header is one sector, so a crash leaves a piece or none.
//!
//! ```text
//!   header  log  journal  database  checksums │ database  checksums │ database  checksums
//!   ◀────────── base_bytes ─────────────────▶ ◀───── piece ───────▶ ◀───── piece ───────▶
//! ```

use std::ops::Range;
use std::rc::Rc;

use weft_array::{Array, Id};
use weft_rt::Buf;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::journal::Tail;
use super::room;
use super::spans::Spans;
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
/// As 4, and the parts do not follow from the size of the array.
const IN_PIECES: u32 = 6;
/// The version without a page journal, and without parts.
const OLD_NO_JOURNAL: u32 = 1;
/// Bytes of the header: it is written as one sector.
const HEADER_BYTES: usize = 512;
/// Where the log starts.
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

/// Where the journal starts; behind it.
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

/// The most pieces.
const PIECES_MAX: usize = 24;

/// Where the parts are, if that does not follow from the size of the array; behind the journal's
/// part.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PiecesPart {
    /// Of this part.
    crc32c: U32,
    count: U32,
    base_bytes: U64,
    pieces: [RawPiece; PIECES_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct RawPiece {
    db_bytes: U64,
    sums_bytes: U64,
}

const _: () = assert!(
    size_of::<Header>() + size_of::<JournalPart>() + size_of::<PiecesPart>() <= HEADER_BYTES
);

/// What the metadata got when it grew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes of the database.
    pub(super) db_bytes: u64,
    /// Bytes of the table of checksums, behind them.
    pub(super) sums_bytes: u64,
}

/// Where the parts are, in metadata that grows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pieces {
    /// The size of the array when it was made.
    pub(super) base_bytes: u64,
    /// What came behind that.
    pub(super) pieces: Vec<Piece>,
}

impl Pieces {
    /// Metadata that was never given more.
    pub(super) fn none(array_bytes: u64) -> Self {
        Self { base_bytes: array_bytes / BLOCK_BYTES * BLOCK_BYTES, pieces: Vec::new() }
    }

    /// Whether there may be another piece.
    pub(super) fn may_grow(&self) -> bool {
        self.pieces.len() < PIECES_MAX
    }

    /// Bytes of the array that have a meaning.
    pub(super) fn end(&self) -> u64 {
        let bytes = |piece: &Piece| piece.db_bytes.saturating_add(piece.sums_bytes);
        self.pieces.iter().map(bytes).fold(self.base_bytes, u64::saturating_add)
    }

    /// With another piece, so that a database with these areas may have `capacity` bytes.
    pub(super) fn with(&self, areas: &Areas, capacity: u64) -> Self {
        let db_bytes = capacity.saturating_sub(areas.db.bytes()).next_multiple_of(BLOCK_BYTES);
        let table = table_bytes(areas.db.bytes() + db_bytes) + BLOCK_BYTES;
        let sums_bytes = table.saturating_sub(areas.sums.bytes());
        let mut pieces = self.pieces.clone();
        pieces.push(Piece { db_bytes, sums_bytes });
        Self { pieces, ..*self }
    }
}

/// What the header says.
#[derive(Debug, Clone)]
pub(super) struct HeaderFields {
    /// The length of the database.
    pub(super) db_bytes: u64,
    /// Where the page journal starts. None: this file system was made without one.
    pub(super) journal: Option<Tail>,
    /// Whether there is a table of checksums.
    pub(super) has_sums: bool,
    /// Where the parts are. None: that follows from the size of the array.
    pub(super) pieces: Option<Rc<Pieces>>,
}

impl HeaderFields {
    /// That of a new file system.
    pub(super) const NEW: Self =
        Self { db_bytes: 0, journal: Some(Tail::NEW), has_sums: true, pieces: None };
}

/// The parts of the metadata array.
#[derive(Debug, Clone)]
pub(super) struct Areas {
    /// The RAID log.
    pub(super) log: Range<u64>,
    /// The page journal.
    pub(super) journal: Range<u64>,
    /// The database.
    pub(super) db: Spans,
    /// The checksums of its pages.
    pub(super) sums: Spans,
}

/// Bytes of a metadata array whose database may have this number of bytes of pages.
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
        let sums = Spans::new(db.end..end);
        Ok(Self { log, journal, db: Spans::new(db), sums })
    }

    /// Those of an array of `size` bytes whose header says this.
    pub(super) fn stored(size: u64, stored: &HeaderFields) -> Result<Self> {
        let has_journal = stored.journal.is_some();
        let Some(pieces) = &stored.pieces else {
            return Self::of(size, has_journal, stored.has_sums);
        };
        if pieces.end() > size {
            return Err(FsError::Damaged("its header names parts that are not there".into()));
        }
        let mut areas = Self::of(pieces.base_bytes, has_journal, stored.has_sums)?;
        let mut at = pieces.base_bytes;
        for piece in &pieces.pieces {
            areas.db.push(at..at + piece.db_bytes);
            at += piece.db_bytes;
            areas.sums.push(at..at + piece.sums_bytes);
            at += piece.sums_bytes;
        }
        match table_bytes(areas.db.bytes()) <= areas.sums.bytes() || !stored.has_sums {
            true => Ok(areas),
            false => Err(FsError::Damaged("its header names too few checksums".into())),
        }
    }

    /// Those with a table of checksums, for a file system that has none yet: if its database may
    /// become as large as before.
    pub(super) fn upgraded(size: u64, stored: &HeaderFields) -> Option<Self> {
        let before = Self::of(size, true, false).ok()?;
        let after = Self::of(size, true, true).ok()?;
        let capacity = |areas: &Self| areas.db.bytes();
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
            write(array, fs_id, &stored, true).await?;
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
    if !(OLD_NO_JOURNAL..=IN_PIECES).contains(&version) {
        let why = format!("metadata of version {version}: this weft reads up to {IN_PIECES}");
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
    let has_sums = matches!(version, VERSION | IN_PIECES);
    let pieces = match version {
        IN_PIECES => Some(Rc::new(decode_pieces(rest)?)),
        _ => None,
    };
    let stored = HeaderFields { db_bytes: raw.db_bytes.get(), journal, has_sums, pieces };
    if stored.db_bytes > Areas::stored(size, &stored)?.db.bytes() {
        return Err(damaged("the database is longer than its place"));
    }
    Ok(stored)
}

/// Where the parts are, from what is behind the first part of a header.
fn decode_pieces(rest: &[u8]) -> Result<Pieces> {
    let damaged = || FsError::Damaged("its header does not say where its parts are".to_owned());
    let part = rest.get(size_of::<JournalPart>()..).ok_or_else(damaged)?;
    let (mut raw, _) = PiecesPart::read_from_prefix(part).map_err(|_| damaged())?;
    let stored = std::mem::replace(&mut raw.crc32c, U32::ZERO);
    let count = usize::try_from(raw.count.get()).unwrap_or(usize::MAX);
    let is_whole = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES) && bytes < 1 << 56;
    let read = |piece: &RawPiece| {
        let (db_bytes, sums_bytes) = (piece.db_bytes.get(), piece.sums_bytes.get());
        (is_whole(db_bytes) && is_whole(sums_bytes)).then_some(Piece { db_bytes, sums_bytes })
    };
    let pieces = raw.pieces.get(..count).and_then(|pieces| pieces.iter().map(read).collect());
    let base_bytes = raw.base_bytes.get();
    match pieces {
        Some(pieces) if stored.get() == crc32c(raw.as_bytes()) && is_whole(base_bytes) => {
            Ok(Pieces { base_bytes, pieces })
        }
        _ => Err(damaged()),
    }
}

fn encode_pieces(pieces: &Pieces) -> PiecesPart {
    let none = RawPiece { db_bytes: U64::ZERO, sums_bytes: U64::ZERO };
    let mut raw = PiecesPart {
        crc32c: U32::ZERO,
        count: U32::new(u32::try_from(pieces.pieces.len()).expect("at most 24")),
        base_bytes: U64::new(pieces.base_bytes),
        pieces: [none; PIECES_MAX],
    };
    for (piece, to) in pieces.pieces.iter().zip(&mut raw.pieces) {
        let Piece { db_bytes, sums_bytes } = *piece;
        *to = RawPiece { db_bytes: U64::new(db_bytes), sums_bytes: U64::new(sums_bytes) };
    }
    raw.crc32c = U32::new(crc32c(raw.as_bytes()));
    raw
}

/// Writes the header; with `durable` it is so on return.
pub(super) async fn write(
    array: &Array,
    fs_id: Id,
    stored: &HeaderFields,
    durable: bool,
) -> Result<()> {
    Ok(array.write(0, encode(fs_id, stored).freeze(), durable).await?)
}

fn encode(fs_id: Id, stored: &HeaderFields) -> Buf {
    let version = match (stored.journal, stored.has_sums) {
        (None, _) => NO_JOURNAL,
        (Some(_), false) => NO_SUMS,
        (Some(_), true) if stored.pieces.is_some() => IN_PIECES,
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
    if let (IN_PIECES, Some(pieces)) = (version, &stored.pieces) {
        let at = size_of::<JournalPart>();
        let raw = encode_pieces(pieces);
        rest[at..at + size_of::<PiecesPart>()].copy_from_slice(raw.as_bytes());
    }
    sector
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
            let capacity = areas.db.bytes();
            assert!(room::pages_bytes(capacity) >= pages, "{pages}");
            assert!(areas.sums.at(areas.sums.bytes()) <= size);
            assert_eq!(areas.db.at(0) + capacity, areas.sums.at(0));
            let longest = HeaderFields { db_bytes: capacity + 1, ..stored.clone() };
            assert!(Areas::upgraded(size, &stored).is_some(), "{pages}");
            assert!(Areas::upgraded(size, &longest).is_none(), "{pages}");
        }
        // One that has just enough for 1 GiB of pages.
        let exact = room::capacity_for(1024 * MIB) + LOG_AT + LOG_BYTES.end + JOURNAL_BYTES.end;
        assert!(Areas::of(exact, true, false).is_ok());
        assert!(Areas::upgraded(exact, &stored).is_none());
        assert!(Areas::upgraded(64 * MIB, &HeaderFields { journal: None, ..stored }).is_none());
    }

    /// The bytes of headers as they are on disks.
    #[test]
    fn headers_are_as_they_have_always_been() {
        let id = Id([5; 16]);
        let of = |stored: &HeaderFields| {
            let sector = encode(id, stored);
            (sector[12], crc32c(&sector))
        };
        let tail = Tail { generation: 3, number: 17, position: 9 << 12 };
        let plain =
            HeaderFields { db_bytes: 3 * MIB, journal: Some(tail), has_sums: true, pieces: None };
        let without = HeaderFields { journal: None, has_sums: false, ..plain.clone() };
        let unsummed = HeaderFields { has_sums: false, ..plain.clone() };
        let base = Pieces::none(7 * MIB + 512);
        assert_eq!(base.base_bytes, 7 * MIB);
        let grown = HeaderFields { pieces: Some(Rc::new(base.clone())), ..plain.clone() };
        let areas = Areas::stored(7 * MIB, &grown).expect("room");
        let pieces = Rc::new(base.with(&areas, 17 * MIB));
        let grown = HeaderFields { pieces: Some(pieces), ..plain.clone() };
        let all = [&plain, &without, &unsummed, &grown].map(of);
        assert_eq!(
            all,
            [(4, 3_922_998_640), (5, 1_700_996_266), (3, 3_418_158_136), (6, 481_439_085)]
        );
        let sector = encode(id, &grown);
        let found = decode_header(&sector, 64 * MIB, id).expect("right");
        assert_eq!((found.pieces, found.journal), (grown.pieces.clone(), Some(tail)));
        for at in [80, 84, 88, 96, 104, 400] {
            let mut bad = sector.to_vec();
            bad[at] ^= 1;
            assert!(decode_header(&bad, 64 * MIB, id).is_err(), "byte {at}");
        }
        assert!(decode_header(&sector, 8 * MIB, id).is_err(), "an array that is too small");
    }

    #[test]
    fn pieces_lie_behind_each_other_and_have_all_checksums() {
        let mut pieces = Pieces::none(9 * MIB);
        let with = |pieces: &Pieces| HeaderFields {
            pieces: Some(Rc::new(pieces.clone())),
            ..HeaderFields::NEW
        };
        let base = Areas::of(9 * MIB, true, true).expect("room");
        assert_eq!(Areas::stored(9 * MIB, &with(&pieces)).expect("room").db, base.db);
        let (mut capacity, mut end) = (base.db.bytes(), 9 * MIB);
        while pieces.may_grow() {
            capacity = capacity * 3 / 2 + 12345;
            let areas = Areas::stored(u64::MAX, &with(&pieces)).expect("room");
            pieces = pieces.with(&areas, capacity);
            let now = Areas::stored(pieces.end(), &with(&pieces)).expect("room");
            assert!(now.db.bytes() >= capacity && now.db.bytes() < capacity + BLOCK_BYTES);
            assert!(table_bytes(now.db.bytes()) <= now.sums.bytes());
            assert_eq!((now.db.at(0), now.log.clone()), (base.db.at(0), base.log.clone()));
            assert_eq!(now.db.at(areas.db.bytes()), end, "behind all that there was");
            end = pieces.end();
        }
        assert_eq!(pieces.pieces.len(), PIECES_MAX);
        assert!(Areas::stored(pieces.end() - 1, &with(&pieces)).is_err());
    }
}
