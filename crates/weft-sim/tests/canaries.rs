//! The simulator would notice: with any one of the engine's guarantees taken away it finds out
//! within a few seeds, and with none taken away the same seeds pass.

use weft_code::CodeSpec;
use weft_sim::{Canary, Options, Policy, run};

/// Seeds within which each must be found.
const SEEDS: u64 = 20;

/// Arrays on which the guarantee is needed at all.
fn options(canary: Option<Canary>) -> Options {
    let mut options = Options { canary, lives_max: Some(3), ..Options::default() };
    options.wishes.requests_max = Some(60);
    let policy = match canary {
        Some(Canary::DirtyMark | Canary::Exclusion | Canary::GoOn) => Policy::Bitmap,
        _ => Policy::Ppl,
    };
    options.wishes.policy = Some(policy);
    options.wishes.code = Some(match canary {
        Some(Canary::GoOn) => (CodeSpec::Raid1, 3),
        _ => (CodeSpec::Raid6, 5),
    });
    options
}

#[test]
fn every_canary_is_caught() {
    for canary in Canary::ALL {
        let options = options(Some(canary));
        let found = (0..SEEDS).find(|seed| run(*seed, &options).is_err());
        assert!(found.is_some(), "{canary:?} was not noticed in {SEEDS} seeds");
    }
}

#[test]
fn the_engine_as_it_is_passes_the_same_seeds() {
    for seed in 0..SEEDS / 2 {
        if let Err(failure) = run(seed, &options(None)) {
            panic!("{failure}");
        }
    }
}
