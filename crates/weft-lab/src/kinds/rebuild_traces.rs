//! Traces replayed while a failed disk is being rebuilt, relative to the normal speed of the first array.
//!
//! The loop is closed: so many requests are always in flight, and what is measured is the throughput from the
//! failure to the end of the rebuild. Addresses are scaled onto the array; a trace that ends before the
//! rebuild begins again. Where no recorded trace is at hand, one generated from its published
//! statistics stands in, and the figure says so.

use std::convert::Infallible;
use std::rc::Rc;

use serde::Deserialize;
use weft_array::ArrayState;
use weft_code::CodeSpec;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, SECOND};
use weft_trace::Record;
use weft_trace::replay::{self, AddressMap, Fit, Live, Options, Pace, Verify, Volumes};

use super::trace::Trace;
use super::{Found, Lab};
use crate::bench::{Bed, Bench, Target, on_bench};
use crate::figure::{Panel, Point};
use crate::run::LabError;

/// The first part of a recovery is so much of it.
const BEGIN_PARTS: u64 = 10;

/// Arrays and traces.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// MiB offered of each.
    disk_mib: u64,
    /// KiB of a unit.
    unit_kib: u32,
    /// Requests in flight.
    outstanding: usize,
    /// Requests of a trace that are used.
    requests: usize,
    traces: Vec<Trace>,
    arrays: Vec<Array>,
}

/// An array.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Array {
    name: String,
    code: CodeSpec,
    disks: usize,
    /// Recovery bandwidth, in MB/s.
    mb_s: u64,
}

/// Throughput in the first part of a run, and over all of it, in MB/s.
struct Rate {
    begin: f64,
    whole: f64,
}

/// One run.
struct Cell<'a> {
    trace: usize,
    array: &'a Array,
    degraded: bool,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Found, LabError> {
    let p = parameters;
    let bed = lab.bed(&p.model, p.disk_mib, p.unit_kib)?;
    let Some(first) = p.arrays.first() else { return Err(lab.wrong("no arrays")) };
    let (mut traces, mut records) = (Vec::new(), Vec::new());
    for trace in &p.traces {
        let (used, requests) = trace.requests(p.requests, lab)?;
        traces.push(used);
        records.push(requests);
    }
    let mut cells = Vec::new();
    for trace in 0..p.traces.len() {
        cells.push(Cell { trace, array: first, degraded: false });
        cells.extend(p.arrays.iter().map(|array| Cell { trace, array, degraded: true }));
    }
    let rates = lab.all(
        &cells,
        |cell| format!("{}, {}", p.traces[cell.trace].name, cell.array.name),
        |cell| p.measure(cell, &records[cell.trace], &bed, lab),
    )?;
    let panels = vec![
        p.panel("when the recovery begins", &rates, |rate| rate.begin),
        p.panel("over the whole recovery", &rates, |rate| rate.whole),
    ];
    let mut notes = vec![format!(
        "closed loop, {} requests in flight, addresses scaled onto the array, contents verified",
        p.outstanding
    )];
    if traces.iter().any(|trace| trace.generated) {
        notes.push(
            "generated traces have the published read share, sizes and footprint of the recorded ones, not their order"
                .into(),
        );
    }
    let disk = Some(bed.model.title.to_owned());
    Ok(Found { disk, traces, notes, panels })
}

impl Parameters {
    /// A panel of rates, relative to the normal one of the first array.
    fn panel(&self, title: &str, rates: &[Rate], of: impl Fn(&Rate) -> f64) -> Panel {
        let mut panel = Panel::bars(title, "trace", "throughput, normal RAID-6 = 1");
        let each = self.arrays.len() + 1;
        for (number, array) in self.arrays.iter().enumerate() {
            let point = |(trace, rates): (&Trace, &[Rate])| {
                Point::new(&trace.name, of(&rates[number + 1]) / rates[0].whole)
            };
            let points = self.traces.iter().zip(rates.chunks(each)).map(point);
            panel = panel.with(&array.name, points.collect());
        }
        panel
    }

    fn measure(
        &self,
        cell: &Cell<'_>,
        records: &[Record],
        bed: &Bed,
        lab: &Lab<'_>,
    ) -> Result<Rate, String> {
        let setup = bed.setup(cell.array.code, cell.array.disks);
        let options = Options {
            pace: Pace::Closed { outstanding: self.outstanding },
            verify: Verify::Reads,
            seed: lab.options.seed,
            interval_ns: Some(bed.disk_bytes * SECOND / (cell.array.mb_s << 20) / BEGIN_PARTS),
            ..Options::default()
        };
        let recovery = cell.degraded.then_some(cell.array.mb_s << 20);
        let part = records.len() / usize::try_from(lab.options.divide).unwrap_or(1);
        let records = records[..part.max(1)].to_vec();
        on_bench(&setup, move |bench| async move {
            let live = Live::new();
            if let Some(bytes_s) = recovery {
                bench.fail([0]).await?;
                bench.rebuild(bytes_s).await?;
                drop(bench.rt.spawn(stop_when_healthy(bench.clone(), live.clone())));
            }
            replay_all(&bench, records, recovery.is_some(), &options, &live).await
        })
    }
}

/// Replays `records`, again and again if `endless`, until `live` is stopped.
async fn replay_all(
    bench: &Bench,
    records: Vec<Record>,
    endless: bool,
    options: &Options,
    live: &Live,
) -> Result<Rate, String> {
    let target = Rc::new(Target::new(bench.array.clone()));
    let mut volumes = Volumes::default();
    records.iter().for_each(|record| volumes.add(record));
    let info = target.info().clone();
    let map = AddressMap::new(&volumes, info.size_bytes, info.sector_bytes, Fit::Scale);
    let rounds = if endless { usize::MAX } else { 1 };
    let all = std::iter::repeat_n(Rc::new(records), rounds)
        .flat_map(|records| (0..records.len()).map(move |i| records[i]))
        .map(Ok::<_, Infallible>);
    let Ok(outcome) = replay::run(&bench.rt, target, &map, all, options, live).await;
    let wrong = outcome.verified.as_ref().map_or(0, |verified| verified.blocks_wrong);
    if outcome.failed.total() > 0 || wrong > 0 {
        return Err(format!("{:?}, {wrong} blocks with wrong contents", outcome.failed));
    }
    let first = outcome.series.first().ok_or("the replay ended before it was measured")?;
    Ok(Rate {
        begin: mb_s(first.read_bytes + first.written_bytes, first.len_ns),
        whole: mb_s(outcome.read_bytes + outcome.written_bytes, outcome.elapsed_ns),
    })
}

/// Millions of bytes a second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn mb_s(bytes: u64, ns: u64) -> f64 {
    bytes as f64 * 1e3 / ns.max(1) as f64
}

async fn stop_when_healthy(bench: Rc<Bench>, live: Live) {
    while bench.array.status().state != ArrayState::Healthy {
        bench.rt.sleep(MILLISECOND).await;
    }
    live.stop();
}
