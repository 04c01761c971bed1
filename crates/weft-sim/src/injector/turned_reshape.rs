//! A reshape that turns back while the log has little to do, and a power cut some time later.
//!
//! What the log holds of the time before stays there: a small write is the last one that needs a
//! record. So a record that counts again although its stripe was written since does harm, once a
//! disk is lost with the crash (`between.rs` loses one).

use std::ops::Range;
use std::rc::Rc;

use weft_disk::Volume;
use weft_rt::{MILLISECOND, Nanos, SECOND};

use super::FaultInjector;
use crate::engine::Engine;
use crate::oracle::Kind;

/// Between two looks at the reshape, and how many there are.
const STEP: Nanos = 5 * MILLISECOND;
const STEPS: u64 = 20_000;

impl FaultInjector {
    /// Starts the run's reshape after a few small writes, turns it back, and cuts the power.
    pub(crate) async fn crash_after_turn(&self, engine: &Engine, volume: &Rc<dyn Volume>) {
        let mut rng = self.world.rng(25_000 + self.report.borrow().lives);
        let Some(reshape) = self.setup.reshape else { return };
        let (array, cells) = (&engine.0, self.harness.oracle.borrow().len());
        // It is refused while members are missing or being rebuilt.
        self.wait_while(|| !array.status().jobs.is_empty()).await;
        // Near where it starts to move.
        let stripes = [self.setup.stripe_cells(), reshape.after(&self.setup).stripe_cells()];
        let [stripe, other] = stripes.map(|cells| usize::try_from(cells).unwrap_or(1).max(1));
        let span = (2 * stripe.max(other)).min(cells);
        // Only between the two geometries of the run: the map knows what these survive.
        let goes_back = !self.is_first_geometry(engine);
        let shrinks = (reshape.remove > 0) != goes_back;
        let from = if shrinks { cells - span } else { 0 };
        for _ in 0..rng.within(1, 3) {
            let cell = from + rng.index(span.max(1));
            self.write(volume, cell..cell + 1).await;
        }
        self.harness.flush(&**volume, 90).await;
        let used = self.harness.oracle.borrow().bytes(&(0..cells)).end;
        array.set_throttle(0, Some(*rng.pick(&[256 << 10, 1 << 20, 8 << 20])));
        let asked = match goes_back {
            true => reshape.options_back(&self.setup, used),
            false => reshape.options(&self.setup, used),
        };
        let begun = array.reshape(asked).await;
        let has_begun = begun.is_ok();
        self.report.borrow_mut().reshapes += u64::from(has_begun);
        self.note_reshape("reshaping", begun);
        if has_begun {
            let wanted = rng.within(1, 20);
            let moved = || array.status().jobs.iter().map(|job| job.stripes_done).max();
            self.wait_while(|| array.is_reshaping() && moved().unwrap_or(0) < wanted).await;
            // Whole stripes of the geometry that is left next: they need no records.
            for _ in 0..rng.below(3) {
                let start = (from + rng.index(span.max(1))) / other * other;
                self.write(volume, start..(start + other).min(cells)).await;
            }
            self.harness.flush(&**volume, 90).await;
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

    async fn write(&self, volume: &Rc<dyn Volume>, cells: Range<usize>) {
        if self.world.is_on()
            && !cells.is_empty()
            && cells.end <= self.harness.oracle.borrow().len()
        {
            self.harness.write(&**volume, 90, cells, Kind::Data, false).await;
        }
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
