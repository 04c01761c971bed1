//! How long programs on a node wait when the keeper is killed, with few and with many files.
//!
//! The files are made in this process, as [`in_process`] does it, as a node of the cluster that no
//! keeper knows, before there is one. Each has an entry, attributes and a block that is reserved
//! but not written, so that a million of them have as much metadata, but not 4 GB of data.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use weft_cli::disks::Opener;
use weft_cli::thread;

use super::{DISKS, sync};
use crate::common::cluster::Cluster;
use crate::in_process::{make_files, mount};
use crate::modelled::print_row;

const FEW: u64 = 1000;
const MANY_DEFAULT: u64 = 100_000;
const ROUNDS: usize = 5;

/// One takeover, in seconds since the keeper was killed.
struct Takeover {
    /// Until the next one keeps the metadata.
    kept_s: f64,
    /// Until a program on a node has made a file durable.
    served_s: f64,
}

/// Fills a file system that no keeper has yet.
fn fill(cluster: &Cluster, files: u64) {
    let disks: Vec<String> = cluster
        .disks
        .iter()
        .enumerate()
        .map(|(n, uri)| uri.replacen(&format!("/d{n}?"), &format!("/d{n}/home/filler/1?"), 1))
        .collect();
    let filled = thread::run(move |opener: Opener| async move {
        let mut opened = Vec::new();
        for disk in &disks {
            opened.push(opener.open(disk, false).await?);
        }
        let fs = mount(&opener, &opened).await;
        make_files(&fs, 0..files, async |fs, ino, _| {
            fs.allocate(ino, 0, 4096, false).await.expect("reserved");
        })
        .await;
        fs.unmount().await.expect("unmounted");
        Ok(())
    });
    assert!(filled.is_ok(), "the thread ended");
}

fn takeovers(files: u64) -> Vec<Takeover> {
    let metadata = files * 4000 + (64 << 20);
    let disk_bytes = (files * 8192 + metadata + (512 << 20)).next_multiple_of(1 << 20);
    let mut cluster = Cluster::new("bench-takeover", DISKS, disk_bytes);
    let slice = format!("{}M", metadata >> 20);
    cluster.weft(&["create", "home"], &["--node", "admin", "--metadata", &slice]);
    let start = Instant::now();
    fill(&cluster, files);
    eprintln!("{files} files made in {:.1} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut keeper = cluster.start("keeper0", &["keeper", "home"], &[]);
    keeper.says("keeps");
    eprintln!("the first keeper after {:.1} s", start.elapsed().as_secs_f64());
    let mut node = cluster.node("node", &[]);
    node.mounts();
    let folder = node.at.join("busy");
    fs::create_dir(&folder).expect("made");
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("keeper{}", round + 1);
        let mut next = cluster.start(&name, &["keeper", "home"], &[]);
        next.says("stands by");
        let (has_ended, (sender, served)) = (AtomicBool::new(false), channel());
        let file = |n: u64| -> PathBuf { folder.join(format!("r{round}-{n}")) };
        let takeover = std::thread::scope(|scope| {
            // A program that works all the time, and tells when each of its files is durable.
            scope.spawn(|| {
                for n in 0.. {
                    fs::write(file(n), "contents").expect("written");
                    sync(&file(n));
                    let _ = sender.send(Instant::now());
                    if has_ended.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            // It is in the middle of its work; and the moment in the lease's time is any.
            for _ in 0..20 + 37 * round {
                let _ = served.recv().expect("it works");
            }
            std::mem::replace(&mut keeper, next).kill9();
            let killed = Instant::now();
            keeper.says("keeps");
            let kept_s = killed.elapsed().as_secs_f64();
            // What was on its way when the keeper died may have been answered.
            let is_after = |at: &Instant| at.duration_since(killed).as_secs_f64() > 1.0;
            let first = served.iter().find(is_after).expect("it works");
            has_ended.store(true, Ordering::Relaxed);
            Takeover { kept_s, served_s: first.duration_since(killed).as_secs_f64() }
        });
        eprintln!(
            "{files} files, round {round}: kept after {:.1} s, served after {:.1} s",
            takeover.kept_s, takeover.served_s
        );
        all.push(takeover);
    }
    node.ends();
    keeper.ends();
    all
}

pub fn run() {
    let many = std::env::var("WEFT_BENCH_FILES").ok();
    let many = many.map_or(MANY_DEFAULT, |files| files.parse().expect("a number of files"));
    let found = [FEW, many].map(|files| (files, takeovers(files)));
    println!("\n### Takeovers\n");
    println!(
        "The keeper is killed (kill -9) while a program on a node makes one durable file after the other. \
         Seconds until\nthe next one keeps the metadata, and until the program has made another file \
         durable. {ROUNDS} takeovers, median,\nleast and most; {DISKS} served disks; the lease takes 5 s.\n"
    );
    println!("| files | the next one keeps | the program goes on |\n|---|---|---|");
    for (files, found) in &found {
        let row = [(|of: &Takeover| of.kept_s) as fn(&Takeover) -> f64, |of| of.served_s];
        print_row(&files.to_string(), found, &row.map(|of| (of, 1)));
    }
}
