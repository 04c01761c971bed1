//! Executors under virtual time, as simulations and experiments want them.

use std::rc::Rc;

use weft_rt::{Rt, Schedule, VirtualTime, virtual_rt};

use crate::rng::mix;

/// An executor under virtual time whose schedule is drawn from `seed`, with time passing while tasks
/// are runnable. A run that takes more than `turns_max` turns panics.
pub fn sim_rt(seed: u64, turns_max: u64) -> Rt {
    Rt::new(Rc::new(VirtualTime::new(seed, turns_max)), Schedule::Racing(mix(seed)))
}

/// An executor under virtual time for experiments: tasks run first in, first out, as under the
/// ring, and a run may take as long as it needs.
pub fn lab_rt() -> Rt {
    virtual_rt(Schedule::Fifo)
}
