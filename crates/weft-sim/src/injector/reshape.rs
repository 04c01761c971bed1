//! Begins the reshape of a run.

use weft_array::ArrayError;
use weft_rt::{MILLISECOND, SECOND};

use super::FaultInjector;
use crate::engine::Engine;
use crate::violation::ViolationKind;

impl FaultInjector {
    /// Begins the run's reshape at some time, unless it has begun in an earlier life.
    pub(crate) async fn reshape_later(&self, engine: &Engine) {
        let Some(reshape) = self.setup.reshape else { return };
        let mut rng = self.world.rng(14_000 + self.report.borrow().lives);
        if rng.chance(30) {
            return;
        }
        for _ in 0..3 {
            let most = *rng.pick(&[MILLISECOND, SECOND / 10, 10 * SECOND]);
            self.rt.sleep(rng.below(most)).await;
            let grown = engine.0.status().slots.len() > self.setup.slots;
            if grown || engine.0.is_reshaping() || !self.world.is_on() {
                return;
            }
            match engine.0.reshape(reshape.options(&self.setup)).await {
                Ok(plan) => {
                    self.world.note(format!("reshaping: {plan:?}"));
                    self.report.borrow_mut().reshapes += 1;
                }
                Err(ArrayError::Refused(why)) => {
                    self.world.note(format!("no reshape: {why}"));
                    continue;
                }
                Err(_) if self.harness.has_to_stop() || self.harness.errors_allowed.get() => {}
                Err(ArrayError::Stopped | ArrayError::Broken { .. }) => {}
                Err(error) => {
                    let text = format!("a reshape failed: {error}");
                    self.harness.fail(ViolationKind::CommandFailed, text, None);
                }
            }
            return;
        }
    }
}
