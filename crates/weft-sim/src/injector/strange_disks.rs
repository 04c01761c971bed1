//! Disks that are rare in life: write-protected ones, and as many lost members, or spares, as the
//! metadata can keep.

use weft_rt::{Rng, SECOND};

use super::FaultInjector;
use crate::disk::Platter;
use crate::engine::Engine;
use crate::slots::Slots;

/// The lanes of the region map: this number of disks may each lack data in a different way.
const LANES: usize = 8;

/// The spares that a superblock can list.
const SPARES_MAX: usize = 64;

impl FaultInjector {
    /// A disk is write-protected: the array notices at its next write. Later it may be writable
    /// again, and returns with what it held.
    pub(super) async fn write_protect(&self, engine: &Engine, rng: &mut Rng) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        let number = platter.number();
        self.world.note(format!("disk {number} of slot {slot} is write-protected"));
        platter.faults(|f| f.write_protected = true);
        let most = *rng.pick(&[SECOND / 10, 5 * SECOND, 30 * SECOND]);
        self.rt.sleep(rng.below(most)).await;
        if !self.world.is_on() || rng.chance(30) {
            return;
        }
        self.world.note(format!("disk {number} is writable again"));
        platter.faults(|f| f.write_protected = false);
        let status = engine.0.status();
        let is_used = status.disks().contains(&format!("sim{number}"));
        if is_used || platter.is_busy() || !self.claimed.borrow_mut().insert(number) {
            return;
        }
        self.disks.borrow_mut()[number].comes_back();
        self.add(engine, &platter).await;
    }

    /// Where an array can be large in some way, uses all that its metadata can keep.
    pub(super) async fn use_limits(&self, engine: &Engine, rng: &mut Rng) {
        let status = engine.0.status();
        if status.spares.len() + LANES > SPARES_MAX && rng.chance(50) {
            self.add_too_many(engine, rng).await;
        }
        let first = weft_code::SlotSet::first(LANES.min(status.slots.len()));
        if status.slots.len() > LANES && self.map.survives(first) && rng.chance(50) {
            self.use_all_lanes(engine, rng).await;
        }
    }

    /// Adds spares until the superblock has no room for another, and one more.
    async fn add_too_many(&self, engine: &Engine, rng: &mut Rng) {
        for _ in 0..rng.within(1, 4) {
            if self.world.is_on() && engine.0.status().spares.len() <= SPARES_MAX {
                self.add_disk(engine).await;
            }
        }
    }

    /// Fails members one after another until all lanes are used and beyond, as far as the code
    /// allows; then some return.
    async fn use_all_lanes(&self, engine: &Engine, rng: &mut Rng) {
        let paused = rng.chance(50);
        engine.0.set_paused(paused);
        let mut failed: Vec<Platter> = Vec::new();
        for _ in 0..4 * LANES {
            if failed.len() > LANES || !self.world.is_on() || self.harness.array_stopped.get() {
                break;
            }
            if let Some((slot, platter)) = self.victim(engine) {
                self.fail(engine, slot, &platter).await;
                failed.push(platter);
                self.rt.sleep(rng.below(SECOND / 20)).await;
            }
            let missing = Slots::of(engine).incomplete().len() as u64;
            let most = &mut self.report.borrow_mut().most_missing;
            *most = missing.max(*most);
        }
        while let Some(platter) = failed.pop()
            && self.world.is_on()
            && rng.chance(70)
        {
            let number = platter.number();
            let is_used = engine.0.status().disks().contains(&format!("sim{number}"));
            if is_used || platter.is_busy() || !self.claimed.borrow_mut().insert(number) {
                continue;
            }
            self.disks.borrow_mut()[number].comes_back();
            self.add(engine, &platter).await;
        }
        engine.0.set_paused(false);
    }
}
