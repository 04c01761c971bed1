//! A code, with the tables derived from it once: which data each parity covers, and repair plans.

use std::cell::RefCell;
use std::sync::Arc;

use weft_code::{Code, Plan, PlanCache, Undecodable, UnitSet};

/// Plans kept.
const PLANS: usize = 1024;

/// A code and the plans made for it.
#[derive(Debug)]
pub struct Coding {
    code: Code,
    /// The data units that each parity row covers: stripe of the period, then row.
    supports: Vec<UnitSet>,
    parity_apart: bool,
    plans: RefCell<PlanCache>,
}

impl Coding {
    /// A code without plans yet. `parity_apart`: see [`Coding::has_parity_apart`].
    #[must_use]
    pub fn new(code: Code, parity_apart: bool) -> Self {
        let rows =
            (0..code.period()).flat_map(|stripe| (0..code.p()).map(move |row| (stripe, row)));
        let covers = |(stripe, row)| {
            let row = code.row(stripe, row);
            (0..row.len()).filter(|unit| row[*unit] != 0).collect()
        };
        let supports = rows.map(covers).collect();
        Self { code, supports, parity_apart, plans: RefCell::new(PlanCache::new(PLANS)) }
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Whether one of the parity units has a disk of its own: in every stripe the same.
    #[must_use]
    pub fn has_parity_apart(&self) -> bool {
        self.parity_apart
    }

    /// All units of a stripe.
    #[must_use]
    pub fn units(&self) -> UnitSet {
        UnitSet::first(self.code.width())
    }

    /// The data units of a stripe.
    #[must_use]
    pub fn data_units(&self) -> UnitSet {
        UnitSet::first(self.code.k())
    }

    /// The data units that parity row `row` of `stripe` covers.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn support(&self, stripe: u64, row: usize) -> UnitSet {
        let pattern = usize::try_from(self.code.pattern(stripe)).expect("a period fits in memory");
        assert!(row < self.code.p());
        self.supports[pattern * self.code.p() + row]
    }

    /// The plan with the fewest reads.
    ///
    /// # Errors
    /// If the code cannot give a wanted unit.
    pub fn plan(
        &self,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
        at_hand: UnitSet,
    ) -> Result<Arc<Plan>, Undecodable> {
        self.plans.borrow_mut().plan(&self.code, stripe, lost, wanted, at_hand)
    }

    /// As [`Coding::plan`]; reads `unit` only if it must.
    ///
    /// # Errors
    /// As [`Coding::plan`].
    pub fn plan_without(
        &self,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
        at_hand: UnitSet,
        unit: usize,
    ) -> Result<Arc<Plan>, Undecodable> {
        let dear = UnitSet::one(unit);
        self.plans.borrow_mut().plan_avoiding(&self.code, stripe, lost, wanted, at_hand, dear)
    }
}
