//! Several nodes mount one file system: node 0, which has the metadata, and nodes that reach its
//! keeper over a network.

use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::network::{Canary, Network};
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, META_CACHE_BYTES, RemoteMetadata, create};
use weft_rt::Rt;
use weft_token::NodeId;

const SIZE: u64 = 24 << 20;

fn blank(rt: &Rt) -> Vec<Rc<TestDisk>> {
    holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); 4])
}

/// What is durable on disks now, on disks of their own.
fn durable(rt: &Rt, disks: &[Rc<TestDisk>]) -> Vec<Rc<TestDisk>> {
    let durable = |disk: &Rc<TestDisk>| Leave::Nothing.of(&disk.medium.borrow());
    let media: Vec<Medium> = disks.iter().map(durable).collect();
    holding(rt, &Power::new(), SIZE, &media)
}

/// Node 0 of a new file system, and the network of its keeper.
async fn node_0(rt: &Rt, disks: &[Rc<dyn Disk>]) -> (Rc<Network>, Fs) {
    create(rt, disks, &options()).await.expect("created");
    node_0_again(rt, disks, 1).await
}

async fn node_0_again(rt: &Rt, disks: &[Rc<dyn Disk>], epoch: u64) -> (Rc<Network>, Fs) {
    let network = Network::new(rt, options().id, META_CACHE_BYTES, epoch, Canary::None);
    let way = network.clone();
    let keeper = move |array| {
        let way = way.clone();
        async move {
            way.start(&array).await;
            Ok(RemoteMetadata { node: NodeId { number: 0, epoch }, way })
        }
    };
    let fs = Fs::mount_with_keeper(rt, disks, mounting(), keeper).await.expect("mounted");
    (network, fs)
}

async fn node(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    way: &Rc<Network>,
    (number, epoch): (u16, u64),
) -> weft_fs::Result<Fs> {
    let way = way.clone();
    let node = NodeId { number, epoch };
    Fs::mount_node(rt, disks, mounting(), RemoteMetadata { node, way }).await
}

#[test]
fn a_node_reads_what_node_0_has_written_and_overwrites_it() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern(200_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        fs.prepare_node(1).await.expect("prepared");
        let other = node(&rt, &all(&disks), &network, (1, 7)).await.expect("mounted");
        assert_eq!(find(&other, "file").await, ino);
        assert!(read_all(&other, ino).await == bytes);
        bytes[50_000..60_000].copy_from_slice(&pattern(10_000, 2));
        write(&other, ino, 50_000, &bytes[50_000..60_000]).await;
        other.fsync(ino).await.expect("synced");
        // Only the log has it, and a mount alone recovers that.
        let left = durable(&rt, &disks);
        let found = mount(&rt, &all(&left)).await;
        assert!(read_all(&found, ino).await == bytes);
        assert_sound(&found).await;
        found.unmount().await.expect("unmounted");
        assert!(read_all(&other, ino).await == bytes);
        other.unmount().await.expect("unmounted");
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

#[test]
fn a_node_does_not_do_what_takes_the_metadata_itself() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        fs.prepare_node(1).await.expect("prepared");
        let other = node(&rt, &all(&disks), &network, (1, 7)).await.expect("mounted");
        let refused = |result: weft_fs::Result<()>| match result {
            Err(FsError::Invalid(why)) => assert!(why.contains("only its keeper"), "{why}"),
            other => panic!("{other:?}"),
        };
        refused(other.scrub().await.map(drop));
        refused(other.rebuild().await.map(drop));
        refused(other.check(false).await.map(drop));
        refused(other.grow_metadata().await.map(drop));
        refused(other.remove_disk(1).await.map(drop));
        refused(other.fail_disk(1).await);
        refused(other.prepare_node(2).await);
        let status = other.status().await.expect("known");
        assert_eq!((status.epoch, status.meta_copies), (7, (0, 0)));
        other.unmount().await.expect("unmounted");
        fs.unmount().await.expect("unmounted");
    });
}
