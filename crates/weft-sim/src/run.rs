//! One run: an array is created, lives several lives under load, and is examined at the end.
//!
//! A *life* goes from assembly to a crash or a clean stop. While clients work, things happen to the
//! array (`events.rs`): members fail, spares come, sectors rot, scrubs run. It ends by a power cut
//! at a step drawn beforehand – that may be in the middle of recovering from the last one –, by the
//! death of the program alone, or in order. Disks may be lost in the same moment, and lost disks
//! may come back with old data. At the end everything must settle: all jobs done, no mismatch,
//! every byte as the reference says – healthy, and with each member taken away in turn.

mod between;
mod report;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_array::Area;
use weft_code::UnitSet;
use weft_disk::{BoundedDisk, DISK_TIMEOUT, Disk};
use weft_rt::{MILLISECOND, Rt, SECOND};

use crate::canary::{Canary, Forgotten};
use crate::clock::sim_rt;
use crate::disk::{Faults, Hangs, Platter, SimDisk, Uniform};
use crate::engine::Engine;
use crate::events;
use crate::excuse::watch_losses;
use crate::membership::{self, superblock_of};
use crate::oracle::{Oracle, Tick};
use crate::rng::Rng;
use crate::setup::{Map, Setup};
use crate::violation::{Broken, Violation};
use crate::volume::Volume;
use crate::workload::Desk;
use crate::world::{What, World};
pub(crate) use between::Slots;
pub use report::{Failure, Options, Report, Story};

/// Turns of the executor that a run may take.
const TURNS_MAX: u64 = 20_000_000;

/// Virtual time for all jobs to end once nobody works any more.
const SETTLE_MAX: u64 = 4 * 3600 * SECOND;

/// Events shown with a failure.
const TAIL: usize = 40;

/// A disk of the run.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub platter: Platter,
    /// Not attached in this life.
    pub absent: bool,
}

impl Member {
    /// The disk works again. That does not undo what it missed: to the array it stays a member that
    /// failed, until it is taken as a new one.
    pub(crate) fn comes_back(&mut self) {
        let away = std::mem::replace(&mut self.absent, false);
        self.platter.faults(|f| {
            let failed = f.failed || f.gone || away;
            let denied = std::mem::take(&mut f.denied);
            *f = Faults { failed, denied, ..Faults::default() };
        });
    }
}

/// How the engine's disks are opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gear {
    canary: Option<(Canary, Area)>,
}

impl Gear {
    pub(crate) fn open(&self, world: &World, platter: &Platter) -> Rc<dyn Disk> {
        let disk = SimDisk::open(world, platter);
        let rt = world.rt().clone();
        let disk: Rc<dyn Disk> = match &self.canary {
            None => disk,
            Some((canary, area)) => {
                let (rt, area) = (rt.clone(), area.clone());
                let (works, late) = (Cell::new(false), Cell::new(0));
                Rc::new(Forgotten { rt, disk, canary: *canary, area, works, late })
            }
        };
        Rc::new(BoundedDisk::new(&rt, disk, DISK_TIMEOUT))
    }
}

/// All that a run has.
pub(crate) struct Run {
    pub rt: Rt,
    pub world: World,
    pub options: Options,
    pub setup: Setup,
    pub rng: Rng,
    pub disks: Rc<RefCell<Vec<Member>>>,
    pub report: Rc<RefCell<Report>>,
    pub desk: Option<Rc<Desk>>,
    pub map: Option<Rc<Map>>,
    /// The engine of the present life.
    pub engine: Rc<RefCell<Option<Engine>>>,
    /// When slots lost their disks in the present life.
    pub lost_at: Rc<RefCell<BTreeMap<usize, Tick>>>,
    /// How the engine's disks are opened.
    pub gear: Gear,
    /// The slots as the last life left them.
    pub last: Option<Slots>,
    /// In the present life, or the last, the power cut waited for a change of the members.
    pub besieged: bool,
    /// The last assembly did not come to its end.
    pub cut_short: bool,
    /// What hangs on disks that come in the middle of the present life.
    pub hangs_of_more: Rc<RefCell<Hangs>>,
}

/// Carries out the run of `seed`.
///
/// # Errors
/// The expectation that failed.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let rt = sim_rt(seed, TURNS_MAX);
    let world = World::new(&rt, seed);
    let setup = Setup::draw(&mut world.rng(1), &options.wishes);
    let report = Report { seed, setup: setup.to_string(), ..Report::default() };
    let mut run = Run {
        rt,
        options: options.clone(),
        rng: world.rng(2),
        disks: Rc::default(),
        report: Rc::new(RefCell::new(report)),
        desk: None,
        map: None,
        engine: Rc::default(),
        lost_at: Rc::default(),
        gear: Gear::default(),
        last: None,
        besieged: false,
        cut_short: false,
        hangs_of_more: Rc::default(),
        world,
        setup,
    };
    let outcome = crate::panics::catch(|| run.whole());
    let (steps, hash) = (run.world.steps(), run.world.trace_hash());
    // Tasks hold what they use: drop them before what they use.
    let _ = crate::panics::catch(|| run.rt.kill_all());
    match outcome {
        Ok(Ok(())) => {
            let mut report = run.report.borrow().clone();
            report.steps = steps;
            report.virtual_ns = run.rt.now();
            report.trace_hash = hash;
            if let Some(desk) = &run.desk {
                report.requests = desk.requests();
                report.errors = desk.errors();
            }
            Ok(report)
        }
        Ok(Err(broken)) => Err(run.failure(broken, hash)),
        Err(panic) => {
            let broken = Broken::new(Violation::Panic, format!("panic: {panic}"));
            Err(run.failure(broken, hash))
        }
    }
}

impl Run {
    fn failure(&self, broken: Broken, trace_hash: u64) -> Box<Failure> {
        let shown = |events: Vec<crate::Event>| events.iter().map(ToString::to_string).collect();
        let Broken { kind, mut text, place } = broken;
        if let (Some(place), Some(map)) = (&place, &self.map) {
            let (stripe, slot) = map.of(place.start);
            text = format!("{text}(stripe {stripe}, slot {slot})");
        }
        let shown_max =
            if self.options.events_shown == 0 { TAIL } else { self.options.events_shown };
        let near = place.map(|place| {
            self.world.events(3 * TAIL, |what| match what {
                What::Client { offset, len, .. } => {
                    *offset < place.end && place.start < offset + len
                }
                What::Disk { .. } => false,
                What::Note(_) => true,
            })
        });
        Box::new(Failure {
            seed: self.world.seed(),
            setup: self.setup.to_string(),
            kind,
            text,
            tail: shown(self.world.events(shown_max, |_| true)),
            place: near.map(shown).unwrap_or_default(),
            step: self.world.steps(),
            trace_hash,
        })
    }

    fn whole(&mut self) -> Result<(), Broken> {
        self.make_disks();
        self.create()?;
        let drawn = self.rng.within(1, 5).min(self.options.lives_max.unwrap_or(u64::MAX)).max(1);
        let lives = if self.options.cut_at.is_some() { 2 } else { drawn };
        let mut life = 0;
        let mut settled = false;
        while !settled {
            life += 1;
            self.life(life, life >= lives)?;
            // An array that had to stop gets another life to settle in.
            let stopped = self.desk.as_ref().is_some_and(|desk| desk.gave_up.take());
            settled = life >= lives && !stopped;
        }
        match self.options.story {
            Story::Survivable => self.views(),
            Story::Beyond => self.beyond(),
            Story::Silent => match self.silent()? {
                true => self.views(),
                false => Ok(()),
            },
        }
    }

    fn make_disks(&mut self) {
        let mut disks = self.disks.borrow_mut();
        for (number, disk) in self.setup.disks.iter().enumerate() {
            let rng = self.world.rng(100 + number as u64);
            let platter = Platter::new(number, disk.size_bytes, disk.sector_bytes, rng);
            let factor = if disk.factor > 10 && self.options.quiet { 1 } else { disk.factor };
            platter.set_latency(Box::new(Uniform { factor, ..Uniform::default() }));
            // What stood on the disk before must not show through.
            if self.rng.chance(30) {
                let spots = self.rng.within(1, 100);
                for _ in 0..spots {
                    let page = self.rng.below(disk.size_bytes / 4096) * 4096;
                    platter.poke(page, &[0xa5; 4096]);
                }
            }
            platter.set_fast_zeroes(disk.fast_zeroes);
            disks.push(Member { platter, absent: false });
        }
    }

    /// The disks that are attached, opened in this life.
    pub(crate) fn open(&self) -> Vec<Rc<dyn Disk>> {
        let disks = self.disks.borrow();
        let attached = disks.iter().filter(|member| !member.absent);
        attached.map(|member| self.gear.open(&self.world, &member.platter)).collect()
    }

    /// Runs `future` in this life; `None` if the power went.
    pub(crate) fn drive<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Result<Option<T>, Broken> {
        let world = self.world.clone();
        let value = self.rt.block_on(async move { world.while_on(future).await });
        match self.desk.as_ref().and_then(|desk| desk.broken.take()) {
            Some(broken) => Err(broken),
            None => Ok(value),
        }
    }

    fn create(&mut self) -> Result<(), Broken> {
        // A crash during creation leaves nothing that cannot be created over.
        let cuts = self.rng.chance(10);
        if cuts {
            self.world.cut_at(Some(self.world.steps() + self.rng.within(1, 60)));
        }
        for _ in 0..2 {
            let (setup, disks) = (self.setup.clone(), self.open());
            let mut id = [0; 16];
            id[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
            let created = self.drive(async move { Engine::create(disks, &setup, id).await })?;
            self.rt.kill_all();
            match created {
                Some(Ok(())) => {
                    self.world.cut_at(None);
                    return Ok(());
                }
                Some(Err(error)) => {
                    let text = format!("creation failed: {error}");
                    return Err(Broken::new(Violation::CommandFailed, text));
                }
                None => self.cut_power(),
            }
        }
        Err(Broken::new(Violation::NeverSettles, "creation never came to an end"))
    }

    fn cut_power(&mut self) {
        self.rt.kill_all();
        for member in self.disks.borrow().iter() {
            member.platter.power_cut();
            // What becomes of an array that was never finished is of no interest.
            member.platter.take_caught();
        }
        self.world.restore();
    }

    /// From assembly to a crash or a clean stop.
    fn life(&mut self, number: u64, last: bool) -> Result<(), Broken> {
        self.report.borrow_mut().lives += 1;
        self.desk_of_run();
        if self.last.is_some() {
            self.lose_and_return();
        }
        let crash = !last && self.rng.chance(85) || (number == 1 && self.options.cut_at.is_some());
        let may_besiege = crash && !self.options.quiet && self.options.cut_at.is_none();
        self.besieged = may_besiege && self.rng.chance(40);
        if crash {
            let steps = match self.options.cut_at {
                Some(step) if number == 1 => step,
                _ if self.besieged => self.rng.within(1000, 6000),
                _ => match self.rng.below(4) {
                    0 => self.rng.within(1, 300),
                    _ => self.rng.within(100, 6000),
                },
            };
            self.world.cut_at(Some(self.world.steps() + steps));
        }
        self.draw_hangs(crash && self.options.cut_at.is_none());
        let body = self.body(last);
        let start = self.world.steps();
        let done = self.drive(body);
        if number == 1 {
            self.report.borrow_mut().steps_first = self.world.steps() - start;
        }
        self.world.cut_at(None);
        self.world.set_ambush(None);
        self.remember_slots();
        // A life that ends by giving up ends without a stop, too.
        if done?.is_none() || !self.world.is_on() {
            self.crash();
        }
        self.rt.kill_all();
        self.world.restore();
        Ok(())
    }

    /// Which operations hang in this life; a siege begins with hangs of its own.
    fn draw_hangs(&mut self, crash: bool) {
        let mut rng = self.world.rng(7000 + self.report.borrow().lives);
        let disks = self.disks.borrow();
        let mut hangs = Hangs::draw(&mut rng, disks.len() + 1, crash);
        if self.options.quiet || self.besieged {
            hangs.fill(Hangs::default());
        }
        for (member, hangs) in disks.iter().zip(&hangs) {
            member.platter.set_hangs(hangs.clone());
        }
        *self.hangs_of_more.borrow_mut() = hangs.last().cloned().unwrap_or_default();
    }

    /// A life, as a future.
    fn body(&mut self, last: bool) -> impl Future<Output = ()> + 'static {
        let (rt, world, disks) = (self.rt.clone(), self.world.clone(), self.open());
        let desk = self.desk_of_run();
        desk.quiesce.set(false);
        desk.errors_allowed.set(false);
        let stage = events::Stage {
            rt: rt.clone(),
            world: world.clone(),
            desk: desk.clone(),
            map: self.map.clone().expect("just made"),
            setup: self.setup.clone(),
            disks: self.disks.clone(),
            report: self.report.clone(),
            rng: RefCell::new(self.rng.fork(1000 + self.report.borrow().lives)),
            rooms: RefCell::new(self.world.rng(6000 + self.report.borrow().lives)),
            policies: RefCell::new(self.world.rng(3000 + self.report.borrow().lives)),
            hangs: RefCell::new(self.world.rng(6000 + self.report.borrow().lives)),
            promotions: RefCell::new(self.world.rng(11_000 + self.report.borrow().lives)),
            returns: RefCell::new(self.world.rng(8000 + self.report.borrow().lives)),
            claimed: RefCell::default(),
            quiet: self.options.quiet,
            gear: self.gear.clone(),
            hangs_of_more: self.hangs_of_more.clone(),
        };
        let clients = self.world.rng(50 + self.report.borrow().lives);
        let (holder, besieged) = (self.engine.clone(), self.besieged);
        let durable = clients.clone().chance(60);
        let load = match besieged {
            true => self.setup.load.pressing(durable),
            false => self.setup.load.clone(),
        };
        let lost_at = self.lost_at.clone();
        let nonce = self.rng.next_u64();
        let check_first = self.rng.chance(50);
        let check_twice = self.rng.chance(30);
        let stop_early = !last && !self.options.quiet && self.rng.chance(20);
        let before = self.last.clone();
        let loses_at_once = self.cut_short
            && !self.options.quiet
            && self.world.rng(12_000 + self.report.borrow().lives).chance(50);
        let opening = membership::assemble(&rt, &self.disks.borrow(), disks, nonce);
        async move {
            stage.allow_to_stop();
            let engine = match opening.await {
                Ok(engine) => engine,
                // Whoever runs it tries again.
                Err(_) if desk.has_to_stop() => return world.cut(),
                Err(broken) => return desk.broke(broken),
            };
            world.note(format!("assembled: {}", events::summary(&engine)));
            stage.forget_promises_of_assembly(&engine, before.as_ref());
            watch_losses(&engine, &desk, &stage.map, &lost_at);
            stage.make_room_later();
            *holder.borrow_mut() = Some(engine.clone());
            if loses_at_once {
                // What two recoveries made of one crash must agree before any resync.
                stage.fail_member(&engine).await;
            }
            if !stage.quiet {
                stage.change_policy(&engine).await;
            }
            let volume: Rc<dyn Volume> = Rc::new(engine.clone());
            if check_first {
                desk.read_all(&*volume, 90).await;
            }
            let tasks = desk.start(&volume, &load, &clients);
            let trouble = async {
                if besieged {
                    stage.besiege(&engine).await;
                }
                stage.trouble(&engine).await;
                if stop_early {
                    // In the middle of everything: whoever comes too late is told so.
                    desk.errors_allowed.set(true);
                    desk.quiesce.set(true);
                    stage.finish(&engine, false).await;
                }
            };
            futures_util::future::join(futures_util::future::join_all(tasks), trouble).await;
            if stop_early {
                return;
            }
            if check_twice {
                desk.read_all(&*volume, 91).await;
            }
            stage.finish(&engine, last).await;
        }
    }

    /// What the clients share; made when the array's size is known.
    fn desk_of_run(&mut self) -> Rc<Desk> {
        if let Some(desk) = &self.desk {
            return desk.clone();
        }
        let size = self.size_of_array();
        self.map = Some(Rc::new(Map::new(&self.setup, size)));
        let area = self.disks.borrow().first().and_then(|m| superblock_of(&m.platter));
        self.gear.canary = self.options.canary.zip(area.map(|superblock| superblock.area));
        let oracle = Oracle::new(self.world.seed(), size, self.setup.cell_bytes);
        let desk = Desk::new(&self.world, oracle);
        desk.vanish_percent.set(self.setup.load.vanish_percent);
        let k = self.setup.code.shape(self.setup.slots).map_or(1, |shape| shape.k as u64);
        desk.discard_zeroes.set(Some(k * u64::from(self.setup.unit_bytes)));
        self.desk = Some(desk.clone());
        desk
    }

    /// Assembles once on copies, to learn the size.
    fn size_of_array(&self) -> u64 {
        let copies = self.open_copies(|_| false);
        let rt = self.rt.clone();
        let size = self.rt.block_on(async move {
            Engine::assemble(&rt, copies, true, false, 1).await.map(|engine| engine.size_bytes())
        });
        self.rt.kill_all();
        size.unwrap_or_else(|error| panic!("a new array cannot be assembled: {error}"))
    }

    /// Reads everything with each member taken away in turn, on copies.
    fn views(&mut self) -> Result<(), Broken> {
        let (Some(slots), Some(map), Some(desk)) =
            (self.last.clone(), self.map.clone(), self.desk.clone())
        else {
            return Ok(());
        };
        for slot in 0..self.setup.slots {
            let mut lost = UnitSet::one(slot);
            if self.rng.chance(40) {
                lost.insert(self.rng.index(self.setup.slots));
            }
            let known = slots.incomplete();
            if !map.survives(known.union(&lost)) {
                lost = UnitSet::one(slot);
            }
            if known.contains(slot) || !map.survives(known.union(&lost)) {
                continue;
            }
            let taken = |n| slots.holding(|disk| disk == n).intersects(&lost);
            self.world.note(format!("view without slots {:?}", lost.iter().collect::<Vec<_>>()));
            let copies = self.open_copies(taken);
            let (rt, desk) = (self.rt.clone(), desk.clone());
            self.drive(async move {
                match Engine::assemble(&rt, copies, true, true, 1).await {
                    Ok(engine) => desk.read_all(&engine, 95).await,
                    Err(error) => {
                        let text = format!("degraded assembly was refused: {error}");
                        desk.fail(Violation::AssemblyRefused, text, None);
                    }
                }
            })?;
            self.rt.kill_all();
        }
        Ok(())
    }
}

/// Waits until `done` or for a bounded virtual time; says whether it came.
pub(crate) async fn wait_for(rt: &Rt, mut done: impl FnMut() -> bool) -> bool {
    let deadline = rt.now() + SETTLE_MAX;
    let mut pause = MILLISECOND;
    while !done() {
        if rt.now() > deadline {
            return false;
        }
        rt.sleep(pause).await;
        pause = (pause * 2).min(SECOND);
    }
    true
}
