//! Rings for the logs of nodes other than 0, which node 0 gives.
//!
//! A ring has up to three copies, on disks that take data, those with the most room first. It is
//! written with zeros, so that nothing in it is taken for a log record: what the blocks held before
//! may be a file's contents, and those may be anything. Then it comes into the metadata, and then
//! the node may use it. A mount of node 0 takes the blocks of all rings before it looks for free
//! ones.
//!
//! *Another place.* A ring on a disk that is lost or leaves, or with a copy that was given up,
//! moves. If the node is not mounted, its next mount gets another ring. If it is, node 0 gives it a
//! *next* ring. The node looks for that now and then, and takes it with a commit: all that it has
//! logged is part of that commit, so the next ring starts empty, and a crash leaves the node with
//! one or the other. Then node 0 has the blocks of the old one back. A disk does not leave while it
//! has blocks of a ring.

use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;

use futures_util::future::{Either, join_all, select};
use weft_disk::WriteOpts;
use weft_rt::{Nanos, SECOND};
use weft_token::NodeId;

use crate::error::{FsError, Result};
use crate::format::block::BLOCK_BYTES;
use crate::format::extent::Run;
use crate::meta::{FORMAT_WITH_RINGS, META_COPIES, NodeLog, RingRun};
use crate::raid_log::Mark;
use crate::state::mounted::{Fs, FsState};

/// A ring takes this part of the smallest disk, within bounds.
const DISK_PART: u64 = 64;
/// Blocks of a ring: 1 MiB to 16 MiB.
const BLOCKS: std::ops::RangeInclusive<u64> = 256..=4096;
/// The most runs of a copy, and the blocks of which each has a multiple.
const RUNS_MAX: usize = 16;
const UNIT_BLOCKS: u64 = 16;

/// How long a node that is prepared waits until it is known which blocks are free.
const KNOWN_WAIT: Nanos = 10 * SECOND;

/// Blocks of a copy of a ring.
fn blocks_of(runs: &[RingRun]) -> u64 {
    let of_first = runs.iter().filter(|run| run.run.disk == runs[0].run.disk);
    of_first.map(|run| run.run.blocks).sum()
}

/// A node that has a log on the disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node, and the epoch of its last mount.
    pub node: NodeId,
    /// Whether it is mounted; or it is dead, and not recovered.
    pub is_mounted: bool,
    /// The copies of its log.
    pub log: Vec<LogCopy>,
    /// Whether its last mount commits early.
    pub commits_early: bool,
    /// Blocks that it has committed early and that are in the memory of this node.
    pub early_blocks: usize,
    /// The last of its mounts that died together with a keeper: what it had committed early may not
    /// all be there. None if the node has ended in order since.
    pub lost_early_commits: Option<u64>,
}

/// A copy of a node's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogCopy {
    /// The number of its disk.
    pub disk: u16,
    /// Its blocks, in the order of the log.
    pub blocks: Vec<Range<u64>>,
    /// Whether it is not used any more, as a write failed.
    pub is_given_up: bool,
}

fn unknown_space() -> FsError {
    FsError::Invalid("not all nodes have said which blocks they have".to_owned())
}

fn not_ended(node: u16, epoch: u64) -> FsError {
    FsError::Invalid(format!(
        "node {node} is mounted in epoch {epoch}, or was, and its log is not recovered"
    ))
}

impl FsState {
    /// Gives a node that is not mounted a ring, if it has none or its ring has to move. It is there
    /// durably then.
    pub(crate) async fn give_ring(&self, node: u16) -> Result<()> {
        self.check_writable()?;
        self.meta().array()?;
        // The recovery of dead nodes, which this waits for, needs the lock.
        let known = self.space_desk().known();
        if let Either::Right(_) = select(pin!(known), pin!(self.rt().sleep(KNOWN_WAIT))).await {
            return Err(unknown_space());
        }
        let _one = self.begin_rings().await;
        // The node may have changed these rows.
        self.meta().forget_recent();
        let log = self.meta().run(|tx| tx.node_log(node)).await?;
        if node == 0 || log.is_live {
            return Err(not_ended(node, log.epoch));
        }
        self.renew_or_keep(node).await
    }

    /// A node mounts: gives it a ring, and says that it is mounted, and that its log starts at the
    /// start of the ring. It may be asked again.
    ///
    /// # Errors
    /// If its last mount has to be recovered first, or this one is over, or the disks have no room.
    pub(crate) async fn open_log(&self, node: NodeId) -> Result<()> {
        self.check_writable()?;
        let NodeId { number, epoch } = node;
        let _one = self.begin_rings().await;
        self.meta().forget_recent();
        let (log, bound) =
            self.meta().run(|tx| Ok((tx.node_log(number)?, tx.refused_before(number)?))).await?;
        if bound > epoch || log.epoch > epoch {
            return Err(FsError::Invalid(format!("epoch {epoch} of node {number} is over")));
        }
        match log.is_live {
            true if log.epoch == epoch => return Ok(()),
            true => return Err(not_ended(number, log.epoch)),
            false => self.renew_or_keep(number).await?,
        }
        self.meta()
            .run(|tx| {
                tx.set_mark(number, Mark { position: 0, ..log.mark })?;
                tx.begin_node_log(number, epoch)
            })
            .await?;
        self.commit().await
    }

    /// Gives a node another ring if it has to move, and there is room.
    async fn renew_or_keep(&self, node: u16) -> Result<()> {
        match self.renew_ring(node).await {
            // The one that it has is better than none.
            Err(FsError::NoSpace) if self.has_ring_to_use(node).await? => Ok(()),
            renewed => renewed,
        }
    }

    /// Whether a node has a ring with a copy that counts.
    async fn has_ring_to_use(&self, node: u16) -> Result<bool> {
        let runs = self.meta().run(|tx| tx.ring(node)).await?;
        let works = |disk: u16| self.pool().member(disk).is_some_and(|member| !member.is_lost());
        Ok(runs.iter().any(|run| !run.is_given_up && works(run.run.disk)))
    }

    /// The same, for a caller that holds the lock of rings.
    async fn renew_ring(&self, node: u16) -> Result<()> {
        self.free_left().await?;
        let (old, next) = self.meta().run(|tx| Ok((tx.ring(node)?, tx.next_ring(node)?))).await?;
        if self.is_good(&old) && next.is_empty() {
            return Ok(());
        }
        let fresh = match self.is_good(&next) {
            true => next.clone(),
            false => self.find_ring(blocks_of(&old)).await?,
        };
        self.meta()
            .run(|tx| {
                self.raise_format(tx, FORMAT_WITH_RINGS)?;
                tx.put_ring(node, &fresh)?;
                tx.put_next_ring(node, &[])?;
                let left = old.iter().chain(&next).filter(|run| !fresh.contains(run));
                left.for_each(|run| self.free_run_later(run.run));
                self.has_left_none(node);
                Ok(())
            })
            .await?;
        self.commit().await
    }

    /// Gives a node that is mounted a next ring, if its ring has to move.
    async fn give_next_ring(&self, node: u16) -> Result<()> {
        let (old, next) = self.meta().run(|tx| Ok((tx.ring(node)?, tx.next_ring(node)?))).await?;
        // The node may be about to use a next ring that is there.
        if self.is_good(&old) || !next.is_empty() {
            return Ok(());
        }
        let next = self.find_ring(blocks_of(&old)).await?;
        self.meta().run(|tx| tx.put_next_ring(node, &next)).await?;
        self.commit().await?;
        self.left_rings().borrow_mut().push((node, old));
        Ok(())
    }

    /// Has the blocks back of rings that their nodes have left.
    pub(crate) async fn free_left_rings(&self) -> Result<()> {
        if self.left_rings().borrow().is_empty() {
            return Ok(());
        }
        let _one = self.begin_rings().await;
        self.free_left().await
    }

    /// The same, for a caller that holds the lock of rings.
    async fn free_left(&self) -> Result<()> {
        let left = self.left_rings().take();
        let mut any = false;
        for (node, old) in left {
            let now = self.meta().run(|tx| tx.ring(node)).await;
            let is_used = |old: &RingRun| {
                now.as_ref().is_ok_and(|now| now.iter().any(|now| now.run == old.run))
            };
            match now.is_err() || old.iter().any(is_used) {
                true => self.left_rings().borrow_mut().push((node, old)),
                false => {
                    any = true;
                    old.iter().for_each(|old| self.free_run_later(old.run));
                }
            }
            now?;
        }
        // What the store says of a node's ring may not be durable yet. With this it is.
        if any { self.commit_anyway().await } else { Ok(()) }
    }

    /// The blocks of all rings of a node are freed with the next commit, also of the one that it
    /// was to leave.
    fn has_left_none(&self, node: u16) {
        self.left_rings().borrow_mut().retain(|(of, _)| *of != node);
    }

    /// The free blocks were found out again, and these are all rings: only those of them that are
    /// still used have to be freed later.
    pub(crate) fn left_rings_are_in(&self, rings: &[(u16, RingRun)]) {
        let is_used = |old: &RingRun| rings.iter().any(|(_, ring)| ring.run == old.run);
        self.left_rings().borrow_mut().retain(|(_, old)| old.iter().any(is_used));
    }

    /// The nodes whose rings have blocks on one of these disks.
    async fn ring_nodes_on(&self, disks: &BTreeSet<u16>) -> Result<BTreeSet<u16>> {
        let rings = self.meta().run(|tx| tx.rings()).await?;
        let on_disks = rings.into_iter().filter(|(_, run)| disks.contains(&run.run.disk));
        Ok(on_disks.map(|(node, _)| node).collect())
    }

    /// Whether a disk has blocks of a ring.
    pub(crate) async fn has_ring(&self, disk: u16) -> Result<bool> {
        Ok(!self.ring_nodes_on(&BTreeSet::from([disk])).await?.is_empty())
    }

    /// Gives rings on these disks another place, or sees to it that their nodes take another one.
    pub(crate) async fn move_rings_off(&self, disks: &BTreeSet<u16>) -> Result<()> {
        self.space_desk().known().await;
        let _one = self.begin_rings().await;
        self.free_left().await?;
        for node in self.ring_nodes_on(disks).await? {
            // The node may have changed these rows.
            self.meta().forget_recent();
            match self.meta().run(|tx| tx.node_log(node)).await?.is_live {
                true => self.give_next_ring(node).await?,
                false => self.renew_ring(node).await?,
            }
        }
        Ok(())
    }

    /// This node uses its next ring, if there is one.
    pub(crate) async fn take_next_ring(&self) -> Result<()> {
        let node = self.meta().number();
        let next = self.meta().run(|tx| tx.next_ring(node)).await?;
        if next.is_empty() { Ok(()) } else { self.commit_to_ring(&next).await }
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
        let disks: BTreeSet<u16> = runs.iter().map(|run| run.run.disk).collect();
        !disks.is_empty()
            && disks.len() == self.for_rings().len().min(META_COPIES)
            && runs.iter().all(|run| !run.is_given_up && takes_data(run))
    }

    /// Blocks for a ring, of at least `least` blocks, with zeros.
    async fn find_ring(&self, least: u64) -> Result<Vec<RingRun>> {
        if !self.space_desk().knows_all() {
            return Err(unknown_space());
        }
        let alone = self.flush_alone().await;
        let runs = self.allocate_ring(least)?;
        drop(alone);
        if let Err(error) = self.wipe(&runs).await {
            self.pool().release(runs.iter().map(|run| run.run));
            return Err(error);
        }
        Ok(runs)
    }

    fn allocate_ring(&self, least: u64) -> Result<Vec<RingRun>> {
        let smallest = self.pool().members().iter().map(|member| member.blocks()).min();
        let part = smallest.unwrap_or(0) / DISK_PART / UNIT_BLOCKS * UNIT_BLOCKS;
        let blocks = part.clamp(*BLOCKS.start(), *BLOCKS.end()).max(least);
        let (mut runs, mut copies) = (Vec::new(), 0);
        for (disk, _) in self.for_rings() {
            let Some(member) = self.pool().member(disk).filter(|_| copies < META_COPIES) else {
                break;
            };
            let taken = member.space.borrow_mut().take_long(blocks, UNIT_BLOCKS, RUNS_MAX);
            let run = |run: Range<u64>| RingRun {
                run: Run { disk, start: run.start, blocks: run.end - run.start },
                is_given_up: false,
            };
            copies += usize::from(taken.is_some());
            runs.extend(taken.unwrap_or_default().into_iter().map(run));
        }
        let dirty = self.unwritten().blocks();
        let wanted = self.for_rings().len().min(META_COPIES);
        if copies < wanted || copies == 0 || !self.promised().fits_lines(self.pool(), dirty, 0, 0) {
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

    /// A node does not come back: its ring is free.
    async fn forget_node(&self, node: u16) -> Result<()> {
        self.check_writable()?;
        self.meta().array()?;
        let _one = self.begin_rings().await;
        self.free_left().await?;
        self.meta().forget_recent();
        let log = self.meta().run(|tx| tx.node_log(node)).await?;
        if log.is_live {
            return Err(not_ended(node, log.epoch));
        }
        self.meta()
            .run(|tx| {
                let left = [tx.ring(node)?, tx.next_ring(node)?].concat();
                tx.put_ring(node, &[])?;
                tx.put_next_ring(node, &[])?;
                left.iter().for_each(|run| self.free_run_later(run.run));
                self.has_left_none(node);
                Ok(())
            })
            .await?;
        self.commit().await
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

    /// A node that is not mounted does not come back, or not soon: what is kept for it on the disks
    /// is free. It gets that again if it is prepared once more.
    ///
    /// # Errors
    /// If this is not node 0, or the node's last mount has not ended and was not recovered.
    pub async fn forget_node(&self, number: u16) -> Result<()> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.forget_node(number).await }).await
    }

    /// The nodes with numbers other than 0 that have logs on the disks.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>> {
        if self.0.meta().run(|tx| tx.rings()).await?.is_empty() {
            return Ok(Vec::new());
        }
        self.0.meta().forget_recent();
        self.0
            .meta()
            .run(|tx| {
                let node = |(number, log): (u16, NodeLog)| {
                    let mut copies: Vec<LogCopy> = Vec::new();
                    for RingRun { run, is_given_up } in tx.ring(number)? {
                        let range = run.start..run.start + run.blocks;
                        match copies.iter_mut().find(|copy| copy.disk == run.disk) {
                            Some(copy) => copy.blocks.push(range),
                            None => copies.push(LogCopy {
                                disk: run.disk,
                                blocks: vec![range],
                                is_given_up,
                            }),
                        }
                    }
                    let node = NodeId { number, epoch: log.epoch };
                    Ok(NodeStatus {
                        node,
                        is_mounted: log.is_live,
                        log: copies,
                        commits_early: tx.commits_early(node)?,
                        early_blocks: self.0.early_desk().blocks(number),
                        lost_early_commits: tx.lost_early_commits(number)?,
                    })
                };
                tx.node_logs()?.into_iter().map(node).collect()
            })
            .await
    }
}
