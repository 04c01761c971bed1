//! Several nodes mount one file system: node 0, which has the metadata, and nodes that reach its
//! keeper over a network.

use std::cell::{Cell, RefCell};
use std::future::Ready;
use std::io;
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::links::{Connector, Stream};
use crate::common::network::{Canary, Network};
use crate::common::*;
use futures_util::future::{Either, select};
use weft_disk::{Disk, IoFuture};
use weft_fs::{
    Fs, FsError, Kind, Label, Locked, LogCopy, META_CACHE_BYTES, ROOT, RemoteMetadata, create,
};
use weft_rt::{Frozen, MILLISECOND, Rt, SECOND};
use weft_token::{FileLock, LockFamily, LockedFile, Mode, NodeId};

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
    let fs = node_0_at(rt, disks, &network, epoch).await;
    fs.serve_nodes(&network.keeper(), &[]);
    (network, fs)
}

async fn node_0_at(rt: &Rt, disks: &[Rc<dyn Disk>], network: &Rc<Network>, epoch: u64) -> Fs {
    let way = network.clone();
    let keeper = move |array| {
        let way = way.clone();
        async move {
            way.start(&array).await;
            Ok(RemoteMetadata { node: NodeId { number: 0, epoch }, way })
        }
    };
    Fs::mount_with_keeper(rt, disks, mounting(), keeper).await.expect("mounted")
}

/// A way to the keeper that can be closed.
struct Door {
    network: Rc<Network>,
    is_closed: Cell<bool>,
}

impl Connector for Door {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        match self.is_closed.get() {
            true => Box::pin(async { Err(io::ErrorKind::HostUnreachable.into()) }),
            false => self.network.connect(),
        }
    }
}

/// What a future gives, if it ends within a minute.
async fn soon<T>(rt: &Rt, future: impl Future<Output = T>) -> Option<T> {
    match select(Box::pin(future), Box::pin(rt.sleep(60 * SECOND))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

async fn joined(rt: &Rt, disks: &[Rc<dyn Disk>], way: &Rc<Network>, id: (u16, u64)) -> Fs {
    node(rt, disks, way, id).await.expect("mounted")
}

/// A node is dead: no disk and no keeper takes anything of it any more.
async fn die(fs: &Fs, network: &Network, number: u16, epoch: u64) -> usize {
    let node = NodeId { number, epoch };
    network.keeper().fence(node).await.expect("durable");
    fs.recover_node(node).await.expect("recovered")
}

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

async fn node<W: Connector + 'static>(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    way: &Rc<W>,
    (number, epoch): (u16, u64),
) -> weft_fs::Result<Fs> {
    let way: Rc<dyn Connector> = way.clone();
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

#[test]
fn a_dead_node_is_recovered_once_and_mounts_again_in_a_later_epoch_only() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern(300_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        bytes[40_000..200_000].copy_from_slice(&pattern(160_000, 2));
        write(&other, ino, 40_000, &bytes[40_000..200_000]).await;
        other.fsync(ino).await.expect("synced");
        let status = fs.nodes().await.expect("known").remove(0);
        assert_eq!((status.node, status.is_mounted), (NodeId { number: 1, epoch: 7 }, true));
        let refused = |result: Result<(), FsError>, what: &str| match result {
            Err(FsError::Invalid(why) | FsError::Unmountable(why) | FsError::Stopped(why)) => {
                assert!(why.contains(what), "{why}");
            }
            other => panic!("{what}: {other:?}"),
        };
        let early = fs.recover_node(NodeId { number: 1, epoch: 7 }).await;
        refused(early.map(drop), "not fenced");
        refused(fs.prepare_node(1).await, "not recovered");
        refused(fs.forget_node(1).await, "not recovered");
        of_node.fail_domain();
        drop(other);
        assert!(die(&fs, &network, 1, 7).await > 0);
        assert_eq!(die(&fs, &network, 1, 7).await, 0, "it is recovered");
        refused(node(&rt, &all(&disks), &network, (1, 7)).await.map(drop), "mounted once more");
        let again = joined(&rt, &all(&disks), &network, (1, 8)).await;
        assert!(read_all(&again, ino).await == bytes);
        bytes[100_000..150_000].copy_from_slice(&pattern(50_000, 3));
        write(&again, ino, 100_000, &bytes[100_000..150_000]).await;
        again.fsync(ino).await.expect("synced");
        assert_eq!(die(&fs, &network, 1, 7).await, 0, "that one is over");
        again.unmount().await.expect("unmounted");
        assert_eq!(die(&fs, &network, 1, 8).await, 0, "it has ended in order");
        fs.forget_node(1).await.expect("forgotten");
        assert_eq!(fs.nodes().await.expect("known"), []);
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

/// The node waits for a moment, and goes on there.
#[test]
fn the_log_of_a_mounted_node_moves_off_a_disk_that_leaves_and_off_one_that_is_lost() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 5]);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid1").await;
        let mut bytes = pattern(100_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
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
        bytes[..8192].copy_from_slice(&pattern(8192, 2));
        assert!(read_all(&other, ino).await == pattern(100_000, 1));
        write(&other, ino, 0, &bytes[..8192]).await;
        other.fsync(ino).await.expect("synced");
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
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern(100_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        let log = log_of(&fs, 1).await;
        let label = Label::read(&*disks[0]).await.expect("readable").expect("a label");
        let (blocks, data) = (&log[0].blocks[0], label.data().start);
        *disks[usize::from(log[0].disk)].faults.unwritable.borrow_mut() =
            data + blocks.start * BLOCK..data + blocks.end * BLOCK;
        for version in 2..6 {
            bytes[..8192].copy_from_slice(&pattern(8192, version));
            write(&other, ino, 0, &bytes[..8192]).await;
            other.fsync(ino).await.expect("synced");
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

/// The last name of a file goes on one node while it is open on another: contents stay until it is
/// closed there, or until that node is dead and recovered.
#[test]
fn what_one_node_has_open_stays_when_another_removes_it() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        let bytes = pattern(100_000, 1);
        let inos: Vec<u64> = {
            let mut inos = Vec::new();
            for name in ["one", "two", "three"] {
                let ino = make_as(&fs, name, "raid5").await;
                write(&fs, ino, 0, &bytes).await;
                inos.push(ino);
            }
            fs.sync().await.expect("synced");
            inos
        };
        let both = [(&other, &fs), (&fs, &other)];
        for ((opens, removes), (name, ino)) in
            both.into_iter().zip([("one", inos[0]), ("two", inos[1])])
        {
            assert_eq!(find(opens, name).await, ino);
            opens.begin_use(ino);
            opens.begin_open(ino).await.expect("opened");
            removes.unlink(ROOT, name.as_bytes()).await.expect("removed");
            removes.sync().await.expect("synced");
            rt.sleep(SECOND).await;
            assert!(read_all(opens, ino).await == bytes, "{name}");
            write(opens, ino, 5000, &pattern(5000, 2)).await;
            opens.end_open(ino);
            opens.end_uses(ino, u64::MAX).await.expect("ended");
            rt.sleep(SECOND).await;
            for node in [opens, removes] {
                assert!(matches!(node.attr(ino).await, Err(FsError::NotFound)), "{name}");
                assert!(matches!(node.begin_open(ino).await, Err(FsError::NotFound)), "{name}");
            }
        }
        other.begin_open(inos[2]).await.expect("opened");
        let (unnamed, _) = other.make_opened(ROOT, None, new_file(Kind::File)).await.expect("made");
        other.sync().await.expect("synced");
        fs.unlink(ROOT, b"three").await.expect("removed");
        rt.sleep(SECOND).await;
        fs.attr(inos[2]).await.expect("it is open");
        of_node.fail_domain();
        drop(other);
        die(&fs, &network, 1, 7).await;
        rt.sleep(SECOND).await;
        for ino in [inos[2], unnamed] {
            assert!(matches!(fs.attr(ino).await, Err(FsError::NotFound)), "no node has it open");
        }
        assert_sound(&fs).await;
    });
}

#[test]
fn appends_of_two_nodes_are_one_after_another() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let other = joined(&rt, &all(&disks), &network, (1, 7)).await;
        let ino = make_as(&fs, "log", "raid1").await;
        fs.sync().await.expect("synced");
        let mut appends = Vec::new();
        for (n, node) in [&fs, &other].into_iter().enumerate() {
            let node = node.clone();
            appends.push(rt.spawn(async move {
                let mut at = Vec::new();
                for step in 0..20_u8 {
                    let data = vec![100 * u8::try_from(n).expect("small") + step; 700];
                    at.push((
                        node.append(ino, Frozen::copy_from(&data)).await.expect("written"),
                        data,
                    ));
                }
                at
            }));
        }
        let mut expected = vec![0; 40 * 700];
        for append in appends {
            let mut last = None;
            for (at, data) in append.await {
                assert!(Some(at) > last && at % 700 == 0);
                last = Some(at);
                let at = usize::try_from(at).expect("short");
                assert!(expected[at..at + 700].iter().all(|byte| *byte == 0) || data[0] == 0);
                expected[at..at + 700].copy_from_slice(&data);
            }
        }
        assert!(read_all(&fs, ino).await == expected);
        assert!(read_all(&other, ino).await == expected);
        other.unmount().await.expect("unmounted");
        assert_sound(&fs).await;
    });
}

#[test]
fn a_disk_that_fails_for_one_node_is_lost_for_all() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern(200_000, 1);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let of_node = rt.domain(|| {});
        let own: Vec<_> =
            disks.iter().map(|disk| disk.for_host(&of_node, &Power::new(), 1)).collect();
        let other = joined(&of_node, &all(&own), &network, (1, 7)).await;
        let third = joined(&rt, &all(&disks), &network, (2, 7)).await;
        assert!(read_all(&third, ino).await == bytes);
        own[2].faults.gone.set(true);
        for version in 2..4 {
            bytes[10_000..150_000].copy_from_slice(&pattern(140_000, version));
            write(&other, ino, 10_000, &bytes[10_000..150_000]).await;
            other.fsync(ino).await.expect("synced");
        }
        rt.sleep(SECOND).await;
        let lost = async |fs: &Fs| {
            let disks = fs.status().await.expect("known").disks;
            disks.iter().map(|disk| disk.lost).collect::<Vec<_>>()
        };
        assert_eq!(lost(&fs).await, [false, false, true, false]);
        assert!(read_all(&third, ino).await == bytes);
        assert_eq!(lost(&third).await, [false, false, true, false]);
        bytes[..5000].copy_from_slice(&pattern(5000, 9));
        write(&other, ino, 0, &bytes[..5000]).await;
        other.fsync(ino).await.expect("synced");
        of_node.fail_domain();
        drop(other);
        die(&fs, &network, 1, 7).await;
        assert!(read_all(&fs, ino).await == bytes);
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.removed_disks, [2]);
        assert!(read_all(&third, ino).await == bytes);
        assert_eq!(lost(&third).await, [false; 3]);
        third.unmount().await.expect("unmounted");
        assert_sound(&fs).await;
    });
}

#[test]
fn a_node_stops_when_a_disk_has_joined_that_it_was_not_given() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 5]);
        let (network, fs) = node_0(&rt, &all(&disks[..4])).await;
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(100_000, 1)).await;
        let other = joined(&rt, &all(&disks[..4]), &network, (1, 7)).await;
        assert!(read_all(&other, ino).await == pattern(100_000, 1));
        fs.add_disk(disks[4].clone(), false).await.expect("added");
        let stopped = other.read(ino, 0, 10).await;
        let Err(FsError::Stopped(why)) = stopped else { panic!("{stopped:?}") };
        assert!(why.contains("mount this node again"), "{why}");
        drop(other);
        assert_eq!(die(&fs, &network, 1, 7).await, 0);
        let again = joined(&rt, &all(&disks), &network, (1, 8)).await;
        assert!(read_all(&again, ino).await == pattern(100_000, 1));
    });
}

/// Locks of programs on two nodes: they exclude each other, wait, are interrupted, fail instead of
/// a circle, come with a node to another connection, and go with a dead node.
#[test]
fn locks_go_across_nodes() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        let file = |family| LockedFile { family, ino: 9 };
        let (posix, flock) = (file(LockFamily::Posix), file(LockFamily::Flock));
        let lock = |node: &Fs, number: u64, bytes: std::ops::Range<u64>, mode: Mode| FileLock {
            owner: node.lock_owner(number),
            pid: 5,
            bytes,
            mode,
        };
        let at_once = async |node: &Fs, file, lock| {
            node.lock_file(file, lock, None::<Ready<()>>).await.expect("answered")
        };
        let waits = |node: &Fs, file, lock: FileLock, interrupted: u64| {
            let (node, sleeper) = (node.clone(), rt.clone());
            rt.spawn(async move {
                let interrupted = async move { sleeper.sleep(interrupted).await };
                node.lock_file(file, lock, Some(interrupted)).await.expect("answered")
            })
        };
        let (shared, exclusive) = (Mode::Shared, Mode::Exclusive);
        let ours = lock(&fs, 1, 0..10, exclusive);
        assert_eq!(at_once(&fs, posix, ours.clone()).await, Locked::Yes);
        let theirs = lock(&other, 1, 5..20, exclusive);
        assert_eq!(at_once(&other, posix, theirs.clone()).await, Locked::Busy);
        assert_eq!(at_once(&other, flock, theirs.clone()).await, Locked::Yes, "another kind");
        assert_eq!(at_once(&other, posix, lock(&other, 1, 10..20, exclusive)).await, Locked::Yes);
        let found = other.find_lock(posix, theirs.clone()).await.expect("answered");
        assert_eq!(found, Some(ours.clone()));
        let early = waits(&other, posix, theirs.clone(), SECOND).await;
        assert_eq!(early, Locked::Interrupted);

        let waiting = waits(&other, posix, lock(&other, 1, 0..20, exclusive), 100 * SECOND);
        rt.sleep(SECOND).await;
        let circle = waits(&fs, posix, lock(&fs, 1, 10..11, shared), 100 * SECOND).await;
        assert_eq!(circle, Locked::Deadlock);
        // Its connection ends: it has what it had, and waits on.
        network.cut();
        rt.sleep(10 * SECOND).await;
        let third = lock(&fs, 2, 19..20, exclusive);
        assert_eq!(at_once(&fs, posix, third.clone()).await, Locked::Busy);
        fs.unlock_file(posix, fs.lock_owner(1), 0..u64::MAX).await.expect("answered");
        assert_eq!(waiting.await, Locked::Yes);
        assert_eq!(at_once(&fs, posix, lock(&fs, 1, 0..1, shared)).await, Locked::Busy);
        other.unlock_file(posix, other.lock_owner(1), 0..5).await.expect("answered");
        assert_eq!(at_once(&fs, posix, lock(&fs, 1, 0..5, shared)).await, Locked::Yes);

        let waiting = waits(&fs, posix, third, 1000 * SECOND);
        rt.sleep(SECOND).await;
        of_node.fail_domain();
        drop(other);
        die(&fs, &network, 1, 7).await;
        assert_eq!(waiting.await, Locked::Yes, "locks of a dead node go");
        assert_eq!(at_once(&fs, flock, lock(&fs, 1, 0..20, exclusive)).await, Locked::Yes);
        assert_sound(&fs).await;
    });
}

#[test]
fn a_number_that_a_node_got_from_the_keeper_before_is_given_to_no_other_node() {
    run(|rt| async move {
        let disks = blank(&rt);
        create(&rt, &all(&disks), &options()).await.expect("created");
        let network = Network::new(&rt, options().id, META_CACHE_BYTES, 1, Canary::None);
        let of_first = rt.domain(|| {});
        let first = node_0_at(&of_first, &all(&disks), &network, 1).await;
        first.serve_nodes(&network.keeper(), &[]);
        let mut folders = Vec::new();
        for name in [b"a", b"b"] {
            let folder = first.make(ROOT, name, new_file(Kind::Folder)).await.expect("made").0;
            first.make(folder, b"old", new_file(Kind::File)).await.expect("made");
            folders.push(folder);
        }
        first.sync().await.expect("synced");
        let door = Rc::new(Door { network: network.clone(), is_closed: Cell::new(false) });
        let late = node(&rt, &all(&disks), &door, (1, 7)).await.expect("mounted");
        let early = node(&rt, &all(&disks), &network, (2, 7)).await.expect("mounted");
        early.unlink(folders[1], b"old").await.expect("removed");
        early.sync().await.expect("synced");
        // Nothing of this is durable when the keeper dies.
        let new = new_file(Kind::File);
        let one = late.make(folders[0], b"new", new).await.expect("made").0;
        door.is_closed.set(true);
        network.kill().await;
        of_first.fail_domain();
        drop(first);
        let fs = node_0_at(&rt, &all(&disks), &network, 2).await;
        let living = [1, 2].map(|number| NodeId { number, epoch: 7 });
        fs.serve_nodes(&network.keeper(), &living);
        let (other, making) = (Rc::new(RefCell::new(None)), early.clone());
        let (made, folder) = (other.clone(), folders[1]);
        drop(rt.spawn(async move {
            *made.borrow_mut() = Some(making.make(folder, b"new", new).await.expect("made").0);
        }));
        rt.sleep(15 * SECOND).await;
        door.is_closed.set(false);
        rt.sleep(3 * SECOND).await;
        let other = other.borrow().expect("it has a number");
        assert_ne!(one, other, "both nodes made a file with this number");
        for node in [&late, &early] {
            node.unmount().await.expect("unmounted");
        }
        assert_sound(&fs).await;
    });
}

#[test]
fn a_disk_does_not_leave_while_another_node_has_records_on_it_that_are_not_stored() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 5]);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let other = joined(&rt, &all(&disks), &network, (1, 7)).await;
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

/// What fails is the way of this node to the disks, and not the disks.
#[test]
fn a_node_that_reaches_no_disk_stops_and_no_disk_is_lost() {
    run(|rt| async move {
        let disks = blank(&rt);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let of_node = rt.domain(|| {});
        let own: Vec<_> =
            disks.iter().map(|disk| disk.for_host(&of_node, &Power::new(), 1)).collect();
        let other = joined(&of_node, &all(&own), &network, (1, 7)).await;
        let ino = make_as(&other, "file", "raid5").await;
        write(&other, ino, 0, &pattern(200_000, 1)).await;
        other.fsync(ino).await.expect("synced");
        own.iter().for_each(|disk| disk.faults.gone.set(true));
        let new = make_as(&other, "new", "raid5").await;
        write(&other, new, 0, &pattern(100_000, 2)).await;
        assert!(other.fsync(new).await.is_err());
        rt.sleep(10 * SECOND).await;
        let stopped = other.sync().await;
        assert!(matches!(stopped, Err(FsError::Stopped(_))), "{stopped:?}");
        of_node.fail_domain();
        drop(other);
        die(&fs, &network, 1, 7).await;
        let status = fs.status().await.expect("known");
        assert!(status.disks.iter().all(|disk| !disk.lost), "{:?}", status.disks);
        assert!(read_all(&fs, ino).await == pattern(200_000, 1));
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        assert!(read_all(&fs, ino).await == pattern(200_000, 1));
        assert_sound(&fs).await;
    });
}

/// What frees the blocks of a ring that a node leaves must do so once.
#[test]
fn a_node_that_dies_before_it_takes_another_ring_leaves_the_old_one_once() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 5]);
        let (network, fs) = node_0(&rt, &all(&disks)).await;
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
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

#[test]
fn a_dead_node_is_recovered_while_another_one_is_prepared() {
    run(|rt| async move {
        let disks = blank(&rt);
        create(&rt, &all(&disks), &options()).await.expect("created");
        let network = Network::new(&rt, options().id, META_CACHE_BYTES, 1, Canary::None);
        let of_first = rt.domain(|| {});
        let first = node_0_at(&of_first, &all(&disks), &network, 1).await;
        first.serve_nodes(&network.keeper(), &[]);
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        of_node.fail_domain();
        drop(other);
        network.kill().await;
        of_first.fail_domain();
        drop(first);
        let fs = node_0_at(&rt, &all(&disks), &network, 2).await;
        let dead = NodeId { number: 1, epoch: 7 };
        fs.serve_nodes(&network.keeper(), &[dead]);
        let (preparing, prepared) = (fs.clone(), Rc::new(Cell::new(false)));
        let is_prepared = prepared.clone();
        drop(rt.spawn(async move {
            preparing.prepare_node(2).await.expect("prepared");
            is_prepared.set(true);
        }));
        rt.sleep(SECOND).await;
        assert!(!prepared.get(), "it is not known which blocks are free");
        network.keeper().fence(dead).await.expect("durable");
        let recovered = soon(&rt, fs.recover_node(dead)).await;
        recovered.expect("it does not wait for the other one").expect("recovered");
        rt.sleep(SECOND).await;
        assert!(prepared.get());
    });
}
