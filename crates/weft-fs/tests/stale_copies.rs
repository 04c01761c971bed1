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

/// Files of half a MiB that fill the disks nearly.
const COUNT: u64 = 30;

fn bytes_of_file(n: u64) -> Vec<u8> {
    pattern(512 << 10, n)
}

/// A file has what was written, or cannot be read; nothing else. Returns whether it can be read.
async fn is_readable(fs: &Fs, n: u64) -> bool {
    let ino = find(fs, &format!("old{n}")).await;
    match fs.read(ino, 0, 512 << 10).await {
        Ok(found) => {
            assert!(*found == *bytes_of_file(n), "file {n}");
            true
        }
        Err(_) => false,
    }
}

/// The metadata has grown without disk 0, onto blocks that files have by the copy on disk 0. Then
/// all are lost but disk 0 and one other. Returns whether the old copy was mounted.
async fn mounts_what_lies_under_pieces(rt: &Rt, other: usize, read_only: bool) -> bool {
    let disks = holding(rt, &Power::new(), 12 * MIB, &vec![Medium::new(512); 6]);
    let with = |numbers: &[usize]| -> Vec<Rc<dyn Disk>> {
        numbers.iter().map(|n| disks[*n].clone() as Rc<dyn Disk>).collect()
    };
    let small = weft_fs::CreateOptions { slice_bytes: Some(4 * MIB), ..options() };
    create(rt, &all(&disks), &small).await.expect("created");
    let fs = mount(rt, &all(&disks)).await;
    for n in 0..COUNT {
        let ino = make_as(&fs, &format!("old{n}"), "raid1").await;
        write(&fs, ino, 0, &bytes_of_file(n)).await;
        fs.sync().await.expect("synced");
    }
    fs.unmount().await.expect("unmounted");
    let fs = Fs::mount(rt, &with(&[1, 2, 3, 4, 5]), degraded()).await.expect("mounted");
    for n in 0..COUNT {
        fs.unlink(weft_fs::ROOT, format!("old{n}").as_bytes()).await.expect("deleted");
    }
    fs.sync().await.expect("synced");
    fs.sync().await.expect("synced");
    while fs.grow_metadata().await.expect("nothing fails") {}
    fs.unmount().await.expect("unmounted");
    let left = with(&[0, other]);
    if Fs::mount(rt, &left, degraded()).await.is_ok() {
        return false;
    }
    let stale = MountOptions { stale: true, read_only, ..degraded() };
    let fs = match Fs::mount(rt, &left, stale).await {
        Ok(fs) => fs,
        // The other disk knows of a later copy, which it has not in full.
        Err(error) => {
            assert!(error.to_string().contains("being rebuilt"), "{other}: {error}");
            return false;
        }
    };
    if fs.lookup(weft_fs::ROOT, b"old0").await.is_err() {
        // The other disk has a copy of today.
        return false;
    }
    let mut readable = 0;
    for n in 0..COUNT {
        readable += u32::from(is_readable(&fs, n).await);
    }
    assert!(readable > 0, "some blocks are on disk 0");
    if read_only {
        return true;
    }
    let ino = make_as(&fs, "new", "raid1").await;
    write(&fs, ino, 0, &pattern(200_000, 99)).await;
    fs.sync().await.expect("synced");
    rt.sleep(600 * weft_rt::SECOND).await;
    // The slice of the other disk is a copy now, and lies on no block of a file.
    assert_eq!(fs.status().await.expect("known").meta_copies.0, 2);
    let report = fs.check(false).await.expect("checked");
    assert_eq!(report.findings, []);
    fs.unmount().await.expect("unmounted");
    let fs = Fs::mount(rt, &left, degraded()).await.expect("mounted again");
    assert!(read_all(&fs, ino).await == pattern(200_000, 99));
    let mut now = 0;
    for n in 0..COUNT {
        now += u32::from(is_readable(&fs, n).await);
    }
    assert!(now >= readable, "{now} of {readable}");
    true
}

#[test]
fn an_old_copy_is_mounted_where_newer_pieces_of_the_metadata_lie_on_its_files() {
    for read_only in [false, true] {
        run(move |rt| async move {
            let mut mounted = 0;
            for other in 1..6 {
                mounted += u32::from(mounts_what_lies_under_pieces(&rt, other, read_only).await);
            }
            assert!(mounted > 0, "some disks have no copy");
        });
    }
}
