//! Disks join and leave a mounted file system: with every crash on the way, and refused where the
//! files would not fit. Scrubs repair what has rotted meanwhile, and rebuilds report what is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::jobs::SEVERAL_STEPS;
use crate::common::moments::*;
use crate::common::test_disks::{blank, left_on};
use crate::common::*;
use weft_disk::WriteOpts;
use weft_fs::{CreateOptions, Fs, FsError, Job, JobReport, Label, ROOT, SetAttr, create};
use weft_rt::{Frozen, MICROSECOND, SECOND};

#[test]
fn a_disk_joins_and_another_leaves() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24, 24, 40]);
        let fs = made(&rt, &disks[..4]).await;
        fill(&fs).await;
        let free = fs.status().await.expect("known").disks[1].free_bytes;
        assert_eq!(fs.add_disk(disks[4].clone(), false).await.expect("added"), 4);
        let twice = fs.add_disk(disks[4].clone(), true).await;
        assert!(matches!(twice, Err(FsError::Invalid(_))), "{twice:?}");
        assert_filled(&fs, "joined").await;
        let report = fs.remove_disk(1).await.expect("removed");
        assert_eq!(report.removed_disks, [1], "{report:?}");
        assert!(report.blocks * BLOCK <= SIZE - free, "only what files hold is moved: {report:?}");
        assert_eq!(numbers(&fs).await, [0, 2, 3, 4]);
        assert_filled(&fs, "left").await;
        assert!(Label::read(&*disks[1]).await.expect("readable").is_none(), "it has no label");
        fs.unmount().await.expect("unmounted");
        let left: Vec<_> = [4, 3, 2, 0].iter().map(|n| disks[*n].clone()).collect();
        let fs = mount(&rt, &left).await;
        assert_filled(&fs, "mounted again").await;
        // Numbers are not used again, also that of the last disk.
        fs.remove_disk(4).await.expect_err("a file with raid6 needs four disks");
        assert_eq!(fs.add_disk(disks[1].clone(), true).await.expect("added"), 5);
        fs.remove_disk(5).await.expect("removed");
        assert_eq!(fs.add_disk(disks[1].clone(), true).await.expect("added"), 6);
        // The metadata has all of its copies on disks that are left.
        fs.remove_disk(0).await.expect("removed");
        fs.unmount().await.expect("unmounted");
        let left: Vec<_> = [1, 2, 3, 4].iter().map(|n| disks[*n].clone()).collect();
        let fs = mount_degraded(&rt, &left[1..]).await;
        assert_eq!(numbers(&fs).await, [2, 3, 4, 6]);
    });
}

/// Two disks are lost, and a line has no disk left for another block. It is laid out anew as two
/// lines, in one record; only one of them gets the block.
#[test]
fn a_block_of_a_line_that_is_laid_out_anew_goes_to_one_line() {
    run(|rt| async move {
        let disks = ram(&[20; 6]);
        // What was on the disks before must not come to light.
        for disk in &disks {
            let garbage = Frozen::copy_from(&pattern(20 << 20, 9));
            disk.write(0, garbage, WriteOpts::USER).await.expect("written");
        }
        create(&rt, &disks, &CreateOptions { force: true, ..options() }).await.expect("created");
        let fs = mount(&rt, &disks).await;
        let ino = make(&fs, "file").await;
        let mut bytes = vec![0; 6 * BLOCK as usize];
        let put = async |fs: &Fs, bytes: &mut [u8], block: u64| {
            let (at, data) = ((block * BLOCK) as usize, pattern(BLOCK as usize, block));
            write(fs, ino, block * BLOCK, &data).await;
            bytes[at..at + BLOCK as usize].copy_from_slice(&data);
        };
        for block in [0, 1, 3, 4] {
            put(&fs, &mut bytes, block).await;
        }
        let longer = SetAttr { size: Some(6 * BLOCK), ..SetAttr::default() };
        fs.set_attr(ino, longer).await.expect("room");
        fs.sync().await.expect("synced");
        let free: Vec<u64> =
            fs.status().await.expect("known").disks.iter().map(|disk| disk.free_bytes).collect();
        let most = free.iter().max().expect("disks");
        let unused = free.iter().position(|free| free == most).expect("one");
        assert_eq!(free.iter().filter(|free| *free == most).count(), 1, "four blocks and parity");
        fs.unmount().await.expect("unmounted");
        let used = (unused + 1) % disks.len();
        let left = (0..disks.len()).filter(|n| ![unused, used].contains(n));
        let left: Vec<_> = left.map(|n| disks[n].clone()).collect();
        let fs = mount_degraded(&rt, &left).await;
        put(&fs, &mut bytes, 2).await;
        fs.sync().await.expect("synced");
        assert!(read_all(&fs, ino).await == bytes, "block 5 stays a hole");
        assert_sound(&fs).await;
    });
}

/// Lines over four disks are laid out anew over three, which takes the room that others of them
/// leave only after a commit.
#[test]
fn a_disk_leaves_if_there_is_room_after_what_moved_is_free() {
    run(|rt| async move {
        let disks = ram(&[40; 4]);
        let fs = made(&rt, &disks).await;
        let data = fs.status().await.expect("known").disks[0].data_bytes;
        // Of the three disks that are left it takes nine tenths.
        let parts = data * 3 * 6 / 10 / (1 << 20);
        let ino = make_as(&fs, "file", "raid5").await;
        for part in 0..parts {
            write(&fs, ino, part << 20, &pattern(1 << 20, part)).await;
        }
        fs.sync().await.expect("synced");
        let report = fs.remove_disk(0).await.expect("removed");
        assert_eq!(report.removed_disks, [0], "{report:?}");
        assert!(report.waiting.is_empty(), "{report:?}");
        for part in 0..parts {
            let found = fs.read(ino, part << 20, 1 << 20).await.expect("read");
            assert!(found[..] == pattern(1 << 20, part)[..], "part {part}");
        }
        assert_sound(&fs).await;
    });
}

#[test]
fn a_removal_that_cannot_be_is_refused_before_it_is_a_job() {
    run(|rt| async move {
        let disks = ram(&[24; 3]);
        let fs = made(&rt, &disks).await;
        let refused = fs.check_removal(9).await.expect_err("no such disk");
        assert!(refused.to_string().contains("no disk 9"), "{refused}");
        fs.check_removal(2).await.expect("it may go");
        make_as(&fs, "three", "rs:2+1").await;
        let refused = fs.check_removal(2).await.expect_err("two disks are too few for rs:2+1");
        assert!(refused.to_string().contains("rs:2+1"), "{refused}");
        assert!(fs.status().await.expect("known").job.is_none());
        assert_eq!(numbers(&fs).await, [0, 1, 2]);
    });
}

#[test]
fn a_disk_stays_if_the_others_cannot_hold_what_it_has() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 40]);
        let fs = made(&rt, &disks).await;
        let three = make_as(&fs, "three", "rs:2+1").await;
        write(&fs, three, 0, &pattern(10_000, 1)).await;
        let refused = fs.remove_disk(0).await.expect_err("two disks are too few for rs:2+1");
        assert!(refused.to_string().contains("rs:2+1"), "{refused}");
        fs.unlink(ROOT, b"three").await.expect("removed");
        let large = make_as(&fs, "large", "none").await;
        for part in 0..200 {
            write(&fs, large, part << 18, &pattern(256 << 10, part)).await;
            if fs.status().await.expect("known").disks[2].free_bytes < 8 << 20 {
                break;
            }
        }
        fs.sync().await.expect("synced");
        let refused = fs.remove_disk(2).await.expect_err("it holds more than the others have room");
        assert!(refused.to_string().contains("KiB free"), "{refused}");
        fs.remove_disk(9).await.expect_err("there is no such disk");
        assert_eq!(numbers(&fs).await, [0, 1, 2]);
        // It is used as before.
        let more = make_as(&fs, "more", "raid1").await;
        write(&fs, more, 0, &pattern(100_000, 5)).await;
        assert_sound(&fs).await;
    });
}

#[test]
fn disks_that_hold_anything_or_are_too_small_are_refused() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24, 24, 2]);
        let fs = made(&rt, &disks[..2]).await;
        fill_two(&fs).await;
        let other = weft_fs::CreateOptions { id: [8; 16], name: "other".into(), ..options() };
        weft_fs::create(&rt, &disks[2..4], &other).await.expect("created");
        let refused = fs.add_disk(disks[2].clone(), false).await.expect_err("it is in use");
        assert!(refused.to_string().contains("'other'"), "{refused}");
        fs.add_disk(disks[4].clone(), true).await.expect_err("too small");
        fs.add_disk(disks[2].clone(), true).await.expect("overwritten");
        assert_sound(&fs).await;
        let running = fs.begin_job(Job::Scrub).expect("nothing runs");
        let busy = fs.rebuild().await;
        assert!(matches!(busy, Err(FsError::Busy("scrub"))), "{busy:?}");
        drop(running);
        fs.rebuild().await.expect("nothing runs any more");
    });
}

async fn fill_two(fs: &Fs) {
    let ino = make_as(fs, "file", "raid1").await;
    write(fs, ino, 0, &pattern(100_000, 1)).await;
    fs.sync().await.expect("synced");
}

#[test]
fn a_crash_while_a_disk_joins_leaves_it_in_or_out() {
    let moments = moments(4, |fs, disks| async move {
        fs.add_disk(disks[4].clone(), false).await.expect("added");
    });
    let mut counts = [0; 2];
    for (n, media) in moments.iter().enumerate() {
        let media: Vec<Medium> = left_of_all(leave(n), media);
        let joined = Rc::new(RefCell::new(0));
        let result = joined.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks, &what).await;
            let before = numbers(&fs).await;
            assert!(before.starts_with(&[0, 1, 2, 3]) && before.len() <= 5, "{what}: {before:?}");
            *result.borrow_mut() = before.len() - 4;
            assert_filled(&fs, &what).await;
            if before.len() == 4 {
                fs.add_disk(disks[4].clone(), true).await.expect("added after all");
            }
            let last = *numbers(&fs).await.last().expect("disks");
            fs.remove_disk(last).await.expect("removed again");
            assert_filled(&fs, &what).await;
        });
        counts[*joined.borrow()] += 1;
    }
    assert!(counts[0] > 5 && counts[1] > 0, "{counts:?}");
}

/// If only the program was killed, the label of a disk that was joining may be in its cache; a
/// power cut after the next mount would take it away.
#[test]
fn a_disk_that_a_mount_has_taken_in_is_there_after_a_power_cut() {
    let moments = moments(4, |fs, disks| async move {
        fs.add_disk(disks[4].clone(), false).await.expect("added");
    });
    let mut joined = 0;
    for (n, media) in moments.iter().enumerate() {
        let killed: Vec<Medium> = media.iter().map(|medium| Leave::Cached.of(medium)).collect();
        let found = Rc::new(RefCell::new((Vec::new(), Vec::new())));
        let result = found.clone();
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &killed);
            let fs = mounted(&rt, &disks, &format!("step {n}")).await;
            let left = left_on(&disks, Leave::Nothing);
            *result.borrow_mut() = (numbers(&fs).await, left);
        });
        let (before, left): (Vec<u16>, Vec<Medium>) = found.take();
        joined += usize::from(before.len() == 5);
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &left);
            let fs = mounted(&rt, &disks, &format!("step {n}, and a power cut")).await;
            assert_eq!(numbers(&fs).await, before, "step {n}");
        });
    }
    assert!(joined > 3, "{joined}");
}

#[test]
fn a_crash_while_a_disk_leaves_loses_nothing() {
    let moments = moments(5, |fs, _| async move {
        fs.remove_disk(1).await.expect("removed");
    });
    assert!(moments.len() > 100, "{} steps", moments.len());
    for (n, media) in moments.iter().enumerate().step_by(3) {
        let media: Vec<Medium> = left_of_all(leave(n / 3), media);
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n / 3));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks, &what).await;
            assert_filled(&fs, &what).await;
            if numbers(&fs).await.contains(&1) {
                fs.remove_disk(1).await.expect("removed after all");
            }
            assert_eq!(numbers(&fs).await, [0, 2, 3, 4], "{what}");
            assert_filled(&fs, &what).await;
        });
    }
}

#[test]
fn a_scrub_repairs_what_has_rotted_and_says_what_it_cannot() {
    run(|rt| async move {
        let disks = blank(&rt, 5);
        let fs = made(&rt, &all(&disks)).await;
        fill(&fs).await;
        let clean = fs.scrub().await.expect("scrubbed");
        assert_eq!((clean.bad_blocks, clean.damaged_files, clean.metadata_mismatches), (0, 0, 0));
        for name in FILES {
            let places = fs.places(find(&fs, name).await).await.expect("known");
            let column = places[0].1.columns[0].clone().expect("active");
            let at = (64 << 10) + (8 << 20) + column.start * BLOCK;
            disks[usize::from(column.disk)].medium.borrow_mut().poke(at, &[0x5a; 512]);
        }
        let report = fs.scrub().await.expect("scrubbed");
        assert_eq!((report.bad_blocks, report.repaired_blocks), (4, 3), "{report:?}");
        assert_eq!(report.damaged_files, 1);
        let none = find(&fs, "none").await;
        let findings = fs.check(true).await.expect("checked").findings;
        assert!(findings.iter().all(|finding| finding.ino == none) && !findings.is_empty());
        assert_eq!(report.blocks, clean.blocks);
        let again = fs.scrub().await.expect("scrubbed");
        assert_eq!((again.bad_blocks, again.damaged_files), (1, 1), "{again:?}");
        assert_eq!(fs.status().await.expect("known").job, None);
    });
}

/// Without redundancy they are lost with the disk. What changed last is rebuilt first, so both are
/// known to be lost when one of them is deleted.
#[test]
fn a_rebuild_does_not_report_a_file_that_is_deleted_meanwhile() {
    run(|rt| async move {
        let disks = all(&holding(&rt, &Power::new(), 48 << 20, &vec![Medium::new(512); 5]));
        let fs = made(&rt, &disks).await;
        let bytes = pattern(SEVERAL_STEPS, 1);
        let whole = make_as(&fs, "whole", "raid5").await;
        write(&fs, whole, 0, &bytes).await;
        rt.sleep(SECOND).await;
        let mut lost = Vec::new();
        for name in ["kept", "deleted"] {
            let ino = make_as(&fs, name, "raid0").await;
            write(&fs, ino, 0, &pattern(500_000, 2)).await;
            lost.push(ino);
        }
        fs.sync().await.expect("synced");
        fs.fail_disk(1).await.expect("out of service");
        let rebuilding = rt.spawn(fs.begin_job(Job::Rebuild).expect("nothing else runs"));
        while fs.status().await.expect("known").job.expect("it runs").done_blocks == 0 {
            rt.sleep(MICROSECOND).await;
        }
        fs.unlink(ROOT, b"deleted").await.expect("deleted");
        let Ok(JobReport::Moved(report)) = rebuilding.await else { panic!("rebuilt") };
        assert_eq!(report.damaged, BTreeSet::from([lost[0]]));
        assert!(read_all(&fs, whole).await == bytes);
        let found = fs.check(true).await.expect("checked").findings;
        assert!(found.iter().all(|of| of.path.as_deref() == Some("/kept")), "{found:?}");
    });
}

/// The free blocks of the disk that has the other copies are of no use.
#[test]
fn a_disk_is_not_emptied_if_lines_find_no_other_disk_with_room() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[64, 64, 12])).await;
        let ino = make_as(&fs, "mirrored", "raid1").await;
        for at in 0..24 {
            fs.write(ino, at << 20, Frozen::copy_from(&[7; 1 << 20])).await.expect("written");
        }
        fs.sync().await.expect("synced");
        let refused = fs.check_removal(1).await;
        let Err(FsError::Invalid(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("different disks"), "{why}");
        let before = fs.places(ino).await.expect("known");
        fs.remove_disk(1).await.expect_err("there is no room");
        assert!(fs.places(ino).await.expect("known") == before, "nothing has moved");
        fs.check_removal(2).await.expect("what little is there finds room");
    });
}

/// Another disk is lost at one of the last steps of a rebuild, with which the first one leaves: the
/// commit that has the loss must not bring the first one back.
#[test]
fn a_disk_that_leaves_while_another_is_lost_does_not_come_back() {
    let lost_at = |step: Option<usize>| {
        let (steps, left) = (Rc::<Cell<usize>>::default(), Rc::<Cell<bool>>::default());
        let (seen, has_left) = (steps.clone(), left.clone());
        run(move |rt| async move {
            let power = Power::new();
            let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 6]);
            let fs = made(&rt, &all(&disks)).await;
            let ino = make_as(&fs, "file", "raid6").await;
            write(&fs, ino, 0, &pattern(100_000, 1)).await;
            fs.sync().await.expect("synced");
            fs.fail_disk(0).await.expect("out of service");
            let second = disks[1].clone();
            power.watch(move || {
                steps.set(steps.get() + 1);
                if step == Some(steps.get()) {
                    second.faults.gone.set(true);
                }
            });
            let report = fs.rebuild().await.expect("rebuilt");
            power.watch(|| {});
            disks[1].faults.gone.set(true);
            // It is noticed at the latest by this.
            write(&fs, ino, 0, &pattern(100_000, 2)).await;
            fs.unmount().await.expect("unmounted");
            let fs = mount_degraded(&rt, &all(&disks[2..])).await;
            let now = numbers(&fs).await;
            assert!(!report.removed_disks.iter().any(|of| now.contains(of)), "{report:?}: {now:?}");
            assert!(read_all(&fs, ino).await == pattern(100_000, 2));
            left.set(report.removed_disks == [0]);
        });
        (seen.get(), has_left.get())
    };
    let (steps, has_left) = lost_at(None);
    assert!(has_left && steps > 40, "{steps}");
    let left = (steps - 40..=steps).filter(|step| lost_at(Some(*step)).1).count();
    assert!(left > 0, "it leaves in spite of the second loss");
}
