//! Measures the figures of a data sheet on a bare model, without executor or contents.

use weft_rt::{Nanos, Rng};

use crate::command::{Command, Done, Mechanism, Work};
use crate::product::{Kind, Measure, Model, Sheet};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Length of a sequential request.
const LONG: u64 = 128 * KIB;
/// Length of a random request.
const SHORT: u64 = 4 * KIB;

/// The result of a closed-loop run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Duration in nanoseconds.
    pub ns: Nanos,
    /// Bytes moved.
    pub bytes: u64,
    /// Requests completed.
    pub requests: u64,
    /// The model's counts during it.
    pub work: Work,
}

impl Run {
    /// Millions of bytes a second.
    pub fn mb_s(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.ns as f64
    }

    /// Requests a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 * 1e9 / self.ns as f64
    }
}

/// Keeps `depth` commands from `next` in flight until `warm` and then `count` more have completed;
/// the result covers the latter.
pub fn closed_loop(
    machine: &mut dyn Mechanism,
    depth: u32,
    (warm, count): (u64, u64),
    mut next: impl FnMut() -> Command,
) -> Run {
    let mut done: Vec<Done> = Vec::new();
    let mut lens = Vec::new();
    let (mut now, mut begun, mut completed, mut bytes) = (0, 0, 0, 0);
    let mut before = Work::default();
    for tag in 0..u64::from(depth) {
        let command = next();
        lens.push(command.len);
        machine.submit(now, tag, command);
    }
    while completed < warm + count
        && let Some(event) = machine.next_event()
    {
        now = now.max(event);
        machine.advance(now, &mut done);
        for Done { tag, .. } in done.drain(..) {
            completed += 1;
            let index = usize::try_from(tag).unwrap_or(0);
            if completed == warm {
                (begun, before) = (now, machine.work());
            } else if completed > warm {
                bytes += lens[index];
            }
            let command = next();
            lens[index] = command.len;
            machine.submit(now, tag, command);
        }
    }
    let after = machine.work();
    let work = Work {
        cache_hits: after.cache_hits - before.cache_hits,
        accesses: after.accesses - before.accesses,
        seek_ns: after.seek_ns - before.seek_ns,
        rotation_ns: after.rotation_ns - before.rotation_ns,
        transfer_ns: after.transfer_ns - before.transfer_ns,
    };
    Run { ns: (now - begun).max(1), bytes, requests: completed - warm, work }
}

/// Random commands of 4 KiB over the whole disk.
fn random(model: &Model, depth: u32, write: bool) -> Run {
    let (warm, count) = match model.kind {
        // Writes run at the platters' speed only when the cache is full.
        Kind::Hdd(spec) if write => (3000 + spec.cache_bytes / SHORT / 2, 5000),
        Kind::Hdd(_) => (500, 5000),
        Kind::Ssd(_) => (5000, 100_000),
    };
    let mut rng = Rng::new(7);
    let slots = model.capacity_bytes / SHORT;
    let next = || {
        let offset = rng.below(slots) * SHORT;
        if write { Command::write(offset, SHORT) } else { Command::read(offset, SHORT) }
    };
    closed_loop(&mut *model.mechanism(1), depth, (warm, count), next)
}

/// Sequential commands starting at `from`: two at a time for a hard disk, which reads ahead, and 32
/// for an SSD.
fn sequential(model: &Model, from: u64, bytes: u64, write: bool) -> Run {
    let mut at = from / LONG * LONG;
    let end = model.capacity_bytes;
    let next = || {
        let offset = if at + LONG <= end { at } else { from / LONG * LONG };
        at = offset + LONG;
        if write { Command::write(offset, LONG) } else { Command::read(offset, LONG) }
    };
    let depth = if matches!(model.kind, Kind::Ssd(_)) { 32 } else { 2 };
    closed_loop(&mut *model.mechanism(1), depth, (bytes / 4 / LONG, bytes / LONG), next)
}

/// Measures a model.
pub fn measure(model: &Model, measure: Measure) -> f64 {
    let capacity = model.capacity_bytes;
    match measure {
        Measure::OuterMbS => sequential(model, 0, 512 * MIB, false).mb_s(),
        Measure::InnerMbS => sequential(model, capacity - 700 * MIB, 512 * MIB, false).mb_s(),
        Measure::WriteMbS => sequential(model, 0, 1024 * MIB, true).mb_s(),
        Measure::MeanMbS => {
            let places = (0..32).map(|i| capacity / 33 * i + capacity / 66);
            let runs = places.map(|from| sequential(model, from, 32 * MIB, false));
            let (bytes, ns) = runs.fold((0, 0), |sum, run| (sum.0 + run.bytes, sum.1 + run.ns));
            bytes as f64 * 1e3 / ns as f64
        }
        Measure::AverageSeekMs => {
            let work = random(model, 1, false).work;
            work.seek_ns as f64 / work.accesses.max(1) as f64 / 1e6
        }
        Measure::FullStrokeMs => {
            let mut rng = Rng::new(3);
            let span = capacity / 2000 / SHORT;
            let mut outer = false;
            let next = || {
                outer = !outer;
                let near = rng.below(span) * SHORT;
                let offset = if outer { near } else { capacity / SHORT * SHORT - SHORT - near };
                Command::read(offset, SHORT)
            };
            let work = closed_loop(&mut *model.mechanism(1), 1, (10, 500), next).work;
            work.seek_ns as f64 / work.accesses.max(1) as f64 / 1e6
        }
        Measure::RandomReadIops(depth) => random(model, depth, false).iops(),
        Measure::RandomWriteIops(depth) => random(model, depth, true).iops(),
    }
}

/// A measured figure, with that of the data sheet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// The figure.
    pub measure: Measure,
    /// The model's value.
    pub measured: f64,
    /// The data sheet's value, if it has one.
    pub sheet: Option<Sheet>,
}

impl Line {
    /// Measured over stated, minus one.
    pub fn deviation(&self) -> Option<f64> {
        self.sheet.map(|sheet| self.measured / sheet.value - 1.0)
    }

    /// Whether the deviation is within tolerance.
    pub fn holds(&self) -> bool {
        match (self.sheet, self.deviation()) {
            (Some(sheet), Some(deviation)) => deviation.abs() <= sheet.tolerance,
            _ => true,
        }
    }
}

/// Measures the figures that the data sheet states, and the usual ones.
pub fn validate(model: &Model) -> Vec<Line> {
    let usual: &[Measure] = match model.kind {
        Kind::Hdd(_) => &[
            Measure::OuterMbS,
            Measure::InnerMbS,
            Measure::MeanMbS,
            Measure::WriteMbS,
            Measure::AverageSeekMs,
            Measure::FullStrokeMs,
            Measure::RandomReadIops(1),
            Measure::RandomReadIops(32),
            Measure::RandomWriteIops(1),
        ],
        Kind::Ssd(_) => &[
            Measure::OuterMbS,
            Measure::WriteMbS,
            Measure::RandomReadIops(1),
            Measure::RandomReadIops(32),
            Measure::RandomWriteIops(1),
            Measure::RandomWriteIops(32),
        ],
    };
    let sheet_of = |what| model.sheet.iter().copied().find(|sheet| sheet.measure == what);
    let stated = model.sheet.iter().map(|sheet| sheet.measure);
    let more = stated.filter(|what| !usual.contains(what));
    let all = usual.iter().copied().chain(more);
    all.map(|what| Line { measure: what, measured: measure(model, what), sheet: sheet_of(what) })
        .collect()
}
