//! The queues of a policy of recency, each divided by class.
//!
//! LRU and CLOCK have one queue, ARC and S3-FIFO two. A block remembers when it was last put at the
//! head of a queue, and a small mark (how often it was requested since, for example). The time
//! counts admissions and moves, so it is unique to a block.

use crate::error::CacheError;
use crate::penalty::{Block, Penalty};
use crate::policy::Evicted;
use crate::slab::Slab;
use crate::victim::{End, Lists, Victims, Weight};

/// When a block came to the head of its queue, and its mark.
#[derive(Clone, Copy, Debug)]
struct Seen(u64);

const MARK_BITS: u32 = 8;

impl Seen {
    fn new(stamp: u64, mark: u8) -> Self {
        Self(stamp << MARK_BITS | u64::from(mark))
    }

    fn stamp(self) -> u64 {
        self.0 >> MARK_BITS
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low bits are the mark")]
    fn mark(self) -> u8 {
        self.0 as u8
    }
}

#[derive(Debug)]
pub(crate) struct Queues {
    blocks: Slab<Seen>,
    victims: Victims<u64>,
    /// Blocks in each queue.
    lens: Vec<usize>,
    /// Blocks in each list.
    counts: Vec<u32>,
    now: u64,
}

impl Queues {
    pub(crate) fn new(capacity: usize, queues: usize, classes: u16) -> Result<Self, CacheError> {
        let lists = Victims::<u64>::lists_of(queues, classes);
        Ok(Self {
            blocks: Slab::new(capacity, lists)?,
            counts: vec![0; lists],
            victims: Victims::new(Weight::Age, queues, classes),
            lens: vec![0; queues],
            now: 0,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.blocks.is_full()
    }

    /// Blocks in `queue`.
    pub(crate) fn len_of(&self, queue: u32) -> usize {
        self.lens[queue as usize]
    }

    /// Counts only blocks with a penalty above 1 of a class whose last block has one.
    /// Nothing has changed since [`Self::refresh`].
    pub(crate) fn weight_of(&self, queue: u32) -> usize {
        let spared = self.victims.spared(queue, |list| self.counts[list as usize]);
        self.lens[queue as usize] - spared
    }

    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        self.blocks.find(key)
    }

    pub(crate) fn mark(&self, slot: u32) -> u8 {
        self.blocks.extra(slot).mark()
    }

    pub(crate) fn set_mark(&mut self, slot: u32, mark: u8) {
        let seen = self.blocks.extra(slot);
        self.blocks.set_extra(slot, Seen::new(seen.stamp(), mark));
    }

    /// Adds a block at the head of `queue`.
    pub(crate) fn insert(&mut self, block: Block, queue: u32) -> u32 {
        self.lens[queue as usize] += 1;
        let list = self.victims.list(queue, block.class);
        self.counts[list as usize] += 1;
        let slot = self.blocks.insert(block.key, list, Seen::new(self.now, 0));
        self.note(slot, list);
        self.now += 1;
        slot
    }

    /// Moves a block to the head of `queue`, with this mark.
    pub(crate) fn move_to(&mut self, slot: u32, queue: u32, mark: u8) {
        let from = self.blocks.list(slot);
        let to = self.victims.list(queue, self.victims.class(from));
        self.lens[self.victims.queue(from) as usize] -= 1;
        self.lens[queue as usize] += 1;
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        self.victims.leaves(slot, from, self.blocks.older(slot));
        self.note(slot, from);
        self.blocks.set_extra(slot, Seen::new(self.now, mark));
        self.blocks.move_to(slot, to);
        self.note(slot, to);
        self.now += 1;
    }

    /// Notes a change of the end of `list`, if `slot` is the end.
    fn note(&mut self, slot: u32, list: u32) {
        if self.blocks.is_tail(slot) {
            self.victims.changed(list);
        }
    }

    /// Looks at what may have changed, before weights and victims are asked for.
    pub(crate) fn refresh(&mut self, penalty: &dyn Penalty) {
        self.victims.refresh(penalty, &self.blocks);
    }

    /// The block of `queue` to go next, that with the least p·MP; and its penalty. Nothing has
    /// changed since [`Self::refresh`].
    pub(crate) fn victim(&mut self, queue: u32, penalty: &dyn Penalty) -> Option<(u32, u32)> {
        self.victims.least(queue, self.now, penalty, &self.blocks)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Evicted {
        let list = self.blocks.list(slot);
        self.lens[self.victims.queue(list) as usize] -= 1;
        self.counts[list as usize] -= 1;
        self.victims.leaves(slot, list, self.blocks.older(slot));
        self.note(slot, list);
        let key = self.blocks.key(slot);
        self.blocks.remove(slot);
        Evicted { key, slot }
    }

    /// Changes the room, as [`Slab::resize`] does.
    pub(crate) fn resize(
        &mut self,
        capacity: usize,
        moved: &mut dyn FnMut(u32),
    ) -> Result<(), CacheError> {
        self.victims.renumbered();
        self.blocks.resize(capacity, moved)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.memory_bytes()
            + self.victims.memory_bytes()
            + self.lens.capacity() * size_of::<usize>()
            + self.counts.capacity() * size_of::<u32>()
    }

    /// Checks links, order and counts.
    ///
    /// # Panics
    /// If one is wrong.
    pub(crate) fn check(&self) {
        self.blocks.check();
        for (queue, len) in (0..).zip(&self.lens) {
            let mut found = 0;
            for list in self.victims.lists(queue) {
                let stamps = self.blocks.oldest_first(list).map(|id| self.blocks.extra(id).stamp());
                let stamps: Vec<u64> = stamps.chain([self.now]).collect();
                assert!(stamps.is_sorted_by(|a, b| a < b), "order of list {list}");
                found += stamps.len() - 1;
            }
            assert_eq!(found, *len, "blocks in queue {queue}");
        }
    }
}

impl Lists for Slab<Seen> {
    fn end(&self, list: u32) -> Option<End> {
        self.tail(list).map(|id| end(self, id))
    }

    fn newer(&self, id: u32) -> Option<End> {
        Slab::newer(self, id).map(|id| end(self, id))
    }
}

fn end(blocks: &Slab<Seen>, id: u32) -> End {
    End { id, key: blocks.key(id), stamp: blocks.extra(id).stamp(), value: 0 }
}
