//! A node: a machine with a clock, and the process that runs on it until it crashes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use futures_util::FutureExt as _;
use futures_util::future::{Either, join_all, select};
use weft_cluster::coordinator::{Coordinator, CoordinatorError, CoordinatorFuture, Swap, View};
use weft_cluster::fence::{Fence, FenceError, FenceFuture};
use weft_cluster::{
    Clock, DiskName, Incarnation, Node, NodeConfig, NodeError, NodeName, Record, Session, Standing,
    Version,
};
use weft_disk::{IoFuture, Volume as _, VolumeErrorKind};
use weft_rt::sync::{Notify, oneshot};
use weft_rt::{Buf, MILLISECOND, Nanos, Rt, SECOND};

use super::network::{Network, Place};
use super::oracle::Author;
use super::{Canary, DiskServer, LEASE, World};

/// How long a node waits for an answer, by its clock.
const PATIENCE: Nanos = 2 * SECOND;

/// A clock that runs at a rate of its own (per mille), and a machine that stops.
pub struct SimClock {
    rt: Rt,
    rate: u64,
    zero: Nanos,
    paused_until: Cell<Nanos>,
    resumed: Notify,
}

impl SimClock {
    pub fn new(rt: &Rt, rate: u64, zero: Nanos) -> Self {
        let paused_until = Cell::new(0);
        Self { rt: rt.clone(), rate, zero, paused_until, resumed: Notify::default() }
    }

    /// Nothing of the machine runs for a while.
    pub fn pause(&self, long: Nanos) {
        self.paused_until.set(self.rt.now() + long);
    }

    pub fn resume(&self) {
        self.paused_until.set(0);
        self.resumed.notify_all();
    }

    /// Waits while the machine is stopped. Whatever a process waits for ends with it.
    pub async fn runs(&self) {
        loop {
            let resumed = self.resumed.wait();
            let until = self.paused_until.get();
            if self.rt.now() >= until {
                return;
            }
            select(Box::pin(resumed), Box::pin(self.rt.sleep_until(until))).await;
        }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Nanos {
        self.zero + self.rt.now() / 1000 * self.rate
    }

    fn sleep(&self, duration: Nanos) -> IoFuture<'_, ()> {
        Box::pin(async move {
            self.rt.sleep(duration / self.rate * 1000).await;
            self.runs().await;
        })
    }
}

pub struct Machine {
    pub name: NodeName,
    pub place: usize,
    pub clock: Rc<SimClock>,
    /// The executor of the process that runs.
    process: RefCell<Option<Rt>>,
}

impl Machine {
    pub fn new(name: NodeName, place: usize, clock: Rc<SimClock>) -> Self {
        Self { name, place, clock, process: RefCell::default() }
    }
}

/// The process ends where it stands. What it has sent is on its way.
pub fn crash(machine: &Machine) {
    if let Some(process) = machine.process.borrow_mut().take() {
        process.fail_domain();
    }
}

/// Starts a process, unless one runs.
pub fn boot(world: &Rc<World>, machine: &Rc<Machine>) {
    if machine.process.borrow().is_some() {
        return;
    }
    let rt = world.rt.domain(|| {});
    *machine.process.borrow_mut() = Some(rt.clone());
    let process = Rc::new(Process::new(world, machine, rt.clone()));
    rt.spawn(process.clone().stay_alive());
    rt.spawn(process.clone().take_part());
    rt.spawn(process.write());
}

/// What a process uses to reach the others.
#[derive(Clone)]
struct Line {
    world: Rc<World>,
    machine: Rc<Machine>,
}

impl Line {
    /// A message there, `work` there, a message back. `None` if no answer comes in time.
    async fn call<T: 'static>(
        &self,
        to: Place,
        patience: Nanos,
        work: impl Future<Output = Option<T>> + 'static,
    ) -> Option<T> {
        let (world, here) = (self.world.clone(), Place::Node(self.machine.place));
        let (sender, answer) = oneshot();
        // What was sent arrives although the sender dies.
        self.world.rt.spawn(async move {
            if world.network.carry(here, to).await
                && let Some(value) = work.await
                && world.network.carry(to, here).await
            {
                sender.send(value);
            }
        });
        let answer = Box::pin(Network::answer(answer));
        let late = self.machine.clock.sleep(patience);
        let outcome = match select(answer, late).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        };
        self.machine.clock.runs().await;
        outcome
    }

    /// Work at the server of a disk; lost if the server is down, or dies before it is done.
    async fn at_disk<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        number: usize,
        patience: Nanos,
        work: impl FnOnce(Rc<DiskServer>, Rc<weft_cluster::fence::SharedDisk>) -> F + 'static,
    ) -> Option<T> {
        let server = self.world.disks[number].clone();
        self.call(Place::Disk(number), patience, async move {
            let shared = server.shared.borrow().clone()?;
            let life = server.life.get();
            let process = server.process.borrow().clone()?;
            let value = process.spawn(work(server.clone(), shared)).await;
            (server.life.get() == life).then_some(value)
        })
        .await
    }
}

struct SimCoordinator(Line);

impl Coordinator for SimCoordinator {
    fn read(&self) -> CoordinatorFuture<'_, View> {
        let inner = self.0.world.coordinator.clone();
        Box::pin(async move {
            let read = async move { inner.read().await.ok() };
            let view = self.0.call(Place::Coordinator, PATIENCE, read).await;
            view.ok_or_else(|| CoordinatorError::Unreachable("no answer".into()))
        })
    }

    fn compare_and_set(&self, expected: Version, record: Record) -> CoordinatorFuture<'_, Swap> {
        let world = self.0.world.clone();
        Box::pin(async move {
            let set = async move { swap(&world, expected, record).await };
            let swap = self.0.call(Place::Coordinator, PATIENCE, set).await;
            swap.ok_or_else(|| CoordinatorError::Unknown("no answer".into()))
        })
    }

    fn keep_alive<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        let (inner, session) = (self.0.world.coordinator.clone(), session.clone());
        Box::pin(async move {
            let renew = async move { inner.keep_alive(&session).await.ok() };
            let done = self.0.call(Place::Coordinator, PATIENCE, renew).await;
            done.ok_or_else(|| CoordinatorError::Unreachable("no answer".into()))
        })
    }

    fn end_lease<'a>(&'a self, _: &'a Session) -> CoordinatorFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn changed<'a>(&'a self, _: &'a View) -> CoordinatorFuture<'a, ()> {
        Box::pin(async {
            self.0.machine.clock.sleep(300 * MILLISECOND).await;
            Ok(())
        })
    }
}

/// A compare-and-set at the coordinator, or what a canary makes of it.
async fn swap(world: &World, expected: Version, mut record: Record) -> Option<Swap> {
    let coordinator = &world.coordinator;
    let mut expected = expected;
    if world.scenario.canary == Canary::SetWithoutCompare {
        expected = coordinator.read().await.ok()?.version;
    }
    if world.scenario.canary == Canary::EpochReused {
        let mut old = world.old_epochs.borrow_mut();
        for (node, member) in &mut record.members {
            let first = *old.entry(node.clone()).or_insert(member.epoch);
            member.epoch = first;
        }
        if let Some(keeper) = &mut record.keeper {
            keeper.node.epoch = record.members[&keeper.node.node].epoch;
        }
    }
    coordinator.compare_and_set(expected, record).await.ok()
}

struct SimFence {
    line: Line,
    number: usize,
}

impl Fence for SimFence {
    fn disk(&self) -> &DiskName {
        &self.line.world.disks[self.number].name
    }

    fn register<'a>(&'a self, _: &'a Incarnation) -> FenceFuture<'a> {
        Box::pin(async { Ok(()) })
    }

    fn confirm<'a>(&'a self, _: &'a Incarnation) -> FenceFuture<'a> {
        Box::pin(async { Ok(()) })
    }

    fn fence<'a>(&'a self, _: &'a Incarnation, victim: &'a Incarnation) -> FenceFuture<'a> {
        let (world, victim) = (self.line.world.clone(), victim.clone());
        let (canary, first) = (world.scenario.canary, self.number == 0);
        let work = move |_, shared: Rc<weft_cluster::fence::SharedDisk>| async move {
            let mut fence = Box::pin(shared.fence(&world.cluster, &victim));
            match canary {
                Canary::LeaseTrusted => Ok(()),
                Canary::FenceSkipped if first => Ok(()),
                Canary::FenceConfirmedEarly => {
                    // The bound is there; who waits for the rest?
                    drop(fence.as_mut().now_or_never());
                    Ok(())
                }
                _ => fence.await.map_err(|error| error.to_string()),
            }
        };
        Box::pin(async move {
            let outcome = self.line.at_disk(self.number, 4 * SECOND, work).await;
            let outcome = outcome.unwrap_or_else(|| Err("no answer".to_owned()));
            outcome.map_err(|why| FenceError::Unconfirmed { disk: self.disk().clone(), why })
        })
    }
}

struct Process {
    line: Line,
    rt: Rt,
    node: Node,
    standing: RefCell<Standing>,
    /// Until when its lease lasts, by its own clock.
    lease_end: Cell<Nanos>,
}

impl Process {
    fn new(world: &Rc<World>, machine: &Rc<Machine>, rt: Rt) -> Self {
        let line = Line { world: world.clone(), machine: machine.clone() };
        let number = world.draw(|rng| rng.next_u64());
        let session = Session { node: machine.name.clone(), number };
        let fence = |number| -> Rc<dyn Fence> { Rc::new(SimFence { line: line.clone(), number }) };
        let fences = (0..world.disks.len()).map(fence).collect();
        let disks_min = world.disks.len().div_ceil(2);
        let cluster = world.cluster.clone();
        let config = NodeConfig { cluster, session, disks_min, may_keep: true, address: None };
        let node = Node::new(Rc::new(SimCoordinator(line.clone())), fences, config);
        let (standing, lease_end) = (RefCell::new(Standing::Out), Cell::new(0));
        Self { line, rt, node, standing, lease_end }
    }

    fn clock(&self) -> &SimClock {
        &self.line.machine.clock
    }

    async fn stay_alive(self: Rc<Self>) {
        loop {
            let start = self.clock().now();
            if self.node.keep_alive().await.is_ok() {
                self.lease_end.set(start + LEASE);
            }
            self.clock().sleep(LEASE / 4).await;
        }
    }

    /// Ends all use of the disks, and joins anew.
    fn start_anew(&self) {
        *self.standing.borrow_mut() = Standing::Out;
        let number = self.line.world.draw(|rng| rng.next_u64());
        self.node.renew(number);
    }

    async fn take_part(self: Rc<Self>) {
        loop {
            match self.node.step().await {
                Ok(Standing::Expelled(_)) => self.start_anew(),
                Ok(standing) => *self.standing.borrow_mut() = standing,
                Err(NodeError::Fence(FenceError::Fenced { .. })) => self.start_anew(),
                Err(_) => {}
            }
            let lost = match &*self.standing.borrow() {
                Standing::Keeper { lost_disks, .. } => lost_disks.iter().next().cloned(),
                _ => None,
            };
            if let Some(lost) = lost {
                // The disk may be away still.
                let _ = self.node.regain_disk(&lost).await;
            }
            let pause = self.line.world.draw(|rng| rng.within(50, 600)) * MILLISECOND;
            self.clock().sleep(pause).await;
        }
    }

    async fn write(self: Rc<Self>) {
        loop {
            let pause = self.line.world.draw(|rng| rng.within(1, 400)) * MILLISECOND;
            self.clock().sleep(pause).await;
            let (Some(own), session) = (self.node.own(), self.node.session()) else { continue };
            let (term, lost) = match &*self.standing.borrow() {
                Standing::Keeper { keeper, lost_disks } => (Some(keeper.term), lost_disks.clone()),
                Standing::Member(_) => (None, Default::default()),
                _ => continue,
            };
            let late = self.clock().now() > self.lease_end.get();
            if late && self.line.world.scenario.canary == Canary::LeaseTrusted {
                continue;
            }
            // Between a look at the lease and the write the machine may stop for any time.
            self.rt.yield_now().await;
            self.clock().runs().await;
            let usable = |number: &usize| !lost.contains(&self.line.world.disks[*number].name);
            let disks = (0..self.line.world.disks.len()).filter(usable);
            let author = Author { session, own, term };
            let writes = disks.map(|number| self.write_to(number, author.clone()));
            let outcomes = join_all(writes).await;
            if outcomes.contains(&Some(false)) {
                self.line.world.oracle.refused();
                if self.node.own() == Some(author.own) {
                    self.start_anew();
                }
            }
        }
    }

    /// Writes a block: whether the disk took it, if there was an answer.
    async fn write_to(&self, number: usize, author: Author) -> Option<bool> {
        let world = self.line.world.clone();
        let own = author.own.clone();
        let mut block = Buf::zeroed(512);
        block[..8].copy_from_slice(&world.oracle.note(author).to_le_bytes());
        let slot = world.draw(|rng| rng.below(64));
        let work = move |_, shared: Rc<weft_cluster::fence::SharedDisk>| async move {
            let volume = match shared.open_as(&world.cluster, &own).await {
                Ok(volume) => volume,
                Err(weft_cluster::fence::SharedDiskError::Refused(_)) => return Some(false),
                Err(_) => return None,
            };
            match volume.write(slot * 512, block.freeze(), true).await {
                Ok(()) => Some(true),
                Err(error) if error.kind == VolumeErrorKind::Stopped => Some(false),
                Err(_) => None,
            }
        };
        self.line.at_disk(number, PATIENCE, work).await.flatten()
    }
}
