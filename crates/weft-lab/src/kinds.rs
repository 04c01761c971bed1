//! The kinds of experiments: each a program with parameters, which a file in `experiments/` sets.

mod additional_reads;
mod array;
mod cache;
mod cached_recovery;
mod degraded;
mod file_raid;
mod file_rebuild;
mod full_degraded;
mod rebuild;
mod rebuild_traces;
mod recovery;
mod reordering_window;
mod reshape;
mod reshape_requests;
mod service_rate;
mod table;
mod together;
mod trace;
mod trade_off;

use serde::Deserialize;

use crate::lab::{Lab, Ran};

/// Names the kinds, each with its module.
macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident: $module:ident,)*) => {
        /// What to run, with its parameters.
        #[derive(Clone, Debug, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Kind {
            $($(#[$about])* $kind($module::Parameters),)*
        }

        impl Kind {
            /// Runs it.
            pub(crate) fn run(&self, lab: &Lab<'_>) -> Ran {
                match self {
                    $(Self::$kind(parameters) => $module::run(parameters, lab),)*
                }
            }
        }
    };
}

kinds! {
    /// Additional reads of degraded arrays, closed form and counted.
    AdditionalReads: additional_reads,
    /// A block cache above a degraded array, without disks.
    Cache: cache,
    /// Recoveries under a trace, with a block cache above the array, simulated.
    CachedRecovery: cached_recovery,
    /// Reads and writes with failed disks, simulated.
    Degraded: degraded,
    /// Files with redundancy of their own, simulated.
    FileRaid: file_raid,
    /// Files of weft's file system, rebuilt under a trace, simulated.
    FileRebuild: file_rebuild,
    /// Performance of degraded reads by number of groups.
    FullDegraded: full_degraded,
    /// Reads while a recovery is running, over time, simulated.
    Rebuild: rebuild,
    /// Traces while a recovery is running, simulated.
    RebuildTraces: rebuild_traces,
    /// Policies of rebuild under a trace, at its own times, simulated.
    Recovery: recovery,
    /// How far a reshape may go without a checkpoint, computed.
    ReorderingWindow: reordering_window,
    /// Ways to reshape an array under a trace, simulated.
    Reshape: reshape,
    /// Requests and checkpoints of a reshape, counted.
    ReshapeRequests: reshape_requests,
    /// Requests served by a degraded array with a block cache above it, simulated.
    ServiceRate: service_rate,
    /// Systems over one life of an array under a trace, simulated.
    Together: together,
    /// Degraded performance against mean time to data loss.
    TradeOff: trade_off,
}
