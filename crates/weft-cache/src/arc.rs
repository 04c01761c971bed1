//! ARC (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003).
//!
//! ```text
//!      B1  ┊ T1: requested once │ T2: more often ┊  B2          T1 + T2 ≤ c, cached
//!   ghosts ┊      ◀── target ──▶│                ┊ ghosts       all four ≤ 2 c
//! ```
//!
//! Two lists by recency, and ghosts of what left each. A request for a ghost of B1 shows that T1
//! was too short, and raises its target; one of B2 lowers it.
//!
//! Victim disk first divides T1 and T2 by class. Which of them gives a block up is ARC's decision;
//! in it the end goes that is worth least. Ghosts are not divided: they are not weighed, only
//! counted.
//!
//! Two departures; neither matters while the cache is full. When blocks were forgotten, there is
//! room, and none is evicted. And there are at most c ghosts, even after blocks were forgotten.

use crate::error::CacheError;
use crate::ghosts::Ghosts;
use crate::penalty::{Block, Penalty};
use crate::policy::{Evicted, Policy};
use crate::queues::Queues;

/// Requested once since it came in; its ghosts are B1.
const ONCE: u32 = 0;
/// Requested more often; its ghosts are B2.
const OFTEN: u32 = 1;

#[derive(Debug)]
pub(crate) struct Arc {
    queues: Queues,
    ghosts: Ghosts,
    capacity: usize,
    /// How many blocks T1 should have (p in the paper).
    target: usize,
}

impl Arc {
    pub(crate) fn new(capacity: usize, classes: u16) -> Result<Self, CacheError> {
        let ghosts = Ghosts::new(capacity)?;
        Ok(Self { queues: Queues::new(capacity, 2, classes)?, ghosts, capacity, target: 0 })
    }

    /// REPLACE: evicts from T1 if it is longer than its target, else from T2.
    fn replace(&mut self, wanted: Option<u32>, penalty: &dyn Penalty) -> Option<Evicted> {
        let once = self.queues.len_of(ONCE);
        let over = once > self.target || wanted == Some(OFTEN) && once == self.target;
        let queue = if once > 0 && (over || self.queues.len_of(OFTEN) == 0) { ONCE } else { OFTEN };
        self.queues.refresh(penalty);
        let (victim, _) = self.queues.victim(queue, penalty)?;
        let evicted = self.queues.remove(victim);
        self.ghosts.add(evicted.key, queue);
        Some(evicted)
    }

    /// A request for a ghost moves the target.
    fn adapt(&mut self, list: u32) {
        let (once, often) = (self.ghosts.len(ONCE), self.ghosts.len(OFTEN));
        if list == ONCE {
            self.target = (self.target + (often / once).max(1)).min(self.capacity);
        } else {
            self.target = self.target.saturating_sub((once / often).max(1));
        }
    }
}

impl Policy for Arc {
    fn len(&self) -> usize {
        self.queues.len()
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.queues.find(key)
    }

    fn hit(&mut self, slot: u32, _: &dyn Penalty) {
        self.queues.move_to(slot, OFTEN, 0);
    }

    fn admit(&mut self, block: Block, penalty: &dyn Penalty) -> (u32, Option<Evicted>) {
        let full = self.queues.is_full();
        if let Some(list) = self.ghosts.list(block.key) {
            self.adapt(list);
            self.ghosts.take(block.key);
            let evicted = if full { self.replace(Some(list), penalty) } else { None };
            return (self.queues.insert(block, OFTEN), evicted);
        }
        let once = self.queues.len_of(ONCE) + self.ghosts.len(ONCE);
        let all = self.queues.len() + self.ghosts.len(ONCE) + self.ghosts.len(OFTEN);
        let evicted = if once >= self.capacity {
            if self.ghosts.drop_oldest(ONCE) {
                if full { self.replace(None, penalty) } else { None }
            } else {
                // T1 is the whole cache: its end goes, and leaves no ghost.
                self.queues.refresh(penalty);
                let victim = self.queues.victim(ONCE, penalty);
                victim.map(|(victim, _)| self.queues.remove(victim))
            }
        } else {
            if all >= 2 * self.capacity {
                self.ghosts.drop_oldest(OFTEN);
            }
            if full { self.replace(None, penalty) } else { None }
        };
        (self.queues.insert(block, ONCE), evicted)
    }

    fn evict(&mut self, penalty: &dyn Penalty) -> Option<Evicted> {
        self.replace(None, penalty)
    }

    fn forget(&mut self, slot: u32) {
        self.queues.remove(slot);
    }

    fn resize(&mut self, capacity: usize, moved: &mut dyn FnMut(u32)) -> Result<(), CacheError> {
        self.ghosts.resize(capacity)?;
        self.queues.resize(capacity, moved)?;
        self.capacity = capacity;
        self.target = self.target.min(capacity);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.queues.memory_bytes() + self.ghosts.memory_bytes()
    }

    fn check(&self) {
        self.queues.check();
        self.ghosts.check(|key| self.find(key).is_some());
        assert!(self.target <= self.capacity, "target {}", self.target);
    }
}
