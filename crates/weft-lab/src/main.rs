//! `weft-lab`: the laboratory's program, which `weft lab`, `weft trace`, `weft replay` and
//! `weft simulate` run.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weft_cli::command_line;
use weft_cli::failure::Outcome;
use weft_lab::commands::{self, LabArgs, ReplayArgs, SimulateArgs, TraceArgs};

#[global_allocator]
static POOL: weft_rt::pool::Pool = weft_rt::pool::Pool;

/// weft's laboratory: papers' figures, modelled disks, traces, and the engine under simulated
/// faults.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    bin_name = "weft",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
These commands are part of weft, and exit as its others do: see `weft --help`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print JSON instead of text (errors too, on standard output)
    #[arg(long, global = true)]
    json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Reproduce figures from papers; serve modelled disks as fast as real products
    Lab(LabArgs),
    /// Inspect and convert block traces; generate workloads
    Trace(TraceArgs),
    /// Replay a trace against an array, a disk, a file or an NBD export, and measure it
    Replay(ReplayArgs),
    /// Run the engine under simulated crashes and faults
    Simulate(SimulateArgs),
}

fn main() -> ExitCode {
    command_line::run(std::env::args_os(), |cli: &Cli| cli.json, run)
}

fn run(cli: &Cli) -> Outcome {
    match &cli.command {
        Command::Lab(args) => commands::lab(args, cli.json),
        Command::Trace(args) => commands::trace(args, cli.json),
        Command::Replay(args) => commands::replay(args, cli.json),
        Command::Simulate(args) => commands::simulate(args, cli.json),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_help_is_sound() {
        weft_cli::command_line::check_help(super::Cli::command());
    }
}
