//! `weft lab`: what is done with modelled disks.

mod disk;
mod export;

use crate::cli::{LabArgs, LabCommand};
use crate::failure::Outcome;

/// `weft lab`.
pub fn lab(args: &LabArgs, json: bool) -> Outcome {
    match &args.command {
        LabCommand::Disk(args) => disk::disk(args, json),
    }
}
