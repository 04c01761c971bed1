//! Whole clusters: machines with keepers and nodes of one file system, a coordinator, disks with
//! fences and a network, in virtual time. Whatever crashes, stops, is cut off, late or lost, no
//! block is written by an incarnation that was fenced; every sector and name is a register for all
//! nodes, appended records stay in their places, and what was synced is there. After the faults all
//! machines work again, and at the end parity matches and nothing is wrong with the metadata.
#![allow(clippy::cast_possible_truncation, reason = "sizes and counts of a test are small")]

mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;

use weft_testkit::for_seeds;

use world::canary::Canary;
use world::{Outcome, Scenario, run};

/// Seeds that `./test` runs; `WEFT_SEEDS` runs more.
const SEEDS: u64 = 24;

/// In how many of the seeds that `./test` runs this happens at least: what happens to fewer is not
/// tried.
const REACHED: [(&str, u64); 16] = [
    ("takeovers", 20),
    ("recoveries", 14),
    ("expelled", 18),
    ("killed", 14),
    ("killed_in_takeover", 2),
    ("left", 3),
    ("evicted", 3),
    ("pauses", 6),
    ("relayed", 2),
    ("restarts", 10),
    ("power_losses", 3),
    ("lost", 6),
    ("rebuilt", 2),
    ("scrubs", 2),
    ("balances", 2),
    ("sets", 1),
];

#[test]
fn what_was_synced_is_there_and_nodes_see_one_file_system() {
    let all = RefCell::new((0, 0, BTreeMap::<&str, (u64, u64)>::new()));
    for_seeds(0..SEEDS, |rng| {
        let scenario = Scenario { seed: rng.next_u64(), canary: Canary::None };
        let Outcome { violations, is_beyond, counts } = run(scenario);
        assert!(violations.is_empty(), "{scenario:?}: {violations:#?}");
        let (seeds, beyond, sums) = &mut *all.borrow_mut();
        (*seeds, *beyond) = (*seeds + 1, *beyond + u64::from(is_beyond));
        for (what, count) in counts.list() {
            let (all, of) = sums.entry(what).or_default();
            (*all, *of) = (*all + count, *of + u64::from(count > 0));
        }
    });
    let (seeds, beyond, sums) = all.into_inner();
    eprintln!("{seeds} seeds, {beyond} of them beyond redundancy; what, and in how many: {sums:?}");
    // Tests that reach nothing would hold anything.
    if seeds < SEEDS {
        return;
    }
    assert!(10 * beyond <= seeds, "{beyond} of {seeds} seeds lost too many disks");
    for (what, least) in REACHED {
        let (_, of) = sums[what];
        assert!(of * SEEDS >= least * seeds, "{what} in {of} of {seeds} seeds: {sums:?}");
    }
    assert!(sums["writes"].0 > 100 * seeds, "{sums:?}");
}

/// A build that breaks one rule must be found out.
fn is_caught(canary: Canary) {
    let violations = |seed: &u64| run(Scenario { seed: *seed, canary }).violations;
    let caught =
        (0..200).find_map(|seed| violations(&seed).first().map(|what| (seed, what.clone())));
    let (seed, what) = caught.unwrap_or_else(|| panic!("{canary:?} was not found out"));
    eprintln!("{canary:?} found out by seed {seed}: {what}");
}

#[test]
fn a_fence_that_is_skipped_is_caught() {
    is_caught(Canary::FenceSkipped);
}

#[test]
fn a_token_that_is_not_revoked_is_caught() {
    is_caught(Canary::TokenNotRevoked);
}

#[test]
fn a_log_that_is_recovered_twice_is_caught() {
    is_caught(Canary::RingRecoveredTwice);
    // And nothing is found if it is recovered once.
    for seed in 0..3 {
        let scenario = Scenario { seed, canary: Canary::OnlyNodesDie };
        assert_eq!(run(scenario).violations, [""; 0], "{scenario:?}");
    }
}

#[test]
fn a_keeper_that_grants_what_nodes_still_have_is_caught() {
    is_caught(Canary::GrantsEarly);
}

#[test]
fn a_run_repeats_exactly() {
    for seed in 0..2 {
        let scenario = Scenario { seed, canary: Canary::None };
        assert_eq!(run(scenario).counts, run(scenario).counts, "seed {seed}");
    }
}
