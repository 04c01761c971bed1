//! What a node commits early is there when it dies, and never comes over anything newer; when it
//! dies together with its keeper, the file system is sound, and says that something may be missing.

use crate::common::cluster::{Door, TwoNodes, die, joined, node, node_0_at, synced_file};
use crate::common::disk::{Leave, Power, holding};
use crate::common::test_disks::{SIZE, blank};
use crate::common::*;
use weft_fs::{Fs, Ino, NodeStatus, SetAttr, create};
use weft_rt::{MILLISECOND, Rt, SECOND};
use weft_token::NodeId;

const BYTES: usize = 64 << 10;

/// A part of a file gets a new version, and is synced.
async fn overwrite(fs: &Fs, ino: Ino, bytes: &mut [u8], version: u64) {
    let part = 8192..24576;
    bytes[part.clone()].copy_from_slice(&pattern(part.len(), version));
    write(fs, ino, part.start as u64, &bytes[part]).await;
    fs.fsync(ino).await.expect("synced");
}

/// Node 1 commits early on a file, and node 0 has made that.
async fn early(rt: &Rt) -> (TwoNodes, Ino, Vec<u8>) {
    let (nodes, ino, bytes) = TwoNodes::with_file(rt, 4, "raid5", BYTES).await;
    nodes.other.begin_early_commits().await.expect("it is node 1");
    (nodes, ino, bytes)
}

async fn status_of(fs: &Fs, number: u16) -> NodeStatus {
    let nodes = fs.nodes().await.expect("known");
    nodes.into_iter().find(|of| of.node.number == number).expect("it has a log")
}

/// Node 1 dies, and is recovered.
async fn die_1(nodes: &TwoNodes) {
    nodes.of_node.fail_domain();
    die(&nodes.fs, &nodes.network, 1, 7).await;
}

#[test]
fn what_is_committed_early_needs_no_disk_and_is_there_when_the_node_dies() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = early(&rt).await;
        nodes.other.read(ino, 0, BYTES).await.expect("read");
        write(&nodes.other, ino, 0, &bytes[..4096]).await;
        nodes.other.sync().await.expect("synced");
        // No disk takes anything from it.
        nodes.disks.iter().for_each(|disk| disk.faults.stuck.set(true));
        for version in 2..5 {
            overwrite(&nodes.other, ino, &mut bytes, version).await;
        }
        let status = nodes.other.early_status();
        assert_eq!((status.counts.commits, status.counts.refused), (3, 0));
        assert_eq!(status_of(&nodes.fs, 1).await.early_blocks, status.waiting);
        nodes.disks.iter().for_each(|disk| disk.faults.stuck.set(false));
        die_1(&nodes).await;
        assert_eq!(read_all(&nodes.fs, ino).await, bytes);
        assert_eq!(status_of(&nodes.fs, 1).await.lost_early_commits, None);
        assert_sound(&nodes.fs).await;
    });
}

#[test]
fn nothing_comes_over_what_was_written_after_it() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = early(&rt).await;
        // Node 0 takes the file, and writes it.
        overwrite(&nodes.other, ino, &mut bytes, 2).await;
        assert!(nodes.other.early_status().waiting > 0);
        overwrite(&nodes.fs, ino, &mut bytes, 3).await;
        assert_eq!(nodes.other.early_status().waiting, 0);
        // The node has written it to the disks itself.
        overwrite(&nodes.other, ino, &mut bytes, 4).await;
        bytes[8192..24576].copy_from_slice(&pattern(16384, 5));
        write(&nodes.other, ino, 8192, &bytes[8192..24576]).await;
        nodes.other.sync().await.expect("synced");
        die_1(&nodes).await;
        assert_eq!(read_all(&nodes.fs, ino).await, bytes);
        assert_sound(&nodes.fs).await;
    });
}

#[test]
fn a_file_that_was_cut_stays_cut() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = early(&rt).await;
        overwrite(&nodes.other, ino, &mut bytes, 2).await;
        let cut = SetAttr { size: Some(10_000), ..SetAttr::default() };
        nodes.other.set_attr(ino, cut).await.expect("cut");
        nodes.other.fsync(ino).await.expect("synced");
        die_1(&nodes).await;
        assert_eq!(read_all(&nodes.fs, ino).await, bytes[..10_000]);
        assert_sound(&nodes.fs).await;
    });
}

#[test]
fn the_next_keeper_hears_of_it_before_all_else() {
    run(|rt| async move {
        let disks = blank(&rt, 4);
        create(&rt, &all(&disks), &options()).await.expect("created");
        let network = crate::common::cluster::network(&rt, 1);
        let of_0 = rt.domain(|| {});
        let fs = node_0_at(&of_0, &all(&disks), &network, (1, mounting())).await;
        fs.serve_nodes(&network.keeper(), &[]);
        let (ino, mut bytes) = synced_file(&fs, "raid5", BYTES).await;
        let (door, of_1) = (Door::to(&network), rt.domain(|| {}));
        let other = node(&of_1, &all(&disks), &door, (1, 7)).await.expect("mounted");
        other.begin_early_commits().await.expect("it is node 1");
        overwrite(&other, ino, &mut bytes, 2).await;
        assert!(other.early_status().waiting > 0);
        network.kill().await;
        of_0.fail_domain();
        drop(fs);
        let fs = node_0_at(&rt, &all(&disks), &network, (2, mounting())).await;
        let node = NodeId { number: 1, epoch: 7 };
        fs.serve_nodes(&network.keeper(), &[node]);
        while status_of(&fs, 1).await.early_blocks < other.early_status().waiting {
            rt.sleep(MILLISECOND).await;
        }
        of_1.fail_domain();
        die(&fs, &network, 1, 7).await;
        assert_eq!(read_all(&fs, ino).await, bytes);
        assert_eq!(status_of(&fs, 1).await.lost_early_commits, None);
        assert_sound(&fs).await;
    });
}

#[test]
fn when_both_die_the_file_system_is_sound_and_tells() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = early(&rt).await;
        let before = bytes.clone();
        overwrite(&nodes.other, ino, &mut bytes, 2).await;
        let media: Vec<_> = nodes.disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
        let disks = holding(&rt, &Power::new(), SIZE, &left_of_all(Leave::Nothing, &media));
        let fs = mount(&rt, &all(&disks)).await;
        assert_eq!(read_all(&fs, ino).await, before);
        assert_eq!(status_of(&fs, 1).await.lost_early_commits, Some(7));
        assert_sound(&fs).await;
    });
}

#[test]
fn a_keeper_that_ends_waits_for_what_it_has_in_memory() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = early(&rt).await;
        overwrite(&nodes.other, ino, &mut bytes, 2).await;
        let begin = rt.now();
        assert!(nodes.fs.settle_early_commits(20 * SECOND).await);
        assert!(rt.now() - begin <= 6 * SECOND);
        assert_eq!(nodes.other.early_status().waiting, 0);
        // It takes no more, and the node goes on without.
        overwrite(&nodes.other, ino, &mut bytes, 3).await;
        let status = nodes.other.early_status();
        assert_eq!((status.counts.refused, status.waiting), (1, 0));
        die_1(&nodes).await;
        assert_eq!(read_all(&nodes.fs, ino).await, bytes);
    });
}

#[test]
fn it_goes_on_after_an_unmount_and_a_mount() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = early(&rt).await;
        overwrite(&nodes.other, ino, &mut bytes, 2).await;
        nodes.other.unmount().await.expect("unmounted");
        nodes.of_node.fail_domain();
        assert!(!status_of(&nodes.fs, 1).await.commits_early);
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&nodes.disks), &nodes.network, (1, 8)).await;
        other.begin_early_commits().await.expect("it is node 1");
        overwrite(&other, ino, &mut bytes, 3).await;
        of_node.fail_domain();
        die(&nodes.fs, &nodes.network, 1, 8).await;
        assert_eq!(read_all(&nodes.fs, ino).await, bytes);
        let fs_0 = nodes.fs.begin_early_commits().await;
        assert!(fs_0.expect_err("it is node 0").to_string().contains("node 0"));
    });
}
