//! LRU: the block whose last request is longest ago goes.
//!
//! One queue; a hit moves a block to its head. p is 1 / age: the age counts requests since the last
//! one for the block. With victim disk first this is the paper's algorithm 1.

use crate::error::CacheError;
use crate::penalty::{Block, Penalty};
use crate::policy::{Evicted, Policy};
use crate::queues::Queues;

const QUEUE: u32 = 0;

#[derive(Debug)]
pub(crate) struct Lru(Queues);

impl Lru {
    pub(crate) fn new(capacity: usize, classes: u16) -> Result<Self, CacheError> {
        Queues::new(capacity, 1, classes).map(Self)
    }
}

impl Policy for Lru {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.0.find(key)
    }

    fn hit(&mut self, slot: u32, _: &dyn Penalty) {
        self.0.move_to(slot, QUEUE, 0);
    }

    fn admit(&mut self, block: Block, penalty: &dyn Penalty) -> (u32, Option<Evicted>) {
        let evicted = if self.0.is_full() { self.evict(penalty) } else { None };
        (self.0.insert(block, QUEUE), evicted)
    }

    fn evict(&mut self, penalty: &dyn Penalty) -> Option<Evicted> {
        self.0.refresh(penalty);
        let (victim, _) = self.0.victim(QUEUE, penalty)?;
        Some(self.0.remove(victim))
    }

    fn forget(&mut self, slot: u32) {
        self.0.remove(slot);
    }

    fn resize(&mut self, capacity: usize, moved: &mut dyn FnMut(u32)) -> Result<(), CacheError> {
        self.0.resize(capacity, moved)
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    fn check(&self) {
        self.0.check();
    }
}
