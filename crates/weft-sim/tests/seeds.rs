//! A fixed set of seeds: whole arrays under load, with crashes and failures. Changing what is drawn
//! changes the run of every seed, so a seed does not guard against one particular fault for long: a
//! fault that a seed finds gets a test of its own in `weft-array/tests`.

use weft_sim::{Options, Scenario, Simulation, every_cut, simulate};

#[path = "../examples/simulate.rs"]
mod example;

fn all_pass(seed: u64, runs: u64, options: Options) {
    let simulation = Simulation { seed, runs, options, ..Simulation::default() };
    let failures = simulate(&simulation, |_, _| {});
    assert!(failures.is_empty(), "{}", failures[0]);
}

#[test]
fn arrays_survive_what_their_codes_survive() {
    all_pass(2000, 70, Options::default());
}

#[test]
fn disks_that_lie_are_found_out() {
    all_pass(1, 12, Options { scenario: Some(Scenario::SilentCorruption), ..Options::default() });
}

#[test]
fn an_array_that_lost_too_much_says_so() {
    all_pass(1, 12, Options { scenario: Some(Scenario::BeyondTolerance), ..Options::default() });
}

#[test]
fn a_small_run_survives_a_cut_at_any_step() {
    let mut options = Options { crashes_only: true, ..Options::default() };
    options.filter.requests_max = Some(3);
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

#[test]
fn the_example_finds_a_removed_guarantee_and_nothing_else() {
    example::main();
}
