//! Heavily overwritten extents are written to new places: without the log, in long runs, and
//! only if there is room.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::test_disks::left_on;
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{CreateOptions, Extent, Fs, FsError, Ino, MountOptions};
use weft_random::Rng;
use weft_rt::Rt;

const BLOCKS: u64 = 600;

/// A new file system with this many bytes of memory for contents.
async fn made_with(rt: &Rt, disks: &[Rc<dyn Disk>], cache_bytes: u64) -> Fs {
    weft_fs::create(rt, disks, &options()).await.expect("created");
    let options = MountOptions { cache_bytes, ..mounting() };
    Fs::mount(rt, disks, options).await.expect("mounted")
}

/// A file system with room for much that is dirty.
async fn roomy(rt: &Rt, disks: usize) -> Fs {
    made_with(rt, &ram(&vec![48; disks]), 16 << 20).await
}

/// Overwrites `count` random blocks of a hundred, and makes them durable.
async fn overwrite(fs: &Fs, ino: Ino, bytes: &mut [u8], of_hundred: u64, version: u64) {
    let mut rng = Rng::new(version);
    for block in 0..bytes.len() as u64 / BLOCK {
        if rng.chance(of_hundred) {
            let (at, new) = ((block * BLOCK) as usize, pattern(BLOCK as usize, version));
            bytes[at..at + new.len()].copy_from_slice(&new);
            write(fs, ino, block * BLOCK, &new).await;
        }
    }
    fs.fsync(ino).await.expect("synced");
}

/// Where each block of a file lies.
fn places(records: &[(u64, Extent)]) -> BTreeSet<(u16, u64)> {
    let columns = records.iter().flat_map(|(_, record)| record.columns.iter().flatten());
    columns
        .flat_map(|of| (0..of.sums.len() as u64).map(|line| (of.disk, of.start + line)))
        .collect()
}

async fn out_of_place_blocks(fs: &Fs) -> u64 {
    fs.status().await.expect("known").counts.out_of_place_blocks
}

async fn free_bytes(fs: &Fs) -> u64 {
    fs.status().await.expect("known").disks.iter().map(|disk| disk.free_bytes).sum()
}

#[test]
fn much_goes_to_new_places_and_little_stays_in_place() {
    for redundancy in ["auto", "raid6", "rs:3+2", "raid1", "raid0", "none"] {
        run(move |rt| async move {
            let fs = roomy(&rt, 5).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let mut bytes = pattern((BLOCKS * BLOCK) as usize, 1);
            write(&fs, ino, 0, &bytes).await;
            fs.sync().await.expect("synced");
            let (at_first, free) =
                (places(&fs.places(ino).await.expect("known")), free_bytes(&fs).await);
            overwrite(&fs, ino, &mut bytes, 4, 2).await;
            assert_eq!(places(&fs.places(ino).await.expect("known")), at_first, "{redundancy}");
            overwrite(&fs, ino, &mut bytes, 90, 3).await;
            let records = fs.places(ino).await.expect("known");
            let now = places(&records);
            // Without parity there is little to save.
            if !["raid1", "raid0", "none"].contains(&redundancy) {
                assert!(now.is_disjoint(&at_first), "{redundancy}");
                assert!(out_of_place_blocks(&fs).await >= BLOCKS, "{redundancy}");
            }
            // It is as long as it was, in runs as long as records may be.
            assert_eq!((now.len(), free_bytes(&fs).await), (at_first.len(), free), "{redundancy}");
            assert!(records.len() as u64 <= BLOCKS / 64 + 1, "{redundancy}: {}", records.len());
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            assert_sound(&fs).await;
            // Few blocks go to the log with their contents.
            let before = out_of_place_blocks(&fs).await;
            write(&fs, ino, 0, &pattern(64 * BLOCK as usize, 4)).await;
            fs.fsync(ino).await.expect("synced");
            assert_eq!(out_of_place_blocks(&fs).await, before, "{redundancy}");
        });
    }
}

/// What has a place can be overwritten, however full the disks are.
#[test]
fn on_full_disks_blocks_are_overwritten_in_place() {
    run(|rt| async move {
        let fs = roomy(&rt, 4).await;
        let ino = make(&fs, "file").await;
        let mut bytes = pattern((BLOCKS * BLOCK) as usize, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let filler = make(&fs, "filler").await;
        for step in [1 << 20, 1 << 16, 1 << 12] {
            let mut end = fs.attr(filler).await.expect("there").size;
            loop {
                match fs.allocate(filler, end, step, false).await {
                    Ok(()) => end += step,
                    Err(FsError::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        fs.sync().await.expect("synced");
        let at_first = places(&fs.places(ino).await.expect("known"));
        for (version, of_hundred) in [(2, 100), (3, 70), (4, 100)] {
            overwrite(&fs, ino, &mut bytes, of_hundred, version).await;
            assert!(read_all(&fs, ino).await == bytes);
        }
        assert_eq!(places(&fs.places(ino).await.expect("known")), at_first);
        // With some room there are new places for a part, and the rest stays.
        fs.unlink(weft_fs::ROOT, b"filler").await.expect("removed");
        fs.sync().await.expect("synced");
        overwrite(&fs, ino, &mut bytes, 80, 5).await;
        assert!(places(&fs.places(ino).await.expect("known")).is_disjoint(&at_first));
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

/// What is read of a record on the way is checked, and comes from redundancy if a disk is lost.
#[test]
fn with_a_lost_disk_lines_become_whole_at_new_places() {
    run(|rt| async move {
        let fs = roomy(&rt, 6).await;
        let ino = make_as(&fs, "file", "rs:3+2").await;
        let mut bytes = pattern((BLOCKS * BLOCK) as usize, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(2).await.expect("out of service");
        overwrite(&fs, ino, &mut bytes, 75, 2).await;
        let records = fs.places(ino).await.expect("known");
        let on_lost = places(&records).iter().filter(|(disk, _)| *disk == 2).count();
        assert_eq!(on_lost, 0);
        assert!(read_all(&fs, ino).await == bytes);
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!((report.blocks, report.removed_disks), (0, vec![2]));
        assert_sound(&fs).await;
    });
}

/// The metadata names the old places until a commit. Without one, so much is written that the disks
/// would have to hold something else there, if they were free; then the power fails.
#[test]
fn old_places_stay_as_they_are_until_a_commit() {
    run(|rt| async move {
        let held = holding(&rt, &Power::new(), 40 << 20, &vec![Medium::new(512); 4]);
        let disks = all(&held);
        let fs = made_with(&rt, &disks, 2 << 20).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let contents = |version| pattern(BLOCK as usize, version);
        let versions = 1..=60;
        for version in versions.clone() {
            write(&fs, ino, 0, &contents(version).repeat(BLOCKS as usize)).await;
            if version == 1 {
                fs.sync().await.expect("synced");
            }
        }
        let overwritten = out_of_place_blocks(&fs).await;
        assert!(overwritten > 20 * BLOCKS, "{overwritten} blocks");
        let media = left_on(&held, Leave::All);
        drop(fs);
        let fs = mount(&rt, &all(&holding(&rt, &Power::new(), 40 << 20, &media))).await;
        let found = read_all(&fs, find(&fs, "file").await).await;
        let versions: Vec<Vec<u8>> = versions.map(contents).collect();
        for (n, block) in found.chunks(BLOCK as usize).enumerate() {
            assert!(versions.iter().any(|version| version == block), "block {n}");
        }
        assert_sound(&fs).await;
    });
}

/// Blocks may be written to the cache while their record is on its way to other places.
#[test]
fn blocks_written_meanwhile_are_not_lost() {
    for seed in 0..4 {
        run(move |rt| async move {
            let media = vec![Medium::new(512); 4];
            let disks = holding(&rt, &Power::new(), 40 << 20, &media);
            let disks = all(&disks);
            let fs = made_with(&rt, &disks, 2 << 20).await;
            let ino = make(&fs, "file").await;
            let mut bytes = pattern((BLOCKS * BLOCK) as usize, 1);
            write(&fs, ino, 0, &bytes).await;
            fs.sync().await.expect("synced");
            let mut rng = Rng::new(seed);
            for n in 0..60 {
                // Many at once, in one part of the file.
                let from = rng.below(BLOCKS - 100);
                for _ in 0..70 {
                    let block = from + rng.below(100);
                    let (at, new) =
                        ((block * BLOCK) as usize, pattern(BLOCK as usize, rng.next_u64()));
                    bytes[at..at + new.len()].copy_from_slice(&new);
                    write(&fs, ino, block * BLOCK, &new).await;
                }
                if n % 7 == 0 {
                    fs.fsync(ino).await.expect("synced");
                }
                rt.sleep(rng.below(200_000)).await;
            }
            assert!(out_of_place_blocks(&fs).await > 0);
            assert!(read_all(&fs, ino).await == bytes);
            fs.unmount().await.expect("unmounted");
            let fs = mount(&rt, &disks).await;
            assert!(read_all(&fs, ino).await == bytes, "mounted again");
            assert_sound(&fs).await;
        });
    }
}

/// They lie between blocks that wait, so the disks pass them in any case.
#[test]
fn blocks_that_are_written_while_others_around_them_are_flushed_go_along() {
    run(|rt| async move {
        let disks = all(&holding(&rt, &Power::new(), 96 << 20, &vec![Medium::new(512); 4]));
        // The metadata has room for a record of each block.
        let roomy = CreateOptions { slice_bytes: Some(48 << 20), ..options() };
        weft_fs::create(&rt, &disks, &roomy).await.expect("created");
        let options = MountOptions { cache_bytes: 128 << 20, ..mounting() };
        let fs = Fs::mount(&rt, &disks, options).await.expect("mounted");
        let ino = make_as(&fs, "file", "raid0").await;
        let blocks = 10_000;
        let mut bytes = pattern((blocks * BLOCK) as usize, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let mut renew = async |version, of: std::ops::Range<u64>| {
            for block in of.step_by(2) {
                let (at, new) = ((block * BLOCK) as usize, pattern(BLOCK as usize, version));
                bytes[at..at + new.len()].copy_from_slice(&new);
                write(&fs, ino, block * BLOCK, &new).await;
            }
        };
        // They take two steps.
        renew(2, 0..blocks).await;
        let (flushing, flushed) = (fs.clone(), Rc::new(std::cell::Cell::new(false)));
        let ended = flushed.clone();
        let flush = rt.spawn(async move {
            flushing.fsync(ino).await.expect("synced");
            ended.set(true);
        });
        rt.sleep(1).await;
        renew(3, 9001..9100).await;
        assert!(!flushed.get(), "the first step is not over");
        flush.await;
        assert_eq!(fs.status().await.expect("known").dirty_bytes, 0);
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}
