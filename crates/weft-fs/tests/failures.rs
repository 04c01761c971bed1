//! Failures told apart: a block that fails is moved and never used again, and its disk stays; a
//! disk whose diagnostic blocks fail is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::disk::{Leave, Power, TestDisk, holding};
use crate::common::model::Pair;
use crate::common::test_disks::{SIZE, blank, left_on, on_test_disks};
use crate::common::*;
use weft_disk::{Disk, DiskErrorKind, Fault, FaultDisk, Faults};
use weft_fs::{Fs, FsError, FsStatus, Ino, ROOT, Reopen, SetAttr};
use weft_rt::{Frozen, Rt, SECOND};

/// Where the data blocks of a disk begin.
const DATA_AT: u64 = (64 << 10) + (8 << 20);
const REDUNDANT: [&str; 4] = ["auto", "raid1", "raid6", "rs:2+2"];

/// Disk and block of a line of a column, in the record that covers a block of the file.
async fn spot(fs: &Fs, ino: Ino, block: u64) -> (usize, u64) {
    let places = fs.places(ino).await.expect("known");
    let (first, record) = places.iter().rfind(|(first, _)| *first <= block).expect("covered");
    let shape = record.coded.spec.shape(record.coded.columns).expect("it fits");
    let (line, unit) = ((block - first) / shape.k as u64, (block - first) as usize % shape.k);
    let column = record.columns[unit].clone().expect("active");
    (column.disk.into(), column.start + line)
}

/// Disk and block of the last column of the first line of a file: parity, if it has any.
async fn parity_spot(fs: &Fs, ino: Ino) -> (usize, u64) {
    let places = fs.places(ino).await.expect("known");
    let column = places[0].1.columns.last().expect("some").clone().expect("active");
    (column.disk.into(), column.start)
}

/// The sectors of some data blocks of a disk.
fn sectors(blocks: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
    let of_block = |block| (0..8).map(move |sector| (DATA_AT + block * BLOCK) / 512 + sector);
    blocks.into_iter().flat_map(of_block).collect()
}

/// All blocks that files use: disk and block.
async fn used(fs: &Fs) -> BTreeSet<(usize, u64)> {
    let mut used = BTreeSet::new();
    for entry in fs.read_folder(ROOT, 2, 1000).await.expect("listed") {
        for (_, record) in fs.places(entry.ino).await.expect("known") {
            for column in record.columns.iter().flatten() {
                let blocks = column.start..column.start + record.lines;
                used.extend(blocks.map(|block| (usize::from(column.disk), block)));
            }
        }
    }
    used
}

async fn status(fs: &Fs) -> FsStatus {
    fs.status().await.expect("known")
}

async fn bad_blocks(fs: &Fs) -> Vec<u64> {
    status(fs).await.disks.iter().map(|disk| disk.bad_blocks).collect()
}

async fn assert_no_disk_is_lost(fs: &Fs) {
    assert!(status(fs).await.disks.iter().all(|disk| !disk.lost));
}

/// What is on the disks goes to new ones, with the same faults.
fn reopened(rt: &Rt, disks: &[Rc<TestDisk>], left: Leave) -> Vec<Rc<TestDisk>> {
    let again = holding(rt, &Power::new(), SIZE, &left_on(disks, left));
    for (disk, before) in again.iter().zip(disks) {
        *disk.faults.dead_reads.borrow_mut() = before.faults.dead_reads.borrow().clone();
        *disk.faults.dead_writes.borrow_mut() = before.faults.dead_writes.borrow().clone();
    }
    again
}

#[test]
fn a_block_that_cannot_be_read_moves_and_is_never_used_again() {
    for redundancy in REDUNDANT {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 5).await;
            let bytes = pattern(100_000, 1);
            let ino = make_as(&fs, "file", redundancy).await;
            write(&fs, ino, 0, &bytes).await;
            fs.fsync(ino).await.expect("synced");
            let (disk, block) = spot(&fs, ino, 9).await;
            disks[disk].faults.dead_reads.borrow_mut().extend(sectors([block]));
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            // The block moves behind the reader.
            rt.sleep(SECOND / 10).await;
            assert!(!used(&fs).await.contains(&(disk, block)), "{redundancy}: it has moved");
            assert_eq!(spot(&fs, ino, 9).await.0, disk, "on the same disk");
            fs.sync().await.expect("synced");
            let counts = status(&fs).await.counts;
            assert_eq!((counts.moved_blocks, counts.repaired_blocks), (1, 1), "{redundancy}");
            assert_no_disk_is_lost(&fs).await;
            assert_sound(&fs).await;
            drop(fs);
            // The metadata knows, after a crash too.
            let disks = reopened(&rt, &disks, Leave::Nothing);
            let fs = mount(&rt, &all(&disks)).await;
            let bad = bad_blocks(&fs).await;
            assert_eq!((bad[disk], bad.iter().sum::<u64>()), (1, 1), "{redundancy}");
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            fs.unlink(ROOT, b"file").await.expect("removed");
            fs.sync().await.expect("synced");
            fill(&fs).await;
            assert!(!used(&fs).await.contains(&(disk, block)), "{redundancy}: it is not given out");
            assert_eq!(status(&fs).await.counts.unreadable_blocks, 0);
            assert_sound(&fs).await;
        });
    }
}

/// Fills the disks.
async fn fill(fs: &Fs) {
    for (len, name) in [(512 << 10, "f"), (64 << 10, "g"), (4 << 10, "h")] {
        let part = pattern(len, 3);
        for n in 0.. {
            let ino = make_as(fs, &format!("{name}{n}"), "none").await;
            if let Err(error) = fs.write(ino, 0, Frozen::copy_from(&part)).await {
                assert!(matches!(error, FsError::NoSpace), "{error}");
                break;
            }
        }
        fs.sync().await.expect("synced");
    }
}

#[test]
fn new_lines_go_around_blocks_that_cannot_be_written() {
    for redundancy in ["none", "raid0", "auto", "raid1", "raid6"] {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            for (n, disk) in disks.iter().enumerate() {
                let dead = [1, 2, 7, 20].map(|block| block + n as u64);
                *disk.faults.dead_writes.borrow_mut() = sectors(dead);
            }
            let ino = make_as(&fs, "file", redundancy).await;
            let bytes = pattern(600_000, 1);
            write(&fs, ino, 0, &bytes).await;
            fs.fsync(ino).await.expect("synced");
            assert_no_disk_is_lost(&fs).await;
            assert!(bad_blocks(&fs).await.iter().sum::<u64>() > 2, "{redundancy}");
            let used = used(&fs).await;
            for (n, disk) in disks.iter().enumerate() {
                let dead = disk.faults.dead_writes.borrow();
                let meets = |block: &u64| !dead.is_disjoint(&sectors([*block]));
                let of_disk = used.iter().filter(|(disk, _)| *disk == n);
                assert!(of_disk.map(|(_, block)| block).all(|block| !meets(block)));
            }
            assert_sound(&fs).await;
            drop(fs);
            let disks = reopened(&rt, &disks, Leave::Nothing);
            let fs = mount(&rt, &all(&disks)).await;
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            assert_sound(&fs).await;
        });
    }
}

/// Overwrites of all kinds: few blocks, of which the log has the contents; many; a block of a line
/// that becomes active. What fsync has acknowledged is there after a crash.
#[test]
fn blocks_that_cannot_be_overwritten_move_with_their_new_contents() {
    for (n, redundancy) in ["none", "raid0", "auto", "raid1", "raid6"].into_iter().enumerate() {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let mut bytes = pattern(902 * 4096, 1);
            write(&fs, ino, 0, &bytes).await;
            fs.sync().await.expect("synced");
            let mut killed = BTreeSet::new();
            for block in [3, 4, 50] {
                let (disk, at) = spot(&fs, ino, block).await;
                disks[disk].faults.dead_writes.borrow_mut().extend(sectors([at]));
                killed.insert((disk, at));
            }
            // Many blocks lie apart from each other: close together, they get new places.
            let many = (2..902).step_by(12).map(|block| (block, 1)).collect();
            for (version, parts) in [(2, vec![(3, 3)]), (3, many), (4, vec![(3, 1)])] {
                for (from, len) in parts {
                    let (from, len) = (from * 4096, len * 4096);
                    bytes[from..from + len].copy_from_slice(&pattern(len, version));
                    write(&fs, ino, from as u64, &bytes[from..from + len]).await;
                }
                fs.fsync(ino).await.expect("synced");
            }
            assert!(used(&fs).await.is_disjoint(&killed), "{redundancy}");
            assert_eq!(bad_blocks(&fs).await.iter().sum::<u64>(), 3, "{redundancy}");
            assert_no_disk_is_lost(&fs).await;
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            drop(fs);
            let left = if n % 2 == 0 { Leave::Nothing } else { Leave::Completed };
            let disks = reopened(&rt, &disks, left);
            let fs = mount(&rt, &all(&disks)).await;
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            assert_sound(&fs).await;
        });
    }
}

/// A line gets another block, so the log does not have the contents of that flush. Another log
/// record follows: recovery takes it that what the first one names is at its places.
#[test]
fn blocks_of_a_bare_log_record_that_moved_are_found_after_a_crash() {
    for redundancy in ["raid0", "auto", "raid6"] {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let other = make_as(&fs, "other", redundancy).await;
            let blocks = if redundancy == "auto" { 4 } else { 5 };
            let (old, new) = (pattern(blocks * 4096, 1), pattern((blocks + 1) * 4096, 2));
            write(&fs, ino, 0, &old).await;
            write(&fs, other, 0, &old[..8192]).await;
            fs.sync().await.expect("synced");
            let (disk, at) = match redundancy {
                "raid6" => parity_spot(&fs, ino).await,
                _ => spot(&fs, ino, 0).await,
            };
            disks[disk].faults.dead_writes.borrow_mut().extend(sectors([at]));
            write(&fs, ino, 0, &new[..8192]).await;
            let end = blocks as u64 * BLOCK;
            write(&fs, ino, end, &new[blocks * 4096..]).await;
            // Growing flushes, and commits nothing.
            let longer = SetAttr { size: Some(end + 20_000), ..SetAttr::default() };
            fs.set_attr(ino, longer).await.expect("room");
            assert_eq!(status(&fs).await.counts.moved_blocks, 1, "{redundancy}");
            write(&fs, other, 0, &new[..4096]).await;
            fs.fsync(other).await.expect("synced");
            drop(fs);
            let disks = reopened(&rt, &disks, Leave::Completed);
            let fs = mount(&rt, &all(&disks)).await;
            assert_sound(&fs).await;
            let found = read_all(&fs, ino).await;
            assert!(found[..8192] == new[..8192], "{redundancy}");
            assert!(found[8192..blocks * 4096] == old[8192..], "{redundancy}");
            assert!(read_all(&fs, other).await[..4096] == new[..4096], "{redundancy}");
        });
    }
}

/// Recovery goes by the committed places. So a line of which a block moved is committed before it
/// is logged again.
#[test]
fn a_line_of_which_a_block_moved_is_recovered_when_it_was_overwritten() {
    run(move |rt| async move {
        let (disks, fs) = on_test_disks(&rt, 4).await;
        let ino = make_as(&fs, "file", "auto").await;
        let (old, new) = (pattern(6 * 4096, 1), pattern(4096, 2));
        write(&fs, ino, 0, &old).await;
        fs.sync().await.expect("synced");
        let (disk, at) = spot(&fs, ino, 1).await;
        disks[disk].faults.dead_reads.borrow_mut().extend(sectors([at]));
        assert!(read_all(&fs, ino).await == old);
        rt.sleep(SECOND / 10).await;
        assert_eq!(status(&fs).await.counts.moved_blocks, 1);
        write(&fs, ino, 0, &new).await;
        // Growing flushes, and commits nothing by itself.
        let longer = SetAttr { size: Some(40_000), ..SetAttr::default() };
        fs.set_attr(ino, longer).await.expect("room");
        drop(fs);
        let disks = reopened(&rt, &disks, Leave::Completed);
        let fs = mount(&rt, &all(&disks)).await;
        let found = read_all(&fs, ino).await;
        assert!(found[..4096] == new && found[4096..old.len()] == old[4096..]);
        fs.sync().await.expect("synced");
        assert_sound(&fs).await;
    });
}

#[test]
fn without_redundancy_one_block_is_an_error_until_it_is_written() {
    for redundancy in ["none", "raid0"] {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 3).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let bytes = pattern(20 * 4096, 1);
            write(&fs, ino, 0, &bytes).await;
            fs.sync().await.expect("synced");
            let (disk, at) = spot(&fs, ino, 7).await;
            disks[disk].faults.dead_reads.borrow_mut().extend(sectors([at]));
            for block in 0..20 {
                let read = fs.read(ino, block * BLOCK, 4096).await;
                match block {
                    7 => assert!(matches!(read, Err(FsError::Unreadable { .. })), "{read:?}"),
                    _ => assert!(*read.expect("read") == bytes[block as usize * 4096..][..4096]),
                }
            }
            // A range beside it, which is on the same lines.
            let beside = fs.read(ino, 8 * BLOCK, 8 * 4096).await.expect("read");
            assert!(*beside == bytes[8 * 4096..16 * 4096]);
            fs.sync().await.expect("synced");
            assert_no_disk_is_lost(&fs).await;
            assert_eq!(bad_blocks(&fs).await[disk], 1);
            let report = fs.check(false).await.expect("checked");
            assert!(report.findings.len() == 1 && report.findings[0].ino == ino, "{report:?}");
            write(&fs, ino, 7 * BLOCK, &bytes[7 * 4096..8 * 4096]).await;
            fs.fsync(ino).await.expect("synced");
            assert!(!used(&fs).await.contains(&(disk, at)), "it has moved");
            assert!(read_all(&fs, ino).await == bytes);
            assert_sound(&fs).await;
            assert_eq!(bad_blocks(&fs).await[disk], 1);
        });
    }
}

#[test]
fn bad_blocks_do_not_become_free_with_their_file() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 3).await;
        let ino = make_as(&fs, "file", "none").await;
        write(&fs, ino, 0, &pattern(20_000, 1)).await;
        fs.sync().await.expect("synced");
        let (disk, at) = spot(&fs, ino, 1).await;
        disks[disk].faults.dead_reads.borrow_mut().extend(sectors([at]));
        fs.read(ino, BLOCK, 4096).await.expect_err("it cannot be read");
        let free = status(&fs).await.disks[disk].free_bytes;
        fs.unlink(ROOT, b"file").await.expect("removed");
        fs.sync().await.expect("synced");
        let blocks = (status(&fs).await.disks[disk].free_bytes - free) / BLOCK;
        assert_eq!(blocks, 4, "of five");
        assert_sound(&fs).await;
    });
}

/// The sectors of the diagnostic blocks at the start and at the end of a disk.
fn sites() -> [BTreeSet<u64>; 2] {
    let of = |from: u64| (from / 512..(from + 2 * BLOCK) / 512).collect();
    [of(BLOCK), of(SIZE - 3 * BLOCK)]
}

#[test]
fn a_disk_is_lost_if_no_site_of_diagnostic_blocks_works() {
    for (dead, writes) in [(1, false), (1, true), (2, false), (2, true)] {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            let ino = make_as(&fs, "file", "auto").await;
            let bytes = pattern(100_000, 1);
            write(&fs, ino, 0, &bytes).await;
            fs.sync().await.expect("synced");
            let (disk, at) = spot(&fs, ino, 2).await;
            let faults = &disks[disk].faults;
            let all: BTreeSet<u64> = sites().into_iter().take(dead).flatten().collect();
            match writes {
                true => *faults.dead_writes.borrow_mut() = all,
                false => *faults.dead_reads.borrow_mut() = all,
            }
            faults.dead_reads.borrow_mut().extend(sectors([at]));
            assert!(read_all(&fs, ino).await == bytes);
            fs.sync().await.expect("synced");
            let lost = status(&fs).await.disks[disk].lost;
            assert_eq!(lost, dead == 2, "{dead} sites dead, writes: {writes}");
            if lost {
                let report = fs.rebuild().await.expect("rebuilt");
                assert_eq!(report.removed_disks, [disk as u16], "{report:?}");
            }
            assert!(read_all(&fs, ino).await == bytes);
            assert_sound(&fs).await;
        });
    }
}

#[test]
fn a_scrub_finds_bad_blocks_and_mends_diagnostic_blocks() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 4).await;
        let ino = make_as(&fs, "file", "raid6").await;
        let bytes = pattern(400_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        for block in [5, 30, 31] {
            let (disk, at) = spot(&fs, ino, block).await;
            disks[disk].faults.dead_reads.borrow_mut().extend(sectors([at]));
        }
        disks[1].medium.borrow_mut().poke(BLOCK + 100, &[9; 20]);
        disks[2].faults.unreadable.borrow_mut().extend(&sites()[1]);
        let report = fs.scrub().await.expect("scrubbed");
        assert_eq!((report.bad_blocks, report.repaired_blocks), (3, 3), "{report:?}");
        assert_eq!(report.diagnostic_blocks, 2, "{report:?}");
        assert!(report.damaged_files == 0, "{report:?}");
        assert_eq!(bad_blocks(&fs).await.iter().sum::<u64>(), 3);
        let again = fs.scrub().await.expect("scrubbed");
        assert_eq!((again.bad_blocks, again.diagnostic_blocks), (0, 0), "{again:?}");
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

#[test]
fn a_rebuild_and_a_removal_go_around_bad_blocks() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 6).await;
        let bytes = pattern(300_000, 1);
        for redundancy in REDUNDANT {
            let ino = make_as(&fs, redundancy, redundancy).await;
            write(&fs, ino, 0, &bytes).await;
        }
        fs.sync().await.expect("synced");
        let used = used(&fs).await;
        for (n, disk) in disks.iter().enumerate() {
            let next = used.iter().filter(|(on, _)| *on == n).map(|(_, at)| at + 1).max();
            let next = next.unwrap_or(0);
            *disk.faults.dead_writes.borrow_mut() = sectors([next, next + 3, next + 9]);
        }
        fs.fail_disk(1).await.expect("out of service");
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.removed_disks, [1], "{report:?}");
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
        let found: u64 = bad_blocks(&fs).await.iter().sum();
        assert!(found > 0, "the rebuild met some");
        fs.remove_disk(2).await.expect("removed");
        assert_eq!(status(&fs).await.disks.len(), 4);
        assert_no_disk_is_lost(&fs).await;
        for redundancy in REDUNDANT {
            assert!(read_all(&fs, find(&fs, redundancy).await).await == bytes, "{redundancy}");
        }
        assert_sound(&fs).await;
    });
}

/// No disk has room for another copy: the block is rewritten in its place, which may help.
#[test]
fn a_block_that_has_nowhere_to_go_is_rewritten_in_its_place() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 3).await;
        let ino = make_as(&fs, "file", "raid1").await;
        let bytes = pattern(100_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fill(&fs).await;
        let (disk, at) = spot(&fs, ino, 5).await;
        // As long as it is not written.
        disks[disk].faults.unreadable.borrow_mut().extend(sectors([at]));
        assert!(read_all(&fs, ino).await == bytes);
        fs.sync().await.expect("synced");
        let counts = status(&fs).await.counts;
        assert_eq!((counts.moved_blocks, counts.repaired_blocks), (0, 1));
        assert_eq!(bad_blocks(&fs).await.iter().sum::<u64>(), 0);
        assert!(disks[disk].faults.unreadable.borrow().is_empty());
        assert_sound(&fs).await;
    });
}

/// Disks behind ways that can be cut, and opened again.
struct Ways {
    disks: Vec<Rc<TestDisk>>,
    /// The present way to each.
    faults: Rc<RefCell<Vec<Faults>>>,
    opened_again: Rc<Cell<usize>>,
}

/// What is found when a way is opened again.
#[derive(Clone, Copy)]
enum Found {
    Same,
    /// It was without power.
    PowerCycled,
    /// Another disk has come there.
    Another,
    Nothing,
}

impl Ways {
    fn new(rt: &Rt, count: usize) -> (Self, Vec<Rc<dyn Disk>>) {
        let disks = blank(rt, count);
        let way = |disk: &Rc<TestDisk>| FaultDisk::new(rt, disk.clone());
        let (ways, faults): (Vec<FaultDisk>, Vec<Faults>) = disks.iter().map(way).unzip();
        let (faults, opened_again) = (Rc::new(RefCell::new(faults)), Rc::default());
        let ways = ways.into_iter().map(|way| Rc::new(way) as Rc<dyn Disk>).collect();
        (Self { disks, faults, opened_again }, ways)
    }

    fn cut(&self, disk: usize) {
        self.faults.borrow()[disk].inject(Fault::Gone);
    }

    fn reopen(&self, rt: &Rt, found: Found) -> Reopen {
        let (rt, disks, faults) = (rt.clone(), self.disks.clone(), self.faults.clone());
        let opened_again = self.opened_again.clone();
        Rc::new(move |name| {
            let number: usize = name.strip_prefix("test").expect("its name").parse().expect("one");
            opened_again.set(opened_again.get() + 1);
            let disk = match found {
                Found::Same => disks[number].clone(),
                Found::PowerCycled => {
                    let left = Leave::Nothing.of(&disks[number].medium.borrow());
                    TestDisk::new(&rt, &Power::new(), number, SIZE, 512, left)
                }
                Found::Another => disks[(number + 1) % disks.len()].clone(),
                Found::Nothing => {
                    return Box::pin(async { Err("it is not there".to_owned()) });
                }
            };
            let (way, fault) = FaultDisk::new(&rt, disk);
            faults.borrow_mut()[number] = fault;
            Box::pin(async move { Ok(Rc::new(way) as Rc<dyn Disk>) })
        })
    }
}

async fn mount_by(rt: &Rt, ways: &[Rc<dyn Disk>], reopen: Reopen) -> Fs {
    Fs::mount_reopening(rt, ways, mounting(), Some(reopen)).await.expect("mounted")
}

#[test]
fn a_disk_stays_if_it_can_be_opened_again() {
    for seed in 0..6 {
        run(move |rt| async move {
            let (ways, given) = Ways::new(&rt, 4);
            weft_fs::create(&rt, &given, &options()).await.expect("created");
            let fs = mount_by(&rt, &given, ways.reopen(&rt, Found::Same)).await;
            // The old ways are not used any more.
            drop(given);
            let mut pair = Pair::new(fs, seed, &["auto", "none", "raid1", "raid6"]);
            for n in 0..12 {
                // In the middle of something as well.
                let at = pair.rng.below(30);
                let disk = pair.rng.below(4) as usize;
                let faults = ways.faults.borrow()[disk].clone();
                faults.inject_at(faults.counts().total() + at, Fault::Gone);
                for _ in 0..10 {
                    pair.step().await;
                }
                // A way that is cut while it is opened again is not opened once more.
                rt.sleep(SECOND / 2).await;
                ways.cut(n % 4);
                pair.compare().await;
            }
            assert_no_disk_is_lost(&pair.fs).await;
            assert_sound(&pair.fs).await;
            assert!(ways.opened_again.get() > 12, "{} times", ways.opened_again.get());
            assert_eq!(bad_blocks(&pair.fs).await, [0; 4]);
            pair.fs.unmount().await.expect("unmounted");
            pair.fs = mount(&rt, &all(&ways.disks)).await;
            pair.compare().await;
            assert_sound(&pair.fs).await;
        });
    }
}

#[test]
fn a_disk_stays_if_blocks_were_overwritten_since_its_last_flush() {
    run(|rt| async move {
        let (ways, given) = Ways::new(&rt, 4);
        weft_fs::create(&rt, &given, &options()).await.expect("created");
        let fs = mount_by(&rt, &given, ways.reopen(&rt, Found::Same)).await;
        drop(given);
        let ino = make_as(&fs, "file", "raid1").await;
        write(&fs, ino, 0, &pattern(80 * 4096, 1)).await;
        fs.sync().await.expect("synced");
        // The log has the contents, so the disks are not flushed.
        let mut bytes = pattern(40 * 4096, 2);
        write(&fs, ino, 0, &bytes).await;
        fs.fsync(ino).await.expect("synced");
        bytes[7 * 4096..8 * 4096].copy_from_slice(&pattern(4096, 3));
        write(&fs, ino, 7 * 4096, &bytes[7 * 4096..8 * 4096]).await;
        fs.fsync(ino).await.expect("synced");
        (0..4).for_each(|disk| ways.cut(disk));
        assert!(fs.read(ino, 0, bytes.len()).await.expect("read")[..] == bytes);
        fs.sync().await.expect("synced");
        assert_no_disk_is_lost(&fs).await;
        assert!(ways.opened_again.get() > 1);
        assert_sound(&fs).await;
    });
}

#[test]
fn a_disk_is_lost_if_something_else_is_found_there() {
    for found in [Found::PowerCycled, Found::Another, Found::Nothing] {
        run(move |rt| async move {
            let (ways, given) = Ways::new(&rt, 4);
            weft_fs::create(&rt, &given, &options()).await.expect("created");
            let fs = mount_by(&rt, &given, ways.reopen(&rt, found)).await;
            let ino = make_as(&fs, "file", "raid1").await;
            let bytes = pattern(900_000, 1);
            // More than half of the cache: it is written, and not flushed.
            write(&fs, ino, 0, &bytes).await;
            rt.sleep(SECOND / 2).await;
            let (disk, _) = spot(&fs, ino, 0).await;
            ways.cut(disk);
            assert!(read_all(&fs, ino).await == bytes);
            fs.sync().await.expect("synced");
            assert_eq!(ways.opened_again.get(), 1, "once");
            assert!(status(&fs).await.disks[disk].lost);
            fs.rebuild().await.expect("rebuilt");
            assert!(read_all(&fs, ino).await == bytes);
            assert_sound(&fs).await;
        });
    }
}

/// Nothing was in its cache, so nothing is missing.
#[test]
fn a_disk_that_was_without_power_stays_if_all_of_it_was_flushed() {
    run(|rt| async move {
        let (ways, given) = Ways::new(&rt, 3);
        weft_fs::create(&rt, &given, &options()).await.expect("created");
        let fs = mount_by(&rt, &given, ways.reopen(&rt, Found::PowerCycled)).await;
        let ino = make_as(&fs, "file", "none").await;
        let bytes = pattern(100_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let (disk, _) = spot(&fs, ino, 0).await;
        ways.cut(disk);
        assert!(read_all(&fs, ino).await == bytes);
        assert_eq!(ways.opened_again.get(), 1);
        assert_no_disk_is_lost(&fs).await;
    });
}

/// It goes at each write of a long file in turn. What it missed is written again with the others.
#[test]
fn a_disk_may_go_while_batches_of_new_lines_overlap() {
    for writes in (0..45).step_by(3) {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 5).await;
            let ino = make_as(&fs, "file", "raid5").await;
            fs.sync().await.expect("synced");
            let data = pattern(200 * BLOCK as usize, writes);
            disks[1].faults.gone_after_writes.set(Some(writes));
            for (n, part) in data.chunks(10 * BLOCK as usize).enumerate() {
                write(&fs, ino, n as u64 * 10 * BLOCK, part).await;
            }
            fs.fsync(ino).await.expect("synced");
            assert!(status(&fs).await.overlapped_batches > 0);
            assert!(status(&fs).await.disks[1].lost, "after {writes} writes");
            assert_eq!(read_all(&fs, ino).await, data);
            let report = fs.rebuild().await.expect("rebuilt");
            assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
            assert_sound(&fs).await;
            assert_eq!(read_all(&fs, ino).await, data);
        });
    }
}

/// Blocks of lines that were made with more disks become active, and on the way another disk is
/// lost.
#[test]
fn a_disk_may_go_while_lines_are_made_narrower() {
    for writes in 0..24 {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 6).await;
            let ino = make_as(&fs, "file", "raid5").await;
            let (blocks, block) = (100, BLOCK as usize);
            let data = pattern(blocks * block, writes);
            for n in (0..blocks).step_by(2) {
                write(&fs, ino, (n * block) as u64, &data[n * block..][..block]).await;
            }
            fs.sync().await.expect("synced");
            fs.fail_disk(1).await.expect("out of service");
            fs.rebuild().await.expect("rebuilt");
            disks[4].faults.gone_after_writes.set(Some(writes));
            for n in (1..blocks).step_by(2) {
                write(&fs, ino, (n * block) as u64, &data[n * block..][..block]).await;
            }
            fs.fsync(ino).await.expect("synced");
            assert!(read_all(&fs, ino).await == data, "{writes}");
            fs.rebuild().await.expect("rebuilt");
            assert_sound(&fs).await;
        });
    }
}

/// Nothing is asked of the disk when it is cut short. What is found when it is opened again is as
/// long as before.
#[test]
fn a_disk_that_is_cut_short_is_noticed_although_nothing_is_asked_of_it() {
    for is_opened_again in [false, true] {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            let bytes = pattern(100_000, 1);
            let ino = make_as(&fs, "file", "raid1").await;
            write(&fs, ino, 0, &bytes).await;
            fs.unmount().await.expect("unmounted");
            let reopen: Option<Reopen> = is_opened_again.then(|| {
                let (rt, before) = (rt.clone(), disks[2].clone());
                let reopen: Reopen = Rc::new(move |_| {
                    let medium = Leave::All.of(&before.medium.borrow());
                    let disk = TestDisk::new(&rt, &Power::new(), 2, SIZE, 512, medium);
                    let disk = disk as Rc<dyn Disk>;
                    Box::pin(async move { Ok(disk) })
                });
                reopen
            });
            let fs = Fs::mount_reopening(&rt, &all(&disks), mounting(), reopen).await;
            let fs = fs.expect("mounted");
            let told: Rc<RefCell<Vec<String>>> = Rc::default();
            let of_disks = told.clone();
            fs.on_lost_disk(move |number, name, why| {
                let why = why.unwrap_or_default();
                of_disks.borrow_mut().push(format!("{number} {name}: {why}"));
            });
            rt.sleep(20 * SECOND).await;
            assert_no_disk_is_lost(&fs).await;
            disks[2].faults.kind.set(Some(DiskErrorKind::Shrunk));
            rt.sleep(20 * SECOND).await;
            let lost: Vec<_> =
                status(&fs).await.disks.into_iter().filter(|disk| disk.lost).collect();
            assert_eq!(lost.iter().map(|disk| disk.number).collect::<Vec<_>>(), [2]);
            let why = lost[0].lost_because.clone().expect("it says so");
            assert_eq!(*told.borrow(), [format!("2 test2: {why}")]);
            assert!(read_all(&fs, ino).await == bytes);
        });
    }
}
