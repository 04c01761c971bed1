//! Spreading what a job moves over the nodes, as node 0 does it: it gives whole files to nodes that
//! have nothing to do, goes on with the rest itself, and does what they could not.

use weft_wire::Task;

use crate::error::Result;
use crate::format::inode::Ino;
use crate::jobs::migration::{Decide, MigrationReport};
use crate::jobs::parts::Parts;
use crate::jobs::walk::Walk;
use crate::state::mounted::FsState;

/// A job that moves columns of files, some of them at other nodes.
pub(crate) trait SpreadMoves {
    /// Whether what a batch has left must be free before the next one.
    const COMMITS: bool;

    /// The version of messages from which on nodes know its tasks; none if they get none.
    fn version(&self) -> Option<u16>;

    /// Decides on the records of a batch of node 0, by how things stand now.
    fn decide(&self) -> impl Decide;

    /// What one of so many idle nodes is to do with some files.
    fn task(&self, files: Vec<Ino>, idle: usize) -> Task;

    /// How much of the job's total is done, if these blocks were found and these were moved.
    fn progress(&self, found: u64, moved: u64) -> u64;
}

impl FsState {
    /// Moves what a walk finds, with the help of other nodes. Returns how many parts they got.
    pub(crate) async fn move_all<J: SpreadMoves>(
        &self,
        mut walk: Walk,
        job: &J,
        moved: &mut MigrationReport,
    ) -> Result<usize> {
        let mut parts = Parts::default();
        loop {
            if let Some(version) = job.version() {
                self.give_parts(&mut parts, version, |idle| {
                    let files = walk.take_part(idle);
                    (!files.is_empty()).then(|| (files.clone(), job.task(files, idle)))
                });
            }
            let some = self.next_found(&mut walk, &job.decide()).await?;
            if !some.is_empty() {
                let before = moved.blocks;
                self.move_some(&some, &job.decide(), moved).await?;
                if J::COMMITS {
                    self.commit().await?;
                }
                let found = some.iter().map(|found| found.blocks).sum();
                self.job_done(job.progress(found, moved.blocks - before));
                self.job_may_go_on()?;
            }
            match self.end_part(&mut parts, some.is_empty()).await? {
                Some(part) => {
                    self.job_done(job.progress(part.found, part.blocks));
                    walk.put_back(part.waiting.iter().copied());
                    moved.add_part(part);
                }
                None if some.is_empty() => return Ok(parts.count),
                None => {}
            }
        }
    }
}
