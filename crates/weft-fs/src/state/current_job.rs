//! The job that runs: one at a time, which counts what is done.

use std::rc::Rc;

use crate::error::{FsError, Result};
use crate::state::job::{Job, JobEnd, JobStatus};
use crate::state::mounted::FsState;

/// A running job; it ends when this is dropped.
pub(crate) struct CurrentJob(pub(crate) Rc<FsState>);

impl Drop for CurrentJob {
    fn drop(&mut self) {
        self.0.job.set(None);
        self.0.job_end.set(JobEnd::Open);
    }
}

impl FsState {
    /// Begins a job.
    pub(crate) fn begin_job(self: &Rc<Self>, job: Job) -> Result<CurrentJob> {
        self.check_writable()?;
        if let Some(running) = self.job.get() {
            return Err(FsError::Busy(running.job.name()));
        }
        self.job.set(Some(JobStatus { job, done_blocks: 0, total_blocks: 0 }));
        self.job_losses.set(self.pool.losses());
        Ok(CurrentJob(self.clone()))
    }

    /// Carries out a job. If the caller is dropped, it goes on.
    pub(crate) async fn run_job<T: 'static>(
        self: &Rc<Self>,
        job: Job,
        work: impl AsyncFnOnce(&Self) -> Result<T> + 'static,
    ) -> Result<T> {
        let fs = self.clone();
        let run = || async move { work(&fs.begin_job(job)?.0).await };
        self.rt.attach(run).await
    }

    fn note_job(&self, change: impl FnOnce(&mut JobStatus)) {
        if let Some(mut status) = self.job.get() {
            change(&mut status);
            self.job.set(Some(status));
        }
    }

    /// Between steps of the running job: fails if the file system is being unmounted, the job was
    /// cancelled, or a disk was lost since it began and a rebuild will begin by itself.
    pub(crate) fn job_may_go_on(&self) -> Result<()> {
        self.check()?;
        if self.job_end.get() == JobEnd::Cancelled {
            return Err(FsError::Cancelled);
        }
        match self.keeps.get() && self.pool.losses() > self.job_losses.get() {
            true => Err(FsError::GivenWay),
            false => Ok(()),
        }
    }

    /// The running job has done its work: from now on it cannot be cancelled. Fails if it was.
    pub(crate) fn job_nears_end(&self) -> Result<()> {
        self.job_may_go_on()?;
        self.job_end.set(JobEnd::Near);
        Ok(())
    }

    /// Whether a job that ended like this goes on later, by itself.
    pub(crate) fn job_goes_on_later<T>(&self, ended: &Result<T>) -> bool {
        self.stopped.get() || matches!(ended, Err(FsError::GivenWay))
    }

    /// What the running job has to do.
    pub(crate) fn job_total(&self, blocks: u64) {
        self.note_job(|status| status.total_blocks = blocks);
    }

    /// A part of the running job is done.
    pub(crate) fn job_done(&self, blocks: u64) {
        self.note_job(|status| status.done_blocks += blocks);
    }
}
