//! The kinds of experiments: each a program with parameters, which a file in `experiments/` sets.

mod additional_reads;
mod degraded;
mod full_degraded;
mod rebuild;
mod rebuild_traces;
mod recovery;
mod trace;
mod trade_off;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::Deserialize;
use weft_code::{Code, CodeSpec};
use weft_layout::{Algorithm, Layout, code_for, for_code};
use weft_sim::Model;

use crate::bench::Bed;
use crate::figure::{Panel, TraceUsed};
use crate::parallel;
use crate::run::{LabError, RunOptions};

/// What to run, with its parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// Additional reads of degraded arrays, closed form and counted.
    AdditionalReads(additional_reads::Parameters),
    /// Reads and writes with failed disks, simulated.
    Degraded(degraded::Parameters),
    /// Performance of degraded reads by number of groups.
    FullDegraded(full_degraded::Parameters),
    /// Reads while a recovery is running, over time, simulated.
    Rebuild(rebuild::Parameters),
    /// Traces while a recovery is running, simulated.
    RebuildTraces(rebuild_traces::Parameters),
    /// Policies of rebuild under a trace, at its own times, simulated.
    Recovery(recovery::Parameters),
    /// Degraded performance against mean time to data loss.
    TradeOff(trade_off::Parameters),
}

/// How users' reads of what is lost are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Repair {
    /// With the fewest reads, whoever has to serve them: as in the papers.
    Fewest,
    /// Around members whose queues are deep: as weft does.
    Around,
}

/// What a run is given.
pub(crate) struct Lab<'a> {
    pub(crate) name: &'a str,
    pub(crate) options: &'a RunOptions,
    pub(crate) progress: &'a (dyn Fn(usize, usize) + Sync),
}

/// What a run found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) disk: Option<String>,
    pub(crate) traces: Vec<TraceUsed>,
    pub(crate) notes: Vec<String>,
    pub(crate) panels: Vec<Panel>,
}

impl Kind {
    /// Runs it.
    pub(crate) fn run(&self, lab: &Lab<'_>) -> Result<Found, LabError> {
        match self {
            Self::AdditionalReads(parameters) => additional_reads::run(parameters, lab),
            Self::Degraded(parameters) => degraded::run(parameters, lab),
            Self::FullDegraded(parameters) => full_degraded::run(parameters, lab),
            Self::Rebuild(parameters) => rebuild::run(parameters, lab),
            Self::RebuildTraces(parameters) => rebuild_traces::run(parameters, lab),
            Self::Recovery(parameters) => recovery::run(parameters, lab),
            Self::TradeOff(parameters) => trade_off::run(parameters, lab),
        }
    }
}

impl Lab<'_> {
    /// Runs all `cells`, side by side. After a failure no more are begun, and it is the result.
    pub(crate) fn all<C: Sync, T: Send>(
        &self,
        cells: &[C],
        name: impl Fn(&C) -> String,
        run: impl Fn(&C) -> Result<T, String> + Sync,
    ) -> Result<Vec<T>, LabError> {
        let (done, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let results = parallel::map(cells, self.options.threads, |cell| {
            if failed.load(Ordering::Relaxed) {
                return None;
            }
            let result = run(cell);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, cells.len());
            Some(result)
        });
        let named = cells.iter().zip(results).filter_map(|(cell, result)| {
            Some(result?.map_err(|cause| LabError::Run {
                name: self.name.to_owned(),
                run: name(cell),
                cause,
            }))
        });
        named.collect()
    }

    /// The file asks for something impossible.
    pub(crate) fn wrong(&self, cause: impl ToString) -> LabError {
        LabError::Experiment { name: self.name.to_owned(), cause: cause.to_string() }
    }

    /// The bed for so many MiB of each disk of a modelled product, in units of so many KiB.
    pub(crate) fn bed(&self, model: &str, disk_mib: u64, unit_kib: u32) -> Result<Bed, LabError> {
        let model = Model::find(model).map_err(|e| self.wrong(e))?;
        let (disk_bytes, unit_bytes) = (disk_mib << 20, unit_kib << 10);
        Ok(Bed { model, disk_bytes, unit_bytes, seed: self.options.seed })
    }

    /// A code by name on its own number of slots, or on `slots`.
    pub(crate) fn code(&self, spec: CodeSpec, slots: usize) -> Result<Code, LabError> {
        code_for(spec, Algorithm::default(), slots).map_err(|e| self.wrong(e))
    }

    /// Its placement.
    pub(crate) fn layout(&self, spec: CodeSpec, slots: usize) -> Result<Box<dyn Layout>, LabError> {
        for_code(spec, Algorithm::default(), slots, 1 << 20).map_err(|e| self.wrong(e))
    }
}
