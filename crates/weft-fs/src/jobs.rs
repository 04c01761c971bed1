//! Long work: rebuilding, emptying a disk, scrubbing, giving files another redundancy.

use crate::error::{FsError, Result};
use crate::fsck::ScrubReport;
use crate::inode::Ino;
use crate::job::Job;
use crate::mounted::Fs;
use crate::rebuild::RebuildReport;
use crate::redundancy::Redundancy;

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReport {
    /// What lay on disks was moved to others.
    Moved(RebuildReport),
    /// Every block was read.
    Scrubbed(ScrubReport),
    /// Files have another redundancy.
    Set {
        /// The blocks that they had.
        blocks: u64,
    },
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
                Job::Set => Err(FsError::Invalid("it needs files".into())),
            }
        })
    }

    /// Begins to set the redundancy of files and folders. It is done by the future that is returned.
    ///
    /// # Errors
    /// If there are too few disks, or another job runs; the future fails as [`Fs::set_redundancy`].
    pub fn begin_set(
        &self,
        inos: Vec<Ino>,
        redundancy: Redundancy,
    ) -> Result<impl Future<Output = Result<JobReport>> + use<>> {
        self.0.check_redundancy(redundancy)?;
        let running = self.0.begin_job(Job::Set)?;
        Ok(async move {
            let fs = &running.0;
            let mut total = 0;
            for ino in &inos {
                total += fs.meta.run(|tx| Ok(tx.inode(*ino)?.blocks)).await?;
            }
            fs.job_total(total);
            let mut blocks = 0;
            for ino in inos {
                blocks += fs.set_redundancy(ino, redundancy).await?;
            }
            Ok(JobReport::Set { blocks })
        })
    }
}
