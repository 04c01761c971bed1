//! Cancelling a job.
//!
//! What a job has done stays: each record is old or new. So it ends after its step, and the
//! metadata must durably drop the job before the cancel is acknowledged: otherwise a mount would go
//! on with it ([`crate::jobs::scheduler`]). A job looks between its steps, and once more before it
//! does what cannot be taken back, such as removing a disk: from then on it is too late. A job that
//! waits, for room or for one that is more urgent, is cancelled in the same way.
//!
//! What keeps redundancy cannot be cancelled: a rebuild, and a set, as its files would stay between
//! two redundancies.

use std::rc::Rc;

use weft_rt::MILLISECOND;

use crate::error::{FsError, Result};
use crate::jobs::balance;
use crate::jobs::membership::forget_leaving;
use crate::jobs::scrub;
use crate::meta::Tx;
use crate::state::job::{Job, JobEvent};
use crate::state::mounted::{Fs, FsState};

/// How often it is looked whether the job has ended its step.
const LOOK_EVERY_MS: u64 = 20;

/// Why a job cannot be cancelled, if it cannot.
fn refusal(job: Job) -> Option<&'static str> {
    match job {
        Job::Rebuild => Some("a rebuild cannot be cancelled: until it ends, files lack redundancy"),
        Job::Set => Some(
            "a set cannot be cancelled: set the redundancy that the files had, and they get it again",
        ),
        Job::Remove(_) | Job::Balance | Job::Scrub => None,
    }
}

impl FsState {
    /// Cancels the job that runs, or the most urgent one that waits.
    async fn cancel(self: &Rc<Self>) -> Result<Job> {
        self.check_writable()?;
        loop {
            if let Some(running) = self.job_status() {
                return self.cancel_running(running.job).await;
            }
            let due = self.due().await?;
            let Some(job) = due.iter().find(|job| refusal(**job).is_none()) else {
                let why = due.first().and_then(|job| refusal(*job));
                return Err(FsError::Invalid(why.unwrap_or("no job is running").to_owned()));
            };
            // Nothing else starts it during this.
            if let Ok(_running) = self.begin_job(*job) {
                return self.forget_job(*job).await.map(|()| *job);
            }
        }
    }

    async fn cancel_running(&self, job: Job) -> Result<Job> {
        if let Some(why) = refusal(job) {
            return Err(FsError::Invalid(why.to_owned()));
        }
        if !self.job_after(JobEvent::Cancel) {
            let why = format!("the {} has done its work, and is about to end", job.name());
            return Err(FsError::Invalid(why));
        }
        self.forget_job(job).await?;
        while self.job().is_cancelled() {
            self.rt().sleep(LOOK_EVERY_MS * MILLISECOND).await;
        }
        Ok(job)
    }

    /// A job is not to be done any more, durably.
    async fn forget_job(&self, job: Job) -> Result<()> {
        if let Job::Remove(number) = job
            && let Some(member) = self.pool().member(number)
        {
            member.stay();
        }
        let forget = |tx: &Tx<'_>| match job {
            Job::Remove(number) => forget_leaving(tx, number),
            Job::Balance => balance::forget(tx),
            Job::Scrub => scrub::forget(tx),
            Job::Rebuild | Job::Set => Ok(()),
        };
        self.meta().run(forget).await?;
        self.commit().await
    }
}

impl Fs {
    /// Ends the running job after its step, durably, or if none runs, the most urgent one that
    /// waits. What it has done stays; it fails with [`FsError::Cancelled`]. Returns what it was.
    ///
    /// # Errors
    /// If there is none, it cannot be cancelled, or the metadata has failed.
    pub async fn cancel(&self) -> Result<Job> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.cancel().await }).await
    }
}
