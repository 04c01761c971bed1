//! Which blocks of a disk are free.
//!
//! It is worked out at mount from the records that name blocks, and kept in memory. The disk is cut
//! into *groups* of 32,768 blocks:
//!
//! ```text
//!   a group:    how many blocks are free, and which:
//!                 none or all of them            no map
//!                 few runs                       packed: lengths of runs, taken and free in turn
//!                 many runs, or used lately      a bit for each block: 4 KiB
//!   above it:   longest[0]   for each group a bound of its longest free run, up to 64
//!               longest[1]   for each 64 of these the largest
//!               …            until 64 are left
//! ```
//!
//! *Memory.* 33 bytes a group, and the maps: a quarter MiB for a TiB that is empty, or full; 32 MiB
//! only if free and taken blocks alternate so often that packing does not help. The last groups
//! that were used ([`OPEN_GROUPS`]) are kept as bits.
//!
//! *Time.* A search goes on where the last one ended, so that files that are flushed one after the
//! other lie one after the other. It looks at 64 blocks at a time, skips groups whose bound is too
//! small, and finds the next one through the bounds above, for any size of the disk. Taking blocks
//! leaves the bound as it is; a search that finds nothing in a group lowers it, and only blocks
//! that are given back in it raise it again. So a group is searched in vain once for each time that
//! something was freed there.
//!
//! *Limits.* A run that is searched for has at most 64 blocks and lies in one group. Blocks can be
//! taken across groups. Bad blocks are never free.
//!
//! *Granted blocks.* A node that has only blocks that were granted to it
//! ([`crate::disks::granted_space`]) starts with none, and also keeps which blocks it took that no
//! durable record names yet: these are its own, and nothing else tells so.

use std::collections::{BTreeSet, VecDeque};
use std::iter;
use std::ops::Range;

use rangemap::RangeSet;

use super::group_bits::{
    BITS, Bits, WORDS, are_all_free, find_run, free_before, free_from, free_runs, index, pack,
    unpack, words_of,
};
use super::group_bounds::Bounds;

/// Blocks in a group: 128 MiB.
const GROUP: u64 = 32 << 10;
/// Longest run that is searched for.
pub(crate) const RUN_MAX: u64 = 64;
/// Groups that are kept as bits although they could be packed: 512 KiB.
const OPEN_GROUPS: usize = 128;

/// The free blocks of one disk.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    blocks: u64,
    free: u64,
    groups: Vec<Group>,
    longest: Bounds,
    /// Groups that are kept as bits, the last one opened last.
    open: VecDeque<usize>,
    next: u64,
    /// Where blocks for other nodes are searched: far from what this node takes.
    next_grant: u64,
    bad: BTreeSet<u64>,
    /// Blocks that were taken and that no durable record names, if that is kept.
    unsettled: Option<RangeSet<u64>>,
    /// Words that searches have looked at.
    searched_words: u64,
}

/// Which blocks of a group are free.
#[derive(Debug, Clone)]
struct Group {
    free: u32,
    is_open: bool,
    map: Map,
}

#[derive(Debug, Clone)]
enum Map {
    /// All of them, or none.
    Uniform,
    /// Lengths of runs, taken and free in turn, of 7 bits a byte; the last run is left out.
    Packed(Box<[u8]>),
    Bits(Box<Bits>),
}

impl Map {
    /// What `look` finds in the bits; `None` if all blocks are free, or none is.
    fn with_bits<T>(&self, look: impl FnOnce(&Bits) -> T) -> Option<T> {
        match self {
            Self::Uniform => None,
            Self::Packed(packed) => Some(look(&unpack(packed))),
            Self::Bits(bits) => Some(look(bits)),
        }
    }
}

fn bound(run: u64) -> u8 {
    u8::try_from(run.min(RUN_MAX)).expect("at most 64")
}

/// The groups that a range of blocks is in, and which of their blocks.
fn groups_of(start: u64, len: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = start + len;
    let mut at = start;
    iter::from_fn(move || {
        let group = at / GROUP;
        let to = ((group + 1) * GROUP).min(end);
        let part = (index(group), index(at % GROUP)..index(to - group * GROUP));
        (at < end).then(|| {
            at = to;
            part
        })
    })
}

impl Space {
    /// A disk with all blocks free.
    pub(crate) fn new(blocks: u64) -> Self {
        Self::with(blocks, true)
    }

    /// A disk of which no blocks are granted yet.
    pub(crate) fn granted(blocks: u64) -> Self {
        Self { unsettled: Some(RangeSet::new()), ..Self::with(blocks, false) }
    }

    /// A disk with all blocks free, or none.
    fn with(blocks: u64, are_free: bool) -> Self {
        let size = move |group: u64| (blocks - group * GROUP).min(GROUP) * u64::from(are_free);
        let sizes = (0..blocks.div_ceil(GROUP)).map(size);
        let group = |free: u64| Group {
            free: u32::try_from(free).expect("few blocks"),
            is_open: false,
            map: Map::Uniform,
        };
        Self {
            blocks,
            free: blocks * u64::from(are_free),
            groups: sizes.clone().map(group).collect(),
            longest: Bounds::new(sizes.map(bound).collect()),
            open: VecDeque::new(),
            next: 0,
            next_grant: blocks / 2,
            bad: BTreeSet::new(),
            unsettled: None,
            searched_words: 0,
        }
    }

    /// The disk has `blocks` blocks now, if these are more. Those that are new are free, unless
    /// they have to be granted.
    pub(crate) fn extend(&mut self, blocks: u64) {
        let before = self.blocks;
        if blocks <= before {
            return;
        }
        if !before.is_multiple_of(GROUP) {
            // Without a map, all of a group is free or none of it, and it becomes larger.
            self.bits(index(before / GROUP));
        }
        self.blocks = blocks;
        let count = index(blocks.div_ceil(GROUP));
        let taken = || Group { free: 0, is_open: false, map: Map::Uniform };
        self.groups.resize_with(count, taken);
        self.longest.resize(count);
        if self.unsettled.is_none() {
            self.release(before, blocks - before);
        }
    }

    /// All blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that are free.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free
    }

    /// Blocks of a group.
    fn size(&self, group: usize) -> u64 {
        (self.blocks - group as u64 * GROUP).min(GROUP)
    }

    /// The bits of a group, which is kept open.
    fn bits(&mut self, group: usize) -> &mut Bits {
        if !self.groups[group].is_open {
            if self.open.len() == OPEN_GROUPS
                && let Some(first) = self.open.pop_front()
            {
                self.close(first);
            }
            self.open.push_back(group);
            self.groups[group].is_open = true;
        }
        let size = index(self.size(group));
        let Group { free, map, .. } = &mut self.groups[group];
        match map {
            Map::Bits(_) => {}
            Map::Packed(packed) => *map = Map::Bits(unpack(packed)),
            Map::Uniform => {
                let mut bits = Box::new([0; WORDS]);
                if *free > 0 {
                    words_of(0..size).for_each(|(word, mask)| bits[word] = mask);
                }
                *map = Map::Bits(bits);
            }
        }
        match map {
            Map::Bits(bits) => bits,
            _ => unreachable!("it has just become bits"),
        }
    }

    /// Keeps a group in little memory.
    fn close(&mut self, group: usize) {
        let size = self.size(group);
        let Group { free, is_open, map } = &mut self.groups[group];
        *is_open = false;
        if *free == 0 || u64::from(*free) == size {
            *map = Map::Uniform;
        } else if let Map::Bits(bits) = map
            && let Some(packed) = pack(bits)
        {
            *map = Map::Packed(packed);
        }
    }

    /// Whether all blocks of a part of a group are free.
    fn is_part_free(&mut self, group: usize, part: Range<usize>) -> bool {
        match self.groups[group].free {
            0 => false,
            free if u64::from(free) == self.size(group) => true,
            _ => are_all_free(self.bits(group), part),
        }
    }

    /// The first block of a run that is free.
    pub(crate) fn first_free(&self, start: u64, len: u64) -> Option<u64> {
        groups_of(start, len).find_map(|(group, part)| {
            let first = group as u64 * GROUP;
            let found = self.groups.get(group).filter(|found| found.free > 0)?;
            let is_free = |bits: &Bits, at: usize| bits[at / BITS] >> (at % BITS) & 1 == 1;
            let free = found.map.with_bits(|bits| part.clone().find(|at| is_free(bits, *at)));
            free.unwrap_or(Some(part.start)).map(|at| first + at as u64)
        })
    }

    /// Takes a run, if all of it is free.
    pub(crate) fn take(&mut self, start: u64, len: u64) -> bool {
        let beyond = start.checked_add(len).is_none_or(|end| end > self.blocks);
        if beyond || !groups_of(start, len).all(|(group, part)| self.is_part_free(group, part)) {
            return false;
        }
        for (group, part) in groups_of(start, len) {
            let count = part.len();
            let bits = self.bits(group);
            words_of(part).for_each(|(word, mask)| bits[word] &= !mask);
            self.groups[group].free -= u32::try_from(count).expect("of a group");
            if self.groups[group].free == 0 {
                self.longest.set(group, 0);
            }
        }
        self.free -= len;
        if let Some(unsettled) = self.unsettled.as_mut().filter(|_| len > 0) {
            unsettled.insert(start..start + len);
        }
        true
    }

    /// Takes those blocks of a run that are free.
    pub(crate) fn take_free(&mut self, start: u64, len: u64) {
        if self.first_free(start, len).is_some() && !self.take(start, len) && len > 1 {
            self.take_free(start, len / 2);
            self.take_free(start + len / 2, len - len / 2);
        }
    }

    /// A durable record names this run.
    pub(crate) fn settle(&mut self, start: u64, len: u64) {
        if let Some(unsettled) = self.unsettled.as_mut().filter(|_| len > 0) {
            unsettled.remove(start..start + len);
        }
    }

    /// Blocks that are this node's although no durable record may say so: those that are free, and
    /// those that it took.
    pub(crate) fn own_runs(&self) -> RangeSet<u64> {
        let mut runs = self.unsettled.clone().unwrap_or_default();
        self.each_free_run(|run| runs.insert(run));
        runs
    }

    /// Takes up to `len` blocks for another node: as few runs as are found quickly, and at most
    /// `most`.
    pub(crate) fn grant(&mut self, len: u64, most: usize) -> Vec<Range<u64>> {
        let unsettled = self.unsettled.take();
        std::mem::swap(&mut self.next, &mut self.next_grant);
        let mut runs: Vec<Range<u64>> = Vec::new();
        let (mut left, mut size) = (len.min(self.free), RUN_MAX);
        while left > 0 && runs.len() < most {
            size = size.min(1 << left.ilog2());
            let Some(start) = self.allocate(size) else {
                size /= 2;
                if size == 0 { break } else { continue }
            };
            left -= size;
            match runs.last_mut() {
                Some(last) if last.end == start => last.end += size,
                _ => runs.push(start..start + size),
            }
        }
        std::mem::swap(&mut self.next, &mut self.next_grant);
        self.unsettled = unsettled;
        runs
    }

    /// A block is not to be used any more. If it is taken, it does not become free when it comes
    /// back. Returns whether that is new.
    pub(crate) fn mark_bad(&mut self, block: u64) -> bool {
        let is_new = block < self.blocks && !self.bad.contains(&block);
        if is_new {
            if self.take(block, 1) {
                self.settle(block, 1);
            }
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
        self.settle(start, len);
        let end = start + len;
        let bad: Vec<u64> = self.bad.range(start..end).copied().collect();
        let mut from = start;
        for to in bad.into_iter().chain([end]) {
            self.release_good(from, to - from);
            from = to + 1;
        }
    }

    fn release_good(&mut self, start: u64, len: u64) {
        for (group, part) in groups_of(start, len) {
            let bits = self.bits(group);
            let mut freed = 0;
            for (word, mask) in words_of(part.clone()) {
                debug_assert!(bits[word] & mask == 0, "{start} + {len} is given back twice");
                // Blocks that were counted twice would be another file's one day.
                freed += (mask & !bits[word]).count_ones();
                bits[word] |= mask;
            }
            let run = free_before(bits, part.start) + part.len() as u64 + free_from(bits, part.end);
            self.groups[group].free += freed;
            if bound(run) > self.longest.get(group) {
                self.longest.set(group, bound(run));
            }
            self.free += u64::from(freed);
        }
    }

    /// Calls `note` for each free run, in their order.
    fn each_free_run(&self, mut note: impl FnMut(Range<u64>)) {
        let mut open: Option<Range<u64>> = None;
        for (number, group) in self.groups.iter().enumerate() {
            let (first, size) = (number as u64 * GROUP, self.size(number));
            let mut free = |run: Range<u64>| match &mut open {
                Some(last) if last.end == run.start => last.end = run.end,
                other => {
                    if let Some(run) = other.replace(run) {
                        note(run);
                    }
                }
            };
            let at = |bit: usize| first + bit as u64;
            let looked = group.map.with_bits(|bits| {
                free_runs(bits).for_each(|run| free(at(run.start)..at(run.end)));
            });
            if looked.is_none() && group.free > 0 {
                free(first..first + size);
            }
        }
        open.into_iter().for_each(note);
    }

    /// Finds and takes `len` blocks for good: one run if there is one, and otherwise the longest
    /// ones, of whole multiples of `unit`, if `most` of them are enough. It looks at all of the
    /// disk.
    pub(crate) fn take_long(
        &mut self,
        len: u64,
        unit: u64,
        most: usize,
    ) -> Option<Vec<Range<u64>>> {
        // The runs are as many as there can be, so the longest are kept, shortest first.
        let mut runs: BTreeSet<(u64, u64)> = BTreeSet::new();
        let mut note = |run: Range<u64>| {
            let usable = (run.end - run.start) / unit * unit;
            if usable > 0 {
                runs.insert((usable, run.start));
            }
            if runs.len() > most {
                runs.pop_first();
            }
        };
        self.each_free_run(&mut note);
        // The shortest that is long enough, or all from the longest on.
        let one = runs.range((len, 0)..).next().copied();
        let chosen: Vec<(u64, u64)> = match one {
            Some(one) => vec![one],
            None => runs.into_iter().rev().collect(),
        };
        let (mut taken, mut left) = (Vec::new(), len);
        for (usable, start) in chosen {
            if left == 0 {
                break;
            }
            let blocks = usable.min(left);
            taken.push(start..start + blocks);
            left -= blocks;
        }
        if left > 0 {
            return None;
        }
        for run in &taken {
            let is_free = self.take(run.start, run.end - run.start);
            debug_assert!(is_free, "{run:?} was free");
        }
        Some(taken)
    }

    /// Finds and takes a run of `len` blocks: at most [`RUN_MAX`].
    pub(crate) fn allocate(&mut self, len: u64) -> Option<u64> {
        debug_assert!(len <= RUN_MAX, "runs of {len} blocks are not searched for");
        let start = self.find(len)?;
        self.take(start, len);
        self.next = start + len;
        Some(start)
    }

    fn find(&mut self, len: u64) -> Option<u64> {
        let (last, least) = (index(self.next / GROUP), bound(len));
        if last < self.groups.len()
            && self.longest.get(last) >= least
            && let Some(found) = self.find_in(last, index(self.next % GROUP), len)
        {
            return Some(found);
        }
        for groups in [last + 1..self.groups.len(), 0..(last + 1).min(self.groups.len())] {
            let Range { mut start, end } = groups;
            while let Some(group) = self.longest.first(start..end, least) {
                if let Some(found) = self.find_in(group, 0, len) {
                    return Some(found);
                }
                start = group + 1;
            }
        }
        None
    }

    /// Finds a run in a group, from one of its blocks on. If there is none in all of it, the next
    /// search for one as long passes over the group.
    fn find_in(&mut self, group: usize, from: usize, len: u64) -> Option<u64> {
        let Group { free, map, .. } = &self.groups[group];
        let is_all_free = matches!(map, Map::Uniform) && *free > 0;
        let found = if is_all_free {
            (from as u64 + len <= self.size(group)).then_some(from)
        } else {
            let (found, words) = find_run(self.bits(group), from, len);
            self.searched_words += words;
            found
        };
        if found.is_none() && from == 0 {
            self.longest.set(group, bound(len) - 1);
        }
        found.map(|found| group as u64 * GROUP + found as u64)
    }
}

#[cfg(test)]
mod tests {
    use weft_random::Rng;

    use super::*;

    /// Blocks of a TiB.
    const TIB: u64 = 1 << 28;

    #[test]
    fn long_runs_are_one_if_possible_and_else_the_longest() {
        let mut space = Space::new(2 * GROUP + 1000);
        assert_eq!(space.take_long(GROUP + 64, 16, 4), Some(vec![0..GROUP + 64]));
        let mut space = Space::new(2 * GROUP + 1000);
        for at in [100, GROUP + 500, 2 * GROUP + 10] {
            assert!(space.take(at, 1));
        }
        // 100, GROUP + 399, GROUP - 491, and 989 blocks are free.
        assert_eq!(space.clone().take_long(90, 16, 4), Some(vec![0..90]));
        assert_eq!(
            space.clone().take_long(900, 16, 4).expect("there"),
            [2 * GROUP + 11..2 * GROUP + 911]
        );
        let before = space.free_blocks();
        let taken = space.take_long(2 * GROUP - 128, 16, 2).expect("two");
        assert_eq!(taken[0], 101..101 + (GROUP + 399) / 16 * 16);
        assert_eq!(taken[1].start, GROUP + 501);
        assert_eq!(space.free_blocks(), before - (2 * GROUP - 128));
        let all =
            taken.iter().all(|run| space.first_free(run.start, run.end - run.start).is_none());
        assert!(all, "they are taken");
        assert_eq!(space.take_long(2000, 16, 1), None, "not in one run");
        assert_eq!(space.free_blocks(), before - (2 * GROUP - 128), "nothing was taken");
        // As a plain list of bits says.
        let mut rng = Rng::new(7);
        for _ in 0..50 {
            let mut space = Space::new(GROUP + 300);
            for _ in 0..rng.below(400) {
                let (at, len) = (rng.below(GROUP + 200), 1 + rng.below(64));
                space.take(at, len);
            }
            let len = 16 * (1 + rng.below(2048));
            let free: Vec<bool> =
                (0..GROUP + 300).map(|at| space.first_free(at, 1).is_some()).collect();
            let runs = free.chunk_by(|a, b| a == b).filter(|run| run[0]);
            let mut lens: Vec<u64> = runs.map(|run| run.len() as u64 / 16 * 16).collect();
            lens.sort_unstable();
            let most: u64 = lens.iter().rev().take(8).sum();
            let taken = space.take_long(len, 16, 8);
            assert_eq!(taken.is_some(), most >= len, "{len} of {lens:?}");
            let sum: u64 = taken.iter().flatten().map(|run| run.end - run.start).sum();
            assert!(taken.is_none() || sum == len);
        }
    }

    /// Bytes of memory that the map takes.
    fn bytes(space: &Space) -> usize {
        let map = |group: &Group| match &group.map {
            Map::Uniform => 0,
            Map::Packed(packed) => packed.len(),
            Map::Bits(_) => size_of::<Bits>(),
        };
        let maps: usize = space.groups.iter().map(map).sum();
        space.groups.len() * size_of::<Group>() + maps + space.longest.bytes()
    }

    #[test]
    fn what_is_taken_is_not_given_out_until_it_comes_back() {
        let mut space = Space::new(3 * GROUP + 100);
        assert_eq!(space.free_blocks(), 3 * GROUP + 100);
        assert!(space.take(10, 5) && !space.take(14, 1) && !space.take(3 * GROUP + 99, 2));
        assert_eq!(space.allocate(10), Some(0));
        assert_eq!(space.allocate(64), Some(15));
        assert!(space.take(79, 3 * GROUP - 79 + 15), "across groups");
        assert_eq!(space.allocate(64), Some(3 * GROUP + 15));
        space.release(0, 10);
        assert_eq!(space.allocate(22), None);
        assert_eq!(space.allocate(21), Some(3 * GROUP + 79));
        assert_eq!(space.allocate(11), None);
        assert_eq!(space.allocate(10), Some(0));
        assert_eq!(space.free_blocks(), 0);
        space.release(GROUP - 32, 64);
        assert_eq!(space.allocate(33), None, "a run lies in one group");
        assert_eq!(space.allocate(32), Some(GROUP - 32));
        assert_eq!(space.allocate(32), Some(GROUP));
    }

    #[test]
    fn new_blocks_are_free_and_old_ones_as_before() {
        for (before, after) in [(100, 101), (64, 65), (100, 2 * GROUP + 7), (GROUP, GROUP + 1)] {
            let mut space = Space::new(before);
            assert!(space.take(10, 50) && space.mark_bad(5));
            space.extend(after);
            let mut known = Space::new(after);
            assert!(known.take(10, 50) && known.mark_bad(5));
            assert_eq!((space.free, space.groups.len()), (known.free, known.groups.len()));
            for group in 0..space.groups.len() {
                assert_eq!(space.groups[group].free, known.groups[group].free, "{group}");
                assert_eq!(space.bits(group), known.bits(group), "{group}");
            }
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

    #[test]
    fn a_search_agrees_with_a_plain_map_of_blocks() {
        let blocks = 200 * GROUP / 100 + 77;
        let mut rng = Rng::new(7);
        let mut space = Space::new(blocks);
        let mut plain = vec![true; index(blocks)];
        let mut taken = Vec::new();
        let has_run = |plain: &[bool], len: usize| {
            plain
                .chunks(index(GROUP))
                .any(|group| group.windows(len).any(|run| !run.contains(&false)))
        };
        for step in 0..20_000 {
            let len = 1 + rng.below(64);
            let is_filling = step / 2000 % 2 == 0;
            if rng.below(4) < if is_filling { 3 } else { 1 } {
                match space.allocate(len) {
                    Some(start) => {
                        let run = &mut plain[index(start)..index(start + len)];
                        assert!(!run.contains(&false), "{len} at {start} in step {step}");
                        run.fill(false);
                        taken.push((start, len));
                    }
                    None => assert!(!has_run(&plain, index(len)), "{len} in step {step}"),
                }
            } else if !taken.is_empty() {
                let (start, len) = taken.swap_remove(index(rng.below(taken.len() as u64)));
                // A part stays.
                let stays = rng.below(len);
                space.release(start + stays, len - stays);
                plain[index(start + stays)..index(start + len)].fill(true);
                if stays > 0 {
                    taken.push((start, stays));
                }
            }
            if step % 500 == 0 {
                (0..space.groups.len()).for_each(|group| space.close(group));
                space.open.clear();
            }
            let free = plain.iter().filter(|free| **free).count();
            assert_eq!(space.free_blocks(), free as u64, "in step {step}");
        }
    }

    #[test]
    fn groups_are_packed_and_come_back() {
        let mut rng = Rng::new(3);
        for longest in [2, 20, 300, 40_000] {
            let mut bits = [0; WORDS];
            let (mut at, mut is_free) = (0, rng.chance(50));
            while at < WORDS * BITS {
                let end = (at + 1 + index(rng.below(longest))).min(WORDS * BITS);
                if is_free {
                    words_of(at..end).for_each(|(word, mask)| bits[word] |= mask);
                }
                (at, is_free) = (end, !is_free);
            }
            match pack(&bits) {
                Some(packed) => assert_eq!(*unpack(&packed), bits),
                None => assert!(longest <= 20, "runs of up to {longest} are packed"),
            }
        }
    }

    #[test]
    fn a_fragmented_tebibyte_is_searched_in_few_steps() {
        let mut space = Space::new(TIB);
        // Free runs of 8 blocks everywhere, and one of 64 near the end.
        for group in 0..TIB / GROUP {
            assert!(space.take(group * GROUP, GROUP));
            for at in (0..GROUP).step_by(4096) {
                space.release(group * GROUP + at, 8);
            }
        }
        space.release(TIB - 1000, 64);
        let before = space.searched_words;
        assert_eq!(space.allocate(64), Some(TIB - 1000));
        // Each group knows that it has no such run.
        assert!(space.searched_words - before <= 2 * WORDS as u64, "{}", space.searched_words);
        // When bounds are too large: once through everything, and not again.
        for group in 0..TIB / GROUP {
            space.release(group * GROUP + 100, 64);
            assert!(space.take(group * GROUP + 130, 1));
        }
        assert_eq!(space.allocate(40), None);
        let before = space.searched_words;
        for _ in 0..100 {
            assert_eq!(space.allocate(64), None);
        }
        assert_eq!(space.searched_words, before);
        for _ in 0..1000 {
            assert!(space.allocate(8).is_some());
        }
        let each = (space.searched_words - before) / 1000;
        assert!(each <= WORDS as u64 / 4, "{each} words for each of 1000 runs");
    }

    #[test]
    fn memory_follows_the_runs_and_not_the_size_of_the_disk() {
        let mut space = Space::new(TIB);
        assert!(bytes(&space) <= 300 << 10, "{} bytes for an empty TiB", bytes(&space));
        assert!(space.take(0, TIB));
        assert!(bytes(&space) <= 900 << 10, "{} bytes for a full TiB", bytes(&space));
        // Every fourth column of a long file is free again.
        for at in (0..TIB).step_by(256) {
            space.release(at, 64);
        }
        assert!(bytes(&space) <= 4 << 20, "{} bytes with a million runs", bytes(&space));
        // At worst it is a bit for each block.
        for at in (64..TIB / 16).step_by(256) {
            (at..at + 192).step_by(2).for_each(|block| space.release(block, 1));
        }
        assert!(bytes(&space) <= 7 << 20, "{} bytes", bytes(&space));
        assert_eq!(space.free_blocks(), TIB / 4 + TIB / 16 / 256 * 96);
    }
}
