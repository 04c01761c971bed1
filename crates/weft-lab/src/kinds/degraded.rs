//! Reads and writes with failed disks: every position, one and two failures, on modelled disks.

use serde::Deserialize;
use weft_code::sets;
use weft_model::DiskStats;

use super::array::Array;
use crate::bench::{Access, Bed, Ended, Load, on_bench};
use crate::figure::{Panel, Point};
use crate::found::found;
use crate::lab::{Lab, Ran, Repair, Results};

/// Arrays and loads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// MiB used of each.
    disk_mib: u64,
    /// KiB of a unit.
    unit_kib: u32,
    /// How users' reads are repaired; each way gets bars of its own.
    #[serde(default = "load_aware")]
    repairs: Vec<Repair>,
    /// Largest number of failures.
    failures: usize,
    arrays: Vec<Array>,
    loads: Vec<Named>,
    /// Also the rate with these slots failed, in MB/s.
    #[serde(default)]
    rates: Vec<Vec<usize>>,
}

fn load_aware() -> Vec<Repair> {
    vec![Repair::LoadAware]
}

/// A load with its name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    access: Access,
    kib: u64,
    depth: u64,
    requests: u64,
    /// Sets of failed slots for which the disks' utilisation is shown.
    #[serde(default)]
    utilisation: Vec<Vec<usize>>,
}

/// One run: an array, a load, failed slots.
struct Cell<'a> {
    array: &'a Array,
    load: &'a Named,
    repair: Repair,
    failed: Vec<usize>,
}

/// The result of a run.
struct Outcome {
    mb_s: f64,
    busy: Vec<f64>,
}

found!(Outcome: mb_s, busy);

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let bed = lab.bed(&parameters.model, parameters.disk_mib, parameters.unit_kib)?;
    let mut cells = Vec::new();
    for load in &parameters.loads {
        for array in &parameters.arrays {
            for failed in (0..=parameters.failures).flat_map(|f| sets(array.disks, f)) {
                let failed: Vec<usize> = failed.iter().collect();
                // Without failures there is nothing to repair.
                let ways = if failed.is_empty() { 1 } else { parameters.repairs.len() };
                let cell =
                    |repair: &Repair| Cell { array, load, repair: *repair, failed: failed.clone() };
                cells.extend(parameters.repairs.iter().take(ways).map(cell));
            }
        }
    }
    lab.study(
        &cells,
        |cell| {
            let Cell { array, load, repair, failed } = cell;
            format!("{}, {}, failed {failed:?}, {repair:?}", array.name, load.name)
        },
        |cell| parameters.measure(cell, &bed, lab),
        |outcomes| {
            let runs: Vec<(&Cell<'_>, &Outcome)> = cells.iter().zip(&outcomes).collect();
            let disk = Some(bed.model.title.to_owned());
            Results { disk, panels: parameters.panels(&runs), ..Results::default() }
        },
    )
}

impl Parameters {
    fn panels(&self, runs: &[(&Cell<'_>, &Outcome)]) -> Vec<Panel> {
        let mut panels = Vec::new();
        for load in &self.loads {
            let of_load = runs.iter().filter(|(cell, _)| std::ptr::eq(cell.load, load));
            let of_load: Vec<_> = of_load.copied().collect();
            panels.extend((1..=self.failures).map(|failed| self.speeds(load, failed, &of_load)));
            panels.push(self.rate_panel(load, &of_load));
            let busy = |failed: &Vec<usize>| self.utilisation_panel(load, failed, &of_load);
            panels.extend(load.utilisation.iter().map(busy));
        }
        panels
    }

    fn measure(&self, cell: &Cell<'_>, bed: &Bed, lab: &Lab<'_>) -> Result<Outcome, String> {
        let setup = bed.setup(cell.array.code, cell.array.disks);
        let load = Load {
            access: cell.load.access,
            bytes: cell.load.kib << 10,
            depth: cell.load.depth,
            ended: Ended::After((cell.load.requests / lab.options.divide).max(1)),
            interval: None,
        };
        let (failed, repair) = (cell.failed.clone(), cell.repair);
        on_bench(&setup, move |bench| async move {
            bench.load_aware_repairs(repair == Repair::LoadAware);
            bench.fail(failed).await?;
            let measured = bench.drive(load).await?;
            if matches!(load.access, Access::RandomWrite | Access::SequentialWrite) {
                bench.verify().await?;
            }
            let busy = measured.stats.iter().map(DiskStats::utilisation).collect();
            Ok(Outcome { mb_s: measured.mb_s(), busy })
        })
    }

    /// A series' name, with the repair if there are several.
    fn named(&self, series: &str, repair: Repair) -> String {
        match repair {
            Repair::LoadAware if self.repairs.len() > 1 => format!("{series}, load-aware"),
            _ => series.to_owned(),
        }
    }

    /// Speed with this many failed, relative to each array's own normal speed.
    fn speeds(&self, load: &Named, failures: usize, runs: &[(&Cell<'_>, &Outcome)]) -> Panel {
        let speeds = |array: &Array, repair: Repair| {
            let of_array = || runs.iter().filter(|(cell, _)| std::ptr::eq(cell.array, array));
            let normal = of_array().find(|(cell, _)| cell.failed.is_empty())?.1.mb_s;
            let speeds = of_array()
                .filter(|(cell, _)| cell.failed.len() == failures && cell.repair == repair);
            Some(speeds.map(|(_, outcome)| outcome.mb_s / normal).collect::<Vec<f64>>())
        };
        let least = |speeds: Vec<f64>| speeds.into_iter().fold(f64::INFINITY, f64::min);
        let mut panel = Panel::bars(
            format!("{}, {failures} failed", load.name),
            "code; whiskers: all positions of the failed disks",
            "throughput, normal = 1",
        );
        for repair in self.repairs.iter().copied() {
            let mean = |array: &Array| Some(Point::mean(&array.name, &speeds(array, repair)?));
            let worst =
                |array: &Array| Some(Point::new(&array.name, least(speeds(array, repair)?)));
            panel = panel
                .with(
                    self.named("mean over positions", repair),
                    self.arrays.iter().filter_map(mean).collect(),
                )
                .with(
                    self.named("worst position", repair),
                    self.arrays.iter().filter_map(worst).collect(),
                );
        }
        panel
    }

    /// Rates in MB/s, without failures and with given ones.
    fn rate_panel(&self, load: &Named, runs: &[(&Cell<'_>, &Outcome)]) -> Panel {
        let mut panel = Panel::bars(format!("{}, rates", load.name), "code", "MB/s");
        let normal = self.by_array(runs, &[], self.repairs.first(), |o| o.mb_s);
        panel = panel.with("normal", normal);
        for failed in &self.rates {
            for repair in &self.repairs {
                let name = self.named(&format!("failed {}", slots(failed)), *repair);
                panel = panel.with(name, self.by_array(runs, failed, Some(repair), |o| o.mb_s));
            }
        }
        panel
    }

    fn by_array(
        &self,
        runs: &[(&Cell<'_>, &Outcome)],
        failed: &[usize],
        repair: Option<&Repair>,
        of: impl Fn(&Outcome) -> f64,
    ) -> Vec<Point> {
        let run = |array: &Array| {
            runs.iter().find(|(cell, _)| {
                std::ptr::eq(cell.array, array)
                    && cell.failed == failed
                    && Some(&cell.repair) == repair
            })
        };
        let point = |array: &Array| run(array).map(|(_, o)| Point::new(&array.name, of(o)));
        self.arrays.iter().filter_map(point).collect()
    }

    /// How busy each disk was.
    fn utilisation_panel(
        &self,
        load: &Named,
        failed: &[usize],
        runs: &[(&Cell<'_>, &Outcome)],
    ) -> Panel {
        let title = format!("{}, utilisation with {} failed", load.name, slots(failed));
        let mut panel = Panel::bars(title, "disk", "busy, %");
        for (cell, outcome) in runs.iter().filter(|(cell, _)| cell.failed == failed) {
            let points = outcome.busy.iter().enumerate();
            let points = points.filter(|(slot, _)| !failed.contains(slot));
            let points = points.map(|(slot, busy)| Point::new(format!("#{slot}"), busy * 100.0));
            panel = panel.with(self.named(&cell.array.name, cell.repair), points.collect());
        }
        panel
    }
}

/// `#0 and #1`.
fn slots(failed: &[usize]) -> String {
    let names: Vec<String> = failed.iter().map(|slot| format!("#{slot}")).collect();
    names.join(" and ")
}
