//! Rebuilds under user load in real time, on modelled hard disks over NBD: weft's default, its
//! disk-oriented rebuild (DOR), and Linux MD itself in a virtual machine on the same disks.
//!
//! A raid5 of three disks loses one, a fourth replaces it, and `weft replay` issues the same
//! generated trace to the array, for weft over NBD, for MD to `/dev/md0` inside the guest. Measured
//! are the response times, from `weft replay`, of the requests that were due during the rebuild,
//! and the duration of the rebuild. *Full speed* is reached when nine of ten reads of the lost
//! member, over ten seconds, find their data on the replacement: weft counts them; for MD they
//! follow from the trace, its layout, and the progress in `sync_completed`. Takes some minutes,
//! since the time is real.

#[path = "../tests/common/mod.rs"]
mod common;
mod modelled;

use std::fs::{self, File};
use std::time::{Duration, Instant};

use common::Bench;
use modelled::{Disks, Figure, UNIT, guest, latency_ms, print_row};
use weft_testkit::{Guest, Process};
use weft_trace::{Op, ReadOptions};

const MODEL: &str = "st3300831as";
const MEMBER_MIB: u64 = 512;
const DISKS: u64 = 3;
const SET: Disks = Disks::raid5(MODEL, MEMBER_MIB, DISKS);
/// The slot that is lost.
const LOST: u64 = 1;
/// The papers' rate limits, bytes per second on each member.
const BAND: (u64, u64) = (10_000_000, 30_000_000);
const WORKLOAD: &str = "pro-financial";
/// More than any rebuild needs.
const REQUESTS: &str = "40000";
const ROUNDS: usize = 3;
/// The healthy array is measured for this long before.
const HEALTHY_S: &str = "15";
const REPLAY: [&str; 7] =
    ["replay", "--trace", "load.csv", "--fit", "exact", "--overwrite", "--json"];
/// Reads are looked at over this time.
const WINDOW_S: f64 = 10.0;
const FULL_SPEED: f64 = 0.9;

/// weft's policies, as options of `weft rebuild`.
const WAYS: [(&str, &[&str]); 2] = [
    ("weft, DOR", &["--order", "ascending", "--pace", "greedy", "--piggyback", "off"]),
    ("weft, default", &["--defaults"]),
];

/// The result of one rebuild.
struct Turn {
    healthy_ms: f64,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    rebuild_s: f64,
    full_speed_s: f64,
}

/// A read of the lost member: when, and whether its replacement had it.
type Read = (f64, bool);

fn main() {
    let mut bench = Bench::new("pro");
    bench.weft(&[
        "trace",
        "generate",
        WORKLOAD,
        "--requests",
        REQUESTS,
        "--volume",
        &volume(),
        "-o",
        "load.csv",
    ]);
    let guest = Guest::find(bench.scratch.path());
    let mut names: Vec<String> = WAYS.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.extend(guest.as_ref().map(|guest| format!("Linux MD {}", guest.release())));
    let mut turns: Vec<Vec<Turn>> = names.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for (number, name) in names.iter().enumerate() {
            let turn = match (WAYS.get(number), &guest) {
                (Some((_, policy)), _) => weft(&mut bench, policy),
                (None, Some(_)) => md(&bench),
                (None, None) => unreachable!("there are no more names"),
            };
            eprintln!(
                "round {round}, {name}: healthy {:.1} ms, rebuilding {:.1} ms, {:.1} s",
                turn.healthy_ms, turn.mean_ms, turn.rebuild_s
            );
            turns[number].push(turn);
        }
    }
    println!("\n### Rebuilds under user load\n");
    println!(
        "raid5 of {DISKS} modelled {MODEL} of {MEMBER_MIB} MiB, units of 64 KiB, {WORKLOAD} (generated), band {} to {} MB/s;\n\
         medians of {ROUNDS} rebuilds, and the least and the most.\n",
        BAND.0 / 1_000_000,
        BAND.1 / 1_000_000
    );
    println!("| | healthy: mean ms | mean ms | p50 ms | p99 ms | rebuild s | full speed after s |");
    println!("|---|---|---|---|---|---|---|");
    for (name, turns) in names.iter().zip(&turns) {
        let figures: [Figure<Turn>; 6] = [
            (|t| t.healthy_ms, 1),
            (|t| t.mean_ms, 1),
            (|t| t.p50_ms, 1),
            (|t| t.p99_ms, 1),
            (|t| t.rebuild_s, 1),
            (|t| t.full_speed_s, 1),
        ];
        print_row(name, turns, &figures);
    }
}

/// Bytes that the load goes to: a little less than the array has, for labels.
fn volume() -> String {
    (((MEMBER_MIB - 32) * (DISKS - 1)) << 20).to_string()
}

fn weft(bench: &mut Bench, policy: &[&str]) -> Turn {
    let (process, uris) = SET.serve(bench);
    let uri = SET.array(bench, &uris, &[]);
    let (least, most) = (BAND.0.to_string(), BAND.1.to_string());
    bench.weft(&["throttle", "t", "--min", &least, "--max", &most]);
    bench.weft(&[&["rebuild", "t"], policy].concat());
    let healthy = bench.weft(&[&REPLAY[..], &["--duration", HEALTHY_S, &uri]].concat());
    bench.weft(&["fail", "t", &LOST.to_string()]);
    let found = bench.path("found.json");
    let mut replay = bench.command(&[&REPLAY[..], &[&uri]].concat());
    let replay = Process::spawn(replay.stdout(File::create(&found).expect("a file for output")));
    let start = Instant::now();
    bench.weft(&["add", "t", &uris[uris.len() - 1]]);
    let mut samples: Vec<(f64, f64, f64)> = Vec::new();
    loop {
        let status = bench.status("t");
        let counts = &status["rebuild"]["counts"];
        let count = |what: &str| counts[what].as_f64();
        if let (Some(hit), Some(missed)) = (count("reads_redirected"), count("reads_reconstructed"))
        {
            samples.push((start.elapsed().as_secs_f64(), hit, missed));
        }
        if status["state"] == "healthy" {
            break;
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    let rebuild_s = start.elapsed().as_secs_f64();
    assert!(replay.terminate().success(), "the replay failed");
    bench.terminate();
    assert!(process.terminate().success(), "the disks failed");
    let full_speed_s = samples.iter().find_map(|(now, hit, missed)| {
        let before = samples.iter().rev().find(|(then, ..)| then + WINDOW_S <= *now)?;
        let (hit, missed) = (hit - before.1, missed - before.2);
        (hit + missed > 0.0 && hit / (hit + missed) >= FULL_SPEED).then_some(*now)
    });
    let text = fs::read_to_string(&found).expect("what the replay found");
    turn(&healthy, &text, rebuild_s, full_speed_s.unwrap_or(rebuild_s))
}

/// The results of the replays, as JSON: of the healthy array, and during the rebuild.
fn turn(healthy: &str, found: &str, rebuild_s: f64, full_speed_s: f64) -> Turn {
    let healthy_ms = latency_ms(healthy, "mean_ns");
    let [mean_ms, p50_ms, p99_ms] =
        ["mean_ns", "p50_ns", "p99_ns"].map(|what| latency_ms(found, what));
    Turn { healthy_ms, mean_ms, p50_ms, p99_ms, rebuild_s, full_speed_s }
}

/// Linux MD: the same disks, trace and generator, in a virtual machine.
fn md(bench: &Bench) -> Turn {
    let (process, uris) = SET.serve(bench);
    let script = MD
        .replace("@MIN@", &(BAND.0 / 1000).to_string())
        .replace("@MAX@", &(BAND.1 / 1000).to_string())
        .replace("@HEALTHY@", HEALTHY_S);
    let output = guest(bench, &uris).run(&script).success();
    assert!(process.terminate().success(), "the disks failed");
    let parts: Vec<&str> = output.split("=====\n").collect();
    let [log, healthy, found] = parts[..] else { panic!("{output}") };
    // Seconds of uptime, and how far it was in sectors.
    let samples: Vec<(f64, u64)> = log
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("at ")?.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.parse().unwrap_or(0)))
        })
        .collect();
    let start = samples.first().expect("samples").0;
    let rebuild_s = samples.last().expect("samples").0 - start;
    let reads = reads_of_md(bench, &samples, start, rebuild_s);
    let full_speed_s = reads.iter().find_map(|(now, _)| {
        let window: Vec<bool> = reads
            .iter()
            .filter(|(at, _)| *at <= *now && *at > now - WINDOW_S)
            .map(|(_, hit)| *hit)
            .collect();
        let hits = window.iter().filter(|hit| **hit).count();
        (*now >= WINDOW_S && hits as f64 >= FULL_SPEED * window.len() as f64).then_some(*now)
    });
    turn(healthy, found, rebuild_s, full_speed_s.unwrap_or(rebuild_s))
}

/// The trace's reads of the lost member during the rebuild (layout left-symmetric).
fn reads_of_md(bench: &Bench, samples: &[(f64, u64)], start: f64, rebuild_s: f64) -> Vec<Read> {
    let trace =
        weft_trace::open(&bench.path("load.csv"), &ReadOptions::default()).expect("the trace");
    let records = trace.map(|record| record.expect("a sound trace"));
    let during = records
        .map(|record| (record.at_ns as f64 / 1e9, record))
        .take_while(|(at, _)| *at < rebuild_s);
    let lost = during.filter(|(_, record)| record.op == Op::Read).filter_map(|(at, record)| {
        let (stripe, unit) =
            (record.offset / UNIT / (DISKS - 1), record.offset / UNIT % (DISKS - 1));
        let parity = DISKS - 1 - stripe % DISKS;
        let is_lost = (parity + 1 + unit) % DISKS == LOST;
        is_lost.then_some((at, stripe * UNIT / 512))
    });
    lost.map(|(at, sector)| {
        let known = samples.iter().take_while(|(then, _)| then - start <= at).last();
        (at, known.is_some_and(|(_, done)| *done > sector))
    })
    .collect()
}

const MD: &str = "\
cp load.csv /tmp
cd /tmp
mdadm --create /dev/md0 --run --level=5 -n3 --chunk=64 --assume-clean --bitmap=none /dev/vd[abc]
echo @MIN@ >/proc/sys/dev/raid/speed_limit_min
echo @MAX@ >/proc/sys/dev/raid/speed_limit_max
weft replay --trace load.csv --fit exact --overwrite --json --duration @HEALTHY@ /dev/md0 >/tmp/healthy
mdadm /dev/md0 --fail /dev/vdb
mdadm /dev/md0 --remove /dev/vdb
weft replay --trace load.csv --fit exact --overwrite --json /dev/md0 >/tmp/found &
replay=$!
mdadm /dev/md0 --add /dev/vdd
until [ $(cat /sys/block/md0/md/sync_action) = recover ]; do sleep 0.05; done
while [ $(cat /sys/block/md0/md/sync_action) = recover ]; do
  echo at $(cut -d' ' -f1 /proc/uptime) $(cat /sys/block/md0/md/sync_completed)
  sleep 0.25
done
kill -TERM $replay
wait $replay
grep -q '.UUU.' /proc/mdstat
echo =====
cat /tmp/healthy
echo =====
cat /tmp/found
";
