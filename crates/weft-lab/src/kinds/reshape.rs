//! Ways to reshape an array compared: how long the reshape takes, and how long users wait during
//! it.
//!
//! A trace is replayed at its own times from the start of a reshape to its end, with each policy on
//! disks of its own. Response times count from when a request was due. With `--divide` a part of
//! each disk is used, and the times of reshapes are scaled up to all of it. That leaves out what
//! does not scale: the first windows are as small on any disk, and users' seeks are shorter on a
//! part.

use std::rc::Rc;

use serde::Deserialize;
use weft_model::{Model, Scheduler};
use weft_rt::{MILLISECOND, Nanos, Rng, SECOND};
use weft_trace::Record;

use super::table::Table;
use super::trace::Trace;
use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Results};
use crate::number::{below, millis, real, seconds};
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
    /// The policies; the remaining ones are compared with the first.
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

/// A reshape of whole disks that takes longer is stopped.
const PATIENCE: Nanos = 30_000 * SECOND;

/// A figure: its name, its unit, and its value for a run.
type Measure = (&'static str, &'static str, fn(&Measured, f64) -> f64);

const MEASURES: &[Measure] = &[
    (RESPONSE, "ms", |found, _| millis(found.users.mean_ns)),
    ("99th percentile of response times", "ms", |found, _| millis(found.users.p99_ns)),
    (TIME, "s", |found, scale| scale * seconds(found.took_ns)),
    ("metadata updates", "in the simulated part", |found, _| real(found.counted.checkpoints)),
];
const RESPONSE: &str = "mean response time";
const TIME: &str = "redistribution time";

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let model = lab.model(&p.model)?;
    let model = p.write_cache.map_or(*model, |on| model.with_write_cache(on));
    let (traces, records) = lab.traces(&p.traces, p.requests)?;
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
    lab.study(
        &cells,
        |cell| format!("{}, {}", cell.case.name, cell.policy.name),
        |cell| p.measure(cell, &model, &records, lab),
        |found| {
            let runs = found.chunks(usize::try_from(repeats).unwrap_or(usize::MAX));
            let policies = p.policies.iter().map(|policy| policy.name.clone());
            let cases = p.cases.iter().map(|case| &case.name);
            let table = Table::all(cases, policies, runs.map(<[_]>::to_vec)).remove(0);
            let notes = p.notes(&table, lab);
            let panels = p.panels(&table, real(p.divide(lab)));
            Results { disk: Some(model.title.to_owned()), traces, notes, panels }
        },
    )
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

    fn panels(&self, table: &Table<Measured>, scale: f64) -> Vec<Panel> {
        let loaded =
            |name: &str| self.cases.iter().any(|case| case.name == name && case.trace.is_some());
        let mut panels = Vec::new();
        for (title, unit, of) in MEASURES {
            let table = table.only(|case| *unit != "ms" || loaded(case));
            panels.push(table.panel(Panel::bars(*title, "array", *unit), |run| of(run, scale)));
            if ![RESPONSE, TIME].contains(title) {
                continue;
            }
            let title = format!("{title} below {}'s", self.policies[0].name);
            let all = self.policies.iter().enumerate().skip(1);
            panels.push(all.fold(Panel::bars(title, "array", "%"), |panel, (number, policy)| {
                let by = |a: &&Measured, b: &&Measured| below(of(a, scale), of(b, scale));
                panel.with(&policy.name, table.compared(number, 0, by))
            }));
        }
        let courses = table.rows().filter(|(case, _)| self.courses.contains(case));
        panels.extend(courses.map(|(case, row)| self.course(case, row, scale)));
        panels
    }

    /// Response times over the reshape.
    fn course(&self, case: &str, row: &[Vec<Measured>], scale: f64) -> Panel {
        let title = format!("response time over the reshape, {case}");
        let panel = Panel::lines(title, "seconds", "ms");
        self.policies.iter().zip(row).fold(panel, |panel, (policy, runs)| {
            let points = runs[0].series.iter().map(|point| {
                let at = scale * seconds(point.at_ns + point.len_ns / 2);
                Point::at(at, millis(point.latency.mean_ns))
            });
            panel.with(&policy.name, points.collect())
        })
    }

    fn notes(&self, table: &Table<Measured>, lab: &Lab<'_>) -> Vec<String> {
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
        for (case, row) in table.rows() {
            for (policy, runs) in self.policies.iter().zip(row) {
                if runs.iter().any(|run| !run.ended) {
                    notes.push(format!(
                        "{case}, {}: given up after {} s, the reshape does not end",
                        policy.name,
                        PATIENCE / SECOND
                    ));
                }
            }
        }
        notes
    }
}
