//! Injects faults and commands while clients work, and ends a life in order.

mod commands;
mod disks;
mod end;
mod growth;
mod held_commit;
mod members;
mod reshape;
mod strange_disks;
mod turned_reshape;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_array::{ArrayError, ScrubMode};
use weft_code::{SlotNo, SlotSet};
use weft_disk::Volume;
use weft_rt::{MILLISECOND, Rng, Rt, SECOND};

use crate::disk::{Hangs, Platter};
use crate::engine::Engine;
use crate::excuse::Lost;
use crate::factory::DiskFactory;
use crate::foreign::Foreign;
use crate::member::Member;
use crate::membership::{is_only_active, must_have_stopped, must_have_stopped_without};
use crate::report::Report;
use crate::setup::{Map, Setup};
use crate::slots::Slots;
use crate::violation::ViolationKind;
use crate::workload::ClientHarness;
use crate::world::World;

/// Injects faults and commands into one life.
pub(crate) struct FaultInjector {
    pub rt: Rt,
    pub world: World,
    pub harness: Rc<ClientHarness>,
    pub map: Rc<Map>,
    pub setup: Setup,
    pub disks: Rc<RefCell<Vec<Member>>>,
    pub report: Rc<RefCell<Report>>,
    pub rng: RefCell<Rng>,
    /// Draws how long file systems stay full.
    pub space_rng: RefCell<Rng>,
    /// Draws rebuild policies.
    pub policy_rng: RefCell<Rng>,
    /// Draws hanging disks.
    pub hang_rng: RefCell<Rng>,
    /// Draws whether to fail a member while another becomes active.
    pub promotion_rng: RefCell<Rng>,
    /// Draws whether to take a former member back.
    pub return_rng: RefCell<Rng>,
    /// Draws whether a disk comes back from another use.
    pub foreign_rng: RefCell<Rng>,
    pub foreign: Foreign,
    /// Disks that a running command is using; no other command may open them.
    pub claimed: RefCell<BTreeSet<usize>>,
    /// What the clients of this life use: the array, or a cache above it.
    pub volume: RefCell<Option<Rc<dyn Volume>>>,
    pub crashes_only: bool,
    pub factory: DiskFactory,
    pub new_disk_hangs: Rc<RefCell<Hangs>>,
}

/// The state of an array in one line.
pub(crate) fn summary(engine: &Engine) -> String {
    let status = engine.0.status();
    let slots: Vec<_> =
        status.slots.iter().map(|s| format!("{}:{}({})", s.slot, s.disk, s.state)).collect();
    format!(
        "{:?}, slots {}, spares {:?}, regions {:?}, jobs {}",
        status.state,
        slots.join(" "),
        status.spares,
        status.regions,
        status.jobs.len()
    )
}

impl FaultInjector {
    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    /// Injects a random number of faults and commands, with pauses between them.
    pub(crate) async fn inject_faults(&self, engine: &Engine) {
        if self.crashes_only {
            return;
        }
        let mut commands = self.world.rng(20_000 + self.report.borrow().lives);
        let mut strange = self.world.rng(24_000 + self.report.borrow().lives);
        self.use_limits(engine, &mut strange).await;
        for _ in 0..self.draw(|rng| *rng.pick(&[0, 1, 3, 6])) {
            let pause = self.draw(|rng| {
                let most = *rng.pick(&[MILLISECOND, 100 * MILLISECOND, 12 * SECOND]);
                rng.below(most)
            });
            self.rt.sleep(pause).await;
            if !self.world.is_on() {
                return;
            }
            self.inject_one(engine).await;
            if commands.chance(30) {
                self.give_command(engine, &mut commands).await;
            }
            if strange.chance(6) {
                self.write_protect(engine, &mut strange).await;
            }
            if self.hang_rng.borrow_mut().chance(8) {
                self.hang(engine).await;
            }
            if self.promotion_rng.borrow_mut().chance(15) {
                self.fail_at_promotion(engine).await;
            }
            if self.policy_rng.borrow_mut().chance(40) {
                self.change_policy(engine).await;
            }
        }
    }

    async fn inject_one(&self, engine: &Engine) {
        if engine.0.status().regions.resync == 0 {
            self.harness.consistent_again();
        }
        match self.draw(|rng| rng.below(20)) {
            0..=2 => self.lose_disk(engine),
            3..=5 => self.fail_member(engine).await,
            6..=8 => self.add_disk(engine).await,
            9 | 10 => self.damage_sectors(engine),
            11 | 12 => self.scrub(engine, ScrubMode::Check).await,
            13 => self.throttle(engine).await,
            14 => self.slow_disk(),
            15 => self.fill_file_system(engine).await,
            16 => self.fail_writes(engine),
            17 | 18 => self.replace(engine).await,
            _ => self.harness.read_all(&engine.0, 92).await,
        }
    }

    /// Slots that are incomplete, or whose disks have faults, including faults that the engine has
    /// not noticed yet.
    fn impaired(&self, engine: &Engine) -> SlotSet {
        let slots = Slots::of(engine);
        let disks = self.disks.borrow();
        let troubled = |n: usize| {
            disks[n].platter.faults(|f| {
                f.gone
                    || f.shrunk
                    || f.full
                    || f.hangs_until > self.rt.now()
                    || f.gone_after_ops.is_some()
                    || f.write_errors_percent > 0
                    || f.unwritable.is_some()
                    || f.write_protected
                    || f.has_refused
                    || !f.unreadable.is_empty()
            })
        };
        // The engine retries deferred writes only now and then.
        let status = engine.0.status();
        let waiting = status.slots.iter().filter(|slot| slot.wants_room_bytes > 0);
        let waiting = waiting.map(|slot| slot.slot).collect();
        slots.incomplete().union(&slots.holding(troubled)).union(&waiting)
    }

    /// Draws a slot for a fault, with its disk. Returns `None` if the code would not tolerate its
    /// loss.
    fn victim(&self, engine: &Engine) -> Option<(SlotNo, Platter)> {
        let slots = Slots::of(engine);
        let slot = SlotNo(self.draw(|rng| rng.index(slots.disks.len())));
        let number = slots.disks[slot.0]?;
        if !self.map.survives(self.impaired(engine).with(slot)) {
            // Make bad sectors readable, so that the next attempt may succeed. Requests in progress
            // may have met them already.
            for member in self.disks.borrow().iter() {
                member.platter.faults(|f| f.unreadable.clear());
            }
            return None;
        }
        self.excuse_lost(slot, engine);
        Some((slot, self.disks.borrow()[number].platter.clone()))
    }

    /// A further slot is lost before the volume is consistent after the last crash.
    fn excuse_lost(&self, slot: SlotNo, engine: &Engine) {
        let incomplete = Slots::of(engine).incomplete();
        self.excuse(self.impaired(engine).difference(&incomplete).with(slot), incomplete);
    }

    /// Members lost during assembly count as lost with the crash. `before`: the slots before the
    /// crash. The disks that did not return are known already; other members may have had no space
    /// for their metadata, or failed on their own.
    pub(crate) fn excuse_lost_in_assembly(&self, engine: &Engine, before: Option<&Slots>) {
        let Some(before) = before else { return };
        let slots = Slots::of(engine);
        // The replacement of a lost member may have taken its slot.
        let lost = slots.incomplete().difference(&before.incomplete());
        if !lost.is_empty() {
            self.excuse(lost, slots.incomplete());
        }
    }

    /// Notes how the array is kept consistent from now on.
    pub(crate) fn note_consistency(&self, engine: &Engine) {
        let policy = engine.0.status().consistency;
        let resyncs = !self.harness.oracle.borrow().cuts().is_empty();
        if self.harness.exposure.begin(policy, resyncs) {
            self.world.note(format!("kept consistent by {policy}"));
            self.report.borrow_mut().policies += 1;
        }
    }

    /// Slots are lost now, in addition to the incomplete ones.
    fn excuse(&self, now: SlotSet, incomplete: SlotSet) {
        let mut lost = Lost::now(now);
        lost.long_ago(incomplete);
        let oracle = &mut *self.harness.oracle.borrow_mut();
        let count = lost.excuse(oracle, &self.map, self.harness.exposure.rules());
        self.report.borrow_mut().excused += count;
    }

    async fn fail(&self, engine: &Engine, slot: SlotNo, platter: &Platter) {
        self.world.note(format!("a command fails slot {slot}"));
        let is_well = platter.faults(|f| {
            f.fail_requested = true;
            let has_room = !(f.full && f.copies_on_write);
            let answers = !f.failed && !f.gone && f.gone_after_ops.is_none();
            answers
                && has_room
                && f.write_errors_percent == 0
                && f.unwritable.is_none()
                && !f.write_protected
        });
        let too_early = || must_have_stopped_without(&self.disks.borrow(), platter);
        // The condition may end at the very moment when the engine refuses.
        let was_too_early = too_early();
        let result = engine.0.fail(slot).await;
        platter.faults(|f| f.fail_requested = false);
        let Err(error) = result else { return };
        // Whether the array has to stop must be asked while the other disks' faults last.
        let has_to_stop = self.harness.has_to_stop();
        self.world.note(format!("refused: {error}"));
        // A member that the array cannot do without must stay: no command may cost the array.
        let is_broken = matches!(error.root(), ArrayError::Broken { .. });
        if is_broken && is_well && is_only_active(&self.disks.borrow(), platter) {
            let text = format!("failing slot {slot} cost the array: {error}");
            return self.harness.fail(ViolationKind::CommandFailed, text, None);
        }
        let is_too_early = !is_broken && (was_too_early || too_early());
        if !is_too_early
            && self.map.survives(self.impaired(engine).with(slot))
            && Slots::of(engine).disks.get(slot.0).is_some_and(Option::is_some)
            && !has_to_stop
        {
            let text = format!("the engine refused to fail slot {slot}: {error}");
            self.harness.fail(ViolationKind::CommandFailed, text, None);
        }
    }

    /// Allows the array to stop where the membership rules require it.
    pub(crate) fn install_stop_rule(&self) {
        let disks = self.disks.clone();
        let rule = move || must_have_stopped(&disks.borrow());
        *self.harness.stop_rule.borrow_mut() = Some(Box::new(rule));
    }
}
