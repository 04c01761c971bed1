//! What is stored is spread over disks that have more room: how alike they become, while files are
//! used, with crashes and lost disks, and when it is interrupted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::jobs::*;
use crate::common::moments::*;
use crate::common::test_disks::{blank, left_on};
use crate::common::*;
use futures_util::future::join;
use weft_disk::Disk;
use weft_fs::{BalanceReport, Fs, FsError, Job, JobReport, ROOT};
use weft_random::Rng;
use weft_rt::{Frozen, MICROSECOND, Rt};

async fn balance(fs: &Fs) -> BalanceReport {
    match fs.begin_job(Job::Balance).expect("nothing else runs").await.expect("balanced") {
        JobReport::Balanced(report) => report,
        other => panic!("{other:?}"),
    }
}

/// Free blocks of each disk.
async fn free(fs: &Fs) -> Vec<u64> {
    let disks = fs.status().await.expect("known").disks;
    disks.iter().map(|disk| disk.free_bytes / BLOCK).collect()
}

/// Disks get new lines in the same way, or differ by less than a column of the longest kind on both
/// sides.
async fn assert_alike(fs: &Fs) {
    let free = free(fs).await;
    let (most, least) = (free.iter().max().expect("disks"), free.iter().min().expect("disks"));
    assert!(most - least <= (most / 16).max(128), "{free:?}");
}

/// Writes files of about this size until there is no room. Returns how many there are.
async fn fill_with(fs: &Fs, redundancy: &str, blocks: u64) -> u64 {
    for n in 0.. {
        let ino = make_as(fs, &format!("{redundancy}{n}"), redundancy).await;
        let bytes = pattern((blocks * BLOCK) as usize, n);
        let written = fs.write(ino, 0, Frozen::copy_from(&bytes)).await;
        if written.is_err() || fs.sync().await.is_err() {
            fs.unlink(ROOT, format!("{redundancy}{n}").as_bytes()).await.expect("removed");
            fs.sync().await.expect("the others are there");
            return n;
        }
    }
    unreachable!("disks are finite")
}

async fn assert_there(fs: &Fs, redundancy: &str, blocks: u64, count: u64) {
    for n in 0..count {
        let ino = find(fs, &format!("{redundancy}{n}")).await;
        assert!(read_all(fs, ino).await == pattern((blocks * BLOCK) as usize, n), "file {n}");
    }
}

/// Until then no mirrored file finds room: one disk with room is not enough for two copies.
#[test]
fn two_full_disks_and_one_that_joins_have_room_for_mirrors() {
    run(|rt| async move {
        let disks = ram(&[40, 40, 40]);
        let fs = made(&rt, &disks[..2]).await;
        let count = fill_with(&fs, "raid1", 100).await;
        assert!(free(&fs).await.iter().all(|free| *free < 110), "{:?}", free(&fs).await);
        fs.add_disk(disks[2].clone(), false).await.expect("added");
        let mirrored = "raid1".parse().expect("known");
        assert!(fs.free_bytes(mirrored) < 1 << 20);
        let report = balance(&fs).await;
        assert_eq!((report.damaged.len(), report.crowded.len()), (0, 0));
        assert_alike(&fs).await;
        let all: u64 = free(&fs).await.iter().sum();
        assert!(fs.free_bytes(mirrored) / BLOCK > all / 2 * 15 / 16, "room for two copies");
        let ino = make_as(&fs, "more", "raid1").await;
        write(&fs, ino, 0, &pattern(4 << 20, 77)).await;
        fs.sync().await.expect("room");
        assert_there(&fs, "raid1", 100, count).await;
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert_there(&fs, "raid1", 100, count).await;
        assert_alike(&fs).await;
    });
}

/// How many of the first columns of so many files could still move and make disks more alike by
/// much.
async fn moves_left(fs: &Fs, files: u64) -> usize {
    let free = free(fs).await;
    let mut left = 0;
    for n in 0..files {
        for (_, record) in fs.places(find(fs, &format!("file{n}")).await).await.expect("known") {
            let used: Vec<usize> =
                record.columns.iter().flatten().map(|column| usize::from(column.disk)).collect();
            let least = used.iter().map(|disk| free[*disk]).min().expect("active");
            let unused = (0..free.len()).filter(|disk| !used.contains(disk));
            let most = unused.map(|disk| free[disk]).max().unwrap_or(0);
            left += usize::from(most > least + (2 * record.lines).max(most / 16) + 64);
        }
    }
    left
}

/// Wide and narrow files, disks of several sizes, two that join.
#[test]
fn disks_of_all_sizes_become_alike_and_stay() {
    run(|rt| async move {
        let disks = ram(&[32, 32, 48, 40, 64, 24]);
        let fs = made(&rt, &disks[..4]).await;
        let mut rng = Rng::new(3);
        let kinds = ["auto", "none", "raid1", "raid6"];
        for n in 0..60_u64 {
            let ino = make_as(&fs, &format!("file{n}"), kinds[n as usize % 4]).await;
            let bytes = usize::try_from(1 + rng.below(900_000)).expect("small");
            write(&fs, ino, 0, &pattern(bytes, n)).await;
        }
        fs.sync().await.expect("synced");
        let rows = |fs: &Fs| {
            let fs = fs.clone();
            async move { fs.status().await.expect("known").inodes }
        };
        let before = rows(&fs).await;
        fs.add_disk(disks[4].clone(), false).await.expect("added");
        fs.add_disk(disks[5].clone(), false).await.expect("added");
        let (were, all) = (free(&fs).await, free(&fs).await.iter().sum::<u64>());
        let report = balance(&fs).await;
        assert!(report.blocks > 1000 && report.crowded.is_empty(), "{were:?} {report:?}");
        assert_eq!((free(&fs).await.iter().sum::<u64>(), rows(&fs).await), (all, before));
        // The smallest disk has little that could leave, and wide files have one column on the
        // largest.
        let now = free(&fs).await;
        let spread = |free: &[u64]| {
            free[..5].iter().max().expect("disks") - free[..5].iter().min().expect("disks")
        };
        assert!(2 * spread(&now) < spread(&were) + 64, "{were:?} {now:?}");
        assert!(moves_left(&fs, 60).await < 3);
        let again = balance(&fs).await;
        assert!(again.blocks * 100 < report.blocks, "little is left to do: {again:?}");
        assert_sound(&fs).await;
    });
}

/// Bytes of each of 20 files that are moved in several steps.
const USED_BYTES: u64 = 6 << 20;

#[test]
fn files_are_used_meanwhile() {
    run(|rt| async move {
        let disks = all(&holding(&rt, &Power::new(), 100 << 20, &vec![Medium::new(512); 5]));
        let fs = made(&rt, &disks[..3]).await;
        let mut files = Vec::new();
        for n in 0..20_u64 {
            let ino = make_as(&fs, &format!("file{n}"), ["auto", "raid1"][n as usize % 2]).await;
            let bytes = pattern(USED_BYTES as usize, n);
            write(&fs, ino, 0, &bytes).await;
            files.push((ino, bytes));
        }
        fs.sync().await.expect("synced");
        fs.add_disk(disks[3].clone(), false).await.expect("added");
        fs.add_disk(disks[4].clone(), false).await.expect("added");
        let has_ended = Rc::new(Cell::new(false));
        let ended = has_ended.clone();
        let job = async {
            let report = balance(&fs).await;
            ended.set(true);
            report
        };
        let mut rng = Rng::new(9);
        let mut meanwhile = 0;
        let uses = async {
            while !has_ended.get() {
                let (ino, bytes) = &mut files[rng.below(20) as usize];
                let at = rng.below(USED_BYTES - 20_000) as usize;
                let data = pattern(1 + rng.below(20_000) as usize, at as u64);
                write(&fs, *ino, at as u64, &data).await;
                bytes[at..at + data.len()].copy_from_slice(&data);
                let found = fs.read(*ino, at as u64 / 2, 9000).await.expect("read");
                assert!(*found == bytes[at / 2..at / 2 + 9000], "at {at}");
                if rng.chance(20) {
                    fs.fsync(*ino).await.expect("synced");
                }
                meanwhile += 1;
                rt.sleep(2 * MICROSECOND).await;
            }
        };
        let (report, ()) = join(job, uses).await;
        assert!(meanwhile > 5 && report.blocks > 1000, "{meanwhile} uses, {report:?}");
        for (ino, bytes) in &files {
            assert!(read_all(&fs, *ino).await == *bytes);
        }
        assert_alike(&fs).await;
        assert_sound(&fs).await;
    });
}

#[test]
fn a_balance_goes_on_after_a_crash_at_each_step() {
    let moments = moments(4, |fs, disks| async move {
        for name in ["more", "most"] {
            let ino = make_as(&fs, name, "raid1").await;
            write(&fs, ino, 0, &pattern(2 << 20, 1)).await;
        }
        fs.sync().await.expect("synced");
        fs.add_disk(disks[4].clone(), false).await.expect("added");
        balance(&fs).await;
        fs.sync().await.expect("synced");
    });
    let mut counts = [0; 2];
    for (n, media) in moments.iter().enumerate() {
        let media: Vec<Medium> = media.iter().map(|medium| leave(n).of(medium)).collect();
        let goes_on = Rc::new(Cell::new(false));
        let result = goes_on.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks, &what).await;
            assert_filled(&fs, &what).await;
            let ended = kept(&fs);
            settle(&rt, &fs).await;
            result.set(jobs(&ended) == [Job::Balance]);
            assert!(result.get() || ended.borrow().is_empty(), "{what}: {ended:?}");
            assert!(ended.borrow().iter().all(|(_, ended)| ended.is_ok()), "{what}: {ended:?}");
            if result.get() {
                assert_alike(&fs).await;
            }
            assert_filled(&fs, &what).await;
            if numbers(&fs).await.len() == 5 {
                for name in ["more", "most"] {
                    let ino = find(&fs, name).await;
                    assert!(read_all(&fs, ino).await == pattern(2 << 20, 1), "{what}: {name}");
                }
            }
            fs.unmount().await.expect("unmounted");
            let fs = mounted(&rt, &disks, &what).await;
            let ended = kept(&fs);
            settle(&rt, &fs).await;
            assert!(ended.borrow().is_empty(), "{what}: it is done: {ended:?}");
        });
        counts[usize::from(goes_on.get())] += 1;
    }
    assert!(counts[0] > 20 && counts[1] > 25, "{counts:?}");
}

#[test]
fn a_disk_is_lost_meanwhile() {
    for (wait, number) in (0..60).flat_map(|n| [(n, 0), (n, 3)]) {
        run(move |rt| async move {
            let disks = blank(&rt, 5);
            let fs = made(&rt, &all(&disks[..3])).await;
            for name in ["raid1", "raid5"] {
                let ino = make_as(&fs, name, name).await;
                write(&fs, ino, 0, &pattern(2_000_000, 1)).await;
            }
            fs.sync().await.expect("synced");
            fs.add_disk(disks[3].clone(), false).await.expect("added");
            let ended = kept(&fs);
            let running = fs.begin_job(Job::Balance).expect("nothing else runs");
            let job = rt.spawn(running);
            rt.sleep(wait * wait * 4 * MICROSECOND).await;
            disks[number].faults.gone.set(true);
            let ended_so = job.await;
            assert!(matches!(ended_so, Ok(_) | Err(FsError::GivenWay)), "{ended_so:?}");
            let has_given_way = ended_so.is_err();
            // The loss shows when the disk is used next.
            let ino = make_as(&fs, "more", "raid1").await;
            write(&fs, ino, 0, &pattern(2_000_000, 1)).await;
            fs.sync().await.expect("room");
            settle(&rt, &fs).await;
            let done = jobs(&ended);
            if has_given_way {
                assert_eq!(done, [Job::Rebuild, Job::Balance], "{wait} {number}");
                assert_alike(&fs).await;
            }
            assert!(!numbers(&fs).await.contains(&(number as u16)) || done.is_empty());
            for name in ["raid1", "raid5", "more"] {
                assert!(read_all(&fs, find(&fs, name).await).await == pattern(2_000_000, 1));
            }
            assert_sound(&fs).await;
        });
    }
}

/// There is room on the emptier disk, and no two blocks of it in one piece.
#[test]
fn what_finds_no_room_in_one_piece_stays() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 32]);
        let fs = made(&rt, &disks[..2]).await;
        let count = fill_with(&fs, "raid1", 64).await;
        fs.add_disk(disks[2].clone(), false).await.expect("added");
        // Blocks of two files take turns there, and one of the files goes.
        let inos = [make_as(&fs, "a", "none").await, make_as(&fs, "b", "none").await];
        'full: loop {
            for ino in inos {
                let at = fs.attr(ino).await.expect("there").size;
                let bytes = Frozen::copy_from(&pattern(BLOCK as usize, 5));
                if fs.write(ino, at, bytes).await.is_err() || fs.sync().await.is_err() {
                    break 'full;
                }
            }
        }
        fs.unlink(ROOT, b"b").await.expect("removed");
        fs.sync().await.expect("synced");
        let before = free(&fs).await;
        let report = balance(&fs).await;
        assert!(!report.crowded.is_empty() && report.damaged.is_empty(), "{before:?} {report:?}");
        assert_there(&fs, "raid1", 64, count).await;
        assert_sound(&fs).await;
        // It is done all the same.
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
    });
}

/// MiB of a file that is moved in several steps.
const LARGE_MIB: u64 = 110;

async fn assert_large(fs: &Fs) {
    let ino = find(fs, "file").await;
    for part in 0..LARGE_MIB {
        let found = fs.read(ino, part << 20, 1 << 20).await.expect("read");
        assert!(*found == pattern(1 << 20, part), "part {part}");
    }
    assert_sound(fs).await;
}

/// Begins a balance of several steps, and waits until it has done one.
async fn half_balanced(
    rt: &Rt,
    fs: &Fs,
    disk: Rc<dyn Disk>,
) -> impl Future<Output = weft_fs::Result<JobReport>> + use<> {
    let ino = make_as(fs, "file", "raid5").await;
    for part in 0..LARGE_MIB {
        write(fs, ino, part << 20, &pattern(1 << 20, part)).await;
    }
    fs.sync().await.expect("synced");
    fs.add_disk(disk, false).await.expect("added");
    let job = rt.spawn(fs.begin_job(Job::Balance).expect("nothing else runs"));
    while fs.status().await.expect("known").job.expect("it runs so far").done_blocks == 0 {
        rt.sleep(10 * MICROSECOND).await;
    }
    let status = fs.status().await.expect("known").job.expect("it runs");
    assert!(status.job == Job::Balance && status.done_blocks < status.total_blocks, "{status:?}");
    job
}

#[test]
fn a_balance_that_is_cancelled_does_not_go_on() {
    let left = Rc::new(RefCell::new(Vec::new()));
    let after = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), 64 << 20, &vec![Medium::new(512); 5]);
        let fs = made(&rt, &all(&disks[..4])).await;
        let ended = kept(&fs);
        let job = half_balanced(&rt, &fs, disks[4].clone()).await;
        assert_eq!(fs.cancel().await.expect("cancelled"), Job::Balance);
        let outcome = job.await;
        assert!(matches!(outcome, Err(FsError::Cancelled)), "{outcome:?}");
        *after.borrow_mut() = left_on(&disks, Leave::Nothing);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
        assert_sound(&fs).await;
    });
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), 64 << 20, &left.borrow());
        let fs = mounted(&rt, &disks, "crashed").await;
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
        assert_large(&fs).await;
        balance(&fs).await;
        assert_alike(&fs).await;
        assert_large(&fs).await;
    });
}

#[test]
fn an_unmount_interrupts_a_balance_and_it_can_be_cancelled_then() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), 64 << 20, &vec![Medium::new(512); 5]);
        let fs = made(&rt, &all(&disks[..4])).await;
        let job = half_balanced(&rt, &fs, disks[4].clone()).await;
        fs.unmount().await.expect("unmounted");
        job.await.expect_err("unmounted");
        let media: Vec<Medium> = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
        let fs = mount(&rt, &all(&disks)).await;
        assert_eq!(fs.cancel().await.expect("it waits"), Job::Balance);
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
        drop(fs);
        let disks = holding(&rt, &Power::new(), 64 << 20, &media);
        let fs = mount(&rt, &all(&disks)).await;
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert_eq!(jobs(&ended), [Job::Balance]);
        assert_alike(&fs).await;
        assert_large(&fs).await;
    });
}
