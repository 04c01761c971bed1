//! The command line: every command, its options, and examples of its use.

mod experiments;
mod lab;
mod manage;
mod offline;
mod plan;
mod run;
mod trace;

use std::path::PathBuf;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use experiments::{LabReportArgs, LabRunArgs, LabRuns};
pub use lab::{LabArgs, LabCommand, LabDiskArgs};
pub use manage::{
    AddArgs, FailArgs, NewDiskArgs, RebuildAction, RebuildArgs, RemoveArgs, ReplaceArgs,
    ScrubAction, ScrubArgs, StartArgs, StatusArgs, StopArgs, ThrottleArgs,
};
pub use offline::{Consistency, CreateArgs, ExamineArgs, SimulateArgs, WipeArgs};
pub use plan::PlanArgs;
pub use run::{AttachArgs, DemoArgs, DetachArgs, ServeArgs};
pub use trace::{
    ConvertArgs, FitName, GenerateArgs, InfoArgs, ModelledArgs, ReplayArgs, TraceArgs,
    TraceCommand, TraceFile,
};

/// A software RAID in user space that stays fast and safe while a disk is failed or rebuilt.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Begin with:  weft demo
Exit codes:  0 done
             1 failed; unless the message says otherwise nothing was changed
             2 the command line was not understood
             3 needs attention (status --check: redundancy reduced;
               scrub: mismatches found)
             4 data unavailable (status --check: an array failed,
               or did not start)
             5 no daemon answers
            70 an internal error (please report it)
           141 nobody read the output to its end (weft examine … | head)"
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

impl Cli {
    /// Reads the command line.
    pub fn read() -> Result<Self, clap::Error> {
        Self::from_arg_matches(&with_negative_numbers(Self::command()).try_get_matches()?)
    }
}

/// A number below zero is refused as a value, not taken for an option that does not exist.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.allow_negative_numbers(true);
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, with_negative_numbers))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make an array of files, block devices or remote disks
    Create(CreateArgs),
    /// Assemble arrays from their members and serve them (runs until stopped)
    Serve(ServeArgs),
    /// Show the arrays, how much each can still lose, and what is going on
    Status(StatusArgs),
    /// Give an array a block device (/dev/loopN)
    Attach(AttachArgs),
    /// Take the block device of an array away again
    Detach(DetachArgs),
    /// Take a member out of service
    Fail(FailArgs),
    /// Add a spare disk; it is used at once if a member is missing
    Add(AddArgs),
    /// Take a spare out of an array, or forget a member that is missing
    Remove(RemoveArgs),
    /// Copy a member to a new disk, which takes its place
    Replace(ReplaceArgs),
    /// Follow a rebuild; pause it, resume it
    Rebuild(RebuildArgs),
    /// Verify that all redundancy matches the data; repair it if asked to
    Scrub(ScrubArgs),
    /// Set how fast rebuild, resync and scrub may go, also while they run
    Throttle(ThrottleArgs),
    /// Show what a disk says about the array it belongs to, without a daemon
    Examine(ExamineArgs),
    /// Erase what makes a disk a member, so that it can be used for something else
    Wipe(WipeArgs),
    /// Start an array that the daemon does not serve
    Start(StartArgs),
    /// Stop one array, or end the daemon, cleanly
    Stop(StopArgs),
    /// Compare the codes that suit some disks: what they survive, their speed while degraded, their
    /// mean time to data loss
    Plan(PlanArgs),
    /// Reproduce papers' figures and tables; serve disks that behave like real products
    Lab(LabArgs),
    /// Examine and convert block traces, generate workloads
    Trace(TraceArgs),
    /// Replay a trace to an array, a disk, a file or an NBD export, and measure
    Replay(ReplayArgs),
    /// Run the engine against simulated crashes and faults
    Simulate(SimulateArgs),
    /// Show what weft does: build an array, break it, mend it, compare every byte
    Demo(DemoArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// A paragraph is one line, which is wrapped to the terminal; what must not be wrapped, such as
    /// an example, fits into 80 columns.
    #[test]
    fn footers_fit_a_terminal_of_80_columns() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
                let is_text = |line: &str| line.starts_with(|c: char| !c.is_whitespace());
                let name = command.get_name();
                assert!(is_text(line) || line.chars().count() <= 80, "{name}: {line}");
                let heads = line.ends_with(':') || line.contains(":  ");
                assert!(heads || !is_text(line) || !is_text(next), "{name}: {line}");
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn every_command_shows_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("weft {}", command.get_name());
            assert!(help.contains("Examples:"), "{} has no examples", command.get_name());
            assert!(help.contains(&example), "the examples of {example} do not use it");
        }
    }
}
