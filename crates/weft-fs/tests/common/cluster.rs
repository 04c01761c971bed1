//! Nodes that mount one file system: node 0, which has the metadata, and nodes that reach its
//! keeper over a network.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use weft_disk::{Disk, IoFuture};
use weft_fs::{
    DiskStatus, Fs, Ino, META_CACHE_BYTES, MountOptions, RemoteMetadata, Reopen, Result, create,
};
use weft_rt::Rt;
use weft_token::NodeId;

use super::disk::TestDisk;
use super::links::{Connector, Stream};
use super::network::{Canary, Network};
use super::test_disks::{blank, for_host};
use super::{all, assert_sound, make_as, mounting, options, pattern, read_all, write};

/// A way to the keeper that can be closed.
pub struct Door {
    network: Rc<Network>,
    pub is_closed: Cell<bool>,
}

impl Door {
    pub fn to(network: &Rc<Network>) -> Rc<Self> {
        Rc::new(Self { network: network.clone(), is_closed: Cell::new(false) })
    }
}

impl Connector for Door {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        match self.is_closed.get() {
            true => Box::pin(async { Err(io::ErrorKind::HostUnreachable.into()) }),
            false => self.network.connect(),
        }
    }
}

/// A network without faults for the keeper of a file system with these [`options`].
pub fn network(rt: &Rt, seed: u64) -> Rc<Network> {
    Network::new(rt, options().id, META_CACHE_BYTES, seed, Canary::None)
}

/// Node 0 mounts, and its keeper starts on this network.
pub async fn node_0_at(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    network: &Rc<Network>,
    (epoch, mounting): (u64, MountOptions),
) -> Fs {
    let way = network.clone();
    let keeper = move |array| {
        let way = way.clone();
        async move {
            way.start(&array).await;
            Ok(RemoteMetadata { node: NodeId { number: 0, epoch }, way })
        }
    };
    Fs::mount_with_keeper(rt, disks, mounting, keeper).await.expect("mounted")
}

/// Node 0 of a new file system, in a domain in which it can die, and the network of its keeper.
pub async fn node_0_in(
    domain: &Rt,
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    seed: u64,
) -> (Rc<Network>, Fs) {
    create(rt, disks, &options()).await.expect("created");
    let network = network(rt, seed);
    let fs = node_0_at(domain, disks, &network, (1, mounting())).await;
    fs.serve_nodes(&network.keeper(), &[]);
    (network, fs)
}

/// Node 0 of a new file system, and the network of its keeper.
pub async fn node_0(rt: &Rt, disks: &[Rc<dyn Disk>]) -> (Rc<Network>, Fs) {
    node_0_in(rt, rt, disks, 1).await
}

/// Another node mounts.
pub async fn node<W: Connector + 'static>(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    way: &Rc<W>,
    (number, epoch): (u16, u64),
) -> Result<Fs> {
    let way: Rc<dyn Connector> = way.clone();
    let node = NodeId { number, epoch };
    Fs::mount_node(rt, disks, mounting(), RemoteMetadata { node, way }).await
}

/// Another node mounts, which reaches the first of its disks, and opens others by their names when
/// it hears of them.
pub async fn joined_opening(
    rt: &Rt,
    (own, given): (&[Rc<TestDisk>], usize),
    way: &Rc<Network>,
    (number, epoch): (u16, u64),
) -> Fs {
    let disks = all(own);
    let open: Reopen = Rc::new(move |name| {
        let found = disks.iter().find(|disk| disk.info().name == name).cloned();
        Box::pin(async move { found.ok_or_else(|| format!("there is no {name}")) })
    });
    let remote = RemoteMetadata { node: NodeId { number, epoch }, way: way.clone() };
    let given = all(&own[..given]);
    let mounted = Fs::mount_node_opening(rt, &given, mounting(), remote, Some(open)).await;
    mounted.expect("mounted")
}

pub async fn joined(rt: &Rt, disks: &[Rc<dyn Disk>], way: &Rc<Network>, id: (u16, u64)) -> Fs {
    node(rt, disks, way, id).await.expect("mounted")
}

/// Node 0 cuts the paths of nodes off: the disks as these nodes reach them.
pub fn cut_paths(fs: &Fs, paths: Vec<(u16, Vec<Rc<TestDisk>>)>) {
    fs.cut_paths_by(move |node, name| {
        let of_node = paths.iter().find(|(number, _)| *number == node.number);
        let is_it = |disk: &&Rc<TestDisk>| disk.info().name == name;
        let disk = of_node.and_then(|(_, disks)| disks.iter().find(is_it)).cloned();
        async move {
            let Some(disk) = disk else { return false };
            disk.faults.gone.set(true);
            disk.end_writes(|sectors| sectors / 2);
            true
        }
    });
}

/// A node is dead: no disk and no keeper takes anything of it any more.
pub async fn die(fs: &Fs, network: &Network, number: u16, epoch: u64) -> usize {
    let node = NodeId { number, epoch };
    network.keeper().fence(node).await.expect("durable");
    fs.recover_node(node).await.expect("recovered")
}

/// Node 0 and node 1 on the same disks.
pub struct TwoNodes {
    pub disks: Vec<Rc<TestDisk>>,
    pub network: Rc<Network>,
    /// Node 0.
    pub fs: Fs,
    /// The domain of node 1, in which it can die.
    pub of_node: Rt,
    /// Node 1, in epoch 7.
    pub other: Fs,
}

impl TwoNodes {
    pub async fn new(rt: &Rt, disks: usize) -> Self {
        Self::after(rt, disks, async |_| ()).await.0
    }

    /// Node 0 has synced a file before node 1 mounts. Returns its number and contents as well.
    pub async fn with_file(
        rt: &Rt,
        disks: usize,
        redundancy: &str,
        len: usize,
    ) -> (Self, Ino, Vec<u8>) {
        let made = async |fs: &Fs| synced_file(fs, redundancy, len).await;
        let (nodes, (ino, bytes)) = Self::after(rt, disks, made).await;
        (nodes, ino, bytes)
    }

    /// After what node 0 does before node 1 mounts.
    async fn after<T>(rt: &Rt, disks: usize, first: impl AsyncFnOnce(&Fs) -> T) -> (Self, T) {
        let disks = blank(rt, disks);
        let (network, fs) = node_0(rt, &all(&disks)).await;
        let done = first(&fs).await;
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        (Self { disks, network, fs, of_node, other }, done)
    }
}

/// A new file, and what it holds.
pub async fn synced_file(fs: &Fs, redundancy: &str, len: usize) -> (Ino, Vec<u8>) {
    let (ino, bytes) = (make_as(fs, "file", redundancy).await, pattern(len, 1));
    write(fs, ino, 0, &bytes).await;
    fs.sync().await.expect("synced");
    (ino, bytes)
}

/// A part of a file gets a new version, which is synced.
pub async fn overwrite(fs: &Fs, ino: Ino, bytes: &mut [u8], part: Range<usize>, version: u64) {
    bytes[part.clone()].copy_from_slice(&pattern(part.len(), version));
    write(fs, ino, part.start as u64, &bytes[part]).await;
    fs.fsync(ino).await.expect("synced");
}

/// No disks.
pub const NONE: [u16; 0] = [];

/// Numbers of disks, as a node sees them.
pub async fn numbers(fs: &Fs, is: impl Fn(&DiskStatus) -> bool) -> Vec<u16> {
    let disks = fs.status().await.expect("known").disks;
    disks.iter().filter(|disk| is(disk)).map(|disk| disk.number).collect()
}

/// Those that it reaches through the keeper.
pub async fn relayed(fs: &Fs) -> Vec<u16> {
    numbers(fs, |disk| disk.through_keeper).await
}

pub async fn lost(fs: &Fs) -> Vec<u16> {
    numbers(fs, |disk| disk.lost).await
}

/// Node 0, node 1 in epoch 7 with paths of its own, and a file.
pub struct OwnPaths {
    pub disks: Vec<Rc<TestDisk>>,
    /// The disks as node 1 reaches them.
    pub own: Vec<Rc<TestDisk>>,
    pub network: Rc<Network>,
    pub fs: Fs,
    pub of_node: Rt,
    pub other: Fs,
    pub ino: Ino,
    pub bytes: Vec<u8>,
}

impl OwnPaths {
    /// The file system is on the first `used` of `count` disks. Node 1 `joins` with its paths.
    pub async fn new(
        rt: &Rt,
        (count, used): (usize, usize),
        joins: impl AsyncFnOnce(&Rt, &[Rc<TestDisk>], &Rc<Network>) -> Fs,
    ) -> Self {
        let disks = blank(rt, count);
        let (network, fs) = node_0(rt, &all(&disks[..used])).await;
        let (ino, bytes) = synced_file(&fs, "raid5", 200_000).await;
        let of_node = rt.domain(|| {});
        let own = for_host(&of_node, &disks, 1);
        cut_paths(&fs, vec![(1, own.clone())]);
        let other = joins(&of_node, &own, &network).await;
        Self { disks, own, network, fs, of_node, other, ino, bytes }
    }

    /// Node 1 overwrites a part of the file, durably.
    pub async fn overwrite(&mut self, part: Range<usize>, version: u64) {
        overwrite(&self.other, self.ino, &mut self.bytes, part, version).await;
    }

    /// Node 1 dies, and is recovered. All that it had synced is there, on node 0.
    pub async fn die(self) -> Fs {
        let Self { own, network, fs, of_node, other, ino, bytes, .. } = self;
        of_node.fail_domain();
        drop(other);
        own.iter().for_each(|disk| disk.end_writes(|sectors| sectors / 2));
        die(&fs, &network, 1, 7).await;
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
        fs
    }
}
