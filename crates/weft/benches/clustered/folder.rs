//! Two nodes that create files in one folder, and one that lists it with attributes (`ls -l`)
//! meanwhile; beside it, two programs on one machine.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Machines, alone, side_by_side, sync};
use crate::modelled::print_row;

/// Of both programs together.
const FILES: usize = 4000;
/// What is in the folder that is listed.
const LISTED: usize = 1000;
const LISTING: Duration = Duration::from_secs(3);
const ROUNDS: usize = 5;

/// Seconds to create files, at the same time, in these folders, which may be one.
fn create(folders: &[&Path], round: usize) -> f64 {
    let start = Instant::now();
    side_by_side(folders, |program, folder| {
        for n in 0..FILES / folders.len() {
            File::create_new(folder.join(format!("r{round}-p{program}-{n}"))).expect("created");
        }
        sync(folder);
    });
    start.elapsed().as_secs_f64()
}

/// `ls -l`; returns how many entries there are.
fn list(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("listed");
    let attributes = entries.map(|entry| entry.and_then(|entry| entry.metadata()).expect("there"));
    attributes.fold(0, |count, _| count + 1)
}

/// What listings found.
struct Listed {
    /// Milliseconds of a listing while nobody creates: mean.
    quiet_ms: f64,
    /// While another program creates: mean and longest, for each 1000 entries.
    busy_ms: f64,
    busy_most_ms: f64,
    /// Files that were created in a second meanwhile.
    created: f64,
}

/// Lists a folder on one mount, while files are created in it on another.
fn listing(made_on: &Path, listed_on: &Path, name: &str) -> Listed {
    let (made, listed) = (made_on.join(name), listed_on.join(name));
    fs::create_dir(&made).expect("made");
    (0..LISTED).for_each(|n| drop(File::create_new(made.join(n.to_string())).expect("created")));
    let timed = |folder: &Path| {
        let start = Instant::now();
        let count = list(folder);
        (start.elapsed().as_secs_f64() * 1e3 * 1000.0 / count as f64, start)
    };
    list(&listed);
    let quiet: Vec<f64> = (0..10).map(|_| timed(&listed).0).collect();
    let has_ended = AtomicBool::new(false);
    let (mut busy, mut count) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let creating = scope.spawn(|| {
            let mut count = 0;
            while !has_ended.load(Ordering::Relaxed) {
                File::create_new(made.join(format!("more{count}"))).expect("created");
                count += 1;
            }
            count
        });
        let start = Instant::now();
        while start.elapsed() < LISTING {
            busy.push(timed(&listed).0);
        }
        has_ended.store(true, Ordering::Relaxed);
        count = creating.join().expect("created");
    });
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    Listed {
        quiet_ms: mean(&quiet),
        busy_ms: mean(&busy),
        busy_most_ms: busy.iter().copied().fold(0.0, f64::max),
        created: f64::from(count) / LISTING.as_secs_f64(),
    }
}

/// What a round found: files a second, and of them the ratio to the first.
type Creations = (f64, f64);

pub fn run() {
    let (machines, one) = (Machines::new("bench-folder", 2), alone("bench-folder-alone"));
    let (a, b) = (machines.at(0), machines.at(1));
    for folder in [a.join("one"), a.join("two"), a.join("shared"), one.at.join("shared")] {
        fs::create_dir(folder).expect("made");
    }
    let names = [
        "one node",
        "two nodes, each in a folder of its own",
        "two nodes in one folder",
        "one machine without a cluster, one program",
        "one machine without a cluster, two programs in one folder",
    ];
    let mut found: [Vec<Creations>; 5] = Default::default();
    let (mut on_nodes, mut on_one) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (local, both) = (one.at.join("shared"), 2 * round + 1);
        let [shared_a, shared_b] = [a, b].map(|at| at.join("shared"));
        let took = [
            create(&[&a.join("one")], 2 * round),
            create(&[&a.join("one"), &b.join("two")], both),
            create(&[&shared_a, &shared_b], both),
            create(&[&local], 2 * round),
            create(&[&local, &local], both),
        ];
        let rates = took.map(|took| FILES as f64 / took);
        let name = format!("listed{round}");
        let (of_nodes, of_one) = (listing(a, b, &name), listing(&one.at, &one.at, &name));
        eprintln!(
            "round {round}: {rates:.0?}, ls {:.1} → {:.1} ms ({:.1}), alone {:.1} → {:.1} ms",
            of_nodes.quiet_ms,
            of_nodes.busy_ms,
            of_nodes.busy_most_ms,
            of_one.quiet_ms,
            of_one.busy_ms
        );
        if round > 0 {
            for (rate, found) in rates.iter().zip(&mut found) {
                found.push((*rate, rate / rates[0]));
            }
            on_nodes.push(of_nodes);
            on_one.push(of_one);
        }
    }
    println!("\n### Two nodes in one folder\n");
    println!(
        "{FILES} empty files, created until they are durable. Medians of {ROUNDS} rounds, and the least and \
         the most.\n"
    );
    println!("| | files/s | ratio to one node |\n|---|---|---|");
    for (name, found) in names.iter().zip(&found) {
        print_row::<Creations>(name, found, &[(|of| of.0, 0), (|of| of.1, 2)]);
    }
    println!(
        "\n`ls -l` of a folder, milliseconds for 1000 entries, while nobody else uses it, and while another \
         program creates\nfiles in it ({} s):\n",
        LISTING.as_secs()
    );
    println!("| | nobody creates | another creates: mean | longest | created meanwhile, files/s |");
    println!("|---|---|---|---|---|");
    for (name, found) in [("two nodes", &on_nodes), ("one machine without a cluster", &on_one)] {
        print_row::<Listed>(
            name,
            found,
            &[
                (|of| of.quiet_ms, 1),
                (|of| of.busy_ms, 1),
                (|of| of.busy_most_ms, 1),
                (|of| of.created, 0),
            ],
        );
    }
}
