//! The figures of one code on the requested disks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::Serialize;
use weft_code::{Code, CodeSpec, Fleet, SlotNo, SlotSet, Traffic, monte_carlo};
use weft_layout::{Algorithm, Layout, LayoutError, code_for, for_code};

use super::shares::{Stripes, Survived};
use super::{PlanError, PlanRequest, Row, picture, years};

/// Rows per disk used to compute a placement; more than any period.
const ROWS: u64 = 1 << 24;
/// Largest number of failures whose sets are counted.
const FAILURES: usize = 4;

/// Reads with one disk failed, relative to the healthy array, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Degraded {
    /// The speed that is left if the worst disk fails.
    pub worst: f64,
    /// The mean over all disks.
    pub mean: f64,
}

/// Rebuilding one disk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rebuild {
    /// Duration in hours, for the worst disk.
    #[serde(rename = "took_h")]
    pub hours: f64,
    /// Bytes read from all disks for each byte rebuilt, on average over the disks.
    pub reads: f64,
    /// Share of its contents that the busiest disk has to read, for the worst disk.
    pub busiest: f64,
}

/// Disk operations of a small write.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Writes {
    /// Reads before it.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
}

impl Writes {
    /// All operations.
    #[must_use]
    pub fn ops(&self) -> f64 {
        self.reads + self.writes
    }
}

/// A mean time to data loss by simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// The mean, in years.
    pub mttdl_years: f64,
    /// Its standard error, in years.
    pub standard_error_years: f64,
    /// Cycles simulated.
    pub cycles: u64,
}

/// Measures `spec`.
pub(super) fn rate(spec: CodeSpec, request: &PlanRequest) -> Result<Row, PlanError> {
    let disks = request.disks;
    let layout = for_code(spec, Algorithm::default(), disks, ROWS)?;
    let code = code_for(spec, Algorithm::default(), disks)?;
    let period = lcm(code.period(), layout.period());
    let stripes = Stripes::of(&code, &*layout, period);
    let survives: Vec<Survived> =
        (1..=FAILURES.min(disks)).map(|f| stripes.survived(f, request.seed)).collect();
    let (degraded, rebuild) = one_failure(&code, &*layout, period, request);
    let small = Traffic::new(&code, disks, 1, |_, unit| SlotNo(unit)).small_write();
    let efficiency = ratio(code.k() as u64, code.width() as u64);
    let hours = rebuild.map_or(1.0, |rebuild| rebuild.hours);
    let fleet = Fleet { disks, mttf_h: request.mttf_h, mttr_h: hours };
    let mttdl_years = years(fleet.mttdl_h(&chain_shares(&survives, &code)));
    let mut row = Row {
        code: spec,
        picture: picture(spec, disks).map_err(LayoutError::from)?,
        capacity_bytes: scaled(request.size_bytes * disks as u64, efficiency),
        efficiency,
        tolerance: code.tolerance(),
        tolerance_exact: code.tolerance_is_exact(),
        survives,
        degraded,
        rebuild,
        write: Writes { reads: small.reads, writes: small.writes },
        mttdl_years,
        simulated: request
            .monte_carlo_cycles
            .map(|cycles| simulated(&fleet, &stripes, cycles, request)),
        misses: Vec::new(),
        best_in_something: false,
    };
    row.misses = misses(&row, request);
    Ok(row)
}

/// The effect of one failed disk on reads, and the cost of its rebuild.
fn one_failure(
    code: &Code,
    layout: &dyn Layout,
    period: u64,
    request: &PlanRequest,
) -> (Option<Degraded>, Option<Rebuild>) {
    let traffic = Traffic::new(code, request.disks, period, |s, u| layout.place(s, u).slot);
    let (mut worst, mut speeds) = (f64::INFINITY, 0.0);
    let (mut busiest, mut reads) = (0.0, 0.0);
    // Where stripes are narrower than the array, every slot shares stripes with every other.
    let slots = if code.width() < request.disks { 1 } else { request.disks };
    let Ok(healthy) = traffic.reads(SlotSet::EMPTY).map(most) else { return (None, None) };
    for slot in 0..slots {
        let failed = SlotSet::one(SlotNo(slot));
        let (Ok(left), Ok(loads)) = (traffic.reads(failed).map(most), traffic.rebuild(failed))
        else {
            return (None, None);
        };
        // Reads do not miss a disk that holds no data.
        let speed = f64::min(healthy / left, 1.0);
        worst = speed.min(worst);
        speeds += speed;
        reads += loads.iter().sum::<f64>();
        busiest = f64::max(busiest, most(loads));
    }
    let disks = ratio(slots as u64, 1);
    let rate = ratio(request.bandwidth_bytes_s, 1) * request.rebuild_share;
    let hours = ratio(request.size_bytes, 1) * f64::max(busiest, 1.0) / rate / 3600.0;
    (
        Some(Degraded { worst, mean: speeds / disks }),
        Some(Rebuild { hours, reads: reads / disks, busiest }),
    )
}

/// Shares for the chain, starting with no failure. The tolerance is also certain beyond the counted
/// sets.
fn chain_shares(survives: &[Survived], code: &Code) -> Vec<f64> {
    let mut shares = vec![1.0];
    shares.extend(survives.iter().map(Survived::share));
    shares.extend((shares.len()..=code.tolerance()).map(|_| 1.0));
    // By chance, a sample may rise where the true share falls.
    for f in 1..shares.len() {
        shares[f] = shares[f].min(shares[f - 1]);
    }
    shares
}

fn simulated(
    fleet: &Fleet,
    stripes: &Stripes<'_>,
    cycles: u64,
    request: &PlanRequest,
) -> Simulated {
    let known = RefCell::new(BTreeMap::new());
    let survives = |failed: SlotSet| {
        *known.borrow_mut().entry(failed).or_insert_with(|| stripes.survive(failed))
    };
    let estimate = monte_carlo::simulate(fleet, survives, cycles, request.seed);
    Simulated {
        mttdl_years: years(estimate.mttdl_h),
        standard_error_years: years(estimate.standard_error_h),
        cycles,
    }
}

fn misses(row: &Row, request: &PlanRequest) -> Vec<String> {
    let mut misses = Vec::new();
    if row.tolerance < request.survive {
        misses.push(match row.tolerance {
            0 => format!("survives no loss, not any {}", request.survive),
            1 => format!("survives any one loss, not any {}", request.survive),
            least if !row.tolerance_exact => {
                format!(
                    "survives at least any {least} losses, possibly not any {}",
                    request.survive
                )
            }
            most => format!("survives any {most} losses, not any {}", request.survive),
        });
    }
    if let Some(years) = request.mttdl_years.filter(|years| row.mttdl_years < *years) {
        misses.push(format!("MTTDL {:.1e} years, not {years:.1e}", row.mttdl_years));
    }
    if request.capacity_bytes.is_some_and(|bytes| row.capacity_bytes < bytes) {
        misses.push("too little capacity".into());
    }
    misses
}

fn most(loads: Vec<f64>) -> f64 {
    loads.into_iter().fold(0.0, f64::max)
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[expect(clippy::cast_precision_loss, reason = "ratios and sizes for people")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a size in bytes, far below 2^63, rounded down"
)]
fn scaled(bytes: u64, by: f64) -> u64 {
    (bytes as f64 * by) as u64
}
