//! Disks that hold what nothing else gives: they are not failed unasked, what is lost is told by
//! path, and files that have their disks are written as before.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;

use crate::common::disk::{Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_fs::{Fs, FsError, Ino, Kind, NewFile, ROOT};
use weft_rt::{Frozen, MICROSECOND, Rt};

/// The disk of the only column of a file's first block.
async fn disk_of(fs: &Fs, ino: Ino) -> u16 {
    let places = fs.places(ino).await.expect("known");
    places[0].1.columns[0].as_ref().expect("active").disk
}

#[test]
fn a_disk_is_not_failed_unasked_if_files_need_it() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 4])).await;
        let folder = NewFile { mode: Kind::Folder.mode() | 0o755, ..new_file(Kind::Folder) };
        let (folder, _) = fs.make(ROOT, b"folder", folder).await.expect("made");
        let single = fs.make(folder, b"single", new_file(Kind::File)).await.expect("made").0;
        set(&fs, single, "none").await.expect("set");
        write(&fs, single, 0, &pattern(BLOCK as usize, 1)).await;
        let mirrored = make_as(&fs, "mirrored", "raid1").await;
        write(&fs, mirrored, 0, &pattern(100_000, 2)).await;
        fs.sync().await.expect("synced");
        let disk = disk_of(&fs, single).await;
        let loss = fs.loss_of(disk).await.expect("known");
        assert_eq!((loss.files, &loss.first[..]), (1, &["/folder/single".to_owned()][..]));
        let refused = fs.fail_disk_without_loss(disk).await;
        let Err(FsError::Invalid(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("1 file") && why.contains("/folder/single"), "{why}");
        assert!(fs.status().await.expect("known").disks.iter().all(|disk| !disk.lost));
        assert!(read_all(&fs, single).await == pattern(BLOCK as usize, 1));
        let other = (0..4).find(|other| *other != disk).expect("four");
        fs.fail_disk_without_loss(other).await.expect("nothing is lost");
        fs.fail_disk_without_loss(9).await.expect_err("there is none");
    });
}

/// Whatever is acknowledged while the disk is looked at: either it can be read, or the disk stays.
#[test]
fn a_disk_is_not_failed_under_what_is_written_meanwhile() {
    for (disk, turns) in (0..3).flat_map(|disk| (0..60).step_by(4).map(move |turns| (disk, turns)))
    {
        run(move |rt| async move {
            let fs = made(&rt, &ram(&[24; 3])).await;
            let (writing, synced) = (fs.clone(), Rc::new(Cell::new(0)));
            let files: Vec<Ino> = {
                let names = ["a", "b", "c", "d", "e", "f"];
                join_all(names.map(|name| make_as(&fs, name, "none"))).await
            };
            fs.sync().await.expect("synced");
            let (of_writer, written) = (synced.clone(), files.clone());
            let writer = rt.spawn(async move {
                for (n, ino) in written.into_iter().enumerate() {
                    writing.begin_use(ino);
                    write(&writing, ino, 0, &pattern(3 * BLOCK as usize, n as u64)).await;
                    if writing.fsync(ino).await.is_err() {
                        return;
                    }
                    of_writer.set(n + 1);
                }
            });
            for _ in 0..turns {
                rt.yield_now().await;
            }
            let failed = fs.fail_disk_without_loss(disk).await;
            writer.await;
            for (n, ino) in files.into_iter().take(synced.get()).enumerate() {
                let read = fs.read(ino, 0, 3 * BLOCK as usize).await;
                let read =
                    read.unwrap_or_else(|error| panic!("{disk}, {turns}: {failed:?}, {error}"));
                assert!(read[..] == pattern(3 * BLOCK as usize, n as u64)[..]);
            }
        });
    }
}

#[test]
fn what_no_disk_gives_is_found_by_its_path() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 4])).await;
        let ino = make_as(&fs, "single", "none").await;
        write(&fs, ino, 0, &pattern(BLOCK as usize, 1)).await;
        let other = make_as(&fs, "mirrored", "raid1").await;
        write(&fs, other, 0, &pattern(100_000, 2)).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(disk_of(&fs, ino).await).await.expect("out of service");
        let report = fs.check(true).await.expect("checked");
        let paths: Vec<_> = report.findings.iter().map(|of| of.path.as_deref()).collect();
        assert_eq!(paths, [Some("/single")], "{:?}", report.findings);
        assert_eq!(fs.scrub().await.expect("scrubbed").damaged_files, 1);
    });
}

/// The blocks of one file cannot be written, as the disk with the rest of their lines is lost.
#[test]
fn a_file_that_cannot_be_written_keeps_nobody_else_from_writing() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[64; 4])).await;
        let bad = make_as(&fs, "bad", "none").await;
        fs.begin_use(bad);
        for n in 0..16 {
            write(&fs, bad, n << 20, &pattern(1 << 20, n)).await;
        }
        let good = make_as(&fs, "good", "raid1").await;
        write(&fs, good, 0, &pattern(100_000, 1)).await;
        fs.sync().await.expect("synced");
        fs.fail_disk(disk_of(&fs, bad).await).await.expect("out of service");
        for n in 0..4096 {
            // Whether it is told here or by fsync.
            let _ =
                fs.write(bad, n * BLOCK, weft_rt::Frozen::copy_from(&[9; BLOCK as usize])).await;
        }
        let dirty = fs.status().await.expect("known").dirty_bytes;
        assert!(dirty <= 1 << 20, "{dirty} bytes wait in a cache of 1 MiB");
        for n in 0..10 {
            write(&fs, good, n * BLOCK, &pattern(BLOCK as usize, n)).await;
        }
        fs.fsync(good).await.expect("it has its disks");
        let synced = fs.fsync(bad).await;
        assert!(matches!(synced, Err(FsError::Unreadable { .. })), "{synced:?}");
        // It was told; nothing of it waits any more.
        fs.fsync(bad).await.expect("nothing is left to write");
        assert_eq!(fs.status().await.expect("known").dirty_bytes, 0);
    });
}

/// There is room for files without redundancy only, on one disk. What waits of a mirrored file and
/// finds no place fills the memory for blocks that wait.
#[test]
fn a_file_without_room_stops_no_other() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 96]);
        let fs = made(&rt, &disks).await;
        let bad = make_as(&fs, "bad", "raid1").await;
        let good = make_as(&fs, "good", "none").await;
        fs.begin_use(bad);
        fs.begin_use(good);
        let part = pattern(64 << 10, 1);
        let (mut at, mut told) = (0, None);
        while told.is_none() && at < 96 << 20 {
            told = fs.write(bad, at, Frozen::copy_from(&part)).await.err();
            at += part.len() as u64;
        }
        let synced = fs.fsync(bad).await.err();
        let told: Vec<FsError> = told.into_iter().chain(synced).collect();
        assert!(told.iter().any(|error| matches!(error, FsError::NoSpace)), "{told:?}");
        let bytes = pattern(8 << 20, 2);
        for (n, part) in bytes.chunks(64 << 10).enumerate() {
            let at = (n as u64) << 16;
            let written = fs.write(good, at, Frozen::copy_from(part)).await;
            written.unwrap_or_else(|error| panic!("good, at {at}: {error}"));
            // More of the other one, now and then: that is told to whoever writes it.
            if n.is_multiple_of(8) {
                let _ = fs.write(bad, (200 << 20) + at, Frozen::copy_from(part)).await;
            }
        }
        fs.fsync(good).await.expect("synced");
        assert!(read_all(&fs, good).await == bytes);
        assert!(fs.status().await.expect("known").dirty_bytes <= 2 << 20);
        let report = fs.check(true).await.expect("checked");
        assert_eq!(report.findings, []);
    });
}

/// Blocks that were written are given up in the background, and their file is closed: a sync of the
/// whole file system tells of it, once, and so does the fsync of a file that is open.
#[test]
fn a_sync_of_everything_tells_what_was_lost_before() {
    for is_open in [false, true] {
        run(move |rt| async move {
            let fs = made(&rt, &ram(&[64; 4])).await;
            let bad = make_as(&fs, "bad", "none").await;
            write(&fs, bad, 0, &pattern(1 << 16, 1)).await;
            fs.sync().await.expect("synced");
            fs.fail_disk(disk_of(&fs, bad).await).await.expect("out of service");
            if is_open {
                fs.begin_use(bad);
            }
            write(&fs, bad, 0, &pattern(BLOCK as usize, 2)).await;
            fs.write_back(bad).await.expect_err("nothing gives the rest of its record");
            assert_eq!(fs.status().await.expect("known").dirty_bytes, 0);
            let synced = fs.sync().await;
            assert!(matches!(synced, Err(FsError::Unreadable { inode, .. }) if inode == bad));
            fs.sync().await.expect("it was told");
            // To the file it was not.
            assert_eq!(fs.fsync(bad).await.is_err(), is_open);
        });
    }
}

/// The disk dies with new blocks in its cache, when nothing uses their file any more.
#[test]
fn a_sync_of_everything_tells_what_a_disk_took_with_its_cache() {
    for is_deleted in [false, true] {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), 24 << 20, &vec![Medium::new(512); 4]);
            let fs = made(&rt, &all(&disks)).await;
            let ino = make_as(&fs, "bad", "none").await;
            fs.sync().await.expect("synced");
            write(&fs, ino, 0, &pattern(BLOCK as usize, 1)).await;
            fs.write_back(ino).await.expect("the disk has it in its cache");
            disks[usize::from(disk_of(&fs, ino).await)].faults.gone.set(true);
            if is_deleted {
                fs.unlink(ROOT, b"bad").await.expect("removed");
            }
            let synced = fs.sync().await;
            let is_told = matches!(synced, Err(FsError::Unreadable { inode, .. }) if inode == ino);
            assert_eq!(is_told, !is_deleted, "{synced:?}");
            fs.sync().await.expect("it was told");
        });
    }
}

/// A thin pool below the disks is full, but for what was written before.
fn fill_pool(disks: &[Rc<TestDisk>]) {
    const DATA: Range<u64> = (64 << 10) + (8 << 20)..(24 << 20) - (64 << 10);
    for disk in disks {
        let room = |at: u64, _: u64, is_there: bool| (DATA.contains(&at) && !is_there).then_some(0);
        *disk.faults.room.borrow_mut() = Some(Box::new(room));
    }
}

/// Writes blocks of a file one after the other, while all of another file, which has its places, is
/// written again and again.
async fn write_without_room(rt: &Rt, fs: &Fs, bad: Ino, good: Ino, blocks: u64) {
    let stops = Rc::new(Cell::new(false));
    let (writing, stop) = (fs.clone(), stops.clone());
    let clock = rt.clone();
    let writer = rt.spawn(async move {
        for n in (0..64).cycle().take_while(|_| !stop.get()) {
            write(&writing, good, n * BLOCK, &pattern(BLOCK as usize, n)).await;
            clock.sleep(10 * MICROSECOND).await;
        }
    });
    for n in 0..blocks {
        let block = Frozen::copy_from(&pattern(BLOCK as usize, n + 1));
        if fs.write(bad, n * BLOCK, block).await.is_ok() {
            let found = fs.read(bad, n * BLOCK, BLOCK as usize).await.expect("a file");
            assert!(found[..] == pattern(BLOCK as usize, n + 1)[..], "block {n} was accepted");
        }
    }
    stops.set(true);
    writer.await;
}

/// Two files that are in use, of which one has its places.
async fn good_and_bad(fs: &Fs) -> (Ino, Ino) {
    let bad = make_as(fs, "bad", "raid1").await;
    let good = make_as(fs, "good", "raid1").await;
    fs.begin_use(bad);
    fs.begin_use(good);
    write(fs, good, 0, &pattern(64 * BLOCK as usize, 1)).await;
    fs.sync().await.expect("synced");
    (good, bad)
}

/// What was written has no room below the disks, and is given up so that other files can be
/// written. A write that comes later takes no message from those whose data it is.
#[test]
fn what_had_no_room_is_told_to_each_user_of_the_file_by_fsync() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), 24 << 20, &vec![Medium::new(512); 4]);
        let fs = made(&rt, &all(&disks)).await;
        let (good, bad) = good_and_bad(&fs).await;
        let mut known = [fs.told_losses(bad); 2];
        fill_pool(&disks);
        // Half of the cache of 1 MiB waits, and a little more.
        let blocks = 140;
        write_without_room(&rt, &fs, bad, good, blocks).await;
        disks.iter().for_each(|disk| *disk.faults.room.borrow_mut() = None);
        write(&fs, bad, blocks * BLOCK, &pattern(BLOCK as usize, blocks + 1)).await;
        let synced = fs.sync().await;
        assert!(matches!(synced, Err(FsError::NoSpace)), "{synced:?}");
        fs.sync().await.expect("it was told");
        let mut lost = 0;
        for n in 0..=blocks {
            let found = fs.read(bad, n * BLOCK, BLOCK as usize).await.expect("a file");
            lost += u64::from(found[..] != pattern(BLOCK as usize, n + 1)[..]);
        }
        assert!(lost > 0);
        for known in &mut known {
            let told = fs.fsync_for(bad, known).await;
            assert!(matches!(told, Err(FsError::NoSpace)), "{told:?}");
            fs.fsync_for(bad, known).await.expect("this user was told");
        }
        let mut later = fs.told_losses(bad);
        fs.fsync_for(bad, &mut later).await.expect("one that came later has lost nothing");
        fs.fsync(good).await.expect("it has its places");
    });
}

/// The blocks of a write have to go before it returns. It is repeated, or refused and then repeated
/// by its caller: when it has succeeded, nothing is lost.
#[test]
fn a_write_that_is_repeated_leaves_no_alarm_for_fsync() {
    for refusals in (0..12).map(|n| 1 << n) {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), 24 << 20, &vec![Medium::new(512); 4]);
            let fs = made(&rt, &all(&disks)).await;
            let (good, bad) = good_and_bad(&fs).await;
            let left = Rc::new(Cell::new(refusals));
            for disk in &disks {
                let left = left.clone();
                const DATA: Range<u64> = (64 << 10) + (8 << 20)..(24 << 20) - (64 << 10);
                let room = move |at: u64, _: u64, is_there: bool| {
                    let lacks = DATA.contains(&at) && !is_there && left.get() > 0;
                    left.set(left.get() - u32::from(lacks));
                    lacks.then_some(0)
                };
                *disk.faults.room.borrow_mut() = Some(Box::new(room));
            }
            // Half of the cache of 1 MiB waits, and a little more; something else does as well.
            let bytes = pattern(140 * BLOCK as usize, 3);
            let stops = Rc::new(Cell::new(false));
            let (writing, stop, clock) = (fs.clone(), stops.clone(), rt.clone());
            let writer = rt.spawn(async move {
                for n in (0..64).cycle().take_while(|_| !stop.get()) {
                    write(&writing, good, n * BLOCK, &pattern(BLOCK as usize, n)).await;
                    clock.sleep(10 * MICROSECOND).await;
                }
            });
            let mut known = fs.told_losses(bad);
            let written = fs.write(bad, 0, Frozen::copy_from(&bytes)).await;
            stops.set(true);
            writer.await;
            left.set(0);
            if written.is_err() {
                assert!(matches!(written, Err(FsError::NoSpace)), "{written:?}");
                write(&fs, bad, 0, &bytes).await;
            }
            let synced = fs.fsync_for(bad, &mut known).await;
            assert!(synced.is_ok(), "after {refusals}: {synced:?}, as {written:?}");
            fs.sync().await.expect("nothing is lost");
            assert!(read_all(&fs, bad).await == bytes, "after {refusals}");
            assert_sound(&fs).await;
        });
    }
}

#[test]
fn the_end_of_a_mount_names_the_files_that_lose_blocks() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), 24 << 20, &vec![Medium::new(512); 4]);
        let fs = made(&rt, &all(&disks)).await;
        let (good, bad) = good_and_bad(&fs).await;
        fill_pool(&disks);
        write(&fs, bad, 0, &pattern(10 * BLOCK as usize, 2)).await;
        write(&fs, good, 0, &pattern(64 * BLOCK as usize, 3)).await;
        let ended = fs.unmount().await;
        let Err(FsError::LostWrites(files)) = &ended else { panic!("{ended:?}") };
        assert_eq!(files[..], ["/bad".to_owned()]);
        let said = ended.expect_err("lost").to_string();
        assert!(said.ends_with("lost, of /bad"), "{said}");
        disks.iter().for_each(|disk| *disk.faults.room.borrow_mut() = None);
        // It has ended in order.
        let fs = mount(&rt, &all(&disks)).await;
        assert!(read_all(&fs, good).await == pattern(64 * BLOCK as usize, 3));
        assert_sound(&fs).await;
        fs.unmount().await.expect("nothing is lost");
    });
}
