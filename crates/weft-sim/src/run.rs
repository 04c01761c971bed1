//! One run: creates an array, takes it through several lives under load, and checks it at the end.
//!
//! A *life* lasts from assembly to a crash or a clean stop. While clients work, the fault injector
//! (`injector.rs`) acts on the array: members fail, spares are added, sectors become unreadable,
//! scrubs run. A life ends with a power cut at a step drawn in advance (which may hit the recovery
//! from the previous crash), with a crash of only the program, or with a clean stop. Disks may be
//! lost at the same time, and lost disks may return with old data. At the end everything must
//! settle: all jobs done, no mismatches, and every byte correct by the oracle, with all members and
//! with each member removed in turn.

mod between;
mod foreign_disks;
mod image;
mod life;
mod scenarios;
mod state;
mod tear;

use std::cell::RefCell;
use std::rc::Rc;

use crate::clock::sim_rt;
use crate::disk::{Platter, Uniform};
use crate::engine::Engine;
use crate::factory::DiskFactory;
use crate::foreign::Foreign;
use crate::member::Member;
use crate::panics;
use crate::report::{Failure, Options, Report, Scenario};
use crate::setup::{GrowthSetup, ReshapeSetup, SLOW, Setup};
use crate::violation::{Violation, ViolationKind};
use crate::world::World;
use state::Run;

/// The most turns of the executor that a run may take.
const TURNS_MAX: u64 = 20_000_000;

/// How often the creation of an array with a slow disk is tried.
const CREATIONS_MAX: usize = 4;

/// Runs `seed`.
///
/// # Errors
/// The violation that the run found.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let rt = sim_rt(seed, TURNS_MAX);
    let world = World::new(&rt, seed);
    let mut setup = Setup::draw(&mut world.rng(1), &options.filter);
    let mut reshape = world.rng(15_000);
    let reshaped = reshape.chance(if ReshapeSetup::widens(&setup) { 80 } else { 20 })
        && !options.crashes_only
        && options.canary.is_none();
    if options.reshape.unwrap_or(reshaped)
        && let Some(reshape) = ReshapeSetup::draw(&mut reshape, &setup)
    {
        setup = setup.with_reshape(reshape);
    }
    let mut growth = world.rng(22_000);
    let grows = growth.chance(20) && !options.crashes_only && options.canary.is_none();
    if options.growth.unwrap_or(grows) {
        let growth = GrowthSetup::draw(&mut growth, &setup);
        setup = setup.with_growth(growth);
    }
    let report = Report { seed, setup: setup.to_string(), ..Report::default() };
    let mut run = Run {
        rt,
        options: options.clone(),
        rng: world.rng(2),
        disks: Rc::default(),
        report: Rc::new(RefCell::new(report)),
        harness: None,
        map: None,
        engine: Rc::default(),
        lost_at: Rc::default(),
        factory: DiskFactory::default(),
        last_slots: None,
        membership_crash: false,
        held_commit: false,
        turned_crash: false,
        foreign: Foreign::default(),
        stopped: false,
        image: Rc::default(),
        assembly_interrupted: false,
        new_disk_hangs: Rc::default(),
        world,
        setup,
    };
    let outcome = panics::catch(|| run.run_lives());
    let (steps, hash) = (run.world.steps(), run.world.trace_hash());
    // Drop the tasks before the state that they use.
    let _ = panics::catch(|| run.rt.kill_all());
    match outcome {
        Ok(Ok(())) => {
            let mut report = run.report.borrow().clone();
            report.steps = steps;
            report.virtual_ns = run.rt.now();
            report.trace_hash = hash;
            if let Some(harness) = &run.harness {
                report.requests = harness.requests();
                report.errors = harness.errors();
            }
            Ok(report)
        }
        Ok(Err(violation)) => Err(run.failure(violation, hash)),
        Err(panic) => {
            let violation = Violation::new(ViolationKind::Panic, format!("panic: {panic}"));
            Err(run.failure(violation, hash))
        }
    }
}

impl Run {
    fn run_lives(&mut self) -> Result<(), Violation> {
        self.make_disks();
        self.create()?;
        self.perhaps_make_foreign()?;
        let drawn = self.rng.within(1, 5).min(self.options.lives_max.unwrap_or(u64::MAX)).max(1);
        let lives = if self.options.cut_at.is_some() { 2 } else { drawn };
        let mut life = 0;
        let mut settled = false;
        while !settled {
            life += 1;
            self.life(life, life >= lives)?;
            // An array that had to stop gets another life in which to settle.
            let stopped = self.harness.as_ref().is_some_and(|harness| harness.array_stopped.take());
            settled = life >= lives && !stopped;
        }
        let scenario = || Scenario::draw(&mut self.world.rng(20));
        // The remaining scenarios look for data where the first geometry has it, in the first size.
        let drawn = self.options.scenario.unwrap_or_else(scenario);
        let changes = self.setup.reshape.is_some() || self.setup.growth.is_some();
        match if changes { Scenario::Survivable } else { drawn } {
            Scenario::Survivable => self.read_degraded(),
            Scenario::BeyondTolerance => self.lose_too_many(),
            Scenario::SilentCorruption => match self.corrupt_silently()? {
                true => self.read_degraded(),
                false => Ok(()),
            },
        }
    }

    fn make_disks(&mut self) {
        let mut disks = self.disks.borrow_mut();
        for (number, disk) in self.setup.disks.iter().enumerate() {
            let rng = self.world.rng(100 + number as u64);
            let platter = Platter::new(number, disk.size_bytes, disk.sector_bytes, rng);
            let factor = if disk.latency_factor > 10 && self.options.crashes_only {
                1
            } else {
                disk.latency_factor
            };
            platter.set_latency(Box::new(Uniform { factor, ..Uniform::default() }));
            // Old contents of a disk must not show through.
            if self.rng.chance(30) {
                let spots = self.rng.within(1, 100);
                for _ in 0..spots {
                    let page = self.rng.below(disk.size_bytes / 4096) * 4096;
                    platter.poke(page, &[0xa5; 4096]);
                }
            }
            platter.set_fast_zeroes(disk.fast_zeroes);
            platter.set_volatile_cache(disk.volatile_cache);
            platter.set_rotational(self.setup.rotational);
            disks.push(Member { platter, absent: false });
        }
    }

    fn create(&mut self) -> Result<(), Violation> {
        // A crash during creation must leave disks on which an array can be created.
        let cuts = self.rng.chance(10);
        if cuts {
            self.world.cut_at(Some(self.world.steps() + self.rng.within(1, 60)));
        }
        // Zeroing much of a slow disk may take longer than an operation may. Rightly, the array is
        // not created then.
        let has_slow = self.setup.disks.iter().any(|disk| disk.latency_factor >= SLOW);
        let attempts = if has_slow { CREATIONS_MAX } else { 2 };
        for _ in 0..attempts {
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
                // The operator tries again, once the disk works on nothing of the first attempt.
                Some(Err(error)) if has_slow && error.contains("gave no answer within") => {
                    self.cut_power();
                }
                Some(Err(error)) => {
                    let text = format!("creation failed: {error}");
                    return Err(Violation::new(ViolationKind::CommandFailed, text));
                }
                None => self.cut_power(),
            }
        }
        Err(Violation::new(ViolationKind::NeverSettles, "creation did not finish"))
    }

    fn cut_power(&mut self) {
        self.rt.kill_all();
        for member in self.disks.borrow().iter() {
            member.platter.power_cut();
            // The sectors that this cut interrupted do not matter: the array was never created.
            member.platter.take_interrupted();
        }
        self.world.restore();
    }
}
