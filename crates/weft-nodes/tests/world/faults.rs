//! Faults of all kinds, one after the other, some of which overlap: of machines, the network,
//! disks and their servers; and what users do to disks meanwhile.

use std::rc::Rc;

use weft_fs::{Coded, Fs, Job, JobReport, REDUNDANCY_XATTR, Redundancy};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use super::canary::Canary;
use super::network::Place;
use super::process::{Machine, Process, boot, crash};
use super::server::DiskServer;
use super::{World, ring};

/// How long faults are injected.
const FAULTS: Nanos = 60 * SECOND;

pub async fn inject(world: &Rc<World>) {
    let rt = world.rt.clone();
    // Some time in peace: faults then hit a cluster that works.
    rt.sleep(world.draw(|rng| rng.within(3, 9)) * SECOND).await;
    let end = rt.now() + FAULTS;
    while rt.now() < end && !world.oracle.has_failed() {
        let long = world.draw(|rng| match rng.below(3) {
            0 => rng.within(10, 1000),
            1 => rng.within(1000, 6000),
            _ => rng.within(4000, 20_000),
        }) * MILLISECOND;
        let fault = Fault { world: world.clone(), machine: world.machine(), long };
        if matches!(world.scenario.canary, Canary::OnlyNodesDie | Canary::RingRecoveredTwice) {
            // Nodes leave something in their logs, and stay away until that is recovered again.
            let machine = world.machines[2..].iter().find(|of| of.process().is_some());
            if let Some(machine) = machine.cloned() {
                Fault { machine, long: ring::AWAY, ..fault }.kill();
            }
            rt.sleep(4 * SECOND).await;
            continue;
        }
        match world.draw(|rng| rng.below(24)) {
            // Users want a disk back that is lost.
            _ if world.may_add() && world.draw(|rng| rng.chance(30)) => fault.by_users(),
            0..7 => fault.of_machine(),
            7..13 => fault.of_network(),
            13..18 => fault.of_disk(),
            _ => fault.by_users(),
        }
        let pause = world.draw(|rng| rng.within(50, 9000)) * MILLISECOND;
        rt.sleep(pause).await;
    }
}

/// Whether a process stands still now, for a while: amid what it does.
pub fn stands_still(world: &Rc<World>, process: &Rt) -> bool {
    let is_drawn = world.has_faults.get() && world.draw(|rng| rng.below(4000)) == 0;
    if is_drawn {
        let long = world.draw(|rng| rng.within(100, 20_000)) * MILLISECOND;
        world.oracle.counts.borrow_mut().pauses += 1;
        stand_still(world, process, long);
    }
    is_drawn
}

fn stand_still(world: &World, process: &Rt, long: Nanos) {
    process.stop_domain();
    let (rt, process) = (world.rt.clone(), process.clone());
    rt.clone().spawn(async move {
        rt.sleep(long).await;
        process.go_on();
    });
}

/// A process that has just become the keeper may die before it serves.
pub fn may_die_soon(world: &Rc<World>, machine: &Rc<Machine>, life: u64) {
    if !world.has_faults.get() || world.draw(|rng| !rng.chance(15)) {
        return;
    }
    let (world, machine) = (world.clone(), machine.clone());
    let pause = world.draw(|rng| rng.within(0, 1500)) * MILLISECOND;
    world.rt.clone().spawn(async move {
        world.rt.sleep(pause).await;
        let process = machine.process().filter(|process| process.life == life);
        if process.is_some_and(|process| process.fs().is_none()) {
            world.oracle.tell(format!("{} is killed as it takes over", machine.name));
            world.oracle.counts.borrow_mut().killed_in_takeover += 1;
            crash(&world, &machine, false);
            start_later(&world, &machine, SECOND);
        }
    });
}

/// A process is started again, after a while.
fn start_later(world: &Rc<World>, machine: &Rc<Machine>, pause: Nanos) {
    let (world, machine) = (world.clone(), machine.clone());
    world.rt.clone().spawn(async move {
        world.rt.sleep(pause).await;
        if !world.is_over.get() {
            boot(&world, &machine);
        }
    });
}

/// Something that happens to a machine, or near it, for as long as this.
struct Fault {
    world: Rc<World>,
    machine: Rc<Machine>,
    long: Nanos,
}

impl Fault {
    fn tell(&self, what: &str) {
        self.world.oracle.tell(format!("{what} ({} ms)", self.long / MILLISECOND));
    }

    fn of_machine(&self) {
        let Self { world, machine, long } = self;
        let name = &machine.name;
        match world.draw(|rng| rng.below(8)) {
            0..4 => self.kill(),
            4..6 => {
                self.tell(&format!("{name} stands still"));
                if let Some(process) = machine.process() {
                    stand_still(world, &process.rt, *long);
                }
            }
            6 => self.leave(),
            _ => evict(world, machine),
        }
    }

    fn kill(&self) {
        let Self { world, machine, long } = self;
        self.tell(&format!("{} is killed", machine.name));
        world.oracle.counts.borrow_mut().killed += 1;
        let is_silent = world.draw(|rng| rng.chance(30));
        crash(world, machine, is_silent);
        start_later(world, machine, *long);
    }

    /// The process of the machine ends in order, and another one joins.
    fn leave(&self) {
        let Some(process) = self.machine.process() else { return };
        self.tell(&format!("{} is to end in order", self.machine.name));
        process.is_ending.set(true);
        process.told.notify_all();
        let Self { world, machine, long } = self;
        let (world, machine, long) = (world.clone(), machine.clone(), *long);
        world.rt.clone().spawn(async move {
            let until = world.rt.now() + 40 * SECOND;
            while !process.has_ended.get() && world.rt.now() < until {
                world.rt.sleep(100 * MILLISECOND).await;
            }
            if !machine.lives(process.life) || world.is_over.get() {
                return;
            }
            if process.has_ended.get() {
                world.oracle.tell(format!("{} has ended in order", machine.name));
                world.oracle.counts.borrow_mut().left += 1;
            }
            crash(&world, &machine, false);
            start_later(&world, &machine, long);
        });
    }

    fn cut(&self, one: Place, other: Place, long: Nanos, both: bool) {
        self.world.network.cut(one, other, long);
        if both {
            self.world.network.cut(other, one, long);
        }
    }

    fn of_network(&self) {
        let Self { world, machine, long } = self;
        let (name, here) = (&machine.name, Place::Machine(machine.place));
        let both = world.draw(|rng| rng.chance(60));
        match world.draw(|rng| rng.below(7)) {
            0 | 1 => {
                let other = world.machine();
                self.tell(&format!("no way between {name} and {}", other.name));
                self.cut(here, Place::Machine(other.place), *long, both);
            }
            2 => {
                self.tell(&format!("no way from {name} to the coordinator"));
                self.cut(here, Place::Coordinator, *long, both);
            }
            3 => {
                self.tell(&format!("{name} is cut off"));
                let machines = (0..world.machines.len()).map(Place::Machine);
                let disks = (0..world.disks.len()).map(Place::Disk);
                for place in machines.chain(disks).chain([Place::Coordinator]) {
                    self.cut(here, place, *long, both);
                }
            }
            4 => {
                self.tell("the coordinator is away");
                for place in 0..world.machines.len() {
                    world.network.cut(Place::Machine(place), Place::Coordinator, *long);
                }
            }
            5 => {
                self.tell("the network is disturbed");
                world.network.disturb(*long);
            }
            _ => {
                let disk = world.draw(|rng| rng.index(world.disks.len()));
                self.tell(&format!("no way from {name} to disk {disk}, for a short time"));
                self.cut(here, Place::Disk(disk), (*long).min(5 * SECOND), both);
            }
        }
    }

    fn of_disk(&self) {
        let Self { world, machine, long } = self;
        let (name, here) = (&machine.name, Place::Machine(machine.place));
        let victim = &world.disks[world.victim];
        // Of these as many as one likes: no disk is lost.
        let any = &world.disks[world.draw(|rng| rng.index(world.disks.len()))];
        match world.draw(|rng| rng.below(9)) {
            0 => {
                self.tell(&format!("disk {} dies", victim.number));
                victim.die();
                world.oracle.lose(victim.number);
            }
            1 => {
                self.tell(&format!("{name} loses its connection to disk {}", any.number));
                any.break_off(machine.place);
            }
            2 => {
                self.tell(&format!("no way from {name} to disk {}", victim.number));
                let both = world.draw(|rng| rng.chance(60));
                self.cut(here, Place::Disk(victim.number), *long, both);
            }
            3..6 => {
                // The keeper would lose the disk.
                let disk = if machine.may_keep { victim } else { any };
                if let Some(process) = machine.process() {
                    self.tell(&format!("{name} does not reach disk {} any more", disk.number));
                    disk.bar(process.life);
                }
            }
            _ => self.restart(any),
        }
    }

    /// The server of a disk ends, and is started again soon.
    fn restart(&self, disk: &Rc<DiskServer>) {
        if !disk.is_serving() {
            return;
        }
        let (world, disk, how) = (self.world.clone(), disk.clone(), self.long % 3);
        let pause = self.long % SECOND;
        let what = ["ends in order", "is killed", "loses power"][how as usize];
        self.tell(&format!("the server of disk {} {what}", disk.number));
        world.rt.clone().spawn(async move {
            match how {
                0 => disk.close().await,
                _ => disk.stop(how == 2),
            }
            {
                let mut counts = world.oracle.counts.borrow_mut();
                counts.restarts += 1;
                counts.power_losses += u64::from(how == 2);
            }
            world.rt.sleep(pause).await;
            disk.start(world.draw(|rng| rng.next_u64())).await;
        });
    }

    /// What users ask a keeper for.
    fn by_users(&self) {
        let world = &self.world;
        let keeper = world.machines.iter().filter(|machine| machine.may_keep);
        let keeper = keeper.filter_map(|machine| machine.process()).find_map(|process| {
            let fs = process.fs()?;
            Some((process, fs))
        });
        let Some((process, fs)) = keeper else { return };
        let (of, what) = (world.clone(), world.draw(|rng| rng.below(6)));
        process.rt.clone().spawn(async move {
            let is_lost = !of.oracle.lost().is_empty();
            match what {
                1.. if of.may_add() => add(&of, &process, &fs, &of.disks[of.victim]).await,
                0 | 1 => {
                    of.oracle.tell("a scrub is to run".into());
                    let ended = fs.scrub().await.map(JobReport::Scrubbed);
                    of.oracle.job(Job::Scrub, &ended);
                }
                2 if !is_lost => remove(&of, &fs).await,
                3 => {
                    of.oracle.tell("the disks are to be evened out".into());
                    if let Ok(running) = fs.begin_job(Job::Balance) {
                        of.oracle.job(Job::Balance, &running.await);
                    }
                }
                4 => set(&of, &fs).await,
                _ => {}
            }
        });
    }
}

impl World {
    /// Whether the disk that may be lost is, and still works.
    fn may_add(&self) -> bool {
        !self.oracle.lost().is_empty() && !self.disks[self.victim].is_dead.get()
    }
}

/// As `weft fs set`, of a file that all programs use.
async fn set(world: &World, fs: &Fs) {
    let ino = world.draw(|rng| *rng.pick(&world.files.inos()));
    let name = world.draw(|rng| *rng.pick(&["raid1", "raid5"]));
    world.oracle.tell(format!("{ino} is to be {name}"));
    let redundancy: Redundancy = name.parse().expect("known");
    if fs.want_redundancy(&[ino], redundancy).await.is_err() {
        return;
    }
    let Ok(running) = fs.begin_job(Job::Set) else { return };
    let ended = running.await;
    world.oracle.job(Job::Set, &ended);
    let (Ok(_), Ok(records)) = (ended, fs.places(ino).await) else { return };
    // Another user may have set it again.
    let is_it = fs.xattr(ino, REDUNDANCY_XATTR).await.is_ok_and(|set| set == name.as_bytes());
    let is_set = |coded: Coded| Some(coded.spec) == redundancy.coded(64).map(|of| of.spec);
    if is_it && let Some((first, record)) = records.iter().find(|(_, of)| !is_set(of.coded)) {
        world.oracle.violate(format!("block {first} of {ino} is {:?} still", record.coded));
    }
}

/// As `weft fs remove`.
async fn remove(world: &World, fs: &Fs) {
    let victim = world.victim;
    let number = world.numbers.borrow().iter().rfind(|(_, disk)| **disk == victim).map(|of| *of.0);
    let Some(number) = number else { return };
    world.oracle.tell(format!("disk {victim} is to be removed"));
    // It is lost to users that write narrow lines now.
    world.oracle.lose(victim);
    let ended = fs.remove_disk(number).await.map(JobReport::Moved);
    world.oracle.job(Job::Remove(number), &ended);
}

/// As `weft fs add`, of a disk that was lost or has left.
async fn add(world: &World, process: &Process, fs: &Fs, disk: &DiskServer) {
    let Ok(status) = fs.status().await else { return };
    let is_it = |number: u16| world.numbers.borrow().get(&number) == Some(&disk.number);
    if status.disks.iter().any(|of| !of.lost && is_it(of.number)) {
        // It was to leave, and has not.
        return;
    }
    // One that has left has no label any more, and what it held.
    let has_left = !status.disks.iter().any(|of| is_it(of.number));
    let added = process.add(fs, disk, has_left).await;
    world.oracle.tell(format!("disk {} is added: {added:?}", disk.number));
    if let Ok(number) = added {
        world.oracle.counts.borrow_mut().added += 1;
        world.numbers.borrow_mut().insert(number, disk.number);
    }
}

/// As `weft fs evict`.
fn evict(world: &Rc<World>, machine: &Machine) {
    let (world, name) = (world.clone(), machine.name.clone());
    world.oracle.tell(format!("{name} is to be evicted"));
    world.rt.clone().spawn(async move {
        use weft_cluster::Coordinator as _;
        let view = world.coordinator.read().await.expect("it never fails");
        let Some(before) = view.record else { return };
        let mut record = before.clone();
        record.expel(&name);
        if record != before {
            if let Some(member) = before.members.get(&name) {
                let (node, epoch) = (name, member.epoch);
                world.oracle.counts.borrow_mut().evicted += 1;
                world.oracle.expelled(&weft_cluster::Incarnation { node, epoch });
            }
            drop(world.coordinator.compare_and_set(view.version, record).await);
        }
    });
}
