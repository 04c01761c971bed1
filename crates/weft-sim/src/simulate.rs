//! Many runs: threads take seeds in turn; each run is single-threaded and reproducible.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::report::{Failure, Options, Report};
use crate::run::run;
use crate::violation::ViolationKind;

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Simulation {
    /// The first seed.
    pub seed: u64,
    /// The number of seeds.
    pub runs: u64,
    /// Threads; 0: one per core.
    pub threads: usize,
    /// Runs each seed twice and compares the traces.
    pub doublecheck: bool,
    /// Continues after a failure.
    pub keep_going: bool,
    /// Looks for a smaller run that fails, too.
    pub shrink: bool,
    /// The options of each run.
    pub options: Options,
}

/// How a run ended.
pub type Outcome = Result<Report, Box<Failure>>;

/// Runs all seeds. Calls `progress` after each run, in the order in which they end, on the calling
/// thread. Returns the failures, sorted by seed.
///
/// # Panics
/// If a thread cannot be started.
pub fn simulate(
    simulation: &Simulation,
    mut progress: impl FnMut(u64, &Outcome),
) -> Vec<Box<Failure>> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if simulation.threads == 0 { cores } else { simulation.threads };
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(BTreeMap::new());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let sender = sender.clone();
            let (next, stop) = (&next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= simulation.runs {
                        return;
                    }
                    let seed = simulation.seed.wrapping_add(number);
                    let outcome = one(seed, simulation);
                    if outcome.is_err() && !simulation.keep_going {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if sender.send((seed, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (seed, outcome) in receiver {
            progress(seed, &outcome);
            if let Err(failure) = outcome {
                failures.lock().unwrap_or_else(PoisonError::into_inner).insert(seed, failure);
            }
        }
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Runs one seed, twice or with shrinking if `simulation` asks for it.
fn one(seed: u64, simulation: &Simulation) -> Outcome {
    let options = &simulation.options;
    let outcome = run(seed, options);
    if simulation.doublecheck {
        let again = run(seed, options);
        if hash_of(&outcome) != hash_of(&again) {
            return Err(Box::new(Failure {
                seed,
                setup: String::new(),
                kind: ViolationKind::NotRepeatable,
                text: "two runs of this seed differ: something in them is not derived \
                       from the seed"
                    .into(),
                tail: Vec::new(),
                place: Vec::new(),
                step: 0,
                trace_hash: 0,
            }));
        }
    }
    match outcome {
        Err(failure) if simulation.shrink => Err(shrink(seed, options, failure)),
        outcome => outcome,
    }
}

fn hash_of(outcome: &Outcome) -> u64 {
    match outcome {
        Ok(report) => report.trace_hash,
        Err(failure) => failure.trace_hash,
    }
}

/// Looks for a shorter run of the same seed that fails, too: fewer lives, fewer requests. The array
/// stays the same, but events may differ; a smaller failure often has the same cause.
pub fn shrink(seed: u64, options: &Options, failure: Box<Failure>) -> Box<Failure> {
    let mut best = failure;
    let mut options = options.clone();
    for lives in [1, 2, 3] {
        let fewer = Options { lives_max: Some(lives), ..options.clone() };
        if let Err(smaller) = run(seed, &fewer) {
            (best, options) = (smaller, fewer);
            break;
        }
    }
    for requests in [1, 2, 4, 8, 16, 32, 64] {
        let mut fewer = options.clone();
        fewer.filter.requests_max = Some(requests);
        if let Err(mut smaller) = run(seed, &fewer) {
            smaller.text = format!(
                "{}\n(with at most {requests} requests per client and {:?} lives)",
                smaller.text, fewer.lives_max
            );
            return smaller;
        }
    }
    best
}

/// Repeats a small run with the power cut at every `stride`-th step of its first life, one cut per
/// run; the second life checks the result. Returns the number of cuts.
///
/// # Errors
/// The first failure.
pub fn every_cut(seed: u64, options: &Options, stride: u64) -> Result<u64, Box<Failure>> {
    let whole = Options { lives_max: Some(1), cut_at: None, ..options.clone() };
    let steps = run(seed, &whole)?.steps_first;
    let mut cuts = 0;
    for step in (1..=steps).step_by(usize::try_from(stride.max(1)).unwrap_or(usize::MAX)) {
        run(seed, &Options { cut_at: Some(step), ..options.clone() })?;
        cuts += 1;
    }
    Ok(cuts)
}
