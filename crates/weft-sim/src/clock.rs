//! Virtual time: waiting means moving the clock to the next timer.
//!
//! Two ways of hanging are turned into failures that name the seed. When nothing is runnable
//! and no timer is set, nothing can ever happen again: a lost wake-up or a deadlock. And when
//! a run takes more turns than its budget, tasks are waking each other for ever.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use weft_rt::{Driver, Nanos, Rt, Schedule};

use crate::rng::mix;

/// The clock of one simulation.
#[derive(Debug)]
pub struct SimDriver {
    now: Cell<Nanos>,
    turns: Cell<u64>,
    turns_max: u64,
    seed: u64,
}

impl SimDriver {
    /// A clock at zero. A run that takes more than `turns_max` turns of the executor panics.
    pub fn new(seed: u64, turns_max: u64) -> Self {
        Self { now: Cell::new(0), turns: Cell::new(0), turns_max, seed }
    }

    /// Turns taken so far.
    pub fn turns(&self) -> u64 {
        self.turns.get()
    }

    fn turn(&self) {
        let turns = self.turns.get() + 1;
        self.turns.set(turns);
        assert!(
            turns <= self.turns_max,
            "livelock: {turns} turns and no end, at {} ns (seed {})",
            self.now.get(),
            self.seed
        );
    }
}

impl Driver for SimDriver {
    fn now(&self) -> Nanos {
        self.now.get()
    }

    fn poll(&self) {
        self.turn();
    }

    fn park(&self, deadline: Option<Nanos>) {
        self.turn();
        let Some(deadline) = deadline else {
            panic!(
                "deadlock: nothing can ever happen again, at {} ns (seed {})",
                self.now.get(),
                self.seed
            );
        };
        self.now.set(self.now.get().max(deadline));
    }

    fn doorbell(&self) -> Arc<dyn Fn() + Send + Sync> {
        // There is no other thread in a simulation.
        Arc::new(|| {})
    }
}

/// An executor under virtual time whose interleaving is drawn from `seed`.
pub fn sim_rt(seed: u64, turns_max: u64) -> Rt {
    Rt::new(Rc::new(SimDriver::new(seed, turns_max)), Schedule::Seeded(mix(seed)))
}

/// An executor under virtual time for experiments: tasks run first in, first out, as under the ring, and a run may take
/// as long as it needs.
pub fn lab_rt() -> Rt {
    Rt::new(Rc::new(SimDriver::new(0, u64::MAX)), Schedule::Fifo)
}
