//! Several servers of one disk, on machines that do not know each other: one at a time serves it,
//! and no fence that one of them has confirmed is lost, however late their requests are.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_cluster::fence::{
    HEAD_BYTES, HeadError, Preparation, SharedDisk, SharedDiskError, prepare,
};
use weft_cluster::{ClusterName, Epoch, Incarnation, NodeName};
use weft_disk::{
    Class, Disk, DoneFuture, Layer, RamDisk, ReadFuture, Volume as _, VolumeErrorKind, WriteOpts,
};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rng, Rt, SECOND, Schedule, virtual_rt};
use weft_testkit::for_seeds;

const CLAIM: std::ops::Range<u64> = 64 << 10..68 << 10;

/// How late requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delays {
    /// They reach the disk within two seconds; answers take any time.
    Bounded,
    /// They reach it at any time.
    Unbounded,
}

fn home() -> ClusterName {
    "home".parse().expect("a name")
}

#[derive(Default)]
struct Oracle {
    /// The highest epoch of each node whose fence was confirmed.
    fenced: RefCell<BTreeMap<NodeName, Epoch>>,
    authors: RefCell<Vec<Incarnation>>,
    late: Cell<u64>,
    effects: Cell<u64>,
    confirmed: Cell<u64>,
    refused: Cell<u64>,
}

/// A machine's path to the disk.
struct Path {
    rt: Rt,
    rng: RefCell<Rng>,
    ram: Rc<RamDisk>,
    oracle: Rc<Oracle>,
    delays: Delays,
    /// Where a broken build keeps the claim: no other server sees it.
    own_claim: Option<Rc<RamDisk>>,
}

impl Path {
    fn medium(&self, offset: u64) -> Rc<RamDisk> {
        match &self.own_claim {
            Some(own) if CLAIM.contains(&offset) => own.clone(),
            _ => self.ram.clone(),
        }
    }

    /// How long a request is on its way, and its answer.
    fn delay(&self) -> (Nanos, Nanos) {
        let mut rng = self.rng.borrow_mut();
        let mut short = || rng.within(0, 20) * MILLISECOND;
        let (mut there, mut back) = (short(), short());
        if rng.chance(2) {
            match self.delays {
                Delays::Bounded => there = rng.within(0, 2000) * MILLISECOND,
                Delays::Unbounded => there = rng.within(0, 40) * SECOND,
            }
        }
        if rng.chance(1) {
            back = rng.within(0, 20) * SECOND;
        }
        (there, back)
    }
}

impl Layer for Path {
    fn below(&self) -> &dyn Disk {
        &*self.ram
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        let (there, back) = self.delay();
        Box::pin(async move {
            self.rt.sleep(there).await;
            let (result, buf) = self.medium(offset).read(offset, buf, class).await;
            self.rt.sleep(back).await;
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let (there, back) = self.delay();
        let (medium, oracle, rt) = (self.medium(offset), self.oracle.clone(), self.rt.clone());
        // What is on its way arrives, whatever becomes of the server.
        let task = self.rt.spawn(async move {
            rt.sleep(there).await;
            if offset >= HEAD_BYTES {
                let number = u64::from_le_bytes(data[..8].try_into().expect("a number"));
                let index = usize::try_from(number).expect("a number of ours");
                let author = oracle.authors.borrow()[index].clone();
                oracle.effects.set(oracle.effects.get() + 1);
                let fenced = oracle.fenced.borrow().get(&author.node).copied();
                if fenced.is_some_and(|epoch| author.epoch <= epoch) {
                    oracle.late.set(oracle.late.get() + 1);
                }
            }
            let result = medium.write(offset, data, opts).await;
            rt.sleep(back).await;
            result
        });
        Box::pin(task)
    }
}

/// Serves the disk until another server does.
async fn serve(rt: Rt, disk: Rc<dyn Disk>, oracle: Rc<Oracle>, mut rng: Rng) {
    let shared = loop {
        match SharedDisk::open(&rt, disk.clone(), rng.next_u64()).await {
            Ok(shared) => break shared,
            Err(_) => rt.sleep(rng.within(1, 3000) * MILLISECOND).await,
        }
    };
    loop {
        rt.sleep(rng.within(1, 300) * MILLISECOND).await;
        let node: NodeName = format!("n{}", rng.below(4)).parse().expect("a name");
        let fenced = oracle.fenced.borrow().get(&node).copied().unwrap_or_default();
        // Nodes that are late write, too.
        let epoch = Epoch((fenced.0 + 1).saturating_sub(rng.below(2)).max(1));
        let who = Incarnation { node, epoch };
        if rng.chance(10) {
            let (shared, oracle) = (shared.clone(), oracle.clone());
            drop(rt.spawn(async move {
                if shared.fence(&home(), &who).await.is_ok() {
                    let mut fenced = oracle.fenced.borrow_mut();
                    let highest = fenced.entry(who.node).or_default();
                    *highest = (*highest).max(who.epoch);
                    oracle.confirmed.set(oracle.confirmed.get() + 1);
                }
            }));
            continue;
        }
        match shared.open_as(&home(), &who).await {
            Ok(volume) => {
                let number = oracle.authors.borrow().len() as u64;
                oracle.authors.borrow_mut().push(who);
                let mut block = Buf::zeroed(512);
                block[..8].copy_from_slice(&number.to_le_bytes());
                drop(rt.spawn(async move {
                    drop(volume.write(0, block.freeze(), true).await);
                }));
            }
            Err(SharedDiskError::Refused(_)) => oracle.refused.set(oracle.refused.get() + 1),
            Err(_) => return,
        }
    }
}

/// One run: how many blocks of fenced nodes were written, and whether a fence was lost.
fn run(seed: u64, delays: Delays, claims_are_hidden: bool) -> (Rc<Oracle>, bool) {
    let rt = virtual_rt(Schedule::Seeded(seed));
    let mut rng = Rng::new(seed);
    let ram = Rc::new(RamDisk::new("d0", HEAD_BYTES + (64 << 10), 512));
    let oracle = Rc::new(Oracle::default());
    let outer = (rt.clone(), oracle.clone());
    let lost = rt.block_on(async move {
        let (rt, oracle) = outer;
        prepare(&*ram, Preparation::Blank).await.expect("a blank disk");
        let mut servers: Vec<Option<Rt>> = vec![None, None, None];
        for round in 0..30 {
            let place = rng.index(servers.len());
            if let Some(server) = servers[place].take() {
                server.fail_domain();
            }
            if rng.chance(80) || round == 0 {
                let own_claim = || Rc::new(RamDisk::new("own", 1 << 20, 512));
                let path = Path {
                    rt: rt.clone(),
                    rng: RefCell::new(rng.fork(round)),
                    ram: ram.clone(),
                    oracle: oracle.clone(),
                    delays,
                    own_claim: claims_are_hidden.then(own_claim),
                };
                let server = rt.domain(|| {});
                let work = serve(server.clone(), Rc::new(path), oracle.clone(), rng.fork(99));
                drop(server.spawn(work));
                servers[place] = Some(server);
            }
            rt.sleep(rng.within(100, 20_000) * MILLISECOND).await;
        }
        // The servers end, what is on its way arrives, and another one looks at the disk.
        rt.sleep(60 * SECOND).await;
        for server in servers.into_iter().flatten() {
            server.fail_domain();
        }
        rt.sleep(60 * SECOND).await;
        let last = SharedDisk::open(&rt, ram, 1).await.expect("it is prepared");
        let bounds = last.gate().bounds();
        let fenced = oracle.fenced.borrow();
        fenced
            .iter()
            .any(|(node, epoch)| bounds.admit(&Incarnation { node: node.clone(), epoch: *epoch }))
    });
    rt.kill_all();
    (oracle, lost)
}

#[test]
fn nodes_that_were_fenced_write_through_no_server() {
    let (effects, confirmed, refused) = <(Cell<u64>, Cell<u64>, Cell<u64>)>::default();
    for_seeds(0..60, |rng| {
        let seed = rng.next_u64();
        let (oracle, lost) = run(seed, Delays::Bounded, false);
        assert!(!lost, "seed {seed}: a fence was lost");
        assert_eq!(oracle.late.get(), 0, "seed {seed}: a fenced node has written");
        effects.set(effects.get() + oracle.effects.get());
        confirmed.set(confirmed.get() + oracle.confirmed.get());
        refused.set(refused.get() + oracle.refused.get());
    });
    let counts = (effects.get(), confirmed.get(), refused.get());
    assert!(counts.0 > 1000 && counts.1 > 100 && counts.2 > 100, "{counts:?}");
}

#[test]
fn no_fence_is_lost_however_late_requests_are() {
    for_seeds(0..60, |rng| {
        let seed = rng.next_u64();
        let (_, lost) = run(seed, Delays::Unbounded, false);
        assert!(!lost, "seed {seed}: a fence was lost");
    });
}

#[test]
fn servers_that_do_not_see_each_other_are_found_out() {
    let found = (0..20).any(|seed| run(seed, Delays::Bounded, true).0.late.get() > 0);
    assert!(found, "the test sees no difference");
}

#[test]
fn a_second_server_is_refused_and_one_that_gave_the_disk_back_is_followed_at_once() {
    let rt = virtual_rt(Schedule::Fifo);
    rt.block_on({
        let rt = rt.clone();
        async move {
            let ram = Rc::new(RamDisk::new("d0", HEAD_BYTES + (64 << 10), 512));
            prepare(&*ram, Preparation::Blank).await.expect("a blank disk");
            let one = SharedDisk::open(&rt, ram.clone(), 1).await.expect("the first");
            let refused = SharedDisk::open(&rt, ram.clone(), 2).await.expect_err("a second");
            assert!(matches!(refused, SharedDiskError::Head(HeadError::Served(_))), "{refused}");
            assert!(refused.to_string().contains("another server serves d0"), "{refused}");
            let who = Incarnation { node: "a".parse().expect("a name"), epoch: Epoch(1) };
            let volume = one.open_as(&home(), &who).await.expect("it serves on");
            volume.write(0, Frozen::copy_from(&[1; 512]), true).await.expect("written");

            one.close().await.expect("given back");
            let start = rt.now();
            let two = SharedDisk::open(&rt, ram.clone(), 2).await.expect("it is free");
            assert!(rt.now() - start < SECOND, "it need not wait");
            let late = volume.write(0, Frozen::copy_from(&[2; 512]), true).await;
            let late = late.expect_err("the first one has ended");
            assert_eq!(late.kind, VolumeErrorKind::Failed, "{late}");
            one.fence(&home(), &who).await.expect_err("it confirms nothing any more");

            // A disk that is prepared once more belongs to no server.
            prepare(&*ram, Preparation::Erase).await.expect("erased");
            two.deposed().await;
            two.open_as(&home(), &who).await.expect_err("it serves it no more");
        }
    });
}
