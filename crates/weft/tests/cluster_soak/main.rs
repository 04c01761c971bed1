//! A cluster outlives what happens to its machines: keepers, nodes, etcds and disk servers are
//! killed, stopped for up to a minute, cut off, slowed down and evicted, and a disk is lost, while
//! programs on all nodes write, read and lock. What each has synced is there, what one wrote the
//! others read, and the programs of a node to which nothing happens see pauses only.
//!
//! Machines are network namespaces on this one. `WEFT_CLUSTER_MINUTES=N` lets it go on for so long,
//! and `WEFT_SEED=N` has the events of an earlier run again: they depend on the seed, what the
//! programs do in between on the moment. `./soak cluster` runs it so.

#[path = "../common/mod.rs"]
mod common;
mod context;
mod network;
mod plan;
mod programs;
mod relay;
mod relay_story;
mod room;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::append_load::AppendLoad;
use programs::Programs;
use room::Room;
use weft_testkit::{Need, Rng, command, have};

const NEEDS: [Need; 8] = [
    Need::Root,
    Need::Fuse,
    Need::Tool("etcd"),
    Need::Tool("ip"),
    Need::Tool("fsx"),
    Need::Tool("fio"),
    Need::Tool("git"),
    Need::Tool("sqlite3"),
];
/// Says that this process has namespaces of its own; its value is why it has not.
const ALONE: &str = "WEFT_CLUSTER_ALONE";
const ROUND: Duration = Duration::from_secs(75);
/// A round in `./test`.
const SHORT_ROUND: Duration = Duration::from_secs(12);

#[test]
fn a_cluster_outlives_what_happens_to_its_machines() {
    if !have(&NEEDS) {
        return;
    }
    match std::env::var(ALONE) {
        Ok(why_not) => soak(&why_not),
        Err(_) => alone(),
    }
}

/// Runs this test in namespaces of its own: whatever it starts and mounts ends with it.
fn alone() {
    let namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let unshare = || {
        let mut unshare = command("unshare");
        unshare.args(namespaces).arg("--").args(["sh", "-c"]);
        unshare
    };
    // Names of network namespaces are files there.
    let prepared = "mount -t tmpfs tmpfs /run";
    let try_it = format!("{prepared} && ip netns add try && ip link add br0 type bridge");
    let tried = unshare().arg(try_it).stdout(Stdio::null()).output().expect("start unshare");
    let program = std::env::current_exe().expect("this program");
    let own = ["--exact", "a_cluster_outlives_what_happens_to_its_machines", "--nocapture"];
    let mut again: Command = if tried.status.success() {
        let mut again = unshare();
        again.arg(format!("{prepared} && exec \"$@\"")).arg("sh").arg(program).args(own);
        again.env(ALONE, "");
        again
    } else {
        let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        let mut again = command(program.to_str().expect("text"));
        again.args(own).env(ALONE, format!("no namespaces: {why}"));
        again
    };
    again.process_group(0);
    if minutes().is_some() {
        let status = again.status().expect("start this program again");
        assert!(status.success(), "it ended with {status}");
    } else {
        weft_testkit::run(&mut again);
    }
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

fn minutes() -> Option<u64> {
    number("WEFT_CLUSTER_MINUTES")
}

fn soak(why_not: &str) {
    let seed = number("WEFT_SEED").unwrap_or(1);
    let (length, round) = match minutes() {
        Some(minutes) => (Duration::from_secs(60 * minutes), ROUND),
        None => (Duration::ZERO, SHORT_ROUND),
    };
    let start = Instant::now();
    watch();
    if !why_not.is_empty() {
        println!("networks are not cut: {why_not}");
    }
    let mut room = Room::new(why_not.is_empty());
    room.become_whole().unwrap_or_else(|error| panic!("at the start: {error}"));
    for number in 0_u64.. {
        let seed = seed + number;
        room.say(&format!("round {number}, seed {seed}"));
        if let Err(error) = one_round(&mut room, seed, number, round) {
            println!("{}", room.logs());
            println!("round {number} has failed; its events come again with WEFT_SEED={seed}");
            panic!("{error}");
        }
        if start.elapsed() >= length {
            break;
        }
    }
}

/// Counts the steps of the test itself.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// Ends this process if the test itself hangs.
fn watch() {
    std::thread::spawn(|| {
        let (mut last, mut since) = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = STEPS.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > Duration::from_secs(600) {
                println!("the test hangs\n{}", room::waiting_threads());
                std::process::exit(101);
            }
        }
    });
}

fn one_round(room: &mut Room, seed: u64, number: u64, length: Duration) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    // Before all else: the programs draw as often as they like.
    let events = room.plan(&mut rng, length);
    let (seats, folder) = (room.seats(), format!("round{number}"));
    let lists = AppendLoad::start(&seats, &folder, 3, &mut rng);
    let scratch = room.bench.path(&format!("scratch{number}"));
    std::fs::create_dir(&scratch).map_err(|error| error.to_string())?;
    let programs = Programs::start(&seats, &folder, &scratch, &mut rng);
    let start = Instant::now();
    let mut to_come = events.iter().peekable();
    let mut to_undo: Vec<(Duration, usize)> = Vec::new();
    while to_come.peek().is_some() || !to_undo.is_empty() || start.elapsed() < length {
        let now = start.elapsed();
        STEPS.fetch_add(1, Ordering::Relaxed);
        if let Some(event) = to_come.next_if(|event| event.at <= now) {
            match room.strike(event) {
                Some(at) => {
                    room.say(&format!("{event}"));
                    to_undo.push((now + event.lasts, at));
                }
                None => room.say(&format!("{event}: not possible now")),
            }
        }
        while let Some(due) = to_undo.iter().position(|(until, _)| *until <= now) {
            let (_, at) = to_undo.remove(due);
            room.undo(at);
        }
        room.tend()?;
        let faults = [lists.faults(), programs.faults()].concat();
        if !faults.is_empty() {
            return Err(faults.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    room.become_whole()?;
    let done = programs.finish();
    let summary = lists.finish();
    let done = done.map_err(|faults| faults.join("\n"))?;
    let summary = summary.map_err(|faults| faults.join("\n"))?;
    room.say(&format!("         {summary:?}; {done}"));
    room.examine()?;
    std::fs::remove_dir_all(seats[0].at.join(&folder))
        .map_err(|error| format!("remove: {error}"))?;
    std::fs::remove_dir_all(&scratch).map_err(|error| error.to_string())?;
    Ok(())
}
