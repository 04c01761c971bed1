//! Rebuild policies compared: the effect of a recovery on users, and how long it takes.
//!
//! A trace is replayed at its own times from the failure of a disk until its replacement is
//! complete, with each policy. Measured are the time of the rebuild, the response times of all
//! requests during it, and the time until 90 % of the units that users read run at full speed, that
//! is, without being reconstructed: the end of the last interval with fewer. The last interval ends
//! with the recovery, so without redirection this is the time of the rebuild.
//!
//! Over its own rebuild a policy that takes twice as long is flattered: half of its requests come
//! when most data are back. So response times are also given over *equal time*, from the failure to
//! the end of the slowest policy.
//!
//! Runs are repeated with other seeds; a seed sets the angles of the disks and the request with
//! which the trace starts. The figure shows the mean, the least and the greatest.
//!
//! A *sweep* changes one parameter of the first policy, and keeps the rest.

use serde::Deserialize;
use weft_array::RebuildPolicy;
use weft_code::CodeSpec;
use weft_model::{Model, Scheduler};
use weft_rt::{MILLISECOND, Rng};
use weft_trace::Record;

use super::table::Table;
use super::trace::Trace;
use crate::bench::{Bed, Recovered, Recovery, recover};
use crate::figure::{Panel, Point, Shape, TraceUsed};
use crate::lab::{Lab, Ran, Results};
use crate::modelled::ArraySetup;
use crate::number::{below, millis, seconds, share};
use crate::rebuild::{Parts, Way};

/// Traces, arrays and policies: all are combined. With sweeps, only the first policy is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// Millions of bytes used of each.
    disk_mb: u64,
    /// Requests of a trace that are used before it repeats.
    requests: usize,
    /// Milliseconds of an interval.
    interval_ms: u64,
    traces: Vec<Trace>,
    cases: Vec<Case>,
    /// The policies; the remaining ones are compared with the first.
    policies: Vec<Policy>,
    /// The cases drawn over time.
    #[serde(default)]
    courses: Vec<String>,
    /// Number of runs of each, with different seeds.
    #[serde(default = "once")]
    repeats: u64,
    /// Parameters that are swept.
    #[serde(default)]
    sweeps: Vec<Sweep>,
}

fn once() -> u64 {
    1
}

/// A parameter, and the values that it takes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sweep {
    parameter: Parameter,
    values: Vec<u32>,
}

/// The parameters that can be swept.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Parameter {
    ZoneStripes,
    Zones,
    SliceStripes,
    HalfLifeMs,
}

impl Parameter {
    fn set(self, policy: &mut RebuildPolicy, value: u32) {
        match self {
            Self::ZoneStripes => policy.zone_stripes = value.into(),
            Self::Zones => policy.zones = value as usize,
            Self::SliceStripes => policy.slice_stripes = value.into(),
            Self::HalfLifeMs => policy.half_life_ms = value.into(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ZoneStripes => "stripes of a zone",
            Self::Zones => "zones",
            Self::SliceStripes => "stripes of a slice",
            Self::HalfLifeMs => "half-life in ms",
        }
    }
}

/// An array, its rate limits, and changes to its regions and its disks' schedulers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Its name in the paper.
    name: String,
    code: CodeSpec,
    disks: usize,
    unit_kib: u32,
    /// Limits of the rebuild's rate, in MD's unit of 1024 bytes per second.
    min_kib_s: u64,
    max_kib_s: Option<u64>,
    region_mib: Option<u64>,
    age_limit_ms: Option<u32>,
    queue_depth: Option<u32>,
}

/// A way to rebuild.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    pub(super) name: String,
    #[serde(default)]
    policy: RebuildPolicy,
    #[serde(default)]
    parts: Parts,
}

impl Policy {
    pub(super) fn way(&self) -> Way {
        Way { policy: self.policy.clone(), parts: self.parts.clone() }
    }
}

/// The ways to rebuild an array that are compared: the policies, or the values of a sweep.
struct Set<'a> {
    case: &'a Case,
    ways: Vec<Way>,
}

/// One run: all ways of a set, at the same time.
struct Cell<'a> {
    trace: usize,
    set: &'a Set<'a>,
    repeat: u64,
}

/// A figure: its name, its unit, and its value for a run.
type Measure = (&'static str, &'static str, fn(&Recovered) -> f64);

/// A mean response time.
type Mean = fn(&Recovered) -> u64;

const MEASURES: &[Measure] = &[
    ("mean response time", "ms", |found| millis(found.own.mean_ns)),
    ("99th percentile of response times", "ms", |found| millis(found.own.p99_ns)),
    (EQUAL_MEAN, "ms", |found| millis(found.equal.mean_ns)),
    (EQUAL_P99, "ms", |found| millis(found.equal.p99_ns)),
    (REBUILD, "s", |found| seconds(found.rebuild_ns)),
    ("time until 90 % of reads run at full speed", "s", full_speed_s),
    ("reads at full speed over the recovery", "%", |found| {
        let sum = |of: fn(&(u64, u64)) -> u64| found.units.iter().map(of).sum::<u64>();
        at_full_speed(sum(|units| units.0), sum(|units| units.1))
    }),
    ("busiest survivor", "% of the time", |found| {
        100.0 * found.survivors_busy.iter().copied().fold(0.0, f64::max)
    }),
];

/// What a policy is judged by; less is better.
const RANKED: [&str; 3] = [EQUAL_MEAN, EQUAL_P99, REBUILD];
const EQUAL_MEAN: &str = "mean response time over equal time";
const EQUAL_P99: &str = "99th percentile of response times over equal time";
const REBUILD: &str = "rebuild time";

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let model = lab.model(&p.model)?;
    let (traces, records) = lab.traces(&p.traces, p.requests)?;
    let sets = p.sets();
    for way in sets.iter().flat_map(|set| &set.ways) {
        way.check().map_err(|e| lab.wrong(e))?;
    }
    let repeats = p.repeats.max(1);
    let mut cells = Vec::new();
    for trace in 0..p.traces.len() {
        for set in &sets {
            cells.extend((0..repeats).map(|repeat| Cell { trace, set, repeat }));
        }
    }
    lab.study(
        &cells,
        |cell| format!("{}, {}", p.traces[cell.trace].name, cell.set.case.name),
        |cell| recover(&p.recoveries(cell, model, lab, &records[cell.trace]), &records[cell.trace]),
        |found| {
            let mut notes = p.notes(lab, &traces, &records);
            let mut panels = Vec::new();
            let of_traces = found.chunks(sets.len() * count(repeats));
            for (trace, found) in p.traces.iter().zip(of_traces) {
                if p.sweeps.is_empty() {
                    let table = p.table(p.policies.iter().map(|policy| policy.name.clone()), found);
                    panels.extend(p.panels(trace, &table));
                    notes.extend(p.behind(trace, &table));
                }
                let of_sweeps = found.chunks(p.cases.len() * count(repeats));
                for (sweep, found) in p.sweeps.iter().zip(of_sweeps) {
                    let table = p.table(sweep.values.iter().map(u32::to_string), found);
                    panels.extend(swept(trace, sweep, &table));
                }
            }
            Results { disk: Some(model.title.to_owned()), traces, notes, panels }
        },
    )
}

impl Parameters {
    /// The runs of each case and way, from those of each cell.
    fn table(
        &self,
        ways: impl ExactSizeIterator<Item = String>,
        found: &[Vec<Recovered>],
    ) -> Table<Recovered> {
        let count_of_ways = ways.len();
        let runs = found.chunks(count(self.repeats)).flat_map(|repeats| {
            let of = |way: usize| repeats.iter().map(|run| run[way].clone()).collect();
            (0..count_of_ways).map(of).collect::<Vec<_>>()
        });
        Table::all(self.cases.iter().map(|case| &case.name), ways, runs).remove(0)
    }

    /// What is compared: the policies on each array, or the values of each sweep.
    fn sets(&self) -> Vec<Set<'_>> {
        if self.sweeps.is_empty() {
            let ways = || self.policies.iter().map(Policy::way).collect();
            return self.cases.iter().map(|case| Set { case, ways: ways() }).collect();
        }
        let with = |sweep: &Sweep, value: &u32| {
            let mut way = self.policies[0].way();
            sweep.parameter.set(&mut way.policy, *value);
            way
        };
        let mut sets = Vec::new();
        for sweep in &self.sweeps {
            let ways = || sweep.values.iter().map(|value| with(sweep, value)).collect();
            sets.extend(self.cases.iter().map(|case| Set { case, ways: ways() }));
        }
        sets
    }

    fn recoveries(
        &self,
        cell: &Cell<'_>,
        model: &'static Model,
        lab: &Lab<'_>,
        records: &[Record],
    ) -> Vec<Recovery> {
        let case = cell.set.case;
        let Case { unit_kib, min_kib_s, max_kib_s, region_mib, age_limit_ms, queue_depth, .. } =
            *case;
        let bed = Bed {
            model,
            disk_bytes: self.disk_mb * 1_000_000 / lab.options.divide.clamp(1, 100),
            unit_bytes: unit_kib << 10,
            // Disks have numbers, and their seeds with them.
            seed: lab.options.seed + 1000 * cell.repeat,
        };
        let first = Rng::new(bed.seed).below(records.len() as u64);
        let recovery = |way: &Way| Recovery {
            setup: ArraySetup {
                region_bytes: region_mib.map(|mib| mib << 20),
                scheduler: Scheduler { age_limit_ms, queue_depth },
                ..bed.setup(case.code, case.disks)
            },
            way: way.clone(),
            cache: None,
            min_bytes_s: min_kib_s << 10,
            max_bytes_s: max_kib_s.map(|max| max << 10),
            rate_milli: self.traces[cell.trace].rate_milli,
            first: usize::try_from(first).unwrap_or(0),
            interval: self.interval_ms * MILLISECOND,
        };
        cell.set.ways.iter().map(recovery).collect()
    }

    fn panels(&self, trace: &Trace, table: &Table<Recovered>) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (what, unit, of) in MEASURES {
            let panel = Panel::bars(format!("{what}, {}", trace.name), "array", *unit);
            panels.push(table.panel(panel, of));
        }
        let means: [(&str, Mean); 2] =
            [("", |run| run.own.mean_ns), (" over equal time", |run| run.equal.mean_ns)];
        for (over, mean_ns) in means {
            let first = &self.policies[0].name;
            let title = format!("mean response time{over} below {first}'s, {}", trace.name);
            let all = self.policies.iter().enumerate().skip(1);
            panels.push(all.fold(Panel::bars(title, "array", "%"), |panel, (number, policy)| {
                let below = |a: &_, b: &_| 100.0 - 100.0 * share(mean_ns(a), mean_ns(b));
                panel.with(&policy.name, table.compared(number, 0, below))
            }));
        }
        for (case, row) in table.rows().filter(|(case, _)| self.courses.contains(case)) {
            panels.extend(self.course(trace, case, row));
        }
        panels
    }

    /// Where the last policy, weft's, is not ahead of all others in the most important measure.
    fn behind(&self, trace: &Trace, table: &Table<Recovered>) -> Vec<String> {
        let Some((last, others)) = self.policies.split_last() else { return Vec::new() };
        let mut notes = Vec::new();
        for (what, _, of) in MEASURES.iter().filter(|(what, ..)| RANKED.contains(what)) {
            let means: Vec<Vec<Point>> =
                (0..self.policies.len()).map(|policy| table.points(policy, of)).collect();
            let mut ahead = Vec::new();
            for (number, case) in self.cases.iter().enumerate() {
                let mean = |policy: usize| means[policy][number].ours;
                let own = mean(others.len());
                let best = (0..others.len()).min_by(|a, b| mean(*a).total_cmp(&mean(*b)));
                if let Some(best) = best.filter(|best| mean(*best) < own) {
                    let by = below(mean(best), own);
                    ahead.push(format!("{} ({}, {by:.0} %)", case.name, others[best].name));
                }
            }
            if !ahead.is_empty() {
                let of = format!("{what}, {}", trace.name);
                notes.push(format!("{of}: {} is not ahead on {}", last.name, ahead.join(", ")));
            }
        }
        notes
    }

    /// Response times, and the share of reads at full speed, over the recovery.
    fn course(&self, trace: &Trace, case: &str, row: &[Vec<Recovered>]) -> [Panel; 2] {
        let of = format!("over the recovery, {}, {case}", trace.name);
        let mut times = Panel::lines(format!("response time {of}"), "seconds", "ms");
        let mut speed = Panel::lines(format!("reads at full speed {of}"), "seconds", "%");
        let step = self.interval_ms * MILLISECOND;
        for (policy, runs) in self.policies.iter().zip(row) {
            let found = &runs[0];
            let at = |index: u64| seconds(index * step + step / 2);
            let points = found
                .series
                .iter()
                .map(|point| Point::at(at(point.at_ns / step), millis(point.latency.mean_ns)));
            times = times.with(&policy.name, points.collect());
            let points = (0..)
                .zip(&found.units)
                .map(|(index, (read, slow))| Point::at(at(index), at_full_speed(*read, *slow)));
            speed = speed.with(&policy.name, points.collect());
        }
        [times, speed]
    }

    fn notes(&self, lab: &Lab<'_>, traces: &[TraceUsed], records: &[Vec<Record>]) -> Vec<String> {
        let mut notes = vec![format!(
            "open loop, addresses scaled onto the array, {} MB of each disk; what the trace writes is kept, and its reads are compared",
            self.disk_mb / lab.options.divide.clamp(1, 100)
        )];
        if lab.options.divide > 1 {
            notes.push(
                "--divide: a recovery is shorter by this factor and sees less of the trace's bursts and habits, so that who is ahead may differ from the full run"
                    .into(),
            );
        }
        if self.repeats > 1 {
            notes.push(format!(
                "means of {} seeds, each with the least and the greatest; a seed also sets the request with which a trace begins",
                self.repeats
            ));
        }
        for ((trace, used), records) in self.traces.iter().zip(traces).zip(records) {
            let reads = records.iter().filter(|r| r.op == weft_trace::Op::Read).count();
            notes.push(format!(
                "{}: {} requests, again and again, {:.2} a second, {:.1} % reads",
                used.name,
                used.requests,
                f64::from(trace.rate_milli) / 1000.0,
                100.0 * share(reads as u64, records.len() as u64),
            ));
        }
        notes
    }
}

/// A line for each case, over the values of a parameter.
fn swept(trace: &Trace, sweep: &Sweep, table: &Table<Recovered>) -> Vec<Panel> {
    let panel = |(what, unit, of): &Measure| {
        let parameter = sweep.parameter.name();
        let title = format!("{what} by {parameter}, {}", trace.name);
        let panel = Panel { shape: Shape::LogLines, ..Panel::lines(title, parameter, *unit) };
        table.rows().fold(panel, |panel, (case, row)| {
            let at = |(value, runs): (&u32, &Vec<Recovered>)| {
                let numbers: Vec<f64> = runs.iter().map(of).collect();
                Point { at: f64::from(*value), ..Point::spread(value.to_string(), &numbers) }
            };
            panel.with(case, sweep.values.iter().zip(row).map(at).collect())
        })
    };
    MEASURES.iter().map(panel).collect()
}

/// Reads without reconstruction, in per cent.
fn at_full_speed(read: u64, reconstructed: u64) -> f64 {
    100.0 - 100.0 * share(reconstructed, read)
}

fn full_speed_s(found: &Recovered) -> f64 {
    let slow = found.units.iter().rposition(|(read, slow)| slow * 10 > *read);
    let end = match slow.map(|index| index + 1) {
        None => 0,
        Some(count) if count == found.units.len() => found.rebuild_ns,
        Some(count) => count as u64 * found.interval,
    };
    seconds(end)
}

fn count(n: u64) -> usize {
    usize::try_from(n.max(1)).unwrap_or(usize::MAX)
}
