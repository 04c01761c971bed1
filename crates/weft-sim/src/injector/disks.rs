//! Faults of disks.

use weft_rt::{MILLISECOND, SECOND};

use super::FaultInjector;
use crate::disk::{Platter, Uniform};
use crate::engine::Engine;
use crate::slots::Slots;

impl FaultInjector {
    /// A disk that is free may come back with what another program wrote to it.
    pub(super) fn perhaps_foreign(&self, platter: &Platter) {
        let rng = &mut *self.foreign_rng.borrow_mut();
        if rng.chance(10) {
            self.foreign.take_over(platter, rng);
            self.world.note(format!("disk {} holds something else", platter.number()));
        }
    }

    pub(super) fn lose_disk(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        let after = self.draw(|rng| if rng.chance(50) { rng.below(100) } else { 0 });
        self.world.note(format!("the disk of slot {slot} fails after {after} operations"));
        platter.faults(|f| f.gone_after_ops = Some(after));
    }

    /// A disk stops answering for a while, shorter or longer than the time limit. Sometimes a
    /// command fails it during this.
    pub(super) async fn hang(&self, engine: &Engine) {
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

    pub(super) fn fail_writes(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        let percent = self.draw(|rng| *rng.pick(&[10, 100]));
        self.world.note(format!("slot {slot} fails {percent} % of its writes"));
        platter.faults(|f| f.write_errors_percent = percent);
    }

    pub(super) fn damage_sectors(&self, engine: &Engine) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        let sectors = platter.size_bytes() / u64::from(platter.sector_bytes());
        let count = self.draw(|rng| rng.within(1, 8));
        self.world.note(format!("{count} ranges of slot {slot} become unreadable"));
        for _ in 0..count {
            let (start, len) = self.draw(|rng| (rng.below(sectors), rng.within(1, 4)));
            platter.faults(|f| f.unreadable.extend(start..(start + len).min(sectors)));
        }
    }

    pub(super) fn slow_disk(&self) {
        let disks = self.disks.borrow();
        let number = self.draw(|rng| rng.index(disks.len()));
        let factor = self.draw(|rng| *rng.pick(&[1, 10, 100]));
        self.world.note(format!("disk {number} becomes {factor} times slower"));
        disks[number].platter.set_latency(Box::new(Uniform { factor, ..Uniform::default() }));
    }

    /// The file system under one disk is full until space is freed or a command fails the member.
    /// Writes wait during this.
    pub(super) async fn fill_file_system(&self, engine: &Engine) {
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
}
