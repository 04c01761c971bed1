//! The slots of an array, as the engine reports them.

use std::collections::BTreeMap;

use weft_array::MemberState;
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
        let status = engine.0.status();
        let with = |state: MemberState| {
            status.slots.iter().filter(|s| s.state == state).map(|s| s.slot).collect::<SlotSet>()
        };
        let number = |name: &str| name.strip_prefix("sim").and_then(|n| n.parse().ok());
        let disks = status.slots.iter().map(|s| match s.state {
            MemberState::Missing => None,
            _ => number(&s.disk),
        });
        Self {
            missing: with(MemberState::Missing),
            rebuilding: with(MemberState::Rebuilding),
            disks: disks.collect(),
            lost_at: BTreeMap::new(),
        }
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
