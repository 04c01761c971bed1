//! Commands that administrators give under load, and the faults that go with them: a replacement
//! fails, a former member is forgotten, a spare is removed, a scrub repairs or is cancelled.

use weft_array::{MemberState, ScrubMode};
use weft_code::SlotNo;
use weft_rt::{MILLISECOND, Rng, SECOND};

use super::FaultInjector;
use crate::engine::Engine;
use crate::format::FIRST_DATA;
use crate::slots::Slots;
use crate::violation::ViolationKind;

impl FaultInjector {
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

    pub(super) async fn throttle(&self, engine: &Engine) {
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

    /// Gives one command.
    pub(super) async fn give_command(&self, engine: &Engine, rng: &mut Rng) {
        let status = engine.0.status();
        if rng.chance(15) {
            return self.lose_contents(engine, rng).await;
        }
        match rng.below(6) {
            0 | 1 => {
                // One that has the slot is its member, though no superblock says so yet.
                let slots = Slots::of(engine);
                let replaced = status.slots.iter().find_map(|slot| {
                    let number = number_of(slot.replacement.as_ref()?)?;
                    let is_copy = slots.disks[slot.slot.0] != Some(number);
                    Some((slot.slot, self.disks.borrow().get(number)?.platter.clone()))
                        .filter(|_| is_copy)
                });
                if let Some((slot, platter)) = replaced {
                    self.fail_replacement(engine, slot, &platter, rng).await;
                }
            }
            2 => {
                let missing = status.slots.iter().filter(|s| s.state == MemberState::Missing);
                let missing: Vec<SlotNo> = missing.map(|slot| slot.slot).collect();
                if !missing.is_empty() {
                    self.forget(engine, *rng.pick(&missing)).await;
                }
            }
            3 if !status.spares.is_empty() => {
                self.remove_spare(engine, rng.pick::<String>(&status.spares)).await;
            }
            3 | 4 => self.scrub(engine, ScrubMode::Repair).await,
            _ => {
                let after = rng.below(SECOND / 5);
                let cancelling = async {
                    self.rt.sleep(after).await;
                    self.world.note("the scrub is cancelled");
                    engine.0.cancel_scrub().await;
                };
                let scrub = self.scrub(engine, ScrubMode::Check);
                futures_util::future::join(scrub, cancelling).await;
            }
        }
    }

    /// A disk loses the end of its contents, the engine notices, and a command makes it as long as
    /// before and adds it again.
    pub(super) async fn lose_contents(&self, engine: &Engine, rng: &mut Rng) {
        let Some((slot, platter)) = self.victim(engine) else { return };
        // Nobody can tell what a disk lost while it was away.
        if platter.faults(|f| f.failed || f.gone || f.gone_after_ops.is_some()) {
            return;
        }
        let from = rng.within(FIRST_DATA, platter.size_bytes()) / 4096 * 4096;
        let number = platter.number();
        self.world.note(format!("disk {number} of slot {slot} is cut off at {from}"));
        platter.shrink(from);
        let notices = async {
            while self.world.is_on() && Slots::of(engine).disks.contains(&Some(number)) {
                self.harness.flush(&engine.0, 91).await;
                if self.harness.array_stopped.get() {
                    return false;
                }
                self.rt.sleep(SECOND).await;
            }
            self.world.is_on()
        };
        if !notices.await || engine.0.flush().await.is_err() || rng.chance(30) {
            return;
        }
        let is_used = engine.0.status().disks().contains(&format!("sim{number}"));
        if is_used || platter.is_busy() || !self.claimed.borrow_mut().insert(number) {
            return;
        }
        self.disks.borrow_mut()[number].comes_back();
        self.add(engine, &platter).await;
    }

    async fn remove_spare(&self, engine: &Engine, name: &str) {
        let Some(number) = number_of(name) else { return };
        if !self.claimed.borrow_mut().insert(number) {
            return;
        }
        self.world.note(format!("a command removes the spare {name}"));
        let removed = engine.0.remove_spare(name).await;
        self.claimed.borrow_mut().remove(&number);
        match removed {
            Ok(()) if engine.0.status().disks().iter().any(|disk| disk == name) => {
                let text = format!("{name} was removed and is still used");
                self.harness.fail(ViolationKind::CommandFailed, text, None);
            }
            Ok(()) => {}
            Err(error) => self.world.note(format!("refused: {error}")),
        }
    }
}

/// The number of the disk with this name.
fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix("sim").and_then(|number| number.parse().ok())
}
