//! Rebuild policies compared: the effect of a recovery on users, and how long it takes.
//!
//! A trace is replayed at its own times from the failure of a disk until its replacement is
//! complete, once with each policy. Four figures are measured: mean and 99th percentile of the
//! response times of all requests meanwhile, the time of the rebuild, and the time until 90 % of
//! the units that users read run at full speed, that is, without being reconstructed: the end of
//! the last interval with fewer. The last interval ends with the recovery, so without redirection
//! this is the time of the rebuild.
//!
//! A *sweep* changes one parameter of the first policy, and keeps all others.

use serde::Deserialize;
use weft_array::RebuildPolicy;
use weft_model::Model;
use weft_rt::{MILLISECOND, SECOND};
use weft_trace::Record;

use super::trace::Trace;
use crate::bench::{Bed, Recovered, Recovery, recover};
use crate::figure::{Panel, Point, Shape, TraceUsed};
use crate::lab::{Found, Lab, LabError};
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
    /// The policies; the others are compared with the first.
    policies: Vec<Policy>,
    /// The cases drawn over time.
    #[serde(default)]
    courses: Vec<String>,
    /// Number of runs of each, with consecutive seeds; their mean is shown.
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

type Case = super::array::Array<Limits>;

/// The unit of an array, and its rate limits.
#[derive(Clone, Debug, Deserialize)]
struct Limits {
    unit_kib: u32,
    /// Limits of the rebuild's rate, in MD's unit of 1024 bytes per second.
    min_kib_s: u64,
    max_kib_s: Option<u64>,
}

/// A way to rebuild.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    name: String,
    #[serde(default)]
    policy: RebuildPolicy,
    #[serde(default)]
    parts: Parts,
}

impl Policy {
    fn way(&self) -> Way {
        Way { policy: self.policy.clone(), parts: self.parts.clone() }
    }
}

/// One run.
struct Cell<'a> {
    trace: usize,
    case: &'a Case,
    name: String,
    way: Way,
    repeat: u64,
}

/// A figure: its name, its unit, and its value for a run.
type Measure<'a> = (&'a str, &'a str, &'a dyn Fn(&Recovered) -> f64);

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Found, LabError> {
    let p = parameters;
    let model = Model::find(&p.model).map_err(|e| lab.wrong(e))?;
    let (mut traces, mut records) = (Vec::new(), Vec::new());
    for trace in &p.traces {
        let (used, requests) = trace.requests(p.requests, lab)?;
        traces.push(used);
        records.push(requests);
    }
    let cells = p.cells();
    for Cell { name, way, .. } in &cells {
        way.check().map_err(|e| lab.wrong(format!("{name}: {e}")))?;
    }
    let found = lab.all(
        &cells,
        |cell| format!("{}, {}, {}", p.traces[cell.trace].name, cell.case.name, cell.name),
        |cell| recover(&p.recovery(cell, model, lab), &records[cell.trace]),
    )?;
    let of_trace = found.chunks((cells.len() / p.traces.len().max(1)).max(1));
    let mut panels = Vec::new();
    for (trace, found) in p.traces.iter().zip(of_trace) {
        let mut runs = found.chunks(count(p.repeats));
        if p.sweeps.is_empty() {
            panels.extend(p.panels(trace, &runs.collect::<Vec<_>>()));
            continue;
        }
        for sweep in &p.sweeps {
            let runs: Vec<_> = runs.by_ref().take(p.cases.len() * sweep.values.len()).collect();
            panels.extend(p.swept(trace, sweep, &runs));
        }
    }
    let notes = p.notes(lab, &traces, &records);
    Ok(Found { disk: Some(model.title.to_owned()), traces, notes, panels })
}

impl Parameters {
    /// All runs: by trace; by case and policy, or by sweep, case and value; by repeat.
    fn cells(&self) -> Vec<Cell<'_>> {
        let mut ways: Vec<(&Case, String, Way)> = Vec::new();
        for sweep in &self.sweeps {
            for case in &self.cases {
                for value in &sweep.values {
                    let mut way = self.policies[0].way();
                    sweep.parameter.set(&mut way.policy, *value);
                    ways.push((case, format!("{value} {}", sweep.parameter.name()), way));
                }
            }
        }
        if self.sweeps.is_empty() {
            for case in &self.cases {
                let way = |p: &Policy| (case, p.name.clone(), p.way());
                ways.extend(self.policies.iter().map(way));
            }
        }
        let all = (0..self.traces.len()).flat_map(|trace| ways.iter().map(move |way| (trace, way)));
        let cells = all.flat_map(|(trace, (case, name, way))| {
            (0..self.repeats.max(1)).map(move |repeat| Cell {
                trace,
                case,
                name: name.clone(),
                way: way.clone(),
                repeat,
            })
        });
        cells.collect()
    }

    fn recovery(&self, cell: &Cell<'_>, model: &'static Model, lab: &Lab<'_>) -> Recovery {
        let case = cell.case;
        let bed = Bed {
            model,
            disk_bytes: self.disk_mb * 1_000_000 / lab.options.divide.clamp(1, 100),
            unit_bytes: case.more.unit_kib << 10,
            // Disks have numbers, and their seeds with them.
            seed: lab.options.seed + 1000 * cell.repeat,
        };
        Recovery {
            setup: bed.setup(case.code, case.disks),
            way: cell.way.clone(),
            min_bytes_s: case.more.min_kib_s << 10,
            max_bytes_s: case.more.max_kib_s.map(|max| max << 10),
            rate_milli: self.traces[cell.trace].rate_milli,
            interval: self.interval_ms * MILLISECOND,
        }
    }

    fn panels(&self, trace: &Trace, runs: &[&[Recovered]]) -> Vec<Panel> {
        let ways = self.policies.len();
        let mut panels = Vec::new();
        for (what, unit, of) in self.measures() {
            let mut panel = Panel::bars(format!("{what}, {}", trace.name), "array", unit);
            for (number, policy) in self.policies.iter().enumerate() {
                let rows = self.cases.iter().zip(runs.chunks(ways));
                let points = rows.map(|(case, row)| point(&case.name, row[number], of));
                panel = panel.with(&policy.name, points.collect());
            }
            panels.push(panel);
        }
        panels.push(self.compared(trace, runs));
        for (case, row) in self.cases.iter().zip(runs.chunks(ways)) {
            if self.courses.contains(&case.name) {
                panels.extend(self.course(trace, case, row));
            }
        }
        panels
    }

    fn measures(&self) -> [Measure<'_>; 6] {
        [
            ("mean response time", "ms", &|found| millis(found.all.mean_ns)),
            ("99th percentile of response times", "ms", &|found| millis(found.all.p99_ns)),
            ("rebuild time", "s", &|found| seconds(found.rebuild_ns)),
            ("time until 90 % of reads run at full speed", "s", &|found| full_speed_s(found)),
            ("reads at full speed over the recovery", "%", &|found| {
                let sum = |of: fn(&(u64, u64)) -> u64| found.units.iter().map(of).sum::<u64>();
                100.0 - 100.0 * ratio(sum(|units| units.1), sum(|units| units.0))
            }),
            ("busiest survivor", "% of the time", &|found| {
                100.0 * found.survivors_busy.iter().copied().fold(0.0, f64::max)
            }),
        ]
    }

    /// A line for each case, over the values of a parameter.
    fn swept(&self, trace: &Trace, sweep: &Sweep, runs: &[&[Recovered]]) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (what, unit, of) in self.measures() {
            let parameter = sweep.parameter.name();
            let title = format!("{what} by {parameter}, {}", trace.name);
            let mut panel = Panel::lines(title, parameter, unit);
            panel.shape = Shape::LogLines;
            for (case, row) in self.cases.iter().zip(runs.chunks(sweep.values.len())) {
                let at = |(value, runs): (&u32, &&[Recovered])| Point {
                    at: f64::from(*value),
                    ..point(&value.to_string(), runs, of)
                };
                panel = panel.with(&case.name, sweep.values.iter().zip(row).map(at).collect());
            }
            panels.push(panel);
        }
        panels
    }

    /// By how much the mean response time of each policy is below the first one's.
    fn compared(&self, trace: &Trace, runs: &[&[Recovered]]) -> Panel {
        let title = format!("mean response time below {}'s, {}", self.policies[0].name, trace.name);
        let mut panel = Panel::bars(title, "array", "%");
        let mean = |runs: &[Recovered]| runs.iter().map(|run| run.all.mean_ns).sum::<u64>();
        for (number, policy) in self.policies.iter().enumerate().skip(1) {
            let below = |(case, row): (&Case, &[&[Recovered]])| {
                Point::new(&case.name, 100.0 - 100.0 * ratio(mean(row[number]), mean(row[0])))
            };
            let rows = self.cases.iter().zip(runs.chunks(self.policies.len()));
            panel = panel.with(&policy.name, rows.map(below).collect());
        }
        panel
    }

    /// Response times, and the share of reads at full speed, over the recovery.
    fn course(&self, trace: &Trace, case: &Case, row: &[&[Recovered]]) -> [Panel; 2] {
        let of = format!("over the recovery, {}, {}", trace.name, case.name);
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
            let points = (0..).zip(&found.units).map(|(index, (read, slow))| {
                Point::at(at(index), 100.0 - 100.0 * ratio(*slow, *read))
            });
            speed = speed.with(&policy.name, points.collect());
        }
        [times, speed]
    }

    fn notes(&self, lab: &Lab<'_>, traces: &[TraceUsed], records: &[Vec<Record>]) -> Vec<String> {
        let mut notes = vec![format!(
            "open loop, addresses scaled onto the array, {} MB of each disk; what the trace writes is kept, and its reads are compared",
            self.disk_mb / lab.options.divide.clamp(1, 100)
        )];
        for ((trace, used), records) in self.traces.iter().zip(traces).zip(records) {
            let reads = records.iter().filter(|r| r.op == weft_trace::Op::Read).count();
            notes.push(format!(
                "{}: {} requests, again and again, {:.2} a second, {:.1} % reads",
                used.name,
                used.requests,
                f64::from(trace.rate_milli) / 1000.0,
                100.0 * ratio(reads as u64, records.len() as u64),
            ));
        }
        notes
    }
}

/// The mean of some runs.
fn point(x: &str, runs: &[Recovered], of: &dyn Fn(&Recovered) -> f64) -> Point {
    match runs {
        [run] => Point::new(x, of(run)),
        runs => Point::mean(x, &runs.iter().map(of).collect::<Vec<_>>()),
    }
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

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn millis(ns: u64) -> f64 {
    ns as f64 / MILLISECOND as f64
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND as f64
}
