//! Reshapes: a seed may change the array's geometry in the middle of its lives.
//!
//! What the oracle knows are addresses, so it needs no geometry. What may be lost where disks are
//! lost together with a crash depends on the geometry: in a run with a reshape it is what either of
//! the two would lose.

use weft_array::Consistency;
use weft_array::reshape::ReshapeOptions;
use weft_array::superblock::Shape;
use weft_code::CodeSpec;
use weft_rt::Rng;

use super::{DiskSetup, Setup};
use crate::format::SUPERBLOCKS;

/// The reshape of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReshapeSetup {
    /// The code, if it changes.
    pub code: Option<CodeSpec>,
    /// Bytes of a unit, if they change.
    pub unit_bytes: Option<u64>,
    /// Disks to add.
    pub add: usize,
    /// Disks to remove.
    pub remove: usize,
    /// Units of head room that it takes, or adds if the array becomes smaller.
    pub rows: u64,
    /// It may be turned back.
    pub turns: bool,
    /// Another one leads back to the first geometry.
    pub returns: bool,
}

/// The most spares that an array can be created with.
const SPARES_MAX: usize = 64;

/// Least head room of the arrays that are reshaped.
const HEAD_ROOM_BYTES: u64 = 1 << 20;

/// Whether the array may become one with parity.
fn parity_fits(setup: &Setup) -> bool {
    setup.policy == Consistency::Bitmap
}

impl ReshapeSetup {
    /// Whether the array of `setup` is reshaped, if it is, to one so wide that the smallest step
    /// takes much memory.
    pub(crate) fn widens(setup: &Setup) -> bool {
        setup.code == CodeSpec::Raid1 && setup.unit_bytes >= 1 << 20 && parity_fits(setup)
    }

    /// Draws whether and how the array of `setup` is reshaped.
    pub(crate) fn draw(rng: &mut Rng, setup: &Setup) -> Option<Self> {
        let unit_bytes = u64::from(setup.unit_bytes);
        let other_unit = (unit_bytes * 2 <= 65536 && rng.chance(20)).then_some(unit_bytes * 2);
        let parity = !setup.code.is_mirror() && setup.policy != Consistency::None;
        let to_raid6 = setup.code == CodeSpec::Raid5 && setup.slots > 3 && parity && rng.chance(30);
        let add = if to_raid6 || other_unit.is_none() { rng.within(1, 2) } else { rng.below(2) };
        let add = usize::try_from(add).unwrap_or(1).min(setup.slots);
        let widens = Self::widens(setup);
        let shrinks = rng.chance(35);
        let from_raid6 = setup.code == CodeSpec::Raid6 && rng.chance(30);
        let code = match (to_raid6, shrinks && from_raid6) {
            (true, _) => Some(CodeSpec::Raid6),
            (_, true) => Some(CodeSpec::Raid5),
            _ => None,
        };
        let (add, remove) = match (shrinks, code) {
            // As many disks, and less data on them.
            (true, Some(CodeSpec::Raid6)) => (0, 0),
            (true, _) => (0, add),
            (false, _) => (add, 0),
        };
        // Far wider than before: the smallest step takes much memory.
        let (code, add, remove) = match widens {
            // On 16 most if there are five copies, on 24 otherwise.
            true if setup.slots == 5 => (Some(CodeSpec::Raid6), 11, 0),
            true => (Some(CodeSpec::Raid6), *rng.pick(&[16, 24]) - setup.slots, 0),
            false => (code, add, remove),
        };
        // Where there is a log, its records must not outlive what a turn makes of their stripes.
        let has_log = setup.policy == Consistency::Ppl;
        let (turns, returns) = (rng.chance(if has_log { 70 } else { 30 }), rng.chance(30));
        let rows = rng.within(if shrinks { 2 } else { 1 }, 6);
        let drawn = Self { code, unit_bytes: other_unit, add, remove, rows, turns, returns };
        if setup.disks.len() - setup.slots + drawn.add > SPARES_MAX {
            return None;
        }
        // Some codes do not fit another number of slots, or gain nothing from it.
        drawn.shape(setup).is_some_and(|shape| shape.layout().is_ok()).then_some(drawn)
    }

    /// The geometry afterwards.
    fn shape(&self, setup: &Setup) -> Option<Shape> {
        let code = self.code.unwrap_or(setup.code);
        let slots = (setup.slots + self.add).checked_sub(self.remove)?;
        let k = |code: CodeSpec, slots| code.shape(slots).ok().map(|shape| shape.k);
        let rows = 64;
        k(code, slots)?;
        Some(Shape {
            code,
            algorithm: setup.algorithm,
            unit_bytes: self.unit_bytes.unwrap_or_else(|| u64::from(setup.unit_bytes)),
            slots,
            rows,
            data_offset: 0,
        })
    }

    /// The setup as if its array had the new geometry.
    pub(crate) fn after(&self, setup: &Setup) -> Setup {
        let unit_bytes = self.unit_bytes.and_then(|bytes| u32::try_from(bytes).ok());
        Setup {
            code: self.code.unwrap_or(setup.code),
            slots: setup.slots + self.add - self.remove,
            unit_bytes: unit_bytes.unwrap_or(setup.unit_bytes),
            ..setup.clone()
        }
    }

    /// What the engine is asked for, while `used_bytes` are in use.
    pub(crate) fn options(&self, setup: &Setup, used_bytes: u64) -> ReshapeOptions {
        let unit = self.unit_bytes.unwrap_or(0).max(u64::from(setup.unit_bytes));
        ReshapeOptions {
            code: self.code,
            algorithm: None,
            unit_bytes: self.unit_bytes,
            add: self.add,
            remove: self.remove,
            used_bytes: Some(used_bytes),
            head_room_bytes: Some(self.rows * unit),
        }
    }

    /// What it is asked for to have the first geometry again.
    pub(crate) fn options_back(&self, setup: &Setup, used_bytes: u64) -> ReshapeOptions {
        ReshapeOptions {
            code: self.code.map(|_| setup.code),
            unit_bytes: self.unit_bytes.map(|_| u64::from(setup.unit_bytes)),
            add: self.remove,
            remove: self.add,
            ..self.options(setup, used_bytes)
        }
    }
}

impl Setup {
    /// More data than this does not fit on the disks, however far down it starts.
    pub(super) fn data_bytes_max(&self) -> u64 {
        let largest = self.disk_bytes_max();
        let shape = self.code.shape(self.slots).expect("a code of the table");
        let units = self.slots as u64 * (largest - SUPERBLOCKS.end) / u64::from(self.unit_bytes);
        units / shape.width() as u64 * shape.k as u64 * u64::from(self.unit_bytes)
    }

    /// Head room of the array, if it is reshaped.
    pub(crate) fn head_room_bytes(&self) -> u64 {
        HEAD_ROOM_BYTES.max(8 * u64::from(self.unit_bytes))
    }

    /// Gives the array a reshape: head room, and the disks that it adds.
    pub(crate) fn with_reshape(mut self, reshape: ReshapeSetup) -> Self {
        let head_room = self.head_room_bytes();
        for disk in &mut self.disks {
            disk.size_bytes += head_room;
        }
        if ReshapeSetup::widens(&self) {
            // A stripe of the new geometry fits into a region.
            self.region_bytes = Some(32 << 20);
        }
        let largest = self.disks.iter().map(|disk| disk.size_bytes).max().unwrap_or(0);
        let model = self.disks[0];
        let added = DiskSetup { size_bytes: largest, ..model };
        self.disks.extend((0..reshape.add).map(|_| added));
        self.reshape = Some(reshape);
        self
    }
}

#[cfg(test)]
mod tests {
    use weft_code::{SlotNo, SlotSet};

    use super::*;
    use crate::setup::{Map, SetupFilter};

    /// Which three losses a stripe of DRC-G survives depends on the stripe, and an array that will
    /// be smaller has more of them than its clients see.
    #[test]
    fn losses_count_in_all_stripes_of_an_array_that_becomes_smaller() {
        let code = CodeSpec::DrcG { k: 4, l: 2, r: 1 };
        let filter = SetupFilter { code: Some((code, 7)), ..SetupFilter::default() };
        let mut setup = Setup::draw(&mut Rng::new(1), &filter);
        let stripe_bytes = 4 * u64::from(setup.unit_bytes);
        let slots = |numbers: [usize; 3]| numbers.into_iter().map(SlotNo).collect::<SlotSet>();
        let survives = |setup: &Setup, stripes, lost| {
            Map::new(setup, stripes * stripe_bytes).survives(slots(lost))
        };
        let all = (0..7).flat_map(|a| (0..a).flat_map(move |b| (0..b).map(move |c| [c, b, a])));
        let lost =
            all.into_iter().find(|lost| survives(&setup, 8, *lost) && !survives(&setup, 40, *lost));
        let lost = lost.expect("some stripes survive losses that others do not");
        let (unit_bytes, rows) = (Some(2 * u64::from(setup.unit_bytes)), 5);
        let (code, add, remove, turns, returns) = (None, 0, 0, false, false);
        let reshape = ReshapeSetup { code, unit_bytes, add, remove, rows, turns, returns };
        setup = setup.with_reshape(reshape);
        assert!(!survives(&setup, 2, lost), "the array has the other stripes, too");
    }
}
