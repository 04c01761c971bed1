//! RAID-10 as md places it. A stripe is one data unit and its copies; n slots, c copies:
//!
//! * **near**: units are laid out row by row, each c times in a row. n need not be a multiple
//!   of c: the copies of a unit may then be in adjacent rows.
//! * **far**: the disks are cut in c sections. Section 0 is a RAID-0; section i is the same with
//!   everything i slots further to the right.
//! * **offset**: as far, but row by row: each RAID-0 row is followed by its c−1 shifted copies.

use weft_code::{Copies, SlotNo};

use crate::{Layout, UnitLocation};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Mirrored {
    arrangement: Copies,
    copies: usize,
    slots: usize,
    /// far: rows of a section
    section: u64,
    /// stripes that `locate` knows
    stripes: u64,
}

impl Mirrored {
    pub(crate) fn new(arrangement: Copies, copies: usize, slots: usize, rows: u64) -> Self {
        let section = rows / copies as u64;
        let mut layout = Self { arrangement, copies, slots, section, stripes: 0 };
        layout.stripes = layout.stripes(rows);
        layout
    }

    fn shifted(&self, slot: u64, copy: usize) -> usize {
        let slot = small(slot) + copy;
        if slot >= self.slots { slot - self.slots } else { slot }
    }
}

/// A number below the number of slots.
fn small(n: u64) -> usize {
    usize::try_from(n).expect("less than the number of slots")
}

impl Layout for Mirrored {
    fn slots(&self) -> usize {
        self.slots
    }

    fn width(&self) -> usize {
        self.copies
    }

    #[inline]
    fn place(&self, stripe: u64, unit: usize) -> UnitLocation {
        debug_assert!(unit < self.copies);
        let (n, c, copy) = (self.slots as u64, self.copies as u64, unit as u64);
        match self.arrangement {
            Copies::Near => {
                let at = stripe * c + copy;
                UnitLocation { slot: SlotNo(small(at % n)), row: at / n }
            }
            Copies::Far => UnitLocation {
                slot: SlotNo(self.shifted(stripe % n, unit)),
                row: stripe / n + copy * self.section,
            },
            Copies::Offset => UnitLocation {
                slot: SlotNo(self.shifted(stripe % n, unit)),
                row: stripe / n * c + copy,
            },
        }
    }

    fn locate(&self, SlotNo(slot): SlotNo, row: u64) -> Option<(u64, usize)> {
        if slot >= self.slots {
            return None;
        }
        let (n, c) = (self.slots as u64, self.copies as u64);
        let (first_row, copy) = match self.arrangement {
            Copies::Near => {
                let at = row.checked_mul(n)?.checked_add(slot as u64)?;
                return (at / c < self.stripes).then(|| (at / c, small(at % c)));
            }
            Copies::Far if self.section == 0 => return None,
            Copies::Far => (row % self.section, row / self.section),
            Copies::Offset => (row / c, row % c),
        };
        if copy >= c {
            return None;
        }
        let first_slot = (slot as u64 + n - copy) % n;
        let stripe = first_row.checked_mul(n)?.checked_add(first_slot)?;
        (stripe < self.stripes).then(|| (stripe, small(copy)))
    }

    fn stripes(&self, rows_per_slot: u64) -> u64 {
        let (n, c) = (self.slots as u64, self.copies as u64);
        match self.arrangement {
            Copies::Near => rows_per_slot * n / c,
            Copies::Far => {
                rows_per_slot.saturating_sub((c - 1) * self.section).min(self.section) * n
            }
            Copies::Offset => rows_per_slot / c * n,
        }
    }

    fn period(&self) -> u64 {
        self.slots as u64
    }

    /// The sections of `far` start at fractions of the slots.
    fn can_be_extended(&self) -> bool {
        self.arrangement != Copies::Far
    }
}
