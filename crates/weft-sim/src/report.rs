//! The options of a run, its report, and its failure.

use weft_rt::Rng;

use crate::canary::Canary;
use crate::setup::SetupFilter;
use crate::violation::ViolationKind;

/// How a run ends, after its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Crashes, lost disks and bad sectors, within what the code tolerates.
    Survivable,
    /// More lost disks than the code tolerates.
    BeyondTolerance,
    /// Silent corruption: bit rot, lost writes, misdirected writes.
    SilentCorruption,
}

impl Scenario {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        match rng.below(10) {
            0 => Self::BeyondTolerance,
            1 => Self::SilentCorruption,
            _ => Self::Survivable,
        }
    }
}

/// Options of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// How it ends; drawn if `None`.
    pub scenario: Option<Scenario>,
    /// Restricts the arrays and loads that are drawn.
    pub filter: SetupFilter,
    /// At most this many lives.
    pub lives_max: Option<u64>,
    /// Cuts the power of the first life at this step instead of a random one.
    pub cut_at: Option<u64>,
    /// Injects no faults except crashes.
    pub crashes_only: bool,
    /// Power cuts leave every sector readable.
    pub whole_sectors: bool,
    /// Removes a guarantee of the engine.
    pub canary: Option<Canary>,
    /// Whether the array is reshaped; drawn if `None`.
    pub reshape: Option<bool>,
    /// Whether disks become larger and the array grows; drawn if `None`.
    pub growth: Option<bool>,
    /// Whether crashes come while superblocks are held back; drawn if `None`.
    pub held_commit: Option<bool>,
    /// Events shown with a failure; 0: a few dozen.
    pub events_shown: usize,
}

/// The result of a run that found no violation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The array, in words.
    pub setup: String,
    /// Requests that clients sent.
    pub requests: u64,
    /// Requests that failed while errors were allowed.
    pub errors: u64,
    /// Lives.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Crashes of only the program.
    pub kills: u64,
    /// Reshapes started.
    pub reshapes: u64,
    /// Those of them to fewer disks, or to less data on them.
    pub shrinks: u64,
    /// Reshapes turned back.
    pub turns: u64,
    /// Members rebuilt while the array was reshaped.
    pub rebuilds_within: u64,
    /// Pairs of changes of the members that a power cut ended before they were durable.
    pub held: u64,
    /// Times that an array used more of its disks.
    pub growths: u64,
    /// Times that the tail of an array that became larger was taken into use.
    pub grown: u64,
    /// Members that came back with older contents.
    pub older: u64,
    /// Members that came back with foreign contents.
    pub foreign: u64,
    /// The most members that lacked data at the same time in an array of many slots.
    pub most_missing: u64,
    /// Arrays with large units or many stripes.
    pub large: u64,
    /// Changes of the consistency policy.
    pub policies: u64,
    /// Disks lost.
    pub losses: u64,
    /// Sectors that power cuts left unreadable.
    pub torn: u64,
    /// Cells whose promise ended.
    pub excused: u64,
    /// Mismatches that a scrub had to find, and found.
    pub mismatches: u64,
    /// Steps of all disks.
    pub steps: u64,
    /// Steps of the first life: the range for [`Options::cut_at`].
    pub steps_first: u64,
    /// Elapsed virtual time, in nanoseconds.
    pub virtual_ns: u64,
    /// Hash of all events.
    pub trace_hash: u64,
}

/// A run that found a violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The seed that reproduces it.
    pub seed: u64,
    /// The array, in words.
    pub setup: String,
    /// The kind of the violation.
    pub kind: ViolationKind,
    /// What was expected, and what happened.
    pub text: String,
    /// The last events.
    pub tail: Vec<String>,
    /// The last events in the range that the violation concerns.
    pub place: Vec<String>,
    /// The step at which the violation was found.
    pub step: u64,
    /// Hash of all events up to it.
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
            writeln!(f, "events in the range:\n  {}", self.place.join("\n  "))?;
        }
        write!(f, "last events:\n  {}", self.tail.join("\n  "))
    }
}

impl std::error::Error for Failure {}
