//! Torn stripes: a write to them stopped halfway, because it broke the array.
//!
//! A disk that fails a write when the array cannot do without it stays in its slot. It holds old
//! bytes, or parts of new ones, while other units of the stripe are new already:
//!
//! ```text
//!   raid10 n2, disk 0 takes no writes        raid5 3+1, d1 is lost, disk 0 takes no writes
//!
//!   unit     0          1                    unit     d0        d1        d2        P
//!            | 25 |     | 25 |                        | old |             | old |   | old |
//!            | 25 |     | 387|  being written         | old |             | old |   | new |
//!            | 25 |     | 25 |                        | old |             | old |   | old |
//! ```
//!
//! At the offsets that were being written the stripe has no contents on which its units agree,
//! until the next assembly has recovered it. There each unit is read from one place only:
//!
//! - *With parity*, from its own disk. What is lost cannot be reconstructed.
//! - *In a mirror*, from one copy, which is chosen when the write stops: the first that took the
//!   whole write, or the first of all if none did.
//!
//! If that one cannot be read, the read fails. Another answer might take back what an earlier read
//! returned. At all other offsets the stripe can be read like any other, since codes work on each
//! offset separately. No job works on it any more.

use std::ops::Range;

use weft_code::{SlotSet, UnitSet};
use weft_stripe::StripeId;

use crate::engine::Engine;
use crate::error::ArrayError;

/// A stripe whose write stopped halfway.
pub(crate) struct TornStripe {
    /// The offsets in its units that were being written.
    offsets: Range<u64>,
    /// The copy from which they are read, in a mirror.
    copy: Option<usize>,
}

impl Engine {
    /// A write of these offsets in the units of `stripe` stops halfway: of the units `present`,
    /// those on the disks in `failed`, which stay in their slots, have not taken all of it. The
    /// stripe is locked.
    pub(crate) fn note_torn(
        &self,
        stripe: StripeId,
        offsets: Range<u64>,
        present: UnitSet,
        failed: SlotSet,
    ) {
        let geometry = self.geometry_of(stripe);
        let whole = present.difference(&geometry.units_on(stripe.number, failed));
        let candidates = if whole.is_empty() { present } else { whole };
        let copy = candidates.iter().next().filter(|_| geometry.mirrored);
        let mut all = self.torn.borrow_mut();
        let torn =
            all.entry(stripe).or_insert_with(|| TornStripe { offsets: offsets.clone(), copy });
        torn.offsets.start = torn.offsets.start.min(offsets.start);
        torn.offsets.end = torn.offsets.end.max(offsets.end);
    }

    /// The offsets in the units of `stripe` at which a write stopped halfway.
    pub(crate) fn torn_offsets(&self, stripe: StripeId) -> Option<Range<u64>> {
        self.torn.borrow().get(&stripe).map(|torn| torn.offsets.clone())
    }

    /// The torn stripes.
    pub(crate) fn torn_stripes(&self) -> Vec<StripeId> {
        self.torn.borrow().keys().copied().collect()
    }

    /// Where a write to the stripe stopped halfway at some of these offsets: the only units from
    /// which the units `wanted` may be read there.
    #[inline]
    pub(crate) fn torn_sources(
        &self,
        stripe: StripeId,
        offsets: &Range<u64>,
        wanted: UnitSet,
    ) -> Option<UnitSet> {
        let all = self.torn.borrow();
        let torn = all.get(&stripe)?;
        let meets = torn.offsets.start < offsets.end && offsets.start < torn.offsets.end;
        meets.then(|| torn.copy.map_or(wanted, UnitSet::one))
    }

    /// Fails if a write to this stripe stopped halfway: no job may read or write it any more. One
    /// that was already waiting for its turn would give readers a mixture from the replacement. The
    /// answer holds while the stripe is locked.
    pub(crate) fn check_not_torn(&self, stripe: StripeId) -> Result<(), ArrayError> {
        if self.torn.borrow().contains_key(&stripe) { self.check_whole() } else { Ok(()) }
    }
}
