//! Long work: rebuilding, emptying a disk, scrubbing. One job runs at a time; it counts what is done.

use std::rc::Rc;

use crate::error::{FsError, Result};
use crate::fsck::ScrubReport;
use crate::mounted::{Fs, Inner};
use crate::rebuild::RebuildReport;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// It moves what lost disks held to others.
    Rebuild,
    /// It empties this disk, which then leaves.
    Remove(u16),
    /// It reads every block, and repairs those that are wrong.
    Scrub,
}

impl Job {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rebuild => "rebuild",
            Self::Remove(_) => "remove",
            Self::Scrub => "scrub",
        }
    }
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobStatus {
    /// What it does.
    pub job: Job,
    /// Blocks done.
    pub done_blocks: u64,
    /// Blocks in all, as known when it began.
    pub total_blocks: u64,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReport {
    /// What lay on disks was moved to others.
    Moved(RebuildReport),
    /// Every block was read.
    Scrubbed(ScrubReport),
}

/// A running job; it ends when this is dropped.
pub(crate) struct Running(Rc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.job.set(None);
    }
}

impl Inner {
    /// Begins a job.
    pub(crate) fn begin_job(self: &Rc<Self>, job: Job) -> Result<Running> {
        self.check()?;
        if let Some(running) = self.job.get() {
            return Err(FsError::Busy(running.job.name()));
        }
        self.job.set(Some(JobStatus { job, done_blocks: 0, total_blocks: 0 }));
        Ok(Running(self.clone()))
    }

    fn note_job(&self, change: impl FnOnce(&mut JobStatus)) {
        if let Some(mut status) = self.job.get() {
            change(&mut status);
            self.job.set(Some(status));
        }
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

impl Fs {
    /// Begins a job. It is carried out by the future that is returned.
    ///
    /// # Errors
    /// If another one runs; the future fails as [`Fs::rebuild`], [`Fs::remove_disk`] and
    /// [`Fs::scrub`] do.
    pub fn begin_job(&self, job: Job) -> Result<impl Future<Output = Result<JobReport>> + use<>> {
        let running = self.0.begin_job(job)?;
        Ok(async move {
            let fs = &running.0;
            match job {
                Job::Rebuild => fs.rebuild().await.map(JobReport::Moved),
                Job::Remove(number) => fs.remove_disk(number).await.map(JobReport::Moved),
                Job::Scrub => fs.scrub().await.map(JobReport::Scrubbed),
            }
        })
    }
}
