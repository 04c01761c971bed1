//! The logs of nodes other than the keeper's own: where their rings lie, and from where on they
//! count.
//!
//! The table of rings has the runs of blocks of each node's ring, by the node and a number from 0
//! on. Runs of one disk are one copy, in their order. From [`NEXT_AT`] on there are those of a ring
//! that the node is to use in place of this one. The state has of each node the epoch of the mount
//! that uses the ring, whether what that mount has logged may have to be recovered, and the mark of
//! its last commit. Each row is written by its node, or for it when it is not mounted; but runs of
//! the next ring are added by node 0, and removed by the node.

use std::ops::{ControlFlow, Range};

use super::rows::{KeyRange, RINGS, RowKey, all, between};
use super::transaction::Tx;
use crate::error::{FsError, Result};
use crate::format::extent::Run;
use crate::raid_log::Mark;
use weft_token::NodeId;

/// Bytes of a run in its row: disk, whether it is given up, first block and number of blocks.
const RUN_BYTES: usize = 24;
/// Where the runs of a node's next ring start.
const NEXT_AT: u64 = 1 << 32;

/// A run of blocks of a copy of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingRun {
    pub(crate) run: Run,
    /// Whether its copy lacks log records: a write failed, although its disk works.
    pub(crate) is_given_up: bool,
}

impl RingRun {
    fn encode(&self) -> [u8; RUN_BYTES] {
        let mut bytes = [0; RUN_BYTES];
        bytes[..2].copy_from_slice(&self.run.disk.to_le_bytes());
        bytes[2] = u8::from(self.is_given_up);
        bytes[8..16].copy_from_slice(&self.run.start.to_le_bytes());
        bytes[16..].copy_from_slice(&self.run.blocks.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RUN_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let (disk, start, blocks) = (u16::from_le_bytes([bytes[0], bytes[1]]), word(8)?, word(16)?);
        start.checked_add(blocks).filter(|_| blocks > 0)?;
        Some(Self { run: Run { disk, start, blocks }, is_given_up: bytes[2] != 0 })
    }
}

/// The log of a node, as the metadata has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeLog {
    /// The epoch of the last mount that used it.
    pub(crate) epoch: u64,
    /// Whether that mount has not ended in order, and was not recovered.
    pub(crate) is_live: bool,
    /// The mark of its last commit.
    pub(crate) mark: Mark,
}

fn name_of(what: &str, node: u16) -> String {
    format!("{what} of node {node}")
}

impl Tx<'_> {
    /// The mark of a node's last commit.
    pub(crate) fn mark(&self, node: u16) -> Result<Mark> {
        let state = |what| match node {
            0 => self.state(what),
            node => self.state(&name_of(what, node)),
        };
        Ok(Mark { completed: state("completed")?, position: state("log")? })
    }

    /// A commit of a node has this mark.
    pub(crate) fn set_mark(&self, node: u16, mark: Mark) -> Result<()> {
        let set = |what, value| match node {
            0 => self.set_state(what, value),
            node => self.set_state(&name_of(what, node), value),
        };
        set("completed", mark.completed)?;
        set("log", mark.position)
    }

    /// The log of a node other than 0.
    pub(crate) fn node_log(&self, node: u16) -> Result<NodeLog> {
        Ok(NodeLog {
            epoch: self.state(&name_of("log epoch", node))?,
            is_live: self.state(&name_of("live log", node))? != 0,
            mark: self.mark(node)?,
        })
    }

    /// A node is mounted in an epoch: what it logs may have to be recovered.
    pub(crate) fn begin_node_log(&self, node: u16, epoch: u64) -> Result<()> {
        self.set_state(&name_of("log epoch", node), epoch)?;
        self.set_state(&name_of("live log", node), 1)
    }

    /// A mount of a node commits early: if it dies, its log may not have all that was synced.
    pub(crate) fn begin_early_commits(&self, node: NodeId) -> Result<()> {
        self.set_state(&name_of("early commits", node.number), node.epoch)
    }

    /// Whether a mount of a node commits early.
    pub(crate) fn commits_early(&self, node: NodeId) -> Result<bool> {
        Ok(self.state(&name_of("early commits", node.number))? == node.epoch)
    }

    /// What a mount of a node had committed early may not all be there.
    pub(crate) fn lose_early_commits(&self, node: NodeId) -> Result<()> {
        self.set_state(&name_of("lost early commits", node.number), node.epoch)
    }

    /// What a mount of a node had committed early is there.
    pub(crate) fn found_early_commits(&self, node: NodeId) -> Result<()> {
        match self.lost_early_commits(node.number)? == Some(node.epoch) {
            true => self.set_state(&name_of("lost early commits", node.number), 0),
            false => Ok(()),
        }
    }

    /// The last mount of a node that lost early commits; none if it has ended in order since.
    pub(crate) fn lost_early_commits(&self, node: u16) -> Result<Option<u64>> {
        Ok(Some(self.state(&name_of("lost early commits", node))?).filter(|epoch| *epoch > 0))
    }

    /// A node ends in order: it has nothing that was committed early.
    pub(crate) fn end_early_commits(&self, node: u16) -> Result<()> {
        for what in ["early commits", "lost early commits"] {
            if self.state(&name_of(what, node))? != 0 {
                self.set_state(&name_of(what, node), 0)?;
            }
        }
        Ok(())
    }

    /// Nothing that a node has logged has to be recovered.
    pub(crate) fn end_node_log(&self, node: u16) -> Result<()> {
        self.set_state(&name_of("live log", node), 0)
    }

    /// The epoch before which the keeper takes no mount of a node any more.
    pub(crate) fn refused_before(&self, node: u16) -> Result<u64> {
        self.state(&name_of("epoch", node))
    }

    /// The keeper takes no mount of a node before this epoch any more.
    pub(crate) fn refuse_before(&self, node: u16, epoch: u64) -> Result<()> {
        match self.refused_before(node)? < epoch {
            true => self.set_state(&name_of("epoch", node), epoch),
            false => Ok(()),
        }
    }

    /// The runs of a node's ring, in their order.
    pub(crate) fn ring(&self, node: u16) -> Result<Vec<RingRun>> {
        self.runs(node, 0..NEXT_AT)
    }

    /// The runs of the ring that a node is to use next; none if there is no such ring.
    pub(crate) fn next_ring(&self, node: u16) -> Result<Vec<RingRun>> {
        self.runs(node, NEXT_AT..u64::MAX)
    }

    /// A node gets a ring of these runs in place of the one that it had.
    pub(crate) fn put_ring(&self, node: u16, runs: &[RingRun]) -> Result<()> {
        self.put_runs(node, 0..NEXT_AT, runs)
    }

    /// A node is to use a ring of these runs.
    pub(crate) fn put_next_ring(&self, node: u16, runs: &[RingRun]) -> Result<()> {
        self.put_runs(node, NEXT_AT..u64::MAX, runs)
    }

    fn runs(&self, node: u16, numbers: Range<u64>) -> Result<Vec<RingRun>> {
        let mut runs = Vec::new();
        self.scan(&RINGS, &rows_of(node, numbers), |(node, _), row| {
            runs.push(decoded(node, row)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(runs)
    }

    fn put_runs(&self, node: u16, numbers: Range<u64>, runs: &[RingRun]) -> Result<()> {
        for (run, number) in runs.iter().zip(numbers.start..) {
            self.store(&RINGS, &(node.into(), number), &&run.encode()[..])?;
        }
        let mut gone = Vec::new();
        let behind = numbers.start + runs.len() as u64;
        self.scan(&RINGS, &rows_of(node, behind..numbers.end), |key, _| {
            gone.push(key);
            Ok(ControlFlow::Continue(()))
        })?;
        gone.iter().try_for_each(|key| self.drop_row(&RINGS, key))
    }

    /// All runs of rings, next ones as well, with their nodes.
    pub(crate) fn rings(&self) -> Result<Vec<(u16, RingRun)>> {
        let mut runs = Vec::new();
        self.scan(&RINGS, &all(), |(node, _), row| {
            let number = u16::try_from(node).map_err(|_| wrong(node))?;
            runs.push((number, decoded(node, row)?));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(runs)
    }

    /// The nodes that have a ring, with their logs.
    pub(crate) fn node_logs(&self) -> Result<Vec<(u16, NodeLog)>> {
        let mut nodes: Vec<u16> = self.rings()?.into_iter().map(|(node, _)| node).collect();
        nodes.dedup();
        nodes.into_iter().map(|node| Ok((node, self.node_log(node)?))).collect()
    }
}

fn rows_of(node: u16, numbers: Range<u64>) -> KeyRange<'static> {
    let node = u64::from(node);
    between(RowKey::pair(node, numbers.start), RowKey::pair(node, numbers.end))
}

fn wrong(node: u64) -> FsError {
    FsError::Damaged(format!("the ring of node {node} cannot be read"))
}

fn decoded(node: u64, row: &[u8]) -> Result<RingRun> {
    RingRun::decode(row).ok_or_else(|| wrong(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_reads_back_and_one_that_is_none_is_refused() {
        let run = RingRun { run: Run { disk: 3, start: 1 << 37, blocks: 256 }, is_given_up: true };
        let bytes = run.encode();
        assert_eq!(
            bytes[..],
            [&[3, 0, 1, 0, 0, 0, 0, 0][..], &(1_u64 << 37).to_le_bytes(), &256_u64.to_le_bytes()]
                .concat()
        );
        assert_eq!(RingRun::decode(&bytes), Some(run));
        assert_eq!(RingRun::decode(&bytes[1..]), None);
        let mut endless = bytes;
        endless[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(RingRun::decode(&endless), None);
        let mut empty = bytes;
        empty[16..].fill(0);
        assert_eq!(RingRun::decode(&empty), None);
    }
}
