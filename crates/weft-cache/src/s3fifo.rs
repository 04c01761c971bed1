//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! ```text
//!   new ─▶ small, a tenth ─▶ requested twice or more? ─ yes ─▶ main ─▶ requested? ─ no ─▶ out
//!                                  │ no                        ▲  ▲                 │ yes
//!                                  ▼                           │  └── one less ─────┘
//!                                 out; key to ghosts ─ again ──┘
//! ```
//!
//! Three queues, first in, first out: most new blocks are never requested again, and leave through
//! the small one. A hit only counts, up to 3. The count starts again in the main queue. Ghosts are
//! as many as the main queue holds blocks; a block whose key is among them is admitted to main.
//!
//! Victim disk first divides small and main by class; where the policy takes the end of a queue,
//! the end that is worth least is taken. p is 1 / age in the queue, as both are queues of arrival,
//! and a block with requests is not evicted at all but put at a head. In small the penalty counts
//! twice more, or a tenth of the cache would limit what it can do for lost blocks:
//!
//! * They stay longer there, and must not drive other blocks out sooner: small is full by its
//!   *weight*, in which a block whose miss reads MP blocks counts 1 / MP.
//! * The requests that lead to main are worth what they save: requests · MP must be two or more.

use crate::error::CacheError;
use crate::ghosts::Ghosts;
use crate::penalty::{Block, Penalty};
use crate::policy::{Evicted, Policy};
use crate::queues::Queues;

const SMALL: u32 = 0;
const MAIN: u32 = 1;
/// The greatest count of requests.
const COUNT_MAX: u8 = 3;
/// As many requests in small lead to main, times the penalty of a miss.
const WORTH_MAIN: u32 = 2;

const GHOSTS: u32 = 0;

#[derive(Debug)]
pub(crate) struct S3Fifo {
    queues: Queues,
    ghosts: Ghosts,
    /// From this weight on, small gives a block up.
    small: usize,
}

fn small(capacity: usize) -> usize {
    (capacity / 10).max(1)
}

impl S3Fifo {
    pub(crate) fn new(capacity: usize, classes: u16) -> Result<Self, CacheError> {
        let small = small(capacity);
        let ghosts = Ghosts::new(capacity - small)?;
        Ok(Self { queues: Queues::new(capacity, 2, classes)?, ghosts, small })
    }
}

impl Policy for S3Fifo {
    fn len(&self) -> usize {
        self.queues.len()
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.queues.find(key)
    }

    fn hit(&mut self, slot: u32, _: &dyn Penalty) {
        let count = self.queues.mark(slot);
        if count < COUNT_MAX {
            self.queues.set_mark(slot, count + 1);
        }
    }

    fn admit(&mut self, block: Block, penalty: &dyn Penalty) -> (u32, Option<Evicted>) {
        let queue = if self.ghosts.take(block.key) { MAIN } else { SMALL };
        let evicted = if self.queues.is_full() { self.evict(penalty) } else { None };
        (self.queues.insert(block, queue), evicted)
    }

    fn evict(&mut self, penalty: &dyn Penalty) -> Option<Evicted> {
        loop {
            self.queues.refresh(penalty);
            let from_small =
                self.queues.weight_of(SMALL) >= self.small || self.queues.len_of(MAIN) == 0;
            let queue = if from_small { SMALL } else { MAIN };
            let (end, its) = self.queues.victim(queue, penalty)?;
            let count = self.queues.mark(end);
            let worth = u32::from(count).saturating_mul(its.max(1));
            match queue {
                SMALL if worth >= WORTH_MAIN => self.queues.move_to(end, MAIN, 0),
                MAIN if count > 0 => self.queues.move_to(end, MAIN, count - 1),
                _ => {
                    let evicted = self.queues.remove(end);
                    if queue == SMALL {
                        self.ghosts.add(evicted.key, GHOSTS);
                    }
                    return Some(evicted);
                }
            }
        }
    }

    fn forget(&mut self, slot: u32) {
        self.queues.remove(slot);
    }

    fn resize(&mut self, capacity: usize, moved: &mut dyn FnMut(u32)) -> Result<(), CacheError> {
        self.ghosts.resize(capacity - small(capacity))?;
        self.queues.resize(capacity, moved)?;
        self.small = small(capacity);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.queues.memory_bytes() + self.ghosts.memory_bytes()
    }

    fn check(&self) {
        self.queues.check();
        self.ghosts.check(|key| self.find(key).is_some());
    }
}
