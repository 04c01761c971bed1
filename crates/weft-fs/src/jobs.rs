//! Long work: rebuilding, emptying a disk, scrubbing.

use crate::error::Result;
use crate::fsck::ScrubReport;
use crate::job::Job;
use crate::mounted::Fs;
use crate::rebuild::RebuildReport;

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReport {
    /// What lay on disks was moved to others.
    Moved(RebuildReport),
    /// Every block was read.
    Scrubbed(ScrubReport),
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
