//! A copy of the metadata that was unmounted cleanly, and not there when the others were used, does
//! not count where another disk took part in that.

use std::rc::Rc;

use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, MountOptions, Redundancy, create};
use weft_rt::Rt;

const MIB: u64 = 1 << 20;

fn degraded() -> MountOptions {
    MountOptions { degraded: true, nonce: 99, ..mounting() }
}

/// Six disks, of which three have copies. Disk 0 has been out since a clean unmount, with a copy of
/// that time; then all go but it and one other. Returns whether only the old copy is left, which is
/// refused.
async fn refuses(rt: &Rt, other: usize, is_unmounted: bool) -> bool {
    let disks = holding(rt, &Power::new(), 24 * MIB, &vec![Medium::new(512); 6]);
    let with = |numbers: &[usize]| -> Vec<Rc<dyn Disk>> {
        numbers.iter().map(|n| disks[*n].clone() as Rc<dyn Disk>).collect()
    };
    let options = weft_fs::CreateOptions { redundancy: Redundancy::Auto, ..options() };
    create(rt, &all(&disks), &options).await.expect("created");
    let fs = mount(rt, &all(&disks)).await;
    make(&fs, "old").await;
    fs.unmount().await.expect("unmounted");
    let fs = Fs::mount(rt, &with(&[1, 2, 3, 4, 5]), degraded()).await.expect("mounted");
    make(&fs, "new").await;
    fs.sync().await.expect("synced");
    if is_unmounted {
        fs.unmount().await.expect("unmounted");
    }
    drop(fs);
    let left = with(&[0, other]);
    if let Ok(fs) = Fs::mount(rt, &left, degraded()).await {
        find(&fs, "new").await;
        return false;
    }
    let stale = MountOptions { stale: true, ..degraded() };
    // The other disk may have a copy of today: one of several, or one that is not complete.
    let Ok(fs) = Fs::mount(rt, &left, stale).await else { return false };
    find(&fs, "old").await;
    fs.lookup(weft_fs::ROOT, b"new").await.is_err()
}

#[test]
fn a_copy_that_missed_a_mount_does_not_count_beside_a_disk_that_took_part() {
    for is_unmounted in [true, false] {
        run(move |rt| async move {
            let mut refused = 0;
            for other in 1..6 {
                refused += u32::from(refuses(&rt, other, is_unmounted).await);
            }
            assert!(
                (1..5).contains(&refused),
                "{refused}: some disks have copies, and some have not"
            );
        });
    }
}

/// Where no disk says otherwise, the copies were unmounted together with the others.
#[test]
fn a_copy_that_was_unmounted_with_the_others_is_mounted() {
    run(|rt| async move {
        let disks = ram(&[24; 6]);
        let fs = made(&rt, &disks).await;
        make(&fs, "file").await;
        fs.unmount().await.expect("unmounted");
        let left = [disks[0].clone(), disks[3].clone(), disks[4].clone()];
        let fs = Fs::mount(&rt, &left, degraded()).await.expect("mounted");
        find(&fs, "file").await;
    });
}
