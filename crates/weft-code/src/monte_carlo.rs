//! The mean time to data loss by simulation: a check of the chain that shares none of its algebra.
//!
//! The simulation tracks sets of failed disks, not their number, and asks the code about each set.
//! It divides time into cycles, each from "all disks work" to the next such state, or to the loss
//! of data. The array is as new at the start of each, so
//!
//! ```text
//!   MTTDL = E[length of a cycle] / P(a cycle ends in loss)
//! ```
//!
//! Losses occur once in 10⁹ cycles or less. So in a degraded array the simulation makes the next
//! event a failure half of the time, and divides the weight of each cycle by how much likelier that
//! made it ("failure biasing"; Shahabuddin, "Importance Sampling for the Simulation of Highly
//! Reliable Markovian Systems", Management Science 40(3), 1994). Lengths are means, given the
//! events.

use weft_random::SplitMix64;

use crate::reliability::Fleet;
use crate::units::{SlotNo, SlotSet};

/// A simulated mean time to data loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean, in hours.
    pub mttdl_h: f64,
    /// Its standard error, in hours. The 99 % confidence interval is 2.58 of them to both sides.
    pub standard_error_h: f64,
    /// Cycles simulated.
    pub cycles: u64,
}

impl Estimate {
    /// Whether `mttdl_h` lies within `errors` standard errors.
    #[must_use]
    pub fn agrees_with(&self, mttdl_h: f64, errors: f64) -> bool {
        (self.mttdl_h - mttdl_h).abs() <= errors * self.standard_error_h
    }
}

/// One cycle.
struct Cycle {
    /// Mean length in hours, weighed.
    length_h: f64,
    /// The weight if it ended in loss, else 0.
    loss: f64,
}

/// Simulates `cycles` cycles (at least 2) of an array that survives exactly the sets of failed
/// disks for which `survives` is true.
pub fn simulate(
    fleet: &Fleet,
    survives: impl Fn(SlotSet) -> bool,
    cycles: u64,
    seed: u64,
) -> Estimate {
    let mut dice = Dice(SplitMix64::new(seed));
    let (mut n, mut length, mut loss) = (0.0, 0.0, 0.0);
    let (mut length2, mut loss2, mut both) = (0.0, 0.0, 0.0);
    for _ in 0..cycles {
        let cycle = one_cycle(fleet, &survives, &mut dice);
        n += 1.0;
        length += cycle.length_h;
        loss += cycle.loss;
        length2 += cycle.length_h * cycle.length_h;
        loss2 += cycle.loss * cycle.loss;
        both += cycle.length_h * cycle.loss;
    }
    let (length, loss) = (length / n, loss / n);
    let ratio = length / loss;
    // The delta method for a ratio of means.
    let variance = (length2 / n - length * length) - 2.0 * ratio * (both / n - length * loss)
        + ratio * ratio * (loss2 / n - loss * loss);
    let standard_error_h = (variance.max(0.0) / (n - 1.0)).sqrt() / loss;
    Estimate { mttdl_h: ratio, standard_error_h, cycles }
}

fn one_cycle(fleet: &Fleet, survives: impl Fn(SlotSet) -> bool, dice: &mut Dice) -> Cycle {
    let repair = 1.0 / fleet.mttr_h;
    let mut failed = SlotSet::one(SlotNo(dice.below(fleet.disks)));
    let (mut length_h, mut weight) = (1.0 / fleet.failure_rate(0), 1.0);
    loop {
        if !survives(failed) {
            return Cycle { length_h, loss: weight };
        }
        if failed.is_empty() {
            return Cycle { length_h, loss: 0.0 };
        }
        let fail = fleet.failure_rate(failed.len());
        let any = fail + repair;
        length_h += weight / any;
        if fail > 0.0 && dice.below(2) == 0 {
            weight *= 2.0 * fail / any;
            let works = |disk: &usize| !failed.contains(SlotNo(*disk));
            let next = dice.below(fleet.disks - failed.len());
            let disk = (0..fleet.disks).filter(works).nth(next).expect("a disk that works");
            failed = failed.with(SlotNo(disk));
        } else {
            weight *= if fail > 0.0 { 2.0 * repair / any } else { 1.0 };
            let next = dice.below(failed.len());
            failed = failed.without(failed.iter().nth(next).expect("a failed disk"));
        }
    }
}

struct Dice(SplitMix64);

impl Dice {
    /// A number below `n`, at most 255.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.0.below(n as u64)).expect("below n")
    }
}
