//! Degraded read performance against reliability: the benefit of recovery bandwidth, and its cost.
//!
//! More bandwidth for the recovery makes repairs shorter and so the array safer, but takes it from
//! degraded reads. This is the paper's model (equations 2 to 5, 9 and 10), with the number of disks
//! that the paper's figures imply, and with the actual number.

use serde::Deserialize;
use weft_code::degraded::{p_edr, p_fdr, recovery_bandwidth_max, u_rp};
use weft_code::{Fleet, HOURS_PER_YEAR, Survival};

use crate::figure::{Panel, Point, Shape};
use crate::lab::{Lab, LabError, Results};

/// Points of a curve.
const CURVE: u32 = 48;
/// The curves begin at this bandwidth, in MB/s.
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

type Array = super::array::Array<Reads>;

/// What an array costs its readers.
#[derive(Clone, Debug, Deserialize)]
struct Reads {
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

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Results, LabError> {
    let mut arrays = Vec::new();
    for array in &parameters.arrays {
        let code = lab.code(array.code, array.disks)?;
        let layout = lab.layout(array.code, array.disks)?;
        let stripes = code.period() * layout.period();
        let survival =
            Survival::new(&code, array.disks, stripes, |s, unit| layout.place(s, unit).slot);
        let shares = (0..=FAILURES).map(|f| survival.share(f).fraction()).collect();
        arrays.push(Rated { array, shares });
        (lab.progress)(arrays.len(), parameters.arrays.len());
    }
    let p = parameters;
    let implied = |_: &Array| p.paper_disks;
    let actual = |array: &Array| array.disks;
    let (paper_n, there_are) = (format!("n = {}", p.paper_disks), "actual n".to_owned());
    let by_array = |of: &dyn Fn(&Rated<'_>) -> f64| -> Vec<Point> {
        arrays.iter().map(|rated| Point::new(&rated.array.name, of(rated))).collect()
    };
    let years = |label: &str, n: &dyn Fn(&Array) -> usize, mb_s: &dyn Fn(&Array) -> f64| {
        (label.to_owned(), by_array(&|r| p.mttdl_years(r, n(r.array), mb_s(r.array))))
    };
    let both = |title: &str, y: &str, mb_s: &dyn Fn(&Array) -> f64| {
        let (name, points) = years(&paper_n, &implied, mb_s);
        let (name2, points2) = years(&there_are, &actual, mb_s);
        let panel = Panel::bars(title, "code", y).with(name, points).with(name2, points2);
        Panel { log_y: true, ..panel }
    };
    let panels = vec![
        p.curves(&format!("with the paper's n = {}", p.paper_disks), &arrays, &implied),
        p.curves("with the actual disks, n = 6 and 7", &arrays, &actual),
        both("MTTDL at the paper's recovery bandwidths", "years", &|a| a.more.paper_mb_s),
        both("MTTDL at the most recovery bandwidth", "years", &|a| p.most_mb_s(a)),
        Panel::bars("recovery bandwidth for equal reliability", "code", "MB/s")
            .with(paper_n.clone(), by_array(&|r| p.needed_mb_s(r, implied(r.array))))
            .with(there_are.clone(), by_array(&|r| p.needed_mb_s(r, actual(r.array)))),
        Panel::bars(
            "degraded reads at equal reliability",
            "code",
            "during recovery, normal RAID-6 = 1",
        )
        .with(paper_n.clone(), by_array(&|r| p.speed(r.array, p.needed_mb_s(r, implied(r.array)))))
        .with(there_are, by_array(&|r| p.speed(r.array, p.needed_mb_s(r, actual(r.array))))),
    ];
    Ok(Results { panels, ..Results::default() })
}

impl Parameters {
    fn mttdl_years(&self, rated: &Rated<'_>, disks: usize, mb_s: f64) -> f64 {
        let mttr_h = self.disk_mb / mb_s / 3600.0;
        Fleet { disks, mttf_h: self.mttf_h, mttr_h }.mttdl_h(&rated.shares) / HOURS_PER_YEAR
    }

    fn most_mb_s(&self, array: &Array) -> f64 {
        recovery_bandwidth_max(array.more.ar, self.read_mb_s, self.write_mb_s)
    }

    /// Degraded reads while a recovery takes `mb_s`, relative to normal reads of the first array.
    fn speed(&self, array: &Array, mb_s: f64) -> f64 {
        let bearing = array.more.bearing / self.arrays[0].more.bearing;
        p_edr(p_fdr(array.more.ar), u_rp(mb_s, array.more.ar, self.read_mb_s)) * bearing
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
