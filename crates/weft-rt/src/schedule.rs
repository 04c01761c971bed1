//! Random schedules: which runnable task is polled next, and whether time passes before that.
//!
//! In reality, while a task is runnable, disks complete, timers fire, and the operating system may
//! keep the thread off its core for longer than a disk takes. A virtual clock that moves only when
//! nothing is runnable hides all of that: no completion ever arrives before the program has dealt
//! with the previous one. So under [`Schedule::Racing`] the clock may move to the next deadline
//! although tasks are runnable, and tasks due then become runnable, too.
//!
//! Choosing uniformly among the runnable tasks finds shallow races only: that one task waits while
//! another takes k steps has a chance that falls exponentially with k. Probabilistic concurrency
//! testing (Burckhardt et al., ASPLOS 2010) gives every task a random priority instead, and changes
//! it at few points. Here a run is cut into *phases*, each with rules of its own: any task; the
//! newest first; by random priorities; or with some tasks *starved*, which are not polled while
//! anything else can happen. How often time passes is drawn for each phase, too.
//!
//! A phase ends after a number of polls or at an instant, both drawn. Past that instant time does
//! not move while tasks are runnable, so no task is starved for longer than a few seconds.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::Nanos;
use crate::rng::{GOLDEN, finish, mix};
use crate::waker::TaskId;

/// How the next runnable task is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// First in, first out.
    Fifo,
    /// Any runnable task, drawn from this seed. Time passes when nothing is runnable.
    Seeded(u64),
    /// Drawn from this seed, in phases of different rules, with time passing while tasks are
    /// runnable.
    Racing(u64),
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The task at this place of the queue is polled.
    Poll(usize),
    /// Time moves to the next deadline.
    PassTime,
}

/// A schedule that is drawn.
#[derive(Debug)]
pub(crate) struct Drawn {
    state: Cell<u64>,
    /// The present phase; without one any task is chosen, and time stands.
    phase: Option<Cell<Phase>>,
}

#[derive(Debug, Clone, Copy)]
struct Phase {
    order: Order,
    /// Makes the priorities of this phase different from other phases.
    salt: u64,
    polls_left: u64,
    /// Time does not pass this instant while tasks are runnable.
    until: Nanos,
    /// How many times of 256 time passes before the next poll.
    passes: u64,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Any,
    NewestFirst,
    /// The highest of random priorities.
    Ranked,
    /// Any but every n-th task, which waits for as long as time can pass.
    Starving(u64),
}

impl Drawn {
    pub(crate) fn new(schedule: Schedule) -> Option<Self> {
        let (seed, phase) = match schedule {
            Schedule::Fifo => return None,
            Schedule::Seeded(seed) => (seed, None),
            Schedule::Racing(seed) => (seed, Some(Cell::new(Phase::OVER))),
        };
        Some(Self { state: Cell::new(seed), phase })
    }

    /// Chooses among the runnable tasks; there is at least one. `deadline` is the next.
    pub(crate) fn next(
        &self,
        tasks: &VecDeque<TaskId>,
        now: Nanos,
        deadline: Option<Nanos>,
    ) -> Next {
        let Some(phase) = &self.phase else { return Next::Poll(self.below(tasks.len())) };
        loop {
            let mut current = phase.get();
            if current.polls_left == 0 || now > current.until {
                current = self.draw_phase(now);
            }
            let may_pass = deadline.is_some_and(|deadline| deadline <= current.until);
            if may_pass && self.random() % 256 < current.passes {
                phase.set(current);
                return Next::PassTime;
            }
            if let Some(place) = self.choose(current, tasks) {
                current.polls_left -= 1;
                phase.set(current);
                return Next::Poll(place);
            }
            // Every runnable task is starved.
            if may_pass {
                phase.set(current);
                return Next::PassTime;
            }
            phase.set(Phase::OVER);
        }
    }

    fn choose(&self, phase: Phase, tasks: &VecDeque<TaskId>) -> Option<usize> {
        match phase.order {
            Order::Any => Some(self.below(tasks.len())),
            Order::NewestFirst => Some(tasks.len() - 1),
            Order::Ranked => (0..tasks.len()).max_by_key(|place| phase.rank(tasks[*place])),
            Order::Starving(one_in) => {
                let first = self.below(tasks.len());
                let places = (first..tasks.len()).chain(0..first);
                let mut fed =
                    places.filter(|place| !phase.rank(tasks[*place]).is_multiple_of(one_in));
                fed.next()
            }
        }
    }

    fn draw_phase(&self, now: Nanos) -> Phase {
        let order = match self.random() % 8 {
            0 | 1 => Order::Any,
            2 => Order::NewestFirst,
            3 | 4 => Order::Ranked,
            _ => Order::Starving(2 + self.random() % 4),
        };
        // Every order of magnitude is as likely.
        let polls_left = 1 << (2 + self.random() % 10);
        let span = 1 << (13 + self.random() % 20);
        let passes = [0, 4, 32, 128, 230][self.below(5)];
        Phase { order, salt: self.random(), polls_left, until: now.saturating_add(span), passes }
    }

    /// A place in a queue of `len`.
    fn below(&self, len: usize) -> usize {
        if len < 2 { 0 } else { usize::try_from(self.random() % len as u64).unwrap_or(0) }
    }

    fn random(&self) -> u64 {
        let state = self.state.get();
        self.state.set(state.wrapping_add(GOLDEN));
        mix(state)
    }
}

impl Phase {
    const OVER: Self = Self { order: Order::Any, salt: 0, polls_left: 0, until: 0, passes: 0 };

    /// The priority of a task in this phase.
    fn rank(&self, task: TaskId) -> u64 {
        finish(self.salt ^ ((task.generation as u64) << 32 | task.slot as u64))
    }
}
