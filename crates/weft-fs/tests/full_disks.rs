//! Full disks are told by the write that finds no room, whatever the redundancy is and however
//! different the disks are: what was taken finds its place.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_fs::{FsError, Ino, ROOT};
use weft_random::Rng;
use weft_rt::{Frozen, Rt};
use weft_testkit::for_seeds;

use crate::common::disk::{Leave, Medium, Power, TestDisk};
use crate::common::space::fill_up;
use crate::common::test_disks::left_on;
use crate::common::*;

#[test]
fn what_a_large_disk_alone_has_is_promised_to_no_line() {
    for redundancy in ["auto", "raid1", "raid6", "rs:2+1"] {
        run(move |rt| async move {
            let disks = ram(&[12, 20, 14, 200]);
            let fs = made(&rt, &disks).await;
            let room = fs.free_bytes(redundancy.parse().expect("known"));
            let ino = make_as(&fs, "file", redundancy).await;
            // One in which only every other block is written needs more.
            let sparse = make_as(&fs, "sparse", redundancy).await;
            for at in 0..64 {
                write(&fs, sparse, at * 2 * BLOCK, &pattern(BLOCK as usize, at)).await;
            }
            let held = fill_up(&fs, ino, 64 << 10).await;
            fs.sync().await.expect("all that was taken has its room");
            let rest = fill_up(&fs, sparse, BLOCK as usize).await;
            fs.sync().await.expect("and this as well");
            assert!(held.len() as u64 > room / 10 * 8, "{} of {room} for {redundancy}", held.len());
            assert_eq!(rest.len() % BLOCK as usize, 0);
            drop(fs);
            let fs = mount(&rt, &disks).await;
            assert!(read_all(&fs, ino).await == held, "{redundancy}");
            assert_sound(&fs).await;
        });
    }
}

/// A file and what was written to it: blocks, by their number.
type Written = BTreeMap<u64, u64>;

async fn write_one(
    fs: weft_fs::Fs,
    ino: Ino,
    (first, blocks, version): (u64, u64, u64),
) -> Option<(u64, u64, u64)> {
    let data: Vec<u8> = (first..first + blocks)
        .flat_map(|block| pattern(BLOCK as usize, version ^ block))
        .collect();
    match fs.write(ino, first * BLOCK, Frozen::copy_from(&data)).await {
        Ok(()) => Some((first, blocks, version)),
        Err(FsError::NoSpace) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn many_writers_at_once_are_promised_no_more_than_there_is() {
    for_seeds(0..12, |rng| {
        let seed = rng.next_u64();
        run(move |rt| async move {
            let mut rng = Rng::new(seed);
            let sizes: Vec<u64> = (0..3 + rng.below(4)).map(|_| 11 + rng.below(12)).collect();
            let disks = ram(&sizes);
            let fs = made_by(&rt, &disks, seed).await;
            let mut files: Vec<(Ino, Written)> = Vec::new();
            for n in 0..8 {
                let redundancy = ["auto", "none", "raid1", "raid5", "raid6"][n % 5];
                let coded = redundancy.parse::<weft_fs::Redundancy>().expect("known");
                let redundancy =
                    if coded.coded(disks.len()).is_some() { redundancy } else { "auto" };
                files.push((make_as(&fs, &format!("f{n}"), redundancy).await, Written::new()));
            }
            let (mut refused, mut version) = (0, 0);
            while refused < 60 {
                let asked: Vec<_> = files
                    .iter()
                    .map(|(ino, written)| {
                        version += 1 << 20;
                        let end = written.last_key_value().map_or(0, |(last, _)| last + 1);
                        let first = match rng.below(4) {
                            0 => end,
                            1 => end + rng.below(8),
                            _ => rng.below(end + 1),
                        };
                        let blocks = [1, 1, 3, 16][usize::try_from(rng.below(4)).expect("small")];
                        write_one(fs.clone(), *ino, (first, blocks, version))
                    })
                    .collect();
                for ((_, written), done) in files.iter_mut().zip(join_all(asked).await) {
                    match done {
                        Some((first, blocks, version)) => {
                            written.extend((first..first + blocks).map(|block| (block, version)));
                        }
                        None => refused += 1,
                    }
                }
                if rng.chance(5) {
                    let ino = files[usize::try_from(rng.below(8)).expect("small")].0;
                    fs.fsync(ino).await.expect("what was taken has its room");
                }
            }
            fs.sync().await.expect("what was taken has its room");
            drop(fs);
            let fs = mount(&rt, &disks).await;
            for (ino, written) in &files {
                let found = read_all(&fs, *ino).await;
                let blocks: Vec<&[u8]> = found.chunks(BLOCK as usize).collect();
                for (block, version) in written {
                    let expected = pattern(BLOCK as usize, version ^ block);
                    let block = usize::try_from(*block).expect("small");
                    assert!(blocks[block] == expected, "block {block} of {ino}, seed {seed}");
                }
            }
            assert_sound(&fs).await;
        });
    });
}

/// Disks of these sizes in MiB, with what a power cut left.
fn disks_of(rt: &Rt, sizes: &[u64], media: &[Medium]) -> Vec<Rc<TestDisk>> {
    let power = Power::new();
    let disk = |(n, (mib, medium)): (usize, (&u64, &Medium))| {
        TestDisk::new(rt, &power, n, mib << 20, 512, medium.clone())
    };
    sizes.iter().zip(media).enumerate().map(disk).collect()
}

#[test]
fn what_was_synced_on_full_fragmented_disks_survives_a_power_cut() {
    for_seeds(0..6, |rng| {
        let seed = rng.next_u64();
        run(move |rt| async move {
            let mut rng = Rng::new(seed);
            let sizes: Vec<u64> = (0..4).map(|_| 11 + rng.below(6)).collect();
            let mut media = vec![Medium::new(512); 4];
            let mut synced: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            let mut names = 0;
            for life in 0..4 {
                let disks = disks_of(&rt, &sizes, &media);
                let all = all(&disks);
                let fs = match life {
                    0 => made_by(&rt, &all, seed).await,
                    _ => mount_by(&rt, &all, seed).await,
                };
                assert_sound(&fs).await;
                for (name, bytes) in &synced {
                    assert!(read_all(&fs, find(&fs, name).await).await == *bytes, "{name}, {seed}");
                }
                for _ in 0..3 {
                    // Every other file goes, in no order; then all is filled again.
                    for name in synced.keys().cloned().collect::<Vec<_>>() {
                        if rng.chance(50) {
                            fs.unlink(ROOT, name.as_bytes()).await.expect("deleted");
                            synced.remove(&name);
                        }
                    }
                    fs.sync().await.expect("synced");
                    let mut refused = 0;
                    while refused < 8 {
                        names += 1;
                        let name = format!("f{names}");
                        let redundancy = ["auto", "raid1", "raid6", "none"][index(rng.below(4))];
                        let ino = make_as(&fs, &name, redundancy).await;
                        let len = [3000, 40_000, 200_000][index(rng.below(3))];
                        let bytes = pattern(len, names);
                        match fs.write(ino, 0, Frozen::copy_from(&bytes)).await {
                            Ok(()) if rng.chance(70) => {
                                fs.fsync(ino).await.expect("what was taken has its room");
                                synced.insert(name, bytes);
                            }
                            Ok(()) => {}
                            Err(FsError::NoSpace) => {
                                refused += 1;
                                fs.unlink(ROOT, name.as_bytes()).await.expect("deleted");
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                let left = [Leave::Nothing, Leave::All, Leave::Some(rng.next_u64())];
                let left = left[index(rng.below(3))];
                media = left_on(&disks, left);
                drop(fs);
            }
        });
    });
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("small")
}
