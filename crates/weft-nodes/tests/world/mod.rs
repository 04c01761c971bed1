//! A simulated cluster with a file system: machines with clocks of their own, a network, a
//! coordinator, disk servers, and faults, in virtual time. Membership, fences, keepers, nodes and
//! what ties them together are the real ones.

pub mod canary;
mod disks;
mod faults;
mod network;
mod oracle;
mod process;
mod ring;
mod server;
/// The disks of the array's crash tests.
#[allow(dead_code, reason = "the array uses the rest")]
#[path = "../../../weft-array/tests/common/disk.rs"]
mod test_disk;
mod workload;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_cluster::ClusterName;
use weft_cluster::coordinator::MemoryCoordinator;
use weft_cluster::fence::{HEAD_BYTES, Preparation, prepare};
use weft_disk::Disk;
use weft_fs::{
    AccessTimes, CreateOptions, Fs, Kind, Label, META_CACHE_BYTES, MountOptions, ROOT, Redundancy,
    SetXattr, Time, create,
};
use weft_random::Rng;
use weft_rt::{Frozen, MILLISECOND, Nanos, Rt, SECOND, Schedule, virtual_rt};

use canary::Canary;
use network::Network;
pub use oracle::Counts;
use oracle::Oracle;
use process::{Machine, Process, boot, crash};
use server::{Backing, DiskServer, without_head};
use test_disk::{Leave, Medium, Power, TestDisk, holding};
use workload::{FILES, Files, Places};

/// How long leases last.
pub const LEASE: Nanos = 5 * SECOND;
/// How long the cluster may take to work again after them.
const CALM: Nanos = 180 * SECOND;
/// Bytes of a disk, after its head.
const SIZE: u64 = 24 << 20;
pub const FS_ID: [u8; 16] = [7; 16];
const NOW: Time = Time { s: 1_700_000_000, ns: 5 };

#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub seed: u64,
    pub canary: Canary,
}

#[derive(Debug)]
pub struct Outcome {
    pub violations: Vec<String>,
    /// Whether more disks were lost than the redundancy allows.
    pub is_beyond: bool,
    pub counts: Counts,
}

pub struct World {
    pub rt: Rt,
    rng: RefCell<Rng>,
    pub scenario: Scenario,
    pub cluster: ClusterName,
    pub network: Rc<Network>,
    pub coordinator: Rc<MemoryCoordinator>,
    pub disks: Vec<Rc<DiskServer>>,
    media: Vec<Rc<TestDisk>>,
    pub machines: Vec<Rc<Machine>>,
    pub oracle: Rc<Oracle>,
    pub files: Files,
    /// The disk that may fail.
    victim: usize,
    /// Which disk has a number of the file system's.
    numbers: RefCell<BTreeMap<u16, usize>>,
    /// Whether anything may fail.
    has_faults: Cell<bool>,
    /// Whether all processes are to end in order.
    pub ends: Cell<bool>,
    /// Whether no process starts any more.
    pub is_over: Cell<bool>,
}

impl World {
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    /// A disk of the file system's is lost.
    pub fn lose(&self, number: u16) {
        let disk = self.numbers.borrow().get(&number).copied();
        disk.into_iter().for_each(|disk| self.oracle.lose(disk));
    }

    fn machine(&self) -> Rc<Machine> {
        self.draw(|rng| rng.pick(&self.machines).clone())
    }
}

/// How a process mounts: with few pages of metadata in memory for two of three.
pub fn mounting(life: u64) -> MountOptions {
    MountOptions {
        degraded: false,
        stale: false,
        read_only: false,
        access_times: AccessTimes::Relative,
        cache_bytes: 1 << 20,
        meta_cache_bytes: [0, 512 << 10, META_CACHE_BYTES][(life % 3) as usize],
        nonce: life,
        now: NOW,
        host: None,
        clock: None,
    }
}

/// Disks with a new file system.
#[derive(Clone)]
struct Image {
    media: Vec<Medium>,
    places: Places,
}

thread_local! {
    /// A new file system takes a part of the time of a seed, and is always the same.
    static IMAGES: RefCell<BTreeMap<usize, Image>> = RefCell::default();
}

fn image(count: usize) -> Image {
    let made = IMAGES.with(|images| images.borrow().get(&count).cloned());
    made.unwrap_or_else(|| {
        let rt = virtual_rt(Schedule::Fifo);
        let image = rt.block_on(make_image(rt.clone(), count));
        rt.kill_all();
        IMAGES.with(|images| images.borrow_mut().insert(count, image.clone()));
        image
    })
}

async fn make_image(rt: Rt, count: usize) -> Image {
    let disks = holding(&rt, &Power::new(), SIZE + HEAD_BYTES, &vec![Medium::new(512); count]);
    for disk in &disks {
        prepare(&**disk, Preparation::Blank).await.expect("a blank disk");
    }
    let tails: Vec<Rc<dyn Disk>> = disks.iter().map(|disk| without_head(disk.clone())).collect();
    let options = CreateOptions {
        name: "home".into(),
        redundancy: Redundancy::Auto,
        slice_bytes: Some(8 << 20),
        force: false,
        id: FS_ID,
        now: NOW,
    };
    create(&rt, &tails, &options).await.expect("created");
    let fs = Fs::mount(&rt, &tails, mounting(2)).await.expect("mounted");
    let make = async |name: &str, redundancy: Option<&str>, bytes: &[u8]| {
        let kind = if redundancy.is_some() { Kind::File } else { Kind::Folder };
        let new = workload::new_file(kind);
        let (ino, _) = fs.make(ROOT, name.as_bytes(), new).await.expect("made");
        if let Some(redundancy) = redundancy {
            let (key, value) = (b"user.weft.redundancy", redundancy.as_bytes());
            fs.set_xattr(ino, key, value, SetXattr::default()).await.expect("set");
        }
        if !bytes.is_empty() {
            fs.write(ino, 0, Frozen::copy_from(bytes)).await.expect("written");
        }
        ino
    };
    let mut files = Vec::new();
    for (n, (len, redundancy)) in FILES.iter().enumerate() {
        let ino = make(&format!("file {n}"), Some(redundancy), &[]).await;
        let bytes: Vec<u8> = (0..*len).flat_map(|n| workload::sector(ino, n, 0)).collect();
        fs.write(ino, 0, Frozen::copy_from(&bytes)).await.expect("written");
        files.push(ino);
    }
    let folder = make("folder", None, &[]).await;
    let log = make("log", Some("raid1"), &[]).await;
    fs.sync().await.expect("synced");
    fs.unmount().await.expect("unmounted");
    let media = disks.iter().map(|disk| Leave::All.of(&disk.medium.borrow())).collect();
    Image { media, places: Places { files, folder, log } }
}

pub fn run(scenario: Scenario) -> Outcome {
    let rt = virtual_rt(Schedule::Seeded(scenario.seed));
    let outcome = rt.block_on(story(rt.clone(), scenario));
    rt.kill_all();
    outcome
}

async fn story(rt: Rt, scenario: Scenario) -> Outcome {
    let world = start(rt, scenario).await;
    faults::inject(&world).await;
    let is_beyond = || world.oracle.lost().len() > 1;
    if !world.oracle.has_failed() {
        works_again(&world).await;
    }
    let is_ordered = world.draw(|rng| rng.chance(50));
    if is_ordered && !world.oracle.has_failed() && !is_beyond() {
        end_in_order(&world).await;
    }
    world.is_over.set(true);
    world.machines.iter().for_each(|machine| crash(&world, machine, false));
    if !world.oracle.has_failed() && !is_beyond() {
        check(&world).await;
    }
    let outcome = Outcome {
        violations: world.oracle.violations(),
        is_beyond: is_beyond(),
        counts: world.oracle.counts.borrow().clone(),
    };
    if !outcome.violations.is_empty() && scenario.canary == Canary::None {
        let story = world.oracle.story.borrow();
        eprintln!("{}", story[story.len().saturating_sub(60)..].join("\n"));
    }
    outcome
}

async fn start(rt: Rt, scenario: Scenario) -> Rc<World> {
    let mut rng = Rng::new(scenario.seed);
    let count = 4 + rng.index(2);
    let Image { media, places } = image(count);
    let oracle = Oracle::new(&rt);
    let media = holding(&rt, &Power::new(), SIZE + HEAD_BYTES, &media);
    let skips = scenario.canary == Canary::FenceSkipped;
    let disk = |(number, medium): (usize, &Rc<TestDisk>)| {
        let name = format!("d{number}").parse().expect("a name");
        let rng = rng.fork(number as u64);
        let backing = Backing::new(&rt, number, medium.clone(), rng, &oracle);
        DiskServer::new(&rt, name, number, backing, skips)
    };
    let disks: Vec<_> = media.iter().enumerate().map(disk).collect();
    let machines: Vec<_> = (0..2 + rng.within(1, 3) as usize)
        .map(|place| Machine::new(place, place < 2, rng.within(850, 1150)))
        .collect();
    let world = Rc::new(World {
        network: Network::new(&rt, rng.fork(99)),
        coordinator: Rc::new(MemoryCoordinator::new(&rt, LEASE)),
        files: Files::new(&oracle, &places),
        victim: rng.index(count),
        numbers: RefCell::new((0..count).map(|n| (n as u16, n)).collect()),
        has_faults: Cell::new(true),
        rng: RefCell::new(rng),
        scenario,
        cluster: "home".parse().expect("a name"),
        disks,
        media,
        machines,
        oracle,
        ends: Cell::new(false),
        is_over: Cell::new(false),
        rt,
    });
    for disk in &world.disks {
        disk.start(world.draw(|rng| rng.next_u64())).await;
    }
    world.machines.iter().for_each(|machine| boot(&world, machine));
    world
}

/// Ends all faults: every machine must work again.
async fn works_again(world: &Rc<World>) {
    world.oracle.tell("all faults end".into());
    world.has_faults.set(false);
    world.network.heal();
    // One that starts just now needs no help.
    for disk in world.disks.iter().filter(|disk| !disk.is_serving()) {
        disk.start(world.draw(|rng| rng.next_u64())).await;
    }
    for machine in &world.machines {
        machine.process().iter().for_each(|process| process.rt.go_on());
        boot(world, machine);
    }
    let start = world.rt.now();
    let works = |machine: &Rc<Machine>| {
        machine.process().is_some_and(|process| process.worked.get() > start + 20 * SECOND)
    };
    loop {
        world.rt.sleep(SECOND).await;
        // One of two keepers stands by.
        let (keepers, nodes): (Vec<_>, Vec<_>) =
            world.machines.iter().partition(|machine| machine.may_keep);
        if world.oracle.has_failed()
            || keepers.into_iter().any(works) && nodes.iter().all(|of| works(of))
        {
            return;
        }
        if world.rt.now() > start + CALM {
            if world.oracle.lost().len() <= 1 {
                for machine in &world.machines {
                    let Some(process) = machine.process() else { continue };
                    let (worked, doing) = (process.worked.get() / MILLISECOND, &process.doing);
                    let since: Vec<_> =
                        doing.borrow().iter().map(|(n, since)| (*n, since / MILLISECOND)).collect();
                    let name = &machine.name;
                    world.oracle.tell(format!("{name} worked at {worked}; waits {since:?}"));
                }
                world.oracle.violate("it does not work again".into());
            }
            return;
        }
    }
}

/// All processes end in order, nodes before keepers. Nothing fails any more, so they do.
async fn end_in_order(world: &Rc<World>) {
    world.oracle.tell("all end in order".into());
    world.ends.set(true);
    for may_keep in [false, true] {
        let of = |machine: &&Rc<Machine>| machine.may_keep == may_keep;
        let running = |machine: &Rc<Machine>| Some((machine.clone(), machine.process()?));
        let running: Vec<_> = world.machines.iter().filter(of).filter_map(running).collect();
        for (_, process) in &running {
            process.is_ending.set(true);
            process.told.notify_all();
        }
        let start = world.rt.now();
        loop {
            // One that was expelled just now starts again instead.
            let waits = |(machine, process): &&(Rc<Machine>, Rc<Process>)| {
                machine.lives(process.life) && !process.has_ended.get()
            };
            let Some((machine, _)) = running.iter().find(waits) else { break };
            if world.oracle.has_failed() {
                return;
            }
            if world.rt.now() > start + 60 * SECOND {
                return world.oracle.violate(format!("{} does not end in order", machine.name));
            }
            world.rt.sleep(100 * MILLISECOND).await;
        }
    }
    world.oracle.tell("all have ended".into());
}

/// What is left is mounted alone: after a power cut, or what was on its way has come.
async fn check(world: &Rc<World>) {
    world.rt.sleep(20 * SECOND).await;
    let leave = world.draw(|rng| match rng.below(5) {
        0 => Leave::Nothing,
        1 => Leave::All,
        2 => Leave::Cached,
        _ => Leave::Some(rng.next_u64()),
    });
    world.oracle.tell(format!("the power fails: {leave:?}"));
    let left = |(n, disk): (usize, &Rc<TestDisk>)| {
        let leave = match leave {
            Leave::Some(seed) => Leave::Some(test_disk::mix(seed ^ n as u64)),
            leave => leave,
        };
        leave.of(&disk.medium.borrow())
    };
    let media: Vec<Medium> = world.media.iter().enumerate().map(left).collect();
    let rt = world.rt.domain(|| {});
    let disks = holding(&rt, &Power::new(), SIZE + HEAD_BYTES, &media);
    let left = disks.into_iter().zip(&world.disks).filter(|(_, server)| !server.is_dead.get());
    let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
    for disk in left.map(|(disk, _)| without_head(disk)) {
        // A disk that has left has none.
        if Label::read(&*disk).await.expect("readable").is_some() {
            disks.push(disk);
        }
    }
    let options = MountOptions { degraded: true, ..mounting(2) };
    let fs = match Fs::mount(&rt, &disks, options).await {
        Ok(fs) => fs,
        Err(error) => return world.oracle.violate(format!("at the end: {error}")),
    };
    world.files.check(&fs, "at the end").await;
    match fs.check(true).await {
        Ok(report) if report.findings.is_empty() => {}
        Ok(report) => world.oracle.violate(format!("at the end: {:?}", report.findings)),
        Err(error) => world.oracle.violate(format!("at the end: {error}")),
    }
    rt.fail_domain();
}
