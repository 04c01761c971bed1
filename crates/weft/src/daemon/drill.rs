//! Drills: the loss of a disk is rehearsed beside an array that is served
//! ([`weft_array::drill`]). Its second array is a failure domain of its own, so that an error there
//! takes nothing out of service.

use std::rc::Rc;

use serde_json::Value;
use weft_array::drill::{self, DrillOptions};
use weft_cli::failure::Failure;
use weft_cli::thread;
use weft_rt::MILLISECOND;

use crate::daemon::isolation::Isolation;
use crate::daemon::requests::{find_member, refused, value};
use crate::daemon::{Daemon, log};

/// Ends the drill's tasks, also if the drill is dropped before its end.
struct Ended(Rc<Isolation>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.rt().fail_domain();
    }
}

impl Daemon {
    /// Rehearses the loss of a member.
    pub(super) async fn drill(
        &self,
        array: &str,
        member: &str,
        (before_ms, during_ms): (u64, u64),
        memory_bytes: u64,
    ) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let slot = find_member(&served, member)?.slot;
        let name = served.array.status().name;
        let isolation = Isolation::new(&self.opener.rt, move |isolated| {
            let cause = isolated.to_string();
            if !cause.is_empty() {
                log::about(&name, &format!("a drill failed, the array did not: {cause}"));
            }
        });
        let _ended = Ended(isolation.clone());
        let nanos = |ms: u64| ms.saturating_mul(MILLISECOND);
        let options = DrillOptions {
            slot,
            before: nanos(before_ms),
            during: nanos(during_ms),
            memory_bytes,
            nonce: u64::from_le_bytes(thread::random()?),
        };
        let running = drill::run(isolation.rt(), &served.array, &options);
        let report = isolation.guard(Box::pin(running)).await;
        let report =
            report.map_err(|isolated| Failure::new(format!("the drill failed: {isolated}")))?;
        value(report.map_err(refused)?)
    }
}
