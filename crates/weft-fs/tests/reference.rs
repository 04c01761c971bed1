//! Random operations on the file system and on a plain reference: both always agree, also after
//! mounts, with lost disks, and after rebuilds.
#![allow(clippy::cast_possible_truncation, reason = "sizes of a test are small")]

mod common;

use common::model::Pair;
use common::*;

const ALL: [&str; 7] = ["auto", "none", "raid0", "raid1", "raid5", "raid6", "rs:2+2"];
const REDUNDANT: [&str; 3] = ["auto", "raid1", "raid6"];

#[test]
fn random_operations_agree_with_the_reference() {
    for seed in 0..24 {
        run(move |rt| async move {
            let disks = ram(&[40, 40, 32, 24, 24]);
            let mut pair = Pair::new(made(&rt, &disks).await, seed, &ALL);
            for round in 0..4 {
                for _ in 0..80 {
                    pair.step().await;
                }
                pair.compare().await;
                assert_sound(&pair.fs).await;
                if round % 2 == 1 {
                    pair.fs.unmount().await.expect("unmounted");
                    pair.fs = mount(&rt, &disks).await;
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
            let mut pair = Pair::new(made(&rt, &disks).await, seed, &REDUNDANT);
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
                    pair.fs = mount(&rt, &disks).await;
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
