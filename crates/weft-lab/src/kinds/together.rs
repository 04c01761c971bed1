//! Systems compared over one life of an array: how long users wait in each of its phases, and how
//! long rebuild and reshape take.
//!
//! Each system is measured separately, in virtual time, on disks of its own. Response times count
//! from when a request reached the array.

use serde::Deserialize;
use weft_array::RebuildPolicy;
use weft_cache::Choice;
use weft_code::CodeSpec;
use weft_rt::{MILLISECOND, SECOND};

use super::table::Table;
use super::trace::Trace;
use crate::bench::{Bed, CacheSetup, Life, Lived, PHASES, live};
use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Results};
use crate::modelled::ArraySetup;
use crate::number::{millis, seconds};
use crate::rebuild::{Parts, Way};

/// A trace, and systems that serve it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// Millions of bytes used of each.
    disk_mb: u64,
    /// KiB of a unit.
    unit_kib: u32,
    /// Requests of the trace; half of them fill the cache.
    requests: usize,
    /// Milliseconds of an interval.
    interval_ms: u64,
    repeats: u64,
    /// Seconds for which the array is healthy, before and after.
    healthy_s: u64,
    /// Seconds without a disk before it is replaced.
    degraded_s: u64,
    /// Limits of the rate of rebuild and reshape, in units of 1024 bytes per second.
    min_kib_s: u64,
    max_kib_s: Option<u64>,
    trace: Trace,
    systems: Vec<System>,
}

/// A system.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    name: String,
    code: CodeSpec,
    disks: usize,
    #[serde(default)]
    policy: RebuildPolicy,
    #[serde(default)]
    parts: Parts,
    /// The cache's policy; none: no cache.
    cache: Option<String>,
    /// Its size in blocks of 4 KiB.
    #[serde(default)]
    blocks: usize,
    /// The mean response time that rebuild and reshape leave to users; none: no target.
    target_ms: Option<u32>,
}

/// One run.
struct Cell<'a> {
    system: &'a System,
    repeat: u64,
}

/// By what the times of an array that is smaller are divided at most.
const DIVIDE_MAX: u64 = 100;

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let model = lab.model(&p.model)?;
    let (used, traces) = p.trace.reads(p.requests, p.repeats, lab)?;
    let divide = lab.options.divide.clamp(1, DIVIDE_MAX);
    let mut cells = Vec::new();
    for system in &p.systems {
        system.way().check().map_err(|e| lab.wrong(e))?;
        cells.extend((0..p.repeats).map(|repeat| Cell { system, repeat }));
    }
    lab.study(
        &cells,
        |cell| cell.system.name.clone(),
        |cell| {
            let Cell { system, repeat } = *cell;
            let records = &traces[usize::try_from(repeat).unwrap_or(0) % traces.len()];
            let bed = Bed {
                model,
                disk_bytes: p.disk_mb * 1_000_000 / divide,
                unit_bytes: p.unit_kib << 10,
                seed: lab.options.seed + 1000 * repeat,
            };
            let choice = system.cache.as_deref().map(str::parse::<Choice>).transpose();
            let first = records.len() / 2;
            let cache = choice.map_err(|e| e.to_string())?.map(|choice| CacheSetup {
                choice,
                blocks: (system.blocks / lab.divide()).max(1),
                healthy: first,
            });
            let life = Life {
                setup: ArraySetup { region_bytes: None, ..bed.setup(system.code, system.disks) },
                way: system.way(),
                cache,
                min_bytes_s: p.min_kib_s << 10,
                max_bytes_s: p.max_kib_s.map(|max| max << 10),
                target: system.target_ms.map(|ms| u64::from(ms) * MILLISECOND),
                healthy: p.healthy_s * SECOND / divide,
                degraded: p.degraded_s * SECOND / divide,
                rate_milli: p.trace.rate_milli,
                first,
                interval: p.interval_ms * MILLISECOND / divide,
            };
            live(&life, records)
        },
        |lived| {
            let notes = vec![
                format!(
                    "open loop, reads only, {:.2} a second, addresses scaled onto the array, {} MB of each disk; caches are full of the trace's first half",
                    f64::from(p.trace.rate_milli) / 1000.0,
                    p.disk_mb / divide
                ),
                format!("means of {} seeds, each with the least and the greatest", p.repeats),
            ];
            let (disk, panels) = (Some(model.title.to_owned()), p.panels(&lived));
            Results { disk, traces: vec![used], notes, panels }
        },
    )
}

impl System {
    fn way(&self) -> Way {
        Way { policy: self.policy.clone(), parts: self.parts.clone() }
    }
}

impl Parameters {
    fn panels(&self, lived: &[Lived]) -> Vec<Panel> {
        let runs = || lived.chunks(usize::try_from(self.repeats).unwrap_or(1));
        // A place is a phase.
        let of_phase = (0..PHASES.len()).flat_map(|phase| {
            runs().map(move |runs| runs.iter().map(|run| run.phases[phase]).collect::<Vec<_>>())
        });
        let phases: Vec<String> = PHASES.map(str::to_owned).into();
        let systems = self.systems.iter().map(|system| system.name.clone());
        let tables = Table::all(&phases, systems, of_phase);
        let mut panels = Vec::new();
        for table in &tables {
            let panel = |title: &str, unit: &str| Panel::bars(title, "phase", unit);
            panels.extend([
                table.panel(panel("mean response time", "ms"), |run| millis(run.1.mean_ns)),
                table.panel(panel("median of response times", "ms"), |run| millis(run.1.p50_ns)),
                table.panel(panel("99th percentile of response times", "ms"), |run| {
                    millis(run.1.p99_ns)
                }),
                table.panel(panel("duration", "s"), |run| seconds(run.0)),
            ]);
        }
        // The first two phases take the same time in each system.
        let took = |phase: usize| lived[0].phases[phase].0;
        let (lost, replaced) = (seconds(took(0)), seconds(took(0) + took(1)));
        let life = Panel::lines("response time over the life", "seconds", "ms")
            .with_phase(0.0, "healthy")
            .with_phase(lost, "degraded")
            .with_phase(replaced, "rebuilt, then grown onto another disk");
        panels.push(self.systems.iter().zip(runs()).fold(life, |panel, (system, runs)| {
            let points = runs[0].series.iter().map(|point| {
                Point::at(seconds(point.at_ns + point.len_ns / 2), millis(point.latency.mean_ns))
            });
            panel.with(&system.name, points.collect())
        }));
        panels
    }
}
