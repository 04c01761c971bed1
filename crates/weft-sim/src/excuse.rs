//! Where promises end: the part of `docs/consistency.md` that says what a crash may take when disks
//! are lost with it, no more and no less.
//!
//! * `ppl`: what was being written **to** a disk that is lost in the same moment may be garbage.
//!   "In the same moment" begins when the write begins, and ends when the write is durable.
//! * `bitmap`, `none`: in the stripes and columns that were being written, all data of the lost
//!   disks may be garbage (the write hole), also of disks lost long before.
//! * Mirrors: any copy may be the one that is left.
//!
//! What is lost after the crash, before the volume has made itself consistent, counts like what is
//! lost with it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_array::Event;
use weft_code::UnitSet;

use crate::engine::Engine;
use crate::oracle::{Cut, Oracle, Tick};
use crate::setup::{Map, Piece, Policy};
use crate::workload::Desk;

/// Slots that are lost, each with the instant from which on writes knew of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lost(BTreeMap<usize, Tick>);

impl Lost {
    /// Lost in this moment: all writes so far counted on them.
    pub(crate) fn now(slots: UnitSet) -> Self {
        Self(slots.iter().map(|slot| (slot, Tick::MAX)).collect())
    }

    /// These, too, are lost in this moment.
    pub(crate) fn extend(&mut self, slots: UnitSet) {
        self.add(&Self::now(slots).0);
    }

    /// These were lost before any write of which it matters.
    pub(crate) fn long_ago(&mut self, slots: UnitSet) {
        self.add(&slots.iter().map(|slot| (slot, 0)).collect());
    }

    /// These were lost before.
    pub(crate) fn add(&mut self, lost_at: &BTreeMap<usize, Tick>) {
        for (slot, at) in lost_at {
            let known = self.0.entry(*slot).or_insert(*at);
            *known = (*known).max(*at);
        }
    }

    /// Ends the promises that the last crashes and these losses end together. Returns for how many
    /// cells.
    pub(crate) fn excuse(&self, oracle: &mut Oracle, map: &Map, policy: Policy) -> u64 {
        if self.0.is_empty() {
            return 0;
        }
        let mut count = 0;
        for cut in oracle.cuts() {
            if map.is_mirror() {
                oracle.doubt(cut.cell);
                continue;
            }
            // A request that covers part of a sector writes the whole of it.
            let bytes = map.sectors(&oracle.bytes(&(cut.cell..cut.cell + 1)));
            for piece in map.pieces(bytes) {
                for bytes in self.taken(map, policy, &piece, cut) {
                    let cells = oracle.cells_of(&bytes);
                    count += cells.filter(|cell| oracle.excuse(*cell, cut.at)).count() as u64;
                }
            }
        }
        count
    }

    /// The bytes of the volume for which nothing is promised, since this piece was being written.
    fn taken(
        &self,
        map: &Map,
        policy: Policy,
        piece: &Piece,
        cut: Cut,
    ) -> Vec<std::ops::Range<u64>> {
        match policy {
            Policy::Ppl => {
                let counted_on =
                    self.0.get(&piece.slot).is_some_and(|lost_at| cut.began <= *lost_at);
                if counted_on { vec![piece.bytes.clone()] } else { Vec::new() }
            }
            _ => map.beside(piece, self.0.keys().copied().collect()),
        }
    }
}

/// Lets the desk note when the engine loses members: before it judges an answer, and at the end of
/// a life. A task that waits for the events might be starved until after a crash.
pub(crate) fn watch_losses(
    engine: &Engine,
    desk: &Rc<Desk>,
    map: &Rc<Map>,
    lost_at: &Rc<RefCell<BTreeMap<usize, Tick>>>,
) {
    let (events, map, lost_at) = (engine.0.subscribe(), map.clone(), lost_at.clone());
    let note = move |oracle: &mut Oracle| {
        while let Some(event) = events.try_next() {
            let Event::MemberFailed { slot, .. } = event else { continue };
            lost_at.borrow_mut().insert(slot, oracle.now());
            if map.is_mirror() {
                // Only now is it sure that no read takes the lost copy any more.
                Lost::now(UnitSet::one(slot)).excuse(oracle, &map, Policy::Bitmap);
            }
        }
    };
    *desk.losses.borrow_mut() = Some(Box::new(note));
}
