//! The executor of simulations.

use std::rc::Rc;

use weft_rt::rng::mix;
use weft_rt::{Rt, Schedule, VirtualTime};

/// An executor under virtual time that draws its schedule from `seed`; time passes while tasks are
/// runnable. A run of more than `turns_max` turns panics.
pub fn sim_rt(seed: u64, turns_max: u64) -> Rt {
    Rt::new(Rc::new(VirtualTime::new(seed, turns_max)), Schedule::Racing(mix(seed)))
}
