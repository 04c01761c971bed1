//! Waiting for a part of a job that another node carries out.

use std::pin::pin;

use futures_util::future::{Either, select};
use weft_rt::SECOND;
use weft_wire::Outcome;

use crate::error::Result;
use crate::state::mounted::FsState;
use crate::state::work_desk::Awaited;

impl FsState {
    /// Waits for what came of a part of the running job, as long as this goes on.
    pub(crate) async fn await_part(&self, part: &mut Awaited) -> Result<Option<Outcome>> {
        loop {
            let pause = pin!(self.rt().sleep(SECOND));
            if let Either::Left((outcome, _)) = select(&mut *part, pause).await {
                return Ok(outcome.flatten());
            }
            self.job_may_go_on()?;
        }
    }
}
