//! LFU: the block with the fewest requests since its admission goes; of these the one whose last
//! request is longest ago.
//!
//! Blocks of equal frequency are a list, and the lists of a class a chain by frequency. A hit moves
//! a block to the head of the next list, so each is in the order of last requests, and the end of
//! the first list of a class is the block to go (after Shah, Mitra and Matani, "An O(1) algorithm
//! for implementing the LFU cache eviction scheme", 2010):
//!
//! ```text
//!   class 0   1: ● ● ● ◀─    4: ●    9: ● ●
//!   class 1   1: ● ◀─        2: ● ●
//! ```
//!
//! With victim disk first this is the paper's algorithm 2: p is the frequency.
//!
//! A list exists for as long as it holds blocks, so there are never more than the cache has blocks.
//! Frequencies stop at 2³² − 1.

use crate::error::CacheError;
use crate::penalty::{Block, Penalty};
use crate::policy::{Evicted, Policy};
use crate::slab::{NONE, Slab};
use crate::victim::{End, Lists, Victims, Weight};

/// A list: its frequency, and its neighbours in the chain of its class.
#[derive(Clone, Copy, Debug)]
struct Step {
    frequency: u32,
    class: u16,
    fewer: u32,
    more: u32,
}

#[derive(Debug)]
pub(crate) struct Lfu {
    /// With the time of the last request.
    blocks: Slab<u64>,
    steps: Vec<Step>,
    /// The first of the steps that are not in use; chained by `more`.
    free: u32,
    /// The step with the fewest requests, by class.
    first: Vec<u32>,
    victims: Victims<u128>,
    now: u64,
}

impl Lfu {
    pub(crate) fn new(capacity: usize, classes: u16) -> Result<Self, CacheError> {
        let mut steps = Vec::new();
        let none = |_| CacheError::NoMemory { blocks: capacity };
        steps.try_reserve_exact(capacity).map_err(none)?;
        Ok(Self {
            blocks: Slab::new(capacity, capacity)?,
            steps,
            free: NONE,
            first: vec![NONE; classes.into()],
            victims: Victims::new(Weight::Value, 1, classes),
            now: 0,
        })
    }

    /// A step after `fewer`, or at the start.
    fn step(&mut self, frequency: u32, class: u16, fewer: u32) -> u32 {
        let first = &mut self.first[usize::from(class)];
        let more = if fewer == NONE { *first } else { self.steps[fewer as usize].more };
        let step = Step { frequency, class, fewer, more };
        let id = if self.free == NONE {
            self.steps.push(step);
            u32::try_from(self.steps.len() - 1).expect("fewer steps than numbers")
        } else {
            let id = self.free;
            self.free = self.steps[id as usize].more;
            self.steps[id as usize] = step;
            id
        };
        match fewer {
            NONE => *first = id,
            fewer => self.steps[fewer as usize].more = id,
        }
        if more != NONE {
            self.steps[more as usize].fewer = id;
        }
        id
    }

    /// Takes a step out.
    fn drop_step(&mut self, id: u32) {
        let Step { class, fewer, more, .. } = self.steps[id as usize];
        match fewer {
            NONE => self.first[usize::from(class)] = more,
            fewer => self.steps[fewer as usize].more = more,
        }
        if more != NONE {
            self.steps[more as usize].fewer = fewer;
        }
        self.steps[id as usize].more = self.free;
        self.free = id;
    }

    /// A block leaves its place in the chain of its class.
    fn leave(&mut self, slot: u32) {
        let Step { class, fewer, .. } = self.steps[self.blocks.list(slot) as usize];
        let older = match self.blocks.older(slot) {
            // The newest of those with fewer requests.
            NONE if fewer != NONE => self.blocks.head(fewer),
            older => older,
        };
        self.victims.leaves(slot, class.into(), older);
        self.note(slot);
    }

    /// Notes a change of the end of a class, if `slot` is the end.
    fn note(&mut self, slot: u32) {
        let Step { class, fewer, .. } = self.steps[self.blocks.list(slot) as usize];
        if fewer == NONE && self.blocks.is_tail(slot) {
            self.victims.changed(class.into());
        }
    }

    fn remove(&mut self, slot: u32) -> Evicted {
        let evicted = Evicted { key: self.blocks.key(slot), slot };
        let step = self.blocks.list(slot);
        self.leave(slot);
        if self.blocks.is_single(step) {
            self.drop_step(step);
        }
        self.blocks.remove(slot);
        evicted
    }
}

/// The chains of all classes.
struct Chains<'a> {
    blocks: &'a Slab<u64>,
    steps: &'a [Step],
    first: &'a [u32],
}

impl Chains<'_> {
    fn end_of(&self, id: u32) -> End {
        let value = self.steps[self.blocks.list(id) as usize].frequency.into();
        End { id, key: self.blocks.key(id), stamp: self.blocks.extra(id), value }
    }

    fn tail(&self, step: u32) -> Option<End> {
        let id = if step == NONE { None } else { self.blocks.tail(step) }?;
        Some(self.end_of(id))
    }
}

impl Lists for Chains<'_> {
    fn end(&self, class: u32) -> Option<End> {
        self.tail(self.first[class as usize])
    }

    fn newer(&self, id: u32) -> Option<End> {
        match self.blocks.newer(id) {
            Some(newer) => Some(self.end_of(newer)),
            None => self.tail(self.steps[self.blocks.list(id) as usize].more),
        }
    }
}

impl Policy for Lfu {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.blocks.find(key)
    }

    fn hit(&mut self, slot: u32, _: &dyn Penalty) {
        let id = self.blocks.list(slot);
        let Step { frequency, class, more, .. } = self.steps[id as usize];
        let frequency = frequency.saturating_add(1);
        let next_has = more != NONE && self.steps[more as usize].frequency == frequency;
        self.leave(slot);
        self.blocks.set_extra(slot, self.now);
        self.now += 1;
        if frequency == self.steps[id as usize].frequency {
            self.blocks.move_to(slot, id);
        } else if next_has {
            if self.blocks.is_single(id) {
                self.drop_step(id);
            }
            self.blocks.move_to(slot, more);
        } else if self.blocks.is_single(id) {
            self.steps[id as usize].frequency = frequency;
        } else {
            let step = self.step(frequency, class, id);
            self.blocks.move_to(slot, step);
        }
        self.note(slot);
    }

    fn admit(&mut self, block: Block, penalty: &dyn Penalty) -> (u32, Option<Evicted>) {
        let evicted = if self.blocks.is_full() { self.evict(penalty) } else { None };
        let first = self.first[usize::from(block.class)];
        let has = first != NONE && self.steps[first as usize].frequency == 1;
        let step = if has { first } else { self.step(1, block.class, NONE) };
        let slot = self.blocks.insert(block.key, step, self.now);
        self.now += 1;
        self.note(slot);
        (slot, evicted)
    }

    fn evict(&mut self, penalty: &dyn Penalty) -> Option<Evicted> {
        let Self { blocks, steps, first, victims, now, .. } = self;
        let chains = Chains { blocks, steps, first };
        victims.refresh(penalty, &chains);
        let (victim, _) = victims.least(0, *now, penalty, &chains)?;
        Some(self.remove(victim))
    }

    fn forget(&mut self, slot: u32) {
        self.remove(slot);
    }

    fn resize(&mut self, capacity: usize, moved: &mut dyn FnMut(u32)) -> Result<(), CacheError> {
        let classes = u16::try_from(self.first.len()).expect("classes are numbered by 16 bits");
        let mut new = Self { now: self.now, ..Self::new(capacity, classes)? };
        for class in 0..classes {
            let (mut last, mut id) = (NONE, self.first[usize::from(class)]);
            while id != NONE {
                let Step { frequency, more, .. } = self.steps[id as usize];
                last = new.step(frequency, class, last);
                for slot in self.blocks.oldest_first(id) {
                    new.blocks.insert(self.blocks.key(slot), last, self.blocks.extra(slot));
                    moved(slot);
                }
                id = more;
            }
        }
        new.victims.renumbered();
        *self = new;
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.blocks.memory_bytes()
            + self.victims.memory_bytes()
            + self.steps.capacity() * size_of::<Step>()
            + self.first.capacity() * size_of::<u32>()
    }

    fn check(&self) {
        self.blocks.check();
        let mut chained = 0;
        for (class, first) in (0..).zip(&self.first) {
            let (mut fewer, mut id, mut below) = (NONE, *first, 0);
            while id != NONE {
                let step = self.steps[id as usize];
                assert_eq!((step.class, step.fewer), (class, fewer), "links of step {id}");
                assert!(step.frequency > below, "order of step {id}");
                let stamps = self.blocks.oldest_first(id).map(|id| self.blocks.extra(id));
                let stamps: Vec<u64> = stamps.chain([self.now]).collect();
                assert!(stamps.is_sorted_by(|a, b| a < b), "order in step {id}");
                assert!(stamps.len() > 1, "step {id} is empty");
                chained += stamps.len() - 1;
                (fewer, id, below) = (id, step.more, step.frequency);
            }
        }
        assert_eq!(chained, self.blocks.len(), "blocks in steps");
    }
}
