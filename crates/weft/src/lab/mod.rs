//! `weft lab`: experiments, and modelled disks.

mod disk;
mod experiments;
mod watch;

use crate::cli::{LabArgs, LabCommand};
use crate::failure::Outcome;

/// `weft lab`.
pub fn lab(args: &LabArgs, json: bool) -> Outcome {
    match &args.command {
        LabCommand::List(_) => experiments::list(json),
        LabCommand::Run(args) => experiments::run_named(args, json),
        LabCommand::Report(args) => experiments::report(args, json),
        LabCommand::Disk(args) => disk::disk(args, json),
    }
}
