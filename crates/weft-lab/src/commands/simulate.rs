//! `weft simulate`: runs the engine under simulated crashes and faults.

use clap::Args;
use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_cli::progress::Progress;
use weft_sim::{Simulation, simulate as run};

/// `weft simulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each run puts an array under a random workload with power cuts, disk failures, read errors and \
slow disks, in virtual time, and compares every byte read with a reference model. The same seed \
always gives the same run. If runs fail, their seeds are listed, and the exit code is 1.

Examples:
  weft simulate --seed 1 --runs 1000
  weft simulate --seed 4711            (replays one run)")]
pub struct SimulateArgs {
    /// Seed of the first run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of runs, with consecutive seeds
    #[arg(long, default_value_t = 1, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: u64,
}

/// `weft simulate`.
///
/// # Errors
/// If runs fail; the failing seeds are listed.
pub fn simulate(args: &SimulateArgs, json: bool) -> Outcome {
    let simulation =
        Simulation { seed: args.seed, runs: args.runs, keep_going: true, ..Simulation::default() };
    let mut progress = Progress::new("simulate", args.runs, json);
    let (mut done, mut requests, mut cuts) = (0, 0, 0);
    let failures = run(&simulation, |seed, outcome| {
        done += 1;
        match outcome {
            Ok(report) => {
                requests += report.requests;
                cuts += report.cuts;
            }
            Err(_) => progress.say(&format!("seed {seed} FAILED")),
        }
        progress.at(done, args.runs, &format!("{done} of {} runs", args.runs));
    });
    drop(progress);
    let seeds: Vec<u64> = failures.iter().map(|failure| failure.seed).collect();
    if json {
        answer(&json!({
            "runs": args.runs, "requests": requests, "power_cuts": cuts, "failed_seeds": seeds
        }))?;
    } else {
        outln!(
            "{} runs, {requests} requests, {cuts} power cuts, {} failures",
            args.runs,
            seeds.len()
        );
        for failure in &failures {
            outln!("{failure}");
        }
    }
    match seeds.first() {
        Some(seed) => Err(Failure::new(format!("{} runs failed", seeds.len()))
            .hint(format!("`weft simulate --seed {seed}` replays the first one exactly"))),
        None => Ok(()),
    }
}
