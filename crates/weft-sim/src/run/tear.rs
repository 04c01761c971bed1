//! Sectors that a power cut leaves unreadable.
//!
//! A disk that loses power while it writes a sector may leave it with a bad checksum; the sector
//! then cannot be read until it is written again. This can happen to any sector whose new contents
//! were not yet durable.
//!
//! *Which sectors.* On each disk some sectors of the metadata, possibly on all disks at once: no
//! member's metadata may depend on sectors that were not durable. Of the data only as much as the
//! code tolerates, counting each affected disk as lost.
//!
//! *What may be lost.* The rules for a disk that is lost together with the crash (`excuse.rs`)
//! apply to each such sector, and to that sector only.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_array::Consistency;
use weft_code::{SlotNo, SlotSet};
use weft_rt::Rng;

use super::state::Run;
use crate::format::FIRST_DATA;
use crate::membership::superblock_of;
use crate::oracle::Oracle;
use crate::setup::Map;
use crate::slots::Slots;

/// The affected sectors of the data: per slot, byte ranges from the start of the data area.
#[derive(Debug, Clone, Default)]
pub(crate) struct Torn(BTreeMap<SlotNo, Vec<Range<u64>>>);

impl Torn {
    pub(crate) fn slots(&self) -> SlotSet {
        self.0.keys().copied().collect()
    }

    fn hits(&self, map: &Map, (slot, bytes): &(SlotNo, Range<u64>)) -> bool {
        let touches = |torn: &Range<u64>| {
            let torn = map.sectors(torn);
            torn.start < bytes.end && bytes.start < torn.end
        };
        self.0.get(slot).is_some_and(|torn| torn.iter().any(touches))
    }

    /// Ends the promises that end with these sectors. Returns the number of cells.
    pub(crate) fn excuse(&self, oracle: &mut Oracle, map: &Map, policy: Consistency) -> u64 {
        if self.0.is_empty() {
            return 0;
        }
        let mut count = 0;
        for cut in oracle.cuts() {
            // A request for part of a sector writes the whole sector.
            let bytes = map.sectors(&oracle.bytes(&(cut.cell..cut.cell + 1)));
            for piece in map.pieces(bytes) {
                if map.has_copies() {
                    if map.copies(&piece).iter().any(|place| self.hits(map, place)) {
                        oracle.doubt(cut.cell);
                    }
                    continue;
                }
                let exposed = match policy {
                    Consistency::Ppl => vec![piece.bytes.clone()],
                    _ => map.data_on(&piece, self.slots()),
                };
                for bytes in exposed {
                    let hit = |piece| self.hits(map, &map.place(piece));
                    if map.pieces(bytes.clone()).iter().any(hit) {
                        let cells = oracle.cells_at(&bytes);
                        count += cells.filter(|cell| oracle.excuse(*cell, cut.at)).count() as u64;
                    }
                }
            }
        }
        count
    }
}

/// Draws a few short runs of adjacent sectors.
fn draw_runs(rng: &mut Rng, sectors: &[u64]) -> Vec<u64> {
    if sectors.is_empty() {
        return Vec::new();
    }
    let mut drawn = Vec::new();
    for _ in 0..rng.within(1, 3) {
        let start = rng.index(sectors.len());
        let len = usize::try_from(rng.within(1, 4)).unwrap_or(1);
        let run = sectors[start..].iter().take(len).enumerate();
        drawn.extend(run.filter(|(i, at)| **at == sectors[start] + *i as u64).map(|(_, at)| *at));
    }
    drawn
}

impl Run {
    /// Sometimes makes sectors unreadable that the last power cut interrupted. `lost`: the slots
    /// whose disks do not return.
    pub(crate) fn tear_sectors(&self, map: &Map, slots: &Slots, lost: SlotSet) -> Torn {
        let mut torn = Torn::default();
        let mut rng = self.world.rng(5000 + self.report.borrow().lives);
        let disks = self.disks.borrow();
        let interrupted: Vec<Vec<u64>> =
            disks.iter().map(|member| member.platter.take_interrupted()).collect();
        let area = disks.iter().find_map(|member| superblock_of(&member.platter));
        let Some(area) = area.map(|superblock| superblock.area) else { return torn };
        if self.options.crashes_only || self.options.whole_sectors || !rng.chance(40) {
            return torn;
        }
        // Where data starts changes in a reshape.
        let first_data = match self.setup.reshape {
            Some(_) => FIRST_DATA,
            None => area.data_offset,
        };
        let mut gone = slots.incomplete().union(&lost);
        let first = rng.index(disks.len());
        for index in 0..disks.len() {
            let number = (first + index) % disks.len();
            let platter = &disks[number].platter;
            let sector = u64::from(platter.sector_bytes());
            let interrupted = &interrupted[number];
            let in_data = interrupted.partition_point(|at| *at < first_data / sector);
            let (metadata, data) = interrupted.split_at(in_data);
            let mut hit = Vec::new();
            if rng.chance(50) {
                hit.extend(draw_runs(&mut rng, metadata));
            }
            let slot = slots.holding(|n| n == number).difference(&lost);
            if let (Some(slot), true) = (slot.iter().next(), rng.chance(50))
                && map.survives(gone.with(slot))
            {
                let drawn = draw_runs(&mut rng, data);
                if !drawn.is_empty() {
                    gone.insert(slot);
                }
                let start = |at: &u64| at * sector - first_data;
                let ranges = drawn.iter().map(|at| start(at)..start(at) + sector);
                torn.0.entry(slot).or_default().extend(ranges);
                hit.extend(drawn);
            }
            if !hit.is_empty() {
                let at: Vec<u64> = hit.iter().map(|at| at * sector).collect();
                self.world.note(format!("the cut made disk {number} unreadable at {at:?}"));
                self.report.borrow_mut().torn += hit.len() as u64;
                platter.faults(|f| f.unreadable.extend(hit));
            }
        }
        torn.0.retain(|_, ranges| !ranges.is_empty());
        torn
    }
}
