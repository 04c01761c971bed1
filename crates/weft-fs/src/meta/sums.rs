//! The checksums of the database's pages: a table of CRC32C on the metadata array, after the
//! database, and in memory.
//!
//! ```text
//!   sector of the table:  its CRC32C, checksums of 127 pages     (of each page, 4 bytes: 1 MiB a GiB)
//! ```
//!
//! A page and its checksum lie in two places, so no write changes both. The page journal knows the
//! pages that may disagree after a crash: it has the new checksum of each page that is about to be
//! written, with the page or without it ([`super::journal`]). The table is written when the journal
//! is cut, before the header records the cut. So an entry of a page that the journal does not name
//! is right, on every copy.
//!
//! The CRC of a sector includes where it lies and whose it is. It is written as a whole or not, as
//! disks write sectors. A copy of the table may have rotted, or have missed a write. Of a sector
//! the first copy with a right CRC counts. Where such copies differ, and the journal does not have
//! the page, the checksum counts that more copies of the page itself match.
//!
//! A checksum that is not known is 0: file systems that are older than the table get its entries as
//! pages are written, and by the next scrub. A page without one counts as it is found.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use weft_array::{Array, Id};
use weft_rt::{Buf, Frozen};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

use super::spans::Spans;
use crate::error::Result;
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;

const SECTOR: usize = 512;
/// Checksums in a sector.
const SUMS: usize = 127;
/// Pages whose checksums are in a sector.
const PER_SECTOR: u64 = SUMS as u64;
/// Pages whose checksums are in a block.
const PER_BLOCK: u64 = PER_SECTOR * (BLOCK / SECTOR) as u64;
/// Blocks of the table that are read or written together.
const RUN_BLOCKS: u64 = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Sector {
    /// Of the identity of the file system, the number of the sector, and the sums.
    crc32c: U32,
    sums: [U32; SUMS],
}

const _: () = assert!(size_of::<Sector>() == SECTOR);

/// The checksum of a page. It is never 0.
pub(super) fn sum_of(page: &[u8]) -> u32 {
    crc32c(page).max(1)
}

/// Bytes of the table for a database of this number of bytes.
pub(super) fn table_bytes(db_bytes: u64) -> u64 {
    (db_bytes / BLOCK_BYTES).div_ceil(PER_BLOCK) * BLOCK_BYTES
}

/// The checksums of all pages.
pub(super) struct Sums {
    area: Spans,
    fs_id: Id,
    /// By the number of the page.
    sums: Vec<u32>,
    /// Blocks of the table that are not on the array like this.
    changed: BTreeSet<u64>,
    /// Checksums that differ between copies of the table, by page.
    doubtful: BTreeMap<u64, Vec<u32>>,
}

/// Adjacent blocks of the table, with their new contents.
pub(super) struct Run {
    pub(super) at: u64,
    pub(super) bytes: Frozen,
}

impl Sums {
    /// Nothing is known of any page of a database with `pages`, and that is to be written.
    pub(super) fn unknown(area: Spans, fs_id: Id, pages: u64) -> Self {
        let changed = (0..pages.div_ceil(PER_BLOCK)).collect();
        let sums = vec![0; usize::try_from(pages).expect("they fit into memory")];
        Self { area, fs_id, sums, changed, doubtful: BTreeMap::new() }
    }

    /// Reads the table of a database with `pages`.
    pub(super) async fn load(array: &Array, area: Spans, fs_id: Id, pages: u64) -> Result<Self> {
        let mut table = Self::unknown(area, fs_id, pages);
        table.changed.clear();
        let blocks = pages.div_ceil(PER_BLOCK);
        let mut from = 0;
        while from < blocks {
            let run = table.run_at(from, blocks.min(from + RUN_BLOCKS));
            from = run.end;
            let at = table.area.at(run.start * BLOCK_BYTES);
            let len = usize::try_from((run.end - run.start) * BLOCK_BYTES).expect("few blocks");
            let mut copies = Vec::new();
            for slot in array.copies() {
                copies.extend(array.read_copy(slot, at, len).await);
            }
            if copies.is_empty() {
                let (result, copy) = array.read(at, Buf::new(len)).await;
                result?;
                copies.push(copy);
            }
            for block in run.clone() {
                let within = usize::try_from((block - run.start) * BLOCK_BYTES).expect("few");
                let of_copies: Vec<&[u8]> =
                    copies.iter().map(|copy| &copy[within..within + BLOCK]).collect();
                table.take_block(block, &of_copies);
            }
        }
        Ok(table)
    }

    /// Blocks from this one on that lie together, up to an end.
    fn run_at(&self, from: u64, end: u64) -> Range<u64> {
        let parts = self.area.parts(from * BLOCK_BYTES..end * BLOCK_BYTES);
        from..parts.first().map_or(end, |part| part.end / BLOCK_BYTES)
    }

    /// The table goes on in more places from now on.
    pub(super) fn take_area(&mut self, area: Spans) {
        self.area = area;
    }

    /// A block of the table, as the copies have it.
    fn take_block(&mut self, block: u64, copies: &[&[u8]]) {
        let alike = copies.iter().all(|copy| *copy == copies[0]);
        for n in 0..(BLOCK / SECTOR) as u64 {
            let sector = block * (BLOCK / SECTOR) as u64 + n;
            let from = usize::try_from(n).expect("few") * SECTOR;
            let of_copies = copies.iter().map(|copy| &copy[from..from + SECTOR]);
            let mut right = of_copies.filter_map(|bytes| self.decode(sector, bytes));
            let Some(first) = right.next() else {
                // It was never written, or has rotted everywhere.
                self.changed.insert(block);
                continue;
            };
            let others: Vec<Sector> = if alike { Vec::new() } else { right.collect() };
            for (entry, page) in (sector * PER_SECTOR..(sector + 1) * PER_SECTOR).enumerate() {
                let sum = first.sums[entry].get();
                let Some(to) = self.sums.get_mut(index(page)) else { break };
                *to = sum;
                let mut said: Vec<u32> =
                    others.iter().map(|other| other.sums[entry].get()).collect();
                said.retain(|other| *other != sum);
                if !said.is_empty() {
                    said.insert(0, sum);
                    said.sort_unstable();
                    said.dedup();
                    self.doubtful.insert(page, said);
                }
            }
        }
        if !alike {
            self.changed.insert(block);
        }
    }

    fn crc(&self, sector: u64, sums: &[u8]) -> u32 {
        crc32c(&[&self.fs_id.0[..], &sector.to_le_bytes(), sums].concat())
    }

    fn decode(&self, number: u64, bytes: &[u8]) -> Option<Sector> {
        let sector = Sector::read_from_bytes(bytes).ok()?;
        (sector.crc32c.get() == self.crc(number, sector.sums.as_bytes())).then_some(sector)
    }

    /// The checksum of a page, if it is known.
    pub(super) fn get(&self, page: u64) -> Option<u32> {
        self.sums.get(index(page)).copied().filter(|sum| *sum != 0)
    }

    /// Whether these are the bytes of a page, as far as that is known.
    pub(super) fn fits(&self, page: u64, bytes: &[u8]) -> bool {
        self.get(page).is_none_or(|sum| sum == sum_of(bytes))
    }

    /// The place of a page has contents with this checksum.
    pub(super) fn set(&mut self, page: u64, sum: u32) {
        self.doubtful.remove(&page);
        let at = index(page);
        if self.sums.len() <= at {
            // Those between are of pages that are not read before they are written.
            self.sums.resize(at + 1, 0);
        }
        if std::mem::replace(&mut self.sums[at], sum) != sum {
            self.changed.insert(page / PER_BLOCK);
        }
    }

    /// Pages with different checksums in the copies of the table, and these checksums.
    pub(super) fn doubtful(&self) -> BTreeMap<u64, Vec<u32>> {
        self.doubtful.clone()
    }

    /// Whether the array has the table like this.
    pub(super) fn is_written(&self) -> bool {
        self.changed.is_empty()
    }

    /// The writes that make it like this.
    pub(super) fn take_changed(&mut self) -> Vec<Run> {
        let changed: Vec<u64> = std::mem::take(&mut self.changed).into_iter().collect();
        let at = |block: u64| self.area.at(block * BLOCK_BYTES);
        let follow = |a: &u64, b: &u64| a + 1 == *b && at(*a) + BLOCK_BYTES == at(*b);
        let size = usize::try_from(RUN_BLOCKS).expect("few");
        let runs = changed.chunk_by(follow).flat_map(|run| run.chunks(size));
        let encode = |run: &[u64]| {
            let mut bytes = Buf::zeroed(run.len() * BLOCK);
            let first = run[0] * (BLOCK / SECTOR) as u64;
            for (number, to) in (first..).zip(bytes.chunks_exact_mut(SECTOR)) {
                to.copy_from_slice(self.encode(number).as_bytes());
            }
            Run { at: at(run[0]), bytes: bytes.freeze() }
        };
        runs.map(encode).collect()
    }

    fn encode(&self, number: u64) -> Sector {
        let mut sector = Sector::new_zeroed();
        let of_pages = self.sums.iter().skip(index(number * PER_SECTOR));
        for (to, sum) in sector.sums.iter_mut().zip(of_pages) {
            *to = U32::new(*sum);
        }
        sector.crc32c = U32::new(self.crc(number, sector.sums.as_bytes()));
        sector
    }
}

fn index(page: u64) -> usize {
    usize::try_from(page).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = Id([3; 16]);

    fn blocks(table: &mut Sums) -> Vec<Vec<u8>> {
        let runs = table.take_changed();
        runs.iter().flat_map(|run| run.bytes.chunks(BLOCK).map(<[u8]>::to_vec)).collect()
    }

    fn filled(version: u32) -> Vec<Vec<u8>> {
        let mut table = Sums::unknown(Spans::new(0..3 * BLOCK_BYTES), ID, 2000);
        (0..2000).for_each(|page| table.set(page, u32::try_from(page).expect("few") + version));
        blocks(&mut table)
    }

    #[test]
    fn a_sector_counts_that_is_right_and_in_its_place() {
        let mut written = filled(1);
        assert_eq!(written.len(), 2);
        let rotten = {
            let mut block = written[0].clone();
            block[SECTOR + 100] ^= 1;
            block
        };
        let mut table = Sums::unknown(Spans::new(0..3 * BLOCK_BYTES), ID, 2000);
        table.changed.clear();
        table.take_block(0, &[&rotten, &written[0]]);
        assert!(
            (0..1016).all(|page| table.get(page) == Some(u32::try_from(page).expect("few") + 1))
        );
        assert_eq!(table.take_changed().len(), 1, "the rotten one is written again");
        // In the place of another one it is none.
        table.take_block(1, &[&written[0]]);
        assert_eq!(table.get(1016), None);
        written[1][SECTOR - 1] ^= 1;
        table.take_block(1, &[&written[1]]);
        assert_eq!((table.get(1016), table.get(1016 + 127)), (None, Some(1017 + 127)));
        assert!(table.doubtful().is_empty());
        let mut other = Sums::unknown(Spans::new(0..3 * BLOCK_BYTES), Id([4; 16]), 2000);
        other.take_block(0, &[&written[0]]);
        assert_eq!(other.get(0), None);
    }

    #[test]
    fn where_copies_differ_all_of_them_are_known_until_one_is_set() {
        let (old, new) = (filled(1), filled(2));
        let mut table = Sums::unknown(Spans::new(0..3 * BLOCK_BYTES), ID, 10);
        table.changed.clear();
        table.take_block(0, &[&old[0], &new[0], &new[0]]);
        assert_eq!(table.doubtful()[&4], [5, 6]);
        assert_eq!(table.doubtful().len(), 10);
        table.set(4, 9);
        assert!(!table.doubtful().contains_key(&4));
        assert!(!table.is_written());
    }
}
