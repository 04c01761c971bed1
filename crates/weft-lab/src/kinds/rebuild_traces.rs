//! Traces replayed while a failed disk is being rebuilt, relative to the normal speed of the first
//! array.
//!
//! The loop is closed: a fixed number of requests is always in flight. The throughput is measured
//! from the failure to the end of the trace, as in the paper, whose replays ended long before the
//! disk was rebuilt. The disks have the size of the product, so that addresses keep their
//! distances; only the trace's own writes are stored, and reads of them are compared. If no
//! recorded trace is available, one generated from its published statistics is used, and the figure
//! is marked so.

use std::convert::Infallible;

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_rt::{Rt, Schedule, virtual_rt};
use weft_trace::Record;
use weft_trace::replay::{self, Live, Options, Pace, Verify};

use super::trace::Trace;
use crate::bench::{Bed, scaled};
use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Repair, Results};
use crate::modelled::{ArraySetup, ModelledArray};
use crate::number::mb_s;

/// Arrays and traces.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// MiB used of each.
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

/// An array, and how it is rebuilt.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Array {
    /// Its name in the paper.
    name: String,
    code: CodeSpec,
    disks: usize,
    /// Recovery bandwidth, in MB/s.
    mb_s: u64,
}

/// One run; nothing fails without a repair.
struct Cell<'a> {
    trace: usize,
    array: &'a Array,
    repair: Option<Repair>,
}

const REPAIRS: [(Repair, &str); 2] = [
    (Repair::Fewest, "while a disk is rebuilt"),
    (Repair::LoadAware, "while a disk is rebuilt, load-aware"),
];

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let bed = lab.bed(&p.model, p.disk_mib, p.unit_kib)?;
    let Some(first) = p.arrays.first() else { return Err(lab.wrong("no arrays")) };
    let (traces, records) = lab.traces(&p.traces, p.requests)?;
    let mut cells = Vec::new();
    for trace in 0..p.traces.len() {
        cells.push(Cell { trace, array: first, repair: None });
        for (repair, _) in REPAIRS {
            cells.extend(p.arrays.iter().map(|array| Cell { trace, array, repair: Some(repair) }));
        }
    }
    lab.study(
        &cells,
        |cell| format!("{}, {}, {:?}", p.traces[cell.trace].name, cell.array.name, cell.repair),
        |cell| p.measure(cell, &records[cell.trace], &bed, lab),
        |rates| {
            let panel = |number: usize| {
                p.panel(REPAIRS[number].1, &rates, 1 + number * p.arrays.len())
            };
            let panels = (0..REPAIRS.len()).map(panel).collect();
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
            Results { disk, traces, notes, panels }
        },
    )
}

impl Parameters {
    /// A panel of rates, relative to the normal rate of the first array. The rates of each trace
    /// start with the normal one; the panel's start at `from`.
    fn panel(&self, title: &str, rates: &[f64], from: usize) -> Panel {
        let mut panel = Panel::bars(title, "trace", "throughput, normal RAID-6 = 1");
        let each = 1 + REPAIRS.len() * self.arrays.len();
        for (number, array) in self.arrays.iter().enumerate() {
            let point = |(trace, rates): (&Trace, &[f64])| {
                Point::new(&trace.name, rates[from + number] / rates[0])
            };
            let points = self.traces.iter().zip(rates.chunks(each)).map(point);
            panel = panel.with(&array.name, points.collect());
        }
        panel
    }

    /// Throughput of a run, in MB/s.
    fn measure(
        &self,
        cell: &Cell<'_>,
        records: &[Record],
        bed: &Bed,
        lab: &Lab<'_>,
    ) -> Result<f64, String> {
        // The product's regions: small ones, which end often, cost users more than the code does.
        let setup =
            ArraySetup { region_bytes: None, ..bed.setup(cell.array.code, cell.array.disks) };
        let options = Options {
            pace: Pace::Closed { outstanding: self.outstanding },
            verify: Verify::Reads,
            seed: bed.seed,
            ..Options::default()
        };
        let part = records.len() / lab.divide();
        let records = records[..part.max(1)].to_vec();
        let (repair, bytes_s) = (cell.repair, cell.array.mb_s << 20);
        let rt = virtual_rt(Schedule::Fifo);
        rt.clone().block_on(async move {
            let array = ModelledArray::open(&rt, setup).await.map_err(|e| e.to_string())?;
            if let Some(repair) = repair {
                array.array().set_load_aware_reconstruction(repair == Repair::LoadAware);
                array.fail(&[0]).await.map_err(|e| e.to_string())?;
                array.rebuild(bytes_s).await.map_err(|e| e.to_string())?;
            }
            let rate = replay_to(&rt, &array, records, &options).await?;
            array.array().stop().await.map_err(|e| e.to_string())?;
            Ok(rate)
        })
    }
}

async fn replay_to(
    rt: &Rt,
    array: &ModelledArray,
    records: Vec<Record>,
    options: &Options,
) -> Result<f64, String> {
    let volume = array.volume();
    let map = scaled(&records, volume.size_bytes(), volume.info().block_bytes);
    let all = records.into_iter().map(Ok::<_, Infallible>);
    let Ok(outcome) = replay::run(rt, volume, &map, all, options, &Live::new()).await;
    let wrong = outcome.verified.as_ref().map_or(0, |verified| verified.blocks_wrong);
    if outcome.failed.total() > 0 || wrong > 0 {
        return Err(format!("{:?}, {wrong} blocks with wrong contents", outcome.failed));
    }
    Ok(mb_s(outcome.read_bytes + outcome.written_bytes, outcome.elapsed_ns))
}
