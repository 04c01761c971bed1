//! The crash simulator: ten seeds pass; then one guarantee of the engine is removed, and a seed
//! finds the violation.
//!
//! `cargo run -p weft-sim --example simulate`. `weft simulate` has more to choose.

use weft_code::CodeSpec;
use weft_sim::{Canary, Options, Simulation, run, simulate};

/// Runs both.
///
/// # Panics
/// If a seed fails that must not, or none does that must.
pub fn main() {
    let mut options = Options { lives_max: Some(3), ..Options::default() };
    options.filter.requests_max = Some(60);
    options.filter.code = Some((CodeSpec::Raid6, 5));

    let sound = Simulation { runs: 10, options: options.clone(), ..Simulation::default() };
    let failures = simulate(&sound, |seed, outcome| {
        if let Ok(report) = outcome {
            let (cuts, losses) = (report.cuts, report.losses);
            println!(
                "seed {seed}: {} requests, {cuts} power cuts, {losses} lost disks: held",
                report.requests
            );
        }
    });
    assert!(failures.is_empty(), "{}", failures[0]);

    // Flushes that do nothing, below an engine that relies on them.
    options.canary = Some(Canary::Flush);
    let failure = (0..120).find_map(|seed| run(seed, &options).err()).expect("a seed notices");
    println!("without flushes seed {} finds: {}", failure.seed, failure.text);
}
