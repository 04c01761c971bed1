//! weftfs and btrfs on the same loop devices, in turns: raid1 and raid5 on four of them. ext4 on
//! one of them shows what a file system can do that has no redundancy and no checksums of contents.
//!
//! In each turn a file system is made and used as programs do, through the page cache. Before
//! everything that reads it is unmounted and mounted again; what changes it is measured until it
//! has been unmounted, so that nothing is left in memory. At the end a disk is lost when the disks
//! are 30 % full, and what it held is rebuilt on a fifth disk. Then weftfs loses another one, and
//! has the three that are left; btrfs finds no room there.
//!
//! `WEFT_BENCH_FILES` is the number of files in the source tree (default 20,000; the figures of the
//! documentation say which). The disks take about 4 GB, or 6 GB with 100,000 files.

#[path = "../tests/common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::weftfs::Mounted;
use weft_bench::{Row, Table, median};
use weft_testkit::{LoopDevice, Mount, Need, Scratch, command, have, run};

const DISKS: usize = 4;
/// Size of each disk, without room for the tree.
const DISK_MIB: u64 = 768;
/// The file that is written and read as a whole, and then in blocks.
const FILE_MIB: u64 = 512;
/// How full the disks are when one is lost, in percent of all of them.
const FULL_PERCENT: u64 = 30;
const ROUNDS: usize = 3;
/// Reads of the whole file in a turn, each after a mount; their median counts. One alone takes less
/// than half a second.
const READS: usize = 5;
const FILES_DEFAULT: u64 = 20_000;
const FILES_IN_FOLDER: u64 = 40;

/// What one turn measured, in the order of [`ROWS`]; more is better in all of them.
type Turn = [f64; 11];

/// What is measured, its unit, and what a unit is.
const ROWS: [(&str, &str, f64); 11] = [
    ("sequential write, 1 MiB", "MB/s", 1e6),
    ("sequential read, 1 MiB", "MB/s", 1e6),
    ("random 4 KiB writes, fsync after each", "/s", 1.0),
    ("random 4 KiB writes, fdatasync after each", "/s", 1.0),
    ("untar, files", "k/s", 1e3),
    ("find + stat, files", "k/s", 1e3),
    ("rm -r, files", "k/s", 1e3),
    ("untar, files, with --awake", "k/s", 1e3),
    ("rm -r, files, with --awake", "k/s", 1e3),
    ("rebuild of live data on another disk", "MB/s", 1e6),
    ("rebuild of live data on the disks left", "MB/s", 1e6),
];

/// A file system under test.
trait Contestant {
    fn name(&self) -> &'static str;
    fn mount(&mut self);
    /// The same, so that processors stay awake while requests come one by one. In the kernel there
    /// is nobody to wake.
    fn mount_awake(&mut self) {
        self.mount();
    }
    /// Unmounts it; then everything is on the disks.
    fn unmount(&mut self);
    fn at(&self) -> &Path;
    /// Loses a disk, and rebuilds what it held on another one, if it can do that; seconds.
    fn rebuild(&mut self) -> Option<f64>;
    /// Loses one more, and rebuilds what it held on those that are left, if it can do that;
    /// seconds.
    fn rebuild_again(&mut self) -> Option<f64>;
}

struct Weft<'a> {
    mounted: Mounted,
    disks: &'a [&'a str],
    spare: &'a str,
}

impl<'a> Weft<'a> {
    fn new(redundancy: &str, disks: &'a [&'a str], spare: &'a str, files: u64) -> Self {
        let mounted = Mounted::new("bench-fs");
        // Room in the metadata for all files.
        let metadata = format!("{}M", 32 + files / 150);
        let create = ["fs", "create", "home", "--redundancy", redundancy, "--metadata", &metadata];
        mounted.bench.weft(&[&create[..], &["--force"], disks].concat());
        Self { mounted, disks, spare }
    }

    /// Mounts it with some of its disks; seconds that it takes to rebuild what is missing.
    fn rebuild_with(&mut self, disks: &[&str]) -> f64 {
        self.unmount();
        self.mounted.mount(&[&["--degraded", self.spare], disks].concat());
        seconds(|| drop(self.mounted.bench.weft(&["fs", "rebuild", "mnt"])))
    }
}

impl Contestant for Weft<'_> {
    fn name(&self) -> &'static str {
        "weftfs"
    }

    fn mount(&mut self) {
        self.mounted.mount(self.disks);
    }

    fn mount_awake(&mut self) {
        self.mounted.mount(&[&["--awake"], self.disks].concat());
    }

    fn unmount(&mut self) {
        self.mounted.unmount();
    }

    fn at(&self) -> &Path {
        &self.mounted.at
    }

    fn rebuild(&mut self) -> Option<f64> {
        // What is stored stays where it is.
        self.mounted.bench.weft(&["fs", "add", "mnt", "--force", self.spare]);
        Some(self.rebuild_with(&self.disks[1..]))
    }

    fn rebuild_again(&mut self) -> Option<f64> {
        Some(self.rebuild_with(&self.disks[2..]))
    }
}

struct Btrfs<'a> {
    mount: Option<Mount>,
    at: PathBuf,
    disks: &'a [&'a str],
    spare: &'a str,
}

impl<'a> Btrfs<'a> {
    fn new(redundancy: &str, disks: &'a [&'a str], spare: &'a str, scratch: &Scratch) -> Self {
        let at = scratch.join("mnt");
        fs::create_dir_all(&at).expect("a mount point");
        let mkfs = ["--force", "--quiet", "--metadata", "raid1", "--data", redundancy];
        run(command("mkfs.btrfs").args(mkfs).args(disks));
        Self { mount: None, at, disks, spare }
    }

    /// The kernel must not take wiped disks for members.
    fn forget() {
        run(command("btrfs").args(["device", "scan", "--forget"]));
    }
}

impl Contestant for Btrfs<'_> {
    fn name(&self) -> &'static str {
        "btrfs"
    }

    fn mount(&mut self) {
        run(command("btrfs").args(["device", "scan"]).args(self.disks));
        self.mount = Some(Mount::new(Path::new(self.disks[0]), &self.at, ""));
    }

    fn unmount(&mut self) {
        self.mount.take().expect("mounted").unmount();
    }

    fn at(&self) -> &Path {
        &self.at
    }

    fn rebuild(&mut self) -> Option<f64> {
        self.unmount();
        Self::forget();
        wipe(&self.disks[..1]);
        run(command("btrfs").args(["device", "scan"]).args(&self.disks[1..]));
        self.mount = Some(Mount::new(Path::new(self.disks[1]), &self.at, "degraded"));
        // Devices count from 1. `-B`: in the foreground.
        let replace = ["replace", "start", "-f", "-B", "1", self.spare];
        Some(seconds(|| drop(run(command("btrfs").args(replace).arg(&self.at)))))
    }

    fn rebuild_again(&mut self) -> Option<f64> {
        None
    }
}

/// On one device: the ceiling.
struct Ext4<'a> {
    mount: Option<Mount>,
    at: PathBuf,
    device: &'a str,
}

impl<'a> Ext4<'a> {
    fn new(device: &'a str, scratch: &Scratch) -> Self {
        let at = scratch.join("mnt");
        fs::create_dir_all(&at).expect("a mount point");
        run(command("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0"]).arg(device));
        Self { mount: None, at, device }
    }
}

impl Contestant for Ext4<'_> {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn mount(&mut self) {
        self.mount = Some(Mount::new(Path::new(self.device), &self.at, ""));
    }

    fn unmount(&mut self) {
        self.mount.take().expect("mounted").unmount();
    }

    fn at(&self) -> &Path {
        &self.at
    }

    fn rebuild(&mut self) -> Option<f64> {
        None
    }

    fn rebuild_again(&mut self) -> Option<f64> {
        None
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Runs fio on a file; bytes and requests per second.
fn fio(file: &Path, shape: &[&str]) -> (f64, f64) {
    let output = run(command("fio")
        .args(["--name=bench", "--output-format=terse", "--ioengine=psync", "--fallocate=none"])
        .arg(format!("--filename={}", file.display()))
        .args(shape)
        .current_dir(std::env::temp_dir()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields: Vec<&str> = text.lines().last().unwrap_or_default().split(';').collect();
    let number = |field: usize| fields[field].parse::<f64>().expect("a number of fio");
    // Terse format 3: KiB/s and IOPS of reads, then of writes.
    ((number(6) + number(47)) * 1024.0, number(7) + number(48))
}

/// Seconds until an archive is unpacked and on the disks.
fn untar(fs: &mut dyn Contestant, archive: &Path, at: &Path) -> f64 {
    fs::create_dir(at).expect("a folder");
    seconds(|| {
        run(command("tar").arg("xf").arg(archive).arg("-C").arg(at));
        fs.unmount();
    })
}

/// Seconds until a folder is deleted, and that is on the disks.
fn remove(fs: &mut dyn Contestant, folder: &Path) -> f64 {
    seconds(|| {
        run(command("rm").arg("-r").arg(folder));
        fs.unmount();
    })
}

fn turn(fs: &mut dyn Contestant, tree: &Path, files: u64, disk_mib: u64) -> Turn {
    fs.mount();
    let (file, unpacked) = (fs.at().join("file"), fs.at().join("tree"));
    let size = format!("--size={FILE_MIB}m");
    let write = fio(&file, &["--rw=write", "--bs=1m", "--end_fsync=1", &size]).0;
    let read = median(
        (0..READS)
            .map(|_| {
                fs.unmount();
                fs.mount();
                fio(&file, &["--rw=read", "--bs=1m", &size]).0
            })
            .collect(),
    );
    let small = ["--rw=randwrite", "--bs=4k", "--time_based", "--runtime=3", &size];
    let fsync = fio(&file, &[&small[..], &["--fsync=1"]].concat()).1;
    let fdatasync = fio(&file, &[&small[..], &["--fdatasync=1"]].concat()).1;
    let unpacking = untar(fs, tree, &unpacked);
    fs.mount();
    let find = seconds(|| {
        let found = run(command("find").arg(&unpacked).args(["-type", "f", "-size", "+0"]));
        let found = found.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(found as u64, files, "files found");
    });
    let removing = remove(fs, &unpacked);
    fs.mount_awake();
    let unpacking_awake = untar(fs, tree, &unpacked);
    fs.mount_awake();
    let removing_awake = remove(fs, &unpacked);
    fs.mount();
    let live = disk_mib * DISKS as u64 * FULL_PERCENT / 100 / 2;
    let size = format!("--size={live}m");
    fio(&file, &["--rw=write", "--bs=1m", "--end_fsync=1", &size]);
    let rebuild = fs.rebuild().unwrap_or(f64::NAN);
    let rebuild_again = fs.rebuild_again().unwrap_or(f64::NAN);
    fs.unmount();
    let files = files as f64;
    let live = (live << 20) as f64;
    let turn = [
        write,
        read,
        fsync,
        fdatasync,
        files / unpacking,
        files / find,
        files / removing,
        files / unpacking_awake,
        files / removing_awake,
        live / rebuild,
        live / rebuild_again,
    ];
    // The table comes at the end, which is some minutes away.
    let figures = ROWS.iter().zip(turn).map(|((_, _, scale), value)| value / scale);
    eprintln!("{} {:.2?}", fs.name(), figures.collect::<Vec<_>>());
    turn
}

/// Writes an archive like that of a program's sources.
fn archive(scratch: &Scratch, files: u64) -> PathBuf {
    let (folder, archive) = (scratch.join("sources"), scratch.join("sources.tar"));
    for n in 0..files {
        let folder = folder.join(format!("d{}", n / FILES_IN_FOLDER));
        fs::create_dir_all(&folder).expect("a folder");
        // From 100 bytes to 26 KB, half of them below 4 KB.
        let lines = 2 + (n * 7919 % 97).pow(2) / 18;
        let mut text = String::new();
        for line in 0..lines {
            let _ = writeln!(text, "let value_{line} = compute({n}, {line}); // and so on");
        }
        fs::write(folder.join(format!("file{n}.rs")), text).expect("room for the sources");
    }
    run(command("tar").arg("cf").arg(&archive).arg("-C").arg(&folder).arg("."));
    fs::remove_dir_all(&folder).expect("removed");
    archive
}

fn wipe(devices: &[&str]) {
    run(command("wipefs").args(["--all", "--force", "--quiet"]).args(devices));
}

fn report(table: &Table, redundancy: &str, [ours, theirs, ceiling]: [&[Turn]; 3]) {
    for (row, (what, unit, scale)) in ROWS.iter().enumerate() {
        let figure = |turns: &[Turn]| median(turns.iter().map(|turn| turn[row]).collect());
        let spread = |turns: &[Turn]| {
            let all = turns.iter().map(|turn| format!("{:.1}", turn[row] / scale));
            all.collect::<Vec<_>>().join(", ")
        };
        let has_peer = theirs.iter().all(|turn| turn[row].is_finite());
        let ext4 = match ceiling.iter().all(|turn| turn[row].is_finite()) {
            true => format!("; ext4 {} {unit}", spread(ceiling)),
            false => String::new(),
        };
        let peer = || format!("btrfs {} {unit}{ext4}", spread(theirs));
        table.row(&Row {
            what: format!("{redundancy}: {what}"),
            weft: format!("{} {unit}", spread(ours)),
            peer: if has_peer { peer() } else { "btrfs: no room".into() },
            ratio: has_peer.then(|| figure(ours) / figure(theirs)),
            target: None,
        });
    }
}

fn main() {
    let tools = ["fio", "btrfs", "mkfs.btrfs", "mkfs.ext4", "wipefs", "losetup", "tar", "find"]
        .map(Need::Tool);
    if !have(&[&tools[..], &[Need::Root, Need::Loop, Need::Fuse]].concat()) {
        return;
    }
    let files = std::env::var("WEFT_BENCH_FILES").ok();
    let files = files.map_or(FILES_DEFAULT, |files| files.parse().expect("a number of files"));
    let disk_mib = DISK_MIB + files / 100;
    let scratch = Scratch::new("bench-fs-disks");
    let tree = archive(&scratch, files);
    let loops: Vec<LoopDevice> = (0..=DISKS)
        .map(|n| {
            let path = scratch.join(format!("d{n}"));
            let len = usize::try_from(disk_mib << 20).expect("fits memory");
            fs::write(&path, vec![0x5a; len]).expect("room for the disks");
            LoopDevice::attach(&path, true)
        })
        .collect();
    let devices: Vec<&str> = loops.iter().filter_map(|device| device.path().to_str()).collect();
    let (spare, disks) = devices.split_last().expect("disks");
    let table = Table::new(
        "weftfs compared with btrfs, and ext4 as the ceiling",
        format!(
            "{DISKS} loop devices of {disk_mib} MiB, a file of {FILE_MIB} MiB, {files} small files; \
             {ROUNDS} rounds, each shown."
        ),
    );
    let mut ceiling = Vec::new();
    for _ in 0..ROUNDS {
        wipe(&devices);
        ceiling.push(turn(&mut Ext4::new(spare, &scratch), &tree, files, disk_mib));
    }
    for redundancy in ["raid1", "raid5"] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            wipe(&devices);
            let mut weft = Weft::new(redundancy, disks, spare, files);
            ours.push(turn(&mut weft, &tree, files, disk_mib));
            drop(weft);
            wipe(&devices);
            let mut btrfs = Btrfs::new(redundancy, disks, spare, &scratch);
            theirs.push(turn(&mut btrfs, &tree, files, disk_mib));
            Btrfs::forget();
        }
        report(&table, redundancy, [&ours, &theirs, &ceiling]);
    }
}
