//! The job that runs: one at a time, which counts its work.

use std::rc::Rc;

use crate::error::{FsError, Result};
use crate::state::job::{Job, JobEvent, JobRun, JobState, JobStatus};
use crate::state::mounted::FsState;

/// A running job; it ends when this is dropped.
pub(crate) struct CurrentJob(pub(crate) Rc<FsState>);

impl Drop for CurrentJob {
    fn drop(&mut self) {
        self.0.job_after(JobEvent::End);
    }
}

impl FsState {
    /// Starts a job.
    pub(crate) fn begin_job(self: &Rc<Self>, job: Job) -> Result<CurrentJob> {
        self.check_writable()?;
        // Jobs run where the metadata is.
        self.meta().array()?;
        if let Some(running) = self.job_status() {
            return Err(FsError::Busy(running.job.name()));
        }
        let status = JobStatus { job, done_blocks: 0, total_blocks: 0, lacking_blocks: 0 };
        self.job_after(JobEvent::Begin(JobRun { status, losses: self.pool().losses() }));
        Ok(CurrentJob(self.clone()))
    }

    /// An event happens to the job. Returns whether it can happen now.
    pub(crate) fn job_after(&self, event: JobEvent) -> bool {
        let after = self.job().after(event);
        if let Some(state) = after {
            self.set_job(state);
        }
        after.is_some()
    }

    /// How far the running job is.
    pub(crate) fn job_status(&self) -> Option<JobStatus> {
        self.job().run().map(|run| run.status)
    }

    /// Carries out a job. If the caller is dropped, it goes on.
    pub(crate) async fn run_job<T: 'static>(
        self: &Rc<Self>,
        job: Job,
        work: impl AsyncFnOnce(&Self) -> Result<T> + 'static,
    ) -> Result<T> {
        let fs = self.clone();
        let run = || async move { work(&fs.begin_job(job)?.0).await };
        self.rt().attach(run).await
    }

    fn note_job(&self, change: impl FnOnce(&mut JobStatus)) {
        self.set_job(self.job().with(change));
    }

    /// Between steps of the running job: fails if the file system is being unmounted, the job was
    /// cancelled, or a disk was lost since it started and a rebuild will start automatically.
    pub(crate) fn job_may_go_on(&self) -> Result<()> {
        self.check()?;
        match self.job() {
            JobState::Cancelled(_) => Err(FsError::Cancelled),
            JobState::Running(run) | JobState::Completing(run)
                if self.begins_jobs() && self.pool().losses() > run.losses =>
            {
                Err(FsError::GivenWay)
            }
            JobState::Idle | JobState::Running(_) | JobState::Completing(_) => Ok(()),
        }
    }

    /// The running job has done its work: from now on it cannot be cancelled. Fails if it was.
    pub(crate) fn job_nears_end(&self) -> Result<()> {
        self.job_may_go_on()?;
        self.job_after(JobEvent::Complete);
        Ok(())
    }

    /// Whether a job that ended like this resumes later automatically.
    pub(crate) fn job_goes_on_later<T>(&self, ended: &Result<T>) -> bool {
        self.is_stopped() || matches!(ended, Err(FsError::GivenWay))
    }

    /// What the running job has to do.
    pub(crate) fn job_total(&self, blocks: u64) {
        self.note_job(|status| status.total_blocks = blocks);
    }

    /// A part of the running job is done. What has changed since it started may be more than all
    /// that it had to do then.
    pub(crate) fn job_done(&self, blocks: u64) {
        self.note_job(|status| {
            status.done_blocks = (status.done_blocks + blocks).min(status.total_blocks);
        });
    }

    /// The disks lack room for these blocks of the running job.
    pub(crate) fn job_lacks_room(&self, blocks: u64) {
        self.note_job(|status| status.lacking_blocks = blocks);
        if blocks > 0 {
            self.tell_lack_of_room(blocks);
        }
    }

    /// There is more room than when the running job started.
    pub(crate) fn job_has_more_room(&self) {
        self.note_job(|status| status.lacking_blocks = 0);
    }
}
