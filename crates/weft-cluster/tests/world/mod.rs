//! A simulated cluster: nodes with clocks of their own, a network, a coordinator, disk servers,
//! and faults, in virtual time. The protocol, the gate and the heads of disks are the real ones.

mod medium;
mod network;
mod oracle;
mod process;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_cluster::coordinator::MemoryCoordinator;
use weft_cluster::fence::{Preparation, SharedDisk, prepare};
use weft_cluster::{ClusterName, DiskName, NodeName};
use weft_rt::{MILLISECOND, Nanos, Rng, Rt, SECOND, Schedule, virtual_rt};

use medium::Medium;
use network::{Network, Place};
use oracle::{Counts, Oracle};
use process::{Machine, SimClock};

/// How long leases last.
pub const LEASE: Nanos = 5 * SECOND;
/// How long faults are injected.
const FAULTS: Nanos = 150 * SECOND;
/// How long the cluster may take to work again after them.
const CALM: Nanos = 120 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// They run at rates between 0.8 and 1.25.
    Drifting,
    /// Some run twenty times as fast as others.
    Wild,
}

/// What is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    None,
    /// One disk confirms fences and does nothing.
    FenceSkipped,
    /// Disks confirm a fence while requests of the victim are in flight.
    FenceConfirmedEarly,
    /// The server of a disk forgets its fences when it starts.
    FenceForgotten,
    /// A node that joins again gets its old epoch.
    EpochReused,
    /// The coordinator replaces the record whatever its version is.
    SetWithoutCompare,
    /// No disk fences: a keeper looks at its lease before each write.
    LeaseTrusted,
}

#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub seed: u64,
    pub clocks: Clocks,
    pub canary: Canary,
}

#[derive(Debug)]
pub struct Outcome {
    pub violations: Vec<String>,
    /// Whether a keeper wrote to all disks after the faults.
    pub progress: bool,
    pub counts: Counts,
}

/// A server of one shared disk.
pub struct DiskServer {
    pub name: DiskName,
    pub medium: Rc<Medium>,
    pub shared: RefCell<Option<Rc<SharedDisk>>>,
    /// Rises when the server dies: answers of earlier ones are lost.
    pub life: Cell<u64>,
    pub starting: Cell<bool>,
    /// The server's process, which ends with all that it was doing.
    pub process: RefCell<Option<Rt>>,
}

pub struct World {
    pub rt: Rt,
    pub rng: RefCell<Rng>,
    pub scenario: Scenario,
    pub cluster: ClusterName,
    pub network: Network,
    pub coordinator: Rc<MemoryCoordinator>,
    pub disks: Vec<Rc<DiskServer>>,
    pub machines: Vec<Rc<Machine>>,
    pub oracle: Rc<Oracle>,
    /// Epochs that nodes had, for the canary.
    pub old_epochs: RefCell<BTreeMap<NodeName, weft_cluster::Epoch>>,
}

impl World {
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }
}

pub fn run(scenario: Scenario) -> Outcome {
    let rt = virtual_rt(Schedule::Seeded(scenario.seed));
    let world = rt.block_on(start(rt.clone(), scenario));
    let faults = world.clone();
    rt.block_on(async move { inject(&faults).await });
    let calm = world.clone();
    let progress = rt.block_on(async move { works_again(&calm).await });
    rt.kill_all();
    let (violations, counts) = world.oracle.result();
    Outcome { violations, progress, counts }
}

async fn start(rt: Rt, scenario: Scenario) -> Rc<World> {
    let mut rng = Rng::new(scenario.seed);
    let coordinator = Rc::new(MemoryCoordinator::new(&rt, LEASE));
    let oracle = Rc::new(Oracle::new(coordinator.clone()));
    let mut disks = Vec::new();
    for number in 0..rng.within(1, 3) {
        let name: DiskName = format!("d{number}").parse().expect("a name");
        let medium = Medium::new(&rt, &name, rng.fork(number), oracle.clone());
        prepare(&*medium, Preparation::Blank).await.expect("a blank disk");
        let (shared, life, starting, process) = Default::default();
        disks.push(Rc::new(DiskServer { name, medium, shared, life, starting, process }));
    }
    let machines = (0..rng.within(3, 5)).map(|number| {
        let rate = match scenario.clocks {
            Clocks::Drifting => rng.within(800, 1250),
            Clocks::Wild => *rng.pick(&[50, 200, 1000, 1000, 5000, 20_000]),
        };
        let name: NodeName = format!("n{number}").parse().expect("a name");
        let place = usize::try_from(number).expect("few nodes");
        Rc::new(Machine::new(name, place, Rc::new(SimClock::new(&rt, rate, rng.below(SECOND)))))
    });
    let machines: Vec<_> = machines.collect();
    let network = Network::new(&rt, rng.fork(99));
    let world = Rc::new(World {
        rt,
        rng: RefCell::new(rng),
        scenario,
        cluster: "home".parse().expect("a name"),
        network,
        coordinator,
        disks,
        machines,
        oracle,
        old_epochs: RefCell::default(),
    });
    for disk in &world.disks {
        start_server(&world, disk).await;
    }
    for machine in &world.machines {
        process::boot(&world, machine);
    }
    world
}

/// Starts the server of a disk as soon as the kernel has ended the requests of the one before.
async fn start_server(world: &Rc<World>, disk: &Rc<DiskServer>) {
    if disk.shared.borrow().is_some() || disk.starting.replace(true) {
        return;
    }
    loop {
        disk.medium.idle().await;
        if world.scenario.canary == Canary::FenceForgotten {
            prepare(&*disk.medium, Preparation::Erase).await.ok();
        }
        // The power may be cut once more.
        let process = world.rt.domain(|| {});
        let number = world.draw(|rng| rng.next_u64());
        let opened = process.spawn({
            let (process, medium) = (process.clone(), disk.medium.clone());
            async move { SharedDisk::open(&process, medium, number).await }
        });
        if let Ok(shared) = opened.await {
            *disk.process.borrow_mut() = Some(process);
            *disk.shared.borrow_mut() = Some(shared);
            disk.starting.set(false);
            return;
        }
    }
}

/// Faults of all kinds, one after the other, some of which overlap.
async fn inject(world: &Rc<World>) {
    let rt = world.rt.clone();
    // Some time in peace: faults then hit a cluster that works.
    rt.sleep(world.draw(|rng| rng.within(1, 10)) * SECOND).await;
    let end = rt.now() + FAULTS;
    while rt.now() < end {
        let long = world.draw(|rng| rng.within(100, 25_000)) * MILLISECOND;
        match world.draw(|rng| rng.below(8)) {
            0 | 1 => {
                let machine = world.draw(|rng| rng.pick(&world.machines).clone());
                process::crash(&machine);
                let world = world.clone();
                rt.clone().spawn(async move {
                    world.rt.sleep(long).await;
                    process::boot(&world, &machine);
                });
            }
            2 | 3 => {
                let machine = world.draw(|rng| rng.pick(&world.machines).clone());
                machine.clock.pause(long);
            }
            4 => {
                let (one, other) = two_ends(world);
                world.network.cut(one, other, long);
            }
            5 => {
                // A whole machine, from everything, in one direction or both.
                let place = Place::Node(world.draw(|rng| rng.index(world.machines.len())));
                for disk in 0..world.disks.len() {
                    world.network.cut(place, Place::Disk(disk), long);
                }
                world.network.cut(place, Place::Coordinator, long);
                if world.draw(|rng| rng.chance(50)) {
                    world.network.cut(Place::Coordinator, place, long);
                }
            }
            6 => {
                let disk = world.draw(|rng| rng.pick(&world.disks).clone());
                let power = world.draw(|rng| rng.chance(50));
                stop_server(&disk, power);
                let world = world.clone();
                rt.clone().spawn(async move {
                    world.rt.sleep(long).await;
                    start_server(&world, &disk).await;
                });
            }
            _ => world.network.disturb(long),
        }
        let pause = world.draw(|rng| rng.within(50, 8000)) * MILLISECOND;
        rt.sleep(pause).await;
    }
}

fn two_ends(world: &Rc<World>) -> (Place, Place) {
    let node = Place::Node(world.draw(|rng| rng.index(world.machines.len())));
    let far = match world.draw(|rng| rng.chance(40)) {
        true => Place::Coordinator,
        false => Place::Disk(world.draw(|rng| rng.index(world.disks.len()))),
    };
    if world.draw(|rng| rng.chance(50)) { (node, far) } else { (far, node) }
}

fn stop_server(disk: &Rc<DiskServer>, power: bool) {
    *disk.shared.borrow_mut() = None;
    if let Some(process) = disk.process.take() {
        process.fail_domain();
    }
    disk.life.set(disk.life.get() + 1);
    if power {
        disk.medium.cut_power();
    }
}

/// Ends all faults; whether a keeper then writes to every disk.
async fn works_again(world: &Rc<World>) -> bool {
    world.network.heal();
    for machine in &world.machines {
        machine.clock.resume();
    }
    let start = world.rt.now();
    while world.rt.now() < start + CALM {
        world.rt.sleep(SECOND).await;
        let since = world.oracle.disks_written_since(start + 30 * SECOND);
        if since == world.disks.len() {
            return true;
        }
    }
    false
}
