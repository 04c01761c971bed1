//! Random reads while a failed disk is being rebuilt, over time, at bandwidths of equal
//! reliability.
//!
//! The disks are scaled down; the bandwidth is not, so that a recovery takes as much from the
//! readers as on the whole disk, only for a shorter time. The times are scaled up again. What does
//! not scale – the end of each region costs users a little, and has the same size on any disk –
//! differs between two sizes of the scaled disk, so more than one is simulated.

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_rt::SECOND;

use crate::bench::{Access, Bed, Ended, Load, on_bench};
use crate::figure::{Panel, Point};
use crate::found::found;
use crate::lab::{Lab, Ran, Repair, Results};
use crate::modelled::ArraySetup;
use crate::number::{mb_s, real, seconds};

/// Intervals of the slowest rebuild.
const INTERVALS: u64 = 32;

/// Arrays and their load.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// MiB used of each, several times.
    disk_mib: Vec<u64>,
    /// MiB of a region: those of the paper's disk are as large.
    region_mib: u64,
    /// MiB of the paper's disk: times are scaled up to it.
    whole_disk_mib: u32,
    /// KiB of a unit.
    unit_kib: u32,
    /// KiB of a read.
    kib: u64,
    /// Reads in flight.
    depth: u64,
    /// Reads of the normal run.
    requests: u64,
    arrays: Vec<Array>,
}

/// An array, and its recovery bandwidths.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Array {
    /// Its name in the paper.
    name: String,
    code: CodeSpec,
    disks: usize,
    /// For equal reliability, as the paper sets it, in MB/s.
    paper_mb_s: u64,
    /// The closed form for the actual number of disks.
    right_mb_s: u64,
}

/// One run.
struct Cell<'a> {
    bed: Bed,
    array: &'a Array,
    /// Recovery bandwidth; `None`: nothing fails.
    mb_s: Option<u64>,
    repair: Repair,
}

/// All arrays in one way.
struct Variant {
    name: &'static str,
    mb_s: fn(&Array) -> u64,
    repair: Repair,
}

const VARIANTS: [Variant; 3] = [
    Variant {
        name: "the paper's bandwidths",
        mb_s: |array| array.paper_mb_s,
        repair: Repair::Fewest,
    },
    Variant { name: "with the actual n", mb_s: |array| array.right_mb_s, repair: Repair::Fewest },
    Variant {
        name: "with the actual n, load-aware",
        mb_s: |array| array.right_mb_s,
        repair: Repair::LoadAware,
    },
];

/// The result of a run: MB/s overall and in each interval, and seconds.
struct Outcome {
    mb_s: f64,
    series: Vec<f64>,
    seconds: f64,
}

found!(Outcome: mb_s, series, seconds);

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let Some(first) = p.arrays.first() else { return Err(lab.wrong("no arrays")) };
    let mut cells = Vec::new();
    for disk_mib in &p.disk_mib {
        let bed = lab.bed(&p.model, disk_mib / lab.options.divide.clamp(1, 4), p.unit_kib)?;
        let cell = |array, mb_s, repair| Cell { bed: bed.clone(), array, mb_s, repair };
        cells.push(cell(first, None, Repair::Fewest));
        for Variant { mb_s, repair, .. } in VARIANTS {
            cells.extend(p.arrays.iter().map(|array| cell(array, Some(mb_s(array)), repair)));
        }
    }
    lab.study(
        &cells,
        |cell| {
            let Cell { array, mb_s, repair, .. } = cell;
            format!("{}, recovery at {mb_s:?} MB/s, {repair:?}", array.name)
        },
        |cell| p.measure(cell, lab),
        |outcomes| {
            let (panels, notes) = p.panels(&outcomes);
            let disk = cells.first().map(|cell| cell.bed.model.title.to_owned());
            Results { disk, notes, panels, ..Results::default() }
        },
    )
}

impl Parameters {
    fn panels(&self, outcomes: &[Outcome]) -> (Vec<Panel>, Vec<String>) {
        let mut start = Panel::bars("reads when the recovery starts", "code", "normal RAID-6 = 1");
        let mut time = Panel::bars("time until all is normal again", "code", "LRC = 1");
        let (mut panels, mut notes) = (Vec::new(), Vec::new());
        let of_sizes = outcomes.chunks(1 + VARIANTS.len() * self.arrays.len());
        for (number, (disk_mib, outcomes)) in self.disk_mib.iter().zip(of_sizes).enumerate() {
            let normal = outcomes[0].mb_s;
            let of_size = if number == 0 { String::new() } else { format!(", {disk_mib} MiB") };
            let variants = VARIANTS.iter().map(|variant| format!("{}{of_size}", variant.name));
            for (name, outcomes) in variants.zip(outcomes[1..].chunks(self.arrays.len())) {
                panels.push(self.over_time(&name, outcomes, normal));
                let begin = |outcome: &Outcome| {
                    let part = (outcome.series.len() / 10).max(1);
                    mean(&outcome.series[..part]) / normal
                };
                start = start.with(&name, self.by_array(outcomes, begin));
                let lrc = self.arrays.iter().position(|array| array.name == "LRC").unwrap_or(0);
                let lrc = outcomes[lrc].seconds;
                time = time.with(&name, self.by_array(outcomes, |outcome| outcome.seconds / lrc));
            }
            notes.push(format!(
                "{disk_mib} MiB of each disk: normal random reads of RAID-6: {normal:.0} MB/s; the paper measured 1310 MB/s"
            ));
        }
        panels.extend([start, time]);
        notes.push(format!(
            "regions of {} MiB; times are scaled to disks of {} MiB",
            self.region_mib, self.whole_disk_mib
        ));
        (panels, notes)
    }

    fn measure(&self, cell: &Cell<'_>, lab: &Lab<'_>) -> Result<Outcome, String> {
        let bed = &cell.bed;
        let setup = ArraySetup {
            region_bytes: Some(self.region_mib << 20),
            ..bed.setup(cell.array.code, cell.array.disks)
        };
        let slowest = self.arrays.iter().map(|a| a.paper_mb_s.min(a.right_mb_s)).min();
        let interval = bed.disk_bytes * SECOND / (slowest.unwrap_or(1) << 20) / INTERVALS;
        let ended = match cell.mb_s {
            None => Ended::After((self.requests / lab.options.divide).max(1)),
            Some(_) => Ended::WhenHealthy,
        };
        let load = Load {
            access: Access::RandomRead,
            bytes: self.kib << 10,
            depth: self.depth,
            ended,
            interval: Some(interval),
        };
        let (recovery, repair) = (cell.mb_s.map(|mb_s| mb_s << 20), cell.repair);
        let scale = f64::from(self.whole_disk_mib) * seconds(SECOND)
            / (real(bed.disk_bytes) / f64::from(1 << 20));
        on_bench(&setup, move |bench| async move {
            bench.load_aware_repairs(repair == Repair::LoadAware);
            if let Some(bytes_s) = recovery {
                bench.fail([0]).await?;
                bench.rebuild(bytes_s).await?;
            }
            let measured = bench.drive(load).await?;
            let mut series: Vec<f64> = measured.series.iter().map(|b| mb_s(*b, interval)).collect();
            // The last interval is cut short by the end.
            series.pop();
            Ok(Outcome { mb_s: measured.mb_s(), series, seconds: seconds(measured.ns) * scale })
        })
    }

    fn over_time(&self, name: &str, outcomes: &[Outcome], normal: f64) -> Panel {
        let title = format!("random reads during recovery, {name}");
        let mut panel = Panel::lines(title, "seconds, of a whole disk", "normal RAID-6 = 1");
        for (array, outcome) in self.arrays.iter().zip(outcomes) {
            let all = outcome.series.len().max(1);
            let step = outcome.seconds / count(all);
            let points = outcome.series.iter().enumerate();
            let points = points.map(|(i, mb_s)| Point::at((count(i) + 0.5) * step, mb_s / normal));
            panel = panel.with(&array.name, points.collect());
        }
        panel
    }

    fn by_array(&self, outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Vec<Point> {
        let point = |(array, outcome): (&Array, &Outcome)| Point::new(&array.name, of(outcome));
        self.arrays.iter().zip(outcomes).map(point).collect()
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / count(numbers.len().max(1))
}

fn count(n: usize) -> f64 {
    real(n as u64)
}
