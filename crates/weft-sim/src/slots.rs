//! The slots of an array, as the engine has them in memory.

use std::collections::BTreeMap;

use weft_code::{SlotNo, SlotSet};

use crate::engine::Engine;
use crate::oracle::Tick;

/// The slots of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slots {
    pub missing: SlotSet,
    pub rebuilding: SlotSet,
    /// The number of the disk in each slot.
    pub disks: Vec<Option<usize>>,
    /// When each slot lost its member in this life, unless a replacement has been fully rebuilt
    /// since.
    pub lost_at: BTreeMap<SlotNo, Tick>,
}

impl Slots {
    pub(crate) fn of(engine: &Engine) -> Self {
        let count = engine.0.status().slots.len();
        let number = |name: &str| name.strip_prefix("sim").and_then(|n| n.parse().ok());
        let mut slots = Self {
            missing: SlotSet::new(),
            rebuilding: SlotSet::new(),
            disks: vec![None; count],
            lost_at: BTreeMap::new(),
        };
        for slot in SlotNo::all(count) {
            let Some((name, is_whole)) = engine.0.member_in_memory(slot) else {
                slots.missing.insert(slot);
                continue;
            };
            slots.disks[slot.0] = number(&name);
            if !is_whole {
                slots.rebuilding.insert(slot);
            }
        }
        slots
    }

    pub(crate) fn incomplete(&self) -> SlotSet {
        self.missing.union(&self.rebuilding)
    }

    /// The slots whose disk's number satisfies `numbers`.
    pub(crate) fn holding(&self, numbers: impl Fn(usize) -> bool) -> SlotSet {
        let held = self.disks.iter().enumerate().filter(|(_, disk)| disk.is_some_and(&numbers));
        held.map(|(slot, _)| SlotNo(slot)).collect()
    }
}
