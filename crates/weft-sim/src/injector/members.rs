//! Changes of the members: a command fails one, replaces one, or adds a disk.

use weft_array::{ArrayError, Event};
use weft_code::SlotNo;
use weft_rt::{MILLISECOND, Nanos, Rng};

use super::FaultInjector;
use crate::disk::{Hangs, Platter};
use crate::engine::Engine;
use crate::member::Member;
use crate::slots::Slots;
use crate::world::CutTrigger;

/// The most disks that a run adds to its first ones.
const DISKS_MORE: usize = 3;

/// How often to check whether a member has become active, and how many times.
const PROMOTION_STEP: Nanos = 2 * MILLISECOND;
const PROMOTION_STEPS: u64 = 2000;

impl FaultInjector {
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

    /// Fails a member while the engine writes the superblock that makes another member active, if
    /// one is being rebuilt.
    pub(super) async fn fail_at_promotion(&self, engine: &Engine) {
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

    /// Replaces a member by another disk, with one command.
    pub(super) async fn replace(&self, engine: &Engine) {
        let Some((slot, _)) = self.victim(engine) else { return };
        let Some(spare) = self.claim_disk(engine) else { return };
        self.replace_by(engine, slot, &spare).await;
    }

    pub(super) async fn replace_by(&self, engine: &Engine, slot: SlotNo, spare: &Platter) {
        self.world.note(format!("a command replaces slot {slot} by disk {}", spare.number()));
        let disk = self.factory.open(&self.world, spare);
        let taken = engine.0.replace(slot, disk).await;
        self.command_done(spare, taken.map(drop));
    }

    /// Adds a new disk or a former member.
    pub(super) async fn add_disk(&self, engine: &Engine) {
        let Some(platter) = self.claim_disk(engine) else { return };
        self.add(engine, &platter).await;
    }

    /// Adds a disk as a spare; a former member that the array knows may return to its slot.
    pub(super) async fn add(&self, engine: &Engine, platter: &Platter) {
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

    /// A command gives the array a disk with some hanging operations, so that the array's other
    /// work may end before the command.
    pub(super) async fn give_slow_disk(&self, engine: &Engine, rng: &mut Rng) {
        let replaced = rng.chance(50).then(|| self.victim(engine)).flatten();
        let Some(platter) = self.claim_disk(engine) else { return };
        platter.set_hangs(Hangs::of_one_in(*rng.pick(&[4, 12])));
        match replaced {
            Some((slot, _)) => self.replace_by(engine, slot, &platter).await,
            None => self.add(engine, &platter).await,
        }
    }

    /// The command that was using the disk has ended.
    pub(super) fn command_done(&self, platter: &Platter, taken: Result<(), ArrayError>) {
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
    pub(super) fn claim_disk(&self, engine: &Engine) -> Option<Platter> {
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
        // A disk with requests in progress stays reserved: they may still be carried out. One that
        // has lost contents unnoticed must not come back.
        let free = |n: &usize| {
            let platter = &self.disks.borrow()[*n].platter;
            !used(*n) && !platter.is_busy() && !platter.faults(|f| f.shrunk)
        };
        let old = self.disks.borrow().iter().map(|m| m.platter.number()).find(free);
        match old {
            Some(number) if self.draw(|rng| rng.chance(50)) => {
                let mut disks = self.disks.borrow_mut();
                disks[number].comes_back();
                let platter = disks[number].platter.clone();
                drop(disks);
                self.perhaps_foreign(&platter);
                Some(platter)
            }
            _ if self.disks.borrow().len() < self.setup.disks.len() + DISKS_MORE => {
                let mut disks = self.disks.borrow_mut();
                let number = disks.len();
                let model = self.setup.disks.iter().max_by_key(|disk| disk.size_bytes);
                let model = model.expect("an array has disks");
                let sector = self.setup.disks[0].sector_bytes.min(model.sector_bytes);
                let rng = self.world.rng(100 + number as u64);
                let mut sizes = self.world.rng(24_000 + number as u64);
                // As large as the array may need it in the end, or not.
                let size = match self.setup.growth {
                    Some(_) if sizes.chance(70) => self.setup.disk_bytes_max(),
                    _ => model.size_bytes,
                };
                let platter = Platter::new(number, size, sector, rng);
                platter.set_rotational(self.setup.rotational);
                platter.set_hangs(self.new_disk_hangs.borrow().clone());
                disks.push(Member { platter: platter.clone(), absent: false });
                Some(platter)
            }
            _ => None,
        }
    }
}
