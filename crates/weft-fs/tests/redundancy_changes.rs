//! Files that get another redundancy are used meanwhile.

use std::rc::Rc;

use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use futures_util::future::join;
use weft_fs::{Fs, FsError, Ino, Job, JobReport, MountOptions, Redundancy, SetReport};
use weft_random::Rng;

const BLOCKS: usize = 2000;

/// So few pages of metadata that each step has two records.
fn in_small_steps() -> MountOptions {
    MountOptions { meta_cache_bytes: 0, ..mounting() }
}

fn redundancy(name: &str) -> Redundancy {
    name.parse().expect("known")
}

/// All lines of a file have this redundancy, on so many disks.
async fn assert_has(fs: &Fs, ino: Ino, name: &str, disks: usize) {
    for (_, record) in fs.places(ino).await.expect("known") {
        assert_eq!(Some(record.coded), redundancy(name).coded(disks));
    }
}

#[test]
fn a_file_is_read_and_written_while_it_gets_another_redundancy() {
    run(|rt| async move {
        let power = Power::new();
        let disks = all(&holding(&rt, &power, 40 << 20, &vec![Medium::new(512); 4]));
        drop(made(&rt, &disks).await.unmount().await);
        let fs = Fs::mount(&rt, &disks, in_small_steps()).await.expect("mounted");
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern(BLOCKS * 4096, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let job = begin_set(&fs, &[ino], redundancy("raid1")).await;
        let other = fs.begin_job(Job::Set).map(drop);
        assert!(matches!(other, Err(FsError::Busy("set"))), "{other:?}");
        let ended = Rc::new(std::cell::Cell::new(false));
        let end = ended.clone();
        let job = async move {
            let report = job.await.expect("room");
            end.set(true);
            report
        };
        let mut rng = Rng::new(5);
        let mut meanwhile = 0;
        let uses = async {
            while !ended.get() {
                let at = usize::try_from(rng.below(BLOCKS as u64 * 4096 - 9000)).expect("small");
                let data =
                    pattern(usize::try_from(1 + rng.below(9000)).expect("small"), 2 + at as u64);
                write(&fs, ino, at as u64, &data).await;
                bytes[at..at + data.len()].copy_from_slice(&data);
                let found = fs.read(ino, at as u64 / 2, 9000).await.expect("read");
                assert!(*found == bytes[at / 2..at / 2 + 9000], "at {at}");
                let status = fs.status().await.expect("known").job;
                assert!(status.is_none_or(|job| job.job == Job::Set));
                meanwhile += u32::from(!ended.get());
                rt.yield_now().await;
            }
        };
        let (report, ()) = join(job, uses).await;
        let blocks = BLOCKS as u64;
        assert_eq!(report, JobReport::Set(SetReport { blocks, elsewhere_blocks: 0 }));
        assert!(meanwhile > 1, "{meanwhile} uses");
        assert!(read_all(&fs, ino).await == bytes);
        fs.sync().await.expect("synced");
        assert_has(&fs, ino, "raid1", 4).await;
        assert_sound(&fs).await;
    });
}

#[test]
fn a_file_that_is_deleted_or_set_again_meanwhile_is_left_alone() {
    run(|rt| async move {
        let disks = ram(&[40; 4]);
        drop(made(&rt, &disks).await.unmount().await);
        let fs = Fs::mount(&rt, &disks, in_small_steps()).await.expect("mounted");
        let (gone, again) =
            (make_as(&fs, "gone", "raid5").await, make_as(&fs, "again", "raid5").await);
        for ino in [gone, again] {
            write(&fs, ino, 0, &pattern(BLOCKS * 4096, ino)).await;
        }
        fs.sync().await.expect("synced");
        let first = begin_set(&fs, &[again, gone], redundancy("raid1")).await;
        let meanwhile = async {
            rt.yield_now().await;
            set(&fs, again, "raid6").await.expect("set");
            fs.unlink(weft_fs::ROOT, b"gone").await.expect("removed");
        };
        let (ended, ()) = join(first, meanwhile).await;
        assert!(matches!(ended, Ok(JobReport::Set(_)) | Err(FsError::NotFound)), "{ended:?}");
        assert_has(&fs, again, "raid6", 4).await;
        assert!(read_all(&fs, again).await == pattern(BLOCKS * 4096, again));
        assert_sound(&fs).await;
    });
}

/// What is replaced is free only after a commit: a file that takes most of the disks needs some.
#[test]
fn a_file_that_has_most_of_the_room_gets_another_redundancy() {
    run(|rt| async move {
        let disks = ram(&[40; 3]);
        let fs = made(&rt, &disks).await;
        let ino = make_as(&fs, "file", "none").await;
        let blocks = fs.free_bytes(redundancy("raid1")) / BLOCK * 17 / 20;
        let data = pattern(1 << 20, 3);
        for at in (0..blocks * BLOCK).step_by(1 << 20) {
            write(&fs, ino, at, &data).await;
        }
        fs.sync().await.expect("synced");
        set(&fs, ino, "raid1").await.expect("there is room for it");
        fs.sync().await.expect("synced");
        assert_has(&fs, ino, "raid1", 3).await;
        assert_sound(&fs).await;
    });
}
