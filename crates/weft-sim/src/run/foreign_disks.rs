//! Disks that come back with foreign contents: one was used for another array, or has a new file
//! system. To the array it is lost, and it must not be taken for a member.

use std::rc::Rc;

use weft_code::SlotSet;
use weft_disk::Disk;

use super::state::Run;
use crate::disk::{Platter, SimDisk};
use crate::engine::Engine;
use crate::foreign::FOREIGN_ID;
use crate::setup::Map;
use crate::slots::Slots;
use crate::violation::{Violation, ViolationKind};

impl Run {
    /// In some runs there is another array of the same kind, from which disks may come.
    pub(super) fn perhaps_make_foreign(&mut self) -> Result<(), Violation> {
        if self.options.crashes_only || !self.world.rng(26_000).chance(15) {
            return Ok(());
        }
        let disks = self.disks.borrow();
        let platters: Vec<Platter> = disks.iter().map(|member| member.platter.copy()).collect();
        drop(disks);
        let open = |platter| SimDisk::open(&self.world, platter) as Rc<dyn Disk>;
        let opened = platters.iter().map(open).collect();
        let setup = self.setup.clone();
        let created =
            self.drive(async move { Engine::create(opened, &setup, FOREIGN_ID).await })?;
        self.rt.kill_all();
        if let Some(Err(error)) = created {
            let text = format!("creation of another array failed: {error}");
            return Err(Violation::new(ViolationKind::CommandFailed, text));
        }
        platters.iter().for_each(Platter::program_killed);
        self.foreign.set(platters);
        Ok(())
    }

    /// Sometimes a disk of the array is used for something else before the next life. Returns its
    /// slot: it is lost.
    pub(super) fn perhaps_take_over(&self, map: &Map, slots: &Slots, lost: SlotSet) -> SlotSet {
        let rng = &mut self.world.rng(27_000 + self.report.borrow().lives);
        if self.options.crashes_only || !rng.chance(8) {
            return SlotSet::new();
        }
        let disks = self.disks.borrow();
        let number = rng.index(disks.len());
        let slot = slots.holding(|n| n == number && !disks[n].absent);
        let is_spared = slot.is_empty() && self.setup.reshape.is_some();
        if is_spared || !map.survives(slots.incomplete().union(&lost).union(&slot)) {
            return SlotSet::new();
        }
        self.world.note(format!("disk {number} holds something else"));
        self.foreign.take_over(&disks[number].platter, rng);
        self.report.borrow_mut().foreign += 1;
        slot
    }
}
