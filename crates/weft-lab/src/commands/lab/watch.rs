//! Progress of experiments: which one runs, how many of its runs are done, how long it may still
//! take.
//!
//! A run of a large experiment takes minutes, so the display is renewed every second, whether a run
//! ended or not. The time left is derived from the runs that are done; before the first one, and
//! for the experiments to come, from the estimates in their files, corrected by how long the
//! previous ones took here.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weft_cli::progress::Progress;
use weft_cli::size;

use crate::Experiment;

/// The display is renewed at this interval.
const RENEW: Duration = Duration::from_secs(1);
/// Less time than this is too short to measure a machine's speed.
const TELLING_S: f64 = 5.0;

/// The progress of one experiment.
struct At {
    done: usize,
    of: usize,
    ended: bool,
}

/// How long experiments take on this machine.
pub struct Pace {
    /// Number of threads times the divisor of the requests.
    shared_by: f64,
    expected_s: f64,
    took_s: f64,
}

impl Pace {
    /// Nothing has been run yet.
    pub fn new(threads: usize, divide: u64) -> Self {
        let shared_by = u32::try_from(threads).map_or(1.0, f64::from)
            * u32::try_from(divide).map_or(1.0, f64::from);
        Self { shared_by, expected_s: 0.0, took_s: 0.0 }
    }

    /// Seconds that an experiment will take.
    pub fn seconds(&self, experiment: &Experiment) -> f64 {
        let telling = self.expected_s >= TELLING_S;
        let slower = if telling { self.took_s / self.expected_s } else { 1.0 };
        f64::from(experiment.processor_s) / self.shared_by * slower
    }

    /// Records how long an experiment took.
    pub fn took(&mut self, experiment: &Experiment, seconds: f64) {
        self.expected_s += f64::from(experiment.processor_s) / self.shared_by;
        self.took_s += seconds;
    }
}

/// Runs `work`, which reports finished runs to its callback, and shows its progress. `others_s` is
/// the time in seconds that the other experiments will take afterwards.
pub fn watched<T>(
    name: &str,
    expected_s: f64,
    others_s: f64,
    silent: bool,
    work: impl FnOnce(&(dyn Fn(usize, usize) + Sync)) -> T,
) -> T {
    let begun = Instant::now();
    let at = Mutex::new(At { done: 0, of: 0, ended: false });
    let changed = Condvar::new();
    let lock = || at.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut progress = Progress::new(name, 1, silent);
            let mut at = lock();
            while !at.ended {
                let elapsed_s = begun.elapsed().as_secs_f64();
                let message = message(at.done, at.of, elapsed_s, expected_s, others_s);
                progress.at(at.done as u64, at.of as u64, &message);
                let waited = changed.wait_timeout(at, RENEW);
                at = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        });
        let ends = Ends { at: &at, changed: &changed };
        let result = work(&|done, of| {
            let mut at = lock();
            (at.done, at.of) = (at.done.max(done), of);
            changed.notify_one();
        });
        drop(ends);
        result
    })
}

/// Ends the display, also if the work panics: the scope would wait for it for ever.
struct Ends<'a> {
    at: &'a Mutex<At>,
    changed: &'a Condvar,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.changed.notify_one();
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds for people")]
fn message(done: usize, of: usize, elapsed_s: f64, expected_s: f64, others_s: f64) -> String {
    let left_s = match done {
        0 => expected_s - elapsed_s,
        done => elapsed_s * of.saturating_sub(done) as f64 / done as f64,
    };
    let mut text = match of {
        0 => "started".to_owned(),
        of => format!("{done} of {of} runs"),
    };
    text.push_str(&format!(", {}", shown(elapsed_s)));
    if left_s >= 1.0 {
        text.push_str(&format!(", about {} left", shown(left_s)));
    }
    if others_s >= 1.0 {
        text.push_str(&format!(", {} with the others", shown(left_s.max(0.0) + others_s)));
    }
    text
}

/// Seconds in words.
pub fn shown(seconds: f64) -> String {
    size::show_duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_done() {
        assert_eq!(message(0, 0, 2.0, 60.0, 0.0), "started, 2.0 s, about 58 s left");
        assert_eq!(message(0, 4, 70.0, 60.0, 0.0), "0 of 4 runs, 1 min 10 s");
        assert_eq!(
            message(1, 4, 70.0, 60.0, 0.0),
            "1 of 4 runs, 1 min 10 s, about 3 min 30 s left"
        );
        let with_others = "3 of 4 runs, 30 s, about 10 s left, 1 min 40 s with the others";
        assert_eq!(message(3, 4, 30.0, 60.0, 90.0), with_others);
    }

    #[test]
    fn a_slow_machine_is_expected_to_stay_slow() {
        let mut experiment = Experiment::all().remove(0);
        experiment.processor_s = 120;
        let mut pace = Pace::new(2, 1);
        assert!((pace.seconds(&experiment) - 60.0).abs() < 1e-9);
        pace.took(&experiment, 180.0);
        assert!((pace.seconds(&experiment) - 180.0).abs() < 1e-9);
        assert!((Pace::new(2, 10).seconds(&experiment) - 6.0).abs() < 1e-9);
    }

    #[test]
    fn the_display_ends_with_the_work() {
        let told = watched("x", 1.0, 0.0, true, |told| {
            told(1, 2);
            7
        });
        assert_eq!(told, 7);
    }
}
