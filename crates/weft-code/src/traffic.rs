//! What requests and rebuilds cost each slot, counted with the planner over all stripes.
//!
//! The paper's model (see [`degraded`](crate::degraded)) covers data disks only and leaves out
//! rotation. This module uses the real placement: it reads every data unit once, lost units through
//! the cheapest repair, and counts reads slot by slot. The busiest slot limits the array, so the
//! remaining speed is its load when healthy divided by its load when degraded.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use crate::code::Code;
use crate::plan::{Plan, Undecodable};
use crate::units::{SlotNo, SlotSet, UnitSet};

/// An array for counting the work of each slot: a code, and the placement of its units.
pub struct Traffic<'a, F> {
    code: &'a Code,
    slots: usize,
    stripes: u64,
    slot: F,
}

/// Disk operations of one small write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmallWrite {
    /// Reads before it.
    pub reads: f64,
    /// Writes, the data itself included.
    pub writes: f64,
}

impl SmallWrite {
    /// Reads and writes.
    #[must_use]
    pub fn ops(&self) -> f64 {
        self.reads + self.writes
    }
}

/// Plans that come again, by pattern of rows, lost and wanted units.
type Plans = BTreeMap<(u64, UnitSet, UnitSet), Plan>;

impl<'a, F: Fn(u64, usize) -> SlotNo> Traffic<'a, F> {
    /// `slot(stripe, unit)` over the stripes 0..`stripes`, a whole period of rows and placement
    /// together, on `slots` slots.
    pub fn new(code: &'a Code, slots: usize, stripes: u64, slot: F) -> Self {
        Self { code, slots, stripes, slot }
    }

    /// Reads of each slot per data unit that is read, when all are read equally often, one by one,
    /// with the slots `failed` gone. Copies of a mirror share its reads.
    ///
    /// # Errors
    /// If a unit can no longer be recovered.
    pub fn reads(&self, failed: SlotSet) -> Result<Vec<f64>, Undecodable> {
        let mut loads = vec![0.0; self.slots];
        let mut plans = Plans::new();
        for stripe in 0..self.stripes {
            for unit in 0..self.code.k() {
                let slot = (self.slot)(stripe, unit);
                if self.code.spec().is_mirror() {
                    self.add_copies(&mut loads, stripe, failed)?;
                } else if failed.contains(slot) {
                    self.add(&mut loads, &mut plans, stripe, failed, UnitSet::one(unit))?;
                } else {
                    loads[slot.0] += 1.0;
                }
            }
        }
        Ok(self.per(loads, self.stripes * self.code.k() as u64))
    }

    /// Read speed that is left with the slots `failed` gone, healthy being 1: the busiest slot of
    /// the healthy array over that of the degraded one.
    ///
    /// # Errors
    /// If a unit can no longer be recovered.
    pub fn degraded_speed(&self, failed: SlotSet) -> Result<f64, Undecodable> {
        Ok(most(&self.reads(SlotSet::EMPTY)?) / most(&self.reads(failed)?))
    }

    /// Reads of each slot per unit written to a replacement, when the slots `failed` are rebuilt
    /// together, all lost units of a stripe from one set of reads.
    ///
    /// # Errors
    /// If a unit can no longer be recovered.
    pub fn rebuild(&self, failed: SlotSet) -> Result<Vec<f64>, Undecodable> {
        let mut loads = vec![0.0; self.slots];
        let mut plans = Plans::new();
        let mut rebuilt = 0;
        for stripe in 0..self.stripes {
            let lost = self.lost(stripe, failed);
            if !lost.is_empty() {
                self.add(&mut loads, &mut plans, stripe, failed, lost)?;
                rebuilt += lost.len() as u64;
            }
        }
        // Each replacement takes its share of the units at the same time.
        Ok(self.per(loads, (rebuilt / failed.len().max(1) as u64).max(1)))
    }

    /// Disk operations of a write of less than a unit on a healthy array, in the mean over all
    /// units: the cheaper of folding the change into each parity (read-modify-write) and
    /// recomputing the parities from the other data (reconstruct-write). A log, if there is one,
    /// comes on top.
    #[must_use]
    pub fn small_write(&self) -> SmallWrite {
        let code = self.code;
        let (mut reads, mut writes) = (0, 0);
        for stripe in 0..code.period() {
            for unit in 0..code.k() {
                let touched: Vec<usize> = code.parities_of(stripe, unit).map(|(t, _)| t).collect();
                let others = (0..code.k())
                    .filter(|j| {
                        *j != unit && touched.iter().any(|t| code.coef(stripe, *t, *j) != 0)
                    })
                    .count();
                reads += others.min(1 + touched.len()) as u64;
                writes += 1 + touched.len() as u64;
            }
        }
        let units = code.period() * code.k() as u64;
        SmallWrite { reads: ratio(reads, units), writes: ratio(writes, units) }
    }

    /// Reads of a mirror are spread evenly over the surviving copies.
    fn add_copies(
        &self,
        loads: &mut [f64],
        stripe: u64,
        failed: SlotSet,
    ) -> Result<(), Undecodable> {
        let lost = self.lost(stripe, failed);
        let left = UnitSet::first(self.code.width()).difference(&lost);
        if left.is_empty() {
            return Err(Undecodable { unit: 0, lost });
        }
        left.iter()
            .for_each(|copy| loads[(self.slot)(stripe, copy).0] += ratio(1, left.len() as u64));
        Ok(())
    }

    fn add(
        &self,
        loads: &mut [f64],
        plans: &mut Plans,
        stripe: u64,
        failed: SlotSet,
        wanted: UnitSet,
    ) -> Result<(), Undecodable> {
        let lost = self.lost(stripe, failed);
        let key = (self.code.pattern(stripe), lost, wanted);
        let plan = match plans.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.code.plan(stripe, lost, wanted, &|_| 1)?),
        };
        for unit in plan.reads {
            loads[(self.slot)(stripe, unit).0] += 1.0;
        }
        Ok(())
    }

    fn per(&self, mut loads: Vec<f64>, count: u64) -> Vec<f64> {
        loads.iter_mut().for_each(|load| *load *= ratio(1, count));
        loads
    }

    fn lost(&self, stripe: u64, failed: SlotSet) -> UnitSet {
        (0..self.code.width()).filter(|&unit| failed.contains((self.slot)(stripe, unit))).collect()
    }
}

/// The largest of some loads.
fn most(loads: &[f64]) -> f64 {
    loads.iter().copied().fold(0.0, f64::max)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

impl<F> fmt::Debug for Traffic<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, slots, stripes, .. } = self;
        write!(f, "Traffic of {} on {slots} slots over {stripes} stripes", code.spec())
    }
}
