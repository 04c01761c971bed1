//! Several nodes mount one file system: node 0, which has the metadata, and nodes that reach its
//! keeper over a network.

use std::cell::{Cell, RefCell};
use std::future::Ready;
use std::rc::Rc;

use crate::common::cluster::*;
use crate::common::test_disks::{blank, seen};
use crate::common::*;
use futures_util::future::{Either, select};
use weft_fs::{Fs, FsError, Kind, Locked, ROOT};
use weft_rt::{Frozen, MILLISECOND, Rt, SECOND};
use weft_token::{FileLock, LockFamily, LockedFile, Mode, NodeId};

/// What a future gives, if it ends within a minute.
async fn soon<T>(rt: &Rt, future: impl Future<Output = T>) -> Option<T> {
    match select(Box::pin(future), Box::pin(rt.sleep(60 * SECOND))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

#[test]
fn a_node_reads_what_node_0_has_written_and_overwrites_it() {
    run(|rt| async move {
        let (nodes, ino, mut bytes) = TwoNodes::with_file(&rt, 4, "raid5", 200_000).await;
        let TwoNodes { disks, fs, other, .. } = nodes;
        assert_eq!(find(&other, "file").await, ino);
        assert!(read_all(&other, ino).await == bytes);
        overwrite(&other, ino, &mut bytes, 50_000..60_000, 2).await;
        // Only the log has it, and a mount alone recovers that.
        let found = seen(&rt, &disks).await;
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
        let TwoNodes { fs, other, .. } = TwoNodes::new(&rt, 4).await;
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
        let (nodes, ino, mut bytes) = TwoNodes::with_file(&rt, 4, "raid5", 300_000).await;
        let TwoNodes { disks, network, fs, of_node, other } = nodes;
        overwrite(&other, ino, &mut bytes, 40_000..200_000, 2).await;
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
        overwrite(&again, ino, &mut bytes, 100_000..150_000, 3).await;
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

/// The last name of a file goes on one node while it is open on another: contents stay until it is
/// closed there, or until that node is dead and recovered.
#[test]
fn what_one_node_has_open_stays_when_another_removes_it() {
    run(|rt| async move {
        let TwoNodes { network, fs, of_node, other, .. } = TwoNodes::new(&rt, 4).await;
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
        let TwoNodes { fs, other, .. } = TwoNodes::new(&rt, 4).await;
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

/// Locks of programs on two nodes: they exclude each other, wait, are interrupted, fail instead of
/// a circle, come with a node to another connection, and go with a dead node.
#[test]
fn locks_go_across_nodes() {
    run(|rt| async move {
        let TwoNodes { network, fs, of_node, other, .. } = TwoNodes::new(&rt, 4).await;
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
        let disks = blank(&rt, 4);
        let of_first = rt.domain(|| {});
        let (network, first) = node_0_in(&of_first, &rt, &all(&disks), 1).await;
        let mut folders = Vec::new();
        for name in [b"a", b"b"] {
            let folder = first.make(ROOT, name, new_file(Kind::Folder)).await.expect("made").0;
            first.make(folder, b"old", new_file(Kind::File)).await.expect("made");
            folders.push(folder);
        }
        first.sync().await.expect("synced");
        let door = Door::to(&network);
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
        let fs = node_0_at(&rt, &all(&disks), &network, (2, mounting())).await;
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
fn a_node_ends_in_order_whenever_its_keeper_dies() {
    let unmounted_before = Rc::new(Cell::new([0, 0]));
    for moment in 0..60 {
        let counts = unmounted_before.clone();
        run(move |rt| async move {
            let disks = blank(&rt, 4);
            let of_first = rt.domain(|| {});
            let (network, first) = node_0_in(&of_first, &rt, &all(&disks), 1).await;
            let (ino, mut bytes) = synced_file(&first, "raid1", 9000).await;
            let other = joined(&rt, &all(&disks), &network, (1, 7)).await;
            bytes[..5000].copy_from_slice(&pattern(5000, 2));
            write(&other, ino, 0, &bytes[..5000]).await;
            let is_unmounted = Rc::new(Cell::new(false));
            let told = is_unmounted.clone();
            let ending = rt.spawn(async move {
                other.unmount().await.expect("unmounted");
                told.set(true);
            });
            rt.sleep(moment * MILLISECOND / 2).await;
            let [before, after] = counts.get();
            counts.set(if is_unmounted.get() { [before + 1, after] } else { [before, after + 1] });
            network.kill().await;
            of_first.fail_domain();
            drop(first);
            let fs = node_0_at(&rt, &all(&disks), &network, (2, mounting())).await;
            // Who has ended in order is no member any more.
            let there = [NodeId { number: 1, epoch: 7 }];
            fs.serve_nodes(&network.keeper(), if is_unmounted.get() { &[] } else { &there });
            // It takes what the other one has as soon as it may.
            let written = soon(&rt, write(&fs, ino, 8000, &pattern(1000, 3))).await;
            assert!(written.is_some(), "moment {moment}");
            bytes[8000..].copy_from_slice(&pattern(1000, 3));
            assert!(soon(&rt, ending).await.is_some(), "moment {moment}");
            assert!(fs.read(ino, 0, 9000).await.expect("read")[..] == bytes, "moment {moment}");
            assert_sound(&fs).await;
        });
    }
    let [before, after] = unmounted_before.get();
    assert!(before > 2 && after > 20, "{before} unmounts had ended, {after} had not");
}

#[test]
fn a_dead_node_is_recovered_while_another_one_is_prepared() {
    run(|rt| async move {
        let disks = blank(&rt, 4);
        let of_first = rt.domain(|| {});
        let (network, first) = node_0_in(&of_first, &rt, &all(&disks), 1).await;
        let of_node = rt.domain(|| {});
        let other = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        of_node.fail_domain();
        drop(other);
        network.kill().await;
        of_first.fail_domain();
        drop(first);
        let fs = node_0_at(&rt, &all(&disks), &network, (2, mounting())).await;
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
