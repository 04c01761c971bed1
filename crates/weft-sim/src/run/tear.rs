//! Sectors that a power cut makes unreadable.
//!
//! A disk that loses power in the middle of a sector may leave it with a checksum that does not
//! fit: from then on it cannot be read, until it is written. Any sector may be hit whose new
//! contents were not durable yet.
//!
//! *What is hit.* Of the metadata of each disk some, on all disks at once if it comes so: no
//! member's metadata may depend on what was not durable. Of the data only as much that the code
//! survives it, each disk hit counting as one that is lost: beyond that no array could answer.
//!
//! *What that may take.* Such a sector is one of a disk that is lost in the moment of the crash,
//! and the rules for those hold (`excuse.rs`) – for that sector only.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_code::UnitSet;

use super::state::Run;
use crate::membership::superblock_of;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::setup::{Map, Policy};
use crate::slots::Slots;

/// What was hit of the data: for each slot bytes of its disk from the beginning of the data area.
#[derive(Debug, Clone, Default)]
pub(crate) struct Torn(BTreeMap<usize, Vec<Range<u64>>>);

impl Torn {
    fn slots(&self) -> UnitSet {
        self.0.keys().copied().collect()
    }

    fn hits(&self, map: &Map, (slot, bytes): &(usize, Range<u64>)) -> bool {
        let touches = |torn: &Range<u64>| {
            let torn = map.sectors(torn);
            torn.start < bytes.end && bytes.start < torn.end
        };
        self.0.get(slot).is_some_and(|torn| torn.iter().any(touches))
    }

    /// Ends the promises that end with these sectors. Returns for how many cells.
    pub(crate) fn excuse(&self, oracle: &mut Oracle, map: &Map, policy: Policy) -> u64 {
        if self.0.is_empty() {
            return 0;
        }
        let mut count = 0;
        for cut in oracle.cuts() {
            // A request that covers part of a sector writes the whole of it.
            let bytes = map.sectors(&oracle.bytes(&(cut.cell..cut.cell + 1)));
            for piece in map.pieces(bytes) {
                if map.is_mirror() {
                    if map.copies(&piece).iter().any(|place| self.hits(map, place)) {
                        oracle.doubt(cut.cell);
                    }
                    continue;
                }
                let exposed = match policy {
                    Policy::Ppl => vec![piece.bytes.clone()],
                    _ => map.beside(&piece, self.slots()),
                };
                for bytes in exposed {
                    let hit = |piece| self.hits(map, &map.place(piece));
                    if map.pieces(bytes.clone()).iter().any(hit) {
                        let cells = oracle.cells_of(&bytes);
                        count += cells.filter(|cell| oracle.excuse(*cell, cut.at)).count() as u64;
                    }
                }
            }
        }
        count
    }
}

/// Some runs of neighbours among sectors.
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
    /// Sometimes makes sectors unreadable that the last power cut caught. `lost` are the slots
    /// whose disks do not come back.
    pub(crate) fn tear_sectors(&self, map: &Map, slots: &Slots, lost: UnitSet) -> Torn {
        let mut torn = Torn::default();
        let mut rng = self.world.rng(5000 + self.report.borrow().lives);
        let disks = self.disks.borrow();
        let caught: Vec<Vec<u64>> =
            disks.iter().map(|member| member.platter.take_caught()).collect();
        let area = disks.iter().find_map(|member| superblock_of(&member.platter));
        let Some(area) = area.map(|superblock| superblock.area) else { return torn };
        if self.options.quiet || self.options.whole_sectors || !rng.chance(40) {
            return torn;
        }
        let mut gone = slots.incomplete().union(&lost);
        let first = rng.index(disks.len());
        for index in 0..disks.len() {
            let number = (first + index) % disks.len();
            let platter = &disks[number].platter;
            let sector = u64::from(platter.sector_bytes());
            let caught = &caught[number];
            let in_data = caught.partition_point(|at| *at < area.data_offset / sector);
            let (metadata, data) = caught.split_at(in_data);
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
                let start = |at: &u64| at * sector - area.data_offset;
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
