//! The environment that every kind of experiment runs in, and its results.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{fs, thread};

use serde::Deserialize;
use weft_code::{Code, CodeSpec};
use weft_layout::{Algorithm, Layout, code_for, for_code};
use weft_model::Model;

use crate::bench::Bed;
use crate::figure::{Panel, TraceUsed};
use crate::found::Found;
use crate::models::Models;
use crate::parallel;
use crate::store::{Input, Keep, Part, Plan, Shard};

/// How experiments are run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The random seed.
    pub seed: u64,
    /// Folder of recorded traces; without it, generated traces are used, and marked as such.
    pub traces: Option<PathBuf>,
    /// The modelled disks.
    pub models: Models,
    /// Threads.
    pub threads: usize,
    /// Divides the requests of every simulated run: faster, less precise.
    pub divide: u64,
    /// Where finished cells are kept, if they are.
    pub keep: Option<Keep>,
}

impl Default for RunOptions {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { seed: 1, traces: None, models: Models::default(), threads, divide: 1, keep: None }
    }
}

/// Why an experiment gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The experiment's file asks for something that does not exist.
    #[error("experiment '{name}': {cause}")]
    Experiment {
        /// The experiment.
        name: String,
        /// What is wrong.
        cause: String,
    },
    /// A run failed, or read data that it had not written.
    #[error("experiment '{name}', {run}: {cause}")]
    Run {
        /// The experiment.
        name: String,
        /// Which of its runs.
        run: String,
        /// What happened.
        cause: String,
    },
}

/// How users' reads of lost data are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Repair {
    /// With the fewest reads, regardless of load: as in the papers.
    Fewest,
    /// Avoids members with deep queues: weft's default.
    LoadAware,
}

/// The environment of a run.
pub(crate) struct Lab<'a> {
    pub(crate) name: &'a str,
    /// Where traces are looked for that are not in the folder of traces.
    pub(crate) folder: Option<&'a Path>,
    pub(crate) options: &'a RunOptions,
    pub(crate) progress: &'a (dyn Fn(usize, usize) + Sync),
    /// The experiment's file, and what else it depends on.
    pub(crate) text: &'a str,
    pub(crate) inputs: &'a Mutex<Vec<Input>>,
}

/// What a run gives: its results, or of a shard the number of its cells.
pub(crate) type Ran = Result<Result<Results, usize>, LabError>;

/// The results of a run.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) disk: Option<String>,
    pub(crate) traces: Vec<TraceUsed>,
    pub(crate) notes: Vec<String>,
    pub(crate) panels: Vec<Panel>,
}

impl Lab<'_> {
    /// The course of every experiment: `measure`s each of the `cells`, in parallel, and `show`s
    /// their results, in their order. After a failure no more are started, and it is the result.
    /// Finished cells are kept and taken by [`Keep`]; a shard shows nothing.
    pub(crate) fn study<C: Sync, T: Found>(
        &self,
        cells: &[C],
        name: impl Fn(&C) -> String,
        measure: impl Fn(&C) -> Result<T, String> + Sync,
        show: impl FnOnce(Vec<T>) -> Results,
    ) -> Ran {
        let (parts, shard) = self.parts(cells.len())?;
        let part = |cell: usize| parts.get(cell % parts.len().max(1));
        let own: Vec<usize> = (0..cells.len()).filter(|cell| shard.has(*cell)).collect();
        if matches!(self.options.keep, Some(Keep::Merged(_))) {
            return Ok(Ok(show(self.merged(&parts, cells.len())?)));
        }
        let (done, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let found = parallel::map(&own, self.options.threads, |cell| {
            if failed.load(Ordering::Relaxed) {
                return None;
            }
            let found = match (part(*cell), part(*cell).and_then(|part| part.load(*cell))) {
                (_, Some(found)) => Ok(found),
                (part, None) => measure(&cells[*cell]).and_then(|found| {
                    part.map_or(Ok(()), |part| part.save(*cell, &found)).map(|()| found)
                }),
            };
            failed.fetch_or(found.is_err(), Ordering::Relaxed);
            (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, own.len());
            Some(found)
        });
        let named = own.iter().zip(found).filter_map(|(cell, found)| {
            Some(found?.map_err(|cause| LabError::Run {
                name: self.name.to_owned(),
                run: name(&cells[*cell]),
                cause,
            }))
        });
        let found: Vec<T> = named.collect::<Result<_, _>>()?;
        Ok(if shard == Shard::WHOLE { Ok(show(found)) } else { Err(found.len()) })
    }

    /// What all cells of these shards have found. If some are missing, the error says how far each
    /// shard is.
    fn merged<T: Found>(&self, parts: &[Part], cells: usize) -> Result<Vec<T>, LabError> {
        let found: Vec<Option<T>> =
            (0..cells).map(|cell| parts[cell % parts.len()].load(cell)).collect();
        let missing = |(number, part): (usize, &Part)| {
            let own = found.iter().skip(number).step_by(parts.len());
            let count = own.filter(|found| found.is_none()).count();
            (count > 0).then(|| format!("{count} missing in {}", part.dir.display()))
        };
        let missing: Vec<String> = parts.iter().enumerate().filter_map(missing).collect();
        if missing.is_empty() {
            return Ok(found.into_iter().flatten().collect());
        }
        let (finished, missing) = (found.iter().flatten().count(), missing.join(", "));
        Err(self.wrong(format!(
            "{finished} of {cells} cells are finished, {missing}: `weft lab run … --resume` goes on"
        )))
    }

    /// Where finished cells are, by shard, and which cells are this run's.
    fn parts(&self, cells: usize) -> Result<(Vec<Part>, Shard), LabError> {
        let Some(keep) = &self.options.keep else { return Ok((Vec::new(), Shard::WHOLE)) };
        let mut plan = Plan {
            weft: env!("CARGO_PKG_VERSION").to_owned(),
            name: self.name.to_owned(),
            text: self.text.to_owned(),
            folder: self.folder.and_then(|folder| fs::canonicalize(folder).ok()),
            seed: self.options.seed,
            divide: self.options.divide,
            inputs: self.inputs.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            cells,
            place: 0,
            shard: Shard::WHOLE,
        };
        match keep {
            Keep::In { dir, resume, shard, place } => {
                (plan.place, plan.shard) = (*place, *shard);
                let part = Part::open(dir, *resume, plan).map_err(|e| self.wrong(e))?;
                Ok((vec![part], *shard))
            }
            Keep::Merged(parts) => match plan.differs(&parts[0].plan) {
                None => Ok((parts.clone(), Shard::WHOLE)),
                Some(what) => {
                    let dir = parts[0].dir.display();
                    Err(self.wrong(format!("{dir} has cells of another run: {what}")))
                }
            },
        }
    }

    /// Notes something that the cells depend on.
    pub(crate) fn note(&self, what: String, bytes: impl FnOnce() -> Vec<u8>) {
        if self.options.keep.is_some() {
            let input = Input::new(what, &bytes());
            let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
            if !inputs.contains(&input) {
                inputs.push(input);
            }
        }
    }

    /// The file asks for something impossible.
    pub(crate) fn wrong(&self, cause: impl ToString) -> LabError {
        LabError::Experiment { name: self.name.to_owned(), cause: cause.to_string() }
    }

    /// A modelled product.
    pub(crate) fn model(&self, name: &str) -> Result<&'static Model, LabError> {
        let model = self.options.models.find(name).map_err(|e| self.wrong(e))?;
        self.note(format!("the disk {name}"), || format!("{model:?}").into_bytes());
        Ok(model)
    }

    /// The test bed for this many MiB of each disk of a modelled product, in units of this many
    /// KiB.
    pub(crate) fn bed(&self, model: &str, disk_mib: u64, unit_kib: u32) -> Result<Bed, LabError> {
        let (disk_bytes, unit_bytes) = (disk_mib << 20, unit_kib << 10);
        Ok(Bed { model: self.model(model)?, disk_bytes, unit_bytes, seed: self.options.seed })
    }

    /// A code by name on its own number of slots, or on `slots`.
    pub(crate) fn code(&self, spec: CodeSpec, slots: usize) -> Result<Code, LabError> {
        code(spec, slots).map_err(|e| self.wrong(e))
    }

    /// Its placement.
    pub(crate) fn layout(&self, spec: CodeSpec, slots: usize) -> Result<Box<dyn Layout>, LabError> {
        layout(spec, slots).map_err(|e| self.wrong(e))
    }

    /// By what a number of requests is divided.
    pub(crate) fn divide(&self) -> usize {
        usize::try_from(self.options.divide.max(1)).unwrap_or(usize::MAX)
    }
}

/// A code by name on its own number of slots, or on `slots`.
pub(crate) fn code(spec: CodeSpec, slots: usize) -> Result<Code, String> {
    code_for(spec, Algorithm::default(), slots).map_err(|e| e.to_string())
}

/// Its placement.
pub(crate) fn layout(spec: CodeSpec, slots: usize) -> Result<Box<dyn Layout>, String> {
    for_code(spec, Algorithm::default(), slots, 1 << 20).map_err(|e| e.to_string())
}
