//! What an array survives: failure sets of slots, over all stripes.
//!
//! A stripe may survive a loss that another does not: the rows change from stripe to stripe (DRC),
//! and a rotating layout puts different units on the failed slots. An array survives a set of
//! failed slots only if *every* stripe does. That is why LRC must not rotate parity across groups
//! (it would keep 14 of 35 triple failures in place of 27) and why DRC-G, which does, keeps none.

use std::collections::BTreeMap;
use std::fmt;

use crate::code::{Code, Margin};
use crate::combinations::sets;
use crate::units::{SlotNo, SlotSet, UnitSet};

/// An array for questions of survival: a code, and the placement of its units.
pub struct Survival<'a, F> {
    code: &'a Code,
    slots: usize,
    stripes: u64,
    slot: F,
}

/// How many of the failure sets of one size an array survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Sets after which all data can be recovered.
    pub recoverable: u64,
    /// All sets of that size.
    pub total: u64,
}

impl Share {
    /// Recoverable sets as a part of all (p_d of the DRC paper, §2.2).
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people to read")]
    pub fn fraction(&self) -> f64 {
        self.recoverable as f64 / self.total as f64
    }
}

impl<'a, F: Fn(u64, usize) -> SlotNo> Survival<'a, F> {
    /// `slot(stripe, unit)` over the stripes 0..`stripes`, which must be a whole period of rows and
    /// placement together (or all the stripes there are), on `slots` slots.
    pub fn new(code: &'a Code, slots: usize, stripes: u64, slot: F) -> Self {
        Self { code, slots, stripes, slot }
    }

    /// Whether all data can be recovered with the slots `failed` gone.
    #[must_use]
    pub fn survives(&self, failed: SlotSet) -> bool {
        if failed.len() <= self.code.tolerance() {
            return true;
        }
        (0..self.stripes).all(|stripe| {
            let lost = self.lost(stripe, failed);
            lost.len() <= self.code.tolerance() || self.code.decodable(stripe, lost)
        })
    }

    /// How many more slots may fail, in any combination, when `failed` are gone; none if data is
    /// lost already.
    #[must_use]
    pub fn margin(&self, failed: SlotSet) -> Option<Margin> {
        let mut known = BTreeMap::new();
        let mut least = Margin { losses: self.slots.saturating_sub(failed.len()), exact: true };
        for stripe in 0..self.stripes {
            let lost = self.lost(stripe, failed);
            let margin = || self.code.margin(stripe, lost);
            let margin = *known.entry((self.code.pattern(stripe), lost)).or_insert_with(margin);
            // Of two equal ones, the exact one shows what does not survive.
            let margin = margin?;
            if (margin.losses, !margin.exact) < (least.losses, !least.exact) {
                least = margin;
            }
        }
        Some(least)
    }

    /// The share of sets of `failures` failed slots that the array survives, by trying all.
    #[must_use]
    pub fn share(&self, failures: usize) -> Share {
        let all = sets(self.slots, failures);
        all.fold(Share { recoverable: 0, total: 0 }, |share, failed| Share {
            recoverable: share.recoverable + u64::from(self.survives(failed)),
            total: share.total + 1,
        })
    }

    /// The units of `stripe` that lie on `failed` slots.
    fn lost(&self, stripe: u64, failed: SlotSet) -> UnitSet {
        (0..self.code.width()).filter(|&unit| failed.contains((self.slot)(stripe, unit))).collect()
    }
}

impl<F> fmt::Debug for Survival<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, slots, stripes, .. } = self;
        write!(f, "Survival of {} on {slots} slots over {stripes} stripes", code.spec())
    }
}
