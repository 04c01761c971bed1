//! A fixed set of seeds: whole arrays under load, with crashes and failures. A seed that once found
//! a fault stays here.

use weft_sim::{Options, Simulation, Story, every_cut, run, simulate};

/// Seeds that found faults in the engine, or in the simulator's own rules, before power cuts left
/// sectors unreadable.
const REGRESSIONS: [u64; 29] = [
    3, 38, 63, 70, 103, 131, 132, 192, 216, 218, 228, 321, 9013, 9018, 20057, 30351, 30463, 30626,
    30724, 900_168, 901_967, 903_043, 908_410, 908_934, 909_061, 912_903, 913_902, 914_543,
    1_011_152,
];

/// Seeds that found faults since.
const TORN: [u64; 12] = [
    1_010_026, 1_010_317, 1_010_626, 2_000_636, 3_001_174, 3_001_266, 3_001_556, 3_003_957,
    3_005_365, 6_000_397, 6_007_476, 6_016_818,
];

fn all_pass(seed: u64, runs: u64, options: Options) {
    let simulation = Simulation { seed, runs, options, ..Simulation::default() };
    let failures = simulate(&simulation, |_, _| {});
    assert!(failures.is_empty(), "{}", failures[0]);
}

#[test]
fn what_was_found_once_does_not_come_back() {
    for seed in REGRESSIONS {
        if let Err(failure) = run(seed, &Options { whole_sectors: true, ..Options::default() }) {
            panic!("{failure}");
        }
    }
    TORN.into_iter().for_each(|seed| all_pass(seed, 1, Options::default()));
}

#[test]
fn arrays_survive_what_their_codes_survive() {
    all_pass(2000, 30, Options::default());
}

#[test]
fn disks_that_lie_are_found_out() {
    all_pass(1, 12, Options { story: Story::Silent, ..Options::default() });
}

#[test]
fn an_array_that_lost_too_much_says_so() {
    all_pass(1, 12, Options { story: Story::Beyond, ..Options::default() });
}

#[test]
fn a_small_run_survives_a_cut_at_any_step() {
    let mut options = Options { quiet: true, ..Options::default() };
    options.wishes.requests_max = Some(3);
    match every_cut(7, &options, 13) {
        Ok(cuts) => assert!(cuts > 10, "{cuts}"),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    let options = Options::default();
    let simulation =
        Simulation { seed: 500, runs: 4, doublecheck: true, options, ..Simulation::default() };
    let failures = simulate(&simulation, |_, _| {});
    assert!(failures.is_empty(), "{}", failures[0]);
}
