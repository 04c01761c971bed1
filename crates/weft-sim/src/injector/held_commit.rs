//! A change of the members that is not durable yet, a second one in its wake, and a power cut
//! before either is.
//!
//! What the engine does between a change and the superblock that makes it durable must be right
//! with the change and without it. So everything is quiet first, until the region map on the disks
//! calls every region clean; then superblock writes are held back, and only they; members,
//! replacements and former members change twice, a few clients write, and the power is cut.

use std::rc::Rc;

use weft_code::SlotNo;
use weft_disk::Volume;
use weft_rt::{MILLISECOND, Nanos, Rng, SECOND};

use super::FaultInjector;
use crate::disk::{Hangs, Platter};
use crate::engine::Engine;
use crate::slots::Slots;
use crate::workload::Load;

/// By then idle regions are clean on the disks.
const QUIET: Nanos = 20 * SECOND;

/// The power is cut this long after the first change, at most; held superblocks take longer.
const CUT_MAX: Nanos = 90 * MILLISECOND;

/// The first of the two changes.
enum FirstChange {
    /// The replacement of this slot's member fails.
    ReplacementFails(SlotNo, Platter),
    /// A spare takes the slot of a former member.
    SpareTakesSlot,
    /// The former member of this slot is forgotten.
    Forget(SlotNo),
    /// The former member of this slot returns.
    Return(Platter),
}

impl FaultInjector {
    /// Changes the members twice while superblocks are held back, and cuts the power.
    pub(crate) async fn crash_in_held_commit(
        &self,
        engine: &Engine,
        volume: &Rc<dyn Volume>,
        load: &Load,
    ) {
        let mut rng = self.world.rng(18_000 + self.report.borrow().lives);
        engine.0.set_paused(true);
        let load = Load { requests: rng.within(1, 4), pause_ns_max: MILLISECOND, ..load.clone() };
        let Some(first) = self.prepare_first(engine, volume, &load, &mut rng).await else {
            engine.0.set_paused(false);
            return;
        };
        self.harness.flush(&**volume, 90).await;
        self.rt.sleep(QUIET).await;
        let all = rng.chance(70);
        for member in self.disks.borrow().iter() {
            member.platter.set_hangs(Hangs::of_held_superblocks(all || rng.chance(50)));
        }
        self.world.note("superblocks are held back");
        self.report.borrow_mut().held += 1;
        self.world.cut_after(rng.within(MILLISECOND, CUT_MAX));
        let (pause, second) = (rng.below(3 * MILLISECOND), rng.chance(80));
        let by_command = rng.chance(50);
        let clients = rng.fork(1);
        let change = async { self.change_first(engine, first, &mut rng).await };
        let another = async {
            self.rt.sleep(pause).await;
            match second {
                true if by_command => self.fail_member(engine).await,
                true => self.lose_disk(engine),
                false => {}
            }
        };
        let writing = async {
            self.rt.sleep(2 * pause).await;
            let tasks = self.harness.start(volume, &load, &clients);
            futures_util::future::join_all(tasks).await;
        };
        futures_util::future::join3(change, another, writing).await;
    }

    /// Brings the array into the state in which the first change is possible.
    async fn prepare_first(
        &self,
        engine: &Engine,
        volume: &Rc<dyn Volume>,
        load: &Load,
        rng: &mut Rng,
    ) -> Option<FirstChange> {
        let (slot, platter) = self.victim(engine)?;
        if rng.chance(50) {
            let spare = self.claim_disk(engine)?;
            self.replace_by(engine, slot, &spare).await;
            return Some(FirstChange::ReplacementFails(slot, spare));
        }
        self.fail(engine, slot, &platter).await;
        let tasks = self.harness.start(volume, load, &rng.fork(2));
        futures_util::future::join_all(tasks).await;
        match rng.below(4) {
            0 => Some(FirstChange::Forget(slot)),
            1 => Some(FirstChange::Return(platter)),
            _ => {
                let spare = self.claim_disk(engine)?;
                let disk = self.factory.open(&self.world, &spare);
                let added = engine.0.add_spare(disk).await;
                self.command_done(&spare, added);
                Some(FirstChange::SpareTakesSlot)
            }
        }
    }

    async fn change_first(&self, engine: &Engine, first: FirstChange, rng: &mut Rng) {
        match first {
            FirstChange::ReplacementFails(slot, platter) => {
                self.fail_replacement(engine, slot, &platter, rng).await
            }
            FirstChange::SpareTakesSlot => engine.0.set_paused(false),
            FirstChange::Forget(slot) => self.forget(engine, slot).await,
            FirstChange::Return(platter) => {
                let disk = self.factory.open(&self.world, &platter);
                let back = engine.0.take_back(disk).await;
                self.world.note(format!("returns: {:?}", back.is_ok_and(|slot| slot.is_some())));
            }
        }
    }

    /// The replacement of a member fails: by command, or its disk does.
    pub(super) async fn fail_replacement(
        &self,
        engine: &Engine,
        slot: SlotNo,
        platter: &Platter,
        rng: &mut Rng,
    ) {
        let number = platter.number();
        match rng.below(3) {
            0 => {
                self.world.note(format!("the replacement of slot {slot}, disk {number}, is gone"));
                platter.faults(|f| f.gone_after_ops = Some(0));
            }
            1 => {
                self.world
                    .note(format!("the replacement of slot {slot}, disk {number}, fails writes"));
                platter.faults(|f| f.write_errors_percent = 100);
            }
            _ => {
                self.world.note(format!("a command fails the replacement of slot {slot}"));
                if let Err(error) = engine.0.fail_replacement(slot).await {
                    self.world.note(format!("refused: {error}"));
                }
            }
        }
    }

    /// A command makes the array forget the former member of a slot.
    pub(super) async fn forget(&self, engine: &Engine, slot: SlotNo) {
        self.world.note(format!("a command forgets the former member of slot {slot}"));
        if let Err(error) = engine.0.forget(slot).await
            && !self.harness.has_to_stop()
            && Slots::of(engine).missing.contains(slot)
        {
            self.world.note(format!("refused: {error}"));
        }
    }
}
