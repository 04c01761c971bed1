//! GreedyDual (Young, "The k-server dual and loose competitiveness for paging", 1994; Landlord).
//!
//! A request gives a block a credit of L plus the penalty of its miss. The block with the least
//! credit goes, and L becomes that credit: everybody else has paid. With equal penalties it is LRU.
//! It is k-competitive for any penalties, while victim disk first has no such bound; and it weighs
//! recency and penalty by a sum, victim disk first by a product.
//!
//! L never falls, so the blocks of a class are in the order of their credits as long as its penalty
//! does not change. When it falls, blocks requested since may have less credit than the blocks
//! after them, and wait for these to go.

use crate::error::CacheError;
use crate::penalty::{Block, Penalty};
use crate::policy::{Evicted, Policy};
use crate::slab::Slab;
use crate::victim::{End, Lists, Victims, Weight};

#[derive(Clone, Copy, Debug)]
struct Credit {
    stamp: u64,
    credit: u64,
}

#[derive(Debug)]
pub(crate) struct GreedyDual {
    blocks: Slab<Credit>,
    victims: Victims<u128>,
    now: u64,
    /// L: the credit of the last victim.
    paid: u64,
}

impl GreedyDual {
    pub(crate) fn new(capacity: usize, classes: u16) -> Result<Self, CacheError> {
        let blocks = Slab::new(capacity, classes.into())?;
        Ok(Self { blocks, victims: Victims::new(Weight::Whole, 1, classes), now: 0, paid: 0 })
    }

    fn credit(&mut self, block: Block, penalty: &dyn Penalty) -> Credit {
        let stamp = self.now;
        self.now += 1;
        Credit { stamp, credit: self.paid + u64::from(penalty.of(block)) }
    }

    /// Notes a change of the end of `list`, if `slot` is the end.
    fn note(&mut self, slot: u32, list: u32) {
        if self.blocks.is_tail(slot) {
            self.victims.changed(list);
        }
    }

    fn remove(&mut self, slot: u32) -> Evicted {
        self.note(slot, self.blocks.list(slot));
        let key = self.blocks.key(slot);
        self.blocks.remove(slot);
        Evicted { key, slot }
    }
}

impl Lists for Slab<Credit> {
    fn end(&self, list: u32) -> Option<End> {
        let id = self.tail(list)?;
        let Credit { stamp, credit } = self.extra(id);
        Some(End { id, key: self.key(id), stamp, value: credit })
    }

    fn newer(&self, _: u32) -> Option<End> {
        None
    }
}

impl Policy for GreedyDual {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.blocks.find(key)
    }

    fn hit(&mut self, slot: u32, penalty: &dyn Penalty) {
        let list = self.blocks.list(slot);
        let block = Block { key: self.blocks.key(slot), class: self.victims.class(list) };
        let credit = self.credit(block, penalty);
        self.note(slot, list);
        self.blocks.set_extra(slot, credit);
        self.blocks.move_to(slot, list);
        self.note(slot, list);
    }

    fn admit(&mut self, block: Block, penalty: &dyn Penalty) -> (u32, Option<Evicted>) {
        let evicted = if self.blocks.is_full() { self.evict(penalty) } else { None };
        let credit = self.credit(block, penalty);
        let slot = self.blocks.insert(block.key, block.class.into(), credit);
        self.note(slot, block.class.into());
        (slot, evicted)
    }

    fn evict(&mut self, penalty: &dyn Penalty) -> Option<Evicted> {
        self.victims.refresh(penalty, &self.blocks);
        let (victim, _) = self.victims.least(0, self.now, penalty, &self.blocks)?;
        self.paid = self.paid.max(self.blocks.extra(victim).credit);
        Some(self.remove(victim))
    }

    fn forget(&mut self, slot: u32) {
        self.remove(slot);
    }

    fn resize(&mut self, capacity: usize, moved: &mut dyn FnMut(u32)) -> Result<(), CacheError> {
        self.victims.renumbered();
        self.blocks.resize(capacity, moved)
    }

    fn memory_bytes(&self) -> usize {
        self.blocks.memory_bytes() + self.victims.memory_bytes()
    }

    fn check(&self) {
        self.blocks.check();
    }
}
