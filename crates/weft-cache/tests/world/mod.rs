//! Penalties as an array of one parity unit has them.

use std::collections::BTreeSet;

use weft_cache::{Block, Penalty};

/// Disks, some of them lost, of which one may be rebuilt up to an address.
#[derive(Clone, Debug)]
pub struct World {
    pub classes: u16,
    pub lost: BTreeSet<u16>,
    /// Blocks below this are rebuilt.
    pub rebuilt: u64,
    pub rebuilt_cost: u32,
    pub generation: u64,
}

impl World {
    pub fn new(classes: u16) -> Self {
        Self { classes, lost: BTreeSet::new(), rebuilt: 0, rebuilt_cost: 1, generation: 1 }
    }

    pub fn block(&self, key: u64) -> Block {
        Block { key, class: u16::try_from(key % u64::from(self.classes)).expect("a class") }
    }
}

impl Penalty for World {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn of(&self, block: Block) -> u32 {
        match self.lost.contains(&block.class) {
            true if block.key >= self.rebuilt => u32::from(self.classes) - 1,
            true => self.rebuilt_cost,
            false => 1,
        }
    }
}
