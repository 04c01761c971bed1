//! Between two lives: the effects of the crash, the disks that are lost and returned, and the
//! promises that end with that.

use weft_code::SlotSet;

use super::state::Run;
use crate::excuse::Lost;
use crate::format::SUPERBLOCKS;
use crate::membership;
use crate::setup::Map;
use crate::slots::Slots;

impl Run {
    pub(super) fn remember_slots(&mut self) {
        if let Some(harness) = &self.harness {
            harness.note_losses();
            *harness.losses.borrow_mut() = None;
        }
        let engine = self.engine.take();
        self.assembly_interrupted = engine.is_none();
        match engine {
            Some(engine) => {
                let mut slots = Slots::of(&engine);
                slots.lost_at = self.lost_at.take();
                // A replacement or a spare may have taken the slot.
                let incomplete = slots.incomplete();
                slots.lost_at.retain(|slot, _| incomplete.contains(*slot));
                self.report.borrow_mut().losses += slots.missing.len() as u64;
                self.last_slots = Some(slots);
            }
            None => {
                // Assembly did not finish. Members that were not attached may or may not have been
                // excluded.
                let disks = self.disks.borrow();
                if let Some(slots) = &mut self.last_slots {
                    let is_gone = |n: usize| disks[n].platter.faults(|f| f.gone);
                    let absent = slots.holding(|n| disks[n].absent || is_gone(n));
                    slots.missing = slots.missing.union(&absent);
                    for slot in absent.iter() {
                        slots.disks[slot.0] = None;
                    }
                }
            }
        }
    }

    pub(super) fn crash(&mut self) {
        self.rt.kill_all();
        let kill = self.rng.chance(if self.membership_crash { 40 } else { 20 });
        let note = if kill { "the program was killed" } else { "the power was cut" };
        self.world.note(note);
        for member in self.disks.borrow().iter() {
            if kill { member.platter.program_killed() } else { member.platter.power_cut() }
        }
        if let Some(harness) = &self.harness {
            harness.end_abandoned();
            let oracle = &mut *harness.oracle.borrow_mut();
            match (kill, harness.array_stopped.get()) {
                (true, true) => oracle.had_to_stop(),
                (true, false) => oracle.program_killed(),
                (false, _) => oracle.power_cut(),
            }
        }
        if let Some(slots) = &mut self.last_slots {
            let not_active = membership::not_active(&self.disks.borrow());
            slots.rebuilding = slots.rebuilding.union(&not_active.difference(&slots.missing));
        }
        let report = &mut *self.report.borrow_mut();
        if kill { report.kills += 1 } else { report.cuts += 1 }
    }

    /// Loses some disks, returns some that were lost, and ends the promises that this ends.
    pub(super) fn lose_and_return(&mut self) {
        let Some(slots) = self.last_slots.clone() else { return };
        let Some(map) = self.map.clone() else { return };
        // After a short power cut or a pulled cable usually all disks return.
        let likely = self.membership_crash || self.assembly_interrupted;
        let all_return = self.rng.chance(if likely { 70 } else { 20 });
        let mut disks = self.disks.borrow_mut();
        let mut space_rng = self.world.rng(7000 + self.report.borrow().lives);
        for member in disks.iter_mut() {
            if space_rng.chance(50) {
                member.platter.faults(|f| f.full = false);
            }
            member.platter.faults(|f| {
                f.gone_after_ops = None;
                f.hangs_until = 0;
                f.write_errors_percent = 0;
                f.unwritable = None;
                f.write_protected &= space_rng.chance(50);
                f.has_refused = false;
                f.failed = false;
                f.failed_writes.clear();
                f.unreadable.clear();
            });
            let gone = member.platter.faults(|f| f.gone) || member.absent;
            let back = gone && (all_return || self.rng.chance(40));
            member.platter.faults(|f| f.gone = false);
            // A write-protected one cannot be opened.
            member.absent =
                gone && !back || member.platter.faults(|f| f.shrunk || f.write_protected);
        }
        let lose = if self.options.crashes_only || all_return {
            0
        } else {
            *self.rng.pick(&[0, 0, 0, 1, 1, 2])
        };
        let lose = if self.turned_crash { lose.max(1) } else { lose };
        for _ in 0..lose {
            let number = self.rng.index(disks.len());
            let lost = slots.incomplete().union(&slots.holding(|n| disks[n].absent || n == number));
            // A disk that was being added may be a member already.
            let may_join =
                self.setup.reshape.is_some() && slots.holding(|n| n == number).is_empty();
            if map.survives(lost) && !disks[number].absent && !may_join {
                disks[number].absent = true;
                self.world.note(format!("disk {number} is gone"));
            }
        }
        let absent = slots.holding(|n| disks[n].absent);
        drop(disks);
        let older = self.perhaps_set_back(&map, &slots, absent);
        let older = older.union(&self.perhaps_take_over(&map, &slots, absent.union(&older)));
        let absent = absent.union(&older);
        // An assembly that is cut short leaves it as stale as it is now.
        if let Some(known) = &mut self.last_slots {
            known.missing = known.missing.union(&older);
            older.iter().for_each(|slot| known.disks[slot.0] = None);
        }
        let going = self.lose_while_assembling(&map, &slots, absent);
        let lost = absent.union(&going);
        self.excuse_at_crash(&map, &slots, lost);
        let torn = self.tear_sectors(&map, &slots, lost);
        if let Some(harness) = &self.harness {
            let oracle = &mut *harness.oracle.borrow_mut();
            let rules = harness.exposure.rules();
            self.report.borrow_mut().excused += match self.setup.reshape {
                // Which data is on torn sectors depends on how far the reshape has come.
                Some(_) => Lost::now(torn.slots()).excuse(oracle, &map, rules),
                None => torn.excuse(oracle, &map, rules),
            };
        }
    }

    /// Sometimes a disk fails while the array is being assembled: before, during or after recovery,
    /// or it can be read and takes no writes, or no superblocks.
    /// Returns its slot.
    fn lose_while_assembling(&self, map: &Map, slots: &Slots, absent: SlotSet) -> SlotSet {
        let mut rng = self.world.rng(4000 + self.report.borrow().lives);
        let disks = self.disks.borrow();
        let number = rng.index(disks.len());
        let going = slots.holding(|n| n == number && !disks[n].absent);
        let lost = slots.incomplete().union(&absent).union(&going);
        if self.options.crashes_only || !rng.chance(15) || going.is_empty() || !map.survives(lost) {
            return SlotSet::new();
        }
        if rng.chance(40) {
            let range = *rng.pick(&[(SUPERBLOCKS.start, SUPERBLOCKS.end), (0, u64::MAX)]);
            self.world.note(format!("disk {number} takes no writes at {range:?}"));
            let protected = range.0 == 0 && rng.chance(50);
            disks[number].platter.faults(|f| match protected {
                true => f.write_protected = true,
                false => f.unwritable = Some(range.0..range.1),
            });
            return going;
        }
        let most = *rng.pick(&[12, 40]);
        let after = rng.below(most);
        self.world.note(format!("disk {number} fails after {after} operations"));
        disks[number].platter.faults(|f| f.gone_after_ops = Some(after));
        going
    }

    /// Ends the promises for disks that were lost together with the crash (`absent`), that were
    /// lost in the life before, or, where the policy leaves a write hole, were lost at any time
    /// before.
    fn excuse_at_crash(&self, map: &Map, slots: &Slots, absent: SlotSet) {
        let Some(harness) = &self.harness else { return };
        let mut lost = Lost::now(absent);
        lost.add(&slots.lost_at);
        lost.long_ago(slots.incomplete());
        let oracle = &mut *harness.oracle.borrow_mut();
        let excused = lost.excuse(oracle, map, harness.exposure.rules());
        self.report.borrow_mut().excused += excused;
    }
}
