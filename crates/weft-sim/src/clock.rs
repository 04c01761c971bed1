//! Executors under virtual time, for simulations and for experiments.

use std::rc::Rc;

use weft_rt::{Rt, Schedule, VirtualTime, virtual_rt};

use crate::rng::mix;

/// An executor under virtual time that draws its schedule from `seed`; time passes while tasks are
/// runnable. A run of more than `turns_max` turns panics.
pub fn sim_rt(seed: u64, turns_max: u64) -> Rt {
    Rt::new(Rc::new(VirtualTime::new(seed, turns_max)), Schedule::Racing(mix(seed)))
}

/// An executor under virtual time for experiments: tasks run first in, first out, as under
/// io_uring, and the number of turns is not limited.
pub fn lab_rt() -> Rt {
    virtual_rt(Schedule::Fifo)
}
