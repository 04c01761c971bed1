//! `weft lab`: experiments, and modelled disks.

mod args;
mod disk;
mod experiments;
mod watch;

use weft_cli::failure::Outcome;

pub use args::LabArgs;
use args::LabCommand;

/// `weft lab`.
///
/// # Errors
/// If an experiment or a disk fails, or the arguments do not fit together.
pub fn lab(args: &LabArgs, json: bool) -> Outcome {
    match &args.command {
        LabCommand::List(_) => experiments::list(json),
        LabCommand::Show(args) => experiments::show(&args.name, json),
        LabCommand::Run(args) => experiments::run_named(args, json),
        LabCommand::Merge(args) => experiments::merge(args, json),
        LabCommand::Report(args) => experiments::report(args, json),
        LabCommand::Disk(args) => disk::disk(args, json),
    }
}
