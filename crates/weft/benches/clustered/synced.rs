//! Small overwrites of a RAID-5 file, each durable: on a node whose log is on the disks, and on one
//! machine without a cluster.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use super::{Machines, alone};
use crate::modelled::print_row;

const FILE_BYTES: u64 = 8 << 20;
const WRITES: u64 = 300;
const ROUNDS: usize = 7;

/// Writes a second that were made durable one by one.
fn synced(at: &Path) -> f64 {
    let file = File::options().write(true).open(at.join("file")).expect("there");
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
    let machines = Machines::new("bench-synced", 1);
    let one = alone("bench-synced-alone");
    let contestants = [
        ("one machine without a cluster", one.at.as_path()),
        ("node, log on the disks", machines.at(0)),
    ];
    for (_, at) in contestants {
        fs::write(at.join("file"), vec![7; FILE_BYTES as usize]).expect("written");
        super::sync(&at.join("file"));
    }
    let mut found: Vec<Vec<(f64, f64)>> = vec![Vec::new(); contestants.len()];
    for round in 0..=ROUNDS {
        let rates: Vec<f64> = contestants.iter().map(|(_, at)| synced(at)).collect();
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
