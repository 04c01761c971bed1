//! Commands that administrators give under load, and the faults that go with them: a replacement
//! fails, a former member is forgotten, a spare is removed, a scrub repairs or is cancelled.

use weft_array::{MemberState, ScrubMode};
use weft_code::SlotNo;
use weft_rt::{Rng, SECOND};

use super::FaultInjector;
use crate::engine::Engine;
use crate::violation::ViolationKind;

impl FaultInjector {
    /// Gives one command.
    pub(super) async fn give_command(&self, engine: &Engine, rng: &mut Rng) {
        let status = engine.0.status();
        match rng.below(6) {
            0 | 1 => {
                let replaced = status.slots.iter().find_map(|slot| {
                    let number = number_of(slot.replacement.as_ref()?)?;
                    Some((slot.slot, self.disks.borrow().get(number)?.platter.clone()))
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
