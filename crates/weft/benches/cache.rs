//! A degraded array below a cache in real time, on modelled hard disks over NBD: without a cache,
//! and with policies that know and do not know what a miss costs.
//!
//! A raid5 of five disks is filled. Reads of 4 KiB, of a part of its blocks by Zipf's law (0.4), go
//! to it over NBD and warm the cache, first while nothing is lost, then after the loss of a disk.
//! Measured are, in this order:
//!
//! * the rate at which 60 requests in flight are served, without a rebuild, and the RGR meanwhile;
//! * the response times of requests that come at a rate of their own while the disk is rebuilt;
//! * the duration of this rebuild.
//!
//! All policies see the same requests. Takes some ten minutes, since the time is real.

#[path = "../tests/common/mod.rs"]
mod common;
mod modelled;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::time::{Duration, Instant};

use common::Bench;
use modelled::{Disks, Figure, latency_ms, outcome, print_row};
use serde_json::Value;
use weft_rt::Rng;
use weft_testkit::Process;

const SET: Disks =
    Disks { model: "wd10eals", mib: 320, members: 5, more: 1, code: "raid5", data: 4 };
const BLOCK: u64 = 4096;
/// Blocks of the array that are requested, one in this many; and those that the cache has room for.
const ONE_IN: u64 = 32;
const CACHE: &str = "10M";
/// The share of requests for the first x of n blocks is (x / n)^0.6.
const SHARE_ROOT: f64 = 1.0 / 0.6;
/// Requests to fill the cache, before the loss and after it, and those that are measured.
const FILL: u64 = 16_000;
const MEASURED: u64 = 8_000;
const IN_FLIGHT: &str = "60";
/// Requests per second while the disk is rebuilt, and for how long at most.
const RATE: u64 = 400;
const REBUILD_S: u64 = 120;
/// The rebuild's minimum rate, bytes per second.
const REBUILD_MIN: &str = "10000000";
const ROUNDS: usize = 3;

const POLICIES: [&str; 7] = ["off", "lru", "vdf-lru", "lfu", "vdf-lfu", "s3fifo", "vdf-s3fifo"];

/// The result of one policy in one round.
struct Turn {
    served_s: f64,
    rgr: f64,
    mean_ms: f64,
    p99_ms: f64,
    rebuild_s: f64,
}

fn main() {
    let mut bench = Bench::new("cache");
    let mut turns: Vec<Vec<Turn>> = POLICIES.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        traces(&bench, round);
        for (turns, policy) in turns.iter_mut().zip(POLICIES) {
            let turn = turn(&mut bench, policy);
            eprintln!(
                "round {round}, {policy}: {:.0}/s, RGR {:.3}, {:.1} ms, p99 {:.1} ms, {:.1} s",
                turn.served_s, turn.rgr, turn.mean_ms, turn.p99_ms, turn.rebuild_s
            );
            turns.push(turn);
        }
    }
    println!("\n### A cache above a degraded array\n");
    println!(
        "raid5 of {} modelled {} of {} MiB, units of 64 KiB, one disk lost; cache {CACHE};\n\
         medians of {ROUNDS} rounds, and the least and the most.\n",
        SET.members, SET.model, SET.mib
    );
    println!(
        "| policy | served per s, {IN_FLIGHT} in flight | RGR | rebuilding, {RATE}/s: mean ms | p99 ms | rebuild s |"
    );
    println!("|---|---|---|---|---|---|");
    for (policy, turns) in POLICIES.iter().zip(&turns) {
        let figures: [Figure<Turn>; 5] = [
            (|t| t.served_s, 0),
            (|t| t.rgr, 3),
            (|t| t.mean_ms, 1),
            (|t| t.p99_ms, 0),
            (|t| t.rebuild_s, 1),
        ];
        print_row(policy, turns, &figures);
    }
}

/// Writes the requests of a round.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below `count`")]
fn traces(bench: &Bench, round: usize) {
    let mut rng = Rng::new(round as u64 + 1);
    let blocks = SET.mib * (SET.members - 1) * (1 << 20) / BLOCK;
    // A little less than the array has, for labels.
    let count = (blocks - blocks / 8) / ONE_IN;
    let mut scattered: Vec<u64> = (0..count).map(|n| n * ONE_IN + rng.below(ONE_IN)).collect();
    for at in 1..scattered.len() {
        scattered.swap(at, rng.index(at + 1));
    }
    let mut write = |name: &str, requests: u64, interval_us: u64| {
        let mut trace = String::from("t_us,dev,offset,size,op\n");
        for n in 0..requests {
            let drawn = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let rank = (count as f64 * drawn.powf(SHARE_ROOT)) as usize;
            let offset = scattered[rank] * BLOCK;
            let _ = writeln!(trace, "{}.000,0,{offset},{BLOCK},R", n * interval_us);
        }
        fs::write(bench.path(name), trace).expect("a trace");
    };
    write("healthy.csv", FILL, 1);
    write("lost.csv", FILL, 1);
    write("measured.csv", MEASURED, 1);
    write("rebuilding.csv", RATE * REBUILD_S, 1_000_000 / RATE);
}

fn turn(bench: &mut Bench, policy: &str) -> Turn {
    let (process, uris) = SET.serve(bench);
    let cache = ["--cache", CACHE, "--cache-policy", policy];
    let uri = SET.array(bench, &uris, if policy == "off" { &[] } else { &cache });
    let closed = |bench: &Bench, trace: &str| {
        let how = ["--fit", "exact", "--closed", IN_FLIGHT, "--json"];
        bench.weft(&[&["replay", "--trace", trace], &how[..], &[&uri]].concat())
    };
    bench.weft(&["throttle", "t", "--min", REBUILD_MIN]);
    closed(bench, "healthy.csv");
    bench.weft(&["fail", "t", "1"]);
    closed(bench, "lost.csv");
    let before = counts(bench);
    let measured = closed(bench, "measured.csv");
    let after = counts(bench);
    let found = bench.path("found.json");
    let mut replay =
        bench.command(&["replay", "--trace", "rebuilding.csv", "--fit", "exact", "--json", &uri]);
    let replay = Process::spawn(replay.stdout(File::create(&found).expect("a file for output")));
    let start = Instant::now();
    bench.weft(&["add", "t", &uris[uris.len() - 1]]);
    while bench.status("t")["state"] != "healthy" {
        assert!(start.elapsed() < Duration::from_secs(REBUILD_S), "no more requests");
        std::thread::sleep(Duration::from_millis(100));
    }
    let rebuild_s = start.elapsed().as_secs_f64();
    assert!(replay.terminate().success(), "the replay failed");
    bench.terminate();
    assert!(process.terminate().success(), "the disks failed");
    let found = fs::read_to_string(&found).expect("what the replay found");
    Turn {
        served_s: outcome(&measured, "/requests_per_1000_s") / 1000.0,
        rgr: (after.1 - before.1) / (after.0 - before.0),
        mean_ms: latency_ms(&found, "mean_ns"),
        p99_ms: latency_ms(&found, "p99_ns"),
        rebuild_s,
    }
}

/// Blocks requested of the cache, and read from disks for that. Without a cache not a number.
fn counts(bench: &Bench) -> (f64, f64) {
    let json: Value = serde_json::from_str(&bench.weft(&["cache", "t", "--json"])).expect("JSON");
    let count = |name: &str| json["cache"][name].as_f64().unwrap_or(f64::NAN);
    (count("requested_blocks"), count("disk_blocks"))
}
