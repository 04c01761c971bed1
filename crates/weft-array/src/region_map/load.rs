//! Reading the map of an array that was assembled, and writing that of a new one.

use super::page::{self, Decoded, PAGE_BYTES, PER_PAGE};
use super::{MapConfig, NEEDS_RESYNC, PENDING, RegionMap, WRITTEN};
use weft_rt::Frozen;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Pages that no member had whole: their regions count as written, to be resynced, and stale.
    pub pages_lost: Vec<u64>,
    /// Pages that not all members had alike, after a crash: no fault.
    pub pages_uneven: u64,
}

impl RegionMap {
    /// The first pages of a new array's map: byte offset on each member, and bytes. The rest of
    /// the map's area must be zeros, or at least no pages of the same array.
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

    /// The map from the map areas of the members that may be trusted (active and rebuilding ones),
    /// each read whole. What could not be read is to be given as zeros.
    #[must_use]
    pub fn load(config: MapConfig, areas: &[&[u8]]) -> (Self, LoadReport) {
        let map = Self::new(config);
        let mut report = LoadReport::default();
        let regions = map.entries.borrow().len();
        let count = map.pages.borrow().len();
        for page in 0..count {
            let first = page * PER_PAGE;
            let len = PER_PAGE.min(regions - first);
            let found: Vec<Option<Decoded>> =
                areas.iter().map(|area| map.newest_of(area, page, len)).collect();
            let seqs = || found.iter().map(|found| found.as_ref().map(|found| found.seq));
            let Some(newest) = found.iter().flatten().max_by_key(|found| found.seq) else {
                map.assume_the_worst(page, first..first + len);
                report.pages_lost.push(page as u64);
                continue;
            };
            map.take(first, &newest.entries);
            map.pages.borrow_mut()[page].loaded(newest.seq);
            if seqs().any(|seq| seq != Some(newest.seq)) {
                report.pages_uneven += 1;
                let (_, bytes) = map.page_bytes(page, newest.seq);
                map.pages.borrow_mut()[page].uneven = Some(bytes);
                map.distrust(page, first..first + len);
            }
        }
        (map, report)
    }

    fn newest_of(&self, area: &[u8], page: usize, regions: usize) -> Option<Decoded> {
        let copies = (0..2).filter_map(|parity| {
            let start = usize::try_from(page::place(page, parity)).ok()?;
            let bytes = area.get(start..start + PAGE_BYTES)?;
            let copy = page::decode(bytes, self.config.array_id, page, regions)?;
            (copy.seq % 2 == parity).then_some(copy)
        });
        copies.max_by_key(|copy| copy.seq)
    }

    fn take(&self, first: usize, entries: &[(u8, u8)]) {
        for (index, (flags, lanes)) in entries.iter().enumerate() {
            // No bit but WRITTEN has a meaning in an unwritten region.
            if flags & WRITTEN != 0 {
                self.change((first + index) as u64, |entry| {
                    (entry.flags, entry.lanes) = (*flags, *lanes);
                });
            }
        }
    }

    /// The bits of these regions may be durable on some members only.
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
            self.change(index as u64, |entry| {
                entry.flags = WRITTEN | NEEDS_RESYNC;
                entry.lanes = u8::MAX;
            });
        }
        self.distrust(page, indices);
        // Newer than anything that a member may hold in a place that could not be read now.
        self.pages.borrow_mut()[page].seq = u64::MAX / 2;
    }
}
