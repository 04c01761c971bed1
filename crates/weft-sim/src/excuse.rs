//! Where promises end: the part of `docs/consistency.md` on losses when disks are lost together
//! with a crash.
//!
//! * `ppl`: data that was being written **to** a disk that is lost together with the crash may be
//!   garbage. "Together" means: after the write started and before it was durable.
//! * `bitmap`, `none`: of the stripes that were being written, at the offsets in the unit that were
//!   being written, all data on lost disks may be garbage (the write hole), also on disks lost long
//!   before.
//! * Mirrors: any copy may be the one that survives.
//!
//! A disk lost after the crash, before the volume is consistent again, counts as lost with the
//! crash.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_array::{Consistency, Event, MemberState};
use weft_code::{SlotNo, SlotSet};

use crate::engine::Engine;
use crate::oracle::{Cut, Oracle, Tick};
use crate::setup::{Map, Piece};
use crate::workload::ClientHarness;

/// Lost slots, each with the instant from which writes took the loss into account.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lost(BTreeMap<SlotNo, Tick>);

impl Lost {
    /// Slots that are lost now: all writes so far relied on them.
    pub(crate) fn now(slots: SlotSet) -> Self {
        Self(slots.iter().map(|slot| (slot, Tick::MAX)).collect())
    }

    /// Adds slots that were lost before any write that matters here.
    pub(crate) fn long_ago(&mut self, slots: SlotSet) {
        self.add(&slots.iter().map(|slot| (slot, 0)).collect());
    }

    /// Adds slots that were lost at the given instants.
    pub(crate) fn add(&mut self, lost_at: &BTreeMap<SlotNo, Tick>) {
        for (slot, at) in lost_at {
            let known = self.0.entry(*slot).or_insert(*at);
            *known = (*known).max(*at);
        }
    }

    /// Ends the promises that the last crashes end together with these losses. Returns the number
    /// of cells.
    pub(crate) fn excuse(&self, oracle: &mut Oracle, map: &Map, policy: Consistency) -> u64 {
        if self.0.is_empty() {
            return 0;
        }
        let mut count = 0;
        for cut in oracle.cuts() {
            if map.has_copies() {
                oracle.doubt(cut.cell);
            }
            // A request for part of a sector writes the whole sector.
            let bytes = map.sectors(&oracle.bytes(&(cut.cell..cut.cell + 1)));
            for piece in map.coded_pieces(bytes) {
                for bytes in self.excused_bytes(map, policy, &piece, cut) {
                    let cells = oracle.cells_at(&bytes);
                    count += cells.filter(|cell| oracle.excuse(*cell, cut.at)).count() as u64;
                }
            }
        }
        count
    }

    /// The bytes of the volume that may be garbage because this piece was being written.
    fn excused_bytes(
        &self,
        map: &Map,
        policy: Consistency,
        piece: &Piece,
        cut: Cut,
    ) -> Vec<std::ops::Range<u64>> {
        match policy {
            Consistency::Ppl => {
                let counted_on =
                    self.0.get(&piece.slot).is_some_and(|lost_at| cut.began <= *lost_at);
                if counted_on { vec![piece.bytes.clone()] } else { Vec::new() }
            }
            _ => map.data_on(piece, self.0.keys().copied().collect()),
        }
    }
}

/// Makes the harness pass lost members on to the oracle before it checks an answer and at the end
/// of a life. A task that waits for the engine's events might not run before the crash.
pub(crate) fn watch_losses(
    engine: &Engine,
    harness: &Rc<ClientHarness>,
    map: &Rc<Map>,
    lost_at: &Rc<RefCell<BTreeMap<SlotNo, Tick>>>,
) {
    let (events, map, lost_at) = (engine.0.subscribe(), map.clone(), lost_at.clone());
    let (array, left_out, broken) = (engine.clone(), Cell::new(SlotSet::new()), Cell::new(false));
    let note = move |oracle: &mut Oracle| {
        let mut lost = SlotSet::new();
        while let Some(event) = events.try_next() {
            broken.set(broken.get() || matches!(event, Event::ArrayBroken { .. }));
            let Event::MemberFailed { slot, .. } = event else { continue };
            lost_at.borrow_mut().insert(slot, oracle.now());
            lost.insert(slot);
        }
        if !map.has_copies() {
            return;
        }
        if broken.get() {
            // It keeps members that fail, and reads leave them out where copies may differ.
            let slots = array.0.status().slots;
            let failed = slots.iter().filter(|slot| slot.state == MemberState::Failed);
            let failed: SlotSet = failed.map(|slot| slot.slot).collect();
            lost = lost.union(&failed.difference(&left_out.replace(failed)));
        }
        // Only now is it certain that no read uses the lost copies any more.
        for slot in lost.iter() {
            Lost::now(SlotSet::one(slot)).excuse(oracle, &map, Consistency::Bitmap);
        }
    };
    *harness.losses.borrow_mut() = Some(Box::new(note));
}
