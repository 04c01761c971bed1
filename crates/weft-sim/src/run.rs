//! One run: an array is created, lives several lives under load, and is examined at the end.
//!
//! A *life* goes from assembly to a crash or a clean stop. While clients work, things happen to the
//! array (`events.rs`): members fail, spares come, sectors rot, scrubs run. It ends by a power cut
//! at a step drawn beforehand – that may be in the middle of recovering from the last one –, by the
//! death of the program alone, or in order. Disks may be lost in the same moment, and lost disks
//! may come back with old data. At the end everything must settle: all jobs done, no mismatch,
//! every byte as the reference says – healthy, and with each member taken away in turn.

mod between;
mod life;
mod state;
mod stories;
mod tear;

use std::cell::RefCell;
use std::rc::Rc;

use crate::clock::sim_rt;
use crate::disk::{Platter, Uniform};
use crate::engine::Engine;
use crate::factory::Gear;
use crate::member::Member;
use crate::panics;
use crate::report::{Failure, Options, Report, Story};
use crate::setup::Setup;
use crate::violation::{Broken, Violation};
use crate::world::World;
use state::Run;

/// Turns of the executor that a run may take.
const TURNS_MAX: u64 = 20_000_000;

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
    let outcome = panics::catch(|| run.whole());
    let (steps, hash) = (run.world.steps(), run.world.trace_hash());
    // Tasks hold what they use: drop them before what they use.
    let _ = panics::catch(|| run.rt.kill_all());
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
}
