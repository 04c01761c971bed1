//! A reshape that turns back while the log has little to do, and a power cut some time later.
//!
//! What the log holds of the time before stays there: a small write is the last one that needs a
//! record. So a record that counts again although its stripe was written since does harm, once a disk
//! is lost with the crash (`between.rs` loses one).

use std::rc::Rc;

use weft_disk::Volume;
use weft_rt::{MILLISECOND, Nanos, Rng, SECOND};

use super::FaultInjector;
use crate::engine::Engine;
use crate::workload::Load;

/// Between two looks at the reshape, and how many there are.
const STEP: Nanos = 5 * MILLISECOND;
const STEPS: u64 = 20_000;

impl FaultInjector {
    /// Begins the run's reshape after a few small writes, turns it back, and cuts the power.
    pub(crate) async fn crash_after_turn(
        &self,
        engine: &Engine,
        volume: &Rc<dyn Volume>,
        load: &Load,
    ) {
        let mut rng = self.world.rng(25_000 + self.report.borrow().lives);
        let Some(reshape) = self.setup.reshape else { return };
        let array = &engine.0;
        let other = reshape.after(&self.setup).stripe_cells().max(1);
        let few = Load { clients: 1, reads_percent: 0, flushes_percent: 0, ..load.clone() };
        let small = Load { requests: rng.within(1, 3), whole_after: u64::MAX, ..few.clone() };
        let whole = Load { whole_after: 0, stripe_cells: other, other_stripe_cells: other, ..few };
        self.write_some(volume, small, &rng.fork(1)).await;
        let used = {
            let oracle = self.harness.oracle.borrow();
            oracle.bytes(&(0..oracle.len())).end
        };
        array.set_throttle(0, Some(*rng.pick(&[256 << 10, 1 << 20, 8 << 20])));
        let begun = array.reshape(reshape.options(&self.setup, used)).await;
        let has_begun = begun.is_ok();
        self.report.borrow_mut().reshapes += u64::from(has_begun);
        self.note_reshape("reshaping", begun);
        if has_begun {
            let wanted = rng.within(1, 20);
            let moved = || array.status().jobs.iter().map(|job| job.stripes_done).max();
            self.wait_while(|| array.is_reshaping() && moved().unwrap_or(0) < wanted).await;
            self.write_some(volume, Load { requests: rng.below(3), ..whole }, &rng.fork(2)).await;
            let turned = array.turn_reshape().await;
            self.report.borrow_mut().turns += u64::from(turned.is_ok());
            self.note_reshape("turned back", turned);
        }
        array.set_throttle(0, None);
        if rng.chance(80) {
            self.wait_while(|| array.is_reshaping()).await;
        }
        let pause = *rng.pick(&[30 * SECOND, SECOND, MILLISECOND]);
        self.rt.sleep(pause).await;
        self.harness.flush(&**volume, 90).await;
        if self.world.is_on() {
            self.world.cut();
        }
    }

    async fn write_some(&self, volume: &Rc<dyn Volume>, load: Load, rng: &Rng) {
        let tasks = self.harness.start(volume, &load, rng);
        futures_util::future::join_all(tasks).await;
        self.harness.flush(&**volume, 90).await;
    }

    async fn wait_while(&self, waits: impl Fn() -> bool) {
        for _ in 0..STEPS {
            if !waits() || !self.world.is_on() {
                return;
            }
            self.rt.sleep(STEP).await;
        }
    }
}
