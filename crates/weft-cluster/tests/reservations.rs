//! Fences by persistent reservations, on a modelled disk: no write of a fenced epoch takes effect,
//! wherever a machine that fences another one dies, and a machine that was fenced finds it out.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use weft_cluster::fence::reservation::{Command, Reservable, ReservationFence, key_of};
use weft_cluster::fence::{Fence as _, FenceError};
use weft_cluster::{ClusterName, Epoch, Incarnation, Member, Record};
use weft_disk::IoFuture;
use weft_rt::reservation::{Answer, InFlight};
use weft_rt::{MICROSECOND, MILLISECOND, Rng, Rt, SECOND, Schedule, virtual_rt};
use weft_testkit::for_seeds;

/// What is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canary {
    None,
    /// What the victim has in flight is left alone.
    LeftInFlight,
    /// Nobody reserves the disk: keys alone keep nobody out.
    NotReserved,
    /// A disk that confirms preemptions and does nothing.
    NotPreempted,
}

/// A disk, by the rules of SCSI.
#[derive(Default)]
struct Disk {
    keys: BTreeMap<usize, u64>,
    holder: Option<usize>,
    /// Writes that have begun, by number: the machine, and its epoch.
    in_flight: BTreeMap<u64, (usize, Epoch)>,
    writes: u64,
    fenced: BTreeSet<Epoch>,
    late: u64,
    effects: u64,
    refused: u64,
}

struct World {
    rt: Rt,
    rng: RefCell<Rng>,
    disk: RefCell<Disk>,
    canary: Canary,
    epoch: Cell<u64>,
    /// The epochs in which machines use the disk.
    own: RefCell<BTreeMap<usize, Epoch>>,
}

impl World {
    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    async fn delay(&self) {
        let long = self.draw(|rng| match rng.below(20) {
            0 => rng.within(1, 900) * MILLISECOND,
            _ => rng.within(50, 5000) * MICROSECOND,
        });
        self.rt.sleep(long).await;
    }

    fn carry_out(&self, machine: usize, command: Command) -> Answer {
        let disk = &mut *self.disk.borrow_mut();
        let has = |disk: &Disk, key| disk.keys.get(&machine) == Some(&key);
        let answer = |done| if done { Answer::Done } else { Answer::Conflict };
        match command {
            Command::Register(key) => {
                disk.keys.insert(machine, key);
                Answer::Done
            }
            Command::Confirm(key) => answer(has(disk, key)),
            Command::Reserve(_) if self.canary == Canary::NotReserved => Answer::Done,
            Command::Reserve(key) => {
                let may = has(disk, key) && disk.holder.is_none_or(|holder| holder == machine);
                if may {
                    disk.holder = Some(machine);
                }
                answer(may)
            }
            Command::Preempt { .. } if self.canary == Canary::NotPreempted => Answer::Done,
            Command::Preempt { own, victim, in_flight } => {
                let of_victim = disk.keys.iter().filter(|(_, key)| **key == victim);
                let victims: Vec<usize> = of_victim.map(|(machine, _)| *machine).collect();
                if !has(disk, own) || victims.is_empty() {
                    return Answer::Conflict;
                }
                disk.keys.retain(|_, key| *key != victim);
                if disk.holder.is_some_and(|holder| victims.contains(&holder)) {
                    disk.holder = Some(machine);
                }
                if in_flight == InFlight::Abort {
                    disk.in_flight.retain(|_, (machine, _)| !victims.contains(machine));
                }
                Answer::Done
            }
        }
    }
}

/// A machine's path to the disk.
struct Path(Rc<World>, usize);

impl Reservable for Path {
    fn send(&self, command: Command) -> IoFuture<'_, io::Result<Answer>> {
        let (world, machine) = (self.0.clone(), self.1);
        // What was sent is carried out although its sender dies.
        Box::pin(self.0.rt.spawn(async move {
            world.delay().await;
            let answer = world.carry_out(machine, command);
            world.delay().await;
            Ok(answer)
        }))
    }
}

/// Whether the disk took a write.
async fn write(world: Rc<World>, machine: usize, epoch: Epoch) -> bool {
    world.delay().await;
    let number = {
        let disk = &mut *world.disk.borrow_mut();
        if disk.holder.is_some() && !disk.keys.contains_key(&machine) {
            disk.refused += 1;
            return false;
        }
        disk.writes += 1;
        disk.in_flight.insert(disk.writes, (machine, epoch));
        disk.writes
    };
    world.delay().await;
    let disk = &mut *world.disk.borrow_mut();
    let Some((_, epoch)) = disk.in_flight.remove(&number) else { return false };
    disk.effects += 1;
    disk.late += u64::from(disk.fenced.contains(&epoch));
    true
}

fn who(machine: usize, epoch: Epoch) -> Incarnation {
    Incarnation { node: format!("n{machine}").parse().expect("a name"), epoch }
}

fn home() -> ClusterName {
    "home".parse().expect("a name")
}

fn fence_of(world: &Rc<World>, rt: &Rt, machine: usize) -> ReservationFence {
    let in_flight = match world.canary {
        Canary::LeftInFlight => InFlight::Leave,
        _ => InFlight::Abort,
    };
    let device = Rc::new(Path(world.clone(), machine));
    let disk = "d0".parse().expect("a name");
    ReservationFence::new(rt, device, disk, home(), 5 * SECOND, in_flight)
}

/// A machine's life. When it was fenced, all its writes end before it joins again.
async fn live(world: Rc<World>, rt: Rt, machine: usize) {
    let fence = fence_of(&world, &rt, machine);
    loop {
        world.epoch.set(world.epoch.get() + 1);
        let epoch = Epoch(world.epoch.get());
        let own = who(machine, epoch);
        if fence.register(&own).await.is_err() {
            continue;
        }
        world.own.borrow_mut().insert(machine, epoch);
        let mut writes = Vec::new();
        loop {
            let pause = world.draw(|rng| rng.within(1, 60)) * MILLISECOND;
            rt.sleep(pause).await;
            if world.draw(|rng| rng.chance(6)) {
                let victim = world.draw(|rng| rng.index(3));
                let epoch = world.own.borrow().get(&victim).copied();
                let Some(epoch) = epoch.filter(|_| victim != machine) else { continue };
                match fence.fence(&own, &who(victim, epoch)).await {
                    Ok(()) => drop(world.disk.borrow_mut().fenced.insert(epoch)),
                    Err(FenceError::Fenced { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            writes.push(world.rt.spawn(write(world.clone(), machine, epoch)));
            if writes.len() > 8 && !writes.remove(0).await {
                break;
            }
        }
        for write in writes {
            write.await;
        }
    }
}

fn run(seed: u64, canary: Canary) -> Rc<World> {
    let rt = virtual_rt(Schedule::Seeded(seed));
    let (disk, epoch, own) = Default::default();
    let rng = RefCell::new(Rng::new(seed));
    let world = Rc::new(World { rt: rt.clone(), rng, disk, canary, epoch, own });
    let outer = world.clone();
    rt.block_on(async move {
        let start = |machine| {
            let rt = world.rt.domain(|| {});
            drop(rt.spawn(live(world.clone(), rt.clone(), machine)));
            rt
        };
        let mut machines: Vec<Rt> = (0..3).map(start).collect();
        for _ in 0..20 {
            let pause = world.draw(|rng| rng.within(1, 3000)) * MILLISECOND;
            world.rt.sleep(pause).await;
            let machine = world.draw(|rng| rng.index(3));
            machines[machine].fail_domain();
            // The next process opens the disk when the requests of this one have ended.
            loop {
                let is_idle = {
                    let disk = world.disk.borrow();
                    !disk.in_flight.values().any(|(of, _)| *of == machine)
                };
                world.rt.sleep(2 * SECOND).await;
                if is_idle {
                    break;
                }
            }
            machines[machine] = start(machine);
        }
    });
    rt.kill_all();
    outer
}

#[test]
fn no_write_of_a_fenced_epoch_takes_effect() {
    let counts = Cell::new((0, 0, 0));
    for_seeds(0..60, |rng| {
        let seed = rng.next_u64();
        let world = run(seed, Canary::None);
        let disk = world.disk.borrow();
        assert_eq!(disk.late, 0, "seed {seed}");
        let (effects, refused, fences) = counts.get();
        let fences = fences + disk.fenced.len();
        counts.set((effects + disk.effects, refused + disk.refused, fences));
    });
    let (effects, refused, fences) = counts.get();
    assert!(effects > 1000 && refused > 100 && fences > 100, "{counts:?}");
}

fn is_caught(canary: Canary) {
    let found = (0..200).find(|seed| run(*seed, canary).disk.borrow().late > 0);
    let seed = found.unwrap_or_else(|| panic!("{canary:?} was not found out"));
    eprintln!("{canary:?} found out by seed {seed}");
}

#[test]
fn requests_that_are_left_in_flight_are_caught() {
    is_caught(Canary::LeftInFlight);
}

#[test]
fn keys_without_a_reservation_are_caught() {
    is_caught(Canary::NotReserved);
}

#[test]
fn preemptions_that_do_nothing_are_caught() {
    is_caught(Canary::NotPreempted);
}

/// The incarnation before a member's may have the key of another member.
#[test]
fn a_disk_that_comes_back_refuses_all_epochs_but_those_of_members() {
    let rt = virtual_rt(Schedule::Fifo);
    let (disk, epoch, own) = Default::default();
    let (rng, canary) = (RefCell::new(Rng::new(1)), Canary::None);
    let world = Rc::new(World { rt: rt.clone(), rng, disk, canary, epoch, own });
    let mut record = Record::new(home());
    record.epoch = Epoch(6);
    // n0 was fenced in the epochs 2 and 5, while the disk was away.
    for (machine, epoch) in [(1, 4), (2, 3)] {
        let node = who(machine, Epoch(epoch)).node;
        record.members.insert(node, Member { epoch: Epoch(epoch), session: 1, address: None });
    }
    record.numbers = (0..3_u16).map(|n| (who(usize::from(n), Epoch(1)).node, n + 1)).collect();
    rt.block_on(async move {
        for (machine, epoch) in [(0, 2), (3, 5), (1, 4), (2, 3)] {
            let fence = fence_of(&world, &world.rt, machine);
            fence.register(&who(machine, Epoch(epoch))).await.expect("registered");
        }
        let fence = fence_of(&world, &world.rt, 2);
        fence.clear(&who(2, Epoch(3)), &record).await.expect("cleared");
        let key = |epoch| key_of(&home(), Epoch(epoch)).expect("a key");
        let left: Vec<(usize, u64)> =
            world.disk.borrow().keys.iter().map(|(machine, key)| (*machine, *key)).collect();
        assert_eq!(left, [(1, key(4)), (2, key(3))]);
        assert!(world.disk.borrow().holder.is_some(), "the others are refused");
    });
}

/// A disk without reservations.
struct Plain;

impl Reservable for Plain {
    fn send(&self, _: Command) -> IoFuture<'_, io::Result<Answer>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

#[test]
fn a_disk_without_reservations_is_for_one_node() {
    let rt = virtual_rt(Schedule::Fifo);
    let disk = "d0".parse().expect("a name");
    let device = Rc::new(Plain);
    let fence = ReservationFence::new(&rt, device, disk, home(), SECOND, InFlight::Abort);
    rt.block_on(async move {
        let error = fence.register(&who(0, Epoch(1))).await.expect_err("it has none");
        assert!(error.to_string().contains("d0 can be used by one node only"), "{error}");
        let error = fence.register(&who(0, Epoch(0))).await.expect_err("no epoch");
        assert!(matches!(error, FenceError::Unconfirmed { .. }), "{error}");
    });
    assert_ne!(key_of(&home(), Epoch(1)), key_of(&"other".parse().expect("a name"), Epoch(1)));
    assert_eq!(key_of(&home(), Epoch(1 << 48)), None);
}
