//! A member that comes back with older contents: an image of it was taken while the array was in
//! use, and is put back after a clean stop.
//!
//! After a clean stop the superblocks tell. After a crash they may not: a member that misses one
//! superblock may have lost a race with the crash, and the engine cannot know better.

use weft_code::SlotSet;
use weft_rt::SECOND;

use super::state::Run;
use crate::setup::Map;
use crate::slots::Slots;

impl Run {
    /// Sometimes takes an image of a disk at some moment of this life.
    pub(super) fn perhaps_take_image(&self) {
        let mut rng = self.world.rng(22_000 + self.report.borrow().lives);
        if self.options.crashes_only || !rng.chance(40) {
            return;
        }
        let (rt, world) = (self.rt.clone(), self.world.clone());
        let (disks, image) = (self.disks.clone(), self.image.clone());
        drop(self.rt.spawn(async move {
            let most = *rng.pick(&[SECOND / 100, SECOND, 30 * SECOND]);
            rt.sleep(rng.below(most)).await;
            let number = rng.index(disks.borrow().len());
            let member = disks.borrow()[number].clone();
            if world.is_on() && !member.absent && !member.platter.faults(|f| f.gone || f.shrunk) {
                world.note(format!("an image of disk {number} is taken"));
                let copy = member.platter.copy();
                copy.program_killed();
                *image.borrow_mut() = Some(copy);
            }
        }));
    }

    /// Sometimes puts the image back, after a clean stop. Returns the slot of the disk: it is lost.
    pub(super) fn perhaps_set_back(&self, map: &Map, slots: &Slots, lost: SlotSet) -> SlotSet {
        let Some(image) = self.image.take().filter(|_| self.stopped) else { return SlotSet::new() };
        let number = image.number();
        let disks = self.disks.borrow();
        let slot = slots.holding(|n| n == number && !disks[n].absent);
        let may_be_lost = map.survives(slots.incomplete().union(&lost).union(&slot));
        let rng = &mut self.world.rng(23_000 + self.report.borrow().lives);
        if slot.is_empty() || !may_be_lost || !rng.chance(60) {
            return SlotSet::new();
        }
        self.world.note(format!("disk {number} is set back to its image"));
        disks[number].platter.set_back(&image);
        self.report.borrow_mut().older += 1;
        slot
    }
}
