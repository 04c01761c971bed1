//! One file that two nodes write at the same time, from its start and from its end.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use super::{Machines, alone, side_by_side};
use crate::modelled::print_row;

const FILE_BYTES: u64 = 16 << 20;
const STEP: usize = 64 << 10;
const ROUNDS: usize = 5;

/// Writes half of a file, forwards from its start or backwards from its end.
fn write_half(file: &Path, is_last: bool) {
    let file = File::options().write(true).open(file).expect("there");
    let steps = FILE_BYTES / STEP as u64 / 2;
    for n in 0..steps {
        let place = if is_last { 2 * steps - 1 - n } else { n };
        file.write_all_at(&[place as u8; STEP], place * STEP as u64).expect("written");
    }
    file.sync_all().expect("synced");
}

/// MB/s of two programs, each of which writes a half of a file.
fn written(files: [&Path; 2]) -> f64 {
    for file in files {
        let file = File::create(file).expect("created");
        file.set_len(FILE_BYTES).and_then(|()| file.sync_all()).expect("made");
    }
    let start = Instant::now();
    side_by_side(&files, |half, file| write_half(file, half == 1));
    FILE_BYTES as f64 / start.elapsed().as_secs_f64() / 1e6
}

#[track_caller]
fn is_right(file: &Path) {
    let bytes = std::fs::read(file).expect("read");
    assert_eq!(bytes.len() as u64, FILE_BYTES);
    for (place, step) in bytes.chunks(STEP).enumerate() {
        assert!(step.iter().all(|byte| *byte == place as u8), "step {place} of {}", file.display());
    }
}

pub fn run() {
    let (machines, one) = (Machines::new("bench-file", 2), alone("bench-file-alone"));
    let on = |node: usize, name: &str| machines.at(node).join(name);
    let names = [
        "two nodes, a file each",
        "two nodes, one file",
        "one node, two programs, one file",
        "one machine without a cluster, two programs, one file",
    ];
    let mut found: [Vec<(f64, f64)>; 4] = Default::default();
    for round in 0..=ROUNDS {
        let alone = one.at.join("file");
        let rates = [
            written([&on(0, "a"), &on(1, "b")]),
            written([&on(0, "file"), &on(1, "file")]),
            written([&on(0, "same"), &on(0, "same")]),
            written([&alone, &alone]),
        ];
        is_right(&on(1, "file"));
        is_right(&on(0, "file"));
        eprintln!("round {round}: {rates:.1?} MB/s");
        if round > 0 {
            for (rate, found) in rates.iter().zip(&mut found) {
                found.push((*rate, rate / rates[0]));
            }
        }
    }
    println!("\n### One file from both ends\n");
    println!(
        "{} MiB in steps of {} KiB by two programs, the one forwards from the start, the other backwards \
         from the end,\nuntil they meet, then fsync. Medians of {ROUNDS} rounds, and the least and the \
         most.\n",
        FILE_BYTES >> 20,
        STEP >> 10
    );
    println!("| | MB/s | ratio to a file each |\n|---|---|---|");
    for (name, found) in names.iter().zip(&found) {
        print_row::<(f64, f64)>(name, found, &[(|of| of.0, 1), (|of| of.1, 3)]);
    }
}
