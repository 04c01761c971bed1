//! The copies of the metadata: they are told apart by the numbers of their disks, counted, given
//! back, and not mounted if they may be stale. One that has rotted or that alone has a record harms
//! nothing.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::test_disks::{SIZE, left_on};
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, Ino, MetaCopy, MountOptions, ROOT};
use weft_rt::{Rt, SECOND};

const SLICE: Range<u64> = (64 << 10)..((64 << 10) + (8 << 20));
const DATA_AT: u64 = SLICE.end;
/// The RAID log in a slice.
const LOG: Range<u64> = SLICE.start + (1 << 20) + (64 << 10)..SLICE.start + (1 << 20) + (960 << 10);

/// The page journal in a slice.
const JOURNAL: Range<u64> = LOG.end..LOG.end + (448 << 10);

fn degraded() -> MountOptions {
    MountOptions { degraded: true, nonce: 99, ..mounting() }
}

fn stale() -> MountOptions {
    MountOptions { stale: true, nonce: 99, ..mounting() }
}

fn new_disks(rt: &Rt, count: usize) -> (Rc<Power>, Vec<Rc<TestDisk>>) {
    let power = Power::new();
    let disks = holding(rt, &power, SIZE, &vec![Medium::new(512); count]);
    (power, disks)
}

fn slice_of(disk: &TestDisk) -> Vec<u8> {
    let mut bytes = vec![0; (SLICE.end - SLICE.start) as usize];
    disk.medium.borrow().read(SLICE.start, &mut bytes);
    bytes
}

fn find_in(bytes: &[u8], text: &[u8]) -> Vec<usize> {
    (0..bytes.len() - text.len()).filter(|at| &bytes[*at..*at + text.len()] == text).collect()
}

/// Flips a bit of a byte of a disk's slice, durably.
fn flip(disk: &TestDisk, at: usize) {
    let sector = at / 512 * 512;
    let mut bytes = slice_of(disk)[sector..sector + 512].to_vec();
    bytes[at - sector] ^= 1;
    disk.medium.borrow_mut().poke(SLICE.start + sector as u64, &bytes);
}

/// No block of files finds room below a disk.
fn fill(disks: &[Rc<TestDisk>]) {
    for disk in disks {
        let room =
            |at: u64, _: u64, _: bool| (DATA_AT..SIZE - 3 * BLOCK).contains(&at).then_some(0);
        *disk.faults.room.borrow_mut() = Some(Box::new(room));
    }
}

async fn copies(fs: &Fs) -> (usize, usize) {
    fs.status().await.expect("known").meta_copies
}

/// A dead disk is replaced by a new one; then the other old disk dies.
async fn replace(rt: &Rt, name_of_new: usize) {
    let (power, disks) = new_disks(rt, 2);
    let fs = made(rt, &all(&disks)).await;
    let ino = make_as(&fs, "file", "raid1").await;
    write(&fs, ino, 0, &pattern(100_000, 1)).await;
    fs.unmount().await.expect("unmounted");
    let fs = Fs::mount(rt, &all(&disks[..1]), degraded()).await.expect("mounted");
    assert_eq!(copies(&fs).await, (1, 2));
    let new = TestDisk::new(rt, &power, name_of_new, SIZE, 512, Medium::new(512));
    fs.add_disk(new.clone(), false).await.expect("added");
    rt.sleep(60 * SECOND).await;
    let report = fs.rebuild().await.expect("rebuilt");
    assert_eq!(report.removed_disks, [1]);
    assert_eq!(copies(&fs).await, (2, 2));
    assert_sound(&fs).await;
    let later = make_as(&fs, "later", "raid1").await;
    write(&fs, later, 0, &pattern(50_000, 2)).await;
    fs.unmount().await.expect("unmounted");
    let fs = Fs::mount(rt, &[new as Rc<dyn Disk>], degraded()).await.expect("mounted");
    assert!(read_all(&fs, find(&fs, "file").await).await == pattern(100_000, 1));
    assert!(read_all(&fs, find(&fs, "later").await).await == pattern(50_000, 2));
}

/// In the same bay it has the same name.
#[test]
fn a_new_disk_has_the_metadata_whatever_it_is_called() {
    for name in [7, 1] {
        run(move |rt| async move { replace(&rt, name).await });
    }
}

/// Disk 1 of four is gone at the next boot. Those behind it have these names then.
async fn each_alone(rt: &Rt, names: [usize; 3], alone: usize) {
    let (power, disks) = new_disks(rt, 4);
    let fs = made(rt, &all(&disks)).await;
    let ino = make_as(&fs, "file", "raid1").await;
    write(&fs, ino, 0, &pattern(100_000, 1)).await;
    fs.unmount().await.expect("unmounted");
    let left = [0, 2, 3].map(|n: usize| disks[n].medium.borrow().clone());
    let open = |(n, medium): (usize, Medium)| TestDisk::new(rt, &power, n, SIZE, 512, medium);
    let again: Vec<_> = names.into_iter().zip(left).map(open).collect();
    let fs = Fs::mount(rt, &all(&again), degraded()).await.expect("mounted");
    rt.sleep(60 * SECOND).await;
    let report = fs.rebuild().await.expect("rebuilt");
    assert_eq!(report.removed_disks, [1]);
    rt.sleep(60 * SECOND).await;
    assert_eq!(copies(&fs).await, (3, 3));
    make(&fs, "later").await;
    fs.unmount().await.expect("unmounted");
    let fs = Fs::mount(rt, &all(&again[alone..=alone]), degraded()).await.expect("mounted");
    find(&fs, "later").await;
}

#[test]
fn each_disk_has_a_copy_after_a_rebuild_also_if_names_move_up() {
    for names in [[0, 2, 3], [0, 1, 2]] {
        for alone in 0..3 {
            run(move |rt| async move { each_alone(&rt, names, alone).await });
        }
    }
}

/// One write to the slice of disk 1 fails.
async fn drop_out(fs: &Fs, disks: &[Rc<TestDisk>], name: &str) {
    *disks[1].faults.unwritable.borrow_mut() = SLICE;
    make(fs, name).await;
    fs.sync().await.expect("synced");
    *disks[1].faults.unwritable.borrow_mut() = 0..0;
}

#[test]
fn a_copy_that_failed_once_is_counted_and_given_back() {
    run(|rt| async move {
        let (_, disks) = new_disks(&rt, 2);
        let fs = made(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid1").await;
        write(&fs, ino, 0, &pattern(100_000, 1)).await;
        drop_out(&fs, &disks, "another").await;
        let status = fs.status().await.expect("known");
        assert_eq!(status.meta_copies, (1, 2));
        let of_disks: Vec<MetaCopy> = status.disks.iter().map(|disk| disk.metadata).collect();
        assert_eq!(of_disks, [MetaCopy::Current, MetaCopy::None]);
        assert!(status.disks.iter().all(|disk| !disk.lost && disk.present));
        rt.sleep(60 * SECOND).await;
        assert_eq!(copies(&fs).await, (2, 2));
        // The same if it is out when the file system is mounted.
        drop_out(&fs, &disks, "second").await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        make(&fs, "third").await;
        rt.sleep(60 * SECOND).await;
        assert_eq!(copies(&fs).await, (2, 2));
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = Fs::mount(&rt, &all(&disks[1..]), degraded()).await.expect("mounted");
        assert!(read_all(&fs, find(&fs, "file").await).await == pattern(100_000, 1));
        for name in ["another", "second", "third"] {
            find(&fs, name).await;
        }
    });
}

#[test]
fn a_slice_that_fails_again_and_again_waits_longer_each_time() {
    run(|rt| async move {
        let (_, disks) = new_disks(&rt, 2);
        let fs = made(&rt, &all(&disks)).await;
        *disks[1].faults.unwritable.borrow_mut() = SLICE;
        make(&fs, "file").await;
        fs.sync().await.expect("synced");
        let writes = || {
            let writes = disks[1].writes.borrow();
            writes.iter().filter(|(at, _)| SLICE.contains(at)).count()
        };
        rt.sleep(3600 * SECOND).await;
        let before = writes();
        rt.sleep(3600 * SECOND).await;
        assert!((1..=30).contains(&(writes() - before)), "{} in an hour", writes() - before);
        assert!(!fs.status().await.expect("known").disks[1].lost, "the rest of it works");
        *disks[1].faults.unwritable.borrow_mut() = 0..0;
        rt.sleep(700 * SECOND).await;
        assert_eq!(copies(&fs).await, (2, 2));
    });
}

#[test]
fn a_copy_that_may_be_stale_is_mounted_only_if_that_is_wanted() {
    run(|rt| async move {
        let (_, disks) = new_disks(&rt, 2);
        let fs = made(&rt, &all(&disks)).await;
        make(&fs, "file").await;
        fs.sync().await.expect("synced");
        drop_out(&fs, &disks, "another").await;
        fs.unmount().await.expect("unmounted");
        let refused = Fs::mount(&rt, &all(&disks[1..]), degraded()).await.map(drop);
        let Err(FsError::Unmountable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("2023-11-14"), "{why}");
        let fs = Fs::mount(&rt, &all(&disks[1..]), stale()).await.expect("mounted");
        find(&fs, "file").await;
        fs.lookup(ROOT, b"another").await.expect_err("it is older");
        // The other one is current, and was unmounted.
        let fs = Fs::mount(&rt, &all(&disks[..1]), degraded()).await.expect("mounted");
        find(&fs, "another").await;
    });
}

#[test]
fn a_header_of_which_one_copy_has_rotted_is_read_from_another() {
    for on in 0..3 {
        run(move |rt| async move {
            let (_, disks) = new_disks(&rt, 3);
            let fs = made(&rt, &all(&disks)).await;
            make(&fs, "file").await;
            fs.unmount().await.expect("unmounted");
            for at in find_in(&slice_of(&disks[on]), b"weftmeta") {
                flip(&disks[on], at + 40);
            }
            let fs = mount(&rt, &all(&disks)).await;
            find(&fs, "file").await;
            fs.unmount().await.expect("unmounted");
            let fs = Fs::mount(&rt, &all(&disks[on..=on]), degraded()).await.expect("mounted");
            find(&fs, "file").await;
        });
    }
}

/// A bit flips in the newest record of one copy, before the crash.
#[test]
fn what_was_synced_is_there_if_one_copy_of_it_has_rotted() {
    for magic in ["weftpage", "weftrlog"] {
        run(move |rt| async move {
            let (power, disks) = new_disks(&rt, 3);
            let fs = made(&rt, &all(&disks)).await;
            let ino = make_as(&fs, "file", "raid1").await;
            write(&fs, ino, 0, &pattern(100_000, 1)).await;
            fs.sync().await.expect("synced");
            rt.sleep(SECOND).await;
            let before = slice_of(&disks[0]);
            match magic {
                "weftrlog" => write(&fs, ino, 4096, &pattern(4096, 2)).await,
                _ => drop(make(&fs, "new").await),
            }
            let synced = if magic == "weftrlog" { ino } else { find(&fs, "new").await };
            fs.fsync(synced).await.expect("synced");
            let after = slice_of(&disks[0]);
            let fresh: Vec<usize> = find_in(&after, magic.as_bytes())
                .into_iter()
                .filter(|at| after[*at..*at + 64] != before[*at..*at + 64])
                .collect();
            assert!(!fresh.is_empty());
            drop(fs);
            let disks = holding(&rt, &power, SIZE, &left_on(&disks, Leave::Nothing));
            for at in fresh {
                flip(&disks[0], at + 200);
            }
            let fs = mount(&rt, &all(&disks)).await;
            match magic {
                "weftrlog" => {
                    let found = fs.read(ino, 4096, 4096).await.expect("read");
                    assert!(*found == pattern(4096, 2), "{magic}: fsync was acknowledged");
                }
                _ => {
                    fs.lookup(ROOT, b"new").await.expect("fsync was acknowledged");
                }
            }
        });
    }
}

/// There is no room below the disks when a crash is recovered.
#[test]
fn a_mount_is_refused_while_there_is_no_room_for_what_only_the_log_has() {
    run(|rt| async move {
        let (power, disks) = new_disks(&rt, 3);
        let fs = made(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid1").await;
        write(&fs, ino, 0, &pattern(100_000, 1)).await;
        fs.sync().await.expect("synced");
        write(&fs, ino, 4096, &pattern(4096, 2)).await;
        fs.fsync(ino).await.expect("synced");
        drop(fs);
        let disks = holding(&rt, &power, SIZE, &left_on(&disks, Leave::Nothing));
        fill(&disks);
        let refused = Fs::mount(&rt, &all(&disks), mounting()).await.map(drop);
        assert!(matches!(refused, Err(FsError::Unmountable(_))), "{refused:?}");
        rt.sleep(SECOND).await;
        // There is room again.
        let disks = holding(&rt, &power, SIZE, &left_on(&disks, Leave::Nothing));
        let fs = mount(&rt, &all(&disks)).await;
        let found = fs.read(ino, 4096, 4096).await;
        assert!(found.is_ok_and(|found| *found == pattern(4096, 2)), "fsync was acknowledged");
    });
}

/// The pool below thin disks is full: a write in place fails, the file system stops, and is mounted
/// again before there is room. Nobody cut the power.
#[test]
fn a_mount_without_room_below_the_disks_leaves_old_or_new() {
    run(|rt| async move {
        let (power, disks) = new_disks(&rt, 3);
        let fs = made(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid1").await;
        write(&fs, ino, 0, &pattern(100_000, 1)).await;
        fs.sync().await.expect("synced");
        fill(&disks);
        write(&fs, ino, 4096, &pattern(4096, 2)).await;
        let synced = fs.fsync(ino).await;
        assert!(synced.is_err(), "there is no room for a block");
        drop(fs);
        let disks = holding(&rt, &power, SIZE, &left_on(&disks, Leave::Completed));
        fill(&disks);
        let mounted = Fs::mount(&rt, &all(&disks), mounting()).await;
        drop(mounted);
        let disks = holding(&rt, &power, SIZE, &left_on(&disks, Leave::Completed));
        let fs = mount(&rt, &all(&disks)).await;
        let found = fs.read(ino, 4096, 4096).await;
        let found = found.expect("the old contents were durable");
        assert!(*found == pattern(4096, 2) || *found == pattern(100_000, 1)[4096..8192]);
    });
}

/// A disk dies while blocks that have a place are written; nothing gives them.
#[test]
fn fsync_tells_of_overwritten_blocks_that_nothing_has() {
    for blocks in [1_u64, 100] {
        run(move |rt| async move {
            let (_, disks) = new_disks(&rt, 4);
            let fs = made(&rt, &all(&disks)).await;
            let ino = make_as(&fs, "file", "none").await;
            fs.begin_use(ino);
            write(&fs, ino, 0, &pattern((blocks * 8 * BLOCK) as usize, 1)).await;
            fs.sync().await.expect("synced");
            let places = fs.places(ino).await.expect("known");
            let column = places[0].1.columns[0].clone().expect("active");
            disks[usize::from(column.disk)].faults.gone.set(true);
            for n in 0..blocks {
                write(&fs, ino, n * 8 * BLOCK, &pattern(BLOCK as usize, 2)).await;
            }
            let synced = fs.fsync(ino).await;
            let read = fs.read(ino, 0, BLOCK as usize).await;
            let is_told = matches!(synced, Err(FsError::Unreadable { .. }));
            assert!(is_told && read.is_err(), "{blocks} blocks: {synced:?}");
        });
    }
}

/// What all disks hold at each change of one, while a mount recovers from a crash and writes to an
/// area of the second and third copy of the metadata do not end.
fn moments_of_recovery(left: Vec<Medium>, area: Range<u64>) -> Vec<Vec<Medium>> {
    let seen: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
    let moments = seen.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &left);
        // The array makes its copies alike in the background, and has not come to this area yet.
        for disk in &disks[1..3] {
            disk.faults.hold(area.clone(), 0);
        }
        let watched = disks.clone();
        power.watch(move || {
            seen.borrow_mut().push(watched.iter().map(|d| d.medium.borrow().clone()).collect());
        });
        let given = all(&disks);
        let mounted = Fs::mount(&rt, &given, mounting());
        let until = rt.sleep(SECOND);
        futures_util::future::select(std::pin::pin!(mounted), std::pin::pin!(until)).await;
        power.watch(|| {});
    });
    let moments = moments.take();
    assert!(!moments.is_empty(), "recovery changes disks");
    moments
}

/// A crash leaves a log record on the first copy of the metadata only. Recovery from it is cut
/// short by another crash, with which the disk of that copy is lost. Nobody had been told that the
/// write was done.
#[test]
fn a_log_record_that_one_copy_has_is_not_acted_on_before_the_others_have_it() {
    let first = Rc::new(RefCell::new(None));
    let given = first.clone();
    run(move |rt| async move {
        let (_, disks) = new_disks(&rt, 4);
        let fs = made(&rt, &all(&disks)).await;
        let mut chosen = None;
        for n in 0..8 {
            let ino = make_as(&fs, &format!("file{n}"), "auto").await;
            write(&fs, ino, 0, &pattern(3 * BLOCK as usize, n)).await;
            fs.sync().await.expect("synced");
            let places = fs.places(ino).await.expect("known");
            let record = &places[0].1;
            let on = |unit: usize| record.columns[unit].as_ref().map(|column| column.disk);
            // Disk 0 has a data block of the line; another one is overwritten.
            if let Some(bystander) = (0..3).find(|unit| on(*unit) == Some(0)) {
                chosen = Some((ino, n, bystander));
            }
        }
        let (ino, n, bystander) = chosen.expect("one of them");
        let written = (bystander + 1) % 3;
        rt.sleep(20 * SECOND).await;
        for disk in &disks[1..3] {
            disk.faults.hold(LOG, 0);
        }
        write(&fs, ino, written as u64 * BLOCK, &pattern(BLOCK as usize, 99)).await;
        let synced = rt.spawn({
            let fs = fs.clone();
            async move { fs.fsync(ino).await }
        });
        rt.sleep(SECOND / 100).await;
        *given.borrow_mut() = Some((left_on(&disks, Leave::Nothing), ino, n, written));
        drop(synced);
    });
    let (left, ino, n, written) = first.take().expect("a crash");
    let moments = moments_of_recovery(left, LOG);
    for (step, moment) in moments.iter().enumerate() {
        let left: Vec<Medium> = moment.iter().map(|medium| Leave::Nothing.of(medium)).collect();
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &left);
            let fs = Fs::mount(&rt, &all(&disks[1..]), degraded()).await.expect("mounted");
            let old = pattern(3 * BLOCK as usize, n);
            for block in 0..3_usize {
                let found = fs.read(ino, block as u64 * BLOCK, BLOCK as usize).await;
                let found = found.expect("one disk is lost");
                let is_old = *found == old[block * BLOCK as usize..][..BLOCK as usize];
                let is_new = block == written && *found == pattern(BLOCK as usize, 99);
                assert!(is_old || is_new, "step {step} of recovery: block {block}, of {written}");
            }
        });
    }
}

/// Where the database begins in a slice.
const DATABASE_AT: usize = (JOURNAL.end - SLICE.start) as usize;

const NAME: &str = "a name that is seen nowhere else";

/// A file with [`NAME`] is in the database, and a bit of each of its names has flipped in the
/// copies on these disks. With `crashed` what was mounted since was not unmounted.
async fn rotten(rt: &Rt, count: usize, on: &[usize], crashed: bool) -> (Vec<Rc<TestDisk>>, Ino) {
    let (power, disks) = new_disks(rt, count);
    let fs = made(rt, &all(&disks)).await;
    let ino = make_as(&fs, NAME, "raid1").await;
    write(&fs, ino, 0, &pattern(100_000, 1)).await;
    fs.unmount().await.expect("unmounted");
    if crashed {
        let fs = mount(rt, &all(&disks)).await;
        make(&fs, "x").await;
        fs.sync().await.expect("synced");
    }
    let disks = holding(rt, &power, SIZE, &left_on(&disks, Leave::Nothing));
    for disk in on {
        let names = find_in(&slice_of(&disks[*disk]), NAME.as_bytes());
        assert!(!names.is_empty());
        names.into_iter().for_each(|at| flip(&disks[*disk], at + 3));
    }
    (disks, ino)
}

/// How many right names the databases of these copies have.
fn right_names(disks: &[Rc<TestDisk>]) -> Vec<usize> {
    let of = |disk: &Rc<TestDisk>| find_in(&slice_of(disk)[DATABASE_AT..], NAME.as_bytes()).len();
    disks.iter().map(of).collect()
}

#[test]
fn a_page_of_which_copies_have_rotted_is_read_from_another_and_healed() {
    for crashed in [false, true] {
        for on in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]] {
            run(move |rt| async move {
                let what = format!("crashed {crashed}, rotten on {on:?}");
                let (disks, ino) = rotten(&rt, 3, on, crashed).await;
                let fs = Fs::mount(&rt, &all(&disks), mounting()).await;
                let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(find(&fs, NAME).await, ino, "{what}");
                assert!(read_all(&fs, ino).await == pattern(100_000, 1), "{what}");
                fs.scrub().await.expect("scrubbed");
                fs.unmount().await.expect("unmounted");
                for alone in 0..3 {
                    let alone = Fs::mount(&rt, &all(&disks[alone..=alone]), degraded()).await;
                    assert_eq!(find(&alone.expect("mounted"), NAME).await, ino, "{what}");
                }
            });
        }
    }
}

#[test]
fn a_scrub_keeps_the_right_copy_of_the_metadata() {
    for crashed in [false, true] {
        for on in 0..2 {
            run(move |rt| async move {
                let (disks, ino) = rotten(&rt, 2, &[on], crashed).await;
                let before = right_names(&disks)[1 - on];
                let fs = mount(&rt, &all(&disks)).await;
                rt.sleep(60 * SECOND).await;
                fs.scrub().await.expect("scrubbed");
                assert_eq!(find(&fs, NAME).await, ino);
                fs.unmount().await.expect("unmounted");
                let after = right_names(&disks);
                assert!(after.iter().all(|names| *names == before), "{on}: {before}, {after:?}");
            });
        }
    }
}

/// No copy of a page is right: nothing is made of it, and nothing is written over it.
#[test]
fn a_page_that_is_wrong_on_all_copies_is_told_and_left_alone() {
    run(|rt| async move {
        let (disks, _) = rotten(&rt, 3, &[], false).await;
        let fs = mount(&rt, &all(&disks)).await;
        let told: Rc<RefCell<Vec<String>>> = Rc::default();
        let tell = told.clone();
        fs.on_wrong_metadata(move |what| tell.borrow_mut().push(what.to_owned()));
        // They are in memory.
        find(&fs, NAME).await;
        for disk in &disks {
            let names = find_in(&slice_of(disk), NAME.as_bytes());
            names.into_iter().filter(|at| *at >= DATABASE_AT).for_each(|at| flip(disk, at + 3));
        }
        let report = fs.scrub().await.expect("scrubbed");
        assert!(report.metadata_mismatches > 0, "{report:?}");
        assert_eq!(fs.check(false).await.expect("checked").findings, []);
        assert!(told.borrow().iter().any(|what| what.contains("written again")), "{told:?}");
        fs.unmount().await.expect("unmounted");
        // They are not.
        let fs = mount(&rt, &all(&disks)).await;
        for n in 0..300 {
            make(&fs, &format!("another {n}")).await;
        }
        fs.unmount().await.expect("unmounted");
        let few = MountOptions { meta_cache_bytes: 0, ..mounting() };
        let fs = Fs::mount(&rt, &all(&disks), few).await.expect("mounted");
        for n in 0..300 {
            find(&fs, &format!("another {n}")).await;
        }
        for disk in &disks {
            let names = find_in(&slice_of(disk), NAME.as_bytes());
            names.into_iter().filter(|at| *at >= DATABASE_AT).for_each(|at| flip(disk, at + 3));
        }
        let report = fs.scrub().await.expect("scrubbed");
        assert!(report.metadata_damaged > 0, "{report:?}");
        let wrong = |bytes: &[u8]| {
            let mut name = NAME.as_bytes().to_vec();
            name[3] ^= 1;
            find_in(bytes, &name)
        };
        assert!(disks.iter().all(|disk| !wrong(&slice_of(disk)[DATABASE_AT..]).is_empty()));
        assert!(fs.status().await.expect("known").meta_pages.wrong >= 3);
        fs.lookup(ROOT, NAME.as_bytes()).await.expect_err("nothing has it");
        let why = fs.status().await.expect("known").stopped.expect("it has stopped");
        assert!(why.contains("no copy of page"), "{why}");
    });
}

/// The same judge after a crash: the array would make the copies like the first one.
#[test]
fn after_a_crash_copies_are_not_made_like_one_that_has_rotted() {
    run(|rt| async move {
        let (disks, ino) = rotten(&rt, 2, &[0], true).await;
        let before = right_names(&disks);
        // Nothing reads the page.
        let fs = mount(&rt, &all(&disks)).await;
        rt.sleep(60 * SECOND).await;
        drop(fs);
        let after = right_names(&disks);
        assert!(before[0] == 0 && before[1] > 0, "{before:?}");
        assert!(after[0] == after[1] && after[0] >= before[1], "{before:?} {after:?}");
        let fs = Fs::mount(&rt, &all(&disks[..1]), stale()).await.expect("mounted");
        assert_eq!(find(&fs, NAME).await, ino);
    });
}

/// A crash leaves a commit in the page journal of the first copy only, and it is the first one
/// there since all pages were written to their places: no other record has a page that it changes.
/// Replaying it is cut short by another crash, with which the disk of that copy is lost.
#[test]
fn a_journal_record_that_one_copy_has_is_not_acted_on_before_the_others_have_it() {
    let first = Rc::new(RefCell::new(None));
    let given = first.clone();
    run(move |rt| async move {
        let (_, disks) = new_disks(&rt, 4);
        let fs = made(&rt, &all(&disks)).await;
        let mut count = 0;
        disks[0].writes.borrow_mut().clear();
        let is_in_place = |(at, _): &(u64, u64)| (JOURNAL.end..SLICE.end).contains(at);
        while !disks[0].writes.borrow().iter().any(is_in_place) {
            for _ in 0..3 {
                make(&fs, &format!("file {count}")).await;
                fs.sync().await.expect("synced");
                count += 1;
            }
            disks[0].writes.borrow_mut().clear();
            rt.sleep(20 * SECOND).await;
        }
        for disk in &disks[1..3] {
            disk.faults.hold(JOURNAL, 0);
        }
        make(&fs, "the last one").await;
        let synced = rt.spawn({
            let fs = fs.clone();
            async move { fs.sync().await }
        });
        rt.sleep(SECOND / 100).await;
        let left = left_on(&disks, Leave::Nothing);
        let journal = |medium: &Medium| {
            let mut bytes = vec![0; (JOURNAL.end - JOURNAL.start) as usize];
            medium.read(JOURNAL.start, &mut bytes);
            bytes
        };
        assert!(journal(&left[0]) != journal(&left[1]), "the first copy alone has the record");
        assert!(journal(&left[1]) == journal(&left[2]));
        *given.borrow_mut() = Some(left);
        drop(synced);
    });
    let left = first.take().expect("a crash");
    let moments = moments_of_recovery(left, JOURNAL);
    for (step, moment) in moments.iter().enumerate() {
        for then in (1..5).map(Leave::Some) {
            let left: Vec<Medium> = left_of_all(then, moment);
            run(move |rt| async move {
                let disks = holding(&rt, &Power::new(), SIZE, &left);
                let fs = Fs::mount(&rt, &all(&disks[1..]), degraded()).await;
                let fs = fs.unwrap_or_else(|error| panic!("step {step}, {then:?}: {error}"));
                assert_sound(&fs).await;
                find(&fs, "file 2").await;
            });
        }
    }
}

/// Blocks of the table of checksums that have rotted, or that one disk has not written although it
/// said so.
#[test]
fn a_table_of_checksums_of_which_one_copy_is_wrong_is_made_right() {
    for on in 0..3 {
        for is_old in [false, true] {
            run(move |rt| async move {
                let (power, disks) = new_disks(&rt, 3);
                let fs = made(&rt, &all(&disks)).await;
                make(&fs, NAME).await;
                fs.unmount().await.expect("unmounted");
                let old = slice_of(&disks[on]);
                let fs = mount(&rt, &all(&disks)).await;
                for n in 0..100 {
                    make(&fs, &format!("file {n}")).await;
                }
                fs.unmount().await.expect("unmounted");
                let disks = holding(&rt, &power, SIZE, &left_on(&disks, Leave::Nothing));
                let table = table_in(&slice_of(&disks[on]));
                for at in table.step_by(512) {
                    match is_old {
                        true => {
                            let sector = &old[at..at + 512];
                            disks[on].medium.borrow_mut().poke(SLICE.start + at as u64, sector);
                        }
                        false => flip(&disks[on], at + 40),
                    }
                }
                let what = format!("on {on}, old {is_old}");
                let fs = Fs::mount(&rt, &all(&disks), mounting()).await;
                let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_sound(&fs).await;
                assert_eq!(fs.status().await.expect("known").meta_pages.wrong, 0, "{what}");
                fs.unmount().await.expect("unmounted");
                let fs = Fs::mount(&rt, &all(&disks[on..=on]), degraded()).await.expect("mounted");
                find(&fs, "file 99").await;
                assert_sound(&fs).await;
            });
        }
    }
}

/// Where the table of checksums lies in a slice: at its end, where anything but zeros is.
fn table_in(slice: &[u8]) -> Range<usize> {
    let end = slice.len();
    let table = (end - (12 << 10)..end).step_by(512);
    let mut used = table.filter(|at| slice[*at..at + 512].iter().any(|byte| *byte != 0));
    let start = used.next().expect("a table");
    start..end
}
