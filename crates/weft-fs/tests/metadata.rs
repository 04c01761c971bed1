//! Metadata of which only a part is in memory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use weft_fs::{CreateOptions, Fs, FsError, Kind, MetaCacheCounts, MountOptions, ROOT, create};

/// The fewest pages.
fn few_pages() -> MountOptions {
    MountOptions { meta_cache_bytes: 0, ..mounting() }
}

async fn counts(fs: &Fs) -> MetaCacheCounts {
    fs.status().await.expect("known").meta_cache
}

#[test]
fn a_database_many_times_larger_than_its_memory_works_within_its_bound() {
    run(|rt| async move {
        let disks = ram(&[48; 3]);
        let roomy = CreateOptions { slice_bytes: Some(16 << 20), ..options() };
        create(&rt, &disks, &roomy).await.expect("created");
        let fs = Fs::mount(&rt, &disks, few_pages()).await.expect("mounted");
        let mut folders = Vec::new();
        for n in 0..8 {
            let name = format!("folder {n}");
            let folder = fs.make(ROOT, name.as_bytes(), new_file(Kind::Folder)).await;
            folders.push(folder.expect("made").0);
        }
        for n in 0..1600_u64 {
            let folder = folders[usize::try_from(n % 8).expect("few")];
            let name = format!("a file with a name that takes some room {n}");
            let (ino, _) =
                fs.make(folder, name.as_bytes(), new_file(Kind::File)).await.expect("made");
            if n.is_multiple_of(4) {
                write(&fs, ino, 0, &pattern(5000, n)).await;
            }
            if n.is_multiple_of(7) {
                fs.unlink(folder, name.as_bytes()).await.expect("removed");
            }
        }
        let counted = counts(&fs).await;
        let (bytes, _) = fs.status().await.expect("known").meta_bytes;
        assert!(bytes > 5 * counted.bytes_max, "{bytes} bytes, {counted:?}");
        assert!(counted.bytes_most <= counted.bytes_max, "{counted:?}");
        assert!(counted.misses > 1000, "{counted:?}");
        fs.sync().await.expect("synced");
        assert_eq!(fs.status().await.expect("known").files_in_memory, 0);
        fs.unmount().await.expect("unmounted");

        let fs = Fs::mount(&rt, &disks, few_pages()).await.expect("mounted again");
        assert_sound(&fs).await;
        let mut found = BTreeSet::new();
        for folder in folders {
            let mut after = 2;
            loop {
                let entries = fs.read_folder(folder, after, 100).await.expect("listed");
                let Some(last) = entries.last() else { break };
                after = last.position;
                for entry in entries {
                    let name = String::from_utf8(entry.name).expect("a name");
                    let n: u64 = name.rsplit(' ').next().expect("a number").parse().expect("one");
                    let expected = if n.is_multiple_of(4) { pattern(5000, n) } else { Vec::new() };
                    assert!(read_all(&fs, entry.ino).await == expected, "{name}");
                    found.insert(n);
                }
            }
        }
        assert!(found.into_iter().eq((0..1600_u64).filter(|n| !n.is_multiple_of(7))));
        let counted = counts(&fs).await;
        assert!(counted.bytes_most <= counted.bytes_max, "{counted:?}");
        fs.unmount().await.expect("unmounted");
    });
}

/// After a crash redb must look for its free pages; an unmount stores which they are. (With debug
/// assertions redb looks at some of them anyway.)
#[test]
fn a_mount_after_an_unmount_reads_less_than_one_after_a_crash() {
    run(|rt| async move {
        let disks = ram(&[40; 3]);
        drop(made(&rt, &disks).await.unmount().await);
        let fs = Fs::mount(&rt, &disks, few_pages()).await.expect("mounted");
        for n in 0..1000 {
            make(&fs, &format!("a file with a name that takes some room {n}")).await;
        }
        fs.sync().await.expect("synced");
        drop(fs);
        let crashed = Fs::mount(&rt, &disks, few_pages()).await.expect("mounted");
        let after_crash = counts(&crashed).await;
        crashed.unmount().await.expect("unmounted");
        let fs = Fs::mount(&rt, &disks, few_pages()).await.expect("mounted");
        let after_unmount = counts(&fs).await;
        assert!(
            after_crash.misses > after_unmount.misses * 3 / 2,
            "{after_crash:?} {after_unmount:?}"
        );
        assert_sound(&fs).await;
    });
}

/// The pages that a commit changes are one record of the journal.
#[test]
fn a_commit_is_one_write_to_each_copy() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), 40 << 20, &vec![Medium::new(512); 3]);
        let fs = made(&rt, &all(&disks)).await;
        let mut single = 0;
        for n in 0..40 {
            make(&fs, &format!("file {n}")).await;
            disks.iter().for_each(|disk| disk.writes.borrow_mut().clear());
            fs.sync().await.expect("synced");
            // A record that does not fit into a unit of the array is written as two requests.
            let follows = |pair: &[(u64, u64)]| pair[0].0 + pair[0].1 == pair[1].0;
            let is_one = disks.iter().all(|disk| disk.writes.borrow().windows(2).all(follows));
            single += usize::from(is_one);
        }
        // Now and then the journal is full, and is written to its places.
        assert!(single >= 30, "{single}");
    });
}

/// Operations that meet each other while they wait for pages do not mix.
#[test]
fn operations_wait_for_each_other() {
    run(|rt| async move {
        let disks = all(&holding(&rt, &Power::new(), 40 << 20, &vec![Medium::new(512); 3]));
        drop(made(&rt, &disks).await.unmount().await);
        let fs = Fs::mount(&rt, &disks, few_pages()).await.expect("mounted");
        let tasks = (0..8_u64).map(|task| {
            let fs = fs.clone();
            rt.spawn(async move {
                for n in 0..40 {
                    let name = format!("file {n} of {task}");
                    let ino = make(&fs, &name).await;
                    write(&fs, ino, n * 3000, &pattern(2000, task)).await;
                    match n % 8 {
                        3 => fs.fsync(ino).await.expect("synced"),
                        5 => fs.unlink(ROOT, name.as_bytes()).await.expect("removed"),
                        7 => fs.sync().await.expect("synced"),
                        _ => {}
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await;
        }
        fs.sync().await.expect("synced");
        assert_eq!(fs.status().await.expect("known").files_in_memory, 0);
        assert_sound(&fs).await;
        for task in 0..8 {
            for n in (0..40).filter(|n| n % 8 != 5) {
                let bytes = read_all(&fs, find(&fs, &format!("file {n} of {task}")).await).await;
                let (hole, part) = bytes.split_at(3000 * n);
                assert!(hole.iter().all(|byte| *byte == 0) && *part == pattern(2000, task));
            }
        }
        assert!(counts(&fs).await.misses > 100);
        fs.unmount().await.expect("unmounted");
    });
}

/// The disks of a batch under way have as many requests as they take, and the next batch waits for
/// a page from one of them.
#[test]
fn batches_and_pages_that_the_next_one_needs_share_the_disks() {
    run(|rt| async move {
        let disks = all(&holding(&rt, &Power::new(), 64 << 20, &vec![Medium::new(512); 3]));
        drop(made(&rt, &disks).await.unmount().await);
        let options = MountOptions { cache_bytes: 16 << 20, ..few_pages() };
        let fs = Fs::mount(&rt, &disks, options).await.expect("mounted");
        for n in 0..300 {
            let ino = make(&fs, &format!("file {n}")).await;
            write(&fs, ino, 0, &pattern(4096, n)).await;
        }
        fs.sync().await.expect("synced");
        let overlapped = fs.status().await.expect("known").overlapped_batches;
        assert!(overlapped > 0, "{overlapped} batches");
        assert_sound(&fs).await;
    });
}

/// Nothing of a file stays in memory when it is written, also if several flushes had it at once:
/// some write what waits, and others what tokens are given up for.
#[test]
fn files_that_are_written_leave_memory() {
    run(|rt| async move {
        let disks = ram(&[260; 3]);
        let redundancy = "none".parse().expect("known");
        let options = CreateOptions { slice_bytes: Some(180 << 20), redundancy, ..options() };
        create(&rt, &disks, &options).await.expect("created");
        let mounting = MountOptions { cache_bytes: 16 << 20, ..mounting() };
        let fs = Fs::mount(&rt, &disks, mounting).await.expect("mounted");
        for n in 0..50_000 {
            let ino = make(&fs, &format!("{n}")).await;
            write(&fs, ino, 0, &[1]).await;
        }
        fs.sync().await.expect("synced");
        assert_eq!(fs.status().await.expect("known").files_in_memory, 0);
        fs.unmount().await.expect("unmounted");
    });
}

/// No copy gives a page.
#[test]
fn a_page_that_cannot_be_read_stops_the_file_system_with_an_error() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), 40 << 20, &vec![Medium::new(512); 3]);
        drop(made(&rt, &all(&disks)).await.unmount().await);
        let fs = Fs::mount(&rt, &all(&disks), few_pages()).await.expect("mounted");
        for n in 0..200 {
            make(&fs, &format!("file {n}")).await;
        }
        fs.sync().await.expect("synced");
        for disk in &disks {
            // Most of the slice, and so of the database.
            let sectors = ((64 << 10) + (1 << 20)) / 512..(8 << 20) / 512;
            disk.faults.dead_reads.borrow_mut().extend(sectors);
        }
        let told: Rc<RefCell<Vec<String>>> = Rc::default();
        let tell = told.clone();
        fs.on_stop(move |why| tell.borrow_mut().push(why.to_owned()));
        let mut failed = None;
        for n in 0..200 {
            match fs.lookup(ROOT, format!("file {n}").as_bytes()).await {
                Ok((ino, _)) => assert_eq!(ino, n + 2, "what is found is right"),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        assert!(matches!(failed, Some(FsError::Database(_))), "{failed:?}");
        let stopped = fs.attr(ROOT).await.expect_err("it has stopped");
        assert!(matches!(stopped, FsError::Stopped(_)), "{stopped}");
        // It says so, and why.
        let why = fs.status().await.expect("known").stopped.expect("it has stopped");
        assert_eq!(*told.borrow(), [why]);
        fs.unmount().await.expect_err("nothing can be written any more");
    });
}
