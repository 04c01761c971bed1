//! Planning an array: which codes suit a set of disks and a goal, and what each costs.
//!
//! Every figure of a code is counted over a whole period of its rows and its placement, by the same
//! planner and layouts that run arrays:
//!
//! | figure | how |
//! |---|---|
//! | usable | data units over all units |
//! | survives | all sets of 1 to 4 failed disks tried (a seeded sample where there are too many) |
//! | degraded | load of the busiest disk, healthy over one failed; for the worst disk to lose |
//! | rebuild | the busiest disk's reads, or the replacement's writes, at the given rate |
//! | write | disk operations of a small write, not counting the log |
//! | MTTDL | the Markov chain of [`weft_code::Fleet`] with these shares |
//!
//! `candidates` lists codes, `rate` measures one, `choose` compares; [`command`] is `weft plan`.
//!
//! ```
//! assert_eq!(weft_plan::picture("drc-g:4,2,1".parse()?, 7)?, "DDL DDL G");
//! assert!(weft_plan::candidates(7).contains(&"raid6".parse()?));
//! # Ok::<(), weft_code::SpecError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod candidates;
mod choose;
pub mod command;
mod picture;
mod rate;
mod shares;

use serde::Serialize;
use weft_code::CodeSpec;
pub use weft_code::HOURS_PER_YEAR;

pub use candidates::candidates;
pub use picture::picture;
pub use rate::{Degraded, Rebuild, Simulated, Writes};
pub use shares::Survived;

/// Maximum number of disks.
pub const DISKS_MAX: usize = 128;

/// The disks, and the goals of the array.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanRequest {
    /// Number of disks.
    pub disks: usize,
    /// Size of the smallest, bytes.
    pub size_bytes: u64,
    /// Sequential bandwidth of one disk, bytes per second.
    pub bandwidth_bytes_s: u64,
    /// Share of the bandwidth that a rebuild takes.
    pub rebuild_share: f64,
    /// Mean time to failure of a disk, in hours.
    pub mttf_h: f64,
    /// The loss of any this many disks must be survived.
    pub survive: usize,
    /// Minimum mean time to data loss, in years.
    pub mttdl_years: Option<f64>,
    /// Minimum usable bytes.
    pub capacity_bytes: Option<u64>,
    /// The emphasis.
    pub emphasis: Emphasis,
    /// Check the mean time to data loss by this many simulated cycles.
    pub monte_carlo_cycles: Option<u64>,
    /// Random seed.
    pub seed: u64,
}

/// The figure that matters most to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Emphasis {
    /// All figures.
    Balanced,
    /// Reads, especially while degraded.
    Read,
    /// Small writes.
    Write,
    /// Usable capacity.
    Capacity,
}

/// A code on these disks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub code: CodeSpec,
    /// A stripe: D data, L local parity, G global parity, P, Q and R parity, C copy.
    pub picture: String,
    /// Usable bytes.
    pub capacity_bytes: u64,
    /// Usable share of all bytes.
    pub efficiency: f64,
    /// It survives the loss of any this many disks.
    pub tolerance: usize,
    /// Whether `tolerance` is exact, not a lower bound.
    pub tolerance_exact: bool,
    /// Sets of 1, 2, 3, 4 failed disks that it survives.
    pub survives: Vec<Survived>,
    /// Reads with one disk failed; `None` if data is lost then.
    pub degraded: Option<Degraded>,
    /// Rebuilding one disk; `None` if there is nothing to rebuild from.
    pub rebuild: Option<Rebuild>,
    /// A small write.
    pub write: Writes,
    /// Mean time to data loss, in years.
    pub mttdl_years: f64,
    /// The result of a simulation, if requested.
    pub simulated: Option<Simulated>,
    /// Goals that it misses, in words; empty if it fits.
    pub misses: Vec<String>,
    /// No other code that fits is at least as good in everything.
    pub best_in_something: bool,
}

impl Row {
    /// Whether all goals are met.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.misses.is_empty()
    }
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The request.
    #[serde(rename = "wish")]
    pub request: PlanRequest,
    /// The codes, best first; codes that miss a goal last.
    pub codes: Vec<Row>,
    /// The recommended code, if any fits.
    pub recommended: Option<CodeSpec>,
    /// The reason for it.
    pub reason: String,
    /// What to know about the recommended code.
    pub notes: Vec<String>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A requested code cannot be built.
    #[error(transparent)]
    Layout(#[from] weft_layout::LayoutError),
    /// A value out of its range.
    #[error("{0}")]
    Request(String),
}

/// Compares `codes` (all [`candidates`] if empty) for a request; `progress(done, of)` is told after
/// each.
///
/// # Errors
/// If the request makes no sense, or a code in `codes` cannot be built on these disks.
pub fn plan(
    request: &PlanRequest,
    codes: &[CodeSpec],
    mut progress: impl FnMut(usize, usize),
) -> Result<Plan, PlanError> {
    check(request)?;
    let codes = if codes.is_empty() { candidates(request.disks) } else { codes.to_vec() };
    let mut rows = Vec::with_capacity(codes.len());
    for code in &codes {
        rows.push(rate::rate(*code, request)?);
        progress(rows.len(), codes.len());
    }
    Ok(choose::choose(request.clone(), rows))
}

fn check(request: &PlanRequest) -> Result<(), PlanError> {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    let problem = if !(1..=DISKS_MAX).contains(&request.disks) {
        format!("{} disks: the number must be 1 to {DISKS_MAX}", request.disks)
    } else if request.size_bytes == 0 {
        "the disk size must be more than 0".into()
    } else if request.bandwidth_bytes_s == 0 {
        "the disk bandwidth must be more than 0".into()
    } else if !positive(request.mttf_h) {
        "the mean time to failure must be more than 0 hours".into()
    } else if !(positive(request.rebuild_share) && request.rebuild_share <= 1.0) {
        "the rebuild's share of the bandwidth must be more than 0 and at most 1".into()
    } else if request.survive >= request.disks {
        format!(
            "an array of {1} disks cannot survive the loss of {0}",
            request.survive, request.disks
        )
    } else if request.mttdl_years.is_some_and(|years| !positive(years)) {
        "the mean time to data loss must be more than 0 years".into()
    } else {
        return Ok(());
    };
    Err(PlanError::Request(problem))
}

/// Hours as years of 365 days.
fn years(hours: f64) -> f64 {
    hours / HOURS_PER_YEAR
}
