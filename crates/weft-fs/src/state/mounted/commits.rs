//! Commits: what makes the open transaction durable, and when.
//!
//! A commit flushes the disks, then stores the changes of rows, with the mark in the log before
//! which no record counts any more. Blocks that the transaction has freed are free from then on:
//! until then a crash would find the records that name them.

use std::rc::Rc;

use weft_rt::sync::Permit;

use super::{FsState, STEPS_TO_COMMIT};
use crate::disks::log_medium::{LogMedium, Ring};
use crate::disks::pool::runs_of;
use crate::error::Result;
use crate::format::extent::{Extent, Run};
use crate::format::inode::Ino;
use crate::meta::{RingRun, Tx};
use crate::raid_log::Medium as _;
use crate::state::open_files::Loss;

impl FsState {
    /// Between steps of an operation on very many rows: commits after some, so that neither the
    /// transaction nor the list of freed blocks grows with the operation.
    pub(crate) async fn commit_now_and_then(&self, steps: &mut u64) -> Result<()> {
        *steps += 1;
        match steps.is_multiple_of(STEPS_TO_COMMIT) {
            true => self.commit().await,
            false => self.commit_if_crowded().await,
        }
    }

    /// Commits if the database may have no room for more changes than the open transaction's
    /// ([`Meta::is_crowded`]). The caller does not hold the lock of flushes.
    pub(crate) async fn commit_if_crowded(&self) -> Result<()> {
        if !self.meta.is_crowded() {
            return Ok(());
        }
        // Many may find that at once.
        let _turn = self.crowded.acquire(1).await;
        if self.meta.needs_commit().await? { self.commit().await } else { Ok(()) }
    }

    /// The blocks of a record that was removed in the open transaction.
    pub(crate) fn free_later(&self, record: &Extent) {
        self.freed.borrow_mut().extend(runs_of(record));
    }

    /// A column that was replaced in the open transaction.
    pub(crate) fn free_run_later(&self, run: Run) {
        self.freed.borrow_mut().push(run);
    }

    /// Runs an operation that changes metadata, after a commit if much has changed. The caller does
    /// not hold the lock of flushes.
    pub(crate) async fn change<T>(
        &self,
        mut operation: impl FnOnce(&Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        loop {
            match self.meta.run_in_room(operation).await? {
                Ok(given) => return Ok(given),
                Err(again) => operation = again,
            }
            self.commit_if_crowded().await?;
        }
    }

    /// Makes the changes of a file durable. It needs no commit if the RAID log has all of that.
    pub(crate) async fn commit_file(&self, ino: Ino) -> Result<()> {
        match self.meta.has_changed(ino)? || self.has_unrecorded_losses() {
            true => self.commit().await,
            false => Ok(()),
        }
    }

    /// Makes the open transaction durable.
    pub(crate) async fn commit(&self) -> Result<()> {
        let pool = &self.pool;
        if self.meta.is_settled().await? && !self.has_unrecorded_losses() && !pool.bad.any_found() {
            return Ok(());
        }
        self.commit_anyway().await
    }

    /// Makes the open transaction durable, and with it the end of the dead part of the log.
    pub(crate) async fn commit_anyway(&self) -> Result<()> {
        let alone = self.flush_alone().await;
        self.commit_holding(Some(alone), None).await
    }

    /// Commits, for a caller that holds the lock of flushes.
    pub(crate) async fn commit_within_flush(&self) -> Result<()> {
        self.commit_holding(None, None).await
    }

    /// Makes the open transaction durable, and with it that the log is in another ring, which is
    /// empty.
    pub(crate) async fn commit_to_ring(&self, runs: &[RingRun]) -> Result<()> {
        let next = LogMedium::Ring(Ring::new(&self.pool, self.meta.number(), runs)?);
        let _alone = self.flush_alone().await;
        self.commit_holding(None, Some(runs)).await?;
        self.log.go_on_in(next.bytes());
        self.log_medium.replace(Rc::new(next));
        Ok(())
    }

    /// Commits and keeps the lock of flushes until the transaction has ended: no log record may
    /// come between the flush of the disks and the mark in the log.
    async fn commit_holding(
        &self,
        flushes: Option<Permit>,
        next_ring: Option<&[RingRun]>,
    ) -> Result<()> {
        let medium = self.log_medium();
        // New lines, and blocks of log records that the commit ends, may be in the caches of disks
        // only.
        let unflushed = self.unflushed.take();
        self.pool.flush().await;
        if let Some(ring) = medium.ring().filter(|_| next_ring.is_none())
            && let Err(error) = ring.check()
        {
            // It is the way of this node to the disks that fails, or there is nothing left to lose:
            // no other node must take them for lost.
            self.meta.fail(&error.to_string());
            return Err(error);
        }
        self.note_lost(&unflushed).await?;
        let last = |tx: &Tx<'_>| {
            let mark = match next_ring {
                None => self.log.mark(),
                Some(_) => self.log.mark_in_next(),
            };
            tx.set_mark(self.meta.number(), mark)?;
            let losses = self.pool.unrecorded_losses();
            if losses.is_some() {
                for member in self.pool.members().iter().filter(|member| member.is_lost()) {
                    let mut row = member.row().clone();
                    row.lost = true;
                    // The row of one that has just left the file system is gone.
                    if tx.has_disk(member.number)? {
                        tx.put_disk(member.number, &row)?;
                    }
                }
            }
            let given_up = medium.ring().and_then(|ring| Some((ring, ring.unrecorded()?)));
            if let Some((ring, _)) = given_up {
                ring.store(tx)?;
            }
            if let Some(next) = next_ring {
                tx.put_ring(self.meta.number(), next)?;
                tx.put_next_ring(self.meta.number(), &[])?;
            }
            for (disk, block) in self.pool.bad.take_found() {
                tx.put_bad(disk, block)?;
            }
            let moved = self.pool.bad.logged_elsewhere();
            drop(flushes);
            // If this is dropped, the next commit carries the same, and more.
            self.freeing.borrow_mut().append(&mut self.freed.borrow_mut());
            self.settling.borrow_mut().append(&mut self.meta.take_places());
            Ok((mark, (losses, given_up), moved))
        };
        let (mark, (losses, given_up), moved) = self.meta.commit(last).await?;
        self.pool.bad.durable(moved);
        self.log.retire(mark);
        self.pool.settle(self.settling.take());
        self.pool.release(self.freeing.take());
        if let Some(losses) = losses {
            self.pool.recorded(losses);
        }
        if let Some((ring, count)) = given_up {
            ring.recorded(count);
        }
        Ok(())
    }

    /// Lines were flushed, if their disks were not lost: notes the files with blocks that nothing
    /// can give.
    async fn note_lost(&self, lines: &[(Ino, u64, Extent)]) -> Result<()> {
        if self.pool.members().iter().all(|member| !member.is_lost()) {
            return Ok(());
        }
        let is_gone = |record| self.pool.lay(record).is_ok_and(|laid| !laid.is_readable());
        for (ino, first, _) in lines.iter().filter(|(_, _, record)| is_gone(record)) {
            // It may have been deleted since.
            if self.meta.run(|tx| tx.has_inode(*ino)).await? {
                self.lose(*ino, Loss::Disks(*first));
            }
        }
        Ok(())
    }
}
