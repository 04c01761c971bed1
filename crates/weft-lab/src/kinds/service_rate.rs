//! The rate at which a degraded array with a block cache above it serves users, without a rebuild:
//! by policy of the cache, and number of threads.
//!
//! The first half of the trace fills the cache; in the middle of it a disk is lost. Then a number
//! of threads requests what follows, without pauses. The rate counts the blocks that users
//! requested, cached or not. The paper's §3.2 says that it is at most BW / RGR: the gain of a
//! policy over its base is predicted as the ratio of their RGR.

use serde::Deserialize;
use weft_cache::Choice;
use weft_model::Model;
use weft_rt::SECOND;

use super::cache::{base_of, choices};
use super::trace::Trace;
use crate::bench::{Bed, CacheSetup, Served, Service, serve};
use crate::figure::{Panel, Point};
use crate::lab::{Lab, LabError, Results};
use crate::modelled::ArraySetup;

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
    /// Requests of the trace, of which half fill the cache, and those that are measured.
    requests: usize,
    measured: usize,
    repeats: u64,
    trace: Trace,
    arrays: Vec<super::array::Array>,
    /// Policies of the cache by their names.
    policies: Vec<String>,
}

/// One run of one policy.
struct Cell<'a> {
    blocks: usize,
    array: &'a super::array::Array,
    threads: usize,
    choice: Choice,
    data_units: usize,
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
            for threads in &p.threads {
                let (blocks, threads) = (*blocks, *threads);
                let cell =
                    |choice: &Choice| Cell { blocks, array, threads, choice: *choice, data_units };
                cells.extend(policies.iter().map(cell));
            }
        }
    }
    let divide = usize::try_from(lab.options.divide.max(1)).unwrap_or(usize::MAX);
    let measured = (p.measured / divide).max(1);
    let found = lab.all(
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
            (0..p.repeats).map(one).collect::<Result<Vec<_>, _>>()
        },
    )?;
    let notes = vec![
        format!(
            "the first {} requests fill the cache, half of them after the loss, {measured} are measured; addresses scaled onto {} MB of data",
            traces[0].len() / 2,
            p.data_mb
        ),
        format!("means of {} seeds, each with the least and the greatest", p.repeats),
    ];
    let panels = p.panels(&policies, &found);
    Ok(Results { disk: Some(model.title.to_owned()), traces: vec![used], notes, panels })
}

impl Parameters {
    /// A panel has a point for each array and number of threads, named by what there is more of.
    fn panels(&self, policies: &[Choice], found: &[Vec<Served>]) -> Vec<Panel> {
        let rows: Vec<&[Vec<Served>]> = found.chunks(policies.len()).collect();
        let points = self.arrays.iter().flat_map(|array| {
            self.threads.iter().map(|threads| match (self.arrays.len(), self.threads.len()) {
                (1, _) => format!("{threads} threads"),
                (_, 1) => array.name.clone(),
                _ => format!("{}, {threads} threads", array.name),
            })
        });
        let points: Vec<String> = points.collect();
        let mut panels = Vec::new();
        let weighed = || {
            let all = policies.iter().enumerate();
            all.filter_map(|(number, choice)| Some((choice, number, base_of(policies, number)?)))
        };
        for (blocks, rows) in self.blocks.iter().zip(rows.chunks(points.len())) {
            let of = |what: &dyn Fn(&[Vec<Served>], usize) -> f64| -> Vec<Point> {
                let runs = |row: &[Vec<Served>]| {
                    (0..row[0].len()).map(|run| what(row, run)).collect::<Vec<_>>()
                };
                points.iter().zip(rows).map(|(name, row)| Point::mean(name, &runs(row))).collect()
            };
            let panel = Panel::bars(format!("service rate, {blocks} blocks"), "load", "blocks/s");
            panels.push(policies.iter().enumerate().fold(panel, |panel, (number, choice)| {
                panel.with(choice.to_string(), of(&|row, run| rate(row[number][run])))
            }));
            let title = format!("service rate above the base's, {blocks} blocks");
            let panel = Panel::bars(title, "load", "%");
            panels.push(weighed().fold(panel, |panel, (choice, number, base)| {
                let gain = of(&|row, run| gain(row, number, base, run));
                let predicted = of(&|row, run| {
                    100.0 * row[base][run].cache.rgr() / row[number][run].cache.rgr() - 100.0
                });
                panel.with(choice.to_string(), gain).with(format!("{choice}, by RGR"), predicted)
            }));
        }
        let greatest = weighed().filter_map(|(choice, number, base)| {
            let gains = |row: &&[Vec<Served>]| {
                let gains = (0..row[0].len()).map(|run| gain(row, number, base, run));
                Point::mean(choice.to_string(), &gains.collect::<Vec<_>>())
            };
            rows.iter().map(gains).max_by(|a, b| a.ours.total_cmp(&b.ours))
        });
        let panel = Panel::bars("greatest gain of the service rate", "policy", "%");
        panels.push(panel.with(&self.trace.name, greatest.collect()));
        panels
    }
}

/// Blocks requested and served in a second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(served: Served) -> f64 {
    served.cache.requests() as f64 * SECOND as f64 / served.ns.max(1) as f64
}

fn gain(row: &[Vec<Served>], number: usize, base: usize, run: usize) -> f64 {
    100.0 * rate(row[number][run]) / rate(row[base][run]) - 100.0
}
