//! One life of an array under user load in real time, on modelled hard disks over NBD: healthy, a
//! disk lost, rebuilt, grown by a disk, and larger.
//!
//! Each system has what the one above it has, and one thing more: RAID-6 of nine disks, DRC-G, a
//! cache that knows which blocks are lost, the order of popularity, a latency target. Linux MD
//! lives the same life in a virtual machine on the same disks. `weft replay` issues the same
//! generated requests in each phase, those of WebSearch, scaled onto the array. Measured are their
//! response times and the durations of the phases that end by themselves. Takes some twenty
//! minutes, since the time is real; `weft lab run together` tells more, in virtual time.

#[path = "../tests/common/mod.rs"]
mod common;
mod modelled;

use std::fs::{self, File};
use std::time::{Duration, Instant};

use common::Bench;
use modelled::{Disks, guest, latency_ms, print_row};
use weft_testkit::{Guest, Process};

const RAID6: Disks =
    Disks { model: "st3300831as", mib: 128, members: 9, more: 2, code: "raid6", data: 7 };
const DRC_G: Disks = Disks { code: "drc-g:4,2,1", data: 4, ..RAID6 };
const WORKLOAD: &str = "pro-websearch";
/// More than any phase needs.
const REQUESTS: &str = "60000";
/// Seconds of the phases that do not end by themselves.
const PHASE_S: u64 = 15;
/// Limits of the rate of rebuild and reshape, bytes per second on each disk.
const BAND: (u64, u64) = (10_000_000, 30_000_000);
const CACHE: &str = "16M";
const TARGET: &str = "20ms";
const ROUNDS: usize = 3;
const PHASES: [&str; 5] = ["healthy", "degraded", "rebuild", "reshape", "larger"];

/// A system: its disks, and what it has.
struct System {
    name: &'static str,
    disks: Disks,
    cache: bool,
    popularity: bool,
    target: bool,
}

const fn system(name: &'static str, disks: Disks, parts: usize) -> System {
    System { name, disks, cache: parts > 0, popularity: parts > 1, target: parts > 2 }
}

const SYSTEMS: [System; 5] = [
    system("weft, RAID-6", RAID6, 0),
    system("+ DRC-G", DRC_G, 0),
    system("+ cache", DRC_G, 1),
    system("+ popularity", DRC_G, 2),
    system("+ target", DRC_G, 3),
];

/// A life: of each phase the mean and the 99th percentile of the response times, milliseconds, and
/// how long it took, seconds.
type Life = Vec<(f64, f64, f64)>;

fn main() {
    let mut bench = Bench::new("together");
    for (seed, phase) in PHASES.iter().enumerate() {
        let (seed, file) = (seed.to_string(), format!("{phase}.csv"));
        let generate = ["trace", "generate", WORKLOAD, "--requests", REQUESTS];
        bench.weft(&[&generate[..], &["--seed", &seed, "-o", &file]].concat());
    }
    let guest = Guest::find(bench.scratch.path());
    let mut names: Vec<String> = SYSTEMS.iter().map(|system| system.name.to_owned()).collect();
    names.extend(guest.as_ref().map(|guest| format!("Linux MD {}, RAID-6", guest.release())));
    let mut lives: Vec<Vec<Life>> = names.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for (number, name) in names.iter().enumerate() {
            let life = match SYSTEMS.get(number) {
                Some(system) => weft(&mut bench, system),
                None => md(&bench),
            };
            eprintln!("round {round}, {name}: {life:.1?}");
            lives[number].push(life);
        }
    }
    println!("\n### One life of an array under user load\n");
    println!(
        "{} modelled {} of {} MiB, then one more, {WORKLOAD} (generated), rebuild and reshape at {} \
         to {} MB/s, cache {CACHE}, target {TARGET};\nmedians of {ROUNDS} lives, and the least and \
         the most. Mean and 99th percentile in ms, durations in s.\n",
        RAID6.members,
        RAID6.model,
        RAID6.mib,
        BAND.0 / 1_000_000,
        BAND.1 / 1_000_000
    );
    println!(
        "| | healthy: mean | p99 | degraded: mean | p99 | rebuild: mean | p99 | took | reshape: mean | p99 | took | larger: mean | p99 |"
    );
    println!("|{}", "---|".repeat(13));
    for (name, lives) in names.iter().zip(&lives) {
        print_row::<Life>(
            name,
            lives,
            &[
                (|life| life[0].0, 1),
                (|life| life[0].1, 0),
                (|life| life[1].0, 1),
                (|life| life[1].1, 0),
                (|life| life[2].0, 1),
                (|life| life[2].1, 0),
                (|life| life[2].2, 1),
                (|life| life[3].0, 1),
                (|life| life[3].1, 0),
                (|life| life[3].2, 1),
                (|life| life[4].0, 1),
                (|life| life[4].1, 0),
            ],
        );
    }
}

/// Lives a phase: runs `course` under load.
fn phase(bench: &Bench, phase: &str, uri: &str, course: impl FnOnce()) -> (f64, f64, f64) {
    let (file, found) = (format!("{phase}.csv"), bench.path("found.json"));
    let replay = ["replay", "--trace", &file, "--fit", "scale", "--overwrite", "--json", uri];
    let mut command = bench.command(&replay);
    let load = Process::spawn(command.stdout(File::create(&found).expect("a file for output")));
    let start = Instant::now();
    course();
    let took_s = start.elapsed().as_secs_f64();
    assert!(load.terminate().success(), "the replay failed");
    let found = fs::read_to_string(&found).expect("what the replay found");
    (latency_ms(&found, "mean_ns"), latency_ms(&found, "p99_ns"), took_s)
}

fn weft(bench: &mut Bench, system: &System) -> Life {
    let (process, uris) = system.disks.serve(bench);
    let cache = ["--cache", CACHE];
    let serve: &[&str] = if system.cache { &cache } else { &[] };
    let uri = system.disks.array(bench, &uris, serve);
    let (least, most) = (BAND.0.to_string(), BAND.1.to_string());
    bench.weft(&["throttle", "t", "--min", &least, "--max", &most]);
    if system.target {
        bench.weft(&["throttle", "t", "--latency", TARGET]);
    }
    let order: &[&str] = if system.popularity {
        &["--defaults"]
    } else {
        &["--order", "ascending", "--piggyback", "off"]
    };
    bench.weft(&[&["rebuild", "t"], order].concat());
    let wait = || std::thread::sleep(Duration::from_secs(PHASE_S));
    let [.., spare, more] = &uris[..] else { unreachable!("there are eleven disks") };
    let course = |name: &str| match name {
        "degraded" => {
            bench.weft(&["fail", "t", "0"]);
            wait();
        }
        "rebuild" => {
            bench.weft(&["add", "t", spare]);
            while bench.status("t")["state"] != "healthy" {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        "reshape" => {
            bench.weft(&["add", "t", more]);
            bench.weft(&["grow", "t", "--add", "1"]);
        }
        _ => wait(),
    };
    let life = PHASES.map(|name| phase(bench, name, &uri, || course(name))).to_vec();
    bench.terminate();
    assert!(process.terminate().success(), "the disks failed");
    life
}

/// Linux MD: the same disks, requests and generator, in a virtual machine.
fn md(bench: &Bench) -> Life {
    let (process, uris) = RAID6.serve(bench);
    let script = MD
        .replace("@MIN@", &(BAND.0 / 1000).to_string())
        .replace("@MAX@", &(BAND.1 / 1000).to_string())
        .replace("@PHASE@", &PHASE_S.to_string());
    let output = guest(bench, &uris).run(&script).success();
    assert!(process.terminate().success(), "the disks failed");
    let parts: Vec<&str> = output.split("=====\n").skip(1).collect();
    assert!(parts.len() == PHASES.len(), "{output}");
    (parts.iter())
        .map(|part| {
            let (times, found) = part.split_once('\n').expect("times, and what was found");
            let times: Vec<f64> = times.split(' ').filter_map(|at| at.parse().ok()).collect();
            let [from, to] = times[..] else { panic!("{output}") };
            (latency_ms(found, "mean_ns"), latency_ms(found, "p99_ns"), to - from)
        })
        .collect()
}

/// As much room before the data as weft leaves.
const MD: &str = "\
cp *.csv /tmp
cd /tmp
md=/sys/block/md0/md
now() { cut -d' ' -f1 /proc/uptime; }
phase() {
  weft replay --trace $1.csv --fit scale --overwrite --json /dev/md0 >found &
  replay=$!
  begin=$(now)
  $1 >/dev/null 2>&1
  end=$(now)
  kill -TERM $replay
  wait $replay
  echo =====
  echo $begin $end
  cat found
}
healthy() { sleep @PHASE@; }
degraded() { mdadm /dev/md0 --quiet --fail /dev/vda; mdadm /dev/md0 --quiet --remove /dev/vda; sleep @PHASE@; }
rebuild() {
  mdadm /dev/md0 --quiet --add /dev/vdj
  until [ $(cat $md/sync_action) = recover ]; do sleep 0.05; done
  while [ $(cat $md/sync_action) = recover ]; do sleep 0.1; done
}
reshape() {
  mdadm /dev/md0 --quiet --add /dev/vdk
  mdadm --grow --quiet /dev/md0 -n10
  while [ \"$(cat $md/sync_action) $(cat $md/reshape_position)\" != 'idle none' ]; do sleep 0.1; done
}
larger() { sleep @PHASE@; }
mdadm --create /dev/md0 --quiet --run --level=6 -n9 --chunk=64 --assume-clean --bitmap=none \\
  --force --homehost=any --data-offset=8M /dev/vd[abcdefghi]
echo @MIN@ >/proc/sys/dev/raid/speed_limit_min
echo @MAX@ >/proc/sys/dev/raid/speed_limit_max
for each in healthy degraded rebuild reshape larger; do phase $each; done
";
