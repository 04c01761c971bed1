//! Planning an array: which codes suit a set of disks and a goal, and what each costs.
//!
//! Every figure of a code is counted over a whole period of its rows and its placement, by the
//! same planner and layouts that run arrays:
//!
//! | figure | how |
//! |---|---|
//! | usable | data units over all units |
//! | survives | all sets of 1 to 4 failed disks tried (a seeded sample where there are too many) |
//! | degraded | load of the busiest disk, healthy over one failed; the worst disk to lose |
//! | rebuild | the busiest disk's reads, or the replacement's writes, at the rate given |
//! | write | disk operations of a small write, the log not counted |
//! | MTTDL | the Markov chain of [`weft_code::Fleet`] with these shares |
//!
//! `candidates` lists codes, `rate` measures one, `choose` compares.

mod candidates;
mod choose;
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

/// Most disks that are planned for.
pub const DISKS_MAX: usize = 128;

/// The disks there are, and what they shall do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wish {
    /// How many disks.
    pub disks: usize,
    /// Bytes of the smallest.
    pub size_bytes: u64,
    /// Sequential bytes a second of one disk.
    pub bandwidth_bytes_s: u64,
    /// The part of the bandwidth that a rebuild takes.
    pub rebuild_share: f64,
    /// Mean time to failure of a disk, in hours.
    pub mttf_h: f64,
    /// Any so many disks may fail.
    pub survive: usize,
    /// Mean time to data loss at least, in years.
    pub mttdl_years: Option<f64>,
    /// Usable bytes at least.
    pub capacity_bytes: Option<u64>,
    /// What matters most.
    pub emphasis: Emphasis,
    /// Check the mean time to data loss by so many simulated cycles.
    pub monte_carlo_cycles: Option<u64>,
    /// For all that is drawn.
    pub seed: u64,
}

/// What matters most to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Emphasis {
    /// Everything somewhat.
    Balanced,
    /// Reads, above all while degraded.
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
    /// Usable part of all bytes.
    pub efficiency: f64,
    /// Any so many disks may fail.
    pub tolerance: usize,
    /// Whether `tolerance` is exact, not a lower bound.
    pub tolerance_exact: bool,
    /// Sets of 1, 2, 3, 4 failed disks that it survives.
    pub survives: Vec<Survived>,
    /// Reads with one disk failed; none if data is lost then.
    pub degraded: Option<Degraded>,
    /// Rebuilding one disk; none if there is nothing to rebuild from.
    pub rebuild: Option<Rebuild>,
    /// A small write.
    pub write: Writes,
    /// Mean time to data loss, in years.
    pub mttdl_years: f64,
    /// The same by simulation, if that was asked for.
    pub simulated: Option<Simulated>,
    /// Goals that it misses, for people; empty if it fits.
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

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// What was asked.
    pub wish: Wish,
    /// The codes, best first; those that miss a goal last.
    pub codes: Vec<Row>,
    /// The code to take, if any fits.
    pub recommended: Option<CodeSpec>,
    /// Why it is that one.
    pub reason: String,
}

/// Why no plan was made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A code that was asked for cannot be built.
    #[error(transparent)]
    Layout(#[from] weft_layout::LayoutError),
    /// Something out of its range.
    #[error("{0}")]
    Wish(String),
}

/// Compares `codes` (all [`candidates`] if empty) for a wish; `progress(done, of)` is told after
/// each.
///
/// # Errors
/// If the wish makes no sense, or a code in `codes` cannot be built on these disks.
pub fn plan(
    wish: &Wish,
    codes: &[CodeSpec],
    mut progress: impl FnMut(usize, usize),
) -> Result<Plan, PlanError> {
    check(wish)?;
    let codes = if codes.is_empty() { candidates(wish.disks) } else { codes.to_vec() };
    let mut rows = Vec::with_capacity(codes.len());
    for code in &codes {
        rows.push(rate::rate(*code, wish)?);
        progress(rows.len(), codes.len());
    }
    Ok(choose::choose(wish.clone(), rows))
}

fn check(wish: &Wish) -> Result<(), PlanError> {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    let problem = if !(1..=DISKS_MAX).contains(&wish.disks) {
        format!("{} disks: 1 to {DISKS_MAX} can be planned for", wish.disks)
    } else if wish.size_bytes == 0 {
        "the disks have no size".into()
    } else if wish.bandwidth_bytes_s == 0 {
        "the disks have no bandwidth".into()
    } else if !positive(wish.mttf_h) {
        "the mean time to failure must be more than 0 hours".into()
    } else if !(positive(wish.rebuild_share) && wish.rebuild_share <= 1.0) {
        "a rebuild takes more than 0 and at most all of the bandwidth".into()
    } else if wish.survive >= wish.disks {
        format!("{} of {} disks cannot all be lost", wish.survive, wish.disks)
    } else if wish.mttdl_years.is_some_and(|years| !positive(years)) {
        "the mean time to data loss must be more than 0 years".into()
    } else {
        return Ok(());
    };
    Err(PlanError::Wish(problem))
}

/// Hours as years of 365 days.
fn years(hours: f64) -> f64 {
    hours / HOURS_PER_YEAR
}
