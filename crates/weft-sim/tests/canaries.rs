//! The simulator notices each canary: with one of the engine's guarantees removed a few seeds are
//! enough to find a violation that this can cause, and the unchanged engine passes the same seeds
//! on the same arrays.

use weft_array::Consistency;
use weft_code::CodeSpec;
use weft_sim::{Canary, Options, run};

/// Seeds within which each canary must be caught.
const SEEDS: u64 = 120;

/// Arrays that need the guarantee.
fn options(canary: Canary) -> Options {
    let mut options = Options { lives_max: Some(3), ..Options::default() };
    options.filter.requests_max = Some(60);
    options.filter.policy = Some(match canary {
        Canary::DirtyMark | Canary::Exclusion | Canary::Continue => Consistency::Bitmap,
        _ => Consistency::Ppl,
    });
    options.filter.code = Some(match canary {
        Canary::Continue => (CodeSpec::Raid1, 3),
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
