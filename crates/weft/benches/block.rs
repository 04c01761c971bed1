//! A raid5 of four loop devices, with weft and with btrfs: the same devices in the same run, in
//! turns.
//!
//! weft's array is used as an attached block device and over NBD, btrfs through a file on the
//! mounted file system; fio does the same to all, bypassing the page cache. Then a disk is lost,
//! and a fifth replaces it. The files below the devices are written completely before the first
//! turn. The report also shows the daemon's memory, idle and at its peak.

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::time::Instant;

use common::Bench;
use weft_bench::{Row, Table, median};
use weft_testkit::{LoopDevice, Mount, Need, Scratch, command, have, run};

const MEMBERS: usize = 4;
const MEMBER_MIB: u64 = 512;
/// The target of fio.
const WORK_MIB: u64 = 640;
const ROUNDS: usize = 2;

/// The results of one turn: bytes per second, requests per second twice, seconds.
#[derive(Clone, Copy)]
struct Turn {
    sequential: f64,
    reads: f64,
    writes: f64,
    replace_s: f64,
}

/// Runs fio; gives bytes per second and requests per second.
fn fio(target: &[String], shape: &[&str]) -> (f64, f64) {
    let output = run(command("fio")
        .args(["--name=bench", "--output-format=terse", "--direct=1", "--overwrite=1"])
        .arg(format!("--size={WORK_MIB}m"))
        .args(target)
        .args(shape)
        .current_dir(std::env::temp_dir()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields: Vec<&str> = text.lines().last().unwrap_or_default().split(';').collect();
    let number = |field: usize| fields[field].parse::<f64>().expect("a number of fio");
    // Terse format 3: KiB/s and IOPS of reads, then of writes.
    ((number(6) + number(47)) * 1024.0, number(7) + number(48))
}

fn three(target: &[String]) -> (f64, f64, f64) {
    let small = ["--bs=4k", "--iodepth=32", "--time_based", "--runtime=2"];
    let with = |rw: &'static str| [&[rw], &small[..]].concat();
    let long = ["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"];
    (
        fio(target, &long).0,
        fio(target, &with("--rw=randread")).1,
        fio(target, &[&with("--rw=randwrite")[..], &["--end_fsync=1"]].concat()).1,
    )
}

fn file_target(path: &Path) -> Vec<String> {
    vec!["--ioengine=libaio".into(), format!("--filename={}", path.display())]
}

fn wipe(devices: &[&str]) {
    run(command("wipefs").args(["--all", "--force", "--quiet"]).args(devices));
    // weft's labels are unknown to wipefs.
    for device in devices {
        let of = format!("of={device}");
        run(command("dd").args(["if=/dev/zero", &of, "bs=1M", "count=4", "oflag=direct"]));
    }
}

fn btrfs(devices: &[&str], scratch: &Scratch) -> Turn {
    wipe(devices);
    let (spare, members) = devices.split_last().expect("a spare");
    let mkfs = ["--force", "--quiet", "--data", "raid5", "--metadata", "raid1"];
    run(command("mkfs.btrfs").args(mkfs).args(members));
    let at = scratch.join("mnt");
    std::fs::create_dir_all(&at).expect("a mount point");
    let mount = Mount::new(Path::new(members[0]), &at, "");
    let (sequential, reads, writes) = three(&file_target(&at.join("file")));
    mount.unmount();
    run(command("btrfs").args(["device", "scan", "--forget"]));
    wipe(&[members[1]]);
    run(command("btrfs").args(["device", "scan", members[0], members[2], members[3]]));
    let mount = Mount::new(Path::new(members[0]), &at, "degraded");
    let start = Instant::now();
    let replace = ["replace", "start", "-B", "-f", "2", spare];
    run(command("btrfs").args(replace).arg(mount.path()));
    let replace_s = start.elapsed().as_secs_f64();
    mount.unmount();
    run(command("btrfs").args(["device", "scan", "--forget"]));
    Turn { sequential, reads, writes, replace_s }
}

/// weft: attached, over NBD, and the daemon's memory idle and at its highest, in MiB.
fn weft(devices: &[&str]) -> (Turn, Turn, [f64; 2]) {
    wipe(devices);
    let (spare, members) = devices.split_last().expect("a spare");
    let mut bench = Bench::new("bench-block");
    bench.weft(&[&["create", "tank", "--code", "raid5", "--force"], members].concat());
    bench.serve(members);
    let idle = memory_mib(&bench, "VmRSS:");
    let device = bench.weft(&["attach", "tank", "--via", "fuse"]);
    let (sequential, reads, writes) = three(&file_target(Path::new(device.trim())));
    bench.weft(&["detach", "tank"]);
    let socket = bench.path("run/nbd.sock");
    let uri = format!("--uri=nbd+unix:///tank?socket={}", socket.display());
    let nbd = three(&["--ioengine=nbd".into(), uri]);
    bench.weft(&["fail", "tank", "1"]);
    let start = Instant::now();
    bench.weft(&["add", "tank", spare, "--force"]);
    while bench.status("tank")["state"] != "healthy" {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let replace_s = start.elapsed().as_secs_f64();
    let most = memory_mib(&bench, "VmHWM:");
    bench.terminate();
    let attached = Turn { sequential, reads, writes, replace_s };
    let nbd = Turn { sequential: nbd.0, reads: nbd.1, writes: nbd.2, replace_s };
    (attached, nbd, [idle, most])
}

/// A figure of the daemon's `/proc/PID/status`.
fn memory_mib(bench: &Bench, key: &str) -> f64 {
    let path = format!("/proc/{}/status", bench.daemon_id());
    let text = std::fs::read_to_string(path).expect("the daemon runs");
    let line = text.lines().find(|line| line.starts_with(key)).expect("a line of memory");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok());
    kib.expect("a number of KiB") / 1024.0
}

fn report(table: &Table, by: &str, ours: &[Turn], theirs: &[Turn]) {
    let figure = |turns: &[Turn], of: fn(&Turn) -> f64| median(turns.iter().map(of).collect());
    let row = |what: &str, unit: &str, scale: f64, of: fn(&Turn) -> f64, less: bool| {
        let (mine, peer) = (figure(ours, of), figure(theirs, of));
        table.row(&Row {
            what: format!("{what}, {by}"),
            weft: format!("{:.1} {unit}", mine / scale),
            peer: format!("btrfs {:.1} {unit}", peer / scale),
            ratio: Some(if less { peer / mine } else { mine / peer }),
            target: Some(1.0),
        });
    };
    row("sequential write", "MB/s", 1e6, |turn| turn.sequential, false);
    row("4 KiB random read, depth 32", "k/s", 1e3, |turn| turn.reads, false);
    row("4 KiB random write, depth 32", "k/s", 1e3, |turn| turn.writes, false);
    row("lost disk replaced", "s", 1.0, |turn| turn.replace_s, true);
}

fn main() {
    let tools = ["fio", "btrfs", "mkfs.btrfs", "wipefs", "losetup"].map(Need::Tool);
    if !have(&[&tools[..], &[Need::Root, Need::Loop, Need::Fuse]].concat()) {
        return;
    }
    let scratch = Scratch::new("bench-btrfs");
    let loops: Vec<LoopDevice> = (0..=MEMBERS)
        .map(|n| {
            let path = scratch.join(format!("d{n}"));
            let len = usize::try_from(MEMBER_MIB << 20).expect("fits memory");
            std::fs::write(&path, vec![0x5a; len]).expect("room for the members");
            LoopDevice::attach(&path, true)
        })
        .collect();
    let devices: Vec<&str> = loops.iter().filter_map(|l| l.path().to_str()).collect();
    let (mut ours, mut nbd, mut theirs, mut memory) = (vec![], vec![], vec![], [0.0f64; 2]);
    for _ in 0..ROUNDS {
        theirs.push(btrfs(&devices, &scratch));
        let (attached, over_nbd, used) = weft(&devices);
        ours.push(attached);
        nbd.push(over_nbd);
        memory = [memory[0].max(used[0]), memory[1].max(used[1])];
    }
    let table = Table::new(
        "Compared with btrfs raid5",
        format!(
            "Four loop devices of {MEMBER_MIB} MiB, a fifth as replacement; {WORK_MIB} MiB written."
        ),
    );
    report(&table, "attached", &ours, &theirs);
    report(&table, "over NBD", &nbd, &theirs);
    println!("\nDaemon's memory: {:.1} MiB idle, {:.1} MiB at its peak.", memory[0], memory[1]);
}
