//! Compares the server with nbdkit's memory plugin: fio's nbd engine, Unix sockets, in turns.
//!
//! Both serve 256 MiB of memory that was written before, so that every page is there. The rounds
//! alternate, the first is discarded, and the table shows the median of the others. It also shows
//! the processor time of each server per request, which tells more than the throughput where fio is
//! the bottleneck or the machine has other work.

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::Command;

use support::{RamVolume, Served};
use weft_testkit::{Process, Scratch, command, run, wait_until};

const SIZE_MIB: usize = 256;
const ROUNDS: usize = 6;

struct Shape {
    name: &'static str,
    args: [&'static str; 3],
    /// Requests in a MiB.
    per_mib: f64,
    target: f64,
}

const SHAPES: [Shape; 5] = [
    shape("4 KiB random reads, depth 32", ["--rw=randread", "--bs=4k", "--iodepth=32"], 256.0, 0.9),
    shape("1 MiB reads, depth 8", ["--rw=read", "--bs=1m", "--iodepth=8"], 1.0, 1.0),
    shape("4 KiB random reads, depth 1", ["--rw=randread", "--bs=4k", "--iodepth=1"], 256.0, 0.0),
    shape("4 KiB writes, depth 32", ["--rw=randwrite", "--bs=4k", "--iodepth=32"], 256.0, 0.0),
    shape("1 MiB writes, depth 8", ["--rw=write", "--bs=1m", "--iodepth=8"], 1.0, 0.0),
];

const fn shape(name: &'static str, args: [&'static str; 3], per_mib: f64, target: f64) -> Shape {
    Shape { name, args, per_mib, target }
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

/// Processor time that a process has taken, in microseconds.
fn cpu_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("a number of ticks");
    // Fields 14 and 15 of proc(5), in ticks of 10 ms.
    (ticks(11) + ticks(12)) * 10_000.0
}

/// One run: MiB/s, and the server's microseconds per request.
fn measure(uri: &str, shape: &Shape, server: u32) -> (f64, f64) {
    let before = cpu_us(server);
    let mib = fio(uri, &shape.args, "1") / 1024.0;
    // A run takes a second.
    (mib, (cpu_us(server) - before) / (mib * shape.per_mib))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let served = Served::ram("ram", || RamVolume::new(SIZE_MIB << 20));
    let ours = served.uri("ram");
    let scratch = Scratch::in_memory("nbdkit");
    let socket = scratch.join("k");
    let mut start: Command = command("nbdkit");
    start.args(["--foreground", "--unix"]).arg(&socket);
    let nbdkit = Process::spawn(start.arg("memory").arg(format!("size={SIZE_MIB}M")));
    wait_until("nbdkit's socket", || socket.exists());
    let theirs = format!("nbd+unix:///?socket={}", socket.display());
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    for uri in [&ours, &theirs] {
        fio(uri, &["--rw=write", "--bs=1m", "--iodepth=8"], "1");
    }
    println!(
        "{:<30} {:>8} {:>8} {:>6} {:>7} {:>10} {:>10}",
        "MiB/s, server CPU per request", "weft", "nbdkit", "ratio", "target", "weft", "nbdkit"
    );
    for shape in &SHAPES {
        if only.as_ref().is_some_and(|word| !shape.name.contains(word.as_str())) {
            continue;
        }
        let (mut weft, mut kit) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let pair =
                (measure(&ours, shape, std::process::id()), measure(&theirs, shape, nbdkit.id()));
            if round > 0 {
                weft.push(pair.0);
                kit.push(pair.1);
            }
        }
        let of = |runs: &[(f64, f64)]| {
            let (mib, us) = runs.iter().copied().unzip();
            (median(mib), median(us))
        };
        let ((weft, weft_us), (kit, kit_us)) = (of(&weft), of(&kit));
        let target = if shape.target > 0.0 { format!("{:.2}", shape.target) } else { "-".into() };
        println!(
            "{:<30} {weft:>8.0} {kit:>8.0} {:>6.2} {target:>7} {weft_us:>7.1} us {kit_us:>7.1} us",
            shape.name,
            weft / kit
        );
    }
}
