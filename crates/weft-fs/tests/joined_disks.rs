//! Disks that join while other nodes are mounted, or come back: the nodes open them themselves, and
//! use those that they do not reach through the keeper.

use std::rc::Rc;

use crate::common::cluster::*;
use crate::common::disk::TestDisk;
use crate::common::network::Network;
use crate::common::test_disks::{blank, for_host};
use crate::common::*;
use weft_fs::{DiskStatus, Fs, Ino};
use weft_rt::Rt;

/// No disks.
const NONE: [u16; 0] = [];

/// Node 0 on four disks, and node 1 in epoch 7, with paths of its own to these and a fifth one.
struct Nodes {
    disks: Vec<Rc<TestDisk>>,
    own: Vec<Rc<TestDisk>>,
    network: Rc<Network>,
    fs: Fs,
    of_node: Rt,
    other: Fs,
    ino: Ino,
    bytes: Vec<u8>,
}

impl Nodes {
    async fn new(rt: &Rt) -> Self {
        let disks = blank(rt, 5);
        let (network, fs) = node_0(rt, &all(&disks[..4])).await;
        let (ino, bytes) = synced_file(&fs, "raid5", 200_000).await;
        let of_node = rt.domain(|| {});
        let own = for_host(&of_node, &disks, 1);
        cut_paths(&fs, vec![(1, own.clone())]);
        let other = joined_opening(&of_node, (&own, 4), &network, (1, 7)).await;
        assert!(read_all(&other, ino).await == bytes);
        Self { disks, own, network, fs, of_node, other, ino, bytes }
    }

    async fn overwrite(&mut self, version: u64) {
        overwrite(&self.other, self.ino, &mut self.bytes, 0..150_000, version).await;
    }

    /// Node 1 writes a file to all disks that work. Returns these.
    async fn writes_to(&self, name: &str) -> Vec<u16> {
        let ino = make_as(&self.other, name, "raid5").await;
        write(&self.other, ino, 0, &pattern(2_000_000, 9)).await;
        self.other.fsync(ino).await.expect("synced");
        assert!(read_all(&self.fs, ino).await == pattern(2_000_000, 9));
        let places = self.other.places(ino).await.expect("known");
        let columns = places.iter().flat_map(|(_, record)| record.columns.iter().flatten());
        let mut disks: Vec<u16> = columns.map(|column| column.disk).collect();
        disks.sort_unstable();
        disks.dedup();
        disks
    }

    /// The node dies, and is recovered. All that it had synced is there, and it mounts again.
    async fn die(self) {
        let Self { own, disks, network, fs, of_node, other, ino, bytes } = self;
        of_node.fail_domain();
        drop(other);
        own.iter().for_each(|disk| disk.end_writes(|sectors| sectors / 2));
        die(&fs, &network, 1, 7).await;
        assert!(read_all(&fs, ino).await == bytes);
        let rt = of_node.domain(|| {});
        let own = for_host(&rt, &disks, 2);
        let again = joined_opening(&rt, (&own, 1), &network, (1, 8)).await;
        assert!(read_all(&again, ino).await == bytes);
        assert_eq!(numbers(&again, |disk| disk.through_keeper).await, NONE, "it opened the rest");
        again.unmount().await.expect("unmounted");
        assert_sound(&fs).await;
    }
}

async fn numbers(fs: &Fs, is: impl Fn(&DiskStatus) -> bool) -> Vec<u16> {
    let disks = fs.status().await.expect("known").disks;
    disks.iter().filter(|disk| is(disk)).map(|disk| disk.number).collect()
}

async fn relayed(fs: &Fs) -> Vec<u16> {
    numbers(fs, |disk| disk.through_keeper).await
}

async fn lost(fs: &Fs) -> Vec<u16> {
    numbers(fs, |disk| disk.lost).await
}

#[test]
fn a_disk_that_joins_is_used_by_nodes_that_are_mounted() {
    run(|rt| async move {
        let mut nodes = Nodes::new(&rt).await;
        // One that cannot open disks at all.
        let third = joined(&rt, &all(&nodes.disks[..4]), &nodes.network, (2, 7)).await;
        assert!(read_all(&third, nodes.ino).await == nodes.bytes);
        nodes.overwrite(2).await;
        nodes.fs.add_disk(nodes.disks[4].clone(), false).await.expect("added");
        nodes.overwrite(3).await;
        assert_eq!(
            (relayed(&nodes.other).await, relayed(&third).await),
            (NONE.into(), NONE.into())
        );
        assert_eq!(nodes.writes_to("new").await, [0, 1, 2, 3, 4]);
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
        nodes.die().await;
    });
}

#[test]
fn a_node_uses_a_joined_disk_through_the_keeper_if_its_own_path_fails() {
    run(|rt| async move {
        let mut nodes = Nodes::new(&rt).await;
        nodes.own[4].faults.gone.set(true);
        nodes.fs.add_disk(nodes.disks[4].clone(), false).await.expect("added");
        nodes.overwrite(2).await;
        assert_eq!((relayed(&nodes.other).await, lost(&nodes.other).await), (vec![4], vec![]));
        assert_eq!(nodes.writes_to("new").await, [0, 1, 2, 3, 4]);
        assert_eq!(lost(&nodes.fs).await, NONE);
        nodes.die().await;
    });
}

#[test]
fn a_joined_disk_that_no_one_reaches_is_lost_and_the_node_goes_on() {
    run(|rt| async move {
        let mut nodes = Nodes::new(&rt).await;
        nodes.fs.add_disk(nodes.disks[4].clone(), false).await.expect("added");
        nodes.own[4].faults.gone.set(true);
        nodes.disks[4].faults.gone.set(true);
        nodes.overwrite(2).await;
        assert_eq!(lost(&nodes.other).await, [4]);
        assert_eq!(nodes.writes_to("new").await, [0, 1, 2, 3]);
        assert_eq!(lost(&nodes.fs).await, [4]);
        nodes.fs.rebuild().await.expect("rebuilt");
        nodes.overwrite(3).await;
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
            let mut nodes = Nodes::new(&rt).await;
            if had_lost_path {
                nodes.own[2].faults.gone.set(true);
            }
            for version in 2..5 {
                nodes.overwrite(version).await;
            }
            nodes.fs.fail_disk(2).await.expect("out of service");
            nodes.overwrite(5).await;
            let number = nodes.fs.add_disk(nodes.disks[2].clone(), false).await.expect("back");
            nodes.overwrite(6).await;
            let wanted = if had_lost_path { vec![number] } else { vec![] };
            assert_eq!(relayed(&nodes.other).await, wanted);
            assert_eq!(lost(&nodes.other).await, [2]);
            assert!(nodes.writes_to("new").await.contains(&number));
            nodes.fs.rebuild().await.expect("rebuilt");
            nodes.overwrite(7).await;
            assert_eq!(lost(&nodes.other).await, NONE);
            // It leaves for good, and nodes stop using it.
            let report = nodes.fs.remove_disk(number).await.expect("removed");
            assert_eq!(report.removed_disks, [number]);
            nodes.overwrite(8).await;
            assert_eq!(numbers(&nodes.other, |_| true).await, [0, 1, 3]);
            nodes.other.unmount().await.expect("unmounted");
            assert!(read_all(&nodes.fs, nodes.ino).await == nodes.bytes);
            assert_sound(&nodes.fs).await;
        });
    }
}
