//! One, two and four nodes on files of their own, what that costs keeper, nodes and disk servers,
//! and what it means for more nodes than fit on this machine.
//!
//! *The model of the plan*: each node is a machine of its own whose program does one thing after
//! the other, as fast as a processor lets program and node (their processor time together, so no
//! node is faster). For each thing the keeper, and each server of a disk, works for the processor
//! time that was measured; each of these has one processor, and things wait for it in a queue. No
//! time passes in networks and disks. Then a closed queueing network tells how much N nodes do
//! ([`weft_bench::closed_network`]).

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;

use weft_bench::{closed_network, median};

use super::{DISKS, Machines, Spent, read_stream, side_by_side, sync, write_stream};

const NODES: usize = 4;
const COUNTS: [usize; 3] = [1, 2, NODES];
/// Of all nodes together.
const FILES: usize = 8000;
const FILES_SYNCED: usize = 400;
const STREAM_MIB: usize = 384;
const FILE_BYTES: usize = 4096;
const ROUNDS: usize = 5;
const PLANNED: [u32; 5] = [1, 4, 10, 20, 50];

/// What is done, its unit, and how many of them.
const PHASES: [(&str, &str, usize); 7] = [
    ("create and write 4 KiB", "file", FILES),
    ("read it on another node, the first time", "file", FILES),
    ("list it with attributes on a third node", "file", FILES),
    ("delete", "file", FILES),
    ("create, write 4 KiB, fsync", "file", FILES_SYNCED),
    ("write in order", "MiB", STREAM_MIB),
    ("read in order", "MiB", STREAM_MIB),
];

type Turn = [Spent; PHASES.len()];

/// The folder of the nodes on the mount of another node, so many places after it.
fn folders(machines: &Machines, count: usize, after: usize) -> Vec<PathBuf> {
    let on = |n: usize| machines.at((n + after) % NODES).join(format!("folder{n}"));
    (0..count).map(on).collect()
}

fn turn(machines: &Machines, count: usize) -> Turn {
    let own = folders(machines, count, 0);
    own.iter().for_each(|folder| fs::create_dir(folder).expect("made"));
    let (files, synced, mib) = (FILES / count, FILES_SYNCED / count, STREAM_MIB / count);
    let file = |folder: &PathBuf, n: usize| folder.join(format!("file{n}.txt"));
    let create = machines.spent(|| {
        side_by_side(&own, |_, folder| {
            for n in 0..files {
                fs::write(file(folder, n), [n as u8; FILE_BYTES]).expect("written");
            }
            sync(&file(folder, files - 1));
        });
    });
    let read = machines.spent(|| {
        side_by_side(&folders(machines, count, 1), |_, folder| {
            for n in 0..files {
                let found = fs::read(file(folder, n)).expect("read");
                assert_eq!(found, [n as u8; FILE_BYTES], "file {n} of {}", folder.display());
            }
        });
    });
    let list = machines.spent(|| {
        side_by_side(&folders(machines, count, 2), |_, folder| {
            let entries = fs::read_dir(folder).expect("listed");
            let size = |entry: std::io::Result<fs::DirEntry>| {
                entry.and_then(|entry| entry.metadata()).expect("there").len()
            };
            assert_eq!(entries.map(size).sum::<u64>(), (files * FILE_BYTES) as u64);
        });
    });
    let delete = machines.spent(|| {
        side_by_side(&own, |_, folder| {
            (0..files).for_each(|n| fs::remove_file(file(folder, n)).expect("removed"));
            sync(folder);
        });
    });
    let create_synced = machines.spent(|| {
        side_by_side(&own, |_, folder| {
            for n in 0..synced {
                let mut file = File::create(file(folder, n)).expect("created");
                file.write_all(&[n as u8; FILE_BYTES]).expect("written");
                file.sync_all().expect("synced");
            }
        });
    });
    let stream = |folder: &PathBuf| folder.join("stream");
    let write = machines.spent(|| side_by_side(&own, |_, at| write_stream(&stream(at), mib)));
    let read_back = machines.spent(|| side_by_side(&own, |_, at| read_stream(&stream(at), mib)));
    own.iter().for_each(|folder| fs::remove_dir_all(folder).expect("removed"));
    [create, read, list, delete, create_synced, write, read_back]
}

/// The median of a figure over the turns of a phase, and the least and the most.
fn spread(turns: &[Turn], phase: usize, of: impl Fn(&Spent) -> f64) -> (f64, f64, f64) {
    let all: Vec<f64> = turns.iter().map(|turn| of(&turn[phase])).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    (median(all), least, most)
}

pub fn run() {
    let machines = Machines::new("bench-scaling", NODES);
    let mut turns: [Vec<Turn>; COUNTS.len()] = Default::default();
    for round in 0..=ROUNDS {
        for (count, turns) in COUNTS.into_iter().zip(&mut turns) {
            let turn = turn(&machines, count);
            let rates =
                PHASES.iter().zip(&turn).map(|((_, _, all), spent)| *all as f64 / spent.seconds);
            eprintln!("round {round}, {count} nodes: {:.0?}", rates.collect::<Vec<_>>());
            if round > 0 {
                turns.push(turn);
            }
        }
    }
    println!("\n### Nodes on files of their own\n");
    println!(
        "{DISKS} served disks, RAID-5; {FILES} files of 4 KiB and {STREAM_MIB} MiB in order, divided among \
         the nodes.\nA second, by all nodes together. Medians of {ROUNDS} rounds, and the least and the \
         most.\n"
    );
    println!("| | one node | two nodes | four nodes |\n|---|---|---|---|");
    for (phase, (what, unit, all)) in PHASES.iter().enumerate() {
        let mut row = format!("| {what}, {unit}/s |");
        for turns in &turns {
            let (rate, least, most) = spread(turns, phase, |spent| *all as f64 / spent.seconds);
            row += &format!(" {rate:.0} ({least:.0}–{most:.0}) |");
        }
        println!("{row}");
    }
    println!("\nProcessor time, µs for each file or MiB, with one node → with four:\n");
    println!("| | keeper | all nodes | all disk servers | programs |\n|---|---|---|---|---|");
    let parts: [fn(&Spent) -> f64; 4] =
        [|spent| spent.keeper, |spent| spent.nodes, |spent| spent.servers, |spent| spent.programs];
    for (phase, (what, _, all)) in PHASES.iter().enumerate() {
        let mut row = format!("| {what} |");
        for part in parts {
            let costs = [&turns[0], &turns[COUNTS.len() - 1]].map(|turns| {
                let each = |spent: &Spent| part(spent) * 1e6 / *all as f64;
                let (cost, least, most) = spread(turns, phase, each);
                format!("{cost:.0} ({least:.0}–{most:.0})")
            });
            row += &format!(" {} |", costs.join(" → "));
        }
        println!("{row}");
    }
    plan(&turns[COUNTS.len() - 1]);
}

/// What more nodes would do.
fn plan(turns: &[Turn]) {
    println!("\n### What more nodes would do\n");
    println!(
        "A closed queueing network with the processor times above, of four nodes: each node on a machine of \
         its own,\none program on each, one processor for the keeper and for each disk's server; no time \
         passes in networks and disks.\n"
    );
    let nodes = PLANNED.map(|nodes| format!("{nodes} nodes: /s")).join(" | ");
    println!("| | {nodes} | keeper busy with 50 | a disk server busy | exhausted first |");
    println!("|---|{}", "---|".repeat(PLANNED.len() + 3));
    for (phase, (what, unit, all)) in PHASES.iter().enumerate() {
        let each = |of: fn(&Spent) -> f64| spread(turns, phase, of).0 / *all as f64;
        let think_s = each(|spent| spent.nodes + spent.programs);
        let keeper_s = each(|spent| spent.keeper);
        let server_s = each(|spent| spent.servers) / DISKS as f64;
        // Each file is on all disks, in the mean.
        let demands = [&[keeper_s][..], &[server_s; DISKS]].concat();
        let mut row = format!("| {what}, {unit} |");
        for nodes in PLANNED {
            row += &format!(" {:.0} |", closed_network(nodes, think_s, &demands).rate);
        }
        let most = closed_network(PLANNED[PLANNED.len() - 1], think_s, &demands);
        let whole_s = think_s + demands.iter().sum::<f64>();
        let (first, demand) = match keeper_s >= server_s {
            true => ("keeper", keeper_s),
            false => ("disk servers", server_s),
        };
        row += &format!(" {:.0} % | {:.0} % |", most.busy[0] * 100.0, most.busy[1] * 100.0);
        println!("{row} {first}, by {:.0} nodes |", whole_s / demand);
    }
}
