//! What an array survives: failure sets of slots, over all stripes.
//!
//! A stripe may survive a loss that its neighbour does not: the rows change from stripe to stripe
//! (DRC), and a rotating layout puts other units on the failed slots. An array survives a set of
//! failed slots only if *every* stripe does. That is why LRC must not rotate parity across groups
//! (it would keep 14 of 35 triple failures in place of 27) and why DRC-G, which does, keeps none.

use std::collections::BTreeSet;

use crate::code::{Code, sets};
use crate::units::UnitSet;

/// The different stripes of an array: each the rows' pattern and the slot of every unit.
#[derive(Debug)]
pub struct Survival<'a> {
    code: &'a Code,
    slots: usize,
    stripes: Vec<(u64, Vec<usize>)>,
}

/// How many of the failure sets of one size an array survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Sets after which all data can be had.
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

impl<'a> Survival<'a> {
    /// `slot(stripe, unit)` over the stripes 0..`stripes`, which must be a whole period of rows and
    /// placement together (or all the stripes there are), on `slots` slots.
    pub fn new(
        code: &'a Code,
        slots: usize,
        stripes: u64,
        slot: impl Fn(u64, usize) -> usize,
    ) -> Self {
        let place = |stripe| (0..code.width()).map(|unit| slot(stripe, unit)).collect::<Vec<_>>();
        let distinct: BTreeSet<_> =
            (0..stripes).map(|stripe| (code.pattern(stripe), place(stripe))).collect();
        Self { code, slots, stripes: distinct.into_iter().collect() }
    }

    /// Whether all data can be had with the slots `failed` gone.
    #[must_use]
    pub fn survives(&self, failed: UnitSet) -> bool {
        self.stripes.iter().all(|(pattern, slots)| {
            let units = slots.iter().enumerate().filter(|(_, slot)| failed.contains(**slot));
            self.code.decodable(*pattern, units.map(|(unit, _)| unit).collect())
        })
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
}
