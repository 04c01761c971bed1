//! `weft simulate`: runs the engine under simulated crashes and faults.

use serde_json::json;
use weft_sim::{Simulation, simulate as run};

use crate::cli::SimulateArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{answer, outln};
use crate::report::progress::Progress;

/// `weft simulate`: fails with the list of failing seeds.
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
