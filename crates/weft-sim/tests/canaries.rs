//! The simulator would notice: with any one of the engine's guarantees taken away it finds out
//! within a few seeds, by the violation that this must cause; and with none taken away the same
//! arrays pass the same seeds.

use weft_code::CodeSpec;
use weft_sim::{Canary, Options, Policy, run};

/// Seeds within which each must be found.
const SEEDS: u64 = 120;

/// Arrays on which the guarantee is needed at all.
fn options(canary: Canary) -> Options {
    let mut options = Options { lives_max: Some(3), ..Options::default() };
    options.wishes.requests_max = Some(60);
    options.wishes.policy = Some(match canary {
        Canary::DirtyMark | Canary::Exclusion | Canary::GoOn => Policy::Bitmap,
        _ => Policy::Ppl,
    });
    options.wishes.code = Some(match canary {
        Canary::GoOn => (CodeSpec::Raid1, 3),
        _ => (CodeSpec::Raid6, 5),
    });
    options
}

#[test]
fn every_canary_is_caught() {
    for canary in Canary::ALL {
        let options = Options { canary: Some(canary), ..options(canary) };
        let caught = |seed: &u64| {
            let failure = run(*seed, &options).err();
            failure.is_some_and(|failure| canary.violations().contains(&failure.kind))
        };
        let found = (0..SEEDS).find(caught);
        assert!(found.is_some(), "{canary:?} was not noticed in {SEEDS} seeds");
    }
}

#[test]
fn the_engine_as_it_is_passes_the_same_seeds() {
    let mut tried: Vec<Options> = Vec::new();
    for options in Canary::ALL.map(options) {
        if tried.contains(&options) {
            continue;
        }
        for seed in 0..SEEDS {
            if let Err(failure) = run(seed, &options) {
                panic!("{failure}");
            }
        }
        tried.push(options);
    }
}
