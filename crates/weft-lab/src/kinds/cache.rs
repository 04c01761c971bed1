//! A block cache above a degraded array: blocks read from the surviving disks for each block that
//! users request (RGR), by policy and size of the cache.
//!
//! Only the cache runs; no disk is modelled. The first half of the trace fills it while nothing is
//! lost. Then disks are lost, and the second half is counted. A miss reads the units that the
//! repair planner selects: one block, or the fewest that give a lost one.
//!
//! RGR is counted as the paper does it; and once more as the engine reads a lost block, which takes
//! the cached blocks of its stripe from the cache and only the rest from disks.
//!
//! Runs are repeated. Of a generated workload each run has a seed of its own; in each, other disks
//! are lost. The figure shows the mean, the least and the greatest.

use std::cell::{self, RefCell};

use serde::Deserialize;
use weft_cache::{Base, Block, Cache, Choice, Penalty, Stats};
use weft_code::{Code, CodeSpec, PlanCache, UnitSet};
use weft_layout::Layout;
use weft_trace::Record;

use super::table::{Table, greatest};
use super::trace::Trace;
use crate::figure::{Panel, TraceUsed};
use crate::found::found;
use crate::lab::{Lab, LabError, Ran, Results};
use crate::number::below;

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
    /// Whether the lost disks are rebuilt during it, in ascending order.
    #[serde(default)]
    rebuild: bool,
}

/// An array, and what it has lost.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Array {
    /// Its name in the paper.
    name: String,
    code: CodeSpec,
    disks: usize,
    /// Number of lost disks.
    lost: usize,
}

/// The places of an array's blocks, and what a miss of each reads.
struct Costs<'a> {
    code: &'a Code,
    blocks_per_unit: u64,
    /// Of each stripe of a period: the lost units, and slot and penalty of the data units.
    stripes: Vec<(UnitSet, Vec<(u16, u32)>)>,
    generation: u64,
    /// Blocks below this number are rebuilt.
    rebuilt: cell::Cell<u64>,
    plans: RefCell<PlanCache>,
}

/// Plans that are kept: all that come up with the usual arrays.
const PLANS: usize = 1 << 16;

impl<'a> Costs<'a> {
    fn new(
        code: &'a Code,
        layout: &dyn Layout,
        lost: &[usize],
        blocks_per_unit: u64,
    ) -> Result<Self, String> {
        let stripe = |stripe: u64| {
            let slot = |unit: &usize| layout.place(stripe, *unit).slot.0;
            let is_lost = |unit: &usize| lost.contains(&slot(unit));
            let gone: UnitSet = (0..code.width()).filter(is_lost).collect();
            let unit = |unit: usize| {
                let plan = code.plan(stripe, gone, UnitSet::one(unit), &|_| 1);
                let reads = plan.map_err(|e| e.to_string())?.reads.iter().count();
                let number = u16::try_from(slot(&unit)).map_err(|e| e.to_string())?;
                Ok((number, u32::try_from(reads).map_err(|e| e.to_string())?))
            };
            Ok((gone, (0..code.k()).map(unit).collect::<Result<_, String>>()?))
        };
        let stripes = (0..code.period() * layout.period()).map(stripe);
        Ok(Self {
            code,
            blocks_per_unit,
            stripes: stripes.collect::<Result<_, String>>()?,
            generation: lost.len() as u64,
            rebuilt: cell::Cell::new(0),
            plans: RefCell::new(PlanCache::new(PLANS)),
        })
    }

    /// The stripe of a block, and its unit there.
    fn place(&self, key: u64) -> (u64, usize) {
        let (unit, units) = (key / self.blocks_per_unit, self.code.k() as u64);
        (unit / units, usize::try_from(unit % units).unwrap_or(0))
    }

    fn stripe(&self, stripe: u64) -> &(UnitSet, Vec<(u16, u32)>) {
        let number = stripe % self.stripes.len() as u64;
        &self.stripes[usize::try_from(number).unwrap_or(0)]
    }

    fn class(&self, key: u64) -> u16 {
        let (stripe, unit) = self.place(key);
        self.stripe(stripe).1[unit].0
    }

    /// How many of the blocks that a miss of `key` reads could be taken from the cache instead, as
    /// the engine does it.
    fn spared(&self, key: u64, is_cached: impl Fn(u64) -> bool) -> u32 {
        let (stripe, unit) = self.place(key);
        let (lost, units) = self.stripe(stripe);
        if !lost.contains(unit) || key < self.rebuilt.get() {
            return 0;
        }
        let first = key - unit as u64 * self.blocks_per_unit;
        let sibling = |other: usize| first + other as u64 * self.blocks_per_unit;
        let others = (0..units.len()).filter(|other| *other != unit);
        let held: UnitSet = others.filter(|other| is_cached(sibling(*other))).collect();
        let (lost, wanted) = (lost.difference(&held), UnitSet::one(unit));
        let number = stripe % self.stripes.len() as u64;
        let plan = self.plans.borrow_mut().plan(self.code, number, lost, wanted, held);
        plan.map_or(0, |plan| {
            let reads = u32::try_from(plan.reads.difference(&held).len()).unwrap_or(u32::MAX);
            units[unit].1.saturating_sub(reads)
        })
    }
}

impl Penalty for Costs<'_> {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn progress(&self) -> u64 {
        self.rebuilt.get()
    }

    fn of(&self, block: Block) -> u32 {
        let (stripe, unit) = self.place(block.key);
        if block.key < self.rebuilt.get() { 1 } else { self.stripe(stripe).1[unit].1 }
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

/// What a run found: hit ratios before and after the loss, and RGR: as the paper counts it, and if
/// cached blocks help to reconstruct other blocks of their stripes.
#[derive(Clone, Copy)]
struct Ratios {
    healthy: f64,
    degraded: f64,
    rgr: f64,
    helped: f64,
}

found!(Ratios: healthy, degraded, rgr, helped);

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let policies = choices(&p.policies, lab)?;
    let (used, traces) = p.traces(lab)?;
    let mut cells = Vec::new();
    for blocks in &p.blocks {
        for array in &p.arrays {
            for choice in &policies {
                let code = lab.code(array.code, array.disks)?;
                let layout = lab.layout(array.code, array.disks)?;
                let blocks = (blocks / lab.divide()).max(1);
                cells.push(Cell { array, code, layout, blocks, choice: *choice });
            }
        }
    }
    lab.study(
        &cells,
        |cell| format!("{} blocks, {}, {}", cell.blocks, cell.array.name, cell.choice),
        |cell| (0..p.repeats).map(|repeat| p.ratios(cell, repeat, &traces)).collect(),
        |runs| {
            let arrays = p.arrays.iter().map(|array| &array.name);
            let tables = Table::all(arrays, policies.iter().map(Choice::to_string), runs);
            let panels = p.panels(&policies, &tables);
            Results { traces: vec![used], panels, ..Results::default() }
        },
    )
}

impl Parameters {
    /// The blocks that each run requests, in their order. Recorded requests are the same for all
    /// runs.
    fn traces(&self, lab: &Lab<'_>) -> Result<(TraceUsed, Vec<Vec<u64>>), LabError> {
        let (used, reads) = self.trace.reads(self.requests / lab.divide(), self.repeats, lab)?;
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
        let Array { disks, lost, .. } = *cell.array;
        let lost: Vec<usize> = (0..lost).map(|number| (repeat + number) % disks).collect();
        let blocks_per_unit = (self.unit_kib / self.block_kib).max(1);
        let costs = |lost: &[usize]| Costs::new(&cell.code, &*cell.layout, lost, blocks_per_unit);
        let (whole, degraded) = (costs(&[])?, costs(&lost)?);
        let mut cache =
            Cache::<()>::new(cell.choice, cell.blocks, disks).map_err(|e| e.to_string())?;
        let most = trace.iter().max().map_or(0, |most| most + 1);
        let mut pass = |requests: &[u64], costs: &Costs<'_>| {
            let mut spared = 0;
            for (number, key) in (0..).zip(requests) {
                if self.rebuild {
                    costs.rebuilt.set(most * number / requests.len() as u64);
                }
                let block = Block { key: *key, class: costs.class(*key) };
                if cache.get(block, costs).is_none() {
                    let is_cached = |key| cache.peek(key).is_some();
                    spared += u64::from(costs.spared(*key, is_cached));
                    cache.insert(block, (), costs);
                }
            }
            let stats = cache.take_stats();
            (stats, Stats { disk_blocks: stats.disk_blocks - spared, ..stats })
        };
        let (first, counted) = trace.split_at(trace.len() / 2);
        let (filling, full) = first.split_at(first.len() / 2);
        pass(filling, &whole);
        let (before, _) = pass(full, &whole);
        let (after, helped) = pass(counted, &degraded);
        Ok(Ratios {
            healthy: before.hit_ratio(),
            degraded: after.hit_ratio(),
            rgr: after.rgr(),
            helped: helped.rgr(),
        })
    }

    /// `tables`: by size of the cache.
    fn panels(&self, policies: &[Choice], tables: &[Table<Ratios>]) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (blocks, table) in self.blocks.iter().zip(tables) {
            let size = format!("{blocks} blocks");
            let panel = |title: &str, unit: &str, of: fn(&Ratios) -> f64| {
                table.panel(Panel::bars(format!("{title}, {size}"), "array", unit), of)
            };
            panels.push(panel("RGR", "blocks read for each requested", |found| found.rgr));
            let title = "RGR with cached siblings";
            panels.push(panel(title, "blocks read for each requested", |found| found.helped));
            panels.push(panel("hits", "%", |found| 100.0 * found.degraded));
            panels.push(panel("hits with nothing lost", "%", |found| 100.0 * found.healthy));
            for by in [PAPERS, HELPED] {
                let title = format!("{} below the base policy's, {size}", by.title);
                let pairs = by.compared(policies).into_iter();
                panels.push(pairs.fold(
                    Panel::bars(title, "array", "%"),
                    |panel, (policy, base)| {
                        let points =
                            table.compared(policy, base, |run, base| by.reduction(run, base));
                        panel.with(policies[policy].to_string(), points)
                    },
                ));
            }
        }
        panels.extend([PAPERS, HELPED].map(|by| {
            let of = |run: &Ratios, base: &Ratios| by.reduction(run, base);
            let points = greatest(tables, by.compared(policies), of);
            let panel = Panel::bars(format!("greatest reduction of {}", by.title), "policy", "%");
            panel.with(&self.trace.name, points)
        }));
        panels
    }
}

/// What is compared with the RGR of the base policy, whose siblings do not help.
#[derive(Clone, Copy)]
struct Measure {
    title: &'static str,
    of: fn(&Ratios) -> f64,
    /// Whether the bases are compared with themselves, too.
    bases: bool,
}

const PAPERS: Measure = Measure { title: "RGR", of: |found| found.rgr, bases: false };
const HELPED: Measure =
    Measure { title: "RGR with cached siblings", of: |found| found.helped, bases: true };

impl Measure {
    /// The numbers of the policies that are compared, and of their bases.
    fn compared(self, policies: &[Choice]) -> Vec<(usize, usize)> {
        let base = |policy: usize| match policies[policy].victim_first {
            true => base_of(policies, policy),
            false => self.bases.then_some(policy),
        };
        (0..policies.len()).filter_map(|policy| Some((policy, base(policy)?))).collect()
    }

    /// By how much a policy is below its base, in per cent.
    fn reduction(self, run: &Ratios, base: &Ratios) -> f64 {
        below((self.of)(run), base.rgr)
    }
}

/// The policies of these names.
pub(super) fn choices(names: &[String], lab: &Lab<'_>) -> Result<Vec<Choice>, LabError> {
    names.iter().map(|name| name.parse().map_err(|e| lab.wrong(e))).collect()
}

/// The weighed policies and their bases, by number.
pub(super) fn weighed(policies: &[Choice]) -> Vec<(usize, usize)> {
    let pair = |policy| Some((policy, base_of(policies, policy)?));
    (0..policies.len()).filter_map(pair).collect()
}

/// The number of the base of a weighed policy among the other policies. GreedyDual is compared with
/// LRU.
fn base_of(policies: &[Choice], number: usize) -> Option<usize> {
    let Choice { base, victim_first } = policies[number];
    let base = if base == Base::GreedyDual { Base::Lru } else { base };
    let plain = Choice { base, victim_first: false };
    policies.iter().position(|choice| *choice == plain).filter(|_| victim_first)
}
