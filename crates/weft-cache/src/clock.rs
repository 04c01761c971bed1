//! CLOCK: first in, first out, and a second chance for blocks requested since.
//!
//! A hit only marks the block. The hand looks at the end of the queue: a marked block loses its
//! mark and goes to the head, the first unmarked one is evicted. So a block's age is the time since
//! the hand last passed it, which is what CLOCK knows of recency: p is 1 / age.
//!
//! Victim disk first divides the queue by class, and the hand looks at the end that is worth least
//! each time. With equal penalties that is the end of the whole queue, and the policy is CLOCK.

use crate::error::CacheError;
use crate::penalty::{Block, Penalty};
use crate::policy::{Evicted, Policy};
use crate::queues::Queues;

const QUEUE: u32 = 0;
const REQUESTED: u8 = 1;

#[derive(Debug)]
pub(crate) struct Clock(Queues);

impl Clock {
    pub(crate) fn new(capacity: usize, classes: u16) -> Result<Self, CacheError> {
        Queues::new(capacity, 1, classes).map(Self)
    }
}

impl Policy for Clock {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.0.find(key)
    }

    fn hit(&mut self, slot: u32, _: &dyn Penalty) {
        self.0.set_mark(slot, REQUESTED);
    }

    fn admit(&mut self, block: Block, penalty: &dyn Penalty) -> (u32, Option<Evicted>) {
        let evicted = if self.0.is_full() { self.evict(penalty) } else { None };
        (self.0.insert(block, QUEUE), evicted)
    }

    fn evict(&mut self, penalty: &dyn Penalty) -> Option<Evicted> {
        loop {
            self.0.refresh(penalty);
            let (end, _) = self.0.victim(QUEUE, penalty)?;
            if self.0.mark(end) != REQUESTED {
                return Some(self.0.remove(end));
            }
            self.0.move_to(end, QUEUE, 0);
        }
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
