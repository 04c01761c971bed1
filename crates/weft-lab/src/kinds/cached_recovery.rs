//! How long a recovery takes while users read through a block cache, by policy of the cache.
//!
//! The first half of the trace fills the cache; somewhere in it a disk is lost. With the second
//! half the disk is replaced, and that is replayed at its own times until the replacement is
//! complete. All that is compared runs at the same time, on disks of its own, and one rebuild
//! without users.
//!
//! The paper's equation 3, RD = Q / (BW − BW_U · RGR), needs the bandwidth of the disks in units of
//! users' requests, which a disk does not have: the cost of a read depends on all other reads. It
//! predicts a ratio, though. The rebuild without users takes RD₀ = Q / BW; with them, and the base
//! policy, RD. So users leave the share RD₀ / RD, and take u = 1 − RD₀ / RD. With the RGR less by r
//! they take u (1 − r), and the recovery is shorter by u r / (1 − u (1 − r)): equation 4.

use serde::Deserialize;
use weft_cache::Choice;
use weft_rt::{MILLISECOND, Nanos};

use super::array::Array;
use super::cache::{choices, weighed};
use super::recovery::Policy;
use super::table::{Table, greatest};
use super::trace::Trace;
use crate::bench::{Bed, CacheSetup, Recovered, Recovery, recover};
use crate::figure::Panel;
use crate::lab::{Lab, Ran, Results};
use crate::modelled::ArraySetup;
use crate::number::{below, seconds};

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
    arrays: Vec<Array>,
    /// Policies of the cache by their names.
    policies: Vec<String>,
    ways: Vec<Policy>,
}

/// With this rate, in thousandths of a request per second, one request comes in all.
const IDLE_MILLI: u32 = 1;
/// The most by which an array may be divided: it has to hold the requested blocks.
const DIVIDE_MAX: u64 = 8;
/// Length of the intervals in which a recovery is looked at.
const INTERVAL: Nanos = 1000 * MILLISECOND;

/// One run: all ways and policies, at the same time.
struct Cell<'a> {
    blocks: usize,
    array: &'a Array,
    data_units: usize,
    repeat: u64,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let model = lab.model(&p.model)?;
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
    let divide = lab.options.divide.clamp(1, DIVIDE_MAX);
    lab.study(
        &cells,
        |cell| format!("{} blocks, {}", cell.blocks, cell.array.name),
        |cell| {
            let records = &traces[usize::try_from(cell.repeat).unwrap_or(0) % traces.len()];
            let bed = Bed {
                model,
                disk_bytes: p.data_mb * 1_000_000 / divide / cell.data_units as u64,
                unit_bytes: p.unit_kib << 10,
                seed: lab.options.seed + 1000 * cell.repeat,
            };
            recover(&p.recoveries(cell, &policies, &bed, records.len() / 2), records)
        },
        |runs| {
            let panels = (0..p.ways.len()).flat_map(|way| p.panels(way, &policies, &runs));
            let first = traces[0].len() / 2;
            let notes = vec![
                format!(
                    "{:.2} requests a second at the trace's own times; the first {first} fill the cache, the last {} of them after the loss; addresses scaled onto {} MB of data",
                    f64::from(p.trace.rate_milli) / 1000.0,
                    p.degraded.min(first),
                    p.data_mb / divide
                ),
                format!("means of {} seeds, each with the least and the greatest", p.repeats),
            ];
            let (disk, panels) = (Some(model.title.to_owned()), panels.collect());
            Results { disk, traces: vec![used], notes, panels }
        },
    )
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

    /// `runs`: of each cell, in the order of [`Self::recoveries`].
    fn panels(&self, way: usize, policies: &[Choice], runs: &[Vec<Recovered>]) -> Vec<Panel> {
        let ways = self.ways.len();
        let by = if ways > 1 { format!(", {}", self.ways[way].name) } else { String::new() };
        let repeats = runs.chunks(usize::try_from(self.repeats).unwrap_or(1));
        let by_policy = repeats.flat_map(|runs| {
            (0..policies.len()).map(move |policy| {
                let run = |run: &Vec<Recovered>| Run {
                    idle: run[way].rebuild_ns,
                    loaded: run[ways + way * policies.len() + policy].clone(),
                };
                runs.iter().map(run).collect()
            })
        });
        let arrays = self.arrays.iter().map(|array| &array.name);
        let tables = Table::all(arrays, policies.iter().map(Choice::to_string), by_policy);
        let mut panels = Vec::new();
        for (blocks, table) in self.blocks.iter().zip(&tables) {
            let size = format!("{blocks} blocks{by}");
            let panel = |title: &str, unit: &str, of: &dyn Fn(&Run) -> f64| {
                table.panel(Panel::bars(format!("{title}, {size}"), "array", unit), of)
            };
            let rebuild = panel("rebuild time", "s", &|run| seconds(run.loaded.rebuild_ns));
            panels.push(rebuild.with("no users", table.points(0, |run| seconds(run.idle))));
            let less = Panel::bars(format!("rebuild time below the base's, {size}"), "array", "%");
            panels.push(weighed(policies).iter().fold(less, |panel, (policy, base)| {
                let choice = policies[*policy];
                panel.with(choice.to_string(), table.compared(*policy, *base, Run::less)).with(
                    format!("{choice}, eq. 4"),
                    table.compared(*policy, *base, Run::predicted),
                )
            }));
            panels.push(panel("RGR", "blocks read for each requested", &Run::rgr));
            panels.push(panel("mean response time over equal time", "ms", &|run| {
                seconds(run.loaded.equal.mean_ns) * 1e3
            }));
        }
        let panel =
            Panel::bars(format!("greatest reduction of the rebuild time{by}"), "policy", "%");
        let points = greatest(&tables, weighed(policies), Run::less);
        panels.push(panel.with(&self.trace.name, points));
        panels
    }
}

/// A recovery with a policy of the cache.
struct Run {
    /// Time of the same rebuild without users.
    idle: Nanos,
    loaded: Recovered,
}

impl Run {
    fn rgr(&self) -> f64 {
        self.loaded.cache.map_or(0.0, |stats| stats.rgr())
    }

    /// By how much the rebuild is shorter than with the base policy, in per cent.
    fn less(&self, base: &Self) -> f64 {
        below(seconds(self.loaded.rebuild_ns), seconds(base.loaded.rebuild_ns))
    }

    /// This rate, as equation 4 predicts it.
    fn predicted(&self, base: &Self) -> f64 {
        let taken = 1.0 - seconds(self.idle) / seconds(base.loaded.rebuild_ns);
        let left = self.rgr() / base.rgr();
        100.0 * (taken * (1.0 - left) / (1.0 - taken * left))
    }
}
