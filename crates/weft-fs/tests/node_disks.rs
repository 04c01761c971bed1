//! Disks, and the logs on them, under nodes that mount one file system: they join, leave and fail.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::cluster::*;
use crate::common::test_disks::{blank, for_host};
use crate::common::*;
use weft_fs::{Fs, FsError, Label, LogCopy};
use weft_rt::{MILLISECOND, SECOND};

/// The blocks of the log of a node, by disk.
async fn log_of(fs: &Fs, number: u16) -> Vec<LogCopy> {
    let nodes = fs.nodes().await.expect("known");
    let node = nodes.into_iter().find(|of| of.node.number == number).expect("it has a log");
    node.log
}

fn log_disks(log: &[LogCopy]) -> Vec<u16> {
    let mut disks: Vec<u16> = log.iter().map(|copy| copy.disk).collect();
    disks.sort_unstable();
    disks
}

/// The node waits for a moment, and goes on there.
#[test]
fn the_log_of_a_mounted_node_moves_off_a_disk_that_leaves_and_off_one_that_is_lost() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = TwoNodes::with_file(&rt, 5, "raid1", 100_000).await;
        let TwoNodes { disks, network, fs, of_node, other } = nodes;
        let before = log_of(&fs, 1).await;
        let leaving = log_disks(&before)[0];
        let report = fs.remove_disk(leaving).await.expect("removed");
        assert_eq!(report.removed_disks, [leaving]);
        let moved = log_of(&fs, 1).await;
        assert!(moved.len() == 3 && !log_disks(&moved).contains(&leaving), "{moved:?}");
        let lost = log_disks(&moved)[0];
        fs.fail_disk(lost).await.expect("failed");
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.removed_disks, [lost]);
        let moved = log_of(&fs, 1).await;
        assert!(moved.len() == 3 && !log_disks(&moved).contains(&lost), "{moved:?}");
        assert_sound(&fs).await;
        assert!(read_all(&other, ino).await == pattern(100_000, 1));
        overwrite(&other, ino, &mut bytes, 0..8192, 2).await;
        of_node.fail_domain();
        drop(other);
        assert!(die(&fs, &network, 1, 7).await > 0);
        let left = (0..5).filter(|n| ![leaving, lost].contains(n));
        let left: Vec<_> = left.map(|n| disks[usize::from(n)].clone()).collect();
        let again = joined(&rt, &all(&left), &network, (1, 8)).await;
        assert!(read_all(&again, ino).await == bytes);
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

/// The disk of a copy works, but a block of the log on it cannot be written: the copy is given up,
/// and the next mount of the node has as many as before.
#[test]
fn a_copy_of_a_log_that_cannot_be_written_is_not_read_any_more() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = TwoNodes::with_file(&rt, 4, "raid5", 100_000).await;
        let TwoNodes { disks, network, fs, of_node, other } = nodes;
        let log = log_of(&fs, 1).await;
        let label = Label::read(&*disks[0]).await.expect("readable").expect("a label");
        let (blocks, data) = (&log[0].blocks[0], label.data().start);
        *disks[usize::from(log[0].disk)].faults.unwritable.borrow_mut() =
            data + blocks.start * BLOCK..data + blocks.end * BLOCK;
        for version in 2..6 {
            overwrite(&other, ino, &mut bytes, 0..8192, version).await;
        }
        let now = log_of(&fs, 1).await;
        let given_up: Vec<bool> = now.iter().map(|copy| copy.is_given_up).collect();
        assert_eq!(given_up, [true, false, false]);
        let status = other.status().await.expect("known");
        assert!(status.disks.iter().all(|disk| !disk.lost), "a block failed, and no disk");
        // One of the others is lost with the node.
        of_node.fail_domain();
        drop(other);
        disks[usize::from(log[1].disk)].faults.gone.set(true);
        assert!(die(&fs, &network, 1, 7).await > 0);
        let left: Vec<_> =
            (0..4).filter(|n| *n != log[1].disk).map(|n| disks[usize::from(n)].clone()).collect();
        fs.rebuild().await.expect("rebuilt");
        let again = joined(&rt, &all(&left), &network, (1, 8)).await;
        assert!(read_all(&again, ino).await == bytes);
        assert_eq!(log_of(&fs, 1).await.iter().filter(|copy| !copy.is_given_up).count(), 3);
        rt.sleep(SECOND).await;
        assert_sound(&fs).await;
    });
}

#[test]
fn a_disk_does_not_leave_while_another_node_has_records_on_it_that_are_not_stored() {
    run(|rt| async move {
        let TwoNodes { disks, fs, other, .. } = TwoNodes::new(&rt, 5).await;
        let (made, is_over) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
        let (files, ends, writer, clock) =
            (made.clone(), is_over.clone(), other.clone(), rt.clone());
        let writing = rt.spawn(async move {
            while !ends.get() && files.borrow().len() < 200 {
                let version = files.borrow().len() as u64;
                let ino = make_as(&writer, &version.to_string(), "raid5").await;
                write(&writer, ino, 0, &pattern(20_000, version)).await;
                // It has its places, which only this node knows.
                writer.write_back(ino).await.expect("written");
                files.borrow_mut().push(ino);
                clock.sleep(5 * MILLISECOND).await;
            }
        });
        rt.sleep(100 * MILLISECOND).await;
        let of_log = log_disks(&log_of(&fs, 1).await);
        let leaving = (0..5).find(|disk| !of_log.contains(disk)).expect("there are more");
        let report = fs.remove_disk(leaving).await.expect("removed");
        assert_eq!(report.removed_disks, [leaving]);
        is_over.set(true);
        writing.await;
        let check = async |fs: &Fs| {
            let made = made.borrow().clone();
            for (version, ino) in made.iter().enumerate() {
                assert!(read_all(fs, *ino).await == pattern(20_000, version as u64), "{version}");
            }
        };
        check(&fs).await;
        other.unmount().await.expect("unmounted");
        fs.unmount().await.expect("unmounted");
        let left = (0..5).filter(|n| *n != leaving).map(|n| disks[usize::from(n)].clone());
        let fs = mount(&rt, &all(&left.collect::<Vec<_>>())).await;
        check(&fs).await;
        assert_sound(&fs).await;
    });
}

/// What frees the blocks of a ring that a node leaves must do so once.
#[test]
fn a_node_that_dies_before_it_takes_another_ring_leaves_the_old_one_once() {
    run(|rt| async move {
        let TwoNodes { network, fs, of_node, other, .. } = TwoNodes::new(&rt, 5).await;
        let old = log_of(&fs, 1).await;
        of_node.fail_domain();
        drop(other);
        let lost = log_disks(&old)[0];
        fs.fail_disk(lost).await.expect("failed");
        // It waits for the node in vain.
        assert!(fs.rebuild().await.expect("rebuilt").removed_disks.is_empty());
        die(&fs, &network, 1, 7).await;
        fs.prepare_node(1).await.expect("prepared");
        let now = log_of(&fs, 1).await;
        assert!(now.iter().all(|copy| !old.contains(copy)), "{now:?}");
        // Others use its blocks.
        let ino = make_as(&fs, "file", "raid5").await;
        let bytes = pattern(6 << 20, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        rt.sleep(20 * SECOND).await;
        let more = make_as(&fs, "more", "raid5").await;
        write(&fs, more, 0, &pattern(6 << 20, 2)).await;
        fs.sync().await.expect("synced");
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

/// Blocks wait at a node that find no room below its disks. Another node that wants everything
/// waits for some seconds, and the users of the blocks are told.
#[test]
fn a_node_that_has_no_room_for_what_waits_keeps_no_one_waiting() {
    run(|rt| async move {
        let disks = blank(&rt, 5);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let own = for_host(&rt, &disks, 1);
        let other = joined(&rt, &all(&own), &network, (1, 7)).await;
        let (ino, bytes) = synced_file(&other, "raid5", 100_000).await;
        other.begin_use(ino);
        let log = log_of(&fs, 1).await;
        for (number, disk) in own.iter().enumerate() {
            let label = Label::read(&**disk).await.expect("readable").expect("a label");
            let data = label.data();
            let ring = log.iter().filter(|copy| usize::from(copy.disk) == number);
            let ring: Vec<_> = ring.flat_map(|copy| copy.blocks.clone()).collect();
            let room = move |at: u64, _: u64, is_there: bool| {
                let block = at.saturating_sub(data.start) / BLOCK;
                let is_ring = ring.iter().any(|run| run.contains(&block));
                (data.contains(&at) && !is_there && !is_ring).then_some(0)
            };
            *disk.faults.room.borrow_mut() = Some(Box::new(room));
        }
        write(&other, ino, 1 << 20, &pattern(200_000, 2)).await;
        // For that node 0 takes the token of everything exclusively.
        let lost = (0..5).find(|n| !log_disks(&log).contains(n)).expect("one without a log");
        let rebuilding = Box::pin(async {
            fs.fail_disk(lost).await.expect("failed");
            fs.rebuild().await
        });
        let late = Box::pin(rt.sleep(55 * SECOND));
        match futures_util::future::select(rebuilding, late).await {
            futures_util::future::Either::Left((report, _)) => {
                assert_eq!(report.expect("rebuilt").removed_disks, [lost]);
            }
            futures_util::future::Either::Right(_) => panic!("it waits for the node"),
        }
        assert!(read_all(&fs, ino).await[..bytes.len()] == bytes);
        own.iter().for_each(|disk| *disk.faults.room.borrow_mut() = None);
        let told = other.fsync(ino).await;
        assert!(matches!(told, Err(FsError::NoSpace)), "{told:?}");
        other.fsync(ino).await.expect("it was told");
        write(&other, ino, 1 << 20, &pattern(200_000, 3)).await;
        other.fsync(ino).await.expect("there is room");
        assert!(matches!(other.sync().await, Err(FsError::NoSpace)), "this tells it once as well");
        other.unmount().await.expect("unmounted");
        assert_sound(&fs).await;
    });
}
