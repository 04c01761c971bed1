//! Jobs that begin by themselves: after a loss, and after what interrupted them.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::jobs::*;
use crate::common::moments::*;
use crate::common::test_disks::{blank, left_on};
use crate::common::*;
use weft_code::CodeSpec;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, Ino, Job, JobReport, RebuildReport, Redundancy};
use weft_rt::{Rt, SECOND};

const REDUNDANCY: Redundancy = Redundancy::Code(CodeSpec::Raid1);

/// All of a file is mirrored.
async fn has_two_copies(fs: &Fs, ino: Ino) -> bool {
    let places = fs.places(ino).await.expect("known");
    places.iter().all(|(_, record)| record.coded.columns == 2)
}

/// Whether a rebuild whose first step is done has been to the older one of two files. It is read
/// `reads` times before, after a disk was lost.
async fn is_rebuilt_early(rt: &Rt, reads: usize) -> bool {
    let fs = in_small_steps(rt).await;
    let old = make_as(&fs, "old", "raid5").await;
    write(&fs, old, 0, &pattern(400_000, 1)).await;
    fs.sync().await.expect("synced");
    rt.sleep(SECOND).await;
    let new = make_as(&fs, "new", "raid5").await;
    write(&fs, new, 0, &pattern(SEVERAL_STEPS, 2)).await;
    fs.sync().await.expect("synced");
    fs.fail_disk(2).await.expect("out of service");
    for _ in 0..reads {
        assert!(read_all(&fs, old).await == pattern(400_000, 1));
        rt.sleep(SECOND / 10).await;
    }
    let rebuilding = rt.spawn(fs.begin_job(Job::Rebuild).expect("nothing else runs"));
    while fs.status().await.expect("known").job.is_some_and(|job| job.done_blocks == 0) {
        rt.sleep(SECOND / 100_000).await;
    }
    let mut is_there = Vec::new();
    for ino in [old, new] {
        let places = fs.places(ino).await.expect("known");
        let mut columns = places.iter().flat_map(|(_, record)| record.columns.iter().flatten());
        is_there.push(columns.any(|column| column.disk == 2));
    }
    assert!(is_there[1], "the first step is the last one");
    let Ok(JobReport::Moved(_)) = rebuilding.await else { panic!("rebuilt") };
    assert_sound(&fs).await;
    !is_there[0]
}

#[test]
fn files_that_are_read_while_they_are_lost_are_rebuilt_first() {
    for (reads, early) in [(0, false), (3, true)] {
        run(async move |rt| assert_eq!(is_rebuilt_early(&rt, reads).await, early, "{reads} reads"));
    }
}

/// In one step with the rest of their file.
#[test]
fn parts_that_are_read_while_they_are_lost_are_rebuilt_once() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 5])).await;
        let ino = make_as(&fs, "file", "raid1").await;
        write(&fs, ino, 0, &pattern(2 << 20, 1)).await;
        fs.sync().await.expect("synced");
        let places = fs.places(ino).await.expect("known");
        let lost = places[0].1.columns.iter().flatten().next().expect("a column").disk;
        let disk = fs.status().await.expect("known").disks.swap_remove(lost.into());
        let used = disk.data_bytes - disk.free_bytes;
        fs.fail_disk(lost).await.expect("out of service");
        for _ in 0..3 {
            assert!(read_all(&fs, ino).await == pattern(2 << 20, 1));
        }
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.blocks * 4096, used, "each block once");
        assert!(read_all(&fs, ino).await == pattern(2 << 20, 1));
        assert_sound(&fs).await;
    });
}

#[test]
fn a_rebuild_begins_when_a_disk_is_lost() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 5])).await;
        fill(&fs).await;
        // What it held has no redundancy.
        fs.unlink(weft_fs::ROOT, b"none").await.expect("removed");
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "nothing is to be done");
        fs.fail_disk(2).await.expect("out of service");
        settle(&rt, &fs).await;
        assert_eq!(numbers(&fs).await, [0, 1, 3, 4]);
        let ended = ended.take();
        let [(Job::Rebuild, Ok(JobReport::Moved(report)))] = &ended[..] else {
            panic!("{ended:?}")
        };
        assert_eq!((&report.removed_disks[..], report.blocks > 0), (&[2][..], true));
        assert_sound(&fs).await;
    });
}

#[test]
fn what_lacks_disks_is_tried_again_when_one_joins() {
    run(|rt| async move {
        let disks = ram(&[24; 4]);
        let fs = made(&rt, &disks[..3]).await;
        let ino = make_as(&fs, "file", "rs:2+1").await;
        write(&fs, ino, 0, &pattern(300_000, 1)).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(2).await.expect("out of service");
        let ended = kept(&fs);
        rt.sleep(60 * SECOND).await;
        let count = ended.borrow().len();
        assert_eq!(count, 1, "not again and again: {ended:?}");
        assert!(
            matches!(&ended.borrow()[0].1, Ok(JobReport::Moved(RebuildReport { waiting, .. })) if waiting.len() == 1)
        );
        rt.sleep(1000 * SECOND).await;
        assert_eq!(ended.borrow().len(), 2, "room may have come");
        fs.add_disk(disks[3].clone(), false).await.expect("added");
        settle(&rt, &fs).await;
        assert_eq!(jobs(&ended), [Job::Rebuild; 3]);
        assert_eq!(numbers(&fs).await, [0, 1, 3]);
        assert_sound(&fs).await;
    });
}

/// Files that are laid out anew wait while what a lost disk held is rebuilt.
#[test]
fn a_rebuild_goes_first() {
    run(|rt| async move {
        let fs = in_small_steps(&rt).await;
        let ended = kept(&fs);
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(BYTES, 1)).await;
        let job = rt.spawn(begin_set(&fs, &[ino], REDUNDANCY).await);
        rt.yield_now().await;
        fs.fail_disk(1).await.expect("out of service");
        let outcome = job.await;
        assert!(matches!(outcome, Err(FsError::GivenWay)), "{outcome:?}");
        assert!(!has_two_copies(&fs, ino).await);
        settle(&rt, &fs).await;
        assert_eq!(jobs(&ended), [Job::Rebuild, Job::Set], "{ended:?}");
        assert!(has_two_copies(&fs, ino).await && read_all(&fs, ino).await == pattern(BYTES, 1));
        assert_eq!(numbers(&fs).await, [0, 2, 3, 4]);
        assert_sound(&fs).await;
    });
}

#[test]
fn a_disk_that_was_leaving_leaves_after_a_crash() {
    let moments = moments(5, |fs, _| async move {
        fs.remove_disk(1).await.expect("removed");
    });
    let mut interrupted = 0;
    for (n, media) in moments.iter().enumerate().step_by(5) {
        let media: Vec<Medium> = left_of_all(leave(n / 5), media);
        let had_begun = Rc::new(RefCell::new(false));
        let result = had_begun.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n / 5));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks, &what).await;
            let before = fs.status().await.expect("known").disks;
            let is_leaving = before.iter().any(|disk| disk.number == 1 && disk.leaving);
            *result.borrow_mut() = is_leaving;
            let ended = kept(&fs);
            settle(&rt, &fs).await;
            assert_eq!(jobs(&ended), vec![Job::Remove(1); usize::from(is_leaving)], "{what}");
            assert!(!is_leaving || numbers(&fs).await == [0, 2, 3, 4], "{what}");
            assert_filled(&fs, &what).await;
        });
        interrupted += usize::from(*had_begun.borrow());
    }
    // Before it had begun it has not; and the last steps are of a disk that has left.
    assert!(interrupted * 5 > moments.len() / 2, "{interrupted} of {} / 5", moments.len());
}

/// A disk that cannot leave any more stays.
#[test]
fn a_disk_that_was_leaving_stays_if_others_cannot_take_its_place() {
    let moments = moments(5, |fs, _| async move {
        fs.remove_disk(1).await.expect("removed");
    });
    let media = moments[moments.len() / 2].clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let fs = mounted(&rt, &disks, "half way").await;
        assert!(fs.status().await.expect("known").disks[1].leaving);
        set(&fs, weft_fs::ROOT, "rs:4+1").await.expect("set");
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert_eq!(jobs(&ended), [Job::Remove(1)]);
        assert!(matches!(ended.borrow()[0].1, Err(FsError::Invalid(_))), "{ended:?}");
        assert!(!fs.status().await.expect("known").disks[1].leaving);
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks[..5])).await;
        assert!(!fs.status().await.expect("known").disks[1].leaving);
        assert_filled(&fs, "stayed").await;
    });
}

/// Some get their redundancy with the others, or after them; none is laid out in part for good.
#[test]
fn files_that_wait_are_laid_out_after_a_crash() {
    let moments = moments(5, |fs, _| async move {
        let inos = [find(&fs, "none").await, find(&fs, "auto").await];
        begin_set(&fs, &inos, REDUNDANCY).await.await.expect("room");
        fs.sync().await.expect("synced");
    });
    let mut waited = 0;
    for (n, media) in moments.iter().enumerate() {
        let media: Vec<Medium> = left_of_all(leave(n), media);
        let has_waited = Rc::new(RefCell::new(false));
        let result = has_waited.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks[..5], &what).await;
            let ended = kept(&fs);
            settle(&rt, &fs).await;
            *result.borrow_mut() = jobs(&ended) == [Job::Set];
            for (n, name) in FILES.iter().enumerate().take(2) {
                let ino = find(&fs, name).await;
                let wants = fs.attr(ino).await.expect("known").redundancy == REDUNDANCY;
                assert!(wants == has_two_copies(&fs, ino).await, "{what}: {name}");
                assert!(read_all(&fs, ino).await == pattern(300_000, n as u64), "{what}: {name}");
            }
            assert_sound(&fs).await;
        });
        waited += usize::from(*has_waited.borrow());
    }
    assert!(waited > 10, "{waited} of {}", moments.len());
}

/// From when it is acknowledged on, a crash does not forget it.
#[test]
fn what_files_are_to_have_is_durable_when_the_job_has_begun() {
    let media = Rc::new(RefCell::new(Vec::new()));
    let result = media.clone();
    run(move |rt| async move {
        let disks = blank(&rt, 4);
        let fs = made(&rt, &all(&disks)).await;
        fill(&fs).await;
        let inos = [find(&fs, "none").await, find(&fs, "auto").await];
        fs.want_redundancy(&inos, REDUNDANCY).await.expect("set");
        result.borrow_mut().extend(left_on(&disks, Leave::Nothing));
    });
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media.take());
        let fs = mount(&rt, &all(&disks)).await;
        kept(&fs);
        settle(&rt, &fs).await;
        for name in ["none", "auto"] {
            assert!(has_two_copies(&fs, find(&fs, name).await).await, "{name}");
        }
        assert_filled(&fs, "laid out").await;
    });
}

#[test]
fn files_wait_for_room() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 3])).await;
        let (ino, other) =
            (make_as(&fs, "file", "none").await, make_as(&fs, "other", "none").await);
        let blocks = fs.free_bytes("none".parse().expect("known")) / BLOCK * 9 / 20;
        for block in 0..blocks {
            write(&fs, ino, block * BLOCK, &pattern(BLOCK as usize, 1)).await;
            write(&fs, other, block * BLOCK, &pattern(BLOCK as usize, 1)).await;
        }
        fs.sync().await.expect("synced");
        let job = begin_set(&fs, &[ino], REDUNDANCY).await.await;
        assert!(matches!(job, Err(FsError::NoSpace)), "{job:?}");
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(!has_two_copies(&fs, ino).await);
        fs.unlink(weft_fs::ROOT, b"other").await.expect("removed");
        rt.sleep(1000 * SECOND).await;
        assert_eq!(jobs(&ended), [Job::Set; 2]);
        assert!(has_two_copies(&fs, ino).await);
        assert_sound(&fs).await;
    });
}

#[test]
fn what_is_set_while_files_are_laid_out_does_not_wait_long() {
    run(|rt| async move {
        let fs = in_small_steps(&rt).await;
        let inos = [make_as(&fs, "first", "raid5").await, make_as(&fs, "second", "raid5").await];
        for ino in inos {
            write(&fs, ino, 0, &pattern(BYTES, ino)).await;
        }
        fs.sync().await.expect("synced");
        let ended = kept(&fs);
        fs.want_redundancy(&inos[1..], REDUNDANCY).await.expect("set");
        while fs.status().await.expect("known").job.is_none() {
            rt.sleep(SECOND / 1000).await;
        }
        // The job is behind this one already.
        fs.want_redundancy(&inos[..1], REDUNDANCY).await.expect("set");
        settle(&rt, &fs).await;
        for ino in inos {
            assert!(has_two_copies(&fs, ino).await, "{ended:?}");
            assert!(read_all(&fs, ino).await == pattern(BYTES, ino));
        }
        assert_sound(&fs).await;
    });
}

/// Files that are read are tried first, and again with the rest.
#[test]
fn the_progress_of_a_rebuild_stays_below_all_of_it() {
    run(|rt| async move {
        let disks = all(&holding(&rt, &Power::new(), 48 << 20, &vec![Medium::new(512); 3]));
        let fs = with_few_pages(&rt, &disks).await;
        // Of three, the lost disk has a copy of one at least.
        for name in ["one", "two", "three"] {
            let mirrored = make_as(&fs, name, "raid1").await;
            write(&fs, mirrored, 0, &pattern(2 << 20, 1)).await;
            fs.sync().await.expect("synced");
        }
        let wide = make_as(&fs, "wide", "rs:2+1").await;
        write(&fs, wide, 0, &pattern(8 << 20, 2)).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(2).await.expect("out of service");
        // Two disks are too few for it.
        for _ in 0..3 {
            assert!(read_all(&fs, wide).await == pattern(8 << 20, 2));
        }
        let rebuild = rt.spawn(fs.begin_job(Job::Rebuild).expect("nothing else runs"));
        let mut seen = 0;
        while let Some(job) = fs.status().await.expect("known").job {
            assert!(job.done_blocks <= job.total_blocks, "{job:?}");
            seen = seen.max(job.done_blocks);
            rt.sleep(SECOND / 100_000).await;
        }
        assert!(seen > 0, "it was seen to run");
        let Ok(JobReport::Moved(report)) = rebuild.await else { panic!("rebuilt") };
        assert_eq!(report.waiting.into_iter().collect::<Vec<_>>(), [wide]);
    });
}

/// Copies of mirrored files go to the disks that have none of them, which are the smaller ones.
#[test]
fn a_rebuild_without_room_tells_so_at_its_start() {
    run(|rt| async move {
        let sizes = [96 << 20, 96 << 20, 40 << 20];
        let power = Power::new();
        let disk = |(n, size): (usize, &u64)| {
            TestDisk::new(&rt, &power, n, *size, 512, Medium::new(512)) as Rc<dyn Disk>
        };
        let disks: Vec<_> = sizes.iter().enumerate().map(disk).collect();
        let fs = with_few_pages(&rt, &disks).await;
        let told: Rc<RefCell<Vec<u64>>> = Rc::default();
        let tell = told.clone();
        fs.on_lack_of_room(move |bytes| tell.borrow_mut().push(bytes));
        let ino = make_as(&fs, "file", "raid1").await;
        write(&fs, ino, 0, &pattern(40 << 20, 1)).await;
        fs.sync().await.expect("synced");
        let free = fs.status().await.expect("known").disks[0].free_bytes;
        assert!(free > 24 << 20, "there is room, and not for a second copy");
        fs.fail_disk(1).await.expect("out of service");
        let rebuild = rt.spawn(fs.begin_job(Job::Rebuild).expect("nothing else runs"));
        while fs.status().await.expect("known").job.expect("it runs").lacking_blocks == 0 {
            rt.sleep(SECOND / 100_000).await;
        }
        let lacking = fs.status().await.expect("known").job.expect("it runs").lacking_blocks;
        assert!(lacking > 0 && lacking * BLOCK < 40 << 20, "{lacking}");
        assert_eq!(*told.borrow(), [lacking * BLOCK]);
        // One more disk is enough.
        let more = TestDisk::new(&rt, &power, 3, 96 << 20, 512, Medium::new(512));
        fs.add_disk(more, false).await.expect("added");
        let status = fs.status().await.expect("known").job;
        assert_eq!(status.map(|job| job.lacking_blocks), Some(0), "the rebuild goes on");
        let Ok(JobReport::Moved(report)) = rebuild.await else { panic!("rebuilt") };
        assert!(report.waiting.is_empty(), "{report:?}");
        assert_eq!(report.removed_disks, [1], "{report:?}");
        assert_eq!(told.borrow().len(), 1, "once");
        assert!(read_all(&fs, ino).await == pattern(40 << 20, 1));
        assert_sound(&fs).await;
    });
}
