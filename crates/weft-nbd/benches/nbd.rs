//! The server beside nbdkit's memory plugin: fio's nbd engine, Unix sockets, in turns.
//!
//! Both serve 256 MiB of memory that was written before, so that every page is there. The rounds
//! alternate, the first is thrown away, and of the others the median counts.

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::Command;

use support::{RamExport, Served};
use weft_testkit::{Process, Scratch, command, run, wait_until};

const SIZE_MIB: usize = 256;
const ROUNDS: usize = 6;

struct Shape {
    name: &'static str,
    args: [&'static str; 3],
    target: f64,
}

const SHAPES: [Shape; 5] = [
    shape("4 KiB random reads, depth 32", ["--rw=randread", "--bs=4k", "--iodepth=32"], 0.9),
    shape("1 MiB reads, depth 8", ["--rw=read", "--bs=1m", "--iodepth=8"], 1.0),
    shape("4 KiB random reads, depth 1", ["--rw=randread", "--bs=4k", "--iodepth=1"], 0.9),
    shape("4 KiB random writes, depth 32", ["--rw=randwrite", "--bs=4k", "--iodepth=32"], 0.9),
    shape("1 MiB writes, depth 8", ["--rw=write", "--bs=1m", "--iodepth=8"], 0.9),
];

const fn shape(name: &'static str, args: [&'static str; 3], target: f64) -> Shape {
    Shape { name, args, target }
}

fn fio(uri: &str, args: &[&str], time: &str) -> f64 {
    let output = run(command("fio")
        .args(["--name=bench", "--ioengine=nbd", "--time_based", "--output-format=terse"])
        .arg(format!("--size={SIZE_MIB}m"))
        .arg(format!("--runtime={time}"))
        .arg(format!("--uri={uri}"))
        .args(args)
        .current_dir(std::env::temp_dir()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields: Vec<&str> = text.lines().last().unwrap_or_default().split(';').collect();
    // Terse format 3: bandwidth in KiB/s of reads and of writes.
    let kib = |field: usize| fields[field].parse::<f64>().expect("a number of fio");
    kib(6) + kib(47)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let served = Served::ram("ram", || RamExport::new(SIZE_MIB << 20));
    let ours = served.uri("ram");
    let scratch = Scratch::in_memory("nbdkit");
    let socket = scratch.join("k");
    let mut nbdkit: Command = command("nbdkit");
    nbdkit.args(["--foreground", "--unix"]).arg(&socket);
    let _nbdkit = Process::spawn(nbdkit.arg("memory").arg(format!("size={SIZE_MIB}M")));
    wait_until("nbdkit's socket", || socket.exists());
    let theirs = format!("nbd+unix:///?socket={}", socket.display());
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    for uri in [&ours, &theirs] {
        fio(uri, &["--rw=write", "--bs=1m", "--iodepth=8"], "1");
    }
    println!("{:<32} {:>12} {:>12} {:>7} {:>7}", "MiB/s", "weft", "nbdkit", "ratio", "target");
    for shape in &SHAPES {
        if only.as_ref().is_some_and(|word| !shape.name.contains(word.as_str())) {
            continue;
        }
        let (mut weft, mut kit) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let pair = (fio(&ours, &shape.args, "1"), fio(&theirs, &shape.args, "1"));
            if round > 0 {
                weft.push(pair.0 / 1024.0);
                kit.push(pair.1 / 1024.0);
            }
        }
        let (weft, kit) = (median(weft), median(kit));
        let ratio = weft / kit;
        println!("{:<32} {weft:>12.0} {kit:>12.0} {ratio:>7.2} {:>7.2}", shape.name, shape.target);
    }
}
