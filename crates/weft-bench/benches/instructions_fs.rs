//! Instructions per operation of the file system on names and attributes, below FUSE, counted by
//! valgrind: the same on every machine and under any load. Three RAM disks, files of `auto`.
//!
//! Each count has its share of one commit after all `FILES` operations. Warming up is not counted.

use std::process::ExitCode;
use std::rc::Rc;

use weft_bench::{TrivialDriver, instructions, ram_disks};
use weft_fs::{
    AccessTimes, CreateOptions, Fs, Ino, Kind, META_CACHE_BYTES, MountOptions, NewFile, ROOT,
    Redundancy, SetAttr, Time, create,
};
use weft_rt::{Frozen, Rt, Schedule};

const FILES: u64 = 2000;
const DISK_MIB: u64 = 256;
const NOW: Time = Time { s: 1_700_000_000, ns: 0 };

/// What is counted, and what it is called.
const CASES: [(&str, Case); 9] = [
    ("create", Case::Create),
    ("create and write 104 bytes", Case::Small),
    ("lookup", Case::Lookup),
    ("set times", Case::SetAttr),
    ("rename", Case::Rename),
    ("unlink", Case::Unlink),
    ("create and unlink", Case::Both),
    ("commit of 10,000 new rows", Case::CommitNew),
    ("commit of 10,000 removed rows", Case::CommitRemoved),
];
/// Rows that change with a name and an empty file: its inode, its name and its position.
const ROWS: u64 = 3;
/// Files in commits of 10,000 rows.
const COMMITTED: u64 = 10_000 / ROWS;

#[derive(Clone, Copy, PartialEq)]
enum Case {
    Create,
    Small,
    Lookup,
    SetAttr,
    Rename,
    Unlink,
    Both,
    CommitNew,
    CommitRemoved,
}

impl Case {
    /// What one count is for.
    fn count(self) -> u64 {
        if matches!(self, Self::CommitNew | Self::CommitRemoved) { 1 } else { FILES }
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("file{n}.txt").into_bytes()
}

async fn make(fs: &Fs, folder: Ino, n: u64, kind: Kind) -> Ino {
    let new =
        NewFile { mode: kind.mode() | 0o755, umask: 0, uid: 1, gid: 1, device: 0, target: b"" };
    fs.make(folder, &name(n), new).await.expect("made").0
}

/// The part that callgrind counts.
#[inline(never)]
fn counted_operations(rt: &Rt, fs: &Fs, folder: Ino, case: Case) {
    operations(rt, fs, folder, case, 0);
}

fn operations(rt: &Rt, fs: &Fs, folder: Ino, case: Case, from: u64) {
    let fs = fs.clone();
    rt.block_on(async move {
        let files = if case.count() == 1 { 0 } else { FILES };
        for n in from..from + files {
            match case {
                Case::Create => drop(make(&fs, folder, n, Kind::File).await),
                Case::Small => {
                    let ino = make(&fs, folder, n, Kind::File).await;
                    let data = Frozen::copy_from(&n.to_le_bytes().repeat(13));
                    fs.write(ino, 0, data).await.expect("written");
                }
                Case::Lookup => drop(fs.lookup(folder, &name(n)).await.expect("found")),
                Case::SetAttr => {
                    let (ino, _) = fs.lookup(folder, &name(n)).await.expect("found");
                    let set = SetAttr { accessed: Some(NOW), ..SetAttr::default() };
                    fs.set_attr(ino, set).await.expect("set");
                }
                Case::Rename => {
                    let new = format!("new{n}").into_bytes();
                    let (from, to) = (name(n), new);
                    let how = weft_fs::Rename::Replace;
                    fs.rename((folder, &from), (folder, &to), how).await.expect("renamed");
                }
                Case::CommitNew | Case::CommitRemoved => {}
                Case::Unlink => fs.unlink(folder, &name(n)).await.expect("deleted"),
                Case::Both => {
                    make(&fs, folder, n, Kind::File).await;
                    fs.unlink(folder, &name(n)).await.expect("deleted");
                }
            }
        }
        fs.sync().await.expect("synced");
    });
}

async fn new_fs(rt: &Rt) -> Fs {
    let disks = ram_disks(3, DISK_MIB);
    let options = CreateOptions {
        name: "bench".into(),
        redundancy: Redundancy::Auto,
        slice_bytes: Some(82 << 20),
        force: false,
        id: [0xbe; 16],
        now: NOW,
    };
    create(rt, &disks, &options).await.expect("created");
    let options = MountOptions {
        degraded: false,
        stale: false,
        read_only: false,
        access_times: AccessTimes::None,
        cache_bytes: 64 << 20,
        meta_cache_bytes: META_CACHE_BYTES,
        nonce: 1,
        now: NOW,
        host: None,
        clock: None,
    };
    Fs::mount(rt, &disks, options).await.expect("mounted")
}

fn child(case: Case) {
    let rt = Rt::new(Rc::new(TrivialDriver::default()), Schedule::Fifo);
    let rt2 = rt.clone();
    let (fs, folder) = rt.block_on(async move {
        let fs = new_fs(&rt2).await;
        let folder = make(&fs, ROOT, 0, Kind::Folder).await;
        fs.sync().await.expect("synced");
        (fs, folder)
    });
    // Other files are there, and code and memory were used.
    operations(&rt, &fs, folder, Case::Small, FILES);
    if !matches!(case, Case::Create | Case::Small | Case::Both) && case.count() > 1 {
        operations(&rt, &fs, folder, Case::Create, 0);
    }
    let fs2 = fs.clone();
    rt.block_on(async move {
        for n in (0..COMMITTED).filter(|_| case.count() == 1) {
            make(&fs2, folder, 10_000 + n, Kind::File).await;
        }
        for n in (0..COMMITTED).filter(|_| case == Case::CommitRemoved) {
            if n == 0 {
                fs2.sync().await.expect("synced");
            }
            fs2.unlink(folder, &name(10_000 + n)).await.expect("deleted");
        }
    });
    counted_operations(&rt, &fs, folder, case);
    rt.kill_all();
}

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    if let Some((_, case)) = CASES.iter().find(|(name, _)| Some(*name) == asked.as_deref()) {
        child(*case);
        return ExitCode::SUCCESS;
    }
    println!("\n### Instructions per operation of the file system\n");
    println!("Three RAM disks; {FILES} operations and a commit, one after the other\n");
    println!("| {:<28} | instructions |", "operation");
    println!("|{:-<30}|-------------:|", "");
    for (name, case) in CASES {
        match instructions(name, "counted_operations", case.count()) {
            Ok(n) => println!("| {name:<28} | {n:>12} |"),
            Err(error) => {
                eprintln!("instructions: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
