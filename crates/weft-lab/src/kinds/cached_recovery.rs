//! How long a recovery takes while users read through a block cache, by policy of the cache.
//!
//! The first half of the trace fills the cache; somewhere in it a disk is lost. With the second
//! half the disk is replaced, and that is replayed at its own times until the replacement is
//! complete. All that is compared runs at the same time, on disks of its own, and one rebuild
//! without users.
//!
//! The paper's equation 3, RD = Q / (BW − BW_U · RGR), needs the bandwidth of the disks in units of
//! users' requests, which a disk does not have: what a read costs depends on all others. It
//! predicts a ratio, though. The rebuild without users takes RD₀ = Q / BW; with them, and the base
//! policy, RD. So users leave the share RD₀ / RD, and take u = 1 − RD₀ / RD. With the RGR less by r
//! they take u (1 − r), and the recovery is shorter by u r / (1 − u (1 − r)): equation 4.

use serde::Deserialize;
use weft_cache::Choice;
use weft_model::Model;
use weft_rt::{MILLISECOND, Nanos, SECOND};

use super::cache::{base_of, choices};
use super::recovery::Policy;
use super::trace::Trace;
use crate::bench::{Bed, CacheSetup, Recovered, Recovery, recover};
use crate::figure::{Panel, Point};
use crate::lab::{Lab, LabError, Results};
use crate::modelled::ArraySetup;

/// Arrays, caches, policies of caches and ways to rebuild: all are combined.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// Millions of bytes of data in an array.
    data_mb: u64,
    /// KiB of a unit.
    unit_kib: u32,
    /// Sizes of the cache, in blocks of 4 KiB.
    blocks: Vec<usize>,
    /// Requests of the trace.
    requests: usize,
    /// Of the first half of them, those after the loss.
    degraded: usize,
    repeats: u64,
    /// The rebuild's minimum rate, in MD's unit of 1024 bytes per second.
    min_kib_s: u64,
    trace: Trace,
    arrays: Vec<super::array::Array>,
    /// Policies of the cache by their names.
    policies: Vec<String>,
    ways: Vec<Policy>,
}

/// With this rate, in thousandths of a request per second, one request comes in all.
const IDLE_MILLI: u32 = 1;
/// The most by which an array may be divided: it has to hold what is requested.
const DIVIDE_MAX: u64 = 8;
/// Length of the intervals in which a recovery is looked at.
const INTERVAL: Nanos = 1000 * MILLISECOND;

/// One run: all ways and policies, at the same time.
struct Cell<'a> {
    blocks: usize,
    array: &'a super::array::Array,
    data_units: usize,
    repeat: u64,
}

/// What one run found.
struct Found1 {
    /// Without users, by way.
    idle: Vec<Recovered>,
    /// By way and policy.
    loaded: Vec<Vec<Recovered>>,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Results, LabError> {
    let p = parameters;
    let model = Model::find(&p.model).map_err(|e| lab.wrong(e))?;
    let policies = choices(&p.policies, lab)?;
    let (used, traces) = p.trace.reads(p.requests, p.repeats, lab)?;
    let mut cells = Vec::new();
    for blocks in &p.blocks {
        for array in &p.arrays {
            let data_units = lab.code(array.code, array.disks)?.k();
            let cell = |repeat| Cell { blocks: *blocks, array, data_units, repeat };
            cells.extend((0..p.repeats).map(cell));
        }
    }
    let found = lab.all(
        &cells,
        |cell| format!("{} blocks, {}", cell.blocks, cell.array.name),
        |cell| {
            let records = &traces[usize::try_from(cell.repeat).unwrap_or(0) % traces.len()];
            let bed = Bed {
                model,
                disk_bytes: p.data_mb * 1_000_000
                    / lab.options.divide.clamp(1, DIVIDE_MAX)
                    / cell.data_units as u64,
                unit_bytes: p.unit_kib << 10,
                seed: lab.options.seed + 1000 * cell.repeat,
            };
            let recoveries = p.recoveries(cell, &policies, &bed, records.len() / 2);
            let mut all = recover(&recoveries, records)?;
            let loaded = all.split_off(p.ways.len());
            let loaded = loaded.chunks(policies.len()).map(<[Recovered]>::to_vec).collect();
            Ok(Found1 { idle: all, loaded })
        },
    )?;
    let rows: Vec<&[Found1]> = found.chunks(usize::try_from(p.repeats).unwrap_or(1)).collect();
    let mut panels = Vec::new();
    for (way, name) in p.ways.iter().enumerate() {
        panels.extend(p.panels(way, &name.name, &policies, &rows));
    }
    let notes = vec![
        format!(
            "{:.2} requests a second at the trace's own times; the first {} fill the cache, the last {} of them after the loss; addresses scaled onto {} MB of data",
            f64::from(p.trace.rate_milli) / 1000.0,
            traces[0].len() / 2,
            p.degraded.min(traces[0].len() / 2),
            p.data_mb / lab.options.divide.clamp(1, DIVIDE_MAX)
        ),
        format!("means of {} seeds, each with the least and the greatest", p.repeats),
    ];
    Ok(Results { disk: Some(model.title.to_owned()), traces: vec![used], notes, panels })
}

impl Parameters {
    /// Those without users first.
    fn recoveries(
        &self,
        cell: &Cell<'_>,
        policies: &[Choice],
        bed: &Bed,
        first: usize,
    ) -> Vec<Recovery> {
        let of = |way: &Policy, cache, rate_milli| Recovery {
            setup: ArraySetup {
                region_bytes: None,
                ..bed.setup(cell.array.code, cell.array.disks)
            },
            way: way.way(),
            cache,
            min_bytes_s: self.min_kib_s << 10,
            max_bytes_s: None,
            rate_milli,
            first,
            interval: INTERVAL,
        };
        let mut all: Vec<_> = self.ways.iter().map(|way| of(way, None, IDLE_MILLI)).collect();
        for way in &self.ways {
            let cache = |choice: &Choice| CacheSetup {
                choice: *choice,
                blocks: cell.blocks,
                healthy: first.saturating_sub(self.degraded),
            };
            let loaded = policies.iter().map(|choice| Some(cache(choice)));
            all.extend(loaded.map(|cache| of(way, cache, self.trace.rate_milli)));
        }
        all
    }

    fn panels(
        &self,
        way: usize,
        name: &str,
        policies: &[Choice],
        rows: &[&[Found1]],
    ) -> Vec<Panel> {
        let mut panels = Vec::new();
        let by = if self.ways.len() > 1 { format!(", {name}") } else { String::new() };
        let weighed = || (0..policies.len()).filter(|n| base_of(policies, *n).is_some());
        for (blocks, rows) in self.blocks.iter().zip(rows.chunks(self.arrays.len())) {
            let size = format!("{blocks} blocks{by}");
            let points = |of: &dyn Fn(&Found1) -> f64| -> Vec<Point> {
                let rows = self.arrays.iter().zip(rows);
                let runs = |row: &[Found1]| row.iter().map(of).collect::<Vec<_>>();
                rows.map(|(array, row)| Point::mean(&array.name, &runs(row))).collect()
            };
            let panel = |title: &str, unit: &str, of: &dyn Fn(&Recovered) -> f64| {
                let panel = Panel::bars(format!("{title}, {size}"), "array", unit);
                policies.iter().enumerate().fold(panel, |panel, (number, choice)| {
                    let points = points(&|run| of(&run.loaded[way][number]));
                    panel.with(choice.to_string(), points)
                })
            };
            let rebuild = panel("rebuild time", "s", &|run| seconds(run.rebuild_ns));
            panels.push(rebuild.with("no users", points(&|run| seconds(run.idle[way].rebuild_ns))));
            let less = Panel::bars(format!("rebuild time below the base's, {size}"), "array", "%");
            panels.push(weighed().fold(less, |panel, number| {
                let choice = policies[number];
                let less = points(&|run| run.less(way, policies, number).0);
                let predicted = points(&|run| run.less(way, policies, number).1);
                panel.with(choice.to_string(), less).with(format!("{choice}, eq. 4"), predicted)
            }));
            panels.push(panel("RGR", "blocks read for each requested", &rgr));
            panels.push(panel("mean response time over equal time", "ms", &|run| {
                seconds(run.equal.mean_ns) * 1e3
            }));
        }
        let greatest = weighed().filter_map(|number| {
            let less = |row: &&[Found1]| {
                let less = row.iter().map(|run| run.less(way, policies, number).0);
                Point::mean(policies[number].to_string(), &less.collect::<Vec<_>>())
            };
            rows.iter().map(less).max_by(|a, b| a.ours.total_cmp(&b.ours))
        });
        let title = format!("greatest reduction of the rebuild time{by}");
        panels.push(Panel::bars(title, "policy", "%").with(&self.trace.name, greatest.collect()));
        panels
    }
}

impl Found1 {
    /// By how much the rebuild of a policy is shorter than that of its base, in per cent, and what
    /// equation 4 says.
    fn less(&self, way: usize, policies: &[Choice], number: usize) -> (f64, f64) {
        let runs = &self.loaded[way];
        let base = &runs[base_of(policies, number).unwrap_or(number)];
        let time = |run: &Recovered| seconds(run.rebuild_ns);
        let taken = 1.0 - time(&self.idle[way]) / time(base);
        let left = rgr(&runs[number]) / rgr(base);
        let predicted = taken * (1.0 - left) / (1.0 - taken * left);
        (100.0 - 100.0 * time(&runs[number]) / time(base), 100.0 * predicted)
    }
}

fn rgr(run: &Recovered) -> f64 {
    run.cache.map_or(0.0, |stats| stats.rgr())
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn seconds(ns: Nanos) -> f64 {
    ns as f64 / SECOND as f64
}
