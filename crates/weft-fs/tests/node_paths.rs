//! A node that loses its path to a disk which works for others: no disk is lost, and the node goes
//! on through the keeper. Nothing that was sent before comes after what is sent later.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::cluster::*;
use crate::common::disk::TestDisk;
use crate::common::network::Network;
use crate::common::test_disks::{blank, for_host};
use crate::common::*;
use weft_fs::{FsError, Label};
use weft_rt::{MILLISECOND, Rt, SECOND};
use weft_token::NodeId;

/// Node 0, and node 1 with paths of its own to all disks.
async fn paths(rt: &Rt, count: usize) -> OwnPaths {
    let joins = async |rt: &Rt, own: &[Rc<TestDisk>], network: &Rc<Network>| {
        joined(rt, &all(own), network, (1, 7)).await
    };
    OwnPaths::new(rt, (count, count), joins).await
}

/// Each way to fail: requests are refused, or their writes come late.
fn fail(disk: &TestDisk, is_late: bool) {
    disk.faults.gone.set(!is_late);
    disk.faults.cut.set(is_late);
}

#[test]
fn a_disk_that_one_node_cannot_reach_is_lost_for_none() {
    for is_late in [false, true] {
        run(move |rt| async move {
            let mut nodes = paths(&rt, 4).await;
            let third = joined(&rt, &all(&nodes.disks), &nodes.network, (2, 7)).await;
            nodes.overwrite(0..4096, 2).await;
            fail(&nodes.own[2], is_late);
            for version in 3..6 {
                nodes.overwrite(10_000..150_000, version).await;
            }
            assert_eq!(relayed(&nodes.other).await, [2]);
            for fs in [&nodes.fs, &nodes.other, &third] {
                assert_eq!(lost(fs).await, NONE);
            }
            let node = NodeId { number: 1, epoch: 7 };
            assert_eq!(nodes.fs.relayed_disks(), [(node, 2)]);
            let status = nodes.fs.status().await.expect("known");
            assert_eq!(status.disks[2].relayed_for, [1]);
            assert!(read_all(&third, nodes.ino).await == nodes.bytes);
            assert!(read_all(&nodes.other, nodes.ino).await == nodes.bytes);
            // What comes late by the old path does no harm.
            rt.sleep(2 * SECOND).await;
            assert!(read_all(&nodes.fs, nodes.ino).await == nodes.bytes);
            nodes.other.unmount().await.expect("unmounted");
            assert!(nodes.fs.relayed_disks().is_empty());
            let own = for_host(&rt, &nodes.disks, 2);
            let again = joined(&rt, &all(&own), &nodes.network, (1, 8)).await;
            assert_eq!(relayed(&again).await, NONE, "it uses its own paths again");
            assert!(read_all(&again, nodes.ino).await == nodes.bytes);
            assert_sound(&nodes.fs).await;
        });
    }
}

/// Blocks that are wrong, as an old write has come after a newer one.
async fn wrong_blocks(rt: &Rt, failing: usize, is_cut: bool) -> u64 {
    let mut nodes = paths(rt, 5).await;
    nodes.overwrite(0..100_000, 2).await;
    if !is_cut {
        nodes.fs.cut_paths_by(|_, _| async { true });
    }
    nodes.own[failing].faults.cut.set(true);
    // Few blocks stay in their places.
    for version in 3..9 {
        nodes.overwrite(0..12_288, version).await;
    }
    assert_eq!(lost(&nodes.fs).await, NONE);
    rt.sleep(2 * SECOND).await;
    nodes.other.unmount().await.expect("unmounted");
    // Redundancy hides it.
    let again = for_host(rt, &nodes.disks, 2);
    let again = joined(rt, &all(&again), &nodes.network, (1, 8)).await;
    assert!(read_all(&again, nodes.ino).await == nodes.bytes);
    again.status().await.expect("known").counts.wrong_blocks
}

#[test]
fn nothing_comes_late_by_a_path_that_is_cut_off() {
    run(|rt| async move {
        let mut wrong = 0;
        for failing in 0..5 {
            assert_eq!(wrong_blocks(&rt, failing, true).await, 0);
            wrong += wrong_blocks(&rt, failing, false).await;
        }
        assert!(wrong > 0, "what is not cut off comes late");
    });
}

/// Also its log is on disks that it reaches only there.
#[test]
fn a_node_that_reaches_no_disk_goes_on_through_the_keeper() {
    for is_late in [false, true] {
        run(move |rt| async move {
            let mut nodes = paths(&rt, 4).await;
            nodes.overwrite(0..100_000, 2).await;
            let new = make_as(&nodes.other, "new", "raid1").await;
            write(&nodes.other, new, 0, &pattern(100_000, 3)).await;
            nodes.own.iter().for_each(|disk| fail(disk, is_late));
            nodes.other.fsync(new).await.expect("synced");
            nodes.overwrite(5_000..9_000, 4).await;
            nodes.overwrite(20_000..180_000, 5).await;
            assert_eq!(relayed(&nodes.other).await, [0, 1, 2, 3]);
            assert_eq!(lost(&nodes.fs).await, NONE);
            assert!(read_all(&nodes.fs, new).await == pattern(100_000, 3));
            nodes.overwrite(0..4096, 6).await;
            nodes.die().await;
        });
    }
}

#[test]
fn a_disk_that_node_0_cannot_reach_either_is_lost_for_all() {
    run(|rt| async move {
        let mut nodes = paths(&rt, 4).await;
        let third = for_host(&rt, &nodes.disks, 3);
        let third = joined(&rt, &all(&third), &nodes.network, (2, 7)).await;
        assert!(read_all(&third, nodes.ino).await == nodes.bytes);
        for disk in [&nodes.own[2], &nodes.disks[2]] {
            disk.faults.gone.set(true);
        }
        for version in 2..4 {
            nodes.overwrite(10_000..150_000, version).await;
        }
        for fs in [&nodes.fs, &nodes.other, &third] {
            assert_eq!(lost(fs).await, [2]);
        }
        assert!(read_all(&third, nodes.ino).await == nodes.bytes);
        nodes.overwrite(0..5000, 9).await;
        let (fs, ino, bytes) = (nodes.fs.clone(), nodes.ino, nodes.bytes.clone());
        nodes.die().await;
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.removed_disks, [2]);
        assert!(read_all(&third, ino).await == bytes);
        assert_eq!(lost(&third).await, NONE);
        third.unmount().await.expect("unmounted");
        assert_sound(&fs).await;
    });
}

/// It may still have requests there, which could come after newer ones.
#[test]
fn a_node_stops_if_a_disk_does_not_refuse_what_it_has_sent_there() {
    run(|rt| async move {
        let mut nodes = paths(&rt, 4).await;
        let tries = Rc::new(Cell::new(0));
        let count = tries.clone();
        nodes.fs.cut_paths_by(move |_, _| {
            count.set(count.get() + 1);
            async { false }
        });
        nodes.overwrite(10_000..150_000, 2).await;
        fail(&nodes.own[2], true);
        let new = make_as(&nodes.other, "new", "raid5").await;
        write(&nodes.other, new, 0, &pattern(100_000, 3)).await;
        assert!(nodes.other.fsync(new).await.is_err());
        assert!(tries.get() > 1, "it is tried again");
        let stopped = nodes.other.sync().await;
        let Err(FsError::Stopped(why)) = stopped else { panic!("{stopped:?}") };
        assert!(why.contains("its path to test2 has failed"), "{why}");
        assert_eq!(lost(&nodes.fs).await, NONE);
        nodes.die().await;
    });
}

/// A disk without power has forgotten what was not flushed: then it is no matter of the path.
#[test]
fn a_disk_that_has_forgotten_writes_is_lost_although_it_works_again() {
    run(|rt| async move {
        let mut nodes = paths(&rt, 4).await;
        let new = make_as(&nodes.other, "new", "raid5").await;
        let bytes = pattern(100_000, 3);
        write(&nodes.other, new, 0, &bytes).await;
        nodes.other.write_back(new).await.expect("written");
        let left = crate::common::disk::Leave::Nothing.of(&nodes.disks[2].medium.borrow());
        *nodes.disks[2].medium.borrow_mut() = left;
        nodes.own[2].faults.gone.set(true);
        nodes.other.fsync(new).await.expect("synced");
        assert_eq!(lost(&nodes.other).await, [2]);
        assert!(read_all(&nodes.fs, new).await == bytes);
        assert_eq!(lost(&nodes.fs).await, [2]);
        nodes.overwrite(0..4096, 4).await;
        nodes.die().await;
    });
}

#[test]
fn a_node_mounts_without_a_disk_that_it_does_not_reach() {
    run(|rt| async move {
        let nodes = paths(&rt, 4).await;
        nodes.other.unmount().await.expect("unmounted");
        let mut own = for_host(&rt, &nodes.disks, 2);
        own.remove(1);
        own[1].faults.gone.set(true);
        let again = joined(&rt, &all(&own), &nodes.network, (1, 8)).await;
        assert_eq!(relayed(&again).await, [1, 2]);
        assert_eq!(lost(&nodes.fs).await, NONE);
        let mut bytes = nodes.bytes;
        overwrite(&again, nodes.ino, &mut bytes, 3_000..150_000, 5).await;
        assert!(read_all(&nodes.fs, nodes.ino).await == bytes);
        again.unmount().await.expect("unmounted");
        assert_sound(&nodes.fs).await;
    });
}

/// Node 0 has a write of another node on its way to a disk, and that does not end.
async fn with_held_write(nodes: &mut OwnPaths) {
    nodes.own.iter().for_each(|disk| disk.faults.gone.set(true));
    nodes.overwrite(0..4096, 2).await;
    let label = Label::read(&*nodes.disks[0]).await.expect("readable").expect("a label");
    nodes.disks.iter().for_each(|disk| disk.faults.hold(label.data(), 0));
    write(&nodes.other, nodes.ino, 0, &pattern(4096, 3)).await;
    let (other, ino) = (nodes.other.clone(), nodes.ino);
    drop(nodes.of_node.spawn(async move { other.fsync(ino).await }));
}

#[test]
fn a_node_is_fenced_only_when_what_it_sent_through_the_keeper_has_ended() {
    run(|rt| async move {
        let mut nodes = paths(&rt, 4).await;
        with_held_write(&mut nodes).await;
        rt.sleep(100 * MILLISECOND).await;
        nodes.of_node.fail_domain();
        let is_fenced = Rc::new(Cell::new(false));
        let (told, keeper) = (is_fenced.clone(), nodes.network.keeper());
        let fencing = rt.spawn(async move {
            keeper.fence(NodeId { number: 1, epoch: 7 }).await.expect("durable");
            told.set(true);
        });
        rt.sleep(5 * SECOND).await;
        assert!(!is_fenced.get(), "a write of it may still come");
        nodes.disks.iter().for_each(|disk| disk.faults.release());
        fencing.await;
        nodes.fs.recover_node(NodeId { number: 1, epoch: 7 }).await.expect("recovered");
        let found = read_all(&nodes.fs, nodes.ino).await;
        let is_new = found[..4096] == pattern(4096, 3);
        assert!(is_new || found[..4096] == nodes.bytes[..4096]);
        assert!(found[4096..] == nodes.bytes[4096..]);
        assert_sound(&nodes.fs).await;
    });
}

#[test]
fn a_connection_waits_for_what_was_sent_on_the_one_before_it() {
    run(|rt| async move {
        let mut nodes = paths(&rt, 4).await;
        with_held_write(&mut nodes).await;
        for _ in 0..3 {
            rt.sleep(100 * MILLISECOND).await;
            nodes.network.cut();
        }
        rt.sleep(3 * SECOND).await;
        // Node 0 writes metadata.
        let label = Label::read(&*nodes.disks[0]).await.expect("readable").expect("a label");
        let count = |disk: &Rc<TestDisk>| {
            let writes = disk.writes.borrow();
            writes.iter().filter(|(at, _)| label.data().contains(at)).count()
        };
        let counts = || nodes.disks.iter().map(count).sum::<usize>();
        let before = counts();
        rt.sleep(3 * SECOND).await;
        assert_eq!(before, counts(), "nothing comes while the old write may");
        nodes.disks.iter().for_each(|disk| disk.faults.release());
        nodes.bytes[..4096].copy_from_slice(&pattern(4096, 3));
        nodes.other.fsync(nodes.ino).await.expect("synced");
        nodes.overwrite(2_000..50_000, 4).await;
        nodes.die().await;
    });
}

/// Each write of the node is on its way when the connection ends, again and again.
#[test]
fn a_node_goes_on_through_the_keeper_on_many_connections() {
    for seed in 0..6 {
        run(move |rt| async move {
            let mut nodes = paths(&rt, 4).await;
            let way = nodes.network.clone();
            nodes.own[seed % 4].faults.cut.set(true);
            nodes.own[(seed + 1) % 4].faults.cut.set(true);
            let weather = rt.domain(|| {});
            let weather_rt = rt.clone();
            drop(weather.spawn(async move {
                loop {
                    way.cut();
                    weather_rt.sleep((30 + 7 * seed as u64) * MILLISECOND).await;
                }
            }));
            for version in 2..12 {
                let from = 7_000 * version as usize;
                nodes.overwrite(from..from + 60_000, version).await;
            }
            weather.fail_domain();
            assert_eq!(lost(&nodes.fs).await, NONE);
            nodes.die().await;
        });
    }
}

/// Lost parity has no checksum. A node that took what it finds there for parity would put it, with
/// the checksum of that, into a line that counts on it when the disk is back.
#[test]
fn a_node_knows_that_a_disk_is_lost_before_it_uses_a_line_which_that_has_missed() {
    run(|rt| async move {
        let disks = blank(&rt, 6);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let mut others = Vec::new();
        for n in 0..12 {
            let other = make_as(&fs, &n.to_string(), "raid1").await;
            write(&fs, other, 0, &pattern(30_000, n)).await;
            others.push(other);
        }
        let (ino, mut bytes) = synced_file(&fs, "raid5", 400_000).await;
        let (one, two) = (for_host(&rt, &disks, 1), for_host(&rt, &disks, 2));
        let one_fs = joined(&rt, &all(&one), &network, (1, 7)).await;
        let two_fs = joined(&rt, &all(&two), &network, (2, 7)).await;
        let (first, record) = fs.places(ino).await.expect("known").remove(0);
        assert_eq!((first, record.columns.len()), (0, 6));
        let disk_of = |unit: usize| usize::from(record.columns[unit].as_ref().expect("there").disk);
        let parity = disk_of(5);
        // It fails for node 0 and the first node, and not for the second one.
        for failing in [&disks[parity], &one[parity]] {
            failing.faults.gone.set(true);
        }
        for other in others {
            read_all(&one_fs, other).await;
        }
        assert_eq!(lost(&one_fs).await, [parity as u16], "it is in no row yet");
        bytes[..4096].copy_from_slice(&pattern(4096, 2));
        write(&one_fs, ino, 0, &bytes[..4096]).await;
        // It waits for the file, and has the token of everything from before the loss on.
        bytes[4096..8192].copy_from_slice(&pattern(4096, 3));
        write(&two_fs, ino, 4096, &bytes[4096..8192]).await;
        two_fs.sync().await.expect("synced");
        assert_eq!(lost(&two_fs).await, [parity as u16]);
        for node in [one_fs, two_fs] {
            node.unmount().await.expect("unmounted");
        }
        assert_eq!(lost(&fs).await, [parity as u16]);
        disks[parity].faults.gone.set(false);
        fs.add_disk(disks[parity].clone(), false).await.expect("taken back");
        fs.rebuild().await.expect("rebuilt");
        fs.fail_disk(disk_of(2) as u16).await.expect("out of service");
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

/// Otherwise the requests would wait as long as the node does, and then as long as node 0 does.
#[test]
fn node_0_looks_at_a_disk_as_soon_as_requests_of_a_node_wait_there() {
    for is_gone in [false, true] {
        run(move |rt| async move {
            let OwnPaths { disks, own, fs, other, ino, network, .. } = paths(&rt, 4).await;
            own[2].faults.stuck.set(true);
            disks[2].faults.gone.set(is_gone);
            disks[2].reads.borrow_mut().clear();
            let writer = other.clone();
            let writing = rt.spawn(async move {
                write(&writer, ino, 0, &pattern(200_000, 2)).await;
                writer.fsync(ino).await.expect("synced");
            });
            rt.sleep(4 * SECOND).await;
            assert!(disks[2].reads.borrow().contains(&(0, 4096)), "it has looked");
            assert_eq!(lost(&fs).await, if is_gone { vec![2] } else { vec![] });
            assert_eq!(lost(&other).await, lost(&fs).await);
            own[2].faults.stuck.set(false);
            writing.await;
            assert_eq!(relayed(&other).await, NONE);
            assert!(read_all(&fs, ino).await == pattern(200_000, 2));
            other.unmount().await.expect("unmounted");
            assert_sound(&fs).await;
            drop(network);
        });
    }
}
