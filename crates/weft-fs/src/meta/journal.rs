//! The page journal: what a commit changes, durable with one write.
//!
//! A commit changes some tens of pages of the database, here and there. Written to their places
//! they cost a disk with platters a seek each, and the commit two flushes: one of the new pages,
//! one of the root that names them. So the epochs of a commit are appended to a ring, as one record
//! with a CRC. A crash leaves all of them or none, which are both states that a disk under redb
//! might have.
//!
//! ```text
//!   epochs ──▶ journal ──── checkpoint ────▶ places
//!              one write,   many pages in    the record is dead
//!              durable      the disks' order
//! ```
//!
//! *Checkpoint.* Pages go to their places later: when much of the ring or of the memory is taken,
//! and at an unmount. Until then they stay in memory, and are read there. One that changes with
//! each commit is written once. Then the disks are flushed, and the header moves the journal's
//! start.
//!
//! *What is not journaled* is written to its place: epochs that would take much of the ring, epochs
//! that shorten the database, and pages that are written early. The journal has no pages before
//! that, durably: a replay would put older pages over them. It gets their new *checksums* before,
//! as records of their own: after a crash each of these pages is old, new, or torn, on each copy.
//! One that is torn is named by no commit.
//!
//! *Replay.* A mount writes what the journal holds to its place, when all copies have it durably
//! ([`ring`]). A record is live if it is of the header's generation, its number follows that of the
//! one before it, and its CRC is right. The header gets another generation then. So a record that
//! was being written when a crash came, and that one copy of the metadata may have, is never found
//! by a later mount.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use weft_array::{Array, Id};
use weft_rt::Buf;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::pages::Page;
use crate::error::Result;
use crate::format::block::BLOCK;
use crate::format::checksum::{crc32c, has_crc32c_at};
use crate::raid_log::ring;

/// Of a record of pages.
const MAGIC: [u8; 8] = *b"weftpage";
/// Of a record of checksums.
const SUMS_MAGIC: [u8; 8] = *b"weftsums";
/// The most checksums of a record: they fit into the smallest ring.
pub(super) const SUMS_MAX: usize = 4096;
/// A record takes at most this part of the ring.
const SHARE: u64 = 4;

/// Followed by the numbers of its pages, and on the next block's start by the pages, or at once by
/// their checksums.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    crc32c: U32,
    pages: U32,
    fs_id: [u8; 16],
    generation: U64,
    number: U64,
    /// The length of the database; of checksums: the end of pages that become zeros.
    db_bytes: U64,
    /// Pages from this one on are zeros, if they are not in the journal; of checksums: the first
    /// page that becomes zeros.
    zeros_from: U64,
}

/// A database that became longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Length {
    /// Its bytes.
    pub(super) db_bytes: u64,
    /// Pages from this one on are zeros, if they are not in the journal. Before it are also such
    /// that were written to their places before the record that has this length.
    pub(super) zeros_from: u64,
}

/// Where the journal starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    /// Of which generation live records are.
    pub(super) generation: u64,
    /// The number of the first record that is live.
    pub(super) number: u64,
    /// Its position.
    pub(super) position: u64,
}

impl Tail {
    /// That of a new journal.
    pub(super) const NEW: Self = Self { generation: 1, number: 1, position: 0 };
}

/// The journal of a mount.
pub(super) struct Journal {
    area: Range<u64>,
    fs_id: Id,
    tail: Cell<Tail>,
    /// Behind the last record.
    head: Cell<Tail>,
    /// The number of the last record of pages.
    last_pages: Cell<u64>,
}

/// Bytes of the header and the numbers of `pages` pages, and of the whole record.
fn bytes_of(pages: usize) -> (usize, usize) {
    let head = (size_of::<Header>() + pages * size_of::<u64>()).next_multiple_of(BLOCK);
    (head, head + pages * BLOCK)
}

/// Bytes of a record of this number of checksums.
fn sums_bytes_of(sums: usize) -> usize {
    (size_of::<Header>() + sums * (size_of::<u64>() + size_of::<u32>())).next_multiple_of(BLOCK)
}

impl Journal {
    /// An empty journal that starts at `tail`.
    pub(super) fn new(area: Range<u64>, fs_id: Id, tail: Tail) -> Self {
        let last_pages = Cell::new(0);
        Self { area, fs_id, tail: Cell::new(tail), head: Cell::new(tail), last_pages }
    }

    fn size(&self) -> u64 {
        self.area.end - self.area.start
    }

    /// Whether `pages` fit into one record.
    pub(super) fn takes(&self, pages: usize) -> bool {
        bytes_of(pages).1 as u64 <= self.size() / SHARE
    }

    /// Where it starts.
    pub(super) fn tail(&self) -> Tail {
        self.tail.get()
    }

    /// Where it ends: what has its place by a checkpoint of now.
    pub(super) fn head(&self) -> Tail {
        self.head.get()
    }

    /// Whether pages are in it, and not only checksums.
    pub(super) fn has_pages(&self) -> bool {
        self.last_pages.get() >= self.tail.get().number
    }

    /// It starts here from now on, durably.
    pub(super) fn cut(&self, tail: Tail) {
        self.tail.set(tail);
    }

    /// Whether half of the ring is taken.
    pub(super) fn is_half_full(&self) -> bool {
        self.head.get().position - self.tail.get().position > self.size() / 2
    }

    /// Appends a record of a database of this length, durably. `false` if a checkpoint has to make
    /// room first.
    pub(super) async fn append(
        &self,
        array: &Array,
        pages: &BTreeMap<u64, Page>,
        length: Length,
    ) -> Result<bool> {
        let bytes = encode(self.fs_id, self.head.get(), pages, length);
        let before = self.last_pages.replace(self.head.get().number);
        let is_appended = self.append_bytes(array, bytes).await?;
        if !is_appended {
            self.last_pages.set(before);
        }
        Ok(is_appended)
    }

    /// Durably appends the checksums that pages are about to have, and the pages that become zeros.
    /// `false` if the journal has to be cut first.
    pub(super) async fn append_sums(
        &self,
        array: &Array,
        sums: &[(u64, u32)],
        zeros: &Range<u64>,
    ) -> Result<bool> {
        let bytes = encode_sums(self.fs_id, self.head.get(), sums, zeros);
        self.append_bytes(array, bytes).await
    }

    async fn append_bytes(&self, array: &Array, bytes: Buf) -> Result<bool> {
        let head = self.head.get();
        let len = bytes.len() as u64;
        let position = ring::place(self.size(), head.position, len);
        if position + len - self.tail.get().position > self.size() {
            return Ok(false);
        }
        self.head.set(Tail { number: head.number + 1, position: position + len, ..head });
        let at = self.area.start + position % self.size();
        array.write(at, bytes.freeze(), true).await?;
        Ok(true)
    }
}

fn encode(fs_id: Id, at: Tail, pages: &BTreeMap<u64, Page>, length: Length) -> Buf {
    let (head, whole) = bytes_of(pages.len());
    let mut bytes = Buf::zeroed(whole);
    let mut header = Header {
        magic: MAGIC,
        crc32c: U32::ZERO,
        pages: U32::new(u32::try_from(pages.len()).expect("bounded by the ring")),
        fs_id: fs_id.0,
        generation: U64::new(at.generation),
        number: U64::new(at.number),
        db_bytes: U64::new(length.db_bytes),
        zeros_from: U64::new(length.zeros_from),
    };
    let (numbers, contents) = bytes.split_at_mut(head);
    let (first, numbers) = numbers.split_at_mut(size_of::<Header>());
    first.copy_from_slice(header.as_bytes());
    for (number, to) in pages.keys().zip(numbers.chunks_exact_mut(size_of::<u64>())) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    for (page, to) in pages.values().zip(contents.chunks_exact_mut(BLOCK)) {
        to.copy_from_slice(&page[..]);
    }
    header.crc32c = U32::new(crc32c(&bytes));
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    bytes
}

fn encode_sums(fs_id: Id, at: Tail, sums: &[(u64, u32)], zeros: &Range<u64>) -> Buf {
    let mut bytes = Buf::zeroed(sums_bytes_of(sums.len()));
    let mut header = Header {
        magic: SUMS_MAGIC,
        crc32c: U32::ZERO,
        pages: U32::new(u32::try_from(sums.len()).expect("bounded by the ring")),
        fs_id: fs_id.0,
        generation: U64::new(at.generation),
        number: U64::new(at.number),
        db_bytes: U64::new(zeros.end),
        zeros_from: U64::new(zeros.start),
    };
    let (first, rest) = bytes.split_at_mut(size_of::<Header>());
    first.copy_from_slice(header.as_bytes());
    let (numbers, values) = rest.split_at_mut(sums.len() * size_of::<u64>());
    for ((number, _), to) in sums.iter().zip(numbers.chunks_exact_mut(size_of::<u64>())) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    for ((_, sum), to) in sums.iter().zip(values.chunks_exact_mut(size_of::<u32>())) {
        to.copy_from_slice(&sum.to_le_bytes());
    }
    header.crc32c = U32::new(crc32c(&bytes));
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    bytes
}

/// What the live records hold together.
pub(super) struct Replay {
    /// The newest of each page.
    pub(super) pages: BTreeMap<u64, Page>,
    /// The checksums of pages that were about to be written to their places, the newest first.
    pub(super) sums: BTreeMap<u64, Vec<u32>>,
    /// Pages that were about to become zeros, if they are neither of these.
    pub(super) zeros: Vec<Range<u64>>,
    /// The newest length of the database; none if there is no record.
    pub(super) length: Option<Length>,
    /// Where the records end.
    pub(super) end: Tail,
}

/// Reads a journal that starts at `tail`.
pub(super) async fn scan(
    array: &Array,
    area: &Range<u64>,
    fs_id: Id,
    tail: Tail,
) -> Result<Replay> {
    let size = area.end - area.start;
    let (pages, sums, zeros) = Default::default();
    let mut replay = Replay { pages, sums, zeros, length: None, end: tail };
    loop {
        let read = async |offset| read(array, area, offset, fs_id, replay.end).await;
        let next = ring::next(size, replay.end.position, read).await?;
        let Some((position, (bytes, found))) = next else { return Ok(replay) };
        // Before it is acted on, all copies have it.
        let at = area.start + (position - bytes.len() as u64) % size;
        array.write(at, bytes.freeze(), true).await?;
        replay.take(found);
        replay.end = Tail { number: replay.end.number + 1, position, ..replay.end };
    }
}

impl Replay {
    /// The next record.
    fn take(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Pages { pages, length } => {
                // The bytes after this are zeros, regardless of earlier contents.
                drop(self.sums.split_off(&length.zeros_from));
                self.sums.retain(|number, _| pages.iter().all(|(page, _)| page != number));
                self.pages.extend(pages);
                self.length = Some(length);
            }
            JournalRecord::Sums { sums, zeros } => {
                let is_old = |number: &u64| !zeros.contains(number);
                self.pages.retain(|number, _| is_old(number));
                self.sums.retain(|number, _| is_old(number));
                for (number, sum) in sums {
                    self.pages.remove(&number);
                    self.sums.entry(number).or_default().insert(0, sum);
                }
                self.zeros.push(zeros);
            }
        }
    }
}

enum JournalRecord {
    Pages { pages: Vec<(u64, Page)>, length: Length },
    Sums { sums: Vec<(u64, u32)>, zeros: Range<u64> },
}

/// The record at an offset of the ring, if it is this one: how many bytes it has, and these.
async fn read(
    array: &Array,
    area: &Range<u64>,
    offset: u64,
    fs_id: Id,
    wanted: Tail,
) -> Result<Option<(u64, (Buf, JournalRecord))>> {
    let is_it = |header: &Header| {
        [MAGIC, SUMS_MAGIC].contains(&header.magic)
            && header.fs_id == fs_id.0
            && (header.generation.get(), header.number.get()) == (wanted.generation, wanted.number)
    };
    let len = |block: &[u8]| {
        let (header, _) = Header::read_from_prefix(block).ok()?;
        let pages = header.pages.get() as usize;
        let whole = if header.magic == MAGIC { bytes_of(pages).1 } else { sums_bytes_of(pages) };
        let fits = offset + whole as u64 <= area.end - area.start;
        (is_it(&header) && fits).then_some(whole)
    };
    // It may have changed since its length was looked at.
    let decode = |whole: &mut [u8]| {
        len(whole).filter(|len| *len == whole.len())?;
        decode(whole)
    };
    let found = ring::read_any(array, area.start + offset, len, decode).await?;
    Ok(found.map(|(whole, record)| (whole.len() as u64, (whole, record))))
}

/// A record whose length is in `bytes`, if its CRC is right.
fn decode(bytes: &mut [u8]) -> Option<JournalRecord> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    if !has_crc32c_at(bytes, std::mem::offset_of!(Header, crc32c)) {
        return None;
    }
    let count = header.pages.get() as usize;
    let [db_bytes, zeros_from] = [header.db_bytes, header.zeros_from].map(U64::get);
    if header.magic == SUMS_MAGIC {
        let rest = bytes.get(size_of::<Header>()..)?;
        let (numbers, rest) = rest.split_at_checked(count * size_of::<u64>())?;
        let (values, _) = rest.split_at_checked(count * size_of::<u32>())?;
        let numbers = numbers.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
        let values = values.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum));
        return Some(JournalRecord::Sums {
            sums: numbers.zip(values).collect(),
            zeros: zeros_from..db_bytes,
        });
    }
    let (numbers, contents) = bytes.split_at_checked(bytes_of(count).0)?;
    let (numbers, _) = numbers[size_of::<Header>()..].as_chunks();
    let (contents, _) = contents.as_chunks();
    let numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
    let pages = numbers.zip(contents).map(|(number, page)| (number, Rc::new(*page)));
    Some(JournalRecord::Pages { pages: pages.collect(), length: Length { db_bytes, zeros_from } })
}

#[cfg(test)]
mod tests {
    use weft_testkit::Rng;

    use super::*;
    use crate::format::checksum::put_crc32c_at;
    use crate::meta::tests::with_array;

    const AREA: Range<u64> = 0..512 << 10;
    const ID: Id = Id([3; 16]);

    const LENGTH: Length = Length { db_bytes: 40_960, zeros_from: 10 };

    fn pages(numbers: Range<u64>, of: u8) -> BTreeMap<u64, Page> {
        numbers.map(|number| (number, Rc::new([of; BLOCK]))).collect()
    }

    #[test]
    fn records_are_found_in_their_order_until_one_is_wrong() {
        with_array(|array| async move {
            let journal = Journal::new(AREA, ID, Tail::NEW);
            let find = |tail| scan(&array, &AREA, ID, tail);
            let none = find(Tail::NEW).await.expect("read");
            assert_eq!((none.pages.len(), none.length, none.end), (0, None, Tail::NEW));
            for of in 1..4 {
                let some = pages(u64::from(of)..10, of);
                assert!(journal.append(&array, &some, LENGTH).await.expect("written"));
            }
            let found = find(Tail::NEW).await.expect("read");
            let newest: Vec<u8> = found.pages.values().map(|page| page[0]).collect();
            assert_eq!(newest, [1, 2, 3, 3, 3, 3, 3, 3, 3]);
            assert_eq!((found.length, found.end), (Some(LENGTH), journal.head()));
            // After a checkpoint they are dead, and so are those of another mount or file system.
            for tail in [journal.head(), Tail { generation: 2, ..Tail::NEW }] {
                assert!(find(tail).await.expect("read").pages.is_empty());
            }
            let other = scan(&array, &AREA, Id([4; 16]), Tail::NEW).await.expect("read");
            assert!(other.pages.is_empty());
            // The second one is torn.
            let (_, first) = bytes_of(9);
            let torn = Buf::zeroed(512).freeze();
            array.write(first as u64 + 8192, torn, true).await.expect("written");
            let found = find(Tail::NEW).await.expect("read");
            assert!(found.pages.values().all(|page| page[0] == 1));
            assert_eq!(found.end.number, 2);
        });
    }

    #[test]
    fn checksums_of_pages_that_were_about_to_be_written_are_found_the_newest_first() {
        with_array(|array| async move {
            let journal = Journal::new(AREA, ID, Tail::NEW);
            let sums = async |sums: &[(u64, u32)], zeros: Range<u64>| {
                assert!(journal.append_sums(&array, sums, &zeros).await.expect("written"));
            };
            let find = async || scan(&array, &AREA, ID, Tail::NEW).await.expect("read");
            sums(&[(5, 50), (7, 70)], 0..0).await;
            sums(&[(5, 51)], 20..30).await;
            assert!(!journal.has_pages());
            let found = find().await;
            assert_eq!(found.sums, BTreeMap::from([(5, vec![51, 50]), (7, vec![70])]));
            assert_eq!((found.zeros, found.length), (vec![0..0, 20..30], None));
            // A page in the journal is newer, and so are zeros.
            assert!(journal.append(&array, &pages(5..6, 1), LENGTH).await.expect("written"));
            assert!(journal.has_pages());
            let found = find().await;
            assert_eq!(found.sums, BTreeMap::from([(7, vec![70])]));
            assert_eq!(found.pages.keys().copied().collect::<Vec<_>>(), [5]);
            sums(&[(8, 80)], 4..8).await;
            let found = find().await;
            assert_eq!(found.sums, BTreeMap::from([(8, vec![80])]));
            assert!(found.pages.is_empty());
            journal.cut(journal.head());
            assert!(!journal.has_pages());
        });
    }

    #[test]
    fn the_ring_is_used_over_and_over_and_full_without_checkpoints() {
        with_array(|array| async move {
            let journal = Journal::new(AREA, ID, Tail::NEW);
            assert!(journal.takes(30) && !journal.takes(40));
            let mut checkpoints = 0;
            for of in 1..100 {
                let some = pages(0..1 + u64::from(of) % 30, of);
                while !journal.append(&array, &some, LENGTH).await.expect("written") {
                    assert!(journal.is_half_full());
                    journal.cut(journal.head());
                    checkpoints += 1;
                }
                let found = scan(&array, &AREA, ID, journal.tail()).await.expect("read");
                assert_eq!((found.pages[&0][0], found.end), (of, journal.head()));
            }
            assert!(checkpoints > 10, "{checkpoints}");
        });
    }

    #[test]
    fn any_bytes_with_a_right_checksum_are_a_record_or_none() {
        let mut rng = Rng::new(7);
        let whole = encode(ID, Tail::NEW, &pages(0..3, 1), LENGTH);
        for _ in 0..2000 {
            let mut bytes = whole[..whole.len() - rng.index(3) * BLOCK].to_vec();
            for _ in 0..rng.index(4) {
                rng.fill(&mut bytes[rng.clone().index(size_of::<Header>() + 16)..][..1]);
            }
            put_crc32c_at(&mut bytes, std::mem::offset_of!(Header, crc32c));
            if let Some(JournalRecord::Pages { pages, .. }) = decode(&mut bytes) {
                assert!(pages.len() <= 3);
            }
        }
    }
}
