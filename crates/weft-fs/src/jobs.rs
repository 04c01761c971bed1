//! Long work: rebuilding, emptying a disk, balancing, scrubbing, giving files another redundancy.

pub(crate) mod awaited_part;
pub(crate) mod balance;
pub(crate) mod block_check;
pub(crate) mod cancellation;
mod column_copy;
pub(crate) mod departure;
pub(crate) mod departure_room;
pub(crate) mod file_queue;
pub(crate) mod findings;
pub(crate) mod fsck;
pub(crate) mod loss;
pub(crate) mod membership;
pub(crate) mod migration;
#[cfg(test)]
mod migration_story;
pub(crate) mod name_check;
pub(crate) mod part;
pub(crate) mod parts;
pub(crate) mod rebuild;
pub(crate) mod scheduler;
pub(crate) mod scrub;
pub(crate) mod set;
pub(crate) mod spread;
pub(crate) mod walk;

use crate::error::Result;
use crate::format::inode::Ino;
use crate::format::redundancy::Redundancy;
use crate::jobs::balance::BalanceReport;
use crate::jobs::rebuild::RebuildReport;
use crate::jobs::scrub::ScrubReport;
use crate::jobs::set::SetReport;
use crate::state::job::Job;
use crate::state::mounted::Fs;

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReport {
    /// The contents of disks were moved to other disks.
    Moved(RebuildReport),
    /// What is stored was spread over disks with more room.
    Balanced(BalanceReport),
    /// Every block was read.
    Scrubbed(ScrubReport),
    /// Files have another redundancy.
    Set(SetReport),
}

impl Fs {
    /// Starts a job. It is carried out by the future that is returned.
    ///
    /// # Errors
    /// If another one runs; the future fails as [`Fs::rebuild`], [`Fs::remove_disk`], [`Fs::scrub`]
    /// and [`Fs::set_redundancy`] do, or with [`crate::FsError::GivenWay`] or
    /// [`crate::FsError::Cancelled`].
    pub fn begin_job(&self, job: Job) -> Result<impl Future<Output = Result<JobReport>> + use<>> {
        let running = self.0.begin_job(job)?;
        Ok(async move {
            let fs = &running.0;
            match job {
                Job::Rebuild => fs.rebuild().await.map(JobReport::Moved),
                Job::Remove(number) => fs.remove_disk(number).await.map(JobReport::Moved),
                Job::Balance => fs.balance().await.map(JobReport::Balanced),
                Job::Scrub => fs.scrub().await.map(JobReport::Scrubbed),
                Job::Set => fs.relayout_waiting().await.map(JobReport::Set),
            }
        })
    }

    /// Sets the redundancy of files and folders, durably. What they hold is laid out by the next
    /// [`Job::Set`], which starts automatically if jobs do ([`Fs::keep`]).
    ///
    /// # Errors
    /// If there are too few disks, and if one of these files is gone, after the other files are
    /// done.
    pub async fn want_redundancy(&self, inos: &[Ino], redundancy: Redundancy) -> Result<()> {
        self.0.check_redundancy(redundancy)?;
        let mut wanted = Ok(());
        for ino in inos {
            wanted = wanted.and(self.0.want_redundancy(*ino, redundancy).await);
        }
        self.0.commit().await?;
        wanted
    }
}
