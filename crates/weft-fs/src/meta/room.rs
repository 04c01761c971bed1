//! How much the metadata may hold.
//!
//! redb needs more room than its rows have bytes. Pages of a B-tree are between a third and all
//! full; most are half full or more, but deletes chosen with care leave a third. And nothing is
//! overwritten: pages that a transaction changes get other places, and the old ones are free when
//! it or the next one is durable. So up to two generations of what changes lie beside the tree. A
//! transaction that finds no room cannot be undone separately and ends the file system. Two rules
//! prevent that:
//!
//! ```text
//!   new files and new blocks are refused if        rows × 3 + 2 × reserve  >  15/16 of the room
//!   before more changes, a transaction is
//!   committed that changes more than the
//!   reserve, if                      rows × 3 + 2 × what it changes  >  15/16 of the room
//! ```
//!
//! Both are asked while no other operation runs, so that many at once do no more than one. Changes
//! wait in memory first: what they may change at most counts then ([`super::overlay`]), and if that
//! is too much, they are sent to the transaction, which tells what they change.
//!
//! A row that is longer than a third of a page may have a page of its own, and one that is longer
//! than a page takes several *that lie together*: free pages may lie apart. So long values are cut
//! into parts ([`super::values`]).
//!
//! The last part of the room ([`KEPT_PART`]) is for root and for what the file system does itself.
//!
//! The bytes of all rows are counted as they change, and stored with each commit. What a
//! transaction changes is known when redb writes the pages; up to half of redb's cache is not
//! written yet, so that cache is no larger than the reserve. A quarter of the reserve is for
//! operations that are under way.
//!
//! A small database has more room for rows than the reserve would leave: a third of it holds them,
//! and if all of them change, twice, there is room as well.
//!
//! What is left for contents is told before it is used up: a record of up to 64 lines takes a row
//! ([`LongFiles`]), and a small file with its name and its record [`FILE_BYTES`].
//!
//! The file of redb doubles until it has 4 GiB; then it grows by 4 GiB at a time. Room that is less
//! than the next step is never used, so slices are made to fit.

use std::ops::RangeInclusive;

use redb::{Key, Value};

use crate::format::extent::Extent;
use crate::format::redundancy::{Redundancy, lines_within};

/// What redb keeps with a row: where its key and value end, and its share of the pages above.
const ROW_BYTES: u64 = 16;
/// Pages above repeat a key for each page below, and that may hold few rows with long keys: this
/// part of the key counts once more.
const KEY_PART: u64 = 4;
/// How many bytes of pages a byte of rows may take.
const PAGES_FOR_ROWS: u64 = 3;
/// This part of the room is not for everyone.
const KEPT_PART: u64 = 16;
/// Bytes of pages that a transaction may change, however full the database is: a part of the
/// database, within bounds. The lower one is many times what a single operation changes.
const RESERVE_PART: u64 = 16;
const RESERVE: RangeInclusive<u64> = 4 << 20..=32 << 20;
/// Bytes of pages of the smallest database.
const PAGES_BYTES_MIN: u64 = 64 << 10;
/// From this size on the database grows by it.
const REGION_BYTES: u64 = 4 << 30;
/// More than what redb's headers take for each region.
const HEADER_BYTES: u64 = 1 << 20;

/// What the rows of a file of one block take, about.
pub(super) const FILE_BYTES: u64 = 560;

/// Blocks of long files of a redundancy, and the bytes of the rows that describe them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LongFiles {
    pub(crate) blocks: u64,
    row_bytes: u64,
}

impl LongFiles {
    /// The long files for which disks with these free blocks have room.
    pub(crate) fn on(free: Vec<u64>, redundancy: Redundancy) -> Self {
        let (mut blocks, mut row_bytes) = (0, 0);
        lines_within(free, redundancy, |lines, coded| {
            let key = 16;
            let record = Extent::full_bytes(coded) + key + key / KEY_PART + ROW_BYTES;
            blocks += lines * coded.k() as u64;
            row_bytes += (lines * record).div_ceil(Extent::lines_max(coded));
        });
        Self { blocks, row_bytes }
    }

    /// How many of these blocks this number of bytes of rows describes.
    pub(crate) fn described(self, row_bytes: u64) -> u64 {
        if self.row_bytes <= row_bytes {
            return self.blocks;
        }
        let part = u128::from(self.blocks) * u128::from(row_bytes) / u128::from(self.row_bytes);
        u64::try_from(part).unwrap_or(self.blocks)
    }
}

/// Bytes that a row counts for.
pub(super) fn row_bytes<K: Key, V: Value>(key: &K::SelfType<'_>, value: &V::SelfType<'_>) -> u64 {
    let key = K::as_bytes(key).as_ref().len() as u64;
    key + key / KEY_PART + V::as_bytes(value).as_ref().len() as u64 + ROW_BYTES
}

/// Bytes of pages that a database in `capacity` bytes can have.
pub(super) fn pages_bytes(capacity: u64) -> u64 {
    let regions = capacity / (REGION_BYTES + HEADER_BYTES);
    if regions > 0 {
        return regions * REGION_BYTES;
    }
    let mut pages = PAGES_BYTES_MIN;
    while 2 * pages + HEADER_BYTES <= capacity {
        pages *= 2;
    }
    pages
}

/// The least bytes of pages, beyond a step, that a database grows to.
pub(crate) fn step_above(pages: u64) -> u64 {
    if pages < REGION_BYTES { 2 * pages } else { pages + REGION_BYTES }
}

/// The bytes of pages that a database of so many is given room for next: in few steps, however
/// large it gets.
pub(crate) fn next_step(pages: u64) -> u64 {
    if pages < REGION_BYTES {
        2 * pages
    } else {
        pages + (pages / 4).next_multiple_of(REGION_BYTES)
    }
}

/// The most bytes of pages, up to so many, that a database grows to.
pub(crate) fn step_below(pages: u64) -> u64 {
    match pages / REGION_BYTES {
        0 => 1 << pages.max(PAGES_BYTES_MIN).ilog2(),
        regions => regions * REGION_BYTES,
    }
}

/// Bytes for a database that grows to this number of bytes of pages.
pub(crate) fn capacity_for(pages: u64) -> u64 {
    pages + pages.div_ceil(REGION_BYTES) * HEADER_BYTES
}

/// Bytes of pages that rows and what a transaction changes may take together.
fn usable_bytes(capacity: u64) -> u64 {
    pages_bytes(capacity) / 16 * 15
}

/// Bytes of pages that a transaction may always change, in a database of this room.
pub(super) fn reserve_bytes(capacity: u64) -> u64 {
    (pages_bytes(capacity) / RESERVE_PART).clamp(*RESERVE.start(), *RESERVE.end())
}

/// Bytes of rows that a database of this room may have.
pub(super) fn row_bytes_max(capacity: u64) -> u64 {
    let usable = usable_bytes(capacity);
    let needed = (usable / 3).max(usable.saturating_sub(2 * reserve_bytes(capacity)));
    needed / PAGES_FOR_ROWS
}

/// Bytes of rows that users without root's reserve may have.
pub(crate) fn row_bytes_for_all(capacity: u64) -> u64 {
    let most = row_bytes_max(capacity);
    most - most / KEPT_PART
}

/// Bytes of pages that a transaction may change before it is committed, besides those that redb has
/// not written yet, if there are so many bytes of rows.
pub(super) fn changed_bytes_max(capacity: u64, row_bytes: u64) -> u64 {
    let reserve = reserve_bytes(capacity);
    let beside = usable_bytes(capacity).saturating_sub(row_bytes * PAGES_FOR_ROWS);
    (beside / 2).max(reserve) - reserve / 4 * 3
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use redb::backends::InMemoryBackend;
    use redb::{Builder, StorageBackend, TableDefinition};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Notes the lengths that redb asks for.
    #[derive(Debug)]
    struct Noting(InMemoryBackend, Arc<Mutex<Vec<u64>>>);

    impl StorageBackend for Noting {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.1.lock().expect("one thread").push(len);
            self.0.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.0.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.0.write(offset, data)
        }
    }

    #[test]
    fn redb_grows_in_these_steps() {
        let lens = Arc::default();
        let backend = Noting(InMemoryBackend::new(), Arc::clone(&lens));
        let db = Builder::new().create_with_backend(backend).expect("made");
        for round in 0..8_u64 {
            let open = db.begin_write().expect("begun");
            let definition: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("table");
            let mut table = open.open_table(definition).expect("opened");
            for n in 0..1000 {
                table.insert(round * 1000 + n, &[7; 1000][..]).expect("inserted");
            }
            drop(table);
            open.commit().expect("committed");
        }
        let lens = lens.lock().expect("one thread");
        assert!(lens.len() > 6, "{lens:?}");
        for len in &*lens {
            let pages = step_below(*len);
            assert!(*len - pages <= HEADER_BYTES, "{lens:?}");
            assert!(capacity_for(pages) >= *len, "{lens:?}");
        }
    }

    #[test]
    fn slices_fit_the_steps_in_which_the_database_grows() {
        assert_eq!(pages_bytes(21 * MIB), 16 * MIB);
        assert_eq!(pages_bytes(17 * MIB), 16 * MIB);
        assert_eq!(pages_bytes(4200 * MIB), 4096 * MIB);
        assert_eq!(pages_bytes(10_000 * MIB), 8192 * MIB);
        for pages in [MIB, 4 * MIB, 5 * MIB, 64 * MIB, 2048 * MIB, 5000 * MIB, 30_000 * MIB] {
            let pages = step_below(pages);
            let capacity = capacity_for(pages);
            assert_eq!(pages_bytes(capacity), pages);
            assert!(pages_bytes(capacity - 1) < pages);
        }
    }

    #[test]
    fn rows_have_less_than_a_third_of_the_room_and_less_if_it_is_small() {
        assert_eq!(row_bytes_max(9 * MIB) >> 10, 853);
        assert_eq!(row_bytes_max(17 * MIB) / MIB, 2);
        assert_eq!(row_bytes_max(33 * MIB) / MIB, 7);
        assert_eq!(row_bytes_max(65 * MIB) / MIB, 17);
        assert_eq!(row_bytes_max(4097 * MIB) / MIB, 1258);
    }
}
