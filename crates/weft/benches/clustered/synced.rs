//! Small overwrites of a RAID-5 file, each durable: on one machine without a cluster, on a node
//! whose log is on the disks, and on one whose log is in another node's memory, if `weft fs mount`
//! can.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use super::{Machines, alone};
use crate::modelled::print_row;

/// The option of a mount whose log records go into another node's memory.
const EARLY_COMMIT: &str = "--early-commit";
const FILE_BYTES: u64 = 8 << 20;
const WRITES: u64 = 300;
const ROUNDS: usize = 7;

/// Writes a second that were made durable one by one.
fn synced(file: &Path) -> f64 {
    let file = File::options().write(true).open(file).expect("there");
    let start = Instant::now();
    for n in 0..WRITES {
        // Scattered: 1021 has no divisor in common with the number of blocks.
        let place = n * 1021 % (FILE_BYTES / 4096) * 4096;
        file.write_all_at(&[n as u8; 4096], place).expect("written");
        file.sync_data().expect("synced");
    }
    WRITES as f64 / start.elapsed().as_secs_f64()
}

pub fn run() {
    let one = alone("bench-synced-alone");
    let has_early_commit = one.bench.weft(&["fs", "mount", "--help"]).contains(EARLY_COMMIT);
    let nodes: &[&[&str]] = if has_early_commit { &[&[], &[EARLY_COMMIT]] } else { &[&[]] };
    let machines = Machines::with("bench-synced", nodes);
    let mut contestants = vec![
        ("one machine without a cluster", one.at.as_path()),
        ("node, log on the disks", machines.at(0)),
    ];
    if has_early_commit {
        contestants.push(("node, log in another node's memory", machines.at(1)));
    }
    let name = |n: usize| format!("file{n}");
    for (n, (_, at)) in contestants.iter().enumerate() {
        fs::write(at.join(name(n)), vec![7; FILE_BYTES as usize]).expect("written");
        super::sync(&at.join(name(n)));
    }
    let mut found: Vec<Vec<(f64, f64)>> = vec![Vec::new(); contestants.len()];
    for round in 0..=ROUNDS {
        let rates = contestants.iter().enumerate().map(|(n, (_, at))| synced(&at.join(name(n))));
        let rates: Vec<f64> = rates.collect();
        eprintln!("round {round}: {rates:.0?}");
        if round > 0 {
            for (rate, found) in rates.iter().zip(&mut found) {
                found.push((*rate, rate / rates[0]));
            }
        }
    }
    println!("\n### Small durable writes on RAID-5\n");
    println!(
        "4 KiB, scattered over {} MiB, fdatasync after each. Medians of {ROUNDS} rounds in turns, and the \
         least and the most.\n",
        FILE_BYTES >> 20
    );
    println!("| | writes/s | ratio to one machine |\n|---|---|---|");
    for ((name, _), found) in contestants.iter().zip(&found) {
        print_row::<(f64, f64)>(name, found, &[(|of| of.0, 0), (|of| of.1, 2)]);
    }
}
