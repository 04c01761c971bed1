//! Early commit: what a program syncs goes into the keeper's memory, and to the disks later.
//!
//! *Theory* (File RAID, §3.4). An fsync of overwritten blocks waits for a log record on the disks,
//! since the node may die. The memory of another machine outlives the node as well, and is reached
//! sooner than a disk. So a node that is told to sends these blocks to its keeper, and fsync
//! returns when the keeper has them. If the node dies, the keeper recovers its log, and then writes
//! what it has in memory.
//!
//! ```text
//!    write ─▶ dirty block ──fsync──▶ keeper's memory ──▶ fsync returns
//!                 │                       │
//!                 │ some seconds later    │ the node dies: written after its log is recovered
//!                 ▼                       │
//!        RAID log, blocks, commit ──done──▶ forgotten
//! ```
//!
//! *What differs from the paper.* There the log records themselves go to another node's memory, and
//! lines are overwritten after that. If both machines die, lines are half written and no record
//! tells which: parity and checksums of all lines would have to be found out again, and a lost disk
//! could not be computed. Here an early commit has blocks of files, and stands before the log. No
//! line is overwritten before the log on the disks has it. So when both machines die the file
//! system is as sound as after any crash, and lacks what was synced in the last seconds. A block
//! that is synced often goes to the disks once.
//!
//! *Which blocks.* Those that a log record would have with all contents: few blocks, all of which
//! have places in committed records, of a file to which nothing else was done since the last
//! commit. They need no room to be written again. Anything else is synced as without early commit.
//!
//! *Order.* An early commit must never be written over newer contents that somebody relies on. So
//! it ends, which the keeper confirms, after the contents are durable and before
//!
//! * an fsync of the file returns that went to the disks;
//! * the file's tokens are returned: other nodes may write it then;
//! * the file is cut, gets a hole, or takes the place of another one.
//!
//! Only a log record that has all contents may be relied on at once, since an fsync must not wait
//! for a keeper that is not there: the early commit has the number of the last log record before
//! it, and recovery leaves out blocks that a later one has. A commit that ends the log record
//! reaches the keeper after the word that the early commit is over.
//!
//! *Without a keeper*, and when an answer takes too long, syncs go to the log. A keeper's memory
//! goes with it. The node has all of its early commits that count, and gives them to the next
//! keeper on each connection.
//!
//! *What is assumed*: a node does not die together with its keeper, nor before the next keeper has
//! heard from it, unless it has written what was in memory by then. The metadata says which nodes
//! commit early, so that the keeper that recovers such a node can tell that something may be
//! missing.

use std::pin::pin;
use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use weft_rt::{Nanos, SECOND};
use weft_wire::{
    Answer, EARLY_ATTRIBUTES, EARLY_BLOCKS_MAX, EarlyCommit, EarlyLive, Question, ToKeeper,
};

use crate::error::{FsError, Result};
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::meta::desk::EarlyClient;
use crate::state::early_commits::{EarlyCounts, EarlyValue};
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::Node;
use crate::write::new_lines::covering;

/// How long an fsync waits for the keeper before it goes to the disks.
const PATIENCE: Nanos = SECOND;
/// How long no early commit is tried after one that failed.
const PAUSE: Nanos = 2 * SECOND;

/// What an fsync does about the blocks of a file.
type Values = Vec<(u64, EarlyValue)>;

impl FsState {
    /// Commits what waits of a file early. `false`: it has to go to the disks.
    pub(crate) async fn commit_early(self: &Rc<Self>, node: &Rc<Node>) -> Result<bool> {
        if !self.may_commit_early() {
            return Ok(false);
        }
        // No flush has blocks of it that are newer than what is committed here.
        let _alone = node.alone().await;
        node.set_only_flushed(true);
        let committed = self.try_commit_early(node).await;
        node.set_only_flushed(false);
        if self.early_commits().are_many() {
            self.write_early_soon();
        }
        committed
    }

    fn may_commit_early(&self) -> bool {
        self.early_commits().is_on()
            && self.early_commits().may_try(self.rt().now())
            && self.meta().link().is_some_and(|link| link.is_connected())
    }

    async fn try_commit_early(self: &Rc<Self>, node: &Rc<Node>) -> Result<bool> {
        let ino = node.ino;
        let new = self.new_values(node);
        if self.meta().has_changed(ino)? || self.has_unrecorded_losses() {
            return Ok(false);
        }
        if new.is_empty() {
            return Ok(!node.dirty.borrow().is_empty() || node.live.get().is_some());
        }
        let blocks: Vec<u64> = new.iter().map(|(block, _)| *block).collect();
        if blocks.len() > EARLY_BLOCKS_MAX || !self.early_commits().has_room(blocks.len()) {
            return Ok(false);
        }
        let have_places = self.meta().run(|tx| have_places(tx, ino, &blocks)).await?;
        if !have_places {
            return Ok(false);
        }
        let number = self.early_commits().begin(ino, self.log().last_id(), new);
        let commit = self.early_commits().commit(ino, number);
        let is_there = self.send(commit.expect("it has begun")).await;
        match is_there {
            true => self.early_commits().committed(ino, number),
            false => {
                self.early_commits().pause(self.rt().now() + PAUSE);
                // The keeper may be about to end.
                self.write_early_soon();
            }
        }
        Ok(is_there)
    }

    /// What waits of a file and is not in the keeper's memory.
    fn new_values(&self, node: &Node) -> Values {
        let dirty = node.dirty.borrow();
        let blocks =
            dirty.iter().map(|(block, (_, data))| (*block, EarlyValue::Block(data.clone())));
        let live = node.live.get().map(|live| (EARLY_ATTRIBUTES, EarlyValue::Attributes(live)));
        let is_new =
            |(block, value): &(u64, EarlyValue)| !self.early_commits().has(node.ino, *block, value);
        blocks.chain(live).filter(is_new).collect()
    }

    /// Whether the keeper has it now.
    async fn send(&self, commit: EarlyCommit) -> bool {
        let Some(link) = self.meta().link() else { return false };
        // It goes on if this does not wait for it any more: a message is sent as a whole.
        let asking = async move { link.ask_once(Question::Early(commit)).await };
        let (asked, patience) = (self.rt().spawn(asking), self.rt().sleep(PATIENCE));
        match select(pin!(asked), pin!(patience)).await {
            Either::Left((answer, _)) => answer == Some(Answer::Early(true)),
            Either::Right(_) => false,
        }
    }

    /// Writes what is committed early, in the background.
    fn write_early_soon(self: &Rc<Self>) {
        let Some(turn) = self.early_commits().begin_write() else { return };
        let fs = self.clone();
        self.rt().launch(Box::pin(async move {
            // What cannot be written stays, and fsync reports it.
            let _ = fs.write_all().await;
            drop(turn);
        }));
    }

    /// Makes a file durable on the disks if something of it was committed early. The caller holds
    /// its lock exclusively.
    pub(crate) async fn settle_early_locked(&self, node: &Rc<Node>) -> Result<()> {
        let early = self.early_commits().of_file(node.ino);
        if early.is_empty() {
            return Ok(());
        }
        self.flush_node(node).await?;
        self.commit().await?;
        self.end_early(&early).await
    }

    /// The same for a caller that does not hold the lock.
    pub(crate) async fn settle_early(&self, node: &Rc<Node>) -> Result<()> {
        let early = self.early_commits().of_file(node.ino);
        if early.is_empty() {
            return Ok(());
        }
        self.flush_file(node).await?;
        self.commit().await?;
        self.end_early(&early).await
    }

    async fn begin_early_commits(self: &Rc<Self>) -> Result<()> {
        let link = self.meta().link();
        let link = link.ok_or_else(|| {
            FsError::Invalid(
                "node 0 has the keeper in its own memory: it cannot commit early".into(),
            )
        })?;
        let node = link.node();
        self.meta().run(|tx| tx.begin_early_commits(node)).await?;
        self.commit().await?;
        self.early_commits().turn_on();
        link.set_early_client(Rc::new(EarlyOfNode(Rc::downgrade(self))));
        link.post(ToKeeper::EarlyLive(EarlyLive::default()));
        Ok(())
    }
}

/// Whether all of these blocks of a file have places that were written. Attributes need none.
fn have_places(tx: &Tx<'_>, ino: Ino, blocks: &[u64]) -> Result<bool> {
    for block in blocks.iter().filter(|block| **block != EARLY_ATTRIBUTES) {
        let covered = covering(tx, ino, *block)?.filter(|(_, record)| !record.unwritten);
        let has_place = covered.is_some_and(|(first, record)| {
            record.columns[record.locate(block - first).1].is_some()
        });
        if !has_place {
            return Ok(false);
        }
    }
    Ok(true)
}

struct EarlyOfNode(Weak<FsState>);

impl EarlyClient for EarlyOfNode {
    fn live(&self) -> (EarlyLive, Vec<EarlyCommit>) {
        self.0.upgrade().map(|fs| fs.early_commits().live()).unwrap_or_default()
    }
}

/// What this node commits early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EarlyStatus {
    /// Whether it is to do so.
    pub is_on: bool,
    /// Blocks and attributes of files that the disks may not have.
    pub waiting: usize,
    /// What became of it since the mount.
    pub counts: EarlyCounts,
}

impl Fs {
    /// From now on an fsync of overwritten blocks waits only until they are in the keeper's memory.
    /// If this node and the keeper die together, what was synced in the last seconds is lost.
    ///
    /// # Errors
    /// If this is node 0, or the metadata has failed.
    pub async fn begin_early_commits(&self) -> Result<()> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.begin_early_commits().await }).await
    }

    /// What this node commits early.
    #[must_use]
    pub fn early_status(&self) -> EarlyStatus {
        let early = self.0.early_commits();
        EarlyStatus { is_on: early.is_on(), waiting: early.count(), counts: early.counts() }
    }
}
