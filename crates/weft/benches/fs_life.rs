//! One life of a file system under user load in real time: healthy, a disk lost and rebuilt, a disk
//! added and the files spread over it, and larger. weftfs beside btrfs, on the same loop devices.
//!
//! In weftfs a third of the data is in raid1, in raid5 and in raid6 each, side by side on the same
//! disks; btrfs has one profile for all of it, so it lives twice. Programs read and write 4 KiB of
//! files of which a few parts are popular (Zipf, 1.2), at a rate that both can serve. Measured are
//! the response times of each phase, and how long the phases take that end by themselves. weftfs
//! rebuilds onto the disks that are left, while it stays mounted; btrfs is mounted again without
//! the disk, and rebuilds on the new one. So the disk that is added next is a sixth one for btrfs,
//! and a fifth one for weftfs.

#[path = "../tests/common/mod.rs"]
mod common;
mod modelled;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::text;
use common::weftfs::Mounted;
use modelled::print_row;
use rustix::process::Signal;
use serde_json::Value;
use weft_testkit::{LoopDevice, Mount, Need, Process, Scratch, command, have, run};

const DISKS: usize = 5;
/// Size of each disk.
const DISK_MIB: usize = 1024;
/// The files, in each of the three folders one.
const FILE_MIB: u64 = 192;
const FOLDERS: [(&str, &str); 3] =
    [("mirrored", "raid1"), ("single", "raid5"), ("double", "raid6")];
/// Reads, and writes, a second on each file.
const RATE: &str = "--rate_iops=320,80";
/// Time of the phases that do not end by themselves.
const PHASE: Duration = Duration::from_secs(10);
const ROUNDS: usize = 3;
const PHASES: [&str; 4] = ["healthy", "rebuild", "balance", "larger"];

/// A file system under test.
trait Contestant {
    fn at(&self) -> &Path;
    /// Loses a disk. What must be done before programs can go on is done.
    fn lose(&mut self);
    /// Rebuilds what was lost.
    fn rebuild(&mut self);
    /// Adds a disk, and spreads the files over it.
    fn balance(&mut self);
}

struct Weft<'a> {
    mounted: Mounted,
    devices: &'a [&'a str],
}

impl<'a> Weft<'a> {
    fn new(devices: &'a [&'a str]) -> Self {
        let mut mounted = Mounted::new("bench-fs-life");
        let disks = &devices[..DISKS];
        mounted.bench.weft(&[&["fs", "create", "home", "--force"], disks].concat());
        mounted.mount(disks);
        FOLDERS.iter().for_each(|(name, redundancy)| drop(mounted.folder(name, redundancy)));
        Self { mounted, devices }
    }
}

impl Contestant for Weft<'_> {
    fn at(&self) -> &Path {
        &self.mounted.at
    }

    fn lose(&mut self) {
        self.mounted.bench.weft(&["fs", "fail", "mnt", "0"]);
    }

    fn rebuild(&mut self) {
        self.mounted.bench.weft(&["fs", "rebuild", "mnt"]);
    }

    fn balance(&mut self) {
        self.mounted.bench.weft(&["fs", "add", "mnt", "--force", self.devices[DISKS]]);
        self.mounted.bench.weft(&["fs", "balance", "mnt"]);
    }
}

struct Btrfs<'a> {
    mount: Option<Mount>,
    at: PathBuf,
    devices: &'a [&'a str],
}

impl<'a> Btrfs<'a> {
    fn new(profile: &str, devices: &'a [&'a str], scratch: &Scratch) -> Self {
        let at = scratch.join("mnt");
        fs::create_dir_all(&at).expect("a mount point");
        let mkfs = ["--force", "--quiet", "--metadata", "raid1", "--data", profile];
        run(command("mkfs.btrfs").args(mkfs).args(&devices[..DISKS]));
        let mount = Some(Mount::new(Path::new(devices[0]), &at, ""));
        FOLDERS.iter().for_each(|(name, _)| fs::create_dir(at.join(name)).expect("a folder"));
        Self { mount, at, devices }
    }
}

impl Contestant for Btrfs<'_> {
    fn at(&self) -> &Path {
        &self.at
    }

    fn lose(&mut self) {
        self.mount.take().expect("mounted").unmount();
        run(command("btrfs").args(["device", "scan", "--forget"]));
        wipe(&self.devices[..1]);
        run(command("btrfs").args(["device", "scan"]).args(&self.devices[1..DISKS]));
        self.mount = Some(Mount::new(Path::new(self.devices[1]), &self.at, "degraded"));
    }

    fn rebuild(&mut self) {
        // Devices count from 1. `-B`: in the foreground.
        let replace = ["replace", "start", "-f", "-B", "1", self.devices[DISKS]];
        run(command("btrfs").args(replace).arg(&self.at));
    }

    fn balance(&mut self) {
        let add = ["device", "add", "-f", self.devices[DISKS + 1]];
        run(command("btrfs").args(add).arg(&self.at));
        run(command("btrfs").args(["balance", "start", "--full-balance"]).arg(&self.at));
    }
}

/// A phase: mean and 99th percentile of the response times in milliseconds, and seconds.
type Phase = (f64, f64, f64);

/// What the load found: mean and 99th percentile of reads and writes, milliseconds.
fn latencies(found: &str) -> (f64, f64) {
    let json = found.get(found.find('{').expect("JSON of fio")..).expect("within it");
    let json: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {found}"));
    let job = &json["jobs"][0];
    let number = |of: &Value, pointer: &str| of.pointer(pointer).and_then(Value::as_f64);
    let (mut requests, mut sum, mut p99) = (0.0, 0.0, 0.0_f64);
    for of in [&job["read"], &job["write"]] {
        let of_kind = number(of, "/total_ios").expect("a number of requests");
        requests += of_kind;
        sum += of_kind * number(of, "/clat_ns/mean").expect("a mean");
        // Of the slower kind.
        p99 = p99.max(number(of, "/clat_ns/percentile/99.000000").unwrap_or(0.0));
    }
    (sum / requests / 1e6, p99 / 1e6)
}

/// Runs `course` under load.
fn phase(
    contestant: &mut dyn Contestant,
    scratch: &Scratch,
    course: fn(&mut dyn Contestant),
) -> Phase {
    let found = scratch.join("found.json");
    let mut fio = command("fio");
    fio.args(["--output-format=json", "--group_reporting", "--ioengine=psync", "--fallocate=none"])
        .args(["--rw=randrw", "--rwmixread=80", "--bs=4k", "--random_distribution=zipf:1.2", RATE])
        .args(["--time_based", "--runtime=3600", "--invalidate=1"])
        .arg(format!("--size={FILE_MIB}m"));
    for (name, _) in FOLDERS {
        let file = contestant.at().join(name).join("file");
        fio.arg(format!("--name={name}")).arg(format!("--filename={}", file.display()));
    }
    fio.current_dir(std::env::temp_dir());
    let output = File::create(&found).expect("a file for output");
    let mut load = Process::spawn(fio.stdout(output));
    let start = Instant::now();
    course(contestant);
    let took = start.elapsed();
    load.signal(Signal::INT);
    load.wait();
    let (mean, p99) = latencies(&fs::read_to_string(&found).expect("what the load found"));
    (mean, p99, took.as_secs_f64())
}

fn life(contestant: &mut dyn Contestant, scratch: &Scratch) -> Vec<Phase> {
    for (name, _) in FOLDERS {
        let file = format!("--filename={}", contestant.at().join(name).join("file").display());
        let size = format!("--size={FILE_MIB}m");
        let fill = ["--name=fill", "--rw=write", "--bs=1m", "--end_fsync=1", "--fallocate=none"];
        run(command("fio").args(fill).args([file, size]).current_dir(std::env::temp_dir()));
    }
    let wait = |_: &mut dyn Contestant| std::thread::sleep(PHASE);
    let healthy = phase(contestant, scratch, wait);
    contestant.lose();
    let rebuild = phase(contestant, scratch, |contestant| contestant.rebuild());
    let balance = phase(contestant, scratch, |contestant| contestant.balance());
    vec![healthy, rebuild, balance, phase(contestant, scratch, wait)]
}

fn wipe(devices: &[&str]) {
    run(command("wipefs").args(["--all", "--force", "--quiet"]).args(devices));
}

fn main() {
    let tools = ["fio", "btrfs", "mkfs.btrfs", "wipefs", "losetup"].map(Need::Tool);
    if !have(&[&tools[..], &[Need::Root, Need::Loop, Need::Fuse]].concat()) {
        return;
    }
    let scratch = Scratch::new("bench-fs-life-disks");
    let loops: Vec<LoopDevice> = (0..DISKS + 2)
        .map(|n| {
            let path = scratch.join(format!("d{n}"));
            fs::write(&path, vec![0x5a; DISK_MIB << 20]).expect("room for the disks");
            LoopDevice::attach(&path, true)
        })
        .collect();
    let devices: Vec<String> = loops.iter().map(|device| text(device.path())).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let names = ["weftfs, all three", "btrfs raid1", "btrfs raid5"];
    let mut lives: [Vec<Vec<Phase>>; 3] = Default::default();
    for round in 0..ROUNDS {
        for (name, lives) in names.iter().zip(&mut lives) {
            wipe(&devices);
            let lived = match name.strip_prefix("btrfs ") {
                None => life(&mut Weft::new(&devices), &scratch),
                Some(profile) => {
                    let lived = life(&mut Btrfs::new(profile, &devices, &scratch), &scratch);
                    run(command("btrfs").args(["device", "scan", "--forget"]));
                    lived
                }
            };
            eprintln!("round {round}, {name}: {lived:.2?}");
            lives.push(lived);
        }
    }
    println!("\n### One life of a file system under user load\n");
    println!(
        "{DISKS} loop devices of {DISK_MIB} MiB, three files of {FILE_MIB} MiB, 4 KiB reads and \
         writes (4 : 1), Zipf 1.2,\n400 a second on each file. Medians of {ROUNDS} lives, and the \
         least and the most. Mean and 99th\npercentile in ms, durations in s. Phases: {}.\n",
        PHASES.join(", ")
    );
    println!(
        "| | healthy: mean | p99 | rebuild: mean | p99 | took | balance: mean | p99 | took | larger: mean | p99 |"
    );
    println!("|{}", "---|".repeat(11));
    for (name, lives) in names.iter().zip(&lives) {
        print_row::<Vec<Phase>>(
            name,
            lives,
            &[
                (|life| life[0].0, 3),
                (|life| life[0].1, 2),
                (|life| life[1].0, 3),
                (|life| life[1].1, 2),
                (|life| life[1].2, 1),
                (|life| life[2].0, 3),
                (|life| life[2].1, 2),
                (|life| life[2].2, 1),
                (|life| life[3].0, 3),
                (|life| life[3].1, 2),
            ],
        );
    }
}
