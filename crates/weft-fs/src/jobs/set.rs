//! Laying out files that have got another redundancy, as a job.
//!
//! The files wait in a table of the metadata until their lines are durable, wherever they are laid
//! out: a job that begins again, also at another node 0, finds all that is left to do. Other nodes
//! lay out some of them ([`crate::jobs::part`]).

use weft_wire::{Moved, Task};

use crate::error::{FsError, Result};
use crate::format::inode::Ino;
use crate::jobs::file_queue::FileQueue;
use crate::jobs::parts::Parts;
use crate::meta::Tx;
use crate::state::mounted::FsState;

/// What a job has laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetReport {
    /// The blocks that the files had.
    pub blocks: u64,
    /// Of these, by other nodes.
    pub elsewhere_blocks: u64,
}

impl FsState {
    /// The files that wait to be laid out.
    async fn waiting_files(&self) -> Result<FileQueue> {
        let (mut files, mut from) = (Vec::new(), 0);
        let next = |tx: &Tx<'_>, from| -> Result<Option<(Ino, u64)>> {
            let next = tx.next_relayout(from)?;
            Ok(next.map(|ino| (ino, tx.inode(ino).map_or(0, |inode| inode.blocks))))
        };
        while let Some(file) = self.meta().run(|tx| next(tx, from)).await? {
            files.push(file);
            from = file.0 + 1;
        }
        Ok(FileQueue::of(files))
    }

    /// Rewrites all waiting files, as a job, with the help of other nodes. Continues with the next
    /// file if one cannot be rewritten: for want of room it stays as it is, in part.
    pub(crate) async fn relayout_waiting(&self) -> Result<SetReport> {
        let mut files = self.waiting_files().await?;
        self.job_total(files.blocks());
        let (mut report, mut parts, mut result) = (SetReport::default(), Parts::default(), Ok(()));
        loop {
            self.give_parts(&mut parts, Task::LAY_SINCE, |idle| {
                let files = files.take_part(idle);
                (!files.is_empty()).then(|| (files.clone(), Task::Lay { files }))
            });
            let next = files.take_next();
            if let Some(ino) = next {
                let step = |blocks| {
                    self.job_done(blocks);
                    self.job_may_go_on()
                };
                match self.relayout_file(ino, false, step).await {
                    Ok(blocks) => report.blocks += blocks,
                    Err(error) => result = result.and(Err(error)),
                }
                self.job_may_go_on()?;
            }
            match self.end_part(&mut parts, next.is_none()).await? {
                Some(Moved { found, blocks, waiting, .. }) => {
                    self.job_done(found);
                    report.blocks += blocks;
                    report.elsewhere_blocks += blocks;
                    files.put_back(waiting);
                }
                None if next.is_none() => return result.map(|()| report),
                None => {}
            }
        }
    }

    /// Lays out files for node 0, which knows of it as long as `is_known`. Those that this node
    /// cannot lay out as node 0 would are left to it, and go on waiting; all of them when a disk is
    /// lost, as the job gives way to a rebuild then.
    pub(crate) async fn lay_out_part(
        &self,
        files: Vec<Ino>,
        is_known: impl Fn() -> bool,
    ) -> Result<Moved> {
        let losses = self.pool().losses();
        let step = |_| {
            self.check()?;
            match is_known() && self.pool().losses() == losses {
                true => Ok(()),
                false => Err(FsError::GivenWay),
            }
        };
        let mut laid = Moved::default();
        for ino in files {
            let done = match step(0) {
                Ok(()) => self.relayout_file(ino, true, step).await,
                given_way => given_way.map(|()| 0),
            };
            self.check()?;
            match done {
                Ok(blocks) => laid.blocks += blocks,
                Err(_) => laid.waiting.push(ino),
            }
        }
        laid.found = laid.blocks;
        self.commit().await?;
        Ok(laid)
    }
}
