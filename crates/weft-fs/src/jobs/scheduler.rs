//! Jobs that start automatically: rebuilds, and jobs that an unmount or a crash has interrupted.
//!
//! ```text
//!   a disk is lost ─────────────────▶ rebuild
//!   a disk is leaving ──────────────▶ remove     goes on, from what is left to do
//!   files wait to be laid out anew ─▶ set        goes on, with the files that still wait
//!   a balance is wanted ────────────▶ balance    goes on, if the disks are not alike yet
//!   a scrub was interrupted ────────▶ scrub      goes on near where it was
//! ```
//!
//! All of them are in the metadata: lost disks in their rows, the disk that is leaving and that a
//! balance is wanted in the state, files that wait in a table of their own. So no progress has to
//! be stored: the remaining work follows from the places of the blocks. Only a scrub notes its
//! place, now and then ([`crate::jobs::scrub`]).
//!
//! One job runs at a time, and a rebuild goes first: another one that is running when a disk is
//! lost ends after its step ([`FsState::job_may_go_on`]), and resumes after the rebuild.
//!
//! A job that could not do all of its work, for want of room or disks, is tried again when a disk
//! has joined or was lost, or a file is to have another redundancy, and otherwise now and then, as
//! files may have been deleted.

use std::rc::Rc;

use weft_rt::{Nanos, SECOND};

use crate::error::Result;
use crate::jobs::JobReport;
use crate::jobs::balance;
use crate::jobs::scrub;
use crate::meta::Tx;
use crate::state::job::Job;
use crate::state::mounted::{Fs, FsState};

/// Time between two looks.
const LOOK_EVERY: Nanos = SECOND;
/// After this time a job is tried again that could not do all of its work.
const AGAIN_AFTER: Nanos = 600 * SECOND;

/// On what it depends whether a job can do its work: losses so far, disks, and redundancies that
/// were wanted so far.
type Standing = (u64, usize, u64);

/// A job that was tried, how things stood, and when.
struct FailedAttempt {
    job: Job,
    standing: Standing,
    ended: Nanos,
}

impl FsState {
    fn standing(&self) -> Standing {
        (self.pool().losses(), self.pool().members().len(), self.wanted())
    }

    /// What there is to do, the most urgent first.
    pub(crate) async fn due(&self) -> Result<Vec<Job>> {
        let members = self.pool().members();
        let mut due = Vec::new();
        if members.iter().any(|member| member.is_lost()) {
            due.push(Job::Rebuild);
        }
        let leaving = members.iter().filter(|member| member.is_leaving());
        due.extend(leaving.map(|member| Job::Remove(member.number)));
        let wanted = |tx: &Tx<'_>| {
            Ok([
                (Job::Set, tx.next_relayout(0)?.is_some()),
                (Job::Balance, balance::is_wanted(tx)?),
                (Job::Scrub, scrub::is_wanted(tx)?),
            ])
        };
        let wanted = self.meta().run(wanted).await?;
        due.extend(wanted.into_iter().filter(|(_, is_due)| *is_due).map(|(job, _)| job));
        Ok(due)
    }

    /// The next job to start.
    async fn next_job(&self, tried: &[FailedAttempt]) -> Option<Job> {
        let was_tried = |job: &Job| {
            tried.iter().any(|tried| {
                tried.job == *job
                    && tried.standing == self.standing()
                    && self.rt().now() - tried.ended < AGAIN_AFTER
            })
        };
        // Metadata that has failed has nothing to keep.
        let due = self.due().await.unwrap_or_default();
        due.into_iter().find(|job| !was_tried(job))
    }
}

impl Fs {
    /// From now on jobs start automatically. `note` hears how each of them has ended.
    pub fn keep(&self, note: impl Fn(Job, Result<JobReport>) + 'static) {
        if self.0.is_read_only() {
            return;
        }
        self.0.begin_jobs_automatically();
        let (fs, rt) = (Rc::downgrade(&self.0), self.0.rt().clone());
        self.0.rt().spawn(async move {
            let mut tried: Vec<FailedAttempt> = Vec::new();
            loop {
                rt.sleep(LOOK_EVERY).await;
                let Some(fs) = fs.upgrade().filter(|fs| !fs.is_stopped()) else { return };
                let fs = Self(fs);
                let Some(job) = fs.0.next_job(&tried).await else { continue };
                let Ok(running) = fs.begin_job(job) else { continue };
                let standing = fs.0.standing();
                let ended = running.await;
                // No file waits then, but those that were set meanwhile, also on other nodes.
                let is_all_done = matches!(ended, Ok(JobReport::Set(_)));
                note(job, ended);
                tried.retain(|tried| tried.job != job);
                if !is_all_done {
                    tried.push(FailedAttempt { job, standing, ended: rt.now() });
                }
            }
        });
    }
}
