//! One life: from assembly to a crash or a clean stop.

use std::cell::RefCell;
use std::rc::Rc;

use weft_array::Consistency;
use weft_array::reshape::ReshapePlan;
use weft_code::CodeSpec;
use weft_rt::{Nanos, SECOND};

use super::state::Run;
use crate::cached;
use crate::disk::Hangs;
use crate::engine::Engine;
use crate::excuse::watch_losses;
use crate::injector::{FaultInjector, summary};
use crate::membership::superblock_of;
use crate::oracle::Oracle;
use crate::setup::Map;
use crate::violation::Violation;
use crate::workload::{ClientHarness, Discards, Load};

/// Clients, faults and commands of a life end within this time, and so does the stop.
const LIFE_MAX: Nanos = 48 * 3600 * SECOND;

impl Run {
    /// From assembly to a crash or a clean stop.
    pub(super) fn life(&mut self, number: u64, last: bool) -> Result<(), Violation> {
        self.report.borrow_mut().lives += 1;
        self.harness_of_run();
        if self.last_slots.is_some() {
            self.lose_and_return();
        }
        let crash = !last && self.rng.chance(85) || (number == 1 && self.options.cut_at.is_some());
        let may_crash_in_change =
            crash && !self.options.crashes_only && self.options.cut_at.is_none();
        let held_commit = self.world.rng(18_000 + self.report.borrow().lives).chance(30);
        let held_commit = self.options.held_commit.unwrap_or(held_commit);
        let always = self.options.held_commit == Some(true);
        self.membership_crash = may_crash_in_change && (self.rng.chance(40) || always);
        self.held_commit = self.membership_crash && held_commit;
        let has_log = self.setup.policy == Consistency::Ppl;
        let mut turned = self.world.rng(25_000 + self.report.borrow().lives);
        let turned = turned.chance(if has_log { 75 } else { 50 });
        let turns = self.setup.reshape.is_some_and(|reshape| reshape.turns);
        self.turned_crash = may_crash_in_change && turns && turned;
        if self.turned_crash {
            (self.membership_crash, self.held_commit) = (false, false);
        }
        if crash {
            let steps = match self.options.cut_at {
                Some(step) if number == 1 => step,
                _ if self.held_commit || self.turned_crash => 200_000,
                _ if self.membership_crash => self.rng.within(1000, 6000),
                _ => match self.rng.below(4) {
                    0 => self.rng.within(1, 300),
                    _ => self.rng.within(100, 6000),
                },
            };
            self.world.cut_at(Some(self.world.steps() + steps));
        }
        self.draw_hangs(crash && self.options.cut_at.is_none());
        let body = self.body(last);
        self.perhaps_take_image();
        let start = self.world.steps();
        let done = self.drive(body);
        if number == 1 {
            self.report.borrow_mut().steps_first = self.world.steps() - start;
        }
        self.world.cut_at(None);
        self.world.set_cut_trigger(None);
        self.remember_slots();
        // A life in which the array had to stop ends without a clean stop, too.
        self.stopped = false;
        if done?.is_none() || !self.world.is_on() {
            self.crash();
        } else {
            self.end_program();
            self.stopped = true;
        }
        self.world.restore();
        Ok(())
    }

    /// Draws which operations hang in this life. A crash in a membership change draws its own hangs
    /// later.
    fn draw_hangs(&mut self, crash: bool) {
        let mut rng = self.world.rng(7000 + self.report.borrow().lives);
        let disks = self.disks.borrow();
        let mut hangs = Hangs::draw(&mut rng, disks.len() + 1, crash);
        if self.options.crashes_only || self.membership_crash {
            hangs.fill(Hangs::default());
        }
        for (member, hangs) in disks.iter().zip(&hangs) {
            member.platter.set_hangs(hangs.clone());
        }
        *self.new_disk_hangs.borrow_mut() = hangs.last().cloned().unwrap_or_default();
    }

    /// One life, as a future.
    fn body(&mut self, last: bool) -> impl Future<Output = ()> + 'static {
        let (rt, world) = (self.rt.clone(), self.world.clone());
        let harness = self.harness_of_run();
        harness.quiesce.set(false);
        harness.errors_allowed.set(false);
        let injector = FaultInjector {
            rt: rt.clone(),
            world: world.clone(),
            harness: harness.clone(),
            map: self.map.clone().expect("just made"),
            setup: self.setup.clone(),
            disks: self.disks.clone(),
            report: self.report.clone(),
            rng: RefCell::new(self.rng.fork(1000 + self.report.borrow().lives)),
            space_rng: RefCell::new(self.world.rng(6000 + self.report.borrow().lives)),
            policy_rng: RefCell::new(self.world.rng(3000 + self.report.borrow().lives)),
            hang_rng: RefCell::new(self.world.rng(6000 + self.report.borrow().lives)),
            promotion_rng: RefCell::new(self.world.rng(11_000 + self.report.borrow().lives)),
            return_rng: RefCell::new(self.world.rng(8000 + self.report.borrow().lives)),
            foreign_rng: RefCell::new(self.world.rng(28_000 + self.report.borrow().lives)),
            foreign: self.foreign.clone(),
            claimed: RefCell::default(),
            volume: RefCell::default(),
            crashes_only: self.options.crashes_only,
            factory: self.factory.clone(),
            new_disk_hangs: self.new_disk_hangs.clone(),
        };
        let clients = self.world.rng(50 + self.report.borrow().lives);
        let cache_rng = self.world.rng(13_000 + self.report.borrow().lives);
        let (holder, membership_crash) = (self.engine.clone(), self.membership_crash);
        let (held_commit, turned_crash) = (self.held_commit, self.turned_crash);
        let durable = clients.clone().chance(60);
        let load = match membership_crash {
            true => self.setup.load.heavy(durable),
            false => self.setup.load.clone(),
        };
        let load = self.perhaps_quiet(load);
        let lost_at = self.lost_at.clone();
        let opening = self.assemble_all(self.draw_consistency());
        let check_first = self.rng.chance(50);
        let check_twice = self.rng.chance(30);
        let stop_early = !last && !self.options.crashes_only && self.rng.chance(20);
        let before = self.last_slots.clone();
        let loses_at_once = self.assembly_interrupted
            && !self.options.crashes_only
            && self.world.rng(12_000 + self.report.borrow().lives).chance(50);
        async move {
            injector.install_stop_rule();
            let engine = match opening.await {
                Ok(engine) => engine,
                // An operator would assemble it again, and the next life does.
                Err(_) if harness.has_to_stop() => return world.cut(),
                Err(violation) => return harness.record(violation),
            };
            world.note(format!("assembled: {}", summary(&engine)));
            injector.excuse_lost_in_assembly(&engine, before.as_ref());
            injector.note_consistency(&engine);
            watch_losses(&engine, &harness, &injector.map, &lost_at);
            injector.free_space_later();
            *holder.borrow_mut() = Some(engine.clone());
            if loses_at_once {
                // Two recoveries from one crash must have produced the same contents even before a
                // resync.
                injector.fail_member(&engine).await;
            }
            if !injector.crashes_only {
                injector.change_policy(&engine).await;
            }
            let volume = cached::perhaps(world.rt(), cache_rng, Rc::new(engine.0.clone()));
            *injector.volume.borrow_mut() = Some(volume.clone());
            injector.take_tail(&engine).await;
            if check_first {
                harness.read_all(&*volume, 90).await;
            }
            let tasks = harness.start(&volume, &load, &clients);
            if turned_crash {
                futures_util::future::join_all(tasks).await;
                return injector.crash_after_turn(&engine, &volume).await;
            }
            if held_commit {
                futures_util::future::join_all(tasks).await;
                injector.crash_in_held_commit(&engine, &volume, &load).await;
                return injector.finish(&engine, false).await;
            }
            let inject_faults = async {
                if membership_crash {
                    injector.crash_in_membership_change(&engine).await;
                }
                let faults = injector.inject_faults(&engine);
                let (reshape, growth) =
                    (injector.reshape_later(&engine), injector.grow_later(&engine));
                futures_util::future::join3(faults, reshape, growth).await;
                if stop_early {
                    // Stop under load: requests that come too late must get an error.
                    harness.errors_allowed.set(true);
                    harness.quiesce.set(true);
                    injector.finish(&engine, false).await;
                }
            };
            let clients = futures_util::future::join_all(tasks);
            let load_and_faults = futures_util::future::join(clients, inject_faults);
            harness.ends("a command", LIFE_MAX, load_and_faults).await;
            if stop_early {
                return;
            }
            if check_twice {
                harness.read_all(&*volume, 91).await;
            }
            harness.ends("a stop", LIFE_MAX, injector.finish(&engine, last)).await;
        }
    }

    /// Sometimes gives the load a phase of whole stripes, in which the log has nothing to do: what
    /// it holds stays there, however old.
    fn perhaps_quiet(&self, load: Load) -> Load {
        let mut rng = self.world.rng(21_000 + self.report.borrow().lives);
        if !rng.chance(if self.setup.reshape.is_some() { 40 } else { 15 }) {
            return load;
        }
        let after = self.setup.reshape.map(|reshape| reshape.after(&self.setup));
        let other = after.map_or(load.other_stripe_cells, |after| after.stripe_cells());
        let whole_after = rng.below(load.requests.max(1));
        Load { whole_after, other_stripe_cells: other.max(1), ..load }
    }

    /// Sometimes draws the policy by which the array is kept consistent from this life on.
    fn draw_consistency(&self) -> Option<Consistency> {
        let lives = self.report.borrow().lives;
        let mut rng = self.world.rng(16_000 + lives);
        let is_given = self.options.canary.is_some() || self.options.filter.policy.is_some();
        let changes = !is_given && self.world.rng(16_000).chance(40) && rng.chance(60);
        let policies = [Consistency::None, Consistency::Bitmap, Consistency::Ppl];
        let most = match self.setup.code {
            CodeSpec::Raid0 => 1,
            code if code.is_mirror() => 2,
            _ => 3,
        };
        changes.then(|| *rng.pick(&policies[..most]))
    }

    /// The clients' harness. The first call makes it, once the array's size is known.
    fn harness_of_run(&mut self) -> Rc<ClientHarness> {
        if let Some(harness) = &self.harness {
            return harness.clone();
        }
        let size = self.size_of_array();
        self.map = Some(Rc::new(Map::new(&self.setup, size)));
        let area = self.disks.borrow().first().and_then(|m| superblock_of(&m.platter));
        self.factory.canary = self.options.canary.zip(area.map(|superblock| superblock.area));
        let oracle = Oracle::new(self.world.seed(), size, self.setup.cell_bytes);
        let harness = ClientHarness::new(&self.world, oracle);
        harness.exposure.begin(self.setup.policy, false);
        harness.abandon_percent.set(self.setup.load.abandon_percent);
        let k = self.setup.code.shape(self.setup.slots).map_or(1, |shape| shape.k as u64);
        // Which stripes are whole changes in a reshape.
        harness.discards.set(match self.setup.reshape {
            Some(_) => Discards::ZerosOrNothing,
            None => Discards::Stripes(k * u64::from(self.setup.unit_bytes)),
        });
        self.harness = Some(harness.clone());
        harness
    }

    /// Assembles copies of the disks to learn the size that the array has throughout the run.
    fn size_of_array(&self) -> u64 {
        let copies = self.open_copies(|_| false);
        let rt = self.rt.clone();
        let asked = self.setup.reshape.map(|reshape| reshape.options(&self.setup, 0));
        let size = self.rt.block_on(async move {
            let Engine(array) = Engine::assemble(&rt, copies, true, false, None, 1).await?;
            let plan = asked.and_then(|asked| array.plan_reshape(&asked).ok());
            let size = |plan: ReshapePlan| plan.new_size_bytes.min(plan.size_bytes);
            Ok::<_, String>(plan.map_or_else(|| array.size_bytes(), size))
        });
        self.rt.kill_all();
        size.unwrap_or_else(|error| panic!("a new array cannot be assembled: {error}"))
    }
}
