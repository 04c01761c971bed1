//! Leases on the pool's disks: one change of several wins, whichever disks die or are replaced,
//! whichever writes a crash tears, and whichever processes of one node start together; a record
//! that was decided is never lost, and a node that is dead is known to be.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use weft_cluster::coordinator::disks::{BLOCK_BYTES, DiskCoordinator, DiskLeaseConfig, area_bytes};
use weft_cluster::{Coordinator as _, CoordinatorError, Epoch, Record, Session, Swap, Version};
use weft_disk::{
    Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, RamDisk, ReadFuture, WriteOpts,
};
use weft_rt::{Buf, Frozen, MICROSECOND, MILLISECOND, Rng, Rt, SECOND, Schedule, virtual_rt};
use weft_testkit::for_seeds;

const NODES: u32 = 3;
const OFFSET: u64 = 4096;

/// What is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canary {
    None,
    /// Disks confirm writes that they do not make: then nothing can be relied on.
    DisksLie,
    /// A disk that was replaced has a marker, and no blocks.
    BlankDiskVotes,
    /// A process never sees that another one has written its node's block.
    ProcessesHidden,
}

/// A disk that all nodes reach.
struct Shared {
    rt: Rt,
    rng: RefCell<Rng>,
    ram: RamDisk,
    is_dead: Cell<bool>,
    canary: Canary,
}

/// A node's path to a disk.
struct Path {
    shared: Rc<Shared>,
    /// Where its node's block is, and what it has written there last.
    own_at: u64,
    own: RefCell<BTreeMap<u64, Frozen>>,
    in_flight: Rc<RefCell<BTreeMap<u64, (u64, Frozen)>>>,
    writes: Cell<u64>,
}

impl Shared {
    async fn delay(&self) {
        let delay = {
            let mut rng = self.rng.borrow_mut();
            match rng.below(100) {
                0 => rng.within(1, 1500) * MILLISECOND,
                _ => rng.within(50, 4000) * MICROSECOND,
            }
        };
        self.rt.sleep(delay).await;
    }

    fn put(&self, offset: u64, data: Frozen) {
        let done = self.ram.write(offset, data, WriteOpts::USER);
        futures_util::FutureExt::now_or_never(done).expect("at once").expect("inside the disk");
    }

    fn error(&self, op: DiskOp, offset: u64, len: usize) -> DiskError {
        DiskError::new("disk", op, offset, len as u64, io::Error::other("it is dead"))
    }
}

impl Disk for Path {
    fn info(&self) -> &DiskInfo {
        self.shared.ram.info()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            self.shared.delay().await;
            if self.shared.is_dead.get() {
                return (Err(self.shared.error(DiskOp::Read, offset, buf.len())), buf);
            }
            let (result, mut buf) = self.shared.ram.read(offset, buf, class).await;
            if self.shared.canary == Canary::ProcessesHidden
                && let Some(frame) = self.own.borrow().get(&offset)
            {
                let len = buf.len().min(frame.len());
                buf[..len].copy_from_slice(&frame[..len]);
            }
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let number = self.writes.get();
            self.writes.set(number + 1);
            self.in_flight.borrow_mut().insert(number, (offset, data.clone()));
            self.shared.delay().await;
            self.in_flight.borrow_mut().remove(&number);
            if self.shared.is_dead.get() {
                return Err(self.shared.error(DiskOp::Write, offset, data.len()));
            }
            let lies = self.shared.canary == Canary::DisksLie;
            if !(lies && self.shared.rng.borrow_mut().chance(40)) {
                if (self.own_at..self.own_at + BLOCK_BYTES).contains(&offset) {
                    self.own.borrow_mut().insert(offset, data.clone());
                }
                self.shared.put(offset, data);
            }
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.shared.ram.write_zeroes(offset, len, opts)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.shared.ram.discard(offset, len)
    }
}

fn config(number: u32, seed: u64) -> DiskLeaseConfig {
    let (offset, nodes) = (OFFSET, NODES);
    DiskLeaseConfig { offset, nodes, number, lease: 3 * SECOND, patience: SECOND, seed }
}

fn session(number: u32, process: u64) -> Session {
    Session { node: format!("n{number}").parse().expect("a name"), number: process }
}

/// What was found out about each version.
#[derive(Default)]
struct History {
    records: BTreeMap<Version, Record>,
    done: u64,
    /// The highest version that a change was confirmed for.
    confirmed: Version,
    violations: Vec<String>,
}

impl History {
    fn see(&mut self, version: Version, record: Option<&Record>) {
        let Some(record) = record else { return };
        // Every change raises the epoch by one.
        if record.epoch != Epoch(version.0) {
            self.violations.push(format!("version {version:?} has {record:?}"));
        }
        let first = self.records.entry(version).or_insert_with(|| record.clone());
        if first != record {
            self.violations.push(format!("two records of {version:?}: {first:?} {record:?}"));
        }
    }
}

struct Bench {
    rt: Rt,
    rng: RefCell<Rng>,
    disks: Vec<Rc<Shared>>,
    history: RefCell<History>,
    /// A disk that was replaced, and must be set up anew.
    replaced: Cell<Option<usize>>,
    ousted: Cell<u64>,
}

/// A process of a node.
struct Process {
    rt: Rt,
    paths: Vec<Rc<Path>>,
}

impl Bench {
    fn paths(&self, number: u32) -> Vec<Rc<Path>> {
        let path = |shared: &Rc<Shared>| {
            let (own, in_flight, writes) = Default::default();
            let own_at = OFFSET + (u64::from(number) + 1) * BLOCK_BYTES;
            Rc::new(Path { shared: shared.clone(), own_at, own, in_flight, writes })
        };
        self.disks.iter().map(path).collect()
    }

    fn start(self: &Rc<Self>, number: u32) -> Process {
        let paths = self.paths(number);
        let disks = paths.iter().map(|path| path.clone() as Rc<dyn Disk>).collect();
        let rt = self.rt.domain(|| {});
        let seed = self.rng.borrow_mut().next_u64();
        drop(rt.spawn(work(self.clone(), rt.clone(), disks, number, seed)));
        Process { rt, paths }
    }
}

/// The process ends; of what it was writing, nothing, a part, or all is done.
fn crash(process: &Process) {
    process.rt.fail_domain();
    for path in &process.paths {
        let in_flight = std::mem::take(&mut *path.in_flight.borrow_mut());
        for (offset, data) in in_flight.into_values() {
            let sectors = data.len() as u64 / 512;
            let done = path.shared.rng.borrow_mut().within(0, sectors) * 512;
            if done > 0 && !path.shared.is_dead.get() {
                path.shared.put(offset, data.slice(0, usize::try_from(done).expect("small")));
            }
        }
    }
}

async fn work(bench: Rc<Bench>, rt: Rt, disks: Vec<Rc<dyn Disk>>, number: u32, seed: u64) {
    let coordinator = loop {
        let clock = Rc::new(rt.clone());
        let seed = bench.rng.borrow_mut().next_u64();
        match DiskCoordinator::open(&rt, clock, disks.clone(), config(number, seed)).await {
            Ok(coordinator) => break coordinator,
            Err(_) => rt.sleep(100 * MILLISECOND).await,
        }
    };
    let process = session(number, seed);
    loop {
        if number == 0
            && let Some(place) = bench.replaced.get()
            && coordinator.replace(place, place).await.is_ok()
        {
            bench.replaced.set(None);
        }
        let confirmed = bench.history.borrow().confirmed;
        let view = coordinator.read().await;
        if let Ok(view) = &view {
            bench.history.borrow_mut().see(view.version, view.record.as_ref());
            if view.version < confirmed {
                let text = format!("{:?} was confirmed, and {:?} read", confirmed, view.version);
                bench.history.borrow_mut().violations.push(text);
            }
            let cluster = "home".parse().expect("a name");
            let mut record = view.record.clone().unwrap_or_else(|| Record::new(cluster));
            record.join(&process);
            record.fencing.clear();
            let swap = coordinator.compare_and_set(view.version, record.clone()).await;
            if let Ok(Swap::Done(version)) = swap {
                let mut history = bench.history.borrow_mut();
                history.see(version, Some(&record));
                history.done += 1;
                history.confirmed = history.confirmed.max(version);
            }
        }
        let pause = bench.rng.borrow_mut().within(1, 400) * MILLISECOND;
        rt.sleep(pause).await;
        if let Err(CoordinatorError::Ousted(_)) = coordinator.keep_alive(&process).await {
            bench.ousted.set(bench.ousted.get() + 1);
            return;
        }
    }
}

/// What a run has shown.
struct Outcome {
    violations: Vec<String>,
    changes: u64,
    /// Whether there was one after the faults.
    progress: bool,
    replacements: u64,
    ousted: u64,
}

fn run(seed: u64, canary: Canary) -> Outcome {
    let rt = virtual_rt(Schedule::Seeded(seed));
    let mut rng = Rng::new(seed);
    let count = *rng.pick(&[1_u64, 3, 3, 3, 5]);
    let disk = |number| Shared {
        rt: rt.clone(),
        rng: RefCell::new(Rng::new(seed).fork(number)),
        ram: RamDisk::new("disk", OFFSET + area_bytes(NODES), 512),
        is_dead: Cell::new(false),
        canary,
    };
    let disks: Vec<_> = (0..count).map(|number| Rc::new(disk(number))).collect();
    let (rng, history) = (RefCell::new(rng), RefCell::default());
    let (replaced, ousted) = Default::default();
    let bench = Rc::new(Bench { rt: rt.clone(), rng, disks, history, replaced, ousted });
    let outer = bench.clone();
    let (last, replacements) = rt.block_on(async move {
        let paths = bench.paths(0).into_iter().map(|path| path as Rc<dyn Disk>);
        let group = bench.rng.borrow_mut().next_u64();
        DiskCoordinator::set_up(&paths.collect::<Vec<_>>(), &config(0, 0), group)
            .await
            .expect("blank disks");
        let mut processes: Vec<_> = (0..NODES).map(|number| vec![bench.start(number)]).collect();
        let mut replacements = 0;
        for _ in 0..14 {
            let pause = bench.rng.borrow_mut().within(50, 9000) * MILLISECOND;
            bench.rt.sleep(pause).await;
            let (dice, victim, place) = {
                let mut rng = bench.rng.borrow_mut();
                (rng.below(6), rng.index(NODES as usize), rng.index(bench.disks.len()))
            };
            match dice {
                0..3 => {
                    processes[victim].iter().for_each(crash);
                    let number = u32::try_from(victim).expect("few nodes");
                    // Two processes of one node sometimes start together.
                    let count = if dice == 0 { 2 } else { 1 };
                    processes[victim] = (0..count).map(|_| bench.start(number)).collect();
                }
                3 if bench.disks.len() > 1 && bench.replaced.get().is_none() => {
                    let disk = &bench.disks[place];
                    let start = match canary {
                        Canary::BlankDiskVotes => OFFSET + BLOCK_BYTES,
                        _ => OFFSET,
                    };
                    let zeros = usize::try_from(OFFSET + area_bytes(NODES) - start).expect("small");
                    disk.put(start, Buf::zeroed(zeros).freeze());
                    replacements += 1;
                    if canary != Canary::BlankDiskVotes {
                        bench.replaced.set(Some(place));
                    }
                }
                _ => {
                    // Any number of them may be away, which costs time and nothing else.
                    let disk = &bench.disks[place];
                    disk.is_dead.set(!disk.is_dead.get());
                }
            }
        }
        // The processes of a node end but one, and the disk that was replaced is set up.
        bench.disks.iter().for_each(|disk| disk.is_dead.set(false));
        for (number, of_node) in (0..).zip(&mut processes) {
            of_node.iter().for_each(crash);
            *of_node = vec![bench.start(number)];
        }
        for _ in 0..60 {
            bench.rt.sleep(SECOND).await;
            if bench.replaced.get().is_none() {
                break;
            }
        }
        // A minority stays dead.
        let minority = (bench.disks.len() - 1) / 2;
        for (number, disk) in bench.disks.iter().enumerate() {
            disk.is_dead.set(number < minority);
        }
        let before = bench.history.borrow().done;
        bench.rt.sleep(60 * SECOND).await;
        (before, replacements)
    });
    rt.kill_all();
    let history = outer.history.borrow();
    Outcome {
        violations: history.violations.clone(),
        changes: history.done,
        progress: history.done > last,
        replacements,
        ousted: outer.ousted.get(),
    }
}

#[test]
fn one_change_of_several_wins_and_none_is_lost() {
    let (changes, replacements, ousted) = <(Cell<u64>, Cell<u64>, Cell<u64>)>::default();
    for_seeds(0..60, |rng| {
        let seed = rng.next_u64();
        let outcome = run(seed, Canary::None);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        assert!(outcome.progress, "seed {seed}: no progress");
        changes.set(changes.get() + outcome.changes);
        replacements.set(replacements.get() + outcome.replacements);
        ousted.set(ousted.get() + outcome.ousted);
    });
    let counts = (changes.get(), replacements.get(), ousted.get());
    assert!(counts.0 > 1000 && counts.1 > 20, "{counts:?}");
}

fn is_caught(canary: Canary) {
    let found = (0..300).find(|seed| !run(*seed, canary).violations.is_empty());
    let seed = found.unwrap_or_else(|| panic!("{canary:?} was not found out"));
    eprintln!("{canary:?} found out by seed {seed}");
}

#[test]
fn disks_that_lose_confirmed_writes_are_found_out() {
    is_caught(Canary::DisksLie);
}

#[test]
fn a_blank_disk_that_votes_is_found_out() {
    is_caught(Canary::BlankDiskVotes);
}

#[test]
fn two_processes_of_one_node_are_found_out() {
    is_caught(Canary::ProcessesHidden);
}

#[test]
fn who_is_alive_and_who_may_use_a_number() {
    let rt = virtual_rt(Schedule::Fifo);
    rt.block_on({
        let rt = rt.clone();
        async move {
            let bytes = OFFSET + area_bytes(NODES);
            let disks: Vec<Rc<dyn Disk>> =
                (0..3).map(|_| Rc::new(RamDisk::new("disk", bytes, 512)) as Rc<dyn Disk>).collect();
            let seed = Cell::new(0);
            let open = async |number| {
                let clock = Rc::new(rt.clone());
                seed.set(seed.get() + 1);
                DiskCoordinator::open(&rt, clock, disks.clone(), config(number, seed.get())).await
            };
            let blank = open(0).await.expect_err("they were not set up");
            assert!(blank.to_string().contains("set up"), "{blank}");
            DiskCoordinator::set_up(&disks, &config(0, 0), 7).await.expect("blank disks");
            // As after a crash in the middle of it: nothing was written but markers.
            DiskCoordinator::set_up(&disks, &config(0, 0), 8).await.expect("only markers");
            let (one, two) = (open(0).await.expect("opened"), open(1).await.expect("opened"));
            let a = session(0, 1);
            one.keep_alive(&a).await.expect("written");
            let again = DiskCoordinator::set_up(&disks, &config(0, 0), 9).await;
            let again = again.expect_err("they hold something").to_string();
            assert!(again.contains("holds something"), "{again}");
            assert!(two.read().await.expect("read").alive.contains(&a));
            rt.sleep(2 * SECOND).await;
            one.keep_alive(&a).await.expect("written");
            rt.sleep(2 * SECOND).await;
            assert!(two.read().await.expect("read").alive.contains(&a));
            rt.sleep(4 * SECOND).await;
            assert!(!two.read().await.expect("read").alive.contains(&a));
            one.keep_alive(&a).await.expect("written");
            assert!(two.read().await.expect("read").alive.contains(&a));
            one.end_lease(&a).await.expect("written");
            assert!(two.read().await.expect("read").alive.is_empty());

            // A second process with the number of one that lives.
            one.keep_alive(&a).await.expect("written");
            let beats = rt.spawn({
                let rt = rt.clone();
                async move {
                    for _ in 0..10 {
                        rt.sleep(SECOND).await;
                        one.keep_alive(&a).await.expect("written");
                    }
                }
            });
            let refused = open(0).await.expect_err("it lives");
            assert!(matches!(refused, CoordinatorError::Ousted(_)), "{refused}");
            beats.await;
            open(0).await.expect("it is dead");
            let refused = open(NODES).await.expect_err("there is no such number");
            assert!(matches!(refused, CoordinatorError::Refused(_)), "{refused}");
        }
    });
}

fn ram_disks(count: usize) -> Vec<Rc<dyn Disk>> {
    let bytes = OFFSET + area_bytes(NODES);
    (0..count).map(|_| Rc::new(RamDisk::new("disk", bytes, 512)) as Rc<dyn Disk>).collect()
}

/// Names have numbers of their own, also when they start at the same time; a name keeps its number,
/// and the disks come in any order, with others among them.
#[test]
fn names_keep_their_numbers_in_any_order_of_the_disks() {
    let rt = virtual_rt(Schedule::Fifo);
    rt.block_on({
        let rt = rt.clone();
        async move {
            let disks = ram_disks(3);
            DiskCoordinator::set_up(&disks, &config(0, 0), 7).await.expect("blank disks");
            let open = |name: &str, disks: Vec<Rc<dyn Disk>>, seed| {
                let (rt, name) = (rt.clone(), name.parse().expect("a name"));
                async move {
                    let (clock, find) = (Rc::new(rt.clone()), move |_| disks.clone());
                    DiskCoordinator::open_as(&rt, clock, find, config(0, seed), &name).await
                }
            };
            let session =
                |name: &str, number| Session { node: name.parse().expect("a name"), number };
            // Number 0 is for commands: two are left.
            let both = futures_util::future::join(
                open("a", disks.clone(), 1),
                open("b", disks.iter().rev().cloned().collect(), 2),
            );
            let (a, b) = both.await;
            let (a, b) = (a.expect("a number"), b.expect("another number"));
            a.keep_alive(&session("a", 1)).await.expect("written");
            b.keep_alive(&session("b", 2)).await.expect("written");
            assert_eq!(a.read().await.expect("read").alive.len(), 2);
            let full = open("c", disks.clone(), 3).await.expect_err("there is no third");
            assert!(full.to_string().contains("room for 2 names of nodes: "), "{full}");
            b.end_lease(&session("b", 2)).await.expect("written");
            drop(b);
            // One disk is away, and one is none of them.
            let some = vec![ram_disks(1).remove(0), disks[2].clone(), disks[0].clone()];
            let b = open("b", some.clone(), 4).await.expect("its number");
            b.keep_alive(&session("b", 4)).await.expect("written");
            a.keep_alive(&session("a", 1)).await.expect("written");
            let alive = a.read().await.expect("read").alive;
            assert!(alive.contains(&session("b", 4)) && alive.len() == 2, "{alive:?}");
            assert_eq!(a.vacant().await.expect("read"), Vec::<usize>::new());
            // The new disk takes the vote of the one that is away.
            assert_eq!(b.vacant().await.expect("read"), [1]);
            b.replace(1, 1).await.expect_err("it votes already");
            b.replace(0, 1).await.expect("it votes now");
            assert_eq!(b.vacant().await.expect("read"), Vec::<usize>::new());
            a.keep_alive(&session("a", 1)).await.expect("written");
            assert_eq!(a.vacant().await.expect("read"), [1], "the old one votes no more");
            let number = a.add_disk(some[0].clone());
            assert_eq!((number, a.vacant().await.expect("read")), (3, vec![]));
            // Copies of a disk do not count.
            let copies = vec![disks[0].clone(), disks[0].clone(), disks[2].clone()];
            let refused = open("b", copies, 5).await.expect_err("which of them counts?");
            assert!(refused.to_string().contains("copies of one"), "{refused}");
            let clock = Rc::new(rt.clone());
            let look = DiskCoordinator::watch(&rt, clock, some, config(0, 6)).await.expect("read");
            look.await_signs(100 * MILLISECOND).await.expect("read");
            rt.sleep(SECOND).await;
            let view = look.read().await.expect("read");
            let refused =
                look.compare_and_set(view.version, Record::new("home".parse().expect("a name")));
            assert!(matches!(refused.await, Err(CoordinatorError::Refused(_))));
        }
    });
}
