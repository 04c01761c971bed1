//! Stripes as wide as the array: stripe s lies in row s of every slot, and only which unit is in
//! which slot changes, with a short period. RAID-0, 1, 4, 5, 6, `rs`, LRC and DRC all do this; they
//! differ in a small table, with a line of slots for each turn.
//!
//! **Local groups** (LRC, DRC) occupy k/l + 1 adjacent slots each, the group's base data and
//! its parity; the global parities come last:
//!
//! ```text
//! d0 d1 p0 | d2 d3 p1 | q        (4,2,1)
//! ```
//!
//! * LRC rotates inside each group, stripe by stripe, to the left. Rotating across groups would let
//!   any three failures meet in one group of some stripe.
//! * DRC does the same, but moves on only after each period of its groups' pattern, so that
//!   within each turn repair reads stay balanced (DRC paper, §3.1).
//! * DRC-G turns the whole line over all slots, again once a period.
//!
//! The globals of LRC and DRC stay in their slots.

use weft_code::SlotNo;

use crate::{Layout, UnitLocation};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Turning {
    slots: usize,
    rows: u64,
    /// Stripes that a turn lasts.
    hold: u64,
    turns: u64,
    /// Slot of each unit, turn by turn.
    slot_of: Box<[u8]>,
    /// Unit in each slot, turn by turn.
    unit_of: Box<[u8]>,
}

impl Turning {
    /// `turns[t][u]`: the slot of unit u in turn t, each a permutation of the slots.
    pub(crate) fn new(turns: &[Vec<usize>], hold: u64, rows: u64) -> Self {
        let slots = turns[0].len();
        let byte = |n: usize| u8::try_from(n).expect("at most 255 slots");
        let mut unit_of = vec![u8::MAX; turns.len() * slots];
        for (line, turn) in unit_of.chunks_exact_mut(slots).zip(turns) {
            turn.iter().enumerate().for_each(|(unit, &slot)| line[slot] = byte(unit));
        }
        assert!(!unit_of.contains(&u8::MAX), "a turn is not a permutation of the slots");
        let slot_of = turns.iter().flatten().map(|&slot| byte(slot)).collect();
        let turns = turns.len() as u64;
        Self { slots, rows, hold, turns, slot_of, unit_of: unit_of.into() }
    }

    /// Every unit always in the slot of its number.
    pub(crate) fn still(slots: usize, rows: u64) -> Self {
        Self::new(&[(0..slots).collect()], 1, rows)
    }

    /// LRC and DRC: each local group rotates inside its own slots.
    pub(crate) fn in_groups(k: usize, l: usize, r: usize, hold: u64, rows: u64) -> Self {
        let line = group_line(k, l, r);
        let size = k / l + 1;
        let turn = |turn: usize| {
            let rotate = |&slot: &usize| match slot / size {
                group if group < l => group * size + (slot % size + size - turn) % size,
                _ => slot,
            };
            line.iter().map(rotate).collect()
        };
        Self::new(&(0..size).map(turn).collect::<Vec<_>>(), hold, rows)
    }

    /// DRC-G: the whole line rotates over all slots.
    pub(crate) fn over_all(k: usize, l: usize, r: usize, hold: u64, rows: u64) -> Self {
        let line = group_line(k, l, r);
        let n = line.len();
        let turn = |turn: usize| line.iter().map(|slot| (slot + n - turn) % n).collect();
        Self::new(&(0..n).map(turn).collect::<Vec<_>>(), hold, rows)
    }

    #[inline]
    fn line(&self, stripe: u64) -> usize {
        let turn = match (self.turns, self.hold) {
            (1, _) => return 0,
            (turns, 1) => stripe % turns,
            (turns, hold) => stripe / hold % turns,
        };
        usize::try_from(turn).expect("as many turns as slots at most") * self.slots
    }
}

/// Slot of each unit before any rotation: each group's data, then its parity; the globals last.
fn group_line(k: usize, l: usize, r: usize) -> Vec<usize> {
    let size = k / l;
    let data = (0..k).map(|j| j / size * (size + 1) + j % size);
    let locals = (0..l).map(|g| g * (size + 1) + size);
    data.chain(locals).chain(k + l..k + l + r).collect()
}

impl Layout for Turning {
    fn slots(&self) -> usize {
        self.slots
    }

    fn width(&self) -> usize {
        self.slots
    }

    #[inline]
    fn place(&self, stripe: u64, unit: usize) -> UnitLocation {
        debug_assert!(unit < self.slots);
        UnitLocation { slot: SlotNo(self.slot_of[self.line(stripe) + unit].into()), row: stripe }
    }

    fn locate(&self, SlotNo(slot): SlotNo, row: u64) -> Option<(u64, usize)> {
        let known = slot < self.slots && row < self.rows;
        known.then(|| (row, self.unit_of[self.line(row) + slot].into()))
    }

    #[inline]
    fn unit_on(&self, stripe: u64, SlotNo(slot): SlotNo) -> Option<usize> {
        (slot < self.slots).then(|| self.unit_of[self.line(stripe) + slot].into())
    }

    fn stripes(&self, rows_per_slot: u64) -> u64 {
        rows_per_slot
    }

    fn period(&self) -> u64 {
        self.turns * self.hold
    }
}
