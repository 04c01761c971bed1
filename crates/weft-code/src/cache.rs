//! Plans kept for reuse: a degraded read asks the same question again and again.
//!
//! The number of different questions is small (patterns of the period × the losses of the day ×
//! single wanted units), so a small table of fixed size catches nearly all. It is two-way
//! set-associative; a hit moves to the front of its pair and a newcomer takes the place of the
//! other. What it holds depends only on the questions asked, never on addresses or time.

use std::sync::Arc;

use crate::code::Code;
use crate::plan::{Plan, Undecodable};
use crate::units::UnitSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    pattern: u64,
    lost: UnitSet,
    wanted: UnitSet,
    at_hand: UnitSet,
}

impl Key {
    fn hash(&self) -> u64 {
        let sets = [self.lost, self.wanted, self.at_hand];
        let words = sets.iter().flat_map(|set| set.words());
        let mix =
            |h: u64, word: u64| (h.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let h = words.fold(mix(0, self.pattern), mix);
        h ^ h >> 32
    }
}

type Entry = Option<(Key, Arc<Plan>)>;

/// A bounded cache of the plans of one [`Code`].
#[derive(Debug)]
pub struct PlanCache {
    pairs: Box<[[Entry; 2]]>,
}

impl PlanCache {
    /// An empty cache of at most `capacity` plans (rounded up to a power of two, at least 2).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let pairs = capacity.max(2).next_power_of_two() / 2;
        Self { pairs: (0..pairs).map(|_| [None, None]).collect() }
    }

    /// As [`Code::plan`] with cost 0 for the units `at_hand` and 1 for all others. Always ask with
    /// the same code, or [`PlanCache::clear`] in between.
    ///
    /// # Errors
    /// If a wanted unit cannot be computed. Failures are not cached.
    pub fn plan(
        &mut self,
        code: &Code,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
        at_hand: UnitSet,
    ) -> Result<Arc<Plan>, Undecodable> {
        let key = Key { pattern: code.pattern(stripe), lost, wanted, at_hand };
        let mask = self.pairs.len() as u64 - 1;
        let index = usize::try_from(key.hash() & mask).expect("below the number of pairs");
        let pair = &mut self.pairs[index];
        let is_it = |entry: &Entry| entry.as_ref().is_some_and(|(held, _)| *held == key);
        if is_it(&pair[1]) {
            pair.swap(0, 1);
        }
        if is_it(&pair[0])
            && let Some((_, plan)) = &pair[0]
        {
            return Ok(Arc::clone(plan));
        }
        let cost = |unit: usize| u32::from(!at_hand.contains(unit));
        let plan = Arc::new(code.plan(stripe, lost, wanted, &cost)?);
        pair.swap(0, 1);
        pair[0] = Some((key, Arc::clone(&plan)));
        Ok(plan)
    }

    /// Forgets all plans.
    pub fn clear(&mut self) {
        self.pairs.iter_mut().for_each(|pair| *pair = [None, None]);
    }
}
