//! Degraded read performance against reliability: the benefit of recovery bandwidth, and its cost.
//!
//! More bandwidth for the recovery makes repairs shorter and so the array safer, but takes it from
//! degraded reads. This is the paper's model (equations 2 to 5, 9 and 10), with the number of disks
//! that the paper's figures imply, and with the actual number.

use serde::Deserialize;
use weft_code::degraded::{p_edr, p_fdr, recovery_bandwidth_max, u_rp};
use weft_code::{CodeSpec, Fleet, HOURS_PER_YEAR, Survival};

use crate::figure::{Panel, Point, Shape};
use crate::lab::{self, Lab, Ran, Results, layout};

/// Points of a curve.
const CURVE: u32 = 48;
/// The curves start at this bandwidth, in MB/s.
const LEAST_MB_S: f64 = 20.0;
/// Largest number of failures in the chain.
const FAILURES: usize = 4;

/// Disks, and the arrays made of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// MB of a disk.
    disk_mb: f64,
    /// MB a second that it reads.
    read_mb_s: f64,
    /// MB a second that it writes.
    write_mb_s: f64,
    /// Mean time to failure, in hours.
    mttf_h: f64,
    /// Disks of every array, as the paper's figures imply.
    paper_disks: usize,
    /// The mean time to data loss to be reached, in years.
    goal_years: f64,
    /// The arrays.
    arrays: Vec<Array>,
}

/// An array, and what it costs its readers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Array {
    /// Its name in the paper.
    name: String,
    code: CodeSpec,
    disks: usize,
    /// Additional reads with one disk failed.
    ar: f64,
    /// Average number of disks that hold data and thus serve reads.
    bearing: f64,
    /// Recovery bandwidth for the goal, as the paper sets it.
    paper_mb_s: f64,
}

/// An array with the shares of failures that it survives.
struct Rated<'a> {
    array: &'a Array,
    shares: Vec<f64>,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    lab.study(
        &p.arrays,
        |array| array.name.clone(),
        |Array { code, disks, .. }| {
            let layout = layout(*code, *disks)?;
            let code = lab::code(*code, *disks)?;
            let stripes = code.period() * layout.period();
            let place = |stripe, unit| layout.place(stripe, unit).slot;
            let survival = Survival::new(&code, *disks, stripes, place);
            Ok((0..=FAILURES).map(|failed| survival.share(failed).fraction()).collect())
        },
        |shares| {
            let rated = p.arrays.iter().zip(shares).map(|(array, shares)| Rated { array, shares });
            Results { panels: p.panels(&rated.collect::<Vec<_>>()), ..Results::default() }
        },
    )
}

impl Parameters {
    fn panels(&self, arrays: &[Rated<'_>]) -> Vec<Panel> {
        type Disks<'a> = &'a dyn Fn(&Array) -> usize;
        let (implied, actual): (Disks<'_>, Disks<'_>) = (&|_| self.paper_disks, &|a| a.disks);
        let ways = [(format!("n = {}", self.paper_disks), implied), ("actual n".into(), actual)];
        let both = |panel: Panel, of: &dyn Fn(&Rated<'_>, usize) -> f64| {
            ways.iter().fold(panel, |panel, (name, disks)| {
                let point = |r: &Rated<'_>| Point::new(&r.array.name, of(r, disks(r.array)));
                panel.with(name, arrays.iter().map(point).collect())
            })
        };
        let years = |title: &str, mb_s: &dyn Fn(&Array) -> f64| {
            let panel = Panel { log_y: true, ..Panel::bars(title, "code", "years") };
            both(panel, &|rated, disks| self.mttdl_years(rated, disks, mb_s(rated.array)))
        };
        let equal = "recovery bandwidth for equal reliability";
        let speed = "degraded reads at equal reliability";
        vec![
            self.curves(&format!("with the paper's n = {}", self.paper_disks), arrays, implied),
            self.curves("with the actual disks, n = 6 and 7", arrays, actual),
            years("MTTDL at the paper's recovery bandwidths", &|array| array.paper_mb_s),
            years("MTTDL at the most recovery bandwidth", &|array| self.most_mb_s(array)),
            both(Panel::bars(equal, "code", "MB/s"), &|r, disks| self.needed_mb_s(r, disks)),
            both(Panel::bars(speed, "code", "during recovery, normal RAID-6 = 1"), &|r, disks| {
                self.speed(r.array, self.needed_mb_s(r, disks))
            }),
        ]
    }

    fn mttdl_years(&self, rated: &Rated<'_>, disks: usize, mb_s: f64) -> f64 {
        let mttr_h = self.disk_mb / mb_s / 3600.0;
        Fleet { disks, mttf_h: self.mttf_h, mttr_h }.mttdl_h(&rated.shares) / HOURS_PER_YEAR
    }

    fn most_mb_s(&self, array: &Array) -> f64 {
        recovery_bandwidth_max(array.ar, self.read_mb_s, self.write_mb_s)
    }

    /// Degraded reads while a recovery takes `mb_s`, relative to normal reads of the first array.
    fn speed(&self, array: &Array, mb_s: f64) -> f64 {
        let bearing = array.bearing / self.arrays[0].bearing;
        p_edr(p_fdr(array.ar), u_rp(mb_s, array.ar, self.read_mb_s)) * bearing
    }

    /// The lowest recovery bandwidth that reaches the goal.
    fn needed_mb_s(&self, rated: &Rated<'_>, disks: usize) -> f64 {
        let (mut low, mut high) = (1e-3, 1e6);
        for _ in 0..100 {
            let middle = f64::sqrt(low * high);
            if self.mttdl_years(rated, disks, middle) < self.goal_years {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    fn curves(&self, title: &str, arrays: &[Rated<'_>], disks: &dyn Fn(&Array) -> usize) -> Panel {
        let axis = "degraded reads during recovery, normal RAID-6 = 1";
        let mut panel = Panel::lines(title, "mean time to data loss, years", axis);
        panel.shape = Shape::LogLines;
        for rated in arrays {
            let most = self.most_mb_s(rated.array);
            let points = (0..=CURVE).map(|step| {
                let part = f64::from(step) / f64::from(CURVE);
                let mb_s = LEAST_MB_S * (most / LEAST_MB_S).powf(part);
                let years = self.mttdl_years(rated, disks(rated.array), mb_s);
                Point {
                    at: years,
                    ..Point::new(format!("{mb_s:.0} MB/s"), self.speed(rated.array, mb_s))
                }
            });
            panel = panel.with(&rated.array.name, points.collect());
        }
        panel
    }
}
