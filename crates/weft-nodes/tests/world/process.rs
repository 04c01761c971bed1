//! Machines, and the processes on them until they crash: keepers that stand by and take over, and
//! nodes. They run what the commands `weft fs keeper` and `weft fs mount --cluster` run.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_cluster::coordinator::{Coordinator, CoordinatorError, CoordinatorFuture, Swap, View};
use weft_cluster::fence::{EndOfUse, Fence, MemberDisk};
use weft_cluster::{
    DiskName, Epoch, Incarnation, Membership, Node, NodeConfig, NodeName, Record, Session,
    Standing, Version,
};
use weft_disk::{Disk, IoFuture};
use weft_fs::{Fs, FsStatus, MountOptions, Reopen, Stream};
use weft_nodes::{Dial, KeeperWay, MemoryWay, Say, Term, mount_when_ready, number_of};
use weft_rt::sync::Notify;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};
use weft_token::NodeId;

use super::canary::{Canary, Filter};
use super::disks::{Line, NetFence, open_disk};
use super::faults;
use super::network::{CONNECT, Place};
use super::server::DiskServer;
use super::{LEASE, World, mounting, ring, workload};

/// How long a process waits for the coordinator.
const PATIENCE: Nanos = 2 * SECOND;
/// Why a process ends that was to end in order, and could not.
const NO_END: &str = "no end";
/// How long a node waits for a keeper.
const KEEPER_PATIENCE: Nanos = 60 * SECOND;

pub struct Machine {
    pub name: NodeName,
    pub place: usize,
    /// Whether its processes may become the keeper.
    pub may_keep: bool,
    /// How its clock runs, per mille.
    pub rate: u64,
    process: RefCell<Option<Rc<Process>>>,
}

impl Machine {
    pub fn new(place: usize, may_keep: bool, rate: u64) -> Rc<Self> {
        let name = format!("n{place}").parse().expect("a name");
        Rc::new(Self { name, place, may_keep, rate, process: RefCell::default() })
    }

    /// Where it listens as keeper.
    fn address(&self) -> Option<String> {
        self.may_keep.then(|| self.place.to_string())
    }

    pub fn process(&self) -> Option<Rc<Process>> {
        self.process.borrow().clone()
    }

    /// Whether its process is still this one.
    pub fn lives(&self, life: u64) -> bool {
        self.process().is_some_and(|process| process.life == life)
    }
}

/// A process: from its start to its end.
pub struct Process {
    world: Rc<World>,
    machine: Rc<Machine>,
    pub rt: Rt,
    /// Its number for the oracle.
    pub life: u64,
    line: Line,
    membership: Rc<Membership>,
    fences: Vec<Rc<NetFence>>,
    end: Rc<EndOfUse>,
    way: Rc<MemoryWay>,
    /// The file system, once it is mounted.
    fs: RefCell<Option<Fs>>,
    is_killed: Rc<Cell<bool>>,
    /// When it last carried out an operation.
    pub worked: Cell<Nanos>,
    /// Programs that carry out one, and since when.
    pub doing: RefCell<BTreeMap<u64, Nanos>>,
    /// Whether it ends in order.
    pub is_ending: Cell<bool>,
    /// Tasks that work.
    pub working: Cell<usize>,
    pub told: Notify,
    /// Whether it has ended in order.
    pub has_ended: Cell<bool>,
}

/// The process ends where it stands. What it has sent is on its way; its streams are closed unless
/// the whole machine is gone.
pub fn crash(world: &World, machine: &Machine, is_silent: bool) {
    if let Some(process) = machine.process.borrow_mut().take() {
        world.oracle.doom(process.life);
        process.is_killed.set(true);
        process.rt.fail_domain();
        drop(process.fs.take());
    }
    if !is_silent {
        world.network.close_streams(machine.place);
    }
}

/// Starts a process, unless one runs.
pub fn boot(world: &Rc<World>, machine: &Rc<Machine>) {
    if machine.process.borrow().is_some() {
        return;
    }
    let is_killed = Rc::new(Cell::new(false));
    let (killed, oracle, name) = (is_killed.clone(), world.oracle.clone(), machine.name.clone());
    let rt = world.rt.machine(machine.rate, move || {
        if !killed.get() {
            oracle.violate(format!("a task of {name} has panicked"));
        }
    });
    let life = world.oracle.begin_life(machine.may_keep);
    let (of, its) = (world.clone(), rt.clone());
    let line = Line {
        network: world.network.clone(),
        world: world.rt.clone(),
        rt: rt.clone(),
        machine: machine.place,
        process: life,
        stands_still: Rc::new(move || faults::stands_still(&of, &its)),
    };
    let session = Session { node: machine.name.clone(), number: world.draw(|rng| rng.next_u64()) };
    let fence = |server: &Rc<DiskServer>| {
        Rc::new(NetFence {
            line: line.clone(),
            server: server.clone(),
            cluster: world.cluster.clone(),
            oracle: world.oracle.clone(),
        })
    };
    let fences: Vec<_> = world.disks.iter().map(fence).collect();
    let config = NodeConfig {
        cluster: world.cluster.clone(),
        session,
        // With redundancy for one disk, one may be missing.
        disks_min: world.disks.len() - 1,
        may_keep: machine.may_keep,
        address: machine.address(),
    };
    let coordinator = Rc::new(SimCoordinator { line: line.clone(), world: world.clone() });
    let dynamic = fences.iter().map(|fence| fence.clone() as Rc<dyn Fence>).collect();
    let node = Node::new(coordinator.clone(), dynamic, config);
    let membership = Rc::new(Membership::start(&rt, coordinator, node, LEASE));
    let process = Rc::new(Process {
        world: world.clone(),
        machine: machine.clone(),
        life,
        line,
        membership,
        fences,
        end: Rc::default(),
        way: MemoryWay::new(&rt),
        fs: RefCell::default(),
        is_killed,
        worked: Cell::new(0),
        doing: RefCell::default(),
        is_ending: Cell::new(false),
        working: Cell::new(0),
        told: Notify::default(),
        has_ended: Cell::new(false),
        rt,
    });
    *machine.process.borrow_mut() = Some(process.clone());
    world.oracle.tell(format!("{} starts as life {}", machine.name, process.life));
    process.rt.spawn(process.clone().run());
}

impl Process {
    async fn run(self: Rc<Self>) {
        let (ending, expelled) = (self.end.clone(), self.membership.clone());
        self.rt.spawn(async move {
            expelled.expelled().await;
            ending.end("it is no member of the cluster any more");
        });
        let works = Box::pin(async {
            match self.machine.may_keep {
                true => self.keep().await,
                false => self.be_a_node().await,
            }
        });
        let ended = match select(works, Box::pin(self.end.wait())).await {
            Either::Left((ended, _)) => ended,
            Either::Right((why, _)) => Err(format!("fenced: {why}")),
        };
        let (world, machine, life) = (self.world.clone(), self.machine.clone(), self.life);
        match ended {
            Ok(()) => self.has_ended.set(true),
            Err(why) => {
                world.oracle.tell(format!("{} ends: {why}", machine.name));
                if why.contains("cannot be written: no room left") && world.oracle.lost().len() <= 1
                {
                    world.oracle.violate(format!("{} finds no room", machine.name));
                }
                if why.starts_with(NO_END) && world.ends.get() && world.oracle.lost().len() <= 1 {
                    world.oracle.violate(format!("{} does not end in order: {why}", machine.name));
                }
            }
        }
        // A process that has ended is started again after a while.
        let rt = world.rt.clone();
        rt.spawn(async move {
            if machine.lives(life)
                && !machine.process().is_some_and(|process| process.has_ended.get())
            {
                crash(&world, &machine, false);
                world.rt.sleep(world.draw(|rng| rng.within(100, 4000)) * MILLISECOND).await;
                if !world.is_over.get() {
                    boot(&world, &machine);
                }
            }
        });
    }

    fn say(&self) -> Say {
        let (oracle, name) = (self.world.oracle.clone(), self.machine.name.clone());
        Rc::new(move |text| {
            oracle.tell(format!("{name}: {text}"));
            if let Some(gone) = gone_of(text) {
                oracle.recovered(&gone);
            }
            if text.contains("uses the disk through this keeper") {
                oracle.counts.borrow_mut().relayed += 1;
            }
        })
    }

    async fn open_disks(&self, own: &Incarnation, lost: &BTreeSet<DiskName>) -> Vec<Rc<dyn Disk>> {
        let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
        for fence in &self.fences {
            let (name, number) = (fence.disk(), fence.server.number);
            if lost.contains(name) {
                self.world.oracle.lose(number);
                continue;
            }
            match self.open_disk(fence, own).await {
                Ok(disk) => disks.push(disk),
                Err(why) => self.world.oracle.tell(format!("{}: {why}", self.machine.name)),
            }
        }
        disks
    }

    async fn open_disk(
        &self,
        fence: &Rc<NetFence>,
        own: &Incarnation,
    ) -> Result<Rc<dyn Disk>, String> {
        let name = fence.disk();
        let opened = open_disk(&self.line, &fence.server, &self.world.cluster, own).await;
        let disk = opened.map_err(|why| format!("no {name}: {why}"))?;
        let by = (fence.clone() as Rc<dyn Fence>, name.to_string());
        Ok(Rc::new(MemberDisk::lasting(disk, by, own.clone(), self.end.clone())))
    }

    fn options(&self, degraded: bool) -> MountOptions {
        let nonce = self.world.draw(|rng| rng.next_u64());
        MountOptions { degraded, nonce, ..mounting(self.life) }
    }

    async fn joined(&self) -> Incarnation {
        let own = self.membership.until(|outlook| match &outlook.standing {
            Standing::Member(own) => Some(own.clone()),
            Standing::Keeper { keeper, .. } => Some(keeper.node.clone()),
            Standing::Out | Standing::Expelled(_) => None,
        });
        let own = own.await;
        self.world.oracle.joined(self.life, &own);
        own
    }

    /// As `weft fs keeper --degraded`.
    async fn keep(&self) -> Result<(), String> {
        self.joined().await;
        let became = self.membership.until(|outlook| match &outlook.standing {
            Standing::Keeper { keeper, lost_disks } => Some((keeper.clone(), lost_disks.clone())),
            _ => None,
        });
        let (keeper, lost) = match select(Box::pin(became), Box::pin(self.told_to_end())).await {
            Either::Left((became, _)) => became,
            Either::Right(_) => return self.leave().await,
        };
        self.world.oracle.tell(format!("{} is keeper in term {}", self.machine.name, keeper.term));
        faults::may_die_soon(&self.world, &self.machine, self.life);
        let term = Term {
            rt: self.rt.clone(),
            membership: self.membership.clone(),
            way: self.way.clone(),
            keeper,
            say: self.say(),
        };
        let lost = term.not_regained(&lost).await;
        let disks = self.open_disks(&term.keeper.node, &lost).await;
        let mounted = term.mount(&disks, self.options(true)).await;
        let fs = mounted.map_err(|error| format!("no mount: {error}"))?;
        self.watch(&fs);
        self.note_lost(&fs).await;
        let fences = self.fences.clone();
        term.cut_paths(&fs, move |name| {
            let fence = fences.iter().find(|fence| fence.disk().to_string() == name)?;
            Some(fence.clone() as Rc<dyn Fence>)
        });
        let oracle = self.world.oracle.clone();
        fs.keep(move |job, ended| oracle.job(job, &ended));
        let attendance = term.serve_nodes(&fs).await.map_err(|error| error.to_string())?;
        self.world.oracle.keeps(self.life);
        self.world.oracle.tell(format!("{} serves as node 0", self.machine.name));
        if self.world.scenario.canary == Canary::RingRecoveredTwice {
            let (world, way, fs) = (self.world.clone(), self.way.clone(), fs.clone());
            self.rt.spawn(ring::recover_twice(world, self.rt.clone(), way, fs));
        }
        self.serve(&fs).await?;
        term.end(&fs, &attendance).await.map_err(|error| format!("{NO_END}: {error}"))?;
        self.leave().await
    }

    /// As `weft fs mount --cluster`.
    async fn be_a_node(&self) -> Result<(), String> {
        let own = self.joined().await;
        let node = self.membership.until(|outlook| number_of(outlook, &own)).await;
        let way = KeeperWay::new(&self.rt, &self.membership, self.dial(), self.say());
        let disks = self.open_disks(&own, &BTreeSet::new()).await;
        let fs = self.mount(&disks, node, &way).await?;
        self.watch(&fs);
        self.world.oracle.tell(format!("{} has mounted", self.machine.name));
        self.serve(&fs).await?;
        fs.unmount().await.map_err(|error| format!("{NO_END}: {error}"))?;
        self.leave().await
    }

    async fn mount(
        &self,
        disks: &[Rc<dyn Disk>],
        node: NodeId,
        way: &Rc<KeeperWay>,
    ) -> Result<Fs, String> {
        let open = self.opening();
        let mount = (disks, Some(&open), self.options(false));
        let mounted = mount_when_ready(&self.rt, mount, (node, way), KEEPER_PATIENCE).await;
        mounted.map_err(|error| format!("no mount: {error}"))
    }

    /// How a node opens a disk that joins, by the name that it has at the keeper.
    fn opening(&self) -> Reopen {
        let process = self.machine.process().map(|process| Rc::downgrade(&process));
        Rc::new(move |name| {
            let process = process.clone();
            Box::pin(async move {
                let process = process.and_then(|of| of.upgrade()).ok_or("it has ended")?;
                let own = process.membership.node().own().ok_or("it is no member")?;
                let fence = process.fences.iter().find(|of| of.disk().to_string() == name);
                let disk = process.open_disk(fence.ok_or("there is none")?, &own).await?;
                process.world.oracle.tell(format!("{} opens {name}", process.machine.name));
                process.world.oracle.counts.borrow_mut().opened += 1;
                Ok(disk)
            })
        })
    }

    async fn leave(&self) -> Result<(), String> {
        self.membership.end().await.map_err(|error| error.to_string())
    }

    fn watch(&self, fs: &Fs) {
        let (world, name) = (self.world.clone(), self.machine.name.clone());
        fs.on_lost_disk(move |disk, text, why| {
            world.oracle.tell(format!("{name} has lost {text}: {why:?}"));
            world.lose(disk);
        });
        *self.fs.borrow_mut() = Some(fs.clone());
    }

    /// The disks that the mount did without.
    async fn note_lost(&self, fs: &Fs) {
        let Ok(status) = fs.status().await else { return };
        status.disks.iter().filter(|disk| disk.lost).for_each(|disk| self.world.lose(disk.number));
    }

    /// The mounted file system.
    pub fn fs(&self) -> Option<Fs> {
        self.fs.borrow().clone()
    }

    /// As `weft fs add`, at the keeper.
    pub async fn add(&self, fs: &Fs, server: &DiskServer, force: bool) -> Result<u16, String> {
        let own = self.membership.node().own().ok_or("it is no member")?;
        let fence = self.fences.iter().find(|fence| fence.server.number == server.number);
        let fence = fence.ok_or("there is none")?;
        match self.membership.node().regain_disk(fence.disk()).await {
            Ok(true) => {}
            Ok(false) => return Err("it may take what it must refuse".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        let disk = self.open_disk(fence, &own).await?;
        fs.add_disk(disk, force).await.map_err(|error| error.to_string())
    }

    async fn told_to_end(&self) {
        loop {
            let told = self.told.wait();
            if self.is_ending.get() {
                return;
            }
            told.await;
        }
    }

    /// Works with the file system, until it is told to end or the file system has stopped.
    async fn serve(&self, fs: &Fs) -> Result<(), String> {
        let process = self.machine.process().expect("it runs");
        workload::begin(&self.world, &process, fs);
        loop {
            let told = self.told.wait();
            if self.is_ending.get() && self.working.get() == 0 {
                return Ok(());
            }
            let pause = Box::pin(self.rt.sleep(2 * SECOND));
            select(Box::pin(told), pause).await;
            if let Ok(FsStatus { stopped: Some(why), .. }) = fs.status().await {
                return Err(format!("the file system has stopped: {why}"));
            }
        }
    }

    /// Connects to the process of a machine.
    fn dial(&self) -> Dial {
        let (world, line) = (self.world.clone(), self.line.clone());
        Rc::new(move |address| {
            let (world, line) = (world.clone(), line.clone());
            let dialled: IoFuture<'static, Result<Rc<dyn Stream>, String>> = Box::pin(async move {
                let far: usize = address.parse().map_err(|_| "no address".to_owned())?;
                let (at, there) = (world.clone(), line.place());
                let accept = async move {
                    let process = at.machines[far].process()?;
                    let filter = Filter::of(at.scenario.canary);
                    let (near, end) = at.network.stream(there, Place::Machine(far), filter);
                    process.way.accept(end);
                    Some(near)
                };
                let stream = line.call(Place::Machine(far), (CONNECT, false), accept).await;
                stream.ok_or_else(|| "it does not answer".to_owned())
            });
            dialled
        })
    }
}

/// Who is gone, as the log says.
fn gone_of(text: &str) -> Option<Incarnation> {
    let (who, _) = text.strip_prefix("node ")?.split_once(") is gone")?;
    let (node, epoch) = who.split_once(" (epoch ")?;
    Some(Incarnation { node: node.parse().ok()?, epoch: Epoch(epoch.parse().ok()?) })
}

/// The coordinator, as a process reaches it.
struct SimCoordinator {
    line: Line,
    world: Rc<World>,
}

impl SimCoordinator {
    async fn call<T: 'static>(&self, work: impl Future<Output = Option<T>> + 'static) -> Option<T> {
        self.line.call(Place::Coordinator, (PATIENCE, false), work).await
    }
}

fn unreachable<T>(answer: Option<T>) -> Result<T, CoordinatorError> {
    answer.ok_or_else(|| CoordinatorError::Unreachable("no answer".into()))
}

impl Coordinator for SimCoordinator {
    fn read(&self) -> CoordinatorFuture<'_, View> {
        let inner = self.world.coordinator.clone();
        Box::pin(
            async move { unreachable(self.call(async move { inner.read().await.ok() }).await) },
        )
    }

    fn compare_and_set(&self, expected: Version, record: Record) -> CoordinatorFuture<'_, Swap> {
        let world = self.world.clone();
        Box::pin(async move {
            let set = async move {
                let before = world.coordinator.read().await.ok()?.record;
                let swap =
                    world.coordinator.compare_and_set(expected, record.clone()).await.ok()?;
                if let (Swap::Done(_), Some(before)) = (swap, before) {
                    note_expelled(&world, &before, &record);
                }
                Some(swap)
            };
            let swap = self.call(set).await;
            swap.ok_or_else(|| CoordinatorError::Unknown("no answer".into()))
        })
    }

    fn keep_alive<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        let (inner, session) = (self.world.coordinator.clone(), session.clone());
        Box::pin(async move {
            let renew = async move { inner.keep_alive(&session).await.ok() };
            unreachable(self.call(renew).await)
        })
    }

    fn end_lease<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        let (inner, session) = (self.world.coordinator.clone(), session.clone());
        Box::pin(async move {
            let end = async move { inner.end_lease(&session).await.ok() };
            unreachable(self.call(end).await)
        })
    }

    fn changed<'a>(&'a self, _: &'a View) -> CoordinatorFuture<'a, ()> {
        Box::pin(async {
            self.line.rt.sleep(200 * MILLISECOND).await;
            Ok(())
        })
    }
}

fn note_expelled(world: &World, before: &Record, after: &Record) {
    for (node, epochs) in &after.fencing {
        let earlier = before.fencing.get(node);
        let new = epochs.iter().filter(|of| !earlier.is_some_and(|earlier| earlier.contains(of)));
        new.for_each(|epoch| {
            world.oracle.expelled(&Incarnation { node: node.clone(), epoch: *epoch });
        });
    }
}
