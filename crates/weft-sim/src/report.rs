//! What a run is to be, what it was, and why it failed.

use crate::canary::Canary;
use crate::setup::Wishes;
use crate::violation::Violation;

/// What kind of trouble a run is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Story {
    /// Crashes, lost disks, bad sectors, within what the code survives.
    #[default]
    Survivable,
    /// More disks are lost than the code survives.
    Beyond,
    /// Disks lie: bits rot, writes get lost or go elsewhere.
    Silent,
}

/// What a run is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Kind of trouble.
    pub story: Story,
    /// Bounds on what is drawn.
    pub wishes: Wishes,
    /// At most this many lives.
    pub lives_max: Option<u64>,
    /// Cuts the power of the first life at this step instead of one that is drawn.
    pub cut_at: Option<u64>,
    /// No events but crashes.
    pub quiet: bool,
    /// Power cuts leave every sector readable.
    pub whole_sectors: bool,
    /// A guarantee of the engine that is taken away.
    pub canary: Option<Canary>,
    /// Events shown with a failure; 0 for a few dozen.
    pub events_shown: usize,
}

/// What a run was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// The array, in words.
    pub setup: String,
    /// Requests of clients.
    pub requests: u64,
    /// Requests that failed where that was allowed.
    pub errors: u64,
    /// Lives.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Deaths of the program alone.
    pub kills: u64,
    /// Disks lost.
    pub losses: u64,
    /// Sectors that power cuts made unreadable.
    pub torn: u64,
    /// Cells whose promise had ended.
    pub excused: u64,
    /// Mismatches that a scrub found (and was to find).
    pub mismatches: u64,
    /// Steps of all disks.
    pub steps: u64,
    /// Steps of the first life: where [`Options::cut_at`] can cut.
    pub steps_first: u64,
    /// Virtual time that passed, in nanoseconds.
    pub virtual_ns: u64,
    /// Hash of everything that happened.
    pub trace_hash: u64,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The seed that repeats it.
    pub seed: u64,
    /// The array, in words.
    pub setup: String,
    /// What kind of expectation failed.
    pub kind: Violation,
    /// What was expected, and what happened.
    pub text: String,
    /// The last events.
    pub tail: Vec<String>,
    /// The last events that touched the place of the failure.
    pub place: Vec<String>,
    /// Step at which it was noticed.
    pub step: u64,
    /// Hash of everything that happened up to it.
    pub trace_hash: u64,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "seed {} failed at step {}\n{}\n{}",
            self.seed, self.step, self.setup, self.text
        )?;
        if !self.place.is_empty() {
            writeln!(f, "what happened there:\n  {}", self.place.join("\n  "))?;
        }
        write!(f, "last events:\n  {}", self.tail.join("\n  "))
    }
}

impl std::error::Error for Failure {}
