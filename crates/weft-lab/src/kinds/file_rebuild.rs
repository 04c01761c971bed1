//! Files of weft's file system that are rebuilt under a trace: in their own order, and what users
//! read first.

use serde::Deserialize;
use weft_fs::Redundancy;
use weft_rt::{MILLISECOND, SECOND};

use super::table::Table;
use super::trace::Trace;
use crate::bench::{FileRebuild, FilesRebuilt, rebuild_files};
use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Results};
use crate::number::{below, millis, seconds, share};

/// Traces, and the ways in which the files that they read are stored and rebuilt.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    disks: usize,
    /// Millions of bytes used of each.
    disk_mb: u64,
    files: u64,
    /// MiB of each.
    file_mib: u64,
    /// MiB of memory for contents.
    cache_mib: u64,
    /// Requests of a trace that are used; afterwards it repeats.
    requests: usize,
    /// Milliseconds of an interval.
    interval_ms: u64,
    repeats: u64,
    /// Seconds before the loss, and seconds after it for which response times count.
    healthy_s: u64,
    observed_s: u64,
    traces: Vec<Trace>,
    systems: Vec<System>,
}

/// How files are stored and rebuilt.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    name: String,
    redundancy: String,
    order: Order,
    /// The system with which this one is compared.
    base: Option<String>,
}

/// In which order a rebuild takes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// Files in use, the most recently changed first.
    Changed,
    /// What users read of the lost disk, and then as [`Order::Changed`].
    HotParts,
}

/// One run.
struct Cell<'a> {
    trace: usize,
    system: &'a System,
    redundancy: Redundancy,
    repeat: u64,
}

/// By what sizes and times are divided at most.
const DIVIDE_MAX: u64 = 100;

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let model = lab.model(&p.model)?;
    let divide = lab.options.divide.clamp(1, DIVIDE_MAX);
    let reads = p.traces.iter().map(|trace| trace.reads(p.requests, p.repeats, lab));
    let (used, traces): (Vec<_>, Vec<_>) =
        reads.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let mut cells = Vec::new();
    for trace in 0..p.traces.len() {
        for system in &p.systems {
            let redundancy = system.redundancy.parse().map_err(|e| lab.wrong(e))?;
            let cell = |repeat| Cell { trace, system, redundancy, repeat };
            cells.extend((0..p.repeats).map(cell));
        }
    }
    lab.study(
        &cells,
        |cell| format!("{}, {}", cell.system.name, p.traces[cell.trace].name),
        |cell| {
            let runs = &traces[cell.trace];
            let records = &runs[usize::try_from(cell.repeat).unwrap_or(0) % runs.len()];
            // Each seed begins elsewhere in the trace.
            let first = usize::try_from(cell.repeat).unwrap_or(0) * records.len()
                / usize::try_from(p.repeats).unwrap_or(1);
            let setup = FileRebuild {
                model,
                disks: p.disks,
                disk_bytes: p.disk_mb * 1_000_000,
                redundancy: cell.redundancy,
                files: p.files,
                file_bytes: (p.file_mib << 20) / divide,
                cache_bytes: (p.cache_mib << 20) / divide,
                hot_parts_first: cell.system.order == Order::HotParts,
                rate_milli: p.traces[cell.trace].rate_milli,
                first,
                interval: p.interval_ms * MILLISECOND / divide,
                healthy: p.healthy_s * SECOND / divide,
                observed: p.observed_s * SECOND / divide,
                seed: lab.options.seed + 1000 * cell.repeat,
            };
            rebuild_files(&setup, records)
        },
        |rebuilt| {
            let notes = vec![
                format!(
                    "open loop, reads only, at the trace's own times; addresses scaled onto {} files of {} MiB; {} disks, {} MiB of memory for contents",
                    p.files,
                    p.file_mib / divide,
                    p.disks,
                    p.cache_mib / divide,
                ),
                format!("means of {} seeds, each with the least and the greatest", p.repeats),
            ];
            let (disk, panels) = (Some(model.title.to_owned()), p.panels(&rebuilt));
            Results { disk, traces: used, notes, panels }
        },
    )
}

impl Parameters {
    fn panels(&self, rebuilt: &[FilesRebuilt]) -> Vec<Panel> {
        let repeats = usize::try_from(self.repeats).unwrap_or(1);
        let runs = || rebuilt.chunks(repeats).map(<[_]>::to_vec);
        let places: Vec<String> = self.traces.iter().map(|trace| trace.name.clone()).collect();
        let names = || self.systems.iter().map(|system| system.name.clone());
        let mut panels = Vec::new();
        for table in &Table::all(&places, names(), runs()) {
            let panel = |title: &str, unit: &str, of: &dyn Fn(&FilesRebuilt) -> f64| {
                table.panel(Panel::bars(title, "trace", unit), of)
            };
            panels.extend([
                panel("mean response time over equal time", "ms", &|run| millis(run.equal.mean_ns)),
                panel("99th percentile over equal time", "ms", &|run| millis(run.equal.p99_ns)),
                panel("mean response time during the rebuild", "ms", &|run| {
                    millis(run.own.mean_ns)
                }),
                panel("99th percentile during the rebuild", "ms", &|run| millis(run.own.p99_ns)),
                panel("extents that were computed", "for 100 reads during the rebuild", &|run| {
                    100.0 * share(run.computed, run.own.requests)
                }),
                panel("rebuild time", "s", &|run| seconds(run.rebuild_ns)),
            ]);
            let mut less = Panel::bars("mean over equal time below that of the base", "trace", "%");
            for (number, system) in self.systems.iter().enumerate() {
                let is_base = |of: &System| Some(&of.name) == system.base.as_ref();
                let Some(base) = self.systems.iter().position(is_base) else { continue };
                let by = |run: &FilesRebuilt, base: &FilesRebuilt| {
                    below(millis(run.equal.mean_ns), millis(base.equal.mean_ns))
                };
                less = less.with(&system.name, table.compared(number, base, by));
            }
            if !less.series.is_empty() {
                panels.push(less);
            }
        }
        for (trace, runs) in self.traces.iter().zip(rebuilt.chunks(repeats * self.systems.len())) {
            let title = format!("response time since the loss, {}", trace.name);
            let all = self.systems.iter().zip(runs.chunks(repeats));
            panels.push(all.fold(Panel::lines(title, "seconds", "ms"), |panel, (system, runs)| {
                let points = runs[0].series.iter().map(|point| {
                    let middle = seconds(point.at_ns + point.len_ns / 2);
                    Point::at(middle, millis(point.latency.mean_ns))
                });
                panel.with(&system.name, points.collect())
            }));
        }
        panels
    }
}
