//! Parts of files that users read while a lost disk has some of it: a rebuild takes them first.
//!
//! A read counts if a block of it has to be computed, since its disk is lost: there a rebuild would
//! help. All other reads pay nothing. The popularity of a part ages, and the table has a limited
//! size ([`weft_stripe::PopularityTable`]); the limits are those of the order of popularity of
//! arrays.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use weft_array::RebuildPolicy;
use weft_rt::{MILLISECOND, Nanos};
use weft_stripe::PopularityTable;

use crate::format::inode::Ino;

/// Blocks of a part: 16 MiB, as many as a rebuild reads side by side.
const PART_BLOCKS: u64 = 4096;

/// A part of a file, by its number in it.
pub(crate) type Part = (Ino, u64);

/// See the [module](self).
pub(crate) struct HotParts {
    parts: RefCell<PopularityTable<Part, ()>>,
    is_counting: Cell<bool>,
    noted: Cell<u64>,
}

impl HotParts {
    pub(crate) fn new() -> Self {
        let RebuildPolicy { zones, half_life_ms, .. } = RebuildPolicy::default();
        let parts = RefCell::new(PopularityTable::new(zones, half_life_ms * MILLISECOND));
        Self { parts, is_counting: Cell::new(true), noted: Cell::new(0) }
    }

    /// Blocks of a record were computed for a user.
    pub(crate) fn note(&self, ino: Ino, first: u64, now: Nanos) {
        self.noted.set(self.noted.get() + 1);
        if self.is_counting.get() {
            self.parts.borrow_mut().note(part_of_block(ino, first), now, ());
        }
    }

    /// Whether reads count from now on: they make parts hot.
    pub(crate) fn count(&self, is_counting: bool) {
        self.is_counting.set(is_counting);
    }

    /// How many records were noted.
    pub(crate) fn noted(&self) -> u64 {
        self.noted.get()
    }

    /// Takes the hottest part out; none if nothing is hot.
    pub(crate) fn take_hottest(&self, now: Nanos) -> Option<Part> {
        let mut parts = self.parts.borrow_mut();
        let part = parts.hottest(now).map(|(part, ..)| part)?;
        parts.remove(part);
        Some(part)
    }
}

/// The part that has this block of a file.
pub(crate) fn part_of_block(ino: Ino, block: u64) -> Part {
    (ino, block / PART_BLOCKS)
}

/// Which blocks of its file a part has.
pub(crate) fn blocks_of_part(part: Part) -> Range<u64> {
    let start = part.1 * PART_BLOCKS;
    start..start.saturating_add(PART_BLOCKS)
}
