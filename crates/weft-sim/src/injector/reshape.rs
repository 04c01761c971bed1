//! Starts the reshape of a run, turns it back, and starts the one that leads back.

use weft_array::{ArrayError, Event};
use weft_layout::window::Direction;
use weft_rt::{MILLISECOND, Rng, SECOND};

use super::FaultInjector;
use crate::engine::Engine;
use crate::violation::ViolationKind;

/// Most reshapes of a run.
const RESHAPES_MAX: u64 = 4;

impl FaultInjector {
    /// Starts the run's reshape at some time, unless it has started in an earlier life. Then goes
    /// on with what comes after it.
    pub(crate) async fn reshape_later(&self, engine: &Engine) {
        let Some(reshape) = self.setup.reshape else { return };
        let mut rng = self.world.rng(14_000 + self.report.borrow().lives);
        if rng.chance(30) {
            return;
        }
        self.count_rebuilds_within(engine);
        for _ in 0..4 {
            self.pause(&mut rng).await;
            if !self.world.is_on() {
                return;
            }
            let array = &engine.0;
            self.take_tail(engine).await;
            if array.is_reshaping() {
                if reshape.turns {
                    let turned = array.turn_reshape().await;
                    self.report.borrow_mut().turns += u64::from(turned.is_ok());
                    self.note_reshape("turned back", turned);
                }
                continue;
            }
            // More than before, if the array has grown.
            let used = {
                let oracle = self.harness.oracle.borrow();
                oracle.bytes(&(0..oracle.len())).end
            };
            let asked = match self.report.borrow().reshapes {
                RESHAPES_MAX.. => return,
                _ if self.is_first_geometry(engine) => reshape.options(&self.setup, used),
                _ if reshape.returns => reshape.options_back(&self.setup, used),
                _ => return,
            };
            let begun = array.reshape(asked).await;
            if let Ok(plan) = &begun {
                let report = &mut *self.report.borrow_mut();
                report.reshapes += 1;
                report.shrinks += u64::from(plan.direction == Direction::Down);
            }
            self.note_reshape("reshaping", begun);
        }
    }

    /// Whether the array has the geometry with which it was created.
    pub(super) fn is_first_geometry(&self, engine: &Engine) -> bool {
        let status = engine.0.status();
        status.slots.len() == self.setup.slots
            && status.code == self.setup.code.to_string()
            && status.unit_bytes == u64::from(self.setup.unit_bytes)
    }

    /// Takes into use what the array has gained, unless another reshape would take it away again.
    /// Returns whether there was anything. Whatever the disks held there, it reads as zeros.
    pub(crate) async fn take_tail(&self, engine: &Engine) -> bool {
        let last = self.setup.reshape.is_none_or(|reshape| !reshape.returns);
        if !last || engine.0.is_reshaping() {
            return false;
        }
        let tail = self.harness.oracle.borrow_mut().grow(engine.0.size_bytes());
        if tail.is_empty() {
            return false;
        }
        self.world.note(format!("the array has grown by the cells {tail:?}"));
        self.report.borrow_mut().grown += 1;
        self.harness.read_cells(&engine.0, 89, tail).await;
        true
    }

    fn count_rebuilds_within(&self, engine: &Engine) {
        let (array, report) = (engine.0.clone(), self.report.clone());
        let events = array.subscribe();
        drop(self.rt.spawn(async move {
            loop {
                if matches!(events.next().await, Event::RebuildFinished { .. }) {
                    report.borrow_mut().rebuilds_within += u64::from(array.is_reshaping());
                }
            }
        }));
    }

    async fn pause(&self, rng: &mut Rng) {
        let most = *rng.pick(&[MILLISECOND, SECOND / 10, 10 * SECOND]);
        self.rt.sleep(rng.below(most)).await;
    }

    /// A refusal is no failure: members may be missing.
    pub(super) fn note_reshape<T: std::fmt::Debug>(
        &self,
        what: &str,
        result: Result<T, ArrayError>,
    ) {
        match result {
            Ok(plan) => self.world.note(format!("{what}: {plan:?}")),
            Err(ArrayError::Refused(why)) => self.world.note(format!("not {what}: {why}")),
            Err(ArrayError::Stopped | ArrayError::Broken { .. }) => {}
            Err(_) if self.harness.has_to_stop() || self.harness.errors_allowed.get() => {}
            Err(error) => {
                let text = format!("not {what}: {error}");
                self.harness.fail(ViolationKind::CommandFailed, text, None);
            }
        }
    }
}
