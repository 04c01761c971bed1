//! Disks that join while other nodes are mounted, or come back: the nodes open them themselves, and
//! use those that they do not reach through the keeper.

use std::rc::Rc;

use crate::common::cluster::*;
use crate::common::disk::TestDisk;
use crate::common::network::Network;
use crate::common::test_disks::for_host;
use crate::common::*;
use weft_rt::Rt;

/// Node 0 on four disks, and node 1 with paths of its own to these and a fifth one.
async fn nodes(rt: &Rt) -> OwnPaths {
    let joins = async |rt: &Rt, own: &[Rc<TestDisk>], network: &Rc<Network>| {
        joined_opening(rt, (own, 4), network, (1, 7)).await
    };
    let nodes = OwnPaths::new(rt, (5, 4), joins).await;
    assert!(read_all(&nodes.other, nodes.ino).await == nodes.bytes);
    nodes
}

async fn overwrite_much(nodes: &mut OwnPaths, version: u64) {
    nodes.overwrite(0..150_000, version).await;
}

/// Node 1 writes a file to all disks that work. Returns these.
async fn writes_to(nodes: &OwnPaths, name: &str) -> Vec<u16> {
    let ino = make_as(&nodes.other, name, "raid5").await;
    write(&nodes.other, ino, 0, &pattern(2_000_000, 9)).await;
    nodes.other.fsync(ino).await.expect("synced");
    assert!(read_all(&nodes.fs, ino).await == pattern(2_000_000, 9));
    let places = nodes.other.places(ino).await.expect("known");
    let columns = places.iter().flat_map(|(_, record)| record.columns.iter().flatten());
    let mut disks: Vec<u16> = columns.map(|column| column.disk).collect();
    disks.sort_unstable();
    disks.dedup();
    disks
}

/// Node 1 dies, and is recovered. All that it had synced is there, and it mounts again.
async fn die_and_mount(nodes: OwnPaths) {
    let (disks, network, ino) = (nodes.disks.clone(), nodes.network.clone(), nodes.ino);
    let (of_node, bytes) = (nodes.of_node.clone(), nodes.bytes.clone());
    let fs = nodes.die().await;
    let rt = of_node.domain(|| {});
    let own = for_host(&rt, &disks, 2);
    let again = joined_opening(&rt, (&own, 1), &network, (1, 8)).await;
    assert!(read_all(&again, ino).await == bytes);
    assert_eq!(numbers(&again, |disk| disk.through_keeper).await, NONE, "it opened the rest");
    again.unmount().await.expect("unmounted");
    assert_sound(&fs).await;
}

#[test]
fn a_disk_that_joins_is_used_by_nodes_that_are_mounted() {
    run(|rt| async move {
        let mut nodes = nodes(&rt).await;
        // One that cannot open disks at all.
        let third = joined(&rt, &all(&nodes.disks[..4]), &nodes.network, (2, 7)).await;
        assert!(read_all(&third, nodes.ino).await == nodes.bytes);
        overwrite_much(&mut nodes, 2).await;
        nodes.fs.add_disk(nodes.disks[4].clone(), false).await.expect("added");
        overwrite_much(&mut nodes, 3).await;
        assert_eq!(
            (relayed(&nodes.other).await, relayed(&third).await),
            (NONE.into(), NONE.into())
        );
        assert_eq!(writes_to(&nodes, "new").await, [0, 1, 2, 3, 4]);
        assert!(read_all(&third, nodes.ino).await == nodes.bytes);
        assert_eq!(relayed(&third).await, [4]);
        assert_eq!(relayed(&nodes.other).await, NONE);
        let ino = make_as(&third, "third", "raid5").await;
        write(&third, ino, 0, &pattern(500_000, 4)).await;
        third.fsync(ino).await.expect("synced");
        assert!(read_all(&nodes.other, ino).await == pattern(500_000, 4));
        for fs in [&nodes.fs, &nodes.other, &third] {
            assert_eq!(lost(fs).await, NONE);
        }
        third.unmount().await.expect("unmounted");
        die_and_mount(nodes).await;
    });
}

#[test]
fn a_node_uses_a_joined_disk_through_the_keeper_if_its_own_path_fails() {
    run(|rt| async move {
        let mut nodes = nodes(&rt).await;
        nodes.own[4].faults.gone.set(true);
        nodes.fs.add_disk(nodes.disks[4].clone(), false).await.expect("added");
        overwrite_much(&mut nodes, 2).await;
        assert_eq!((relayed(&nodes.other).await, lost(&nodes.other).await), (vec![4], vec![]));
        assert_eq!(writes_to(&nodes, "new").await, [0, 1, 2, 3, 4]);
        assert_eq!(lost(&nodes.fs).await, NONE);
        die_and_mount(nodes).await;
    });
}

#[test]
fn a_joined_disk_that_no_one_reaches_is_lost_and_the_node_goes_on() {
    run(|rt| async move {
        let mut nodes = nodes(&rt).await;
        nodes.fs.add_disk(nodes.disks[4].clone(), false).await.expect("added");
        nodes.own[4].faults.gone.set(true);
        nodes.disks[4].faults.gone.set(true);
        overwrite_much(&mut nodes, 2).await;
        assert_eq!(lost(&nodes.other).await, [4]);
        assert_eq!(writes_to(&nodes, "new").await, [0, 1, 2, 3]);
        assert_eq!(lost(&nodes.fs).await, [4]);
        nodes.fs.rebuild().await.expect("rebuilt");
        overwrite_much(&mut nodes, 3).await;
        nodes.other.unmount().await.expect("unmounted");
        assert!(read_all(&nodes.fs, nodes.ino).await == nodes.bytes);
        assert_sound(&nodes.fs).await;
    });
}

/// It has another number then. A node that had lost its path is refused by the disk.
#[test]
fn a_disk_that_comes_back_is_used_again_by_the_ways_that_nodes_may_go() {
    for had_lost_path in [false, true] {
        run(move |rt| async move {
            let mut nodes = nodes(&rt).await;
            if had_lost_path {
                nodes.own[2].faults.gone.set(true);
            }
            for version in 2..5 {
                overwrite_much(&mut nodes, version).await;
            }
            nodes.fs.fail_disk(2).await.expect("out of service");
            overwrite_much(&mut nodes, 5).await;
            let number = nodes.fs.add_disk(nodes.disks[2].clone(), false).await.expect("back");
            overwrite_much(&mut nodes, 6).await;
            let wanted = if had_lost_path { vec![number] } else { vec![] };
            assert_eq!(relayed(&nodes.other).await, wanted);
            assert_eq!(lost(&nodes.other).await, [2]);
            assert!(writes_to(&nodes, "new").await.contains(&number));
            nodes.fs.rebuild().await.expect("rebuilt");
            overwrite_much(&mut nodes, 7).await;
            assert_eq!(lost(&nodes.other).await, NONE);
            // It leaves for good, and nodes stop using it.
            let report = nodes.fs.remove_disk(number).await.expect("removed");
            assert_eq!(report.removed_disks, [number]);
            overwrite_much(&mut nodes, 8).await;
            assert_eq!(numbers(&nodes.other, |_| true).await, [0, 1, 3]);
            nodes.other.unmount().await.expect("unmounted");
            assert!(read_all(&nodes.fs, nodes.ino).await == nodes.bytes);
            assert_sound(&nodes.fs).await;
        });
    }
}
