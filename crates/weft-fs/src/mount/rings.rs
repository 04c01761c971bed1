//! Rings for the logs of nodes other than 0, which node 0 gives.
//!
//! A ring has up to three copies, on disks that take data, those with the most room first. It is
//! written with zeros, so that nothing in it is taken for a log record: what the blocks held before
//! may be a file's contents, and those may be anything. Then it comes into the metadata, and then
//! the node may use it. A mount of node 0 takes the blocks of all rings before it looks for free
//! ones.
//!
//! A ring on a disk that is lost, or leaves, or with a copy that was given up, gets another place
//! when the node is not mounted: at its next mount, or before the disk goes.

use futures_util::future::join_all;
use weft_disk::WriteOpts;

use crate::disks::log_medium::Ring;
use crate::error::{FsError, Result};
use crate::format::block::BLOCK_BYTES;
use crate::format::extent::Run;
use crate::meta::{FORMAT_WITH_RINGS, META_COPIES, RingRun};
use crate::state::mounted::{Fs, FsState};

/// A ring takes this part of the smallest disk, within bounds.
const DISK_PART: u64 = 64;
/// Blocks of a ring: 1 MiB to 16 MiB.
const BLOCKS: std::ops::RangeInclusive<u64> = 256..=4096;
/// The most runs of a copy, and the blocks of which each has a multiple.
const RUNS_MAX: usize = 16;
const UNIT_BLOCKS: u64 = 16;

impl FsState {
    /// Gives a node a ring, if it has none or its ring has to move. It is there durably then.
    pub(crate) async fn give_ring(&self, node: u16) -> Result<()> {
        self.check_writable()?;
        self.meta().array()?;
        let _one = self.begin_rings().await;
        // The node may have changed these rows.
        self.meta().forget_recent();
        let (log, old) = self.meta().run(|tx| Ok((tx.node_log(node)?, tx.ring(node)?))).await?;
        if node == 0 || log.is_live {
            return Err(FsError::Invalid(format!(
                "node {node} is mounted in epoch {}, or was, and its log is not recovered",
                log.epoch
            )));
        }
        if self.is_good(&old) {
            return Ok(());
        }
        let alone = self.flush_alone().await;
        let runs = self.allocate_ring()?;
        drop(alone);
        if let Err(error) = self.wipe(&runs).await {
            self.pool().release(runs.iter().map(|run| run.run));
            return Err(error);
        }
        Ring::new(self.pool(), node, &runs)?;
        self.meta()
            .run(|tx| {
                self.raise_format(tx, FORMAT_WITH_RINGS)?;
                tx.put_ring(node, &runs)?;
                old.iter().for_each(|old| self.free_run_later(old.run));
                Ok(())
            })
            .await?;
        self.commit().await
    }

    /// Disks that may have a copy, those with the most room first.
    fn for_rings(&self) -> Vec<(u16, u64)> {
        let members = self.pool().members();
        let members = members.iter().filter(|member| member.takes_data());
        let mut free: Vec<_> =
            members.map(|member| (member.number, member.free_blocks())).collect();
        free.sort_by_key(|(_, free)| std::cmp::Reverse(*free));
        free
    }

    /// Whether a ring can be used as it is.
    fn is_good(&self, runs: &[RingRun]) -> bool {
        let takes_data = |run: &RingRun| {
            self.pool().member(run.run.disk).is_some_and(|member| member.takes_data())
        };
        let mut disks: Vec<u16> = runs.iter().map(|run| run.run.disk).collect();
        disks.dedup();
        disks.len() == self.for_rings().len().min(META_COPIES)
            && runs.iter().all(|run| !run.is_given_up && takes_data(run))
    }

    fn allocate_ring(&self) -> Result<Vec<RingRun>> {
        let smallest = self.pool().members().iter().map(|member| member.blocks()).min();
        let part = smallest.unwrap_or(0) / DISK_PART / UNIT_BLOCKS * UNIT_BLOCKS;
        let blocks = part.clamp(*BLOCKS.start(), *BLOCKS.end());
        let mut runs = Vec::new();
        for (disk, _) in self.for_rings().into_iter().take(META_COPIES) {
            let member = self.pool().member(disk).ok_or(FsError::NoSpace)?;
            let taken = member.space.borrow_mut().take_long(blocks, UNIT_BLOCKS, RUNS_MAX);
            let taken = taken.unwrap_or_default().into_iter();
            let run = |run: std::ops::Range<u64>| RingRun {
                run: Run { disk, start: run.start, blocks: run.end - run.start },
                is_given_up: false,
            };
            runs.extend(taken.map(run));
        }
        let dirty = self.unwritten().blocks();
        if runs.is_empty() || !self.promised().fits_lines(self.pool(), dirty, 0, 0) {
            self.pool().release(runs.iter().map(|run| run.run));
            return Err(FsError::NoSpace);
        }
        Ok(runs)
    }

    /// Writes zeros, durably.
    async fn wipe(&self, runs: &[RingRun]) -> Result<()> {
        let wipes = runs.iter().map(|RingRun { run, .. }| async move {
            let member = self.pool().member(run.disk).ok_or(FsError::NoSpace)?;
            let disk = member.data().ok_or(FsError::NoSpace)?;
            let (from, len) = (run.start * BLOCK_BYTES, run.blocks * BLOCK_BYTES);
            let zeros = WriteOpts { fua: true, ..WriteOpts::MAINTENANCE };
            let wiped = disk.write_zeroes(from, len, zeros).await;
            if wiped.is_err() {
                self.pool().diagnose(&member).await;
            }
            Result::Ok(wiped?)
        });
        join_all(wipes).await.into_iter().collect()
    }
}

impl Fs {
    /// Gives a node with a number that is not 0 what it must have before it can be mounted: a log
    /// on the disks.
    ///
    /// # Errors
    /// If this is not node 0, the disks have no room, or the node's last mount was not recovered.
    pub async fn prepare_node(&self, number: u16) -> Result<()> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.give_ring(number).await }).await
    }
}
