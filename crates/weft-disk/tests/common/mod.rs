//! Virtual time for the tests of disks.

use weft_rt::{Rt, Schedule, virtual_rt};

/// Runs `body` to its end in virtual time.
pub fn run(body: impl AsyncFnOnce(Rt) + 'static) {
    let rt = virtual_rt(Schedule::Fifo);
    rt.clone().block_on(async move { body(rt).await });
}
