//! Drills: the loss of a disk is rehearsed beside an array that is served
//! ([`weft_array::drill`]). Its second array is a failure domain of its own, so that an error there
//! takes nothing out of service.

use std::rc::Rc;

use weft_array::Array;
use weft_array::drill::{self, DrillOptions, DrillReport};
use weft_cli::failure::Failure;
use weft_cli::thread;
use weft_code::SlotNo;
use weft_rt::{MILLISECOND, Rt};

use crate::daemon::isolation::Isolation;
use crate::daemon::log;

/// The longest phase, milliseconds: a drill holds a place on the control socket.
const PHASE_MS_MAX: u64 = 3_600_000;

/// Ends the drill's tasks, also if the drill is dropped before its end.
struct Ended(Rc<Isolation>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.rt().fail_domain();
    }
}

/// Rehearses the loss of the member in a slot of `array`. `rt` is not of the array's domain.
pub async fn drill(
    rt: &Rt,
    array: &Array,
    slot: SlotNo,
    (before_ms, during_ms): (u64, u64),
    memory_bytes: u64,
) -> Result<DrillReport, Failure> {
    let name = array.status().name;
    let isolation = Isolation::new(rt, move |isolated| {
        let cause = isolated.to_string();
        if !cause.is_empty() {
            log::about(&name, &format!("a drill failed, the array did not: {cause}"));
        }
    });
    let _ended = Ended(isolation.clone());
    let nanos = |ms: u64| ms.min(PHASE_MS_MAX).saturating_mul(MILLISECOND);
    let options = DrillOptions {
        slot,
        before: nanos(before_ms),
        during: nanos(during_ms),
        memory_bytes,
        nonce: u64::from_le_bytes(thread::random()?),
    };
    let running = drill::run(isolation.rt(), array, &options);
    let report = isolation.guard(Box::pin(running)).await;
    let report =
        report.map_err(|isolated| Failure::new(format!("the drill failed: {isolated}")))?;
    report.map_err(|refused| Failure::new(refused.to_string()))
}
