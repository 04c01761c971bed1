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
use crate::state::mounted::Fs;

/// Blocks of a part: 16 MiB, as many as a rebuild reads side by side.
const PART_BLOCKS: u64 = 4096;

/// A part of a file, by its number in it.
pub(crate) type Part = (Ino, u64);

/// See the [module](self).
pub(crate) struct HotParts {
    parts: RefCell<PopularityTable<Part, ()>>,
    is_first: Cell<bool>,
    reads: Cell<u64>,
}

impl HotParts {
    pub(crate) fn new() -> Self {
        let RebuildPolicy { zones, half_life_ms, .. } = RebuildPolicy::default();
        let parts = RefCell::new(PopularityTable::new(zones, half_life_ms * MILLISECOND));
        Self { parts, is_first: Cell::new(true), reads: Cell::new(0) }
    }

    /// Blocks of a record were computed for a user.
    pub(crate) fn note(&self, ino: Ino, first: u64, now: Nanos) {
        self.reads.set(self.reads.get() + 1);
        if self.is_first.get() {
            self.parts.borrow_mut().note(part_of_block(ino, first), now, ());
        }
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

impl Fs {
    /// Whether rebuilds take first what users read and had to be computed, which they do unless
    /// this says otherwise. For experiments: the other order is by files in use and by changes.
    pub fn rebuild_hot_parts_first(&self, is_first: bool) {
        self.0.hot_parts().is_first.set(is_first);
    }

    /// How many reads of users found blocks on a lost disk since the mount: these were computed.
    #[must_use]
    pub fn computed_reads(&self) -> u64 {
        self.0.hot_parts().reads.get()
    }
}
