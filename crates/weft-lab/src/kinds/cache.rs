//! A block cache above a degraded array: blocks read from the surviving disks for each block that
//! users request (RGR), by policy and size of the cache.
//!
//! Only the cache runs; no disk is modelled. The first half of the trace fills it while nothing is
//! lost. Then disks are lost, and the second half is counted. A miss reads what the repair planner
//! says: one block, or the fewest that give a lost one.
//!
//! Runs are repeated. Of a generated workload each run has a seed of its own; in each, other disks
//! are lost. The figure shows the mean, the least and the greatest.

use std::cell;

use serde::Deserialize;
use weft_cache::{Base, Block, Cache, Choice, Penalty};
use weft_code::{Code, UnitSet};
use weft_layout::Layout;
use weft_trace::Record;

use super::trace::Trace;
use crate::figure::{Panel, Point, TraceUsed};
use crate::lab::{Found, Lab, LabError};

/// A trace, arrays, caches and policies: all are combined.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// KiB of a block.
    block_kib: u64,
    /// KiB of a unit of the array.
    unit_kib: u64,
    /// Sizes of the cache, in blocks.
    blocks: Vec<usize>,
    /// Requests of the trace.
    requests: usize,
    repeats: u64,
    trace: Trace,
    arrays: Vec<Array>,
    /// Policies by their names.
    policies: Vec<String>,
    /// Whether the lost disks are rebuilt meanwhile, in ascending order.
    #[serde(default)]
    rebuild: bool,
}

type Array = super::array::Array<Lost>;

/// What an array has lost.
#[derive(Clone, Debug, Deserialize)]
struct Lost {
    /// Number of disks.
    lost: usize,
}

/// The places of an array's blocks, and what a miss of each reads.
struct Costs {
    blocks_per_unit: u64,
    /// Slot and penalty of the data units of a period of stripes.
    units: Vec<(u16, u32)>,
    generation: u64,
    /// Blocks below this number are rebuilt.
    rebuilt: cell::Cell<u64>,
}

impl Costs {
    fn new(
        code: &Code,
        layout: &dyn Layout,
        lost: &[usize],
        blocks_per_unit: u64,
    ) -> Result<Self, String> {
        let mut units = Vec::new();
        for stripe in 0..code.period() * layout.period() {
            let slot = |unit: &usize| layout.place(stripe, *unit).slot.0;
            let is_lost = |unit: &usize| lost.contains(&slot(unit));
            let gone: UnitSet = (0..code.width()).filter(is_lost).collect();
            for unit in 0..code.k() {
                let plan = code.plan(stripe, gone, UnitSet::one(unit), &|_| 1);
                let reads = plan.map_err(|e| e.to_string())?.reads.iter().count();
                let number = u16::try_from(slot(&unit)).map_err(|e| e.to_string())?;
                units.push((number, u32::try_from(reads).map_err(|e| e.to_string())?));
            }
        }
        Ok(Self {
            blocks_per_unit,
            units,
            generation: lost.len() as u64,
            rebuilt: cell::Cell::new(0),
        })
    }

    fn unit(&self, key: u64) -> (u16, u32) {
        let unit = key / self.blocks_per_unit % self.units.len() as u64;
        self.units[usize::try_from(unit).unwrap_or(0)]
    }
}

impl Penalty for Costs {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn progress(&self) -> u64 {
        self.rebuilt.get()
    }

    fn of(&self, block: Block) -> u32 {
        if block.key < self.rebuilt.get() { 1 } else { self.unit(block.key).1 }
    }
}

/// One run.
struct Cell<'a> {
    array: &'a Array,
    code: Code,
    layout: Box<dyn Layout>,
    blocks: usize,
    choice: Choice,
}

/// What a run found: hit ratios before and after the loss, and RGR.
#[derive(Clone, Copy)]
struct Ratios {
    healthy: f64,
    degraded: f64,
    rgr: f64,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Found, LabError> {
    let p = parameters;
    let policies = p.policies.iter().map(|name| name.parse::<Choice>());
    let policies = policies.collect::<Result<Vec<_>, _>>().map_err(|e| lab.wrong(e))?;
    let (used, traces) = p.traces(lab)?;
    let divide = usize::try_from(lab.options.divide.max(1)).unwrap_or(usize::MAX);
    let mut cells = Vec::new();
    for blocks in &p.blocks {
        for array in &p.arrays {
            for choice in &policies {
                let code = lab.code(array.code, array.disks)?;
                let layout = lab.layout(array.code, array.disks)?;
                let blocks = (blocks / divide).max(1);
                cells.push(Cell { array, code, layout, blocks, choice: *choice });
            }
        }
    }
    let found = lab.all(
        &cells,
        |cell| format!("{} blocks, {}, {}", cell.blocks, cell.array.name, cell.choice),
        |cell| (0..p.repeats).map(|repeat| p.ratios(cell, repeat, &traces)).collect(),
    )?;
    let rows: Vec<&[Vec<Ratios>]> = found.chunks(policies.len()).collect();
    Ok(Found { traces: vec![used], panels: p.panels(&policies, &rows), ..Found::default() })
}

impl Parameters {
    /// The blocks that each run requests, in their order. Recorded requests are the same for all
    /// runs.
    fn traces(&self, lab: &Lab<'_>) -> Result<(TraceUsed, Vec<Vec<u64>>), LabError> {
        let divide = usize::try_from(lab.options.divide.max(1)).unwrap_or(usize::MAX);
        let (used, reads) = self.trace.reads(self.requests / divide, self.repeats, lab)?;
        let block_bytes = self.block_kib << 10;
        let blocks = |record: &Record| {
            // Volumes are far from one another.
            let base = u64::from(record.device) << 40;
            let last = (record.end() - 1) / block_bytes;
            (record.offset / block_bytes..=last).map(move |block| base + block)
        };
        let traces = reads.iter().map(|reads| reads.iter().flat_map(blocks).collect());
        Ok((used, traces.collect()))
    }

    fn ratios(&self, cell: &Cell<'_>, repeat: u64, traces: &[Vec<u64>]) -> Result<Ratios, String> {
        let repeat = usize::try_from(repeat).map_err(|e| e.to_string())?;
        let trace = &traces[repeat % traces.len()];
        let Array { disks, more: Lost { lost }, .. } = *cell.array;
        let lost: Vec<usize> = (0..lost).map(|number| (repeat + number) % disks).collect();
        let blocks_per_unit = (self.unit_kib / self.block_kib).max(1);
        let costs = |lost: &[usize]| Costs::new(&cell.code, &*cell.layout, lost, blocks_per_unit);
        let (whole, degraded) = (costs(&[])?, costs(&lost)?);
        let mut cache =
            Cache::<()>::new(cell.choice, cell.blocks, disks).map_err(|e| e.to_string())?;
        let most = trace.iter().max().map_or(0, |most| most + 1);
        let mut pass = |requests: &[u64], costs: &Costs| {
            for (number, key) in (0..).zip(requests) {
                if self.rebuild {
                    costs.rebuilt.set(most * number / requests.len() as u64);
                }
                cache.request(Block { key: *key, class: costs.unit(*key).0 }, costs);
            }
            cache.take_stats()
        };
        let (first, counted) = trace.split_at(trace.len() / 2);
        let (filling, full) = first.split_at(first.len() / 2);
        pass(filling, &whole);
        let before = pass(full, &whole);
        let after = pass(counted, &degraded);
        Ok(Ratios { healthy: before.hit_ratio(), degraded: after.hit_ratio(), rgr: after.rgr() })
    }

    /// `rows`: the runs of each policy, by size of the cache and array.
    fn panels(&self, policies: &[Choice], rows: &[&[Vec<Ratios>]]) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (blocks, rows) in self.blocks.iter().zip(rows.chunks(self.arrays.len())) {
            let size = format!("{blocks} blocks");
            let panel = |title: &str, unit: &str, of: fn(&Ratios) -> f64| {
                let panel = Panel::bars(format!("{title}, {size}"), "array", unit);
                policies.iter().enumerate().fold(panel, |panel, (number, choice)| {
                    let points = self.arrays.iter().zip(rows).map(|(array, row)| {
                        Point::mean(&array.name, &row[number].iter().map(of).collect::<Vec<_>>())
                    });
                    panel.with(choice.to_string(), points.collect())
                })
            };
            panels.push(panel("RGR", "blocks read for each requested", |found| found.rgr));
            panels.push(panel("hits", "%", |found| 100.0 * found.degraded));
            panels.push(panel("hits with nothing lost", "%", |found| 100.0 * found.healthy));
            let below = Panel::bars(format!("RGR below the base policy's, {size}"), "array", "%");
            let weighed = || policies.iter().enumerate().filter(|(_, choice)| choice.victim_first);
            panels.push(weighed().fold(below, |panel, (number, choice)| {
                let points = self.arrays.iter().zip(rows).filter_map(|(array, row)| {
                    let reductions = reductions(policies, number, row)?;
                    Some(Point::mean(&array.name, &reductions))
                });
                panel.with(choice.to_string(), points.collect())
            }));
        }
        panels.push(self.greatest(policies, rows));
        panels
    }

    /// The greatest reduction that each policy reaches with any array and size.
    fn greatest(&self, policies: &[Choice], rows: &[&[Vec<Ratios>]]) -> Panel {
        let weighed = policies.iter().enumerate().filter(|(_, choice)| choice.victim_first);
        let points = weighed.filter_map(|(number, choice)| {
            let all = rows.iter().filter_map(|row| reductions(policies, number, row));
            let points = all.map(|reductions| Point::mean(choice.to_string(), &reductions));
            points.max_by(|a, b| a.ours.total_cmp(&b.ours))
        });
        let panel = Panel::bars("greatest reduction of RGR", "policy", "%");
        panel.with(&self.trace.name, points.collect())
    }
}

/// The number of the base of a weighed policy among the others. GreedyDual is compared with LRU.
pub(super) fn base_of(policies: &[Choice], number: usize) -> Option<usize> {
    let Choice { base, victim_first } = policies[number];
    let base = if base == Base::GreedyDual { Base::Lru } else { base };
    let plain = Choice { base, victim_first: false };
    policies.iter().position(|choice| *choice == plain).filter(|_| victim_first)
}

/// By how much the RGR of a policy is below that of its base, run by run, in per cent.
fn reductions(policies: &[Choice], number: usize, row: &[Vec<Ratios>]) -> Option<Vec<f64>> {
    let pairs = row[number].iter().zip(&row[base_of(policies, number)?]);
    Some(pairs.map(|(weighed, plain)| 100.0 - 100.0 * weighed.rgr / plain.rgr).collect())
}
