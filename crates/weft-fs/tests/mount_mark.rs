//! Disks that several hosts can reach: one of them mounts them at a time, whatever their clocks
//! say.

use std::rc::Rc;

use futures_util::future::join;

use crate::common::disk::{Medium, TestDisk};
use crate::common::moments::*;
use crate::common::test_disks::blank;
use crate::common::*;
use weft_disk::{Class, Disk, Layer, ReadFuture};
use weft_fs::{Fs, FsError, Host, MountOptions, Result, create};
use weft_rt::{Buf, Rt, SECOND};

fn on(host: &str, nonce: u64) -> MountOptions {
    MountOptions { host: Some(Host::new(host)), nonce, ..mounting() }
}

async fn new_disks(rt: &Rt) -> Vec<Rc<TestDisk>> {
    let disks = blank(rt, 3);
    create(rt, &all(&disks), &options()).await.expect("created");
    disks
}

fn refused(mounted: Result<Fs>, by: &str) {
    match mounted {
        Err(FsError::Unmountable(why)) => assert!(why.contains(by), "{why}"),
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn a_second_host_is_refused_while_the_first_has_it_mounted() {
    run(|rt| async move {
        let disks = new_disks(&rt).await;
        let first = Fs::mount(&rt, &all(&disks), on("first", 1)).await.expect("mounted");
        let ino = make(&first, "file").await;
        for n in 0..3 {
            write(&first, ino, 0, &pattern(50_000, n)).await;
            refused(Fs::mount(&rt, &all(&disks), on("second", 2)).await, "'first'");
            // With some of the disks as well.
            refused(
                Fs::mount(
                    &rt,
                    &all(&disks[n as usize..=n as usize]),
                    MountOptions { degraded: true, ..on("second", 3) },
                )
                .await,
                "'first'",
            );
        }
        assert_sound(&first).await;
        first.unmount().await.expect("unmounted");
        let began = rt.now();
        let second = Fs::mount(&rt, &all(&disks), on("second", 4)).await.expect("mounted");
        assert!(rt.now() - began < 10 * SECOND, "it was unmounted");
        assert!(read_all(&second, ino).await == pattern(50_000, 2));
    });
}

#[test]
fn a_mark_that_stands_still_is_dead() {
    run(|rt| async move {
        let disks = new_disks(&rt).await;
        let first = Fs::mount(&rt, &all(&disks), on("first", 1)).await.expect("mounted");
        make(&first, "file").await;
        first.sync().await.expect("synced");
        drop(first);
        rt.sleep(3600 * SECOND).await;
        let began = rt.now();
        let second = Fs::mount(&rt, &all(&disks), on("second", 2)).await.expect("mounted");
        assert!(rt.now() - began >= 20 * SECOND, "it was looked whether the first one lives");
        find(&second, "file").await;
    });
}

/// A disk whose reads take long.
struct Slow {
    rt: Rt,
    disk: Rc<dyn Disk>,
}

impl Layer for Slow {
    fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            self.rt.sleep(SECOND).await;
            self.disk.read(offset, buf, class).await
        })
    }
}

#[test]
fn a_mount_that_takes_long_is_alive() {
    run(|rt| async move {
        let disks = new_disks(&rt).await;
        // There is something to recover.
        let fs = Fs::mount(&rt, &all(&disks), mounting()).await.expect("mounted");
        let ino = make(&fs, "file").await;
        write(&fs, ino, 0, &pattern(50_000, 1)).await;
        fs.fsync(ino).await.expect("durable");
        drop(fs);
        let slow = |disk| Rc::new(Slow { rt: rt.clone(), disk }) as Rc<dyn Disk>;
        let slow: Vec<Rc<dyn Disk>> = all(&disks).into_iter().map(slow).collect();
        let began = rt.now();
        let mut mounting = rt.spawn({
            let rt = rt.clone();
            async move { Fs::mount(&rt, &slow, on("slow", 1)).await }
        });
        rt.sleep(15 * SECOND).await;
        let refusing = async {
            refused(Fs::mount(&rt, &all(&disks), on("second", 2)).await, "'slow'");
        };
        let (mounted, ()) = join(&mut mounting, refusing).await;
        let fs = mounted.expect("mounted");
        assert!(rt.now() - began > 60 * SECOND, "{} s", (rt.now() - began) / SECOND);
        assert!(read_all(&fs, ino).await == pattern(50_000, 1));
    });
}

#[test]
fn of_two_at_the_same_time_one_mounts() {
    for delay in [0, 1, 3, 5, 7, 9] {
        for is_dirty in [false, true] {
            run(move |rt| async move {
                let disks = new_disks(&rt).await;
                if is_dirty {
                    drop(Fs::mount(&rt, &all(&disks), on("before", 7)).await.expect("mounted"));
                }
                let there = all(&disks);
                let first = Fs::mount(&rt, &there, on("first", 1));
                let later = async {
                    rt.sleep(delay * SECOND).await;
                    Fs::mount(&rt, &there, on("second", 2)).await
                };
                let (first, second) = join(first, later).await;
                let mounted = usize::from(first.is_ok()) + usize::from(second.is_ok());
                assert_eq!(mounted, 1, "{delay} s later, {is_dirty}: {:?}", second.map(drop));
            });
        }
    }
}

/// A host that stood still for long finds that another one has it.
#[test]
fn a_host_that_was_overtaken_stops() {
    run(|rt| async move {
        let disks = new_disks(&rt).await;
        let first = Fs::mount(&rt, &all(&disks), on("first", 1)).await.expect("mounted");
        let marks: Vec<Vec<u8>> = disks
            .iter()
            .map(|disk| {
                let mut mark = vec![0; 4096];
                disk.medium.borrow().read(24 << 10, &mut mark);
                mark
            })
            .collect();
        first.unmount().await.expect("unmounted");
        let second = Fs::mount(&rt, &all(&disks), on("second", 2)).await.expect("mounted");
        make(&second, "file").await;
        // As if the first one had it mounted.
        for (disk, mark) in disks.iter().zip(&marks) {
            disk.medium.borrow_mut().poke(24 << 10, mark);
        }
        rt.sleep(3 * SECOND).await;
        let stopped = second.sync().await.expect_err("another host has it");
        assert!(stopped.to_string().contains("'first'"), "{stopped}");
    });
}

/// Disks on whose labels something is left to be done: the second copy is behind.
async fn with_labels_behind(rt: &Rt) -> Vec<Rc<TestDisk>> {
    let disks = new_disks(rt).await;
    let fs = Fs::mount(rt, &all(&disks), on("before", 9)).await.expect("mounted");
    let end = SIZE - 4096;
    let second = |disk: &Rc<TestDisk>| {
        let mut label = vec![0; 4096];
        disk.medium.borrow().read(end, &mut label);
        label
    };
    let before: Vec<Vec<u8>> = disks.iter().map(second).collect();
    assert!(fs.grow_metadata().await.expect("grown"), "there is room");
    fs.unmount().await.expect("unmounted");
    for (disk, label) in disks.iter().zip(&before) {
        disk.medium.borrow_mut().poke(end, label);
    }
    disks
}

#[test]
fn a_mount_that_another_host_forbids_writes_nothing() {
    run(|rt| async move {
        let disks = with_labels_behind(&rt).await;
        let alive = Fs::mount(&rt, &all(&disks), on("first", 1)).await.expect("mounted");
        // As they would be behind if the first host had failed to write them.
        let left = with_labels_behind(&rt).await;
        for (disk, behind) in disks.iter().zip(&left) {
            let mut label = vec![0; 4096];
            behind.medium.borrow().read(SIZE - 4096, &mut label);
            disk.medium.borrow_mut().poke(SIZE - 4096, &label);
        }
        let ends = || -> Vec<Vec<u8>> {
            let read = |disk: &Rc<TestDisk>| {
                let mut bytes = vec![0; 4096];
                disk.medium.borrow().read(SIZE - 4096, &mut bytes);
                bytes
            };
            disks.iter().map(read).collect()
        };
        let before = ends();
        refused(Fs::mount(&rt, &all(&disks), on("second", 2)).await, "'first'");
        assert!(ends() == before, "the labels of a file system that another host has mounted");
        alive.unmount().await.expect("unmounted");
        let second = Fs::mount(&rt, &all(&disks), on("second", 3)).await.expect("mounted");
        assert!(ends() != before, "labels are alike");
        assert_sound(&second).await;
    });
}

/// While the second host waits, the first one changes what labels name, and unmounts.
#[test]
fn what_another_host_changed_before_it_unmounted_is_known() {
    run(|rt| async move {
        let disks = new_disks(&rt).await;
        let first = Fs::mount(&rt, &all(&disks), on("first", 1)).await.expect("mounted");
        make(&first, "file").await;
        first.sync().await.expect("synced");
        // It stands still for some time.
        let marks: Vec<u8> = {
            let mut mark = vec![0; 4096];
            disks[0].medium.borrow().read(24 << 10, &mut mark);
            mark
        };
        assert!(first.grow_metadata().await.expect("grown"), "there is room");
        first.unmount().await.expect("unmounted");
        let grown: Vec<Medium> = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
        // Before it grew: as mounted.
        let disks = new_disks(&rt).await;
        disks.iter().for_each(|disk| disk.medium.borrow_mut().poke(24 << 10, &marks));
        let there = all(&disks);
        let second = Fs::mount(&rt, &there, on("second", 2));
        let unmounted = async {
            rt.sleep(SECOND / 2).await;
            for (disk, medium) in disks.iter().zip(grown) {
                *disk.medium.borrow_mut() = medium;
            }
        };
        let (second, ()) = join(second, unmounted).await;
        let second = second.expect("mounted");
        find(&second, "file").await;
        let ino = make_as(&second, "large", "none").await;
        let piece = pattern(1 << 18, 7);
        let mut written = 0;
        let block = || weft_rt::Frozen::copy_from(&piece);
        while second.write(ino, written * (1 << 18), block()).await.is_ok() {
            written += 1;
        }
        second.sync().await.expect("synced");
        second.unmount().await.expect("unmounted");
        let again = Fs::mount(&rt, &there, on("third", 3)).await.expect("mounted");
        assert_sound(&again).await;
    });
}
