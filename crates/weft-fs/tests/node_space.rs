//! Free blocks of the disks go from node 0 to other nodes and back: no block has two owners, nobody
//! is refused room that is there, and what dead nodes had is found again.

use std::rc::Rc;

use crate::common::cluster::{Door, die, joined, node, node_0_at, node_0_in};
use crate::common::network::Network;
use crate::common::space::{fill_up, free_blocks};
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, FsError};
use weft_random::Rng;
use weft_rt::{Frozen, MILLISECOND, Rt, SECOND};
use weft_testkit::for_seeds;
use weft_token::NodeId;

/// A cluster: the network, and its nodes, of which the first has the keeper.
struct Cluster {
    network: Rc<Network>,
    nodes: Vec<Fs>,
}

impl Cluster {
    async fn new(rt: &Rt, disks: &[Rc<dyn Disk>], nodes: u16, seed: u64) -> Self {
        Self::with_keeper_on(rt, rt, disks, nodes, seed).await
    }

    /// With a node 0 that has a domain of its own, in which it can die.
    async fn with_keeper_on(
        domain: &Rt,
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        nodes: u16,
        seed: u64,
    ) -> Self {
        let (network, keeper) = node_0_in(domain, rt, disks, seed).await;
        let mut cluster = Self { network, nodes: vec![keeper] };
        for number in 1..=nodes {
            let node = cluster.mount(rt, disks, number, 7).await;
            cluster.nodes.push(node);
        }
        cluster
    }

    async fn mount(&self, rt: &Rt, disks: &[Rc<dyn Disk>], number: u16, epoch: u64) -> Fs {
        self.nodes[0].prepare_node(number).await.expect("prepared");
        joined(rt, disks, &self.network, (number, epoch)).await
    }

    /// The nodes end, and the last one with the keeper. Then the blocks that are free are those of
    /// which no record says otherwise.
    async fn end(self, rt: &Rt, disks: &[Rc<dyn Disk>]) -> Fs {
        // Files without names go when each node has said that it does not use them.
        rt.sleep(30 * SECOND).await;
        let (keeper, others) = self.nodes.split_first().expect("there are some");
        for node in others {
            node.unmount().await.expect("unmounted");
        }
        keeper.sync().await.expect("synced");
        let free = free_blocks(keeper).await;
        keeper.unmount().await.expect("unmounted");
        drop(self);
        let fs = mount(rt, disks).await;
        assert_sound(&fs).await;
        assert_eq!(free, free_blocks(&fs).await, "node 0 has all free blocks, and no others");
        fs
    }
}

#[test]
fn a_node_writes_to_blocks_that_were_granted_and_gives_back_the_rest() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24, 24]);
        let cluster = Cluster::new(&rt, &disks, 1, 1).await;
        let (keeper, node) = (&cluster.nodes[0], &cluster.nodes[1]);
        let ino = make_as(keeper, "file", "raid5").await;
        let before = keeper.free_bytes("raid5".parse().expect("known"));
        let bytes = pattern(4 << 20, 1);
        for (n, part) in bytes.chunks(64 << 10).enumerate() {
            write(node, ino, (n * (64 << 10)) as u64, part).await;
        }
        node.sync().await.expect("synced");
        let places = node.places(ino).await.expect("known");
        assert!(places.iter().all(|(_, record)| record.columns.len() == 4), "on all disks");
        assert!(read_all(keeper, ino).await == bytes);
        rt.sleep(20 * SECOND).await;
        // Both know what is free, wherever it is.
        let redundancy = "raid5".parse().expect("known");
        let (here, there) = (keeper.free_bytes(redundancy), node.free_bytes(redundancy));
        assert!(here.abs_diff(there) < 1 << 20, "{here} and {there}");
        assert!(before - here >= 4 << 20 && before - here < 5 << 20, "{before} and {here}");
        let fs = cluster.end(&rt, &disks).await;
        assert!(read_all(&fs, ino).await == bytes);
    });
}

#[test]
fn what_one_node_frees_another_one_can_have() {
    run(|rt| async move {
        let disks = ram(&[16, 16, 16]);
        let cluster = Cluster::new(&rt, &disks, 2, 2).await;
        let [_, first, second] = &cluster.nodes[..] else { panic!("three") };
        for turn in 0..6 {
            let (writer, other) = if turn % 2 == 0 { (first, second) } else { (second, first) };
            let ino = make_as(writer, "file", "none").await;
            let held = fill_up(writer, ino, 64 << 10).await;
            assert!(held.len() > 15 << 20, "{} in turn {turn}", held.len());
            writer.sync().await.expect("what was taken has its room");
            assert!(read_all(other, ino).await == held);
            other.unlink(weft_fs::ROOT, b"file").await.expect("removed");
            // It was open where it was made.
            writer.end_uses(ino, u64::MAX).await.expect("ended");
            writer.sync().await.expect("synced");
            // The contents go when each node has said that it does not use them.
            rt.sleep(20 * SECOND).await;
            other.sync().await.expect("synced");
        }
        cluster.end(&rt, &disks).await;
    });
}

#[test]
fn nodes_that_fill_the_disks_together_find_all_the_room_that_there_is() {
    for redundancy in ["none", "raid1", "raid5"] {
        run(move |rt| async move {
            let disks = ram(&[16, 20, 18, 16]);
            let alone = made(&rt, &disks).await;
            let ino = make_as(&alone, "file", redundancy).await;
            let all = fill_up(&alone, ino, 16 << 10).await.len();
            drop(alone);
            let disks = ram(&[16, 20, 18, 16]);
            let cluster = Cluster::new(&rt, &disks, 2, 3).await;
            let mut files = Vec::new();
            for (n, node) in cluster.nodes.iter().enumerate() {
                files.push((node.clone(), make_as(node, &format!("f{n}"), redundancy).await));
            }
            let fills = files.iter().map(|(node, ino)| fill_up(node, *ino, 16 << 10));
            let held = futures_util::future::join_all(fills).await;
            let sum: usize = held.iter().map(Vec::len).sum();
            for node in &cluster.nodes {
                node.sync().await.expect("what was taken has its room");
            }
            // Each of the two logs takes a MiB of three disks.
            let least = all - (6 << 20) - all / 10;
            assert!(
                sum >= least,
                "{sum} of {all} for {redundancy}: {:?}",
                held.iter().map(Vec::len).collect::<Vec<_>>()
            );
            let fs = cluster.end(&rt, &disks).await;
            for ((_, ino), held) in files.iter().zip(&held) {
                assert!(read_all(&fs, *ino).await == *held);
            }
        });
    }
}

#[test]
fn what_a_dead_node_had_is_found_again() {
    run(|rt| async move {
        let disks = ram(&[16, 16, 16]);
        let mut cluster = Cluster::new(&rt, &disks, 1, 4).await;
        let keeper = cluster.nodes[0].clone();
        let of_node = rt.domain(|| {});
        let dead = cluster.mount(&of_node, &disks, 2, 8).await;
        let ino = make_as(&dead, "file", "none").await;
        let bytes = pattern(1 << 20, 1);
        write(&dead, ino, 0, &bytes).await;
        dead.sync().await.expect("synced");
        // Nothing names what it takes from here on.
        write(&dead, ino, 1 << 20, &bytes).await;
        rt.sleep(100 * MILLISECOND).await;
        of_node.fail_domain();
        drop(dead);
        die(&keeper, &cluster.network, 2, 8).await;
        assert!(read_all(&keeper, ino).await[..1 << 20] == bytes);
        let again = cluster.mount(&rt, &disks, 2, 9).await;
        let other = make_as(&again, "other", "none").await;
        let held = fill_up(&again, other, 64 << 10).await;
        again.sync().await.expect("what was taken has its room");
        assert!(read_all(&cluster.nodes[1], other).await == held);
        cluster.nodes.push(again);
        cluster.end(&rt, &disks).await;
    });
}

/// Node 0 dies while other nodes have blocks that no record names, and write on.
#[test]
fn the_next_node_0_learns_which_blocks_are_not_free() {
    for_seeds(0..4, |rng| {
        let seed = rng.next_u64();
        run(move |rt| async move {
            let mut rng = Rng::new(seed);
            let disks = ram(&[16, 16, 18]);
            let mut domain = rt.domain(|| {});
            let mut cluster = Cluster::with_keeper_on(&domain, &rt, &disks, 2, seed).await;
            let mut files: Vec<(usize, String, Vec<u8>)> = Vec::new();
            for life in 2..5 {
                for n in 0..8 {
                    let at = 1 + rng.index(2);
                    let (node, name) = (&cluster.nodes[at], format!("f{life}-{n}"));
                    let ino = make_as(node, &name, ["none", "raid1"][rng.index(2)]).await;
                    let bytes = pattern(rng.index(400_000), life * 100 + n);
                    write(node, ino, 0, &bytes).await;
                    if rng.chance(40) {
                        node.sync().await.expect("synced");
                    }
                    files.push((at, name, bytes));
                    if rng.chance(30) {
                        let (at, name, _) = files.swap_remove(rng.index(files.len()));
                        let folder = weft_fs::ROOT;
                        cluster.nodes[at].unlink(folder, name.as_bytes()).await.expect("gone");
                    }
                }
                domain.fail_domain();
                cluster.network.kill().await;
                domain = rt.domain(|| {});
                let keeper = node_0_at(&domain, &disks, &cluster.network, (life, mounting())).await;
                let expected = [1, 2].map(|number| NodeId { number, epoch: 7 });
                keeper.serve_nodes(&cluster.network.keeper(), &expected);
                // It writes when it may, to blocks that no other node has.
                let ino = make_as(&keeper, &format!("k{life}"), "none").await;
                let bytes = pattern(200_000, life);
                write(&keeper, ino, 0, &bytes).await;
                keeper.sync().await.expect("synced");
                files.push((1, format!("k{life}"), bytes));
                cluster.nodes[0] = keeper;
            }
            for node in &cluster.nodes {
                for (_, name, bytes) in &files {
                    assert!(read_all(node, find(node, name).await).await == *bytes, "{name}");
                }
            }
            let fs = cluster.end(&rt, &disks).await;
            for (_, name, bytes) in files {
                assert!(read_all(&fs, find(&fs, &name).await).await == bytes, "{name}");
            }
        });
    });
}

/// Of two nodes that the next node 0 expects one is there early, and wants blocks. None of those
/// that it gets are blocks of the other one, which has not said yet what it has.
#[test]
fn no_node_is_granted_blocks_before_all_have_said_which_they_have() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24]);
        let domain = rt.domain(|| {});
        let (network, first) = node_0_in(&domain, &rt, &disks, 1).await;
        for number in [1, 2] {
            first.prepare_node(number).await.expect("prepared");
        }
        let door = Door::to(&network);
        let early = joined(&rt, &disks, &network, (1, 7)).await;
        let late = node(&rt, &disks, &door, (2, 7)).await.expect("mounted");
        let mut files = Vec::new();
        for (n, node) in [&early, &late].into_iter().enumerate() {
            let (ino, bytes) = (make_as(node, &format!("{n}"), "raid1").await, pattern(4096, 9));
            write(node, ino, 0, &bytes).await;
            node.fsync(ino).await.expect("synced");
            files.push((ino, bytes));
        }
        door.is_closed.set(true);
        domain.fail_domain();
        network.kill().await;
        drop(first);
        let keeper = node_0_at(&rt, &disks, &network, (2, mounting())).await;
        let expected = [1, 2].map(|number| NodeId { number, epoch: 7 });
        keeper.serve_nodes(&network.keeper(), &expected);
        // More than it has, so that it asks for blocks as soon as it may write.
        let writing = async |node: &Fs, (ino, bytes): &mut (u64, Vec<u8>), version| {
            *bytes = pattern(4 << 20, version);
            for (n, part) in bytes.chunks(64 << 10).enumerate() {
                write(node, *ino, (n * (64 << 10)) as u64, part).await;
            }
            node.fsync(*ino).await.expect("synced");
        };
        let (node, mut file) = (early.clone(), files[0].clone());
        let wrote = rt.spawn(async move {
            writing(&node, &mut file, 1).await;
            file
        });
        rt.sleep(20 * SECOND).await;
        door.is_closed.set(false);
        files[0] = wrote.await;
        writing(&late, &mut files[1], 2).await;
        for (ino, bytes) in &files {
            assert!(read_all(&keeper, *ino).await == *bytes);
        }
        let fs = Cluster { network, nodes: vec![keeper, early, late] }.end(&rt, &disks).await;
        for (ino, bytes) in &files {
            assert!(read_all(&fs, *ino).await == *bytes);
        }
    });
}

/// Random writes and deletions at all nodes, and trouble in the network.
#[test]
fn blocks_have_one_owner_whatever_the_network_does() {
    for_seeds(0..6, |rng| {
        let seed = rng.next_u64();
        run(move |rt| async move {
            let mut rng = Rng::new(seed);
            let disks = ram(&[14, 14, 18]);
            let cluster = Cluster::new(&rt, &disks, 2, seed).await;
            let keeper = cluster.nodes[0].clone();
            cluster.network.on_start(move |server| keeper.serve_nodes(server, &[]));
            drop(rt.spawn(cluster.network.clone().storm((200 + rng.below(2000)) * MILLISECOND)));
            let mut files: Vec<(String, Vec<u8>)> = Vec::new();
            for step in 0..60 {
                let node = &cluster.nodes[rng.index(cluster.nodes.len())];
                match rng.below(6) {
                    0..3 => {
                        let name = format!("f{step}");
                        let redundancy = ["none", "raid1", "raid5"][rng.index(3)];
                        let ino = make_as(node, &name, redundancy).await;
                        let bytes = pattern(rng.index(3 << 20), step);
                        match node.write(ino, 0, Frozen::copy_from(&bytes)).await {
                            Ok(()) => files.push((name, bytes)),
                            Err(FsError::NoSpace) => {
                                node.unlink(weft_fs::ROOT, name.as_bytes()).await.expect("there");
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    3 if !files.is_empty() => {
                        let (name, _) = files.swap_remove(rng.index(files.len()));
                        node.unlink(weft_fs::ROOT, name.as_bytes()).await.expect("removed");
                    }
                    4 if !files.is_empty() => {
                        let (name, bytes) = &files[rng.index(files.len())];
                        let ino = find(node, name).await;
                        assert!(read_all(node, ino).await == *bytes, "{name} in step {step}");
                    }
                    _ => node.sync().await.expect("synced"),
                }
            }
            let fs = cluster.end(&rt, &disks).await;
            for (name, bytes) in files {
                assert!(read_all(&fs, find(&fs, &name).await).await == bytes, "{name}");
            }
        });
    });
}
