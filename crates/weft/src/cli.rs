//! The command line: every command, its options, and examples of its use.

mod cache;
mod disks;
mod drill;
mod fs;
mod manage;
mod offline;
mod run;
mod setup;

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use weft_demo::DemoArgs;
use weft_plan::command::PlanArgs;

use crate::laboratory::LaboratoryArgs;

pub use cache::{CacheArgs, CacheOptions};
pub use disks::{
    DisksAction, DisksArgs, DisksFenceArgs, DisksPrepareArgs, DisksReserveArgs, DisksServeArgs,
};
pub use drill::DrillArgs;
pub use fs::{
    ClusterAt, FsAction, FsAddArgs, FsArgs, FsBalanceArgs, FsCancelArgs, FsClusterArgs,
    FsCreateArgs, FsDiskArgs, FsEvictArgs, FsFailArgs, FsGrowArgs, FsKeeperArgs, FsMountArgs,
    FsPlaceArgs, FsScrubArgs, FsSetArgs, FsStatusArgs, FsckArgs, parse_cluster,
    parse_metadata_cache,
};
pub use manage::{
    AddArgs, FailArgs, HowArgs, NewDiskArgs, RebuildAction, RebuildArgs, RemoveArgs, ReplaceArgs,
    ReshapeArgs, ScrubAction, ScrubArgs, ShrinkArgs, StartArgs, StatusArgs, StopArgs, ThrottleArgs,
    UsedSize,
};
pub use offline::{CreateArgs, ExamineArgs, WipeArgs};
pub use run::{AttachArgs, AttachWay, DetachArgs, ServeArgs};
pub use setup::{CompletionsArgs, ConfigAction, ConfigArgs, ManArgs, UdevArgs};

/// Software RAID in user space: combines local files, block devices and remote disks into one
/// redundant volume, and stays fast through failures and rebuilds.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Start with:  weft demo
Exit codes:  0 done
             1 failed; unless the message says otherwise nothing was changed
             2 the command line was not understood
             3 needs attention (status --check: redundancy reduced,
               a disk to look after; scrub: mismatches found)
             4 data unavailable (status --check: an array failed,
               did not start, or its writes wait for space)
             5 no daemon answers
            70 an internal error (please report it)
           130 Ctrl-C ended a command that followed a job, which continues
           141 standard output was closed early (weft examine … | head)"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Where the daemon keeps its sockets [default: $WEFT_RUNTIME_DIR, or /run/weft for root, or
    /// $XDG_RUNTIME_DIR/weft]
    #[arg(long, global = true, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// Print JSON instead of text (errors too, on standard output)
    #[arg(long, global = true)]
    pub json: bool,
}

/// A parser of values that have names.
fn named<T: Copy + Send + Sync + 'static, N: Into<PossibleValue> + 'static>(
    all: &'static [T],
    name: fn(T) -> N,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|value| name(*value))).map(move |given| {
        let value = all.iter().find(|value| name(**value).into().get_name() == given);
        *value.expect("only possible values are parsed")
    })
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create an array from files, block devices or remote disks
    Create(CreateArgs),
    /// Assemble arrays from their members and serve them (runs until stopped)
    Serve(ServeArgs),
    /// Show each array, how many more disks it can lose, and what it is doing
    Status(StatusArgs),
    /// Make an array available as a block device (/dev/loopN)
    Attach(AttachArgs),
    /// Remove an array's block device
    Detach(DetachArgs),
    /// Take a member out of service
    Fail(FailArgs),
    /// Add a spare disk; it is used at once if a member is missing
    Add(AddArgs),
    /// Remove a spare, or forget a missing member
    Remove(RemoveArgs),
    /// Replace a member: copy it to a new disk, which takes its slot
    Replace(ReplaceArgs),
    /// Add disks to an array, use larger ones, or change its code or unit, while it is used
    #[command(visible_alias = "grow")]
    Reshape(ReshapeArgs),
    /// Remove disks from an array while it is used
    Shrink(ShrinkArgs),
    /// Follow, pause, resume or tune a rebuild
    Rebuild(RebuildArgs),
    /// Check that all redundancy matches the data; repair mismatches on request
    Scrub(ScrubArgs),
    /// Rehearse the loss of a disk: how long the rebuild takes, and what users feel
    Drill(DrillArgs),
    /// Set minimum and maximum rates for rebuild, resync and scrub
    Throttle(ThrottleArgs),
    /// Show the cache of an array, change it or switch it on and off
    Cache(CacheArgs),
    /// A file system over separate disks that chooses the redundancy of each file
    Fs(FsArgs),
    /// Share disks between nodes, and make them refuse nodes
    Disks(DisksArgs),
    /// Show a disk's metadata of its array, without a daemon
    Examine(ExamineArgs),
    /// Erase a member's metadata, so that the disk can be reused
    Wipe(WipeArgs),
    /// Start an array that the daemon does not serve
    Start(StartArgs),
    /// Stop one array, or the whole daemon, cleanly
    Stop(StopArgs),
    /// Compare codes for a set of disks: what they survive, speed while degraded, mean time to data
    /// loss
    Plan(PlanArgs),
    /// Reproduce figures from papers; serve modelled disks as fast as real products
    #[command(after_help = "Examples:\n  weft lab --help")]
    Lab(LaboratoryArgs),
    /// Inspect and convert block traces; generate workloads
    #[command(after_help = "Examples:\n  weft trace --help")]
    Trace(LaboratoryArgs),
    /// Replay a trace against an array, a disk, a file or an NBD export, and measure it
    #[command(after_help = "Examples:\n  weft replay --help")]
    Replay(LaboratoryArgs),
    /// Run the engine under simulated crashes and faults
    #[command(after_help = "Examples:\n  weft simulate --help")]
    Simulate(LaboratoryArgs),
    /// See weft at work: create an array, fail disks, rebuild, compare every byte
    Demo(DemoArgs),
    /// What udev has to know about a block device
    Udev(UdevArgs),
    /// Check the configuration
    Config(ConfigArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_help_is_sound() {
        weft_cli::command_line::check_help(super::Cli::command());
    }
}
