//! The kinds of experiments: each a program with parameters, which a file in `experiments/` sets.

mod additional_reads;
mod array;
mod cache;
mod cached_recovery;
mod degraded;
mod file_raid;
mod full_degraded;
mod rebuild;
mod rebuild_traces;
mod recovery;
mod reordering_window;
mod reshape;
mod reshape_requests;
mod service_rate;
mod trace;
mod trade_off;

use serde::Deserialize;

use crate::lab::{Lab, LabError, Results};

/// What to run, with its parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// Additional reads of degraded arrays, closed form and counted.
    AdditionalReads(additional_reads::Parameters),
    /// A block cache above a degraded array, without disks.
    Cache(cache::Parameters),
    /// Recoveries under a trace, with a block cache above the array, simulated.
    CachedRecovery(cached_recovery::Parameters),
    /// Reads and writes with failed disks, simulated.
    Degraded(degraded::Parameters),
    /// Files with redundancy of their own, simulated.
    FileRaid(file_raid::Parameters),
    /// Performance of degraded reads by number of groups.
    FullDegraded(full_degraded::Parameters),
    /// Reads while a recovery is running, over time, simulated.
    Rebuild(rebuild::Parameters),
    /// Traces while a recovery is running, simulated.
    RebuildTraces(rebuild_traces::Parameters),
    /// Policies of rebuild under a trace, at its own times, simulated.
    Recovery(recovery::Parameters),
    /// How far a reshape may go without a checkpoint, computed.
    ReorderingWindow(reordering_window::Parameters),
    /// Ways to reshape an array under a trace, simulated.
    Reshape(reshape::Parameters),
    /// Requests and checkpoints of a reshape, counted.
    ReshapeRequests(reshape_requests::Parameters),
    /// Requests served by a degraded array with a block cache above it, simulated.
    ServiceRate(service_rate::Parameters),
    /// Degraded performance against mean time to data loss.
    TradeOff(trade_off::Parameters),
}

impl Kind {
    /// Runs it.
    pub(crate) fn run(&self, lab: &Lab<'_>) -> Result<Results, LabError> {
        match self {
            Self::AdditionalReads(parameters) => additional_reads::run(parameters, lab),
            Self::Cache(parameters) => cache::run(parameters, lab),
            Self::CachedRecovery(parameters) => cached_recovery::run(parameters, lab),
            Self::Degraded(parameters) => degraded::run(parameters, lab),
            Self::FileRaid(parameters) => file_raid::run(parameters, lab),
            Self::FullDegraded(parameters) => full_degraded::run(parameters, lab),
            Self::Rebuild(parameters) => rebuild::run(parameters, lab),
            Self::RebuildTraces(parameters) => rebuild_traces::run(parameters, lab),
            Self::Recovery(parameters) => recovery::run(parameters, lab),
            Self::ReorderingWindow(parameters) => reordering_window::run(parameters, lab),
            Self::Reshape(parameters) => reshape::run(parameters, lab),
            Self::ReshapeRequests(parameters) => reshape_requests::run(parameters, lab),
            Self::ServiceRate(parameters) => service_rate::run(parameters, lab),
            Self::TradeOff(parameters) => trade_off::run(parameters, lab),
        }
    }
}
