//! Operations that need nobody else: on a node of a cluster, on one machine without a cluster, and
//! on ext4.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use weft_bench::median;

use super::{Ext4, Machines, alone};

const ROUNDS: usize = 9;
const FILE_BYTES: usize = 1 << 20;

/// What is done, how often, and how.
const OPERATIONS: [(&str, u32, fn(&Path, u32)); 6] = [
    ("stat", 20_000, |at, times| {
        (0..times).for_each(|_| drop(fs::metadata(at.join("file")).expect("there")));
    }),
    ("open and close", 4000, |at, times| {
        (0..times).for_each(|_| drop(File::open(at.join("file")).expect("there")));
    }),
    ("read 4 KiB of a cached file", 20_000, |at, times| {
        let (file, mut bytes) = (File::open(at.join("file")).expect("there"), [0; 4096]);
        for n in 0..times {
            let place = u64::from(n % (FILE_BYTES as u32 / 4096)) * 4096;
            file.read_exact_at(&mut bytes, place).expect("read");
        }
    }),
    ("write 4 KiB to a cached file", 4000, |at, times| {
        let file = File::options().write(true).open(at.join("file")).expect("there");
        for n in 0..times {
            let place = u64::from(n % (FILE_BYTES as u32 / 4096)) * 4096;
            file.write_all_at(&[1; 4096], place).expect("written");
        }
    }),
    ("create and delete", 1000, |at, times| {
        for _ in 0..times {
            let file = at.join("other");
            File::create_new(&file).and_then(|_| fs::remove_file(file)).expect("made and removed");
        }
    }),
    ("rename", 1000, |at, times| {
        for n in 0..times / 2 * 2 {
            let names = [at.join("name"), at.join("new name")];
            let n = n as usize % 2;
            fs::rename(&names[n], &names[1 - n]).expect("renamed");
        }
    }),
];

pub fn run() {
    let machines = Machines::new("bench-cached", 2);
    let (one, ext4) = (alone("bench-cached-alone"), Ext4::new("bench-cached-ext4"));
    let places = [machines.at(0), &one.at, &ext4.at];
    for at in places {
        fs::write(at.join("file"), vec![7; FILE_BYTES]).expect("written");
        fs::write(at.join("name"), "name").expect("written");
        super::sync(&at.join("file"));
    }
    println!("\n### Operations that need nobody else\n");
    println!(
        "µs for each. Medians of {ROUNDS} rounds in turns, and the least and the most; the ratio is the \
         median of the\nrounds' ratios.\n"
    );
    println!("| | node | one machine | ratio of the node | ext4 |\n|---|---|---|---|---|");
    for (what, times, operation) in OPERATIONS {
        let mut took: [Vec<f64>; 3] = Default::default();
        for round in 0..=ROUNDS {
            for (at, took) in places.iter().zip(&mut took) {
                let start = Instant::now();
                operation(at, times);
                if round > 0 {
                    took.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(times));
                }
            }
        }
        let ratios: Vec<f64> = took[0].iter().zip(&took[1]).map(|(node, one)| node / one).collect();
        let shown = |all: &[f64], digits: usize| {
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(0.0, f64::max);
            let mid = median(all.to_vec());
            format!("{mid:.digits$} ({least:.digits$}–{most:.digits$})")
        };
        let [node, one, ext4] = took.each_ref().map(|all| shown(all, 2));
        println!("| {what} | {node} | {one} | {} | {ext4} |", shown(&ratios, 2));
    }
}
