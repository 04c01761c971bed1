//! Ways to reshape an array compared: how long the reshape takes, and how long users wait
//! meanwhile.
//!
//! A trace is replayed at its own times from the begin of a reshape to its end, with each policy on
//! disks of its own. Response times count from when a request was due. With `--divide` a part of
//! each disk is used, and the times of reshapes are scaled up to all of it. That leaves out what
//! does not scale: the first windows are as small on any disk, and users' seeks are shorter on a
//! part.

use std::rc::Rc;

use serde::Deserialize;
use weft_model::{Model, Scheduler};
use weft_rt::{MILLISECOND, Nanos, Rng, SECOND};
use weft_trace::Record;

use super::trace::Trace;
use crate::figure::{Panel, Point};
use crate::lab::{Lab, LabError, Results};
use crate::reshape::{Grow, Measured, Pacing, Run, Way, measure};

/// Cases and policies: all are combined.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// Its write cache, on or off; `None`: the product's default.
    write_cache: Option<bool>,
    /// MiB used of each disk.
    disk_mib: u64,
    /// Requests of a trace that are used before it repeats.
    requests: usize,
    /// Milliseconds of an interval, scaled as the reshape.
    interval_ms: u64,
    /// Number of runs of each, with different seeds.
    repeats: u64,
    traces: Vec<Trace>,
    cases: Vec<Case>,
    /// The policies; the others are compared with the first.
    policies: Vec<Policy>,
    /// The cases drawn over time.
    #[serde(default)]
    courses: Vec<String>,
}

/// An array, its load, and what the policies may use.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// The trace; none: no users.
    trace: Option<String>,
    disks: usize,
    added: usize,
    unit_kib: u64,
    /// KiB of buffers for each disk.
    buffer_kib: u64,
    /// Bounds of MD's speed control, in its unit of 1024 bytes per second.
    min_kib_s: u64,
    max_kib_s: Option<u64>,
    /// The mean response time at which policies with a target aim; `None`: they have none.
    target_ms: Option<u32>,
    /// Commands that a disk accepts at a time; `None`: the product's number.
    queue_depth: Option<u32>,
}

/// A policy, and how fast it runs.
#[derive(Clone, Debug, Deserialize)]
struct Policy {
    name: String,
    pacing: Pacing,
    #[serde(flatten)]
    way: Way,
}

/// One run.
struct Cell<'a> {
    case: &'a Case,
    policy: &'a Policy,
    repeat: u64,
}

/// The runs of a policy.
type Runs<'a> = &'a [Measured];

/// A reshape of whole disks that takes longer is given up.
const PATIENCE: Nanos = 30_000 * SECOND;

/// A figure: its name, its unit, and its value for a run.
type Measure = (&'static str, &'static str, fn(&Measured, f64) -> f64);

const MEASURES: &[Measure] = &[
    (RESPONSE, "ms", |found, _| millis(found.users.mean_ns)),
    ("99th percentile of response times", "ms", |found, _| millis(found.users.p99_ns)),
    (TIME, "s", |found, scale| scale * seconds(found.took_ns)),
    ("metadata updates", "in the simulated part", |found, _| number(found.counted.checkpoints)),
];
const RESPONSE: &str = "mean response time";
const TIME: &str = "redistribution time";

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Results, LabError> {
    let p = parameters;
    let model = Model::find(&p.model).map_err(|e| lab.wrong(e))?;
    let model = p.write_cache.map_or(*model, |on| model.with_write_cache(on));
    let (mut traces, mut records) = (Vec::new(), Vec::new());
    for trace in &p.traces {
        let (used, requests) = trace.requests(p.requests, lab)?;
        if requests.is_empty() {
            return Err(lab.wrong(format!("the trace {} holds no request", trace.name)));
        }
        traces.push(used);
        records.push(requests);
    }
    for case in &p.cases {
        p.trace_of(case).map_err(|e| lab.wrong(e))?;
    }
    let repeats = p.repeats.max(1);
    let mut cells = Vec::new();
    for case in &p.cases {
        for policy in &p.policies {
            cells.extend((0..repeats).map(|repeat| Cell { case, policy, repeat }));
        }
    }
    let found = lab.all(
        &cells,
        |cell| format!("{}, {}", cell.case.name, cell.policy.name),
        |cell| p.measure(cell, &model, &records, lab),
    )?;
    let runs: Vec<&[Measured]> =
        found.chunks(usize::try_from(repeats).unwrap_or(usize::MAX)).collect();
    let rows: Vec<&[&[Measured]]> = runs.chunks(p.policies.len()).collect();
    let notes = p.notes(&rows, lab);
    let panels = p.panels(&rows, number(p.divide(lab)));
    Ok(Results { disk: Some(model.title.to_owned()), traces, notes, panels })
}

impl Parameters {
    fn divide(&self, lab: &Lab<'_>) -> u64 {
        lab.options.divide.clamp(1, self.disk_mib / 64)
    }

    /// The number of a case's trace, if it has one.
    fn trace_of(&self, case: &Case) -> Result<Option<usize>, String> {
        let Some(name) = &case.trace else { return Ok(None) };
        let number = self.traces.iter().position(|trace| trace.name == *name);
        number.map(Some).ok_or_else(|| format!("no trace is named {name}"))
    }

    fn measure(
        &self,
        cell: &Cell<'_>,
        model: &Model,
        records: &[Vec<Record>],
        lab: &Lab<'_>,
    ) -> Result<Measured, String> {
        let Cell { case, policy, repeat } = *cell;
        // Disks have numbers, and their seeds with them.
        let seed = lab.options.seed + 1000 * repeat;
        let users = self.trace_of(case)?.map(|number| {
            let first = Rng::new(seed).below(records[number].len() as u64);
            let first = usize::try_from(first).unwrap_or(0);
            (Rc::from(&records[number][..]), self.traces[number].rate_milli, first)
        });
        let scheduler = Scheduler { queue_depth: case.queue_depth, ..Scheduler::default() };
        measure(&Run {
            grow: Grow {
                disks: case.disks,
                added: case.added,
                disk_bytes: (self.disk_mib << 20) / self.divide(lab),
                unit_bytes: case.unit_kib << 10,
            },
            model: model.with_scheduler(scheduler),
            seed,
            way: policy.way.clone(),
            pacing: policy.pacing,
            buffer_bytes: case.buffer_kib << 10,
            target: case.target_ms.map(|ms| u64::from(ms) * MILLISECOND),
            min_bytes_s: case.min_kib_s << 10,
            max_bytes_s: case.max_kib_s.map(|max| max << 10),
            users,
            interval: self.interval_ms * MILLISECOND / self.divide(lab),
            patience: PATIENCE / self.divide(lab),
        })
    }

    /// `rows`: the runs of each policy, by case.
    fn panels(&self, rows: &[&[Runs<'_>]], scale: f64) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (title, unit, of) in MEASURES {
            let loaded = |case: &Case| *unit != "ms" || case.trace.is_some();
            let cases = || self.cases.iter().zip(rows).filter(|(case, _)| loaded(case));
            let panel = Panel::bars(*title, "array", *unit);
            panels.push(self.policies.iter().enumerate().fold(panel, |panel, (number, policy)| {
                let points = cases().map(|(case, row)| {
                    let runs = row[number].iter().map(|run| of(run, scale));
                    Point::mean(&case.name, &runs.collect::<Vec<_>>())
                });
                panel.with(&policy.name, points.collect())
            }));
            if ![RESPONSE, TIME].contains(title) {
                continue;
            }
            let title = format!("{title} below {}'s", self.policies[0].name);
            let mut panel = Panel::bars(title, "array", "%");
            for (number, policy) in self.policies.iter().enumerate().skip(1) {
                let points = cases().map(|(case, row)| {
                    let pairs = row[number].iter().zip(row[0]);
                    let below = pairs.map(|(a, b)| 100.0 - 100.0 * of(a, scale) / of(b, scale));
                    Point::mean(&case.name, &below.collect::<Vec<_>>())
                });
                panel = panel.with(&policy.name, points.collect());
            }
            panels.push(panel);
        }
        for (case, row) in self.cases.iter().zip(rows) {
            if self.courses.contains(&case.name) {
                panels.push(self.course(case, row, scale));
            }
        }
        panels
    }

    /// Response times over the reshape.
    fn course(&self, case: &Case, row: &[Runs<'_>], scale: f64) -> Panel {
        let title = format!("response time over the reshape, {}", case.name);
        let panel = Panel::lines(title, "seconds", "ms");
        self.policies.iter().zip(row).fold(panel, |panel, (policy, runs)| {
            let points = runs[0].series.iter().map(|point| {
                let at = scale * seconds(point.at_ns + point.len_ns / 2);
                Point::at(at, millis(point.latency.mean_ns))
            });
            panel.with(&policy.name, points.collect())
        })
    }

    fn notes(&self, rows: &[&[Runs<'_>]], lab: &Lab<'_>) -> Vec<String> {
        let mut notes = vec![format!(
            "open loop, addresses scaled onto the array, {} MiB of each disk, without data",
            self.disk_mib / self.divide(lab)
        )];
        if self.divide(lab) > 1 {
            notes.push("--divide: redistribution times are scaled up to the whole disk".into());
        }
        let rates = self.traces.iter().map(|trace| {
            format!("{}: {:.2} requests a second", trace.name, f64::from(trace.rate_milli) / 1e3)
        });
        notes.extend(rates);
        for (case, row) in self.cases.iter().zip(rows) {
            for (policy, runs) in self.policies.iter().zip(*row) {
                if runs.iter().any(|run| !run.ended) {
                    notes.push(format!(
                        "{}, {}: given up after {} s, the reshape does not end",
                        case.name,
                        policy.name,
                        PATIENCE / SECOND
                    ));
                }
            }
        }
        notes
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count for people")]
fn number(n: u64) -> f64 {
    n as f64
}

fn millis(ns: u64) -> f64 {
    number(ns) / number(MILLISECOND)
}

fn seconds(ns: u64) -> f64 {
    number(ns) / number(SECOND)
}
