//! The kinds of experiments: each a program with parameters, which a file in `experiments/` sets.

mod additional_reads;
mod full_degraded;
mod trade_off;

use serde::Deserialize;
use weft_code::{Code, CodeSpec};
use weft_layout::{Algorithm, Layout, code_for, for_code};

use crate::figure::{Panel, TraceUsed};
use crate::run::{LabError, RunOptions};

/// What to run, with its parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// Additional reads of degraded arrays, closed form and counted.
    AdditionalReads(additional_reads::Parameters),
    /// Performance of degraded reads by number of groups.
    FullDegraded(full_degraded::Parameters),
    /// Degraded performance against mean time to data loss.
    TradeOff(trade_off::Parameters),
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
            Self::FullDegraded(parameters) => full_degraded::run(parameters, lab),
            Self::TradeOff(parameters) => trade_off::run(parameters, lab),
        }
    }
}

impl Lab<'_> {
    /// The file asks for something impossible.
    pub(crate) fn wrong(&self, cause: impl ToString) -> LabError {
        LabError::Experiment { name: self.name.to_owned(), cause: cause.to_string() }
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
