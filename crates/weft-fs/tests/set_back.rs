//! An image of a disk that was taken while it was in use, and is put back after an unmount, lacks
//! what was written since. It is noticed, and nothing of it is taken for right.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::test_disks::{SIZE, blank, left_on};
use crate::common::*;
use weft_fs::{Fs, FsError, MountOptions};

const DISKS: usize = 4;
const REDUNDANCIES: [&str; 3] = ["auto", "raid1", "raid6"];

fn degraded() -> MountOptions {
    MountOptions { degraded: true, nonce: 99, ..mounting() }
}

/// When the image is taken.
#[derive(Debug, Clone, Copy)]
enum Taken {
    InUse,
    Unmounted,
    /// In a mount before the last one.
    Before,
}

/// What the disks hold after an unmount, with `on` set back.
fn left(on: usize, taken: Taken) -> Vec<Medium> {
    let result: Rc<RefCell<Vec<Medium>>> = Rc::default();
    let out = result.clone();
    run(move |rt| async move {
        let disks = blank(&rt, DISKS);
        let media = || left_on(&disks, Leave::All);
        let mut fs = made(&rt, &all(&disks)).await;
        for (n, redundancy) in REDUNDANCIES.iter().enumerate() {
            let ino = make_as(&fs, redundancy, redundancy).await;
            write(&fs, ino, 0, &pattern(200_000, n as u64)).await;
        }
        fs.sync().await.expect("synced");
        let mut image = media();
        if !matches!(taken, Taken::InUse) {
            fs.unmount().await.expect("unmounted");
            if matches!(taken, Taken::Unmounted) {
                image = media();
            }
            fs = mount(&rt, &all(&disks)).await;
        }
        for (n, redundancy) in REDUNDANCIES.iter().enumerate() {
            let ino = find(&fs, redundancy).await;
            write(&fs, ino, 0, &pattern(100_000, 10 + n as u64)).await;
        }
        make(&fs, "new").await;
        fs.unmount().await.expect("unmounted");
        let mut media = media();
        media[on] = image[on].clone();
        *out.borrow_mut() = media;
    });
    result.take()
}

async fn assert_newest(fs: &Fs, what: &str) {
    find(fs, "new").await;
    for (n, redundancy) in REDUNDANCIES.iter().enumerate() {
        let ino = find(fs, redundancy).await;
        let mut expected = pattern(200_000, n as u64);
        expected[..100_000].copy_from_slice(&pattern(100_000, 10 + n as u64));
        assert!(read_all(fs, ino).await == expected, "{what}: {redundancy}");
    }
}

#[test]
fn an_image_of_one_disk_is_refused_or_counts_as_lost() {
    for taken in [Taken::InUse, Taken::Unmounted, Taken::Before] {
        for on in 0..DISKS {
            let media = left(on, taken);
            run(move |rt| async move {
                let what = format!("{on}, {taken:?}");
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let refused = Fs::mount(&rt, &all(&disks), mounting()).await.map(drop);
                let Err(FsError::Unmountable(why)) = refused else { panic!("{what}: {refused:?}") };
                assert!(why.contains(&format!("disk {on} (test{on}) lacks")), "{what}: {why}");
                let fs = Fs::mount(&rt, &all(&disks), degraded()).await.expect("mounted");
                let lost = fs.status().await.expect("known").disks;
                assert!(lost.iter().all(|disk| disk.lost == (usize::from(disk.number) == on)));
                assert_newest(&fs, &what).await;
                // What was not rebuilt was lost for good.
                fs.unmount().await.expect("unmounted");
                let fs = mount(&rt, &all(&disks)).await;
                assert!(fs.status().await.expect("known").disks[on].lost, "{what}");
                let report = fs.rebuild().await.expect("rebuilt");
                assert!(report.damaged.is_empty(), "{what}: {report:?}");
                assert_sound(&fs).await;
                assert_newest(&fs, &what).await;
            });
        }
    }
}

/// A crash anywhere in an unmount or a mount is no such image.
#[test]
fn a_crash_in_a_mount_or_unmount_sets_no_disk_back() {
    let moments: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
    let out = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); DISKS]);
        let fs = made(&rt, &all(&disks)).await;
        let ino = make(&fs, "file").await;
        write(&fs, ino, 0, &pattern(100_000, 1)).await;
        let watched = disks.clone();
        power.watch(move || {
            let n = out.borrow().len();
            out.borrow_mut().push(left_on(&watched, crate::common::moments::leave(n)));
        });
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        fs.sync().await.expect("synced");
        power.watch(|| {});
    });
    for (step, media) in moments.take().into_iter().enumerate() {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = Fs::mount(&rt, &all(&disks), mounting()).await;
            let fs = fs.unwrap_or_else(|error| panic!("step {step}: {error}"));
            assert!(fs.status().await.expect("known").disks.iter().all(|disk| !disk.lost));
            assert_sound(&fs).await;
        });
    }
}

/// A disk that does not take the number is not judged by it.
#[test]
fn a_disk_whose_place_for_the_number_has_failed_stays() {
    run(|rt| async move {
        let disks = blank(&rt, 3);
        let fs = made(&rt, &all(&disks)).await;
        let places = (12 << 10) / 512..(20 << 10) / 512;
        disks[1].faults.dead_writes.borrow_mut().extend(places);
        make(&fs, "file").await;
        fs.unmount().await.expect("unmounted");
        for _ in 0..2 {
            let fs = mount(&rt, &all(&disks)).await;
            find(&fs, "file").await;
            assert_sound(&fs).await;
            fs.unmount().await.expect("unmounted");
        }
    });
}
