//! Random operations on the file system and on a plain reference: both always agree, also after
//! mounts, with lost disks, and after rebuilds.

use crate::common::disk::{Medium, Power, holding};
use crate::common::model::Pair;
use crate::common::*;
use weft_random::Rng;

const ALL: [&str; 7] = ["auto", "none", "raid0", "raid1", "raid5", "raid6", "rs:2+2"];
const REDUNDANT: [&str; 3] = ["auto", "raid1", "raid6"];

#[test]
fn random_operations_agree_with_the_reference() {
    for seed in 0..24 {
        run(move |rt| async move {
            let disks = ram(&[40, 40, 32, 24, 24]);
            let mut pair = Pair::new(made_by(&rt, &disks, seed).await, seed, &ALL);
            for round in 0..4 {
                for _ in 0..80 {
                    pair.step().await;
                }
                pair.compare().await;
                assert_sound(&pair.fs).await;
                if round % 2 == 1 {
                    pair.fs.unmount().await.expect("unmounted");
                    pair.fs = mount_by(&rt, &disks, seed).await;
                    pair.compare().await;
                }
            }
        });
    }
}

#[test]
fn they_agree_while_disks_are_lost_and_rebuilt() {
    for seed in 100..116 {
        run(move |rt| async move {
            let disks = ram(&[40, 40, 32, 32, 32, 24]);
            let mut pair = Pair::new(made_by(&rt, &disks, seed).await, seed, &REDUNDANT);
            for lost in [1, 4] {
                for _ in 0..100 {
                    pair.step().await;
                }
                pair.fs.fail_disk(lost).await.expect("out of service");
                for _ in 0..60 {
                    pair.step().await;
                }
                pair.compare().await;
                if seed % 2 == 0 {
                    pair.fs.unmount().await.expect("unmounted");
                    pair.fs = mount_by(&rt, &disks, seed).await;
                    pair.compare().await;
                }
                let report = pair.fs.rebuild().await.expect("rebuilt");
                assert_eq!(report.removed_disks, [lost], "{report:?}");
                pair.compare().await;
                assert_sound(&pair.fs).await;
            }
        });
    }
}

#[test]
fn blocks_written_while_their_file_is_flushed_are_not_lost() {
    for seed in 0..8 {
        run(move |rt| async move {
            let media = vec![Medium::new(512); 4];
            let disks = all(&holding(&rt, &Power::new(), 40 << 20, &media));
            let fs = made_by(&rt, &disks, seed).await;
            let ino = make_as(&fs, "file", if seed % 2 == 0 { "auto" } else { "raid1" }).await;
            let mut reference = vec![0; 600 * BLOCK as usize];
            write(&fs, ino, 0, &reference).await;
            let flushes = {
                let (fs, rt) = (fs.clone(), rt.clone());
                rt.clone().spawn(async move {
                    for n in 0..40 {
                        fs.fsync(ino).await.expect("synced");
                        rt.sleep(n * 10_000).await;
                    }
                })
            };
            let mut rng = Rng::new(seed);
            for n in 0..400 {
                let (mut at, mut len) = (rng.below(590 * BLOCK), rng.below(9 * BLOCK) + 1);
                if rng.chance(80) {
                    (at, len) = (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
                }
                let data = pattern(len as usize, n);
                write(&fs, ino, at, &data).await;
                reference[at as usize..(at + len) as usize].copy_from_slice(&data);
                if rng.chance(20) {
                    let read = fs.read(ino, at, len as usize).await.expect("read");
                    assert!(*read == data, "write {n}");
                }
            }
            flushes.await;
            assert!(read_all(&fs, ino).await == reference);
            fs.unmount().await.expect("unmounted");
            let fs = mount_by(&rt, &disks, seed).await;
            assert!(read_all(&fs, ino).await == reference, "mounted again");
            assert_sound(&fs).await;
        });
    }
}
