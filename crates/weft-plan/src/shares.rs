//! How many sets of failed disks an array survives: all sets, or a seeded sample.
//!
//! The stripes of a period are first reduced to the distinct pairs of (rows, places of the units).
//! A set is then checked against each of them until one loses data; stripes that lose no more than
//! the code tolerates cost one intersection of two bit sets.

use std::collections::BTreeSet;

use serde::Serialize;
use weft_code::{Code, SlotNo, SlotSet, sets};
use weft_layout::Layout;
use weft_rt::rng::SplitMix64;

/// All sets are tried up to this number of sets times stripes.
const WORK_MAX: u64 = 20_000_000;
/// Size of a sample.
const SAMPLE: u64 = 4000;

/// Failure sets of one size that an array survives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Survived {
    /// Disks that fail.
    pub failures: usize,
    /// Sets that it survives.
    pub recoverable: u64,
    /// Sets tried.
    pub of: u64,
    /// All sets were tried.
    pub exact: bool,
}

impl Survived {
    /// The share, 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn share(&self) -> f64 {
        self.recoverable as f64 / self.of.max(1) as f64
    }
}

/// The distinct stripes of an array.
#[derive(Debug)]
pub(super) struct Stripes<'a> {
    code: &'a Code,
    slots: usize,
    /// The pattern of rows, the slot of each unit, and all these slots.
    kinds: Vec<(u64, Vec<u8>, SlotSet)>,
}

impl<'a> Stripes<'a> {
    pub(super) fn of(code: &'a Code, layout: &dyn Layout, period: u64) -> Self {
        let mut kinds = BTreeSet::new();
        for stripe in 0..period {
            let slot = |unit| u8::try_from(layout.place(stripe, unit).slot.0).expect("255 slots");
            kinds.insert((code.pattern(stripe), (0..code.width()).map(slot).collect::<Vec<_>>()));
        }
        // The decodability of MDS codes depends only on the slots.
        let mut met = BTreeSet::new();
        let kinds = kinds.into_iter().map(|(pattern, units)| {
            let slots: SlotSet = units.iter().map(|slot| SlotNo((*slot).into())).collect();
            (pattern, units, slots)
        });
        let kinds = kinds.filter(|(_, _, slots)| !code.is_mds() || met.insert(*slots)).collect();
        Self { code, slots: layout.slots(), kinds }
    }

    /// Whether all data can be read without the slots `failed`.
    pub(super) fn survive(&self, failed: SlotSet) -> bool {
        let tolerance = self.code.tolerance();
        if failed.len() <= tolerance {
            return true;
        }
        self.kinds.iter().all(|(pattern, units, slots)| {
            let hit = slots.intersection(&failed).len();
            if hit <= tolerance || self.code.is_mds() {
                return hit <= tolerance;
            }
            let lost = |unit: &usize| failed.contains(SlotNo(units[*unit].into()));
            self.code.decodable(*pattern, (0..units.len()).filter(lost).collect())
        })
    }

    /// The number of sets of `failures` failed slots that the array survives.
    pub(super) fn survived(&self, failures: usize, seed: u64) -> Survived {
        let all = binomial(self.slots as u64, failures as u64);
        if failures <= self.code.tolerance() || failures > self.slots {
            return Survived { failures, recoverable: all, of: all, exact: true };
        }
        let exact = all.saturating_mul(self.kinds.len() as u64) <= WORK_MAX;
        let survived = if exact {
            sets(self.slots, failures).filter(|set| self.survive(*set)).count() as u64
        } else {
            let mut random = SplitMix64::new(seed);
            (0..SAMPLE).filter(|_| self.survive(draw(&mut random, self.slots, failures))).count()
                as u64
        };
        let of = if exact { all } else { SAMPLE };
        Survived { failures, recoverable: survived, of, exact }
    }
}

fn binomial(n: u64, size: u64) -> u64 {
    if size > n {
        return 0;
    }
    (0..size).fold(1, |c: u64, i| c.saturating_mul(n - i) / (i + 1))
}

fn draw(random: &mut SplitMix64, slots: usize, size: usize) -> SlotSet {
    let mut set = SlotSet::EMPTY;
    while set.len() < size {
        set.insert(SlotNo(usize::try_from(random.below(slots as u64)).expect("below slots")));
    }
    set
}
