//! Closed loops: a fixed number of requests in flight, each followed by the next.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use weft_rt::{Rng, Rt};

use crate::CpuClock;

/// Parameters of a loop.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Requests in flight.
    pub depth: usize,
    /// For how long requests are started.
    pub turn: Duration,
    /// Seed of the random numbers that the requests are given.
    pub seed: u64,
}

/// The result of a loop.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Requests completed.
    pub requests: u64,
    /// From the first start to the last completion, by the executor's clock.
    pub elapsed: Duration,
    /// Processor time of this thread during it.
    pub cpu: Duration,
}

impl Outcome {
    /// Requests per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        count(self.requests) / self.elapsed.as_secs_f64()
    }

    /// Requests per second of processor time.
    #[must_use]
    pub fn per_core(&self) -> f64 {
        count(self.requests) / self.cpu.as_secs_f64()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests")]
fn count(n: u64) -> f64 {
    n as f64
}

/// Runs requests, `load.depth` at a time. Each is a future that `request` makes of a random number.
pub fn run<F: Future<Output = ()> + 'static>(
    rt: &Rt,
    load: Load,
    request: impl Fn(u64) -> F + 'static,
) -> Outcome {
    let random = Rc::new(RefCell::new(Rng::new(load.seed)));
    let done = Rc::new(Cell::new(0u64));
    let request = Rc::new(request);
    let (begin, cpu) = (rt.now(), CpuClock::start());
    let deadline = begin + u64::try_from(load.turn.as_nanos()).expect("a turn is short");
    let workers = (0..load.depth).map(|_| {
        let (rt, random, done, request) =
            (rt.clone(), random.clone(), done.clone(), request.clone());
        rt.clone().spawn(async move {
            while rt.now() < deadline {
                let drawn = random.borrow_mut().next_u64();
                request(drawn).await;
                done.set(done.get() + 1);
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    rt.block_on(async move { drop(join_all(workers).await) });
    let elapsed = Duration::from_nanos(rt.now() - begin);
    Outcome { requests: done.get(), elapsed, cpu: cpu.elapsed() }
}
