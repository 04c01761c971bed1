//! Virtual time: waiting means moving the clock to the next timer.
//!
//! Two kinds of hang become panics that name the seed. If nothing is runnable and no timer is set,
//! nothing can ever happen again: a lost wake-up or a deadlock. If a run takes more turns than its
//! budget, tasks are waking each other forever.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::{Driver, Nanos, Rt, Schedule};

/// A clock that jumps. Nothing in it depends on the machine: the same program under the same
/// [`Schedule`] runs the same way, event for event.
#[derive(Debug)]
pub struct VirtualTime {
    now: Cell<Nanos>,
    turns: Cell<u64>,
    turns_max: u64,
    seed: u64,
}

impl VirtualTime {
    /// A clock at zero. A run that takes more than `turns_max` turns of the executor panics;
    /// every panic names `seed`, so that the run can be repeated.
    pub fn new(seed: u64, turns_max: u64) -> Self {
        Self { now: Cell::new(0), turns: Cell::new(0), turns_max, seed }
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

impl Driver for VirtualTime {
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
        // Under virtual time there is no other thread.
        Arc::new(|| {})
    }
}

/// An executor under virtual time, whose run may take as many turns as it needs.
pub fn virtual_rt(schedule: Schedule) -> Rt {
    let seed = match schedule {
        Schedule::Fifo => 0,
        Schedule::Seeded(seed) | Schedule::Racing(seed) => seed,
    };
    Rt::new(Rc::new(VirtualTime::new(seed, u64::MAX)), schedule)
}
