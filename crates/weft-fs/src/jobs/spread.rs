//! Spreading what a job moves over the nodes, as node 0 does it: it gives whole files to nodes that
//! have nothing to do, goes on with the rest itself, and does what they could not
//! ([`crate::jobs::part`] has the other end).

use std::collections::VecDeque;

use weft_wire::{Outcome, Task};

use crate::error::Result;
use crate::format::inode::Ino;
use crate::jobs::migration::{Decide, MigrationReport};
use crate::jobs::walk::Walk;
use crate::state::mounted::FsState;
use crate::state::work_desk::Awaited;

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
        let mut given: VecDeque<(Vec<Ino>, Awaited)> = VecDeque::new();
        let mut parts = 0;
        loop {
            while let idle = job.version().map_or(0, |version| self.work_desk().idle(version))
                && idle > 0
            {
                let files = walk.take_files(idle);
                if files.is_empty() {
                    break;
                }
                let part = self.work_desk().give(job.task(files.clone(), idle));
                given.push_back((files, part));
                parts += 1;
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
            // Those that are done, or the first one if nothing else is left to do.
            let ready = match some.is_empty() {
                true => Some(0),
                false => given.iter().position(|(_, part)| part.is_ready()),
            };
            let Some((files, mut part)) = ready.and_then(|at| given.remove(at)) else {
                if some.is_empty() {
                    return Ok(parts);
                }
                continue;
            };
            match self.await_part(&mut part).await? {
                Some(Outcome::Moved(part)) => {
                    self.job_done(job.progress(part.found, part.blocks));
                    walk.put_back(part.waiting.iter().copied());
                    moved.add_part(part);
                }
                _ => walk.put_back(files),
            }
        }
    }
}
