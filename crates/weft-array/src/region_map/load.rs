//! Reading the map at assembly, and writing the map of a new array.

use super::page::{self, Decoded, PAGE_BYTES, PER_PAGE};
use super::{MapConfig, NEEDS_RESYNC, PENDING, RegionMap, WRITTEN};
use crate::format::lane::LaneSet;
use crate::region_map::RegionNo;
use weft_rt::Frozen;

/// What loading the map found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Pages that are intact on no member: their regions count as written, to be resynced, and
    /// stale.
    pub pages_lost: Vec<u64>,
    /// Pages that differ between members after a crash; that is not a fault.
    pub pages_uneven: u64,
}

impl RegionMap {
    /// The first pages of a new array's map: byte offset on each member, and contents. The rest of
    /// the map's area must be zeros, or at least hold no pages of the same array.
    #[must_use]
    pub fn initial_pages(config: &MapConfig) -> Vec<(u64, Frozen)> {
        let map = Self::new(config.clone());
        let count = map.pages.borrow().len();
        (0..count).map(|page| map.page_bytes(page, 1)).collect()
    }

    fn page_bytes(&self, page: usize, seq: u64) -> (u64, Frozen) {
        let entries = self.entries.borrow();
        let last = (page * PER_PAGE + PER_PAGE).min(entries.len());
        let bytes = page::encode(self.config.array_id, page, seq, &entries[page * PER_PAGE..last]);
        (self.config.area_offset + page::place(page, seq), bytes)
    }

    /// Loads the map from the complete map areas of the trusted members (active and rebuilding
    /// ones). Unreadable parts must be passed as zeros.
    #[must_use]
    pub fn load(config: MapConfig, areas: &[&[u8]]) -> (Self, LoadReport) {
        let map = Self::new(config);
        let mut report = LoadReport::default();
        map.load_pages(0..map.page_count(), areas, &mut report);
        (map, report)
    }

    /// Pages of the map.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.borrow().len()
    }

    /// Loads `pages` from these parts of the members' map areas; each part starts with the first of
    /// the pages. So a large map of many members need not be in memory at once.
    pub(crate) fn load_pages(
        &self,
        pages: std::ops::Range<usize>,
        parts: &[&[u8]],
        report: &mut LoadReport,
    ) {
        let regions = self.entries.borrow().len();
        let first_page = pages.start;
        for page in pages {
            let first = page * PER_PAGE;
            let len = PER_PAGE.min(regions - first);
            let found: Vec<Option<Decoded>> =
                parts.iter().map(|part| self.newest_of(part, first_page, page)).collect();
            let seqs = || found.iter().map(|found| found.as_ref().map(|found| found.seq));
            let Some(newest) = found.iter().flatten().max_by_key(|found| found.seq) else {
                self.assume_the_worst(page, first..first + len);
                report.pages_lost.push(page as u64);
                continue;
            };
            self.take(first, &newest.entries[..len.min(newest.entries.len())]);
            self.pages.borrow_mut()[page].loaded(newest.seq);
            if seqs().any(|seq| seq != Some(newest.seq)) {
                report.pages_uneven += 1;
                let (_, bytes) = self.page_bytes(page, newest.seq);
                self.pages.borrow_mut()[page].uneven = Some(bytes);
                self.distrust(page, first..first + len);
            }
        }
    }

    /// The highest number of each of these pages in these parts of the members' map areas; each
    /// part starts with the first of the pages.
    pub(crate) fn numbers_in(
        &self,
        pages: std::ops::Range<usize>,
        parts: &[&[u8]],
    ) -> impl Iterator<Item = (usize, u64)> {
        let first = pages.start;
        pages.filter_map(move |page| {
            let copies = parts.iter().filter_map(|part| self.newest_of(part, first, page));
            Some((page, copies.map(|copy| copy.seq).max()?))
        })
    }

    /// The newest copy of a page in a part of an area that starts with page `first_page`.
    fn newest_of(&self, part: &[u8], first_page: usize, page: usize) -> Option<Decoded> {
        let copies = (0..2).filter_map(|parity| {
            let start = usize::try_from(page::place(page - first_page, parity)).ok()?;
            let bytes = part.get(start..start + PAGE_BYTES)?;
            let copy = page::decode(bytes, self.config.array_id, page)?;
            (copy.seq % 2 == parity).then_some(copy)
        });
        copies.max_by_key(|copy| copy.seq)
    }

    fn take(&self, first: usize, entries: &[(u8, LaneSet)]) {
        for (index, (flags, lanes)) in entries.iter().enumerate() {
            // In an unwritten region no bit but WRITTEN has a meaning.
            if flags & WRITTEN != 0 {
                self.change(RegionNo((first + index) as u64), |entry| {
                    (entry.flags, entry.lanes) = (*flags, *lanes);
                });
            }
        }
    }

    /// Notes that the bits of these regions may be durable on some members only.
    fn distrust(&self, page: usize, indices: std::ops::Range<usize>) {
        for index in indices {
            if self.entries.borrow()[index].has(WRITTEN) {
                self.entries.borrow_mut()[index].flags |= PENDING;
                self.pages.borrow_mut()[page].set_pending(index);
            }
        }
    }

    fn assume_the_worst(&self, page: usize, indices: std::ops::Range<usize>) {
        for index in indices.clone() {
            self.change(RegionNo(index as u64), |entry| {
                entry.flags = WRITTEN | NEEDS_RESYNC;
                entry.lanes = LaneSet::ALL;
            });
        }
        self.distrust(page, indices);
        // Higher than any number that a member may hold in a place that is unreadable now.
        self.pages.borrow_mut()[page].seq = u64::MAX / 2;
    }
}
