//! Disks that were lost and are added again: what they still have is used, what was written
//! meanwhile is rebuilt, and what only they have is readable again.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::jobs::{SEVERAL_STEPS, with_few_pages};
use crate::common::moments::*;
use crate::common::test_disks::blank;
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, Job, JobReport, Label, MountOptions, ROOT};
use weft_rt::{MICROSECOND, SECOND};

/// Files of all redundancies, in long and short records.
async fn stored(fs: &Fs) {
    fill(fs).await;
    for n in 0..20 {
        let ino = make_as(fs, &format!("small{n}"), "raid1").await;
        write(fs, ino, 0, &pattern(9000, n)).await;
    }
    fs.sync().await.expect("synced");
}

async fn assert_stored(fs: &Fs, what: &str) {
    for n in 0..20 {
        let ino = find(fs, &format!("small{n}")).await;
        assert!(read_all(fs, ino).await == pattern(9000, n), "{what}: small{n}");
    }
    assert_filled(fs, what).await;
}

async fn is_lost(fs: &Fs) -> Vec<u16> {
    let disks = fs.status().await.expect("known").disks;
    disks.iter().filter(|disk| disk.lost).map(|disk| disk.number).collect()
}

#[test]
fn a_disk_that_failed_is_taken_back_with_what_it_has() {
    run(|rt| async move {
        let disks = ram(&[24; 5]);
        let fs = made(&rt, &disks).await;
        stored(&fs).await;
        fs.fail_disk(1).await.expect("out of service");
        // Written while it is away: in place, and new.
        let auto = find(&fs, "auto").await;
        let mut bytes = pattern(300_000, 0);
        for at in [0, 100_000, 204_800] {
            write(&fs, auto, at, &pattern(5000, 77)).await;
            bytes[at as usize..][..5000].copy_from_slice(&pattern(5000, 77));
        }
        let new = make_as(&fs, "new", "auto").await;
        write(&fs, new, 0, &pattern(50_000, 8)).await;
        fs.sync().await.expect("synced");
        assert_eq!(fs.add_disk(disks[1].clone(), false).await.expect("taken back"), 5);
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.removed_disks, [1], "{report:?}");
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
        assert!(report.kept_blocks > 4 * report.blocks && report.blocks > 0, "{report:?}");
        assert_eq!(numbers(&fs).await, [0, 2, 3, 4, 5]);
        assert!(read_all(&fs, auto).await == bytes);
        write(&fs, auto, 0, &pattern(300_000, 0)).await;
        fs.unlink(ROOT, b"new").await.expect("removed");
        assert_stored(&fs, "taken back").await;
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        // It is a disk like any other: two others may go.
        let left: Vec<_> = [1, 3, 4].iter().map(|n| disks[*n].clone()).collect();
        let fs = mount_degraded(&rt, &left).await;
        assert!(read_all(&fs, find(&fs, "raid6").await).await == pattern(300_000, 3));
    });
}

#[test]
fn a_disk_that_was_missing_is_taken_back_after_a_degraded_mount() {
    run(|rt| async move {
        let disks = ram(&[24; 4]);
        let fs = made(&rt, &disks).await;
        stored(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount_degraded(&rt, &disks[..3]).await;
        let raid1 = find(&fs, "raid1").await;
        write(&fs, raid1, 0, &pattern(300_000, 2)).await;
        fs.unmount().await.expect("unmounted");
        // With all of them it is lost still, until it is added.
        let fs = mount(&rt, &disks).await;
        assert_eq!(is_lost(&fs).await, [3]);
        assert_eq!(fs.add_disk(disks[3].clone(), false).await.expect("taken back"), 4);
        let twice = fs.add_disk(disks[3].clone(), true).await;
        assert!(matches!(twice, Err(FsError::Invalid(_))), "{twice:?}");
        let status = fs.status().await.expect("known");
        assert_eq!(status.disks.iter().map(|disk| disk.back_as).max(), Some(Some(4)));
        // Half of the work, and an unmount.
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!((&report.removed_disks[..], report.damaged.len()), (&[3][..], 0), "{report:?}");
        assert!(report.kept_blocks > report.blocks, "{report:?}");
        assert_stored(&fs, "taken back").await;
        rt.sleep(60 * SECOND).await;
        let status = fs.status().await.expect("known");
        assert_eq!(status.meta_copies, (3, 3));
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert_stored(&fs, "mounted again").await;
    });
}

/// Two of four disks are lost at once, which parity and mirrors do not survive; one comes back.
#[test]
fn files_that_two_disks_took_are_readable_when_one_is_back() {
    run(|rt| async move {
        let disks = ram(&[24; 4]);
        let fs = made(&rt, &disks).await;
        stored(&fs).await;
        fs.fail_disk(1).await.expect("out of service");
        let raid6 = find(&fs, "raid6").await;
        write(&fs, raid6, 8192, &pattern(300_000, 3)[8192..20_000]).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(2).await.expect("out of service");
        let auto = find(&fs, "auto").await;
        fs.read(auto, 0, 300_000).await.expect_err("two disks of it are lost");
        assert_eq!(fs.add_disk(disks[2].clone(), false).await.expect("taken back"), 4);
        // Before anything is rebuilt, and after.
        for _ in 0..2 {
            for (n, name) in ["auto", "raid1", "raid6"].iter().enumerate() {
                let expected = pattern(300_000, [0, 2, 3][n]);
                assert!(read_all(&fs, find(&fs, name).await).await == expected, "{name}");
            }
            let report = fs.rebuild().await.expect("rebuilt");
            assert!(report.kept_blocks > 0 || report.removed_disks.is_empty(), "{report:?}");
        }
        assert_eq!(fs.add_disk(disks[1].clone(), false).await.expect("taken back"), 5);
        let report = fs.rebuild().await.expect("rebuilt");
        assert!(report.damaged.is_empty(), "{report:?}");
        assert!(is_lost(&fs).await.is_empty());
        assert_stored(&fs, "both are back").await;
        assert_sound(&fs).await;
    });
}

/// Blocks that end with a CRC32C of their own, and some zeros, have one checksum, and so has their
/// parity: what a disk has missed is not taken for what it should have.
#[test]
fn blocks_with_a_checksum_of_their_own_are_not_taken_from_a_disk_that_missed_them() {
    let contents = |version: u64| -> Vec<u8> {
        let block = |number: u64| {
            let padding = if number.is_multiple_of(3) { 40 } else { 0 };
            let mut block = pattern(BLOCK as usize - padding - 4, version << 16 | number);
            let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block) as u32;
            block.extend(sum.to_le_bytes());
            block.resize(BLOCK as usize, 0);
            block
        };
        (0..60).flat_map(block).collect()
    };
    let cases = ["raid1", "raid5", "raid6"].map(|redundancy| (0..4).map(move |n| (redundancy, n)));
    for (redundancy, lost) in cases.into_iter().flatten() {
        run(move |rt| async move {
            let disks = ram(&[24; 4]);
            let fs = made(&rt, &disks).await;
            let ino = make_as(&fs, "file", redundancy).await;
            write(&fs, ino, 0, &contents(1)).await;
            fs.sync().await.expect("synced");
            fs.fail_disk(lost).await.expect("out of service");
            let (mut now, next) = (contents(1), contents(2));
            // In place: parts of lines.
            for block in (0..60).step_by(5) {
                let part = block * BLOCK as usize..(block + 1) * BLOCK as usize;
                now[part.clone()].copy_from_slice(&next[part.clone()]);
                write(&fs, ino, part.start as u64, &next[part]).await;
                fs.sync().await.expect("synced");
            }
            fs.add_disk(disks[usize::from(lost)].clone(), false).await.expect("taken back");
            let report = fs.rebuild().await.expect("rebuilt");
            assert!(report.damaged.is_empty() && is_lost(&fs).await.is_empty(), "{report:?}");
            assert!(
                read_all(&fs, ino).await == now,
                "{redundancy} without disk {lost}: {report:?}"
            );
            // Parity, too.
            fs.fail_disk((lost + 1) % 4).await.expect("out of service");
            assert!(read_all(&fs, ino).await == now, "{redundancy}: another disk is lost");
        });
    }
}

/// What was written while two disks were away, one after the other, needs both of them.
#[test]
fn blocks_that_a_disk_missed_are_not_taken_from_it() {
    run(|rt| async move {
        let disks = ram(&[24; 3]);
        let fs = made(&rt, &disks).await;
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(200_000, 1)).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(0).await.expect("out of service");
        write(&fs, ino, 0, &pattern(100_000, 2)).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(1).await.expect("out of service");
        fs.add_disk(disks[0].clone(), false).await.expect("taken back");
        let mut expected = pattern(200_000, 1);
        expected[..100_000].copy_from_slice(&pattern(100_000, 2));
        let right = async |fs: &Fs| {
            let mut right = 0;
            for block in 0..expected.len() / BLOCK as usize {
                let at = block * BLOCK as usize;
                match fs.read(ino, at as u64, BLOCK as usize).await {
                    Ok(found) => {
                        assert!(*found == expected[at..at + BLOCK as usize], "block {block}");
                        right += 1;
                    }
                    Err(FsError::Unreadable { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            right
        };
        let before = right(&fs).await;
        assert!(before >= 24, "what is as it was is there: {before} blocks");
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        assert_eq!(right(&fs).await, before, "{report:?}");
        fs.add_disk(disks[1].clone(), false).await.expect("taken back");
        let report = fs.rebuild().await.expect("rebuilt");
        assert!(report.damaged.is_empty(), "{report:?}");
        assert!(read_all(&fs, ino).await == expected);
        fs.scrub().await.expect("scrubbed");
        assert_sound(&fs).await;
    });
}

/// An old image of a disk that is in use, or of one that is back, is no disk of the file system.
#[test]
fn a_copy_of_a_disk_in_use_is_refused() {
    run(|rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 4]);
        let fs = made(&rt, &all(&disks)).await;
        stored(&fs).await;
        let copy = |of: usize, name: usize| {
            let medium = disks[of].medium.borrow().clone();
            TestDisk::new(&rt, &power, name, SIZE, 512, medium) as Rc<dyn Disk>
        };
        let refused = fs.add_disk(copy(1, 7), false).await.expect_err("a copy");
        assert!(refused.to_string().contains("disk 1 of this file system"), "{refused}");
        let image = copy(1, 8);
        fs.fail_disk(1).await.expect("out of service");
        fs.add_disk(disks[1].clone(), false).await.expect("taken back");
        let refused = fs.add_disk(image, false).await.expect_err("an old image");
        assert!(refused.to_string().contains("disk 1 of this file system"), "{refused}");
        fs.rebuild().await.expect("rebuilt");
        // Nothing of a disk that has left is needed.
        fs.fail_disk(2).await.expect("out of service");
        fs.rebuild().await.expect("rebuilt");
        fs.add_disk(disks[2].clone(), false).await.expect("it has left");
        assert_stored(&fs, "in the end").await;
    });
}

/// A disk is lost, comes back, is lost again before anything was judged, and comes back again.
#[test]
fn a_disk_may_come_back_twice() {
    run(|rt| async move {
        let disks = ram(&[24; 4]);
        let fs = made(&rt, &disks).await;
        stored(&fs).await;
        fs.fail_disk(3).await.expect("out of service");
        fs.add_disk(disks[3].clone(), false).await.expect("taken back");
        let between = make_as(&fs, "between", "auto").await;
        write(&fs, between, 0, &pattern(200_000, 5)).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(4).await.expect("out of service");
        fs.remove_disk(4).await.expect_err("it is lost");
        assert_eq!(fs.add_disk(disks[3].clone(), false).await.expect("taken back"), 5);
        fs.remove_disk(5).await.expect_err("something of disk 3 is on it");
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        fs.unlink(ROOT, b"small3").await.expect("removed");
        let again = make_as(&fs, "small3", "raid1").await;
        write(&fs, again, 0, &pattern(9000, 3)).await;
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.removed_disks, [3, 4], "{report:?}");
        assert_eq!(report.damaged.len(), 0, "{report:?}");
        assert!(read_all(&fs, find(&fs, "between").await).await == pattern(200_000, 5));
        assert_stored(&fs, "twice").await;
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert_stored(&fs, "mounted again").await;
    });
}

/// Whatever step a crash meets, nothing is lost, and the disk is in or can be added again.
#[test]
fn a_crash_while_a_disk_is_taken_back_loses_nothing() {
    let moments = moments(4, |fs, disks| async move {
        fs.fail_disk(1).await.expect("out of service");
        let auto = find(&fs, "auto").await;
        write(&fs, auto, 0, &pattern(300_000, 0)[..40_000]).await;
        fs.sync().await.expect("synced");
        fs.add_disk(disks[1].clone(), false).await.expect("taken back");
        fs.rebuild().await.expect("rebuilt");
    });
    assert!(moments.len() > 30, "{}", moments.len());
    for (n, media) in moments.iter().enumerate() {
        let media: Vec<Medium> = media.iter().map(|medium| leave(n).of(medium)).collect();
        run(move |rt| async move {
            let what = format!("moment {n}");
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks, &what).await;
            assert_filled(&fs, &what).await;
            if is_lost(&fs).await == [1]
                && fs.status().await.expect("known").disks.iter().all(|disk| disk.back_as.is_none())
            {
                let added = fs.add_disk(disks[1].clone(), false).await;
                added.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            let report = fs.rebuild().await.expect("rebuilt");
            assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{what}: {report:?}");
            assert!(is_lost(&fs).await.is_empty(), "{what}");
            assert_filled(&fs, &what).await;
        });
    }
}

/// A join that is killed at any step: the disk is in after the next mount, or is added without
/// force.
#[test]
fn a_disk_whose_joining_was_cut_short_is_added_unforced() {
    let moments = moments(4, |fs, disks| async move {
        fs.add_disk(disks[5].clone(), false).await.expect("added");
    });
    for (n, media) in moments.iter().enumerate() {
        for with in [true, false] {
            let media: Vec<Medium> = media.iter().map(|medium| leave(n).of(medium)).collect();
            run(move |rt| async move {
                let what = format!("moment {n}, the disk is there: {with}");
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let has_label = Label::read(&*disks[5]).await.expect("readable").is_some();
                let count = if with && has_label { 6 } else { 4 };
                let numbers_of = [0, 1, 2, 3, 5].into_iter().filter(|n| *n < count);
                let there: Vec<_> = numbers_of.map(|n| disks[n].clone()).collect();
                let fs = Fs::mount(&rt, &all(&there), mounting()).await;
                let fs = match fs {
                    Ok(fs) => fs,
                    // It is in already.
                    Err(error) if !with => {
                        assert!(error.to_string().contains("is missing"), "{what}: {error}");
                        return;
                    }
                    Err(error) => panic!("{what}: {error}"),
                };
                if numbers(&fs).await.len() == 4 {
                    let added = fs.add_disk(disks[5].clone(), false).await;
                    added.unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                assert_eq!(numbers(&fs).await.len(), 5, "{what}");
                assert_filled(&fs, &what).await;
                rt.sleep(60 * SECOND).await;
                let status = fs.status().await.expect("known");
                assert_eq!(status.meta_copies, (3, 3), "{what}");
                fs.unmount().await.expect("unmounted");
                let all_of = [0, 1, 2, 3, 5].map(|n: usize| disks[n].clone());
                assert_filled(&mount(&rt, &all(&all_of)).await, &what).await;
            });
        }
    }
}

/// The disk has its new label, and the crash came before it was in. Then another disk joins without
/// it.
#[test]
fn a_disk_whose_return_was_cut_short_is_not_taken_for_one_that_has_left() {
    let moments = moments(4, |fs, disks| async move {
        fs.fail_disk(1).await.expect("out of service");
        fs.add_disk(disks[1].clone(), false).await.expect("taken back");
    });
    let mut tried = 0;
    for media in moments {
        let media: Vec<Medium> = media.iter().map(|medium| Leave::All.of(medium)).collect();
        let cut_short = Rc::new(Cell::new(false));
        let is_cut_short = cut_short.clone();
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let label = Label::read(&*disks[1]).await.expect("readable").expect("a label");
            if label.number == 1 {
                return;
            }
            let without = [0, 2, 3].map(|n: usize| disks[n].clone());
            let options = MountOptions { degraded: true, ..mounting() };
            let fs = Fs::mount(&rt, &all(&without), options).await.expect("mounted");
            if numbers(&fs).await.contains(&label.number) {
                return;
            }
            is_cut_short.set(true);
            fs.add_disk(disks[5].clone(), false).await.expect("added");
            fs.add_disk(disks[1].clone(), false).await.expect("taken back");
            let report = fs.rebuild().await.expect("rebuilt");
            assert!(report.kept_blocks > 0 && report.damaged.is_empty(), "{report:?}");
            assert_filled(&fs, "taken back").await;
        });
        tried += usize::from(cut_short.get());
    }
    assert!(tried > 0, "no crash came in between");
}

/// What a disk missed while it was away cannot be written to its place any more. All disks have a
/// column of the record, so it goes elsewhere on the same disk.
#[test]
fn a_disk_that_comes_back_with_blocks_that_cannot_be_written_has_them_elsewhere() {
    run(|rt| async move {
        let disks = blank(&rt, 4);
        let fs = made(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid6").await;
        let mut bytes = pattern(40 * BLOCK as usize, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(1).await.expect("out of service");
        bytes[..BLOCK as usize].fill(7);
        write(&fs, ino, 0, &[7; BLOCK as usize]).await;
        fs.sync().await.expect("synced");
        let places = fs.places(ino).await.expect("known");
        let columns = places[0].1.columns.iter().flatten();
        assert_eq!(columns.clone().count(), 4, "all disks have one");
        for column in columns.filter(|column| column.disk == 1) {
            let first = ((64 << 10) + (8 << 20) + column.start * BLOCK) / 512;
            let sectors = first..first + column.sums.len() as u64 * BLOCK / 512;
            disks[1].faults.dead_writes.borrow_mut().extend(sectors);
        }
        fs.add_disk(disks[1].clone(), false).await.expect("taken back");
        let report = fs.rebuild().await.expect("rebuilt");
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
        assert_eq!(report.removed_disks, [1], "{report:?}");
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

/// The first steps could not read what only that disk has.
#[test]
fn files_that_come_back_during_a_rebuild_are_not_reported_as_damaged() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), 48 << 20, &vec![Medium::new(512); 5]);
        let fs = with_few_pages(&rt, &all(&disks)).await;
        let long = make_as(&fs, "long", "raid5").await;
        write(&fs, long, 0, &pattern(SEVERAL_STEPS, 1)).await;
        fs.sync().await.expect("synced");
        rt.sleep(SECOND).await;
        // What changed last is tried first.
        let bare = make_as(&fs, "bare", "none").await;
        write(&fs, bare, 0, &pattern(400_000, 2)).await;
        fs.sync().await.expect("synced");
        let places = fs.places(bare).await.expect("known");
        let lost = places[0].1.columns.iter().flatten().next().expect("a column").disk;
        fs.fail_disk(lost).await.expect("out of service");
        let rebuild = rt.spawn(fs.begin_job(Job::Rebuild).expect("nothing else runs"));
        while fs.status().await.expect("known").job.expect("it runs").done_blocks == 0 {
            rt.sleep(20 * MICROSECOND).await;
        }
        fs.read(bare, 0, 400_000).await.expect_err("it has no redundancy");
        fs.add_disk(disks[usize::from(lost)].clone(), false).await.expect("taken back");
        assert!(fs.status().await.expect("known").job.is_some(), "the rebuild goes on");
        let Ok(JobReport::Moved(report)) = rebuild.await else { panic!("rebuilt") };
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
        assert_eq!(report.removed_disks, [lost], "{report:?}");
        assert!(read_all(&fs, bare).await == pattern(400_000, 2));
        assert!(read_all(&fs, long).await == pattern(SEVERAL_STEPS, 1));
        assert_sound(&fs).await;
    });
}
