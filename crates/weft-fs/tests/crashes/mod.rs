//! A crash at every step that changes a disk, with and without a disk lost in the same moment.
//!
//! What was synced is there. What was written since is old or new, sector by sector, or zeros where
//! a file was cut. Everything else of the same lines is as it was: that is what the RAID log is
//! for. Names are those of some moment since the last sync. Metadata, checksums and parity agree.

mod client;
mod found;
mod moments;
mod stories;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::moments::leave;
use crate::common::*;
use client::Client;
use found::{crash, crash_on};
use moments::{
    DISKS, Moment, SIZE, kill_blocks, kill_first_blocks, moments, moments_from, moments_of,
    moments_on,
};
use stories::{
    blocks_apart, cut_files, long_files, over_an_old_end, over_old_lines, reserved, short_files,
    stale_disks,
};
use weft_fs::{Fs, Kind, MountOptions, ROOT};
use weft_rt::{Frozen, Rt};

#[test]
fn every_crash_leaves_what_was_synced_and_whole_operations() {
    let moments = moments(2);
    assert!(moments.len() > 200, "{} steps", moments.len());
    for (n, moment) in moments.iter().enumerate() {
        crash(moment, leave(n), None, format!("step {n}, {:?}", leave(n)));
    }
}

/// Of batches that are written at the same time each may be there or not, and nothing names what is
/// not; with all disks, without one, and with blocks that cannot be written.
#[test]
fn every_crash_is_survived_while_batches_of_new_lines_overlap() {
    let bad_blocks: [fn(&[Rc<TestDisk>]); 2] = [|_| {}, kill_blocks];
    for (of, prepare) in bad_blocks.into_iter().enumerate() {
        let story = async |client: &Client, middle: &dyn Fn()| long_files(client, middle).await;
        let moments = moments_of(2, mounting().cache_bytes, prepare, story);
        assert!(moments.len() > 200, "{} steps", moments.len());
        for (n, moment) in moments.iter().enumerate().skip(of).step_by(3) {
            let lost = n.is_multiple_of(2).then_some(n / 2 % DISKS);
            let left = leave(n / 3);
            let what = format!("step {n}, {left:?}, without {lost:?}, disks {of}");
            crash_on(moment, left, lost, what, prepare);
        }
    }
}

#[test]
fn every_crash_is_survived_while_many_blocks_apart_are_overwritten() {
    let story = async |client: &Client, middle: &dyn Fn()| blocks_apart(client, middle).await;
    let moments = moments_of(2, 4 << 20, |_| {}, story);
    assert!(moments.len() > 200, "{} steps", moments.len());
    for (n, moment) in moments.iter().enumerate().step_by(3) {
        let lost = n.is_multiple_of(2).then_some(n / 2 % DISKS);
        let left = leave(n / 3);
        crash(moment, left, lost, format!("step {n}, {left:?}, without {lost:?}"));
    }
}

/// What a crash left behind a file's end does not come to light: not if what is written over it is
/// removed again, nor if a part of that has to be written elsewhere.
#[test]
fn every_crash_is_survived_while_files_grow_over_an_old_end() {
    let kill: [fn(&[Rc<TestDisk>]); 2] = [|_| {}, kill_first_blocks];
    for (of, prepare) in kill.into_iter().enumerate() {
        let story = async |c: &Client, middle: &dyn Fn()| over_an_old_end(c, middle).await;
        let cache_bytes = mounting().cache_bytes;
        let before = async |rt: &Rt| short_files(rt).await;
        let moments = moments_from(before, 2, cache_bytes, prepare, story);
        assert!(moments.len() > 100, "{} steps", moments.len());
        for (n, moment) in moments.iter().enumerate() {
            let what = format!("step {n}, {:?}, disks {of}", leave(n));
            crash_on(moment, leave(n), None, what, prepare);
        }
    }
}

/// A file does not grow over lines that hold what was cut off before what is written there is on
/// the disks, or in the log.
#[test]
fn every_crash_is_survived_while_files_grow_over_old_lines() {
    let story = async |c: &Client, middle: &dyn Fn()| over_old_lines(c, middle).await;
    let before = async |rt: &Rt| cut_files(rt).await;
    let moments = moments_from(before, 3, mounting().cache_bytes, |_| {}, story);
    assert!(moments.len() > 60, "{} steps", moments.len());
    for (n, moment) in moments.iter().enumerate() {
        for left in [Leave::Nothing, Leave::Cached, Leave::Some(n as u64)] {
            crash_on(moment, left, None, format!("step {n}, {left:?}"), |_| {});
        }
    }
}

/// What is reserved reads as zeros, or as what was written there, whatever the disks held before.
#[test]
fn every_crash_is_survived_while_reserved_blocks_are_written() {
    let bad_blocks: [fn(&[Rc<TestDisk>]); 2] = [|_| {}, kill_blocks];
    for (of, prepare) in bad_blocks.into_iter().enumerate() {
        let story = async |c: &Client, middle: &dyn Fn()| reserved(c, middle).await;
        let before = async |rt: &Rt| stale_disks(rt).await;
        let moments = moments_from(before, 2, mounting().cache_bytes, prepare, story);
        assert!(moments.len() > 100, "{} steps", moments.len());
        for (n, moment) in moments.iter().enumerate() {
            let lost = n.is_multiple_of(3).then_some(n / 3 % DISKS);
            let what = format!("step {n}, {:?}, without {lost:?}, disks {of}", leave(n));
            crash_on(moment, leave(n), lost, what, prepare);
        }
    }
}

/// Blocks that cannot be written are found on the way, by writes of all kinds and by recovery.
#[test]
fn every_crash_is_survived_on_disks_with_bad_blocks() {
    let moments = moments_on(1, kill_blocks);
    for (n, moment) in moments.iter().enumerate().step_by(2) {
        let lost = n.is_multiple_of(3).then_some(n / 3 % DISKS);
        let what = format!("step {n}, {:?}, without {lost:?}, bad blocks", leave(n / 2));
        crash_on(moment, leave(n / 2), lost, what, kill_blocks);
    }
}

#[test]
fn every_crash_with_a_lost_disk_leaves_all_that_was_not_being_written() {
    for (n, moment) in moments(0).iter().enumerate() {
        let (lost, left) = (n % DISKS, leave(n / DISKS));
        crash(moment, left, Some(lost), format!("step {n}, {left:?}, without {lost}"));
    }
}

#[test]
fn a_crash_in_recovery_changes_nothing() {
    let moments = moments(0);
    for (n, moment) in moments.iter().enumerate().skip(3).step_by(23) {
        let media: Vec<Medium> = left_of_all(leave(n), &moment.media);
        let allowed = moment.allowed.clone();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let again = seen.clone();
        run(move |rt| async move {
            let power = Power::new();
            let disks = holding(&rt, &power, SIZE, &media);
            let watched = disks.clone();
            power.watch(move || {
                let media = watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
                seen.borrow_mut().push(Moment { media, allowed: allowed.clone() });
            });
            Fs::mount(&rt, &all(&disks), mounting()).await.expect("mounted");
            power.watch(|| {});
        });
        for (m, moment) in again.take().iter().enumerate().step_by(5) {
            let lost = m.is_multiple_of(2).then_some(m / 2 % DISKS);
            crash(moment, leave(m), lost, format!("step {n}, then {m}, without {lost:?}"));
        }
    }
}

/// Recovery takes blocks as it finds them whose contents the log does not have. If only the program
/// was killed, they may be in the caches of the disks, and the power fails behind recovery.
#[test]
fn what_recovery_has_found_is_durable() {
    let story = async |client: &Client, middle: &dyn Fn()| {
        let a = client.make("a", "auto").await;
        client.write(a, 0, 3 * 4096, 1).await;
        client.sync().await;
        middle();
        // New lines are written with it, so the log has no contents.
        client.write(a, 4096, 4096, 2).await;
        let b = client.make("b", "auto").await;
        client.write(b, 0, 4096, 2).await;
        client.sync().await;
    };
    let moments = moments_of(2, mounting().cache_bytes, |_| {}, story);
    for (n, moment) in moments.iter().enumerate() {
        for lost in [None, Some(0), Some(1), Some(2), Some(3)] {
            let media: Vec<Medium> =
                moment.media.iter().map(|medium| Leave::Cached.of(medium)).collect();
            let (after, allowed) = (Rc::new(RefCell::new(None)), moment.allowed.clone());
            let seen = after.clone();
            run(move |rt| async move {
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let there = all(&disks).into_iter().enumerate();
                let there: Vec<_> =
                    there.filter(|(n, _)| lost != Some(*n)).map(|(_, disk)| disk).collect();
                let options =
                    MountOptions { degraded: lost.is_some(), stale: lost.is_some(), ..mounting() };
                Fs::mount(&rt, &there, options).await.expect("mounted");
                let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
                *seen.borrow_mut() = Some(Moment { media, allowed });
            });
            let after = after.take().expect("mounted");
            crash(&after, Leave::Nothing, lost, format!("step {n}, mounted, without {lost:?}"));
        }
    }
}

/// The log has the time with the blocks: a commit would take several writes and flushes more.
#[test]
fn the_time_of_the_last_write_does_not_make_fsync_dearer() {
    run(|rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); DISKS]);
        let client = Client::new(made(&rt, &all(&disks)).await);
        let ino = client.make("file", "auto").await;
        client.write(ino, 0, 30_000, 1).await;
        client.sync().await;
        let steps = Rc::new(Cell::new(0));
        let count = steps.clone();
        power.watch(move || count.set(count.get() + 1));
        let mut costs = Vec::new();
        for version in 2..6 {
            let before = steps.get();
            client.write(ino, 5000, 100, version).await;
            if version > 3 {
                client.touch(ino).await;
            }
            client.fsync(ino).await;
            costs.push(steps.get() - before);
        }
        power.watch(|| {});
        // The first one marks a region of the metadata array as dirty.
        assert!(costs[1..].iter().all(|cost| *cost == costs[1]), "{costs:?}");
    });
}

#[test]
fn a_file_that_was_open_without_a_name_goes_at_the_next_mount() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
        let fs = made(&rt, &all(&disks)).await;
        let ino = make(&fs, "gone").await;
        fs.begin_use(ino);
        fs.write(ino, 0, Frozen::copy_from(&[1; 5000])).await.expect("written");
        fs.unlink(ROOT, b"gone").await.expect("removed");
        assert_eq!(*fs.read(ino, 0, 5).await.expect("read"), [1; 5]);
        fs.sync().await.expect("synced");
        drop(fs);
        let media: Vec<Medium> = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let fs = mount(&rt, &all(&disks)).await;
        fs.attr(ino).await.expect_err("it is gone");
        assert_eq!(fs.status().await.expect("known").inodes, 1);
        assert_sound(&fs).await;
        assert_eq!(Kind::of_mode(0o100_644), Kind::File);
    });
}
