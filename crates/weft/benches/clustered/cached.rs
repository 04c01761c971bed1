//! Operations that need nobody else: on a node of a cluster, on one machine without a cluster, and
//! on ext4.

use std::time::Instant;

use weft_bench::median;

use super::{Ext4, Machines, alone};
use crate::single_operations::{OPERATIONS, prepare};

const ROUNDS: usize = 9;

pub fn run() {
    let machines = Machines::new("bench-cached", 2);
    let (one, ext4) = (alone("bench-cached-alone"), Ext4::new("bench-cached-ext4"));
    let places = [machines.at(0), &one.at, &ext4.at];
    places.into_iter().for_each(prepare);
    println!("\n### Operations that need nobody else\n");
    println!(
        "µs for each operation. Medians of {ROUNDS} rounds in turns, and the least and the most; the ratio is the \
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
