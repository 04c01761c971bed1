//! The disk server over NBD: a fence ends the connection of its victim, waits for its requests in
//! flight, outlives a restart, and is refused to those who may not ask for it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use weft_cluster::coordinator::disks::{
    AREA_BYTES, BLOCK_BYTES, DiskCoordinator, DiskLeaseConfig, POOL_NODES,
};
use weft_cluster::fence::{
    DiskServer, EndOfUse, Fence, FenceError, HEAD_BYTES, HeadError, LastingDisk, MemberDisk,
    MemberSource, Patience, Preparation, RemoteFence, RemoteLeases, SharedDisk, SharedDiskError,
    WhatToDo, export_of, prepare,
};
use weft_cluster::{ClusterName, DiskName, Epoch, Incarnation};
use weft_disk::{Class, Disk, DiskErrorKind, Fault, FaultDisk, Faults, RamDisk, WriteOpts};
use weft_nbd::client::{NbdAddress, OpenError};
use weft_nbd::{NbdDisk, NbdOptions, NbdUri, Server, ServerConfig};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt, SECOND};

fn who(node: &str, epoch: u64) -> Incarnation {
    Incarnation { node: node.parse().expect("a name"), epoch: Epoch(epoch) }
}

fn home() -> ClusterName {
    "home".parse().expect("a name")
}

/// The fence of a member's disk, and where it is.
fn by(bench: &Bench) -> (Rc<dyn Fence>, String) {
    let fence = bench.fence();
    let place = fence.place();
    (Rc::new(fence), place)
}

fn d0() -> DiskName {
    "d0".parse().expect("a name")
}

/// A server of one disk, and how to reach it.
struct Bench {
    rt: Rt,
    ring: Ring,
    server: Server,
    shared: Rc<SharedDisk>,
    address: SocketAddr,
    faults: Faults,
}

impl Bench {
    async fn start(rt: &Rt, ring: &Ring, medium: &Rc<RamDisk>) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self::start_at(rt, ring, medium, any).await
    }

    async fn start_at(rt: &Rt, ring: &Ring, medium: &Rc<RamDisk>, at: SocketAddr) -> Self {
        let (disk, faults) = FaultDisk::new(rt, medium.clone());
        let shared = SharedDisk::open(rt, Rc::new(disk), 1).await.expect("a prepared disk");
        let disks = BTreeMap::from([(d0(), shared.clone())]);
        let server = Server::new(rt, ring, ServerConfig::default());
        server.resolve_with(Rc::new(DiskServer::new(disks)));
        let address = server.listen_tcp(at).expect("listen");
        Self { rt: rt.clone(), ring: ring.clone(), server, shared, address, faults }
    }

    fn uri(&self, export: impl Into<String>) -> NbdUri {
        let address = NbdAddress::Tcp(self.address.ip().to_string(), self.address.port());
        NbdUri { address, export: export.into() }
    }

    async fn open(&self, export: impl Into<String>) -> Result<NbdDisk, OpenError> {
        let options = NbdOptions { reconnect_attempts: 1, ..NbdOptions::default() };
        NbdDisk::open(&self.rt, &self.ring, &self.uri(export), options).await
    }

    async fn open_as(&self, who: &Incarnation) -> Result<NbdDisk, OpenError> {
        self.open(export_of(&d0(), &home(), who)).await
    }

    fn fence(&self) -> RemoteFence {
        RemoteFence::new(&self.rt, &self.ring, self.uri("d0"), home(), 5 * SECOND).expect("a name")
    }
}

async fn medium() -> Rc<RamDisk> {
    let medium = Rc::new(RamDisk::new("ram", HEAD_BYTES + (1 << 20), 512));
    prepare(&*medium, Preparation::Blank).await.expect("a blank disk");
    medium
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt, Ring) -> F) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    rt.block_on(test(rt.clone(), ring));
}

fn block(byte: u8) -> Frozen {
    Frozen::copy_from(&[byte; 512])
}

#[test]
fn a_fence_ends_the_victim_and_outlives_the_server() {
    run(|rt, ring| async move {
        let medium = medium().await;
        let bench = Bench::start(&rt, &ring, &medium).await;
        let (a, b) = (who("a", 5), who("b", 6));
        let disk_a = bench.open_as(&a).await.expect("a may use it");
        let disk_b = bench.open_as(&b).await.expect("b may use it");
        assert_eq!(disk_a.info().size_bytes, 1 << 20, "the head is not shown");
        disk_a.write(0, block(1), WriteOpts::USER).await.expect("written");

        bench.fence().fence(&b, &a).await.expect("confirmed");
        disk_a.write(0, block(2), WriteOpts::USER).await.expect_err("it was fenced");
        disk_b.write(512, block(3), WriteOpts::USER).await.expect("b was not");
        let refused = bench.open_as(&a).await.expect_err("it was fenced").to_string();
        assert!(refused.contains("fenced: a (epoch 5)"), "{refused}");
        bench.open_as(&who("a", 4)).await.expect_err("an earlier epoch is refused, too");
        let again = bench.open_as(&who("a", 7)).await.expect("it has joined again");
        let registered = bench.fence().register(&a).await;
        assert_eq!(registered, Err(FenceError::Fenced { disk: d0() }));
        // A fence that comes late does not hit the new one.
        bench.fence().fence(&b, &a).await.expect("confirmed again");
        again.write(1024, block(4), WriteOpts::USER).await.expect("it is not fenced");

        bench.server.shutdown().await;
        drop((bench, disk_a, disk_b, again));
        let bench = Bench::start(&rt, &ring, &medium).await;
        bench.open_as(&a).await.expect_err("the disk remembers");
        let disk = bench.open("d0").await.expect_err("it can only be read");
        assert!(matches!(disk, OpenError::ReadOnly), "{disk}");
        let read_only = NbdOptions { read_only: true, ..NbdOptions::default() };
        let disk = NbdDisk::open(&rt, &ring, &bench.uri("d0"), read_only).await.expect("to read");
        let (result, buf) = disk.read(0, Buf::new(1536), Class::User).await;
        result.expect("it can be read");
        assert_eq!((buf[0], buf[512], buf[1024]), (1, 3, 4));
    });
}

/// A request that a fence has met neither succeeds nor fails: a failure would be taken for one of
/// the disk, and written to disks that have not been fenced yet.
#[test]
fn a_member_that_is_fenced_stands_still_at_all_its_disks() {
    run(|rt, ring| async move {
        let (one, two) = (
            Bench::start(&rt, &ring, &medium().await).await,
            Bench::start(&rt, &ring, &medium().await).await,
        );
        let (a, b) = (who("a", 5), who("b", 6));
        let end = Rc::new(EndOfUse::default());
        let mut disks = Vec::new();
        for bench in [&one, &two] {
            let disk = Rc::new(bench.open_as(&a).await.expect("a may use it"));
            disks.push(Rc::new(MemberDisk::new(disk, by(bench), a.clone(), end.clone())));
            assert_eq!(disks.last().expect("it is there").info().name, bench.uri("d0").to_string());
        }
        for disk in &disks {
            disk.write(0, block(1), WriteOpts::USER).await.expect("written");
        }
        // One disk is fenced, and the other is not yet.
        one.fence().fence(&b, &a).await.expect("confirmed");
        let standing = |disk: &Rc<MemberDisk>| {
            let disk = disk.clone();
            rt.spawn(async move {
                drop(disk.write(0, block(2), WriteOpts::USER).await);
            })
        };
        let write = standing(&disks[0]);
        let why = end.wait().await;
        assert!(why.contains("refuses this node: it was fenced"), "{why}");
        let other = standing(&disks[1]);
        let patience = Box::pin(rt.sleep(200 * MILLISECOND));
        let ends = futures_util::future::select(write, other);
        let waited = futures_util::future::select(ends, patience).await;
        assert!(matches!(waited, futures_util::future::Either::Right(_)), "a request has ended");
        let read = two.open_as(&b).await.expect("b may use it");
        let (result, buf) = read.read(0, Buf::new(512), Class::User).await;
        result.expect("read");
        assert_eq!(buf[0], 1, "it was written after the end of use");
    });
}

/// A server that is gone is a failure, and no fence.
#[test]
fn a_member_hears_of_failures_that_are_no_fence() {
    run(|rt, ring| async move {
        let bench = Bench::start(&rt, &ring, &medium().await).await;
        let a = who("a", 5);
        let end = Rc::new(EndOfUse::default());
        let disk = Rc::new(bench.open_as(&a).await.expect("a may use it"));
        let disk = MemberDisk::new(disk, by(&bench), a, end.clone());
        bench.faults.inject(Fault::FailWrites(0..u64::MAX));
        disk.write(0, block(1), WriteOpts::USER).await.expect_err("the disk fails");
        bench.faults.inject(Fault::FailWrites(0..0));
        disk.write(0, block(1), WriteOpts::USER).await.expect("it works again");
        bench.server.shutdown().await;
        disk.write(0, block(1), WriteOpts::USER).await.expect_err("the server is gone");
        assert_eq!(end.why(), None);
    });
}

#[test]
fn a_fence_is_confirmed_only_when_requests_in_flight_have_ended() {
    run(|rt, ring| async move {
        let bench = Bench::start(&rt, &ring, &medium().await).await;
        let (a, b) = (who("a", 1), who("b", 2));
        let disk = Rc::new(bench.open_as(&a).await.expect("a may use it"));
        bench.faults.inject(Fault::Delay(300 * MILLISECOND));
        let writing = disk.clone();
        let write = rt.spawn(async move {
            writing.write(0, block(9), WriteOpts::USER).await.map_err(|error| error.to_string())
        });
        while bench.shared.gate().in_flight() == 0 {
            rt.sleep(MILLISECOND).await;
        }
        bench.fence().fence(&b, &a).await.expect("confirmed");
        assert_eq!(bench.shared.gate().in_flight(), 0);
        drop(write.await);

        // One that never ends is never confirmed.
        let c = who("c", 3);
        let disk = Rc::new(bench.open_as(&c).await.expect("c may use it"));
        bench.faults.inject(Fault::Delay(3600 * SECOND));
        drop(rt.spawn(async move { drop(disk.write(0, block(9), WriteOpts::USER).await) }));
        while bench.shared.gate().in_flight() == 0 {
            rt.sleep(MILLISECOND).await;
        }
        bench.faults.inject(Fault::Delay(0));
        let patience = 200 * MILLISECOND;
        let fence = RemoteFence::new(&rt, &ring, bench.uri("d0"), home(), patience).expect("named");
        let fenced = fence.fence(&b, &c).await;
        assert!(matches!(fenced, Err(FenceError::Unconfirmed { .. })), "{fenced:?}");
        bench.open_as(&c).await.expect_err("it is refused nevertheless");
    });
}

#[test]
fn a_fence_that_cannot_be_made_durable_is_not_confirmed() {
    run(|rt, ring| async move {
        let bench = Bench::start(&rt, &ring, &medium().await).await;
        bench.open_as(&who("b", 2)).await.expect("the disk belongs to the cluster now");
        bench.faults.inject(Fault::FailWrites(0..HEAD_BYTES));
        for _ in 0..2 {
            let fenced = bench.fence().fence(&who("b", 2), &who("a", 1)).await;
            assert!(matches!(fenced, Err(FenceError::Unconfirmed { .. })), "{fenced:?}");
        }
        bench.faults.inject(Fault::FailWrites(0..0));
        bench.fence().fence(&who("b", 2), &who("a", 1)).await.expect("confirmed");
    });
}

#[test]
fn bad_names_and_other_clusters_are_refused() {
    run(|rt, ring| async move {
        let bench = Bench::start(&rt, &ring, &medium().await).await;
        bench.open_as(&who("a", 1)).await.expect("the first cluster owns the disk");
        let other = export_of(&d0(), &"other".parse().expect("a name"), &who("a", 1));
        for name in [&other, &format!("{other}/fence")] {
            let refused = bench.open(name).await.expect_err("another cluster").to_string();
            assert!(refused.contains("belongs to cluster home, not to other"), "{refused}");
        }
        for name in [
            "d0/home",
            "d0/home/a",
            "d0/home/a/",
            "d0/home/a/-1",
            "d0/home/a/01",
            "d0/home/a/1/",
            "d0/home/a/1/fences",
            "d0/home/a/1/fence/",
            "d0/home/a/1/0",
            "d0/home/a/1/01",
            "d0/home/a/1/2/",
            "d0/home/a/1/2/1/0",
            "d0/state/",
            "d0/ho me/a/1",
            "d0/home/../1",
            "/other/a/1",
            "d0/home/a/18446744073709551616",
            "d0/home/a/0",
            "d0/home/a/0/fence",
            "d0/home/a/18446744073709551615",
            "d0/home/a/18446744073709551615/fence",
            "d0/home/lease-",
            "d0/home/lease-16",
            "d0/home/lease-01",
            "d0/home/lease--1",
            "d9",
            "d9/home/a/1",
        ] {
            bench.open(name).await.expect_err(name);
        }
        let long = "a".repeat(65);
        bench.open(format!("d0/home/{long}/1")).await.expect_err("a long name");
        let last = who("z", u64::MAX - 1);
        bench.fence().fence(&who("a", 1), &last).await.expect("the last epoch but one");
        assert_eq!(WhatToDo::parse("d0"), Some(WhatToDo::Read(d0())));

        // An ordinary server knows no nodes.
        let plain = Server::new(&rt, &ring, ServerConfig::default());
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let address = plain.listen_tcp(any).expect("listen");
        let address = NbdAddress::Tcp(address.ip().to_string(), address.port());
        let uri = NbdUri { address, export: "d0".into() };
        let fence = RemoteFence::new(&rt, &ring, uri, home(), SECOND).expect("a name");
        let refused = fence.register(&who("a", 1)).await.expect_err("it cannot be shared");
        assert!(refused.to_string().contains("can be used by one node only"), "{refused}");
    });
}

#[test]
fn a_head_survives_a_torn_or_decayed_copy_and_refuses_two() {
    run(|rt, _| async move {
        let medium = medium().await;
        let shared = SharedDisk::open(&rt, medium.clone(), 1).await.expect("prepared");
        shared.fence(&home(), &who("a", 5)).await.expect("confirmed");
        shared.close().await.expect("given back");
        // Each server writes another of the pairs.
        let pairs = || (0..8_u64).map(|pair| if pair == 0 { 0 } else { (64 << 10) * (pair + 1) });
        let used = async |at: u64| {
            let (result, head) = medium.read(at, Buf::new(512), Class::User).await;
            result.expect("read");
            (head[0] != 0).then_some(head)
        };
        for copy in [0, 32 << 10] {
            for at in pairs().map(|pair| pair + copy) {
                if used(at).await.is_some() {
                    medium.write(at + 512, block(0xee), WriteOpts::USER).await.expect("decays");
                    medium.write(at, block(0xee), WriteOpts::USER).await.expect("decays");
                }
            }
            let shared =
                SharedDisk::open(&rt, medium.clone(), 1).await.expect("the other is whole");
            shared.open_as(&home(), &who("a", 5)).await.expect_err("the fence is known");
            shared.close().await.expect("given back");
        }
        for copy in [0, 32 << 10] {
            for at in pairs().map(|pair| pair + copy) {
                if let Some(mut head) = used(at).await {
                    head[40] ^= 1;
                    medium.write(at, head.freeze(), WriteOpts::USER).await.expect("decays");
                }
            }
        }
        let opened = SharedDisk::open(&rt, medium.clone(), 1).await.expect_err("both are damaged");
        assert!(matches!(opened, SharedDiskError::Head(HeadError::Damaged(_))), "{opened}");
        let prepared = prepare(&*medium, Preparation::Blank).await.expect_err("it holds something");
        assert!(matches!(prepared, HeadError::NotBlank(_)), "{prepared}");

        let blank: Rc<RamDisk> = Rc::new(RamDisk::new("ram", 4 << 20, 512));
        let opened = SharedDisk::open(&rt, blank, 1).await.expect_err("it was not prepared");
        assert!(matches!(opened, SharedDiskError::Head(HeadError::NotPrepared(_))), "{opened}");
        let small: Rc<RamDisk> = Rc::new(RamDisk::new("ram", 1 << 20, 512));
        let opened = SharedDisk::open(&rt, small, 1).await.expect_err("it has no room");
        assert!(matches!(opened, SharedDiskError::Head(HeadError::TooSmall(..))), "{opened}");
    });
}

#[test]
fn a_new_session_is_taken_when_nothing_of_the_one_before_can_come() {
    run(|rt, ring| async move {
        let bench = Bench::start(&rt, &ring, &medium().await).await;
        let a = who("a", 5);
        let name = export_of(&d0(), &home(), &a);
        let first = Rc::new(bench.open(format!("{name}/3")).await.expect("the first"));
        bench.faults.inject(Fault::Delay(300 * MILLISECOND));
        let writing = first.clone();
        drop(rt.spawn(async move { drop(writing.write(0, block(1), WriteOpts::USER).await) }));
        while bench.shared.gate().in_flight() == 0 {
            rt.sleep(MILLISECOND).await;
        }
        let second = bench.open(format!("{name}/4/3")).await.expect("it follows");
        assert_eq!(bench.shared.gate().in_flight(), 0, "its write may come later");
        bench.faults.inject(Fault::Delay(0));
        first.write(0, block(2), WriteOpts::USER).await.expect_err("it has ended");
        second.write(512, block(3), WriteOpts::USER).await.expect("it has the disk");
        // An earlier one, and one of a user that does not know of the present one.
        for late in ["3", "4", "4/3", "9/3"] {
            let refused = bench.open(format!("{name}/{late}")).await.expect_err(late).to_string();
            assert!(refused.contains("in another session"), "{refused}");
        }
        second.write(512, block(4), WriteOpts::USER).await.expect("it has the disk still");
        // Names without sessions are as before, and another user may begin.
        let plain = bench.open_as(&a).await.expect("for programs that know no sessions");
        plain.write(1024, block(5), WriteOpts::USER).await.expect("it may");
        bench.open(format!("{name}/9")).await.expect("another user of the same node");
        second.write(512, block(6), WriteOpts::USER).await.expect_err("that has it now");
    });
}

/// What uses the disk sees a pause when its server is started again, and what a fence is.
#[test]
fn a_member_outlasts_the_restart_of_the_server() {
    run(|rt, ring| async move {
        let medium = medium().await;
        let bench = Bench::start(&rt, &ring, &medium).await;
        let (a, b) = (who("a", 5), who("b", 6));
        let source = MemberSource::new(Rc::new(bench.fence()), a.clone(), 30 * SECOND);
        let disk = LastingDisk::open(&rt, Rc::new(source), Patience::default()).await;
        let disk = Rc::new(disk.expect("a may use it"));
        disk.write(0, block(1), WriteOpts::USER).await.expect("written");
        let address = bench.address;
        bench.server.shutdown().await;
        bench.shared.close().await.expect("given back");
        let (writing, reading) = (disk.clone(), disk.clone());
        let write = rt.spawn(async move { writing.write(512, block(2), WriteOpts::USER).await });
        let read = rt.spawn(async move { reading.read(0, Buf::new(512), Class::User).await });
        drop(bench);
        rt.sleep(300 * MILLISECOND).await;
        // Its memory was lost: what was acknowledged and not flushed.
        medium.write(HEAD_BYTES, block(0), WriteOpts::USER).await.expect("lost");
        let bench = Bench::start_at(&rt, &ring, &medium, address).await;
        write.await.expect("a pause, and no failure");
        let (result, buf) = read.await;
        result.expect("a pause, and no failure");
        assert_eq!(buf[0], 1, "it was acknowledged");
        disk.flush().await.expect("flushed");

        // A disk of the same name that is another one.
        bench.server.shutdown().await;
        bench.shared.close().await.expect("given back");
        drop(bench);
        let other = self::medium().await;
        let bench = Bench::start_at(&rt, &ring, &other, address).await;
        let error = disk.write(0, block(9), WriteOpts::USER).await.expect_err("another disk");
        assert!(error.to_string().contains("another disk"), "{error}");
        drop(bench.open_as(&a).await.expect("a may use that, too"));

        // One that was fenced while it was not connected.
        let source = MemberSource::new(Rc::new(bench.fence()), a.clone(), 30 * SECOND);
        let disk = LastingDisk::open(&rt, Rc::new(source), Patience::default()).await;
        let disk = disk.expect("a may use it");
        bench.fence().fence(&b, &a).await.expect("confirmed");
        let error = disk.write(0, block(9), WriteOpts::USER).await.expect_err("it was fenced");
        assert_eq!(error.kind, DiskErrorKind::Fenced, "{error}");
    });
}

/// Leases are written without an epoch, and by one process of a node at a time: what a connection
/// has read stays as it is until it writes, or it writes nothing.
#[test]
fn leases_are_written_by_the_connection_that_came_last() {
    run(|rt, ring| async move {
        let medium = Rc::new(RamDisk::new("ram", HEAD_BYTES + AREA_BYTES + (1 << 20), 512));
        prepare(&*medium, Preparation::Blank).await.expect("a blank disk");
        let bench = Bench::start(&rt, &ring, &medium).await;
        let leases = |number| {
            let uri = bench.fence().uri_of_leases(number);
            RemoteLeases::new(&rt, &ring, uri, number.is_none(), SECOND)
        };
        const AT: u64 = 4 * BLOCK_BYTES;
        let config = DiskLeaseConfig {
            offset: 0,
            nodes: POOL_NODES,
            number: 0,
            lease: SECOND,
            patience: SECOND,
            seed: 1,
        };
        let blank: Vec<Rc<dyn Disk>> = vec![Rc::new(leases(Some(0)))];
        DiskCoordinator::set_up(&blank, &config, 7).await.expect("a blank disk");
        let (one, two, other) = (leases(Some(3)), leases(Some(3)), leases(Some(4)));
        let read = async |leases: &RemoteLeases| {
            let (result, buf) = leases.read(AT, Buf::new(4096), Class::User).await;
            result.map(|()| buf[0])
        };
        let page = |byte| Frozen::copy_from(&[byte; 4096]);
        one.write(AT, page(1), WriteOpts::USER_FUA).await.expect_err("it has read nothing");
        assert_eq!(read(&one).await.expect("connected"), 0);
        one.write(AT, page(1), WriteOpts::USER_FUA).await.expect("written");
        assert_eq!(read(&other).await.expect("connected"), 1);
        other.write(AT + 4096, page(4), WriteOpts::USER_FUA).await.expect("another number");
        // A second process of the node comes between a read and a write, which is in flight.
        assert_eq!(read(&one).await.expect("read"), 1);
        bench.faults.inject(Fault::Delay(300 * MILLISECOND));
        let late = one.write(AT, page(2), WriteOpts::USER_FUA);
        let second = async {
            rt.sleep(50 * MILLISECOND).await;
            read(&two).await.expect("connected when the write has ended")
        };
        let (_, found) = futures_util::future::join(late, second).await;
        assert_eq!(found, 2, "the write came before");
        bench.faults.inject(Fault::Delay(0));
        one.write(AT, page(9), WriteOpts::USER_FUA).await.expect_err("its turn is over");
        two.write(AT, page(3), WriteOpts::USER_FUA).await.expect("written");
        assert_eq!(read(&leases(None)).await.expect("anyone may read"), 3);

        // They end where the file system begins, and a fence does not hit them.
        let past = two.write(AREA_BYTES, page(7), WriteOpts::USER).await;
        past.expect_err("beyond the leases");
        bench.fence().fence(&who("b", 2), &who("a", 1)).await.expect("confirmed");
        assert_eq!(read(&two).await.expect("connected"), 3);
        two.write(AT, page(5), WriteOpts::USER_FUA).await.expect("written");

        // Another cluster has none there, and a disk that is used from its start has no room.
        let uri = bench.uri("d0/other/lease-1");
        let foreign = RemoteLeases::new(&rt, &ring, uri, false, SECOND);
        read(&foreign).await.expect_err("another cluster");
        assert!(foreign.why().is_some_and(|why| why.contains("belongs to cluster home")));
        let node = bench.open_as(&who("a", 7)).await.expect("a may use it");
        node.write(0, Frozen::copy_from(&[0xee; 8192]), WriteOpts::USER).await.expect("written");
        let late = leases(Some(5));
        read(&late).await.expect_err("no leases");
        assert!(late.why().is_some_and(|why| why.contains("has no room for leases")), "{late:?}");
    });
}
