//! Old contents at hand: blocks that are overwritten again and again need no reads, in bounded
//! memory, and what is at hand is never older than what is on the disks.

use std::rc::Rc;

use crate::common::disk::{Medium, Power, TestDisk, holding};
use crate::common::model::Pair;
use crate::common::test_disks::on_test_disks;
use crate::common::*;
use weft_fs::{Fs, Ino, MountOptions};
use weft_random::Rng;

/// Where the data blocks of a disk begin.
const DATA_AT: u64 = (64 << 10) + (8 << 20);

/// Blocks of data that were read from the disks so far.
fn reads(disks: &[Rc<TestDisk>]) -> u64 {
    let of = |disk: &Rc<TestDisk>| {
        let reads = disk.reads.borrow();
        let data = reads.iter().filter(|(offset, _)| *offset >= DATA_AT);
        data.map(|(_, len)| len / BLOCK).sum::<u64>()
    };
    disks.iter().map(of).sum()
}

/// Overwrites random blocks of some that are hot, with fsync: two of each eight, of 80.
async fn overwrite_hot(fs: &Fs, ino: Ino, rng: &mut Rng, times: u64, bytes: &mut [u8]) {
    for n in 0..times {
        let block = rng.below(10) * 8 + rng.below(2);
        let at = (block * BLOCK) as usize;
        let new = pattern(BLOCK as usize, 1000 + n);
        bytes[at..at + new.len()].copy_from_slice(&new);
        write(fs, ino, at as u64, &new).await;
        fs.fsync(ino).await.expect("synced");
    }
}

#[test]
fn overwriting_hot_blocks_reads_nothing() {
    for redundancy in ["raid5", "raid6", "rs:4+2"] {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 6).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let mut bytes = pattern(80 * BLOCK as usize, 1);
            write(&fs, ino, 0, &bytes).await;
            fs.fsync(ino).await.expect("synced");
            let mut rng = Rng::new(1);
            // What was written lately is at hand.
            let before = reads(&disks);
            overwrite_hot(&fs, ino, &mut rng, 50, &mut bytes).await;
            assert_eq!(reads(&disks), before, "{redundancy}");
            // After a mount nothing is, until it was read.
            fs.unmount().await.expect("unmounted");
            let fs = mount(&rt, &all(&disks)).await;
            overwrite_hot(&fs, ino, &mut rng, 100, &mut bytes).await;
            let before = reads(&disks);
            let counts = fs.status().await.expect("known").at_hand;
            assert!(counts.misses > 0, "{redundancy}: {counts:?}");
            overwrite_hot(&fs, ino, &mut rng, 50, &mut bytes).await;
            assert_eq!(reads(&disks), before, "{redundancy}");
            let now = fs.status().await.expect("known").at_hand;
            assert_eq!((now.misses, now.wrong), (counts.misses, 0), "{redundancy}");
            assert!(now.hits >= counts.hits + 100, "{redundancy}: {counts:?}, {now:?}");
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            assert_sound(&fs).await;
        });
    }
}

/// Files that were written in order, and then are overwritten here and there: as far as memory is
/// spare, their data is at hand.
#[test]
fn data_of_long_runs_is_at_hand_while_memory_is_spare() {
    const BYTES: u64 = 8 << 20;
    const BLOCKS: u64 = 600;
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), 64 << 20, &vec![Medium::new(512); 4]);
        weft_fs::create(&rt, &all(&disks), &options()).await.expect("created");
        let mounting = MountOptions { cache_bytes: BYTES, ..mounting() };
        let fs = Fs::mount(&rt, &all(&disks), mounting).await.expect("mounted");
        let at_hand = async || fs.status().await.expect("known").at_hand_bytes / BLOCK;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern((BLOCKS * BLOCK) as usize, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.fsync(ino).await.expect("synced");
        assert_eq!(at_hand().await, BLOCKS, "data, and no parity");
        let before = reads(&disks);
        // Of each record more than half: new places, of which the data is at hand as well.
        for version in 2..5 {
            for block in (0..BLOCKS).filter(|block| (block + version) % 5 < 3) {
                let (at, new) = ((block * BLOCK) as usize, pattern(BLOCK as usize, version));
                bytes[at..at + new.len()].copy_from_slice(&new);
                write(&fs, ino, block * BLOCK, &new).await;
            }
            fs.fsync(ino).await.expect("synced");
            assert_eq!(at_hand().await, BLOCKS, "what is at the old places is of no use");
        }
        let afresh = fs.status().await.expect("known").counts.out_of_place_blocks;
        assert!(afresh >= 3 * BLOCKS, "{afresh}");
        assert_eq!(reads(&disks), before);
        let other = make_as(&fs, "other", "raid5").await;
        for at in 0..8 {
            write(&fs, other, at << 20, &pattern(1 << 20, 9)).await;
        }
        fs.fsync(other).await.expect("synced");
        let pages = at_hand().await * BLOCK;
        assert!(pages > BYTES / 3 && pages < BYTES * 2 / 3, "{pages}");
        assert_sound(&fs).await;
    });
}

#[test]
fn what_a_user_has_read_is_at_hand_and_a_long_read_goes_past() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 4).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern(128 * BLOCK as usize, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        assert!(read_all(&fs, ino).await == bytes);
        assert_eq!(fs.status().await.expect("known").at_hand_bytes, 0);
        // All of a line but one block: the parity follows from these.
        for block in 1..3 {
            fs.read(ino, block * BLOCK, BLOCK as usize).await.expect("read");
        }
        let before = reads(&disks);
        let new = pattern(BLOCK as usize, 2);
        write(&fs, ino, 0, &new).await;
        bytes[..new.len()].copy_from_slice(&new);
        fs.fsync(ino).await.expect("synced");
        assert_eq!(reads(&disks), before);
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

/// Whatever happens to files and disks, blocks at hand are as those on the disks: none is wrong,
/// and parity computed from them fits.
#[test]
fn what_is_at_hand_stays_right_and_within_its_memory() {
    const BYTES: u64 = 512 << 10;
    for seed in 0..12 {
        run(move |rt| async move {
            let disks = ram(&[40, 40, 32, 32, 32, 24]);
            weft_fs::create(&rt, &disks, &options()).await.expect("created");
            let mounting = MountOptions { cache_bytes: BYTES, ..mounting() };
            let fs = Fs::mount(&rt, &disks, mounting).await.expect("mounted");
            let mut pair = Pair::new(fs, seed, &["auto", "raid5", "raid6", "rs:2+2"]);
            let mut hits = 0;
            for lost in [None, Some(1), Some(4)] {
                if let Some(lost) = lost {
                    pair.fs.fail_disk(lost).await.expect("out of service");
                }
                for n in 0..150 {
                    match n % 3 {
                        0 => pair.step().await,
                        1 => pair.overwrite().await,
                        _ => pair.fsync().await,
                    }
                    let status = pair.fs.status().await.expect("known");
                    assert!(status.dirty_bytes + status.at_hand_bytes <= BYTES, "{status:?}");
                    assert_eq!(status.at_hand.wrong, 0, "seed {seed}, step {n}");
                    hits = status.at_hand.hits;
                }
                if lost.is_some() {
                    pair.fs.rebuild().await.expect("rebuilt");
                }
                pair.fs.scrub().await.expect("scrubbed");
                pair.compare().await;
                assert_sound(&pair.fs).await;
            }
            assert!(hits > 20, "seed {seed}: {hits} blocks were at hand");
        });
    }
}

#[test]
fn free_blocks_are_not_at_hand() {
    run(|rt| async move {
        let disks = ram(&[32; 5]);
        let fs = made(&rt, &disks).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let at_hand = async || fs.status().await.expect("known").at_hand_bytes / BLOCK;
        write(&fs, ino, 0, &pattern(64 * BLOCK as usize, 1)).await;
        fs.fsync(ino).await.expect("synced");
        assert_eq!(at_hand().await, 80, "data and parity of 16 lines");
        let shorter = weft_fs::SetAttr { size: Some(32 * BLOCK), ..Default::default() };
        fs.set_attr(ino, shorter).await.expect("cut");
        fs.sync().await.expect("synced");
        assert_eq!(at_hand().await, 40, "of a file that was cut");
        set(&fs, ino, "raid1").await.expect("laid out anew");
        fs.sync().await.expect("synced");
        assert_eq!(at_hand().await, 0, "of a file that lies elsewhere, and needs no old contents");
        set(&fs, ino, "raid5").await.expect("laid out anew");
        fs.sync().await.expect("synced");
        assert_eq!(at_hand().await, 40);
        fs.unlink(weft_fs::ROOT, b"file").await.expect("removed");
        fs.sync().await.expect("synced");
        assert_eq!(at_hand().await, 0, "of a file that is gone");
    });
}

/// A repair rewrites a block: what was at hand of it goes.
#[test]
fn repaired_blocks_are_not_at_hand() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 5).await;
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(8 * BLOCK as usize, 1)).await;
        fs.fsync(ino).await.expect("synced");
        let before = fs.status().await.expect("known").at_hand_bytes;
        let column = fs.places(ino).await.expect("known")[0].1.columns[1].clone().expect("active");
        let at = DATA_AT + column.start * BLOCK;
        disks[usize::from(column.disk)].medium.borrow_mut().poke(at + 512, &[0x5a; 64]);
        assert_eq!(fs.scrub().await.expect("scrubbed").repaired_blocks, 1);
        assert_eq!(fs.status().await.expect("known").at_hand_bytes, before - BLOCK);
        assert_sound(&fs).await;
    });
}
