//! The rate at which a degraded array with a block cache above it serves users, without a rebuild:
//! by policy of the cache, and number of threads.
//!
//! The first half of the trace fills the cache; in the middle of it a disk is lost. Then a number
//! of threads requests what follows, without pauses. The rate counts the blocks that users
//! requested, cached or not. The paper's §3.2 states that it is at most BW / RGR: the gain of a
//! policy over its base is predicted as the ratio of their RGR.

use serde::Deserialize;
use weft_cache::Choice;
use weft_rt::SECOND;

use super::array::Array;
use super::cache::{choices, weighed};
use super::table::{Table, greatest};
use super::trace::Trace;
use crate::bench::{Bed, CacheSetup, Served, Service, serve};
use crate::figure::Panel;
use crate::lab::{Lab, Ran, Results};
use crate::modelled::ArraySetup;
use crate::number::real;

/// Arrays, caches, policies and numbers of threads: all are combined.
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
    threads: Vec<usize>,
    /// Requests of the trace; half of them fill the cache, the rest are measured.
    requests: usize,
    measured: usize,
    repeats: u64,
    trace: Trace,
    arrays: Vec<Array>,
    /// Policies of the cache by their names.
    policies: Vec<String>,
}

/// One run of one policy.
struct Cell<'a> {
    blocks: usize,
    array: &'a Array,
    threads: usize,
    choice: Choice,
    data_units: usize,
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
            for threads in &p.threads {
                let (blocks, threads) = (*blocks, *threads);
                let cell =
                    |choice: &Choice| Cell { blocks, array, threads, choice: *choice, data_units };
                cells.extend(policies.iter().map(cell));
            }
        }
    }
    let measured = (p.measured / lab.divide()).max(1);
    lab.study(
        &cells,
        |cell| format!("{} blocks, {}, {}", cell.blocks, cell.array.name, cell.choice),
        |cell| {
            let one = |repeat: u64| {
                let records = &traces[usize::try_from(repeat).unwrap_or(0) % traces.len()];
                let bed = Bed {
                    model,
                    disk_bytes: p.data_mb * 1_000_000 / cell.data_units as u64,
                    unit_bytes: p.unit_kib << 10,
                    seed: lab.options.seed + 1000 * repeat,
                };
                let service = Service {
                    setup: ArraySetup {
                        region_bytes: None,
                        ..bed.setup(cell.array.code, cell.array.disks)
                    },
                    cache: CacheSetup {
                        choice: cell.choice,
                        blocks: cell.blocks,
                        healthy: records.len() / 4,
                    },
                    threads: cell.threads,
                    first: records.len() / 2,
                    requests: measured,
                };
                serve(&service, records)
            };
            (0..p.repeats).map(one).collect()
        },
        |runs| {
            let loads = p.loads();
            let tables = Table::all(&loads, policies.iter().map(Choice::to_string), runs);
            let notes = vec![
                format!(
                    "the first {} requests fill the cache, half of them after the loss, {measured} are measured; addresses scaled onto {} MB of data",
                    traces[0].len() / 2,
                    p.data_mb
                ),
                format!("means of {} seeds, each with the least and the greatest", p.repeats),
            ];
            let (disk, panels) = (Some(model.title.to_owned()), p.panels(&policies, &tables));
            Results { disk, traces: vec![used], notes, panels }
        },
    )
}

impl Parameters {
    /// The arrays and numbers of threads, named by what there is more of.
    fn loads(&self) -> Vec<String> {
        let load = |array: &Array, threads| match (self.arrays.len(), self.threads.len()) {
            (1, _) => format!("{threads} threads"),
            (_, 1) => array.name.clone(),
            _ => format!("{}, {threads} threads", array.name),
        };
        let of = |array| self.threads.iter().map(move |threads| load(array, threads));
        self.arrays.iter().flat_map(of).collect()
    }

    fn panels(&self, policies: &[Choice], tables: &[Table<Served>]) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (blocks, table) in self.blocks.iter().zip(tables) {
            let panel = Panel::bars(format!("service rate, {blocks} blocks"), "load", "blocks/s");
            panels.push(table.panel(panel, rate));
            let title = format!("service rate above the base's, {blocks} blocks");
            let panel = Panel::bars(title, "load", "%");
            panels.push(weighed(policies).iter().fold(panel, |panel, (policy, base)| {
                let choice = policies[*policy];
                let predicted = |run: &Served, base: &Served| {
                    100.0 * base.cache.rgr() / run.cache.rgr() - 100.0
                };
                panel
                    .with(choice.to_string(), table.compared(*policy, *base, gain))
                    .with(format!("{choice}, by RGR"), table.compared(*policy, *base, predicted))
            }));
        }
        let panel = Panel::bars("greatest gain of the service rate", "policy", "%");
        panels.push(panel.with(&self.trace.name, greatest(tables, weighed(policies), gain)));
        panels
    }
}

/// Blocks requested and served in a second.
fn rate(served: &Served) -> f64 {
    real(served.cache.requests()) * real(SECOND) / real(served.ns.max(1))
}

fn gain(served: &Served, base: &Served) -> f64 {
    100.0 * rate(served) / rate(base) - 100.0
}
