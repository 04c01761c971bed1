//! Which blocks of a disk are free.
//!
//! A bitmap in memory, worked out at mount from the records that name blocks. It is cut into
//! allocation groups with a count each, so that full parts are skipped. The search for a run goes
//! on where the last one ended: files that are flushed one after the other lie one behind the
//! other. Bad blocks are never free.

use std::collections::BTreeSet;

/// Blocks in an allocation group: 128 MiB.
const GROUP: u64 = 32 << 10;

/// The free blocks of one disk.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    blocks: u64,
    /// A bit for each block: 1 if it is free.
    free: Vec<u64>,
    /// Free blocks of each group.
    groups: Vec<u64>,
    next: u64,
    bad: BTreeSet<u64>,
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a bitmap fits in memory")
}

impl Space {
    /// A disk of which every block is free.
    pub(crate) fn new(blocks: u64) -> Self {
        let mut free = vec![u64::MAX; index(blocks.div_ceil(64))];
        if let Some(last) = free.last_mut().filter(|_| !blocks.is_multiple_of(64)) {
            *last = (1 << (blocks % 64)) - 1;
        }
        let groups = blocks.div_ceil(GROUP);
        let groups = (0..groups).map(|group| (blocks - group * GROUP).min(GROUP)).collect();
        Self { blocks, free, groups, next: 0, bad: BTreeSet::new() }
    }

    /// The disk has so many blocks now, if these are more. Those that are new are free.
    pub(crate) fn extend(&mut self, blocks: u64) {
        let before = self.blocks;
        if blocks <= before {
            return;
        }
        self.blocks = blocks;
        self.free.resize(index(blocks.div_ceil(64)), 0);
        self.groups.resize(index(blocks.div_ceil(GROUP)), 0);
        self.release(before, blocks - before);
    }

    /// Blocks that are free.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.groups.iter().sum()
    }

    fn is_free(&self, block: u64) -> bool {
        block < self.blocks && self.free[index(block / 64)] >> (block % 64) & 1 == 1
    }

    /// Whether all blocks of a run are free.
    fn is_run_free(&self, start: u64, len: u64) -> bool {
        (start..start + len).all(|block| self.is_free(block))
    }

    /// Takes a run, if all of it is free.
    pub(crate) fn take(&mut self, start: u64, len: u64) -> bool {
        let beyond = start.checked_add(len).is_none_or(|end| end > self.blocks);
        if beyond || !self.is_run_free(start, len) {
            return false;
        }
        for block in start..start + len {
            self.free[index(block / 64)] &= !(1 << (block % 64));
            self.groups[index(block / GROUP)] -= 1;
        }
        true
    }

    /// A block is not to be used any more. If it is taken, it does not become free when it comes
    /// back. Returns whether that is new.
    pub(crate) fn mark_bad(&mut self, block: u64) -> bool {
        let is_new = block < self.blocks && !self.bad.contains(&block);
        if is_new {
            self.take(block, 1);
            self.bad.insert(block);
        }
        is_new
    }

    pub(crate) fn is_bad(&self, block: u64) -> bool {
        self.bad.contains(&block)
    }

    /// All bad blocks, in their order.
    pub(crate) fn bad_blocks(&self) -> &BTreeSet<u64> {
        &self.bad
    }

    /// Gives a run back.
    pub(crate) fn release(&mut self, start: u64, len: u64) {
        for block in start..start + len {
            if self.bad.contains(&block) {
                continue;
            }
            debug_assert!(!self.is_free(block), "block {block} is given back twice");
            self.free[index(block / 64)] |= 1 << (block % 64);
            self.groups[index(block / GROUP)] += 1;
        }
    }

    /// Finds and takes a run of `len` blocks.
    pub(crate) fn allocate(&mut self, len: u64) -> Option<u64> {
        let start = self.find(self.next, self.blocks, len).or_else(|| {
            let end = (self.next + len).min(self.blocks);
            self.find(0, end, len)
        })?;
        self.take(start, len);
        self.next = start + len;
        Some(start)
    }

    /// The first run of `len` free blocks between two blocks.
    fn find(&self, from: u64, to: u64, len: u64) -> Option<u64> {
        let (mut at, mut run) = (from, 0);
        while at < to {
            if at.is_multiple_of(GROUP) && self.groups[index(at / GROUP)] == 0 {
                (at, run) = (at + GROUP, 0);
            } else if at.is_multiple_of(64) && self.free[index(at / 64)] == 0 {
                (at, run) = (at + 64, 0);
            } else if self.is_free(at) {
                (at, run) = (at + 1, run + 1);
                if run == len {
                    return Some(at - len);
                }
            } else {
                (at, run) = (at + 1, 0);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_not_given_out_until_it_comes_back() {
        let mut space = Space::new(3 * GROUP + 100);
        assert_eq!(space.free_blocks(), 3 * GROUP + 100);
        assert!(space.take(10, 5) && !space.take(14, 1) && !space.take(3 * GROUP + 99, 2));
        assert_eq!(space.allocate(10), Some(0));
        assert_eq!(space.allocate(GROUP), Some(15));
        space.release(0, 10);
        assert_eq!(space.allocate(2 * GROUP), Some(GROUP + 15));
        assert_eq!(space.allocate(86), None);
        assert_eq!(space.allocate(85), Some(3 * GROUP + 15));
        assert_eq!(space.allocate(11), None);
        assert_eq!(space.allocate(10), Some(0));
        assert_eq!(space.free_blocks(), 0);
    }

    #[test]
    fn new_blocks_are_free_and_old_ones_as_before() {
        for (before, after) in [(100, 101), (64, 65), (100, 2 * GROUP + 7), (GROUP, GROUP + 1)] {
            let mut space = Space::new(before);
            assert!(space.take(10, 50) && space.mark_bad(5));
            space.extend(after);
            let mut known = Space::new(after);
            assert!(known.take(10, 50) && known.mark_bad(5));
            assert_eq!((&space.free, &space.groups), (&known.free, &known.groups));
            assert!(space.take(after - 1, 1) && !space.take(after, 1) && !space.take(59, 1));
            space.extend(before);
            assert_eq!(space.blocks, after, "it never becomes smaller");
        }
    }

    #[test]
    fn bad_blocks_are_not_given_out_whether_they_were_free_or_taken() {
        let mut space = Space::new(10);
        assert!(space.take(0, 4));
        assert!(space.mark_bad(2) && space.mark_bad(6) && !space.mark_bad(6));
        assert!(!space.mark_bad(10), "beyond the end");
        assert_eq!(space.free_blocks(), 5);
        space.release(0, 4);
        assert_eq!(space.free_blocks(), 8);
        assert!(!space.take(1, 2) && !space.take(6, 1));
        assert_eq!((space.allocate(3), space.allocate(3)), (Some(3), Some(7)));
        assert_eq!(space.bad_blocks().iter().copied().collect::<Vec<_>>(), [2, 6]);
    }
}
