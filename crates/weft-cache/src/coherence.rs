//! Which blocks may be cached: the writes and the fills in progress.
//!
//! The cache lies above a volume that answers many requests at a time and in any order. A block may
//! be cached only if its contents are what every read from now on would give. Two things stand
//! against that:
//!
//! * A *fill*, the read after a miss, may have seen a block before a write that completes before
//!   the fill does. So a fill is *spoiled* by every change of its blocks that starts while it runs,
//!   or was running when it started: what it read goes to its user and is not cached.
//! * Of two writes in progress to one block, either may be the one that stays. So the contents of a
//!   write are cached only if it *met* no other change of its blocks from its start to its end.
//!
//! ```text
//!   fill    |-------- read old --------|          spoiled by the write
//!   write            |----- new -----|            met nothing: may be cached when it ends
//!
//!   write a   |---------------|                   a and b met each other: the block leaves
//!   write b         |---------------|             the cache
//! ```
//!
//! A volume completes a request even if its caller no longer waits for it. The end of such a change
//! is never seen, so its blocks are not cached again: they are *stray*.

use std::ops::Range;

/// Most ranges of stray blocks that are kept apart.
const STRAYS_MAX: usize = 256;

/// The writes and fills in progress. Ranges are of blocks.
#[derive(Debug, Default)]
pub(crate) struct InProgress {
    changes: Vec<Access>,
    fills: Vec<Access>,
    strays: Vec<Range<u64>>,
    last_id: u64,
}

#[derive(Debug)]
struct Access {
    id: u64,
    blocks: Range<u64>,
    /// A change of the same blocks ran at the same time.
    met: bool,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Marks those of `accesses` that overlap with `blocks`; whether there are any.
fn meet(accesses: &mut [Access], blocks: &Range<u64>) -> bool {
    let mut any = false;
    for access in accesses.iter_mut().filter(|access| overlap(&access.blocks, blocks)) {
        access.met = true;
        any = true;
    }
    any
}

fn take(accesses: &mut Vec<Access>, id: u64) -> Access {
    let at = accesses.iter().position(|access| access.id == id).expect("it is in progress");
    accesses.swap_remove(at)
}

impl InProgress {
    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The contents of `blocks` start to change.
    pub(crate) fn begin_change(&mut self, blocks: Range<u64>) -> u64 {
        meet(&mut self.fills, &blocks);
        let met = meet(&mut self.changes, &blocks) || self.is_stray(&blocks);
        let id = self.new_id();
        self.changes.push(Access { id, blocks, met });
        id
    }

    /// The change has ended. Whether its blocks hold what it wrote.
    pub(crate) fn end_change(&mut self, id: u64) -> bool {
        !take(&mut self.changes, id).met
    }

    /// The caller no longer waits for the change.
    pub(crate) fn leave_change(&mut self, id: u64) {
        let blocks = take(&mut self.changes, id).blocks;
        if self.strays.len() == STRAYS_MAX {
            // One range around all of them: less is cached, and nothing wrong.
            let start = self.strays.iter().map(|range| range.start).min().unwrap_or(0);
            let end = self.strays.iter().map(|range| range.end).max().unwrap_or(0);
            self.strays.clear();
            self.strays.push(start..end);
        }
        self.strays.push(blocks);
    }

    fn is_stray(&self, blocks: &Range<u64>) -> bool {
        self.strays.iter().any(|stray| overlap(stray, blocks))
    }

    /// A read of `blocks` starts, to fill the cache.
    pub(crate) fn begin_fill(&mut self, blocks: Range<u64>) -> u64 {
        let changing = self.changes.iter().any(|change| overlap(&change.blocks, &blocks));
        let met = changing || self.is_stray(&blocks);
        let id = self.new_id();
        self.fills.push(Access { id, blocks, met });
        id
    }

    /// The fill has ended. Whether what it read may be cached.
    pub(crate) fn end_fill(&mut self, id: u64) -> bool {
        !take(&mut self.fills, id).met
    }

    /// What any fill in progress reads may not be cached.
    pub(crate) fn spoil_fills(&mut self) {
        self.fills.iter_mut().for_each(|fill| fill.met = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_is_spoiled_by_a_change_that_runs_at_the_same_time() {
        let mut all = InProgress::default();
        let (before, apart) = (all.begin_fill(0..4), all.begin_fill(4..8));
        let change = all.begin_change(3..4);
        let during = all.begin_fill(3..5);
        assert!(all.end_change(change));
        let after = all.begin_fill(0..4);
        assert!(!all.end_fill(before) && !all.end_fill(during));
        assert!(all.end_fill(apart) && all.end_fill(after));
    }

    #[test]
    fn of_two_changes_at_the_same_time_neither_is_known_to_stay() {
        let mut all = InProgress::default();
        let (first, second) = (all.begin_change(0..2), all.begin_change(1..3));
        assert!(!all.end_change(first));
        // The second is still running: a third meets it, though not the first.
        let third = all.begin_change(2..4);
        assert!(!all.end_change(second) && !all.end_change(third));
        let alone = all.begin_change(0..4);
        assert!(all.end_change(alone));
    }

    #[test]
    fn blocks_of_a_change_for_which_nobody_waits_are_not_cached_again() {
        let mut all = InProgress::default();
        for n in 0..2 * STRAYS_MAX as u64 {
            let change = all.begin_change(n * 10..n * 10 + 1);
            all.leave_change(change);
        }
        assert!(all.strays.len() <= STRAYS_MAX);
        for n in 0..2 * STRAYS_MAX as u64 {
            let fill = all.begin_fill(n * 10..n * 10 + 1);
            assert!(!all.end_fill(fill));
            let change = all.begin_change(n * 10..n * 10 + 1);
            assert!(!all.end_change(change));
        }
    }
}
