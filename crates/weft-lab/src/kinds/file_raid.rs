//! Files with redundancy of their own: written and read in order by the size of requests, and
//! overwritten at random, on modelled disks.

use serde::Deserialize;
use weft_fs::Redundancy;
use weft_model::Model;

use crate::bench::{FileLoad, FileSetup, Requests, rate};
use crate::figure::{Panel, Point};
use crate::lab::{Lab, LabError, Ran, Results};

/// Files, and how they are used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The modelled disk.
    model: String,
    /// MiB used of each.
    disk_mib: u64,
    /// MiB of a file.
    file_mib: u64,
    /// MiB of one that is only written: what comes once, at its end, counts less.
    long_file_mib: u64,
    /// MiB of memory for contents: half of it may wait to be written.
    cache_mib: u64,
    /// How blocks are overwritten at random: each is a series of a panel.
    overwrites: Vec<Overwrites>,
    /// KiB of requests of an application.
    request_kib: Vec<u64>,
    /// KiB of a request of the kernel's read-ahead, and requests in flight.
    read_ahead_kib: u64,
    read_ahead_depth: u64,
    repeats: u64,
    files: Vec<Case>,
}

/// Random overwrites of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Overwrites {
    /// MiB of memory for contents.
    cache_mib: u64,
    /// So many blocks are overwritten for each that the file has.
    #[serde(default = "once")]
    times: u64,
}

const fn once() -> u64 {
    1
}

impl Overwrites {
    /// What the series is called.
    fn name(&self) -> String {
        match self.times {
            1 => format!("{} MiB", self.cache_mib),
            times => format!("{} MiB, {times} times the blocks", self.cache_mib),
        }
    }
}

/// A file, or as many streams without a file system as there are disks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    disks: usize,
    /// None: without a file system.
    redundancy: Option<String>,
    /// Disks' worth of data in a line: what the file could do, by the disks, is as many times the
    /// rate of one.
    data_disks: u64,
    /// The case with the same data disks and no redundancy, to which overwriting is compared.
    #[serde(default)]
    plain: Option<String>,
}

/// One measurement.
struct Cell<'a> {
    case: &'a Case,
    title: &'static str,
    load: FileLoad,
    requests: Requests,
    overwrites: Option<&'a Overwrites>,
    setup: FileSetup,
}

const WRITE: &str = "sequential write";
const WRITE_LONG: &str = "sequential write of a long file";
const READ: &str = "sequential read, one request at a time";
const AHEAD: &str = "sequential read with the kernel's read-ahead";
const OVERWRITE: &str = "random overwrites";
const BESIDE: &str = "fsync of a small new file while a long one is written";

/// A block, which a random write changes.
const BLOCK: Requests = Requests { bytes: weft_fs::BLOCK_BYTES, depth: 1 };

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let model = lab.model(&p.model)?;
    let cells = p.cells(model, lab)?;
    lab.study(
        &cells,
        |cell| format!("{}, {}, {} B", cell.case.name, cell.title, cell.requests.bytes),
        |cell| rate(&cell.setup, cell.load, cell.requests),
        |rates| {
            let runs: Vec<(&Cell<'_>, f64)> = cells.iter().zip(rates).collect();
            let notes = vec![
                format!(
                    "a file of {} MiB; {} MiB of memory for contents, unless a series says otherwise, of which \
                     half may wait to be written; the time until fsync has ended counts",
                    file_bytes(p.file_mib, lab) >> 20,
                    p.cache_mib
                ),
                format!("means of {} seeds, which set the disks' angles and the random places", p.repeats),
                "what processors do takes no time; the paper's buses, at 65 MB/s all together, are not modelled".into(),
            ];
            let (disk, panels) = (Some(model.title.to_owned()), p.panels(&runs));
            Results { disk, notes, panels, ..Results::default() }
        },
    )
}

fn file_bytes(mib: u64, lab: &Lab<'_>) -> u64 {
    ((mib << 20) / lab.options.divide.max(1)).next_multiple_of(4 << 20)
}

impl Parameters {
    fn cells(&self, model: &'static Model, lab: &Lab<'_>) -> Result<Vec<Cell<'_>>, LabError> {
        let mut cells = Vec::new();
        for (case, repeat) in
            self.files.iter().flat_map(|case| (0..self.repeats).map(move |r| (case, r)))
        {
            let redundancy = case.redundancy.as_deref().map(str::parse::<Redundancy>).transpose();
            let redundancy = redundancy.map_err(|e| lab.wrong(e))?;
            let mut add = |title, load, requests, overwrites| {
                let how: Option<&Overwrites> = overwrites;
                let long = [WRITE_LONG, BESIDE].contains(&title);
                let file_mib = if long { self.long_file_mib } else { self.file_mib };
                let setup = FileSetup {
                    model,
                    disks: case.disks,
                    disk_bytes: self.disk_mib << 20,
                    redundancy,
                    file_bytes: file_bytes(file_mib, lab),
                    cache_bytes: how.map_or(self.cache_mib, |how| how.cache_mib) << 20,
                    overwrite_times: how.map_or(0, |how| how.times),
                    seed: lab.options.seed + 1000 * repeat,
                };
                cells.push(Cell { case, title, load, requests, overwrites, setup });
            };
            let alone = |kib: u64| Requests { bytes: kib << 10, depth: 1 };
            for kib in &self.request_kib {
                add(WRITE, FileLoad::Write, alone(*kib), None);
                add(READ, FileLoad::Read, alone(*kib), None);
            }
            if case.redundancy.is_some() {
                let depth = self.read_ahead_depth;
                let ahead = Requests { depth, ..alone(self.read_ahead_kib) };
                add(AHEAD, FileLoad::Read, ahead, None);
                let longest = alone(self.request_kib.iter().copied().max().unwrap_or(0));
                add(WRITE_LONG, FileLoad::Write, longest, None);
                add(BESIDE, FileLoad::Beside, longest, None);
                for how in &self.overwrites {
                    add(OVERWRITE, FileLoad::Overwrite, BLOCK, Some(how));
                }
            }
        }
        Ok(cells)
    }

    /// Rates of a case, one for each seed.
    fn rates(
        &self,
        runs: &[(&Cell<'_>, f64)],
        case: &Case,
        title: &str,
        bytes: Option<u64>,
    ) -> Vec<f64> {
        let is_it = |cell: &Cell<'_>| {
            cell.case.name == case.name
                && cell.title == title
                && bytes.is_none_or(|bytes| cell.requests.bytes == bytes)
        };
        runs.iter().filter(|(cell, _)| is_it(cell)).map(|(_, rate)| *rate).collect()
    }

    fn panels(&self, runs: &[(&Cell<'_>, f64)]) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (figure, title) in [("Fig. 3", WRITE), ("Fig. 4", READ)] {
            let name = format!("{figure}: {title}");
            let mut panel = Panel::bars(name, "KiB of a request", "MB/s");
            for case in &self.files {
                let at = |kib: &u64| {
                    Point::mean(kib.to_string(), &self.rates(runs, case, title, Some(kib << 10)))
                };
                panel = panel.with(&case.name, self.request_kib.iter().map(at).collect());
            }
            panels.push(panel);
        }
        let files = || self.files.iter().filter(|case| case.redundancy.is_some());
        let of = |case: &Case| Point::mean(&case.name, &self.rates(runs, case, AHEAD, None));
        let panel = Panel::bars(format!("Fig. 4: {AHEAD}"), "file", "MB/s");
        panels.push(panel.with("rate", files().map(of).collect()));
        let mut panel = Panel::bars(format!("Fig. 5: {OVERWRITE}"), "file", "MB/s");
        for how in &self.overwrites {
            let of = |case: &Case| Point::mean(&case.name, &overwrites(runs, case, how));
            panel = panel.with(how.name(), files().map(of).collect());
        }
        panels.push(panel);
        panels.push(self.shares(runs));
        panels.push(self.overwrites(runs));
        let of = |case: &Case| Point::mean(&case.name, &self.rates(runs, case, BESIDE, None));
        panels.push(Panel::bars(BESIDE, "file", "s").with("mean", files().map(of).collect()));
        panels
    }

    /// What files reach of the bandwidth of as many disks as hold data of a line.
    fn shares(&self, runs: &[(&Cell<'_>, f64)]) -> Panel {
        let mut panel = Panel::bars(
            "of the bandwidth of the disks that hold data of a line",
            "file",
            "bandwidth = 1",
        );
        let Some(raw) = self.files.iter().find(|case| case.redundancy.is_none()) else {
            return panel;
        };
        let most = self.request_kib.iter().max().map(|kib| kib << 10);
        let bandwidth = self.rates(runs, raw, READ, most);
        for (title, bytes) in [(WRITE, most), (WRITE_LONG, None), (AHEAD, None)] {
            let share = |case: &Case| {
                let rates = self.rates(runs, case, title, bytes);
                #[expect(clippy::cast_precision_loss, reason = "few disks")]
                let shares = rates.iter().zip(&bandwidth).map(|(rate, disk)| {
                    rate * raw.data_disks as f64 / (disk * case.data_disks as f64)
                });
                Point::mean(&case.name, &shares.collect::<Vec<f64>>())
            };
            let files = self.files.iter().filter(|case| case.redundancy.is_some());
            panel = panel.with(title, files.map(share).collect());
        }
        panel
    }

    /// Random overwrites by those of a file as wide without redundancy.
    fn overwrites(&self, runs: &[(&Cell<'_>, f64)]) -> Panel {
        let ratio = |case: &Case, how: &Overwrites| {
            let plain = self.files.iter().find(|of| Some(&of.name) == case.plain.as_ref())?;
            let (rates, plain) = (overwrites(runs, case, how), overwrites(runs, plain, how));
            let ratios = rates.iter().zip(&plain).map(|(rate, plain)| rate / plain);
            Some(Point::mean(&case.name, &ratios.collect::<Vec<f64>>()))
        };
        let name = "random overwrites by those of RAID-0";
        let panel = Panel::bars(name, "file", "RAID-0 as wide = 1");
        let with = |panel: Panel, how: &Overwrites| {
            let of = |case| ratio(case, how);
            panel.with(how.name(), self.files.iter().filter_map(of).collect())
        };
        self.overwrites.iter().fold(panel, with)
    }
}

/// Rates of random overwrites of a case, one for each seed.
fn overwrites(runs: &[(&Cell<'_>, f64)], case: &Case, how: &Overwrites) -> Vec<f64> {
    let is_it = |cell: &Cell<'_>| cell.case.name == case.name && cell.overwrites == Some(how);
    runs.iter().filter(|(cell, _)| is_it(cell)).map(|(_, rate)| *rate).collect()
}
