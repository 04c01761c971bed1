//! Places are reserved without being written: they read as zeros, whatever the disks hold there,
//! and what is written to them finds room.

use std::cell::Cell;
use std::rc::Rc;

use weft_disk::Disk;
use weft_fs::{CreateOptions, Fs, FsError, Ino, Kind, ROOT, Redundancy, SetAttr, create};
use weft_random::Rng;
use weft_rt::{Frozen, MICROSECOND, Rt};
use weft_testkit::for_seeds;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::test_disks::left_on;
use crate::common::*;

const MIB: u64 = 1 << 20;
const REDUNDANCIES: [&str; 5] = ["none", "auto", "raid1", "raid6", "rs:2+1"];

/// A file system whose free blocks hold what a file had that is gone.
async fn stale(rt: &Rt, disks: &[Rc<dyn Disk>]) -> Fs {
    let fs = made(rt, disks).await;
    let ino = make_as(&fs, "gone", "none").await;
    let mut at = 0;
    while fs.write(ino, at, Frozen::copy_from(&[0xEE; 1 << 18])).await.is_ok() {
        at += 1 << 18;
    }
    fs.sync().await.expect("synced");
    fs.unlink(ROOT, b"gone").await.expect("removed");
    fs.sync().await.expect("synced");
    fs
}

async fn free_blocks(fs: &Fs) -> u64 {
    space::free_blocks(fs).await.iter().sum()
}

async fn blocks_of(fs: &Fs, ino: Ino) -> u64 {
    fs.attr(ino).await.expect("there").blocks
}

#[test]
fn gigabytes_are_reserved_without_a_write_and_read_as_zeros() {
    for redundancy in REDUNDANCIES {
        run(move |rt| async move {
            let disks = ram(&[1200; 4]);
            let options = CreateOptions { slice_bytes: Some(80 * MIB), ..options() };
            create(&rt, &disks, &options).await.expect("created");
            let fs = mount(&rt, &disks).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let before = free_blocks(&fs).await;
            let size = 1 << 30;
            fs.allocate(ino, 0, size, false).await.expect("reserved");
            fs.fsync(ino).await.expect("synced");
            // Nothing waits to be written.
            assert_eq!(fs.status().await.expect("known").dirty_bytes, 0);
            assert_eq!(blocks_of(&fs, ino).await, size / BLOCK);
            let taken = before - free_blocks(&fs).await;
            assert!(taken >= size / BLOCK, "{taken} blocks for {redundancy}");
            for (data, found) in [(true, None), (false, Some(0))] {
                assert_eq!(fs.seek(ino, 0, data).await.expect("looked for"), found);
            }
            // As after a crash.
            drop(fs);
            let fs = mount(&rt, &disks).await;
            assert_eq!(before - free_blocks(&fs).await, taken, "{redundancy}");
            assert_eq!(blocks_of(&fs, ino).await, size / BLOCK);
            assert_eq!(*fs.read(ino, 300 * MIB, 8192).await.expect("read"), [0; 8192]);
            // What is cut off and punched is free again.
            fs.punch_hole(ino, 0, 512 * MIB).await.expect("punched");
            let cut = SetAttr { size: Some(768 * MIB), ..SetAttr::default() };
            fs.set_attr(ino, cut).await.expect("cut");
            let left = before - free_blocks(&fs).await;
            assert!(left <= taken / 4 + 64, "{left} of {taken} for {redundancy}");
            assert_sound(&fs).await;
        });
    }
}

#[test]
fn nothing_but_what_was_written_is_seen_of_reserved_blocks() {
    for_seeds(0..20, |rng| {
        let seed = rng.next_u64();
        run(move |rt| async move {
            let mut rng = Rng::new(seed);
            let disks = ram(&[24; 4]);
            let mut fs = stale(&rt, &disks).await;
            let ino = make_as(&fs, "file", REDUNDANCIES[rng.index(5)]).await;
            let mut bytes: Vec<u8> = Vec::new();
            for round in 0..60 {
                let (at, len) = (rng.index(400_000), 1 + rng.index(60_000));
                match rng.below(8) {
                    0 | 1 => {
                        fs.allocate(ino, at as u64, len as u64, true).await.expect("reserved");
                    }
                    2 => {
                        fs.allocate(ino, at as u64, len as u64, false).await.expect("reserved");
                        bytes.resize(bytes.len().max(at + len), 0);
                    }
                    3 => {
                        fs.punch_hole(ino, at as u64, len as u64).await.expect("punched");
                        let end = (at + len).min(bytes.len());
                        bytes[at.min(end)..end].fill(0);
                    }
                    4 => {
                        let cut = SetAttr { size: Some(at as u64), ..SetAttr::default() };
                        fs.set_attr(ino, cut).await.expect("cut");
                        bytes.resize(at, 0);
                    }
                    5 => fs.fsync(ino).await.expect("synced"),
                    _ => {
                        let data = pattern(len, round);
                        bytes.resize(bytes.len().max(at + len), 0);
                        bytes[at..at + len].copy_from_slice(&data);
                        write(&fs, ino, at as u64, &data).await;
                    }
                }
                assert!(read_all(&fs, ino).await == bytes, "round {round}");
                if rng.chance(5) {
                    fs.unmount().await.expect("unmounted");
                    fs = mount(&rt, &disks).await;
                }
            }
            assert_sound(&fs).await;
        });
    });
}

/// Reserved blocks are written in any order while everything else is taken, and the metadata is
/// full.
#[test]
fn what_is_written_to_reserved_blocks_finds_room() {
    for redundancy in REDUNDANCIES {
        run(move |rt| async move {
            let disks = ram(&[30, 24, 40, 26]);
            let fs = made(&rt, &disks).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let blocks = 1500;
            fs.allocate(ino, 0, blocks * BLOCK, true).await.expect("reserved");
            let filler = make_as(&fs, "filler", "none").await;
            for step in [1 << 20, 1 << 12] {
                let mut end = fs.attr(filler).await.expect("there").size;
                while fs.allocate(filler, end, step, false).await.is_ok() {
                    end += step;
                }
            }
            let mut names = 0;
            while fs
                .make(ROOT, format!("name {names}").as_bytes(), new_file(Kind::File))
                .await
                .is_ok()
            {
                names += 1;
            }
            // A prime: each block once, far from the one before it.
            for (n, block) in (0..blocks).map(|n| n * 613 % blocks).enumerate() {
                let data = Frozen::copy_from(&pattern(BLOCK as usize, block));
                let written = fs.write(ino, block * BLOCK, data).await;
                written.unwrap_or_else(|error| panic!("{redundancy}, {n} written: {error}"));
                if n % 100 == 0 {
                    fs.fsync(ino).await.expect("synced");
                }
            }
            fs.fsync(ino).await.expect("synced");
            assert_eq!(blocks_of(&fs, ino).await, blocks);
            let more = fs.write(filler, 1 << 30, Frozen::copy_from(&[1; 4096])).await;
            assert!(matches!(more, Err(FsError::NoSpace)), "{redundancy}: {more:?}");
            drop(fs);
            let fs = mount(&rt, &disks).await;
            for block in 0..blocks {
                let found = fs.read(ino, block * BLOCK, BLOCK as usize).await.expect("read");
                assert!(found[..] == pattern(BLOCK as usize, block), "{redundancy}: {block}");
            }
            assert_sound(&fs).await;
        });
    }
}

/// Lost disks take nothing with them but room; what is reserved on them gets other places.
#[test]
fn reserved_blocks_outlive_lost_disks() {
    for redundancy in REDUNDANCIES {
        for rebuilds in [false, true] {
            run(move |rt| async move {
                let media = vec![Medium::new(512); 5];
                let disks: Vec<Rc<TestDisk>> = holding(&rt, &Power::new(), 24 * MIB, &media);
                let fs = stale(&rt, &all(&disks)).await;
                let ino = make_as(&fs, "file", redundancy).await;
                fs.allocate(ino, 0, 900 * BLOCK, false).await.expect("reserved");
                write(&fs, ino, 100 * BLOCK, &pattern(5000, 1)).await;
                let mut bytes = vec![0; 900 * BLOCK as usize];
                if redundancy != "none" {
                    bytes[100 * BLOCK as usize..][..5000].copy_from_slice(&pattern(5000, 1));
                } else {
                    fs.punch_hole(ino, 100 * BLOCK, 2 * BLOCK).await.expect("punched");
                }
                fs.sync().await.expect("synced");
                disks[1].faults.gone.set(true);
                assert!(fs.loss_of(1).await.expect("known").files == 0, "{redundancy}");
                fs.fail_disk(1).await.expect("failed");
                if rebuilds {
                    let report = fs.rebuild().await.expect("rebuilt");
                    assert!(report.damaged.is_empty() && report.waiting.is_empty());
                }
                assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
                for at in (0..900).step_by(7) {
                    let data = pattern(3000, at);
                    bytes[at as usize * BLOCK as usize + 500..][..3000].copy_from_slice(&data);
                    write(&fs, ino, at * BLOCK + 500, &data).await;
                }
                fs.fsync(ino).await.expect("synced");
                assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
                drop(fs);
                let media = left_on(&disks, Leave::Completed);
                let disks = holding(&rt, &Power::new(), 24 * MIB, &media);
                let fs = mount_degraded(&rt, &all(&disks)).await;
                assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
                fs.rebuild().await.expect("rebuilt");
                assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
                assert_sound(&fs).await;
            });
        }
    }
}

/// The disks of the record that begins with a block of the file, by units.
async fn disks_at(fs: &Fs, ino: Ino, block: u64) -> Vec<usize> {
    let places = fs.places(ino).await.expect("known");
    let (_, record) = places.iter().find(|(first, _)| *first == block).expect("a record");
    record.columns.iter().flatten().map(|column| column.disk.into()).collect()
}

/// Reserved blocks are written, and blocks of lines with parity, of which old contents are read
/// first: that finds that the disk of the reserved blocks is lost. Some time after that the one is
/// lost to which the file system turns instead. Returns which one that was, if it was told to
/// `lose` none, and panics if something is lost.
fn lose_one_after_the_other(lose: Option<(usize, u64)>) -> usize {
    const RESERVED: u64 = 600;
    let turned_to = Rc::new(Cell::new(0));
    let told = turned_to.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disk = |(n, mib): (usize, &u64)| {
            TestDisk::new(&rt, &power, n, mib * MIB, 512, Medium::new(512))
        };
        // The largest two have the most room.
        let disks: Vec<_> = [24, 24, 48, 24, 24, 32, 24, 24].iter().enumerate().map(disk).collect();
        let fs = made(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid6").await;
        let mut bytes = pattern(12 * BLOCK as usize, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        // What is there keeps its parity.
        fs.want_redundancy(&[ino], Redundancy::Single).await.expect("set");
        fs.allocate(ino, RESERVED * BLOCK, 4 * BLOCK, false).await.expect("reserved");
        // Nothing is at hand: old contents are read.
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        let coded = disks_at(&fs, ino, 0).await;
        let first = disks_at(&fs, ino, RESERVED).await[0];
        // Blocks of which the old contents are on these disks, or their parity is, in two lines.
        for (line, disk) in [(0, first), (1, lose.map_or(first, |(second, _)| second))] {
            let unit = coded.iter().position(|of| *of == disk).expect("it is as wide as there are");
            let at = (line * 6 + if unit < 6 { unit } else { 0 }) * BLOCK as usize;
            bytes[at..at + BLOCK as usize].fill(9);
            write(&fs, ino, at as u64, &[9; BLOCK as usize]).await;
        }
        let reserved = pattern(4 * BLOCK as usize, 2);
        write(&fs, ino, RESERVED * BLOCK, &reserved).await;
        disks[first].faults.gone.set(true);
        if let Some((second, after)) = lose {
            let (disk, clock) = (disks[second].clone(), rt.clone());
            rt.launch(Box::pin(async move {
                clock.sleep(after).await;
                disk.faults.gone.set(true);
            }));
        }
        let synced = fs.fsync(ino).await;
        let places = fs.places(ino).await.expect("known");
        assert!(places.iter().all(|(_, record)| !record.unwritten), "{lose:?}: {synced:?}");
        told.set(disks_at(&fs, ino, RESERVED).await[0]);
        // It may have taken what was written with it.
        let is_gone = lose.is_some_and(|(second, _)| second == told.get());
        assert!(is_gone || synced.is_ok(), "{lose:?}: {synced:?}");
        bytes.resize(RESERVED as usize * BLOCK as usize, 0);
        bytes.extend_from_slice(&reserved);
        if !is_gone {
            fs.sync().await.unwrap_or_else(|error| panic!("{lose:?}: {error}"));
            assert!(read_all(&fs, ino).await == bytes, "{lose:?}");
        }
    });
    turned_to.get()
}

#[test]
fn reserved_blocks_get_other_places_each_time_that_a_disk_is_lost_under_them() {
    let second = lose_one_after_the_other(None);
    let mut others = 0;
    for after in (0..40).map(|n| 5 * n * n * MICROSECOND) {
        others += usize::from(lose_one_after_the_other(Some((second, after))) != second);
    }
    assert!((1..40).contains(&others), "{others} times it was lost before it was used");
}

/// What is known of a file when its places are reserved and durable is the same after a crash
/// (xfstests' generic/468): its size, how many blocks it has, and when it was changed.
#[test]
fn what_is_known_of_reserved_places_outlives_a_crash() {
    let ranges =
        [(0, 4096), (0, 2 * MIB), (100, 5000), (600 << 10, 8192), (MIB, MIB), (3 * MIB, 100)];
    for (redundancy, keep_size) in REDUNDANCIES.iter().flat_map(|of| [(of, false), (of, true)]) {
        for (offset, len) in ranges {
            run(move |rt| async move {
                let what = format!("{redundancy}, {len} at {offset}, {keep_size}");
                let media = vec![Medium::new(512); 4];
                let disks = holding(&rt, &Power::new(), 24 * MIB, &media);
                let fs = made(&rt, &all(&disks)).await;
                let ino = make_as(&fs, "file", redundancy).await;
                write(&fs, ino, 0, &pattern(MIB as usize, 1)).await;
                fs.punch_hole(ino, MIB / 2, MIB / 4).await.expect("punched");
                fs.fsync(ino).await.expect("synced");
                fs.allocate(ino, offset, len, keep_size).await.expect("reserved");
                fs.fsync(ino).await.expect("synced");
                let known = async |fs: &Fs| {
                    let inode = fs.attr(ino).await.expect("there");
                    (inode.size, inode.blocks, inode.modified, inode.changed)
                };
                let before = known(&fs).await;
                let end = if keep_size { MIB } else { MIB.max(offset + len) };
                assert_eq!(before.0, end, "{what}");
                let bytes = read_all(&fs, ino).await;
                drop(fs);
                let media = left_on(&disks, Leave::Nothing);
                let disks = holding(&rt, &Power::new(), 24 * MIB, &media);
                let fs = mount(&rt, &all(&disks)).await;
                assert_eq!(known(&fs).await, before, "{what}");
                assert!(read_all(&fs, ino).await == bytes, "{what}");
                assert_sound(&fs).await;
            });
        }
    }
}
