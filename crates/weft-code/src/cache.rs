//! A cache of repair plans: degraded reads ask for the same plans again and again.
//!
//! There are few different plans: patterns of the period × turns of the layout × single wanted
//! units, for the current losses. The cache has two generations. Plans enter the younger one; when
//! it holds half the capacity it becomes the older one and the former older one is dropped. A hit
//! in the older one moves the plan to the younger. So recent plans stay, memory is bounded, and the
//! contents depend only on the requests.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::mem;
use std::sync::Arc;

use weft_random::Fold;

use crate::code::Code;
use crate::plan::{Plan, Undecodable};
use crate::units::UnitSet;

/// More than any stripe has units.
const COST_DEAR: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    pattern: u64,
    lost: UnitSet,
    wanted: UnitSet,
    at_hand: UnitSet,
    dear: UnitSet,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.pattern);
        for set in [self.lost, self.wanted, self.at_hand, self.dear] {
            set.words().iter().for_each(|&word| state.write_u64(word));
        }
    }
}

type Generation = HashMap<Key, Arc<Plan>, BuildHasherDefault<Fold>>;

/// A bounded cache of the plans of one [`Code`].
#[derive(Debug)]
pub struct PlanCache {
    half: usize,
    younger: Generation,
    older: Generation,
}

impl PlanCache {
    /// An empty cache of at most `capacity` plans (at least 2). A plan takes some hundred bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let (younger, older) = Default::default();
        Self { half: (capacity / 2).max(1), younger, older }
    }

    /// As [`Code::plan`] with cost 0 for the units `at_hand` and 1 for all other units. Always ask
    /// with the same code, or [`PlanCache::clear`] in between.
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
        self.plan_avoiding(code, stripe, lost, wanted, at_hand, UnitSet::EMPTY)
    }

    /// As [`PlanCache::plan`], but the units of `dear` are read only if it cannot be done without
    /// them.
    ///
    /// # Errors
    /// As [`PlanCache::plan`].
    pub fn plan_avoiding(
        &mut self,
        code: &Code,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
        at_hand: UnitSet,
        dear: UnitSet,
    ) -> Result<Arc<Plan>, Undecodable> {
        let key = Key { pattern: code.pattern(stripe), lost, wanted, at_hand, dear };
        if let Some(plan) = self.younger.get(&key) {
            return Ok(Arc::clone(plan));
        }
        let plan = match self.older.remove(&key) {
            Some(plan) => plan,
            None => {
                let cost = |unit: usize| match unit {
                    _ if at_hand.contains(unit) => 0,
                    _ if dear.contains(unit) => COST_DEAR,
                    _ => 1,
                };
                Arc::new(code.plan(stripe, lost, wanted, &cost)?)
            }
        };
        if self.younger.len() >= self.half {
            mem::swap(&mut self.younger, &mut self.older);
            self.younger.clear();
        }
        self.younger.insert(key, Arc::clone(&plan));
        Ok(plan)
    }

    /// Forgets all plans.
    pub fn clear(&mut self) {
        self.younger.clear();
        self.older.clear();
    }
}
