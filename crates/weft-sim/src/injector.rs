//! Injects faults and commands while clients work, and ends a life in order.

mod commands;
mod held_commit;
mod reshape;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_array::{ArrayError, Event, MemberState, ScrubMode};
use weft_code::{SlotNo, SlotSet};
use weft_disk::Volume;
use weft_rt::{MILLISECOND, Nanos, Rng, Rt, SECOND};

use crate::disk::{Hangs, Platter, Uniform};
use crate::engine::Engine;
use crate::excuse::Lost;
use crate::factory::DiskFactory;
use crate::member::Member;
use crate::membership::{is_only_active, must_have_stopped, must_have_stopped_without};
use crate::report::Report;
use crate::setup::{Map, Setup};
use crate::slots::Slots;
use crate::violation::ViolationKind;
use crate::workload::{ClientHarness, Load};
use crate::world::{CutTrigger, World};

/// The most disks that a run adds to those that it began with.
const DISKS_MORE: usize = 3;

/// How often to check whether a member has become active, and how many times.
const PROMOTION_STEP: Nanos = 2 * MILLISECOND;
const PROMOTION_STEPS: u64 = 2000;

/// The virtual time that jobs have to finish after the last request.
const SETTLE_MAX: u64 = 4 * 3600 * SECOND;

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
    /// Disks that a running command is using; no other command may open them.
    pub claimed: RefCell<BTreeSet<usize>>,
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

    /// Changes the membership under heavy load, and cuts the power during the change.
    pub(crate) async fn crash_in_membership_change(&self, engine: &Engine) {
        let (begin, new_disk) = self.draw(|rng| (rng.below(5 * MILLISECOND), rng.chance(30)));
        self.rt.sleep(begin).await;
        let disks = self.disks.borrow().clone();
        let hangs = self.draw(|rng| Hangs::draw_membership_change(rng, disks.len() + 1));
        for (member, hangs) in disks.iter().zip(&hangs) {
            member.platter.set_hangs(hangs.clone());
        }
        *self.new_disk_hangs.borrow_mut() = hangs.last().cloned().unwrap_or_default();
        let steps_max = self.draw(|rng| *rng.pick(&[30, 150, 600]));
        if self.draw(|rng| rng.chance(30)) {
            let (one_in, rng) = self.draw(|rng| (*rng.pick(&[1, 4, 12]), rng.fork(0)));
            self.world.set_cut_trigger(Some(CutTrigger { one_in, steps_max, rng }));
        } else {
            // Cut the power once the engine has failed a member, possibly before that is on disk.
            let (events, world) = (engine.0.subscribe(), self.world.clone());
            let steps = self.draw(|rng| rng.below(steps_max));
            drop(self.rt.spawn(async move {
                while !matches!(events.next().await, Event::MemberFailed { .. }) {}
                world.cut_at(Some(world.steps() + 1 + steps));
            }));
        }
        let adding = async {
            if new_disk {
                self.add_disk(engine).await;
            }
        };
        let changing = async {
            self.rt.sleep(self.draw(|rng| rng.below(3 * MILLISECOND))).await;
            match self.draw(|rng| rng.below(8)) {
                0..=2 => self.lose_disk(engine),
                3..=5 => self.fail_member(engine).await,
                6 => self.fail_writes(engine),
                _ => self.replace(engine).await,
            }
        };
        futures_util::future::join(adding, changing).await;
    }

    /// Sets another rebuild policy.
    pub(crate) async fn change_policy(&self, engine: &Engine) {
        let policy = crate::policy::draw(&mut self.policy_rng.borrow_mut());
        self.world.note(format!(
            "rebuilds: {} {} {}, slices of {}, zones of {}",
            policy.order, policy.pace, policy.piggyback, policy.slice_stripes, policy.zone_stripes
        ));
        if let Err(error) = engine.0.set_rebuild_policy(policy).await {
            let text = format!("the engine refused a rebuild policy: {error}");
            self.harness.fail(ViolationKind::CommandFailed, text, None);
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

    /// A slot is lost, in addition to others, before the volume is consistent after the last crash.
    fn excuse_lost(&self, slot: SlotNo, engine: &Engine) {
        let incomplete = Slots::of(engine).incomplete();
        self.excuse(self.impaired(engine).difference(&incomplete).with(slot), incomplete);
    }

    /// Members lost during assembly count as lost with the crash. `before`: the slots before the
    /// crash. The disks that did not return are known already; others may have had no space for
    /// their metadata, or failed on their own.
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

    /// Slots are lost now, in addition to those that were incomplete.
    fn excuse(&self, now: SlotSet, incomplete: SlotSet) {
        let mut lost = Lost::now(now);
        lost.long_ago(incomplete);
        let oracle = &mut *self.harness.oracle.borrow_mut();
        let count = lost.excuse(oracle, &self.map, self.harness.exposure.rules());
        self.report.borrow_mut().excused += count;
    }

    fn lose_disk(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        let after = self.draw(|rng| if rng.chance(50) { rng.below(100) } else { 0 });
        self.world.note(format!("the disk of slot {slot} fails after {after} operations"));
        platter.faults(|f| f.gone_after_ops = Some(after));
    }

    /// A disk stops answering for a while, shorter or longer than the time limit. Sometimes a
    /// command fails it meanwhile.
    async fn hang(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        if platter.faults(|f| f.hangs_until > self.rt.now()) {
            // With an earlier end it would be unclear whether requests exceeded the limit.
            return;
        }
        let (hang, failed_after) = {
            let rng = &mut *self.hang_rng.borrow_mut();
            let hang = *rng.pick(&[5 * SECOND, 20 * SECOND, 60 * SECOND, 600 * SECOND]);
            (hang, rng.chance(40).then(|| rng.below(hang.min(20 * SECOND))))
        };
        self.world.note(format!(
            "slot {slot}: disk {} hangs for {} s",
            platter.number(),
            hang / SECOND
        ));
        platter.faults(|f| f.hangs_until = self.rt.now() + hang);
        let Some(after) = failed_after else { return };
        self.rt.sleep(after).await;
        if self.world.is_on() && Slots::of(engine).disks[slot.0] == Some(platter.number()) {
            self.fail(engine, slot, &platter).await;
        }
    }

    /// Fails a member while the engine writes the superblock that makes another member active, if
    /// one is being rebuilt.
    async fn fail_at_promotion(&self, engine: &Engine) {
        let before = Slots::of(engine).incomplete().len();
        if before == 0 {
            return;
        }
        self.disks.borrow().iter().for_each(|m| m.platter.set_hangs(Hangs::of_superblocks()));
        for _ in 0..PROMOTION_STEPS {
            self.rt.sleep(PROMOTION_STEP).await;
            if !self.world.is_on() || self.harness.array_stopped.get() {
                return;
            }
            if Slots::of(engine).incomplete().len() < before {
                self.world.note("a member has just become active");
                return self.fail_member(engine).await;
            }
        }
    }

    pub(crate) async fn fail_member(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        self.fail(engine, slot, &platter).await;
    }

    async fn fail(&self, engine: &Engine, slot: SlotNo, platter: &Platter) {
        self.world.note(format!("a command fails slot {slot}"));
        let is_well = platter.faults(|f| {
            f.fail_requested = true;
            let has_room = !(f.full && f.copies_on_write);
            let answers = !f.failed && !f.gone && f.gone_after_ops.is_none();
            answers && has_room && f.write_errors_percent == 0 && f.unwritable.is_none()
        });
        let too_early = || must_have_stopped_without(&self.disks.borrow(), platter);
        // The condition may end at the very moment when the engine gives up.
        let was_too_early = too_early();
        let result = engine.0.fail(slot).await;
        platter.faults(|f| f.fail_requested = false);
        let Err(error) = result else { return };
        // Whether the array has to stop must be asked while the other disks' faults last.
        let has_to_stop = self.harness.has_to_stop();
        self.world.note(format!("refused: {error}"));
        // A member that the others cannot do without must stay: no command may cost the array.
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

    /// Replaces a member by another disk, with one command.
    async fn replace(&self, engine: &Engine) {
        let Some((slot, _)) = self.victim(engine) else { return };
        let Some(spare) = self.claim_disk(engine) else { return };
        self.replace_by(engine, slot, &spare).await;
    }

    async fn replace_by(&self, engine: &Engine, slot: SlotNo, spare: &Platter) {
        self.world.note(format!("a command replaces slot {slot} by disk {}", spare.number()));
        let disk = self.factory.open(&self.world, spare);
        let taken = engine.0.replace(slot, disk).await;
        self.command_done(spare, taken.map(drop));
    }

    /// Allows the array to stop where the membership rules require it.
    pub(crate) fn install_stop_rule(&self) {
        let disks = self.disks.clone();
        let rule = move || must_have_stopped(&disks.borrow());
        *self.harness.stop_rule.borrow_mut() = Some(Box::new(rule));
    }

    fn fail_writes(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        let percent = self.draw(|rng| *rng.pick(&[10, 100]));
        self.world.note(format!("slot {slot} fails {percent} % of its writes"));
        platter.faults(|f| f.write_errors_percent = percent);
    }

    /// Adds a new disk or a former member.
    async fn add_disk(&self, engine: &Engine) {
        let Some(platter) = self.claim_disk(engine) else { return };
        self.add(engine, &platter).await;
    }

    /// Adds a disk as a spare; a former member that the array knows may return to its slot.
    async fn add(&self, engine: &Engine, platter: &Platter) {
        let disk = self.factory.open(&self.world, platter);
        if self.return_rng.borrow_mut().chance(70) {
            match engine.0.take_back(disk.clone()).await {
                Ok(Some(slot)) => {
                    self.world.note(format!("disk {} returns to slot {slot}", platter.number()));
                    return self.command_done(platter, Ok(()));
                }
                Ok(None) => {}
                Err(error) => return self.command_done(platter, Err(error)),
            }
        }
        self.world.note(format!("disk {} is added as a spare", platter.number()));
        let taken = engine.0.add_spare(disk).await;
        self.command_done(platter, taken);
    }

    /// A command gives the array a disk of which some operations hang, so that what the array does
    /// meanwhile may end before the command.
    async fn give_slow_disk(&self, engine: &Engine, rng: &mut Rng) {
        let replaced = rng.chance(50).then(|| self.victim(engine)).flatten();
        let Some(platter) = self.claim_disk(engine) else { return };
        platter.set_hangs(Hangs::of_one_in(*rng.pick(&[4, 12])));
        match replaced {
            Some((slot, _)) => self.replace_by(engine, slot, &platter).await,
            None => self.add(engine, &platter).await,
        }
    }

    /// The command that was using the disk has ended.
    fn command_done(&self, platter: &Platter, taken: Result<(), ArrayError>) {
        self.claimed.borrow_mut().remove(&platter.number());
        match taken {
            Ok(()) => platter.faults(|f| {
                f.failed = false;
                f.failed_writes.clear();
            }),
            Err(error) => self.world.note(format!("refused: {error}")),
        }
    }

    /// A disk that is not a member, reserved until [`FaultInjector::command_done`].
    fn claim_disk(&self, engine: &Engine) -> Option<Platter> {
        let platter = self.free_disk(engine)?;
        self.claimed.borrow_mut().insert(platter.number());
        Some(platter)
    }

    fn free_disk(&self, engine: &Engine) -> Option<Platter> {
        let slots = Slots::of(engine);
        let in_use = engine.0.status().disks();
        let used = |n: usize| {
            let claimed = self.claimed.borrow().contains(&n);
            claimed || slots.disks.contains(&Some(n)) || in_use.contains(&format!("sim{n}"))
        };
        // A disk with requests in progress stays reserved: they may still be carried out. One that has
        // lost contents unnoticed must not come back.
        let free = |n: &usize| {
            let platter = &self.disks.borrow()[*n].platter;
            !used(*n) && !platter.is_busy() && !platter.faults(|f| f.shrunk)
        };
        let old = self.disks.borrow().iter().map(|m| m.platter.number()).find(free);
        match old {
            Some(number) if self.draw(|rng| rng.chance(50)) => {
                let mut disks = self.disks.borrow_mut();
                disks[number].comes_back();
                Some(disks[number].platter.clone())
            }
            _ if self.disks.borrow().len() < self.setup.disks.len() + DISKS_MORE => {
                let mut disks = self.disks.borrow_mut();
                let number = disks.len();
                let model = self.setup.disks.iter().max_by_key(|disk| disk.size_bytes);
                let model = model.expect("an array has disks");
                let sector = self.setup.disks[0].sector_bytes.min(model.sector_bytes);
                let rng = self.world.rng(100 + number as u64);
                let platter = Platter::new(number, model.size_bytes, sector, rng);
                platter.set_hangs(self.new_disk_hangs.borrow().clone());
                disks.push(Member { platter: platter.clone(), absent: false });
                Some(platter)
            }
            _ => None,
        }
    }

    fn damage_sectors(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        let sectors = platter.size_bytes() / u64::from(platter.sector_bytes());
        let count = self.draw(|rng| rng.within(1, 8));
        self.world.note(format!("{count} ranges of slot {slot} become unreadable"));
        for _ in 0..count {
            let (start, len) = self.draw(|rng| (rng.below(sectors), rng.within(1, 4)));
            platter.faults(|f| f.unreadable.extend(start..(start + len).min(sectors)));
        }
    }

    pub(crate) async fn scrub(&self, engine: &Engine, mode: ScrubMode) {
        self.world.note(format!("scrub {mode:?}"));
        match engine.0.scrub(mode).await {
            Ok(report) if report.mismatches > 0 => {
                // Until the resync, a scrub also finds the mismatches that the last crash left.
                if engine.0.status().regions.resync == 0 && !self.resync_meanwhile(&report) {
                    let text = format!("a scrub found mismatches: {report:?}");
                    self.harness.fail(ViolationKind::Scrub, text, None);
                }
            }
            Ok(report) => self.world.note(format!("scrub: {} stripes", report.stripes)),
            Err(error) => self.world.note(format!("scrub refused: {error}")),
        }
    }

    /// Whether the mismatches may date from before a resync that ended during the scrub.
    fn resync_meanwhile(&self, _: &weft_array::ScrubReport) -> bool {
        !self.harness.oracle.borrow().cuts().is_empty()
    }

    async fn throttle(&self, engine: &Engine) {
        let (low, high, pause) = self.draw(|rng| {
            let low = *rng.pick(&[0, 100_000, 10_000_000]);
            let high = *rng.pick(&[None, Some(200_000), Some(20_000_000)]);
            (low, high.map(|high| high.max(low)), rng.chance(30))
        });
        let target = (low == 100_000).then_some(MILLISECOND);
        self.world.note(format!("throttle {low} {high:?}, target {target:?}, pause {pause}"));
        engine.0.set_throttle(low, high);
        engine.0.set_latency_target(target);
        if pause {
            engine.0.set_paused(true);
            self.rt.sleep(self.draw(|rng| rng.below(SECOND))).await;
            engine.0.set_paused(false);
        }
    }

    fn slow_disk(&self) {
        let disks = self.disks.borrow();
        let number = self.draw(|rng| rng.index(disks.len()));
        let factor = self.draw(|rng| *rng.pick(&[1, 10, 100]));
        self.world.note(format!("disk {number} becomes {factor} times slower"));
        disks[number].platter.set_latency(Box::new(Uniform { factor, ..Uniform::default() }));
    }

    /// The file system under one disk is full until space is freed or a command fails the member.
    /// Writes wait meanwhile.
    async fn fill_file_system(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        self.world.note(format!("the file system under slot {slot} is full"));
        // One run in five is on copy-on-write file systems.
        let copies_on_write = self.world.rng(5000).chance(20);
        platter.faults(|f| (f.full, f.copies_on_write) = (true, copies_on_write));
        self.free_space_later();
        let fails = self.space_rng.borrow_mut().chance(30);
        self.rt.sleep(self.draw(|rng| rng.below(200 * MILLISECOND))).await;
        if fails {
            self.fail(engine, slot, &platter).await;
        }
    }

    /// Frees space on full file systems after a while.
    pub(crate) fn free_space_later(&self) {
        for member in self.disks.borrow().iter().filter(|m| m.platter.faults(|f| f.full)) {
            let (rt, world, platter) =
                (self.rt.clone(), self.world.clone(), member.platter.clone());
            let pause = {
                let rng = &mut *self.space_rng.borrow_mut();
                let most = *rng.pick(&[200 * MILLISECOND, 5 * SECOND, 60 * SECOND]);
                rng.below(most)
            };
            drop(self.rt.spawn(async move {
                rt.sleep(pause).await;
                platter.faults(|f| f.full = false);
                world.note(format!(
                    "the file system under disk {} has space again",
                    platter.number()
                ));
            }));
        }
    }

    /// Ends a life in order. In the last life, lets everything settle and checks it first. Before
    /// other stops a command sometimes begins to give the array a disk.
    pub(crate) async fn finish(&self, engine: &Engine, last: bool) {
        if last {
            self.settle(engine).await;
        }
        let mut rng = self.world.rng(13_000 + self.report.borrow().lives);
        if last || self.crashes_only || rng.chance(50) {
            return self.stop(engine).await;
        }
        let most = *rng.pick(&[10 * MILLISECOND, 100 * MILLISECOND, SECOND]);
        let head_start = rng.below(most);
        let stop = async {
            self.rt.sleep(head_start).await;
            self.stop(engine).await;
        };
        futures_util::future::join(self.give_slow_disk(engine, &mut rng), stop).await;
    }

    async fn stop(&self, engine: &Engine) {
        if self.harness.array_stopped.get() {
            // The operator ends the program and assembles the array again.
            return self.world.cut();
        }
        let flushing = self.harness.oracle.borrow_mut().begin_flush();
        let wants_room = || {
            let is_full = |m: &Member| m.platter.faults(|f| f.full);
            self.disks.borrow().iter().any(is_full)
                || engine.0.status().slots.iter().any(|slot| slot.wants_room_bytes > 0)
        };
        let wanted_room = wants_room();
        match engine.0.stop().await {
            Ok(()) if self.world.is_on() => {
                self.harness.end_abandoned();
                self.harness.oracle.borrow_mut().end_flush(flushing);
                self.stays_stopped(engine).await;
            }
            Ok(()) => {}
            Err(_) if self.harness.has_to_stop() => self.world.cut(),
            // Writes were still waiting for space: for the next life that is a crash.
            Err(ArrayError::Unclean { .. }) if wanted_room || wants_room() => self.world.cut(),
            Err(error) => {
                let text = format!("a clean stop failed: {error}");
                self.harness.fail(ViolationKind::CommandFailed, text, None);
            }
        }
    }

    /// The array was stopped, and the program goes on: it writes nothing to members any more, since
    /// they may be assembled again at once.
    async fn stays_stopped(&self, engine: &Engine) {
        let members = Slots::of(engine).disks;
        let writes = || {
            let disks = self.disks.borrow();
            let is_member = |m: &&Member| members.contains(&Some(m.platter.number()));
            disks.iter().filter(is_member).map(|m| m.platter.writes()).sum::<u64>()
        };
        let before = writes();
        self.rt.sleep(self.world.rng(5001).below(SECOND)).await;
        if self.world.is_on() && writes() != before {
            let text = "a stopped array wrote to its members";
            self.harness.fail(ViolationKind::CommandFailed, text, None);
        }
    }

    async fn settle(&self, engine: &Engine) {
        self.world.note("the clients are done: everything must settle");
        for member in self.disks.borrow().iter() {
            member.platter.faults(|f| {
                f.unreadable.clear();
                f.write_errors_percent = 0;
                f.unwritable = None;
                f.gone_after_ops = None;
                f.full = false;
            });
            member.platter.set_latency(Box::new(Uniform { spike_every: 0, ..Uniform::default() }));
            member.platter.set_hangs(Hangs::default());
        }
        engine.0.set_throttle(0, None);
        engine.0.set_latency_target(None);
        engine.0.set_paused(false);
        // A write lets the engine notice members that are gone but were not used since.
        self.harness.flush(&engine.0, 93).await;
        if self.harness.array_stopped.get() {
            return;
        }
        let settled = wait_for(&self.rt, || {
            let status = engine.0.status();
            let waits = !status.spares.is_empty()
                && status.slots.iter().any(|s| s.state == MemberState::Missing);
            status.jobs.is_empty()
                && !engine.0.is_reshaping()
                && status.regions.resync == 0
                && !waits
                && status.slots.iter().all(|s| s.state != MemberState::Rebuilding)
        });
        if !settled.await {
            let text = format!("the jobs did not end: {:?}", engine.0.status());
            self.harness.fail(ViolationKind::NeverSettles, text, None);
            return;
        }
        // By now abandoned requests have been carried out.
        self.rt.sleep(600 * SECOND).await;
        self.harness.end_abandoned();
        self.harness.consistent_again();
        self.world.note(format!("settled: {}", summary(engine)));
        if self.take_tail(engine).await {
            let volume: Rc<dyn Volume> = Rc::new(engine.0.clone());
            let load =
                Load { requests: self.setup.load.requests.min(40), ..self.setup.load.clone() };
            let tasks = self.harness.start(&volume, &load, &self.world.rng(19_000));
            futures_util::future::join_all(tasks).await;
            self.rt.sleep(600 * SECOND).await;
            self.harness.end_abandoned();
            self.harness.consistent_again();
        }
        self.harness.read_all(&engine.0, 94).await;
        match engine.0.scrub(ScrubMode::Check).await {
            Ok(report) if report.mismatches == 0 && report.unreadable == 0 => {}
            Ok(report) => {
                let text = format!("the last scrub is not clean: {report:?}");
                self.harness.fail(ViolationKind::Scrub, text, None);
            }
            Err(error) => {
                let text = format!("the last scrub failed: {error}");
                self.harness.fail(ViolationKind::CommandFailed, text, None);
            }
        }
        self.harness.read_all(&engine.0, 94).await;
    }
}

/// Waits until `done`, at most [`SETTLE_MAX`]. Returns whether it happened.
async fn wait_for(rt: &Rt, mut done: impl FnMut() -> bool) -> bool {
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
