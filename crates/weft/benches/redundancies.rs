//! Fig. 3 to 5 of File RAID (Shinkai, Maruyama and Yoshizawa) on real files: a file of 100 MB by
//! its redundancy, written and read in order by the size of requests, and overwritten at random.
//!
//! The file system is used in process, so that neither FUSE nor the page cache counts; its disks
//! are files, which are opened past the page cache. Raw are streams on these files without a file
//! system, one for each. RAID0-n and RAID5-n have n data blocks in a line. The files are usually on
//! one real disk: then RAID5-n, which writes 1 + 1/n times as much, can be at n/(n + 1) of RAID0-n.
//! `weft lab run file-raid` has the same on disks of their own, which are modelled.

mod in_process;

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use futures_util::future::join_all;
use in_process::{NOW, mount, new, open_disks};
use weft_bench::{MIB, median};
use weft_cli::disks::Opener;
use weft_cli::thread;
use weft_disk::{Class, Disk, WriteOpts};
use weft_fs::{BLOCK_BYTES, CreateOptions, Fs, Ino, Kind, ROOT};
use weft_rt::{Buf, Frozen, Rng};
use weft_testkit::Scratch;

const DISKS: usize = 4;
const DISK_BYTES: u64 = 256 * MIB;
const FILE_BYTES: u64 = 100 * MIB;
const ROUNDS: usize = 3;
/// Requests of the kernel's read-ahead in flight, each of 1 MiB.
const AHEAD: usize = 4;

/// Name, disks, redundancy (none: without a file system), and the case with as many data disks to
/// which it is compared.
const CASES: [(&str, usize, Option<&str>, &str); 9] = [
    ("Raw", 1, None, "Raw"),
    ("Raw-2", 2, None, "Raw-2"),
    ("Raw-3", 3, None, "Raw-3"),
    ("Non RAID", 2, Some("none"), "Raw"),
    ("RAID0-2", 2, Some("raid0"), "Raw-2"),
    ("RAID0-3", 3, Some("raid0"), "Raw-3"),
    ("RAID1", 2, Some("raid1"), "Non RAID"),
    ("RAID5-2", 3, Some("raid5"), "RAID0-2"),
    ("RAID5-3", 4, Some("raid5"), "RAID0-3"),
];

/// What is measured: bytes and number of the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Write(u64),
    Read(u64, usize),
    Overwrite,
}

const LOADS: [(&str, Load); 10] = [
    ("written in order, 4 KiB", Load::Write(4 << 10)),
    ("written in order, 16 KiB", Load::Write(16 << 10)),
    ("written in order, 64 KiB", Load::Write(64 << 10)),
    ("written in order, 256 KiB", Load::Write(256 << 10)),
    ("read in order, 4 KiB", Load::Read(4 << 10, 1)),
    ("read in order, 16 KiB", Load::Read(16 << 10, 1)),
    ("read in order, 64 KiB", Load::Read(64 << 10, 1)),
    ("read in order, 256 KiB", Load::Read(256 << 10, 1)),
    ("read in order, read-ahead", Load::Read(MIB, AHEAD)),
    ("overwritten at random, 4 KiB", Load::Overwrite),
];

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request that fits in memory")
}

/// Millions of bytes a second since then.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn mb_s(bytes: u64, begun: Instant) -> f64 {
    bytes as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

fn data(bytes: u64) -> Frozen {
    Frozen::copy_from(&vec![0x5a; len(bytes)])
}

/// Reads `bytes` in order, `depth` requests at a time.
async fn in_order<F: Future<Output = ()>>(
    bytes: u64,
    step: u64,
    requests: usize,
    read: impl Fn(u64, u64) -> F,
) {
    let next = Cell::new(0);
    let reader = async || {
        while next.get() < bytes {
            let at = next.replace(next.get() + step);
            read(at, step.min(bytes - at)).await;
        }
    };
    join_all((0..requests).map(|_| reader())).await;
}

/// One stream for each disk, each with its share of the bytes. It has no random overwrites.
async fn raw(disks: &[Rc<dyn Disk>], load: Load) -> f64 {
    let share = FILE_BYTES / disks.len() as u64 / BLOCK_BYTES * BLOCK_BYTES;
    let begun = Instant::now();
    join_all(disks.iter().map(|disk| async move {
        match load {
            Load::Write(step) => {
                let data = data(step);
                in_order(share, step, 1, async |at, bytes| {
                    let part = data.slice(0, len(bytes));
                    disk.write(at, part, WriteOpts::USER).await.expect("written");
                })
                .await;
                disk.flush().await.expect("flushed");
            }
            Load::Read(step, requests) => {
                in_order(share, step, requests, async |at, bytes| {
                    disk.read(at, Buf::new(len(bytes)), Class::User).await.0.expect("read");
                })
                .await;
            }
            Load::Overwrite => {}
        }
    }))
    .await;
    if load == Load::Overwrite { f64::NAN } else { mb_s(share * disks.len() as u64, begun) }
}

async fn write(fs: &Fs, ino: Ino, step: u64) -> f64 {
    let data = data(step);
    let begun = Instant::now();
    in_order(FILE_BYTES, step, 1, async |at, bytes| {
        fs.write(ino, at, data.slice(0, len(bytes))).await.expect("written");
    })
    .await;
    fs.fsync(ino).await.expect("durable");
    mb_s(FILE_BYTES, begun)
}

/// On a new file system, that was mounted anew before the file is read or overwritten.
async fn file(opener: &Opener, disks: &[Rc<dyn Disk>], redundancy: &str, load: Load) -> f64 {
    let create = CreateOptions {
        name: "bench".into(),
        redundancy: redundancy.parse().expect("known"),
        slice_bytes: None,
        force: true,
        id: thread::random().expect("random"),
        now: NOW,
    };
    weft_fs::create(&opener.rt, disks, &create).await.expect("created");
    let mut fs = mount(opener, disks).await;
    let (ino, _) = fs.make(ROOT, b"file", new(Kind::File)).await.expect("made");
    fs.begin_use(ino);
    fs.sync().await.expect("durable");
    let written = write(&fs, ino, if let Load::Write(step) = load { step } else { MIB }).await;
    if !matches!(load, Load::Write(_)) {
        fs.unmount().await.expect("unmounted");
        fs = mount(opener, disks).await;
    }
    let begun = Instant::now();
    let rate = match load {
        Load::Write(_) => written,
        Load::Read(step, requests) => {
            in_order(FILE_BYTES, step, requests, async |at, bytes| {
                let read = fs.read(ino, at, len(bytes)).await.expect("read");
                assert_eq!(read.len(), len(bytes), "bytes read");
            })
            .await;
            mb_s(FILE_BYTES, begun)
        }
        Load::Overwrite => {
            let (mut rng, block) = (Rng::new(1), data(BLOCK_BYTES));
            for _ in 0..FILE_BYTES / BLOCK_BYTES {
                let at = rng.below(FILE_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
                fs.write(ino, at, block.clone()).await.expect("written");
            }
            fs.fsync(ino).await.expect("durable");
            mb_s(FILE_BYTES, begun)
        }
    };
    fs.unmount().await.expect("unmounted");
    rate
}

/// The rate of a case under a load.
fn rate(folder: &Path, count: usize, redundancy: Option<&'static str>, load: Load) -> f64 {
    let folder = folder.to_owned();
    let measured = thread::run(move |opener: Opener| async move {
        let disks = open_disks(&opener, &folder, count).await;
        Ok(match redundancy {
            Some(redundancy) => file(&opener, &disks, redundancy, load).await,
            None => raw(&disks, load).await,
        })
    });
    measured.unwrap_or_else(|_| panic!("the thread failed"))
}

fn main() {
    let scratch = Scratch::new("bench-redundancies");
    for n in 0..DISKS {
        // Blocks that were never written would cost the file system below more.
        let disk = scratch.join(format!("d{n}"));
        std::fs::write(disk, vec![0x5a; len(DISK_BYTES)]).expect("room for the disks");
    }
    println!("\n### Redundancies of files on real files\n");
    println!(
        "A file of {} MiB, in MB/s; medians of {ROUNDS} rounds, in brackets by the case beside it \
         (minimum to maximum of the rounds' ratios).\n",
        FILE_BYTES / MIB
    );
    println!("| load | {} |", CASES.map(|case| case.0).join(" | "));
    println!("|---|{}", "---|".repeat(CASES.len()));
    for (what, load) in LOADS {
        // Case by case in each round: what else the machine does meets all of them.
        let rounds: Vec<Vec<f64>> = (0..ROUNDS)
            .map(|round| {
                eprintln!("{what}: round {} of {ROUNDS}", round + 1);
                let rate =
                    |(_, disks, redundancy, _)| rate(&scratch.join("."), disks, redundancy, load);
                CASES.into_iter().map(rate).collect()
            })
            .collect();
        let figures = CASES.iter().enumerate().map(|(n, (name, .., beside))| {
            let all: Vec<f64> = rounds.iter().map(|round| round[n]).collect();
            if all.iter().any(|rate| rate.is_nan()) {
                return "–".into();
            }
            let m = CASES.iter().position(|case| case.0 == *beside).expect("a case of these");
            let mut ratios: Vec<f64> = rounds.iter().map(|round| round[n] / round[m]).collect();
            ratios.sort_by(f64::total_cmp);
            match beside == name || ratios.iter().any(|ratio| ratio.is_nan()) {
                true => format!("{:.0}", median(all)),
                false => {
                    let (least, most) = (ratios[0], ratios[ROUNDS - 1]);
                    format!("{:.0} ({:.2}: {least:.2} to {most:.2})", median(all), median(ratios))
                }
            }
        });
        println!("| {what} | {} |", figures.collect::<Vec<String>>().join(" | "));
    }
}
