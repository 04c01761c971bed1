//! Which blocks are free: all that are none of these: pieces of the metadata, rings of nodes,
//! blocks of records, bad blocks. A mount takes them in one pass over the records.
//!
//! *While other nodes are mounted* node 0 finds that out again. A node that dies leaves blocks that
//! no other node knows to be free: its stock, those that it took for records that never became
//! durable, and those that it freed and did not give back. Nothing names them. The rule is right
//! while no node has free blocks of its own, and no block is about to be named or freed: under the
//! token of everything, with no flush, and after a commit. Until then the blocks are taken, which
//! does no harm. It takes as long as a mount needs for it, and nothing else goes on meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use weft_token::NodeId;

use crate::disks::free_map::Space;
use crate::disks::member::Member;
use crate::disks::pool::{Pool, runs_of};
use crate::error::{FsError, Result};
use crate::format::extent::Run;
use crate::meta::{Meta, Tx};
use crate::mount::given_disks::{check_keys, check_place};
use crate::state::mounted::{Fs, FsState};

/// Calls `take` with all blocks that rings and records name, once for each disk that has them. It
/// returns whether they are there and have no other owner.
fn each_named(tx: &Tx<'_>, pool: &Pool, mut take: impl FnMut(&Member, &Run) -> bool) -> Result<()> {
    let next = check_keys(tx)?;
    let mut take_all = |run: Run, what: &dyn Fn() -> String| {
        let is_there = pool.member(run.disk).is_some();
        if is_there && pool.chain(run.disk).all(|member| take(&member, &run)) {
            return Ok(());
        }
        let Run { disk, start, .. } = run;
        Err(FsError::Damaged(format!(
            "{} lies at block {start} of disk {disk}, which is not there or has another owner",
            what()
        )))
    };
    for (node, ring) in tx.rings()? {
        take_all(ring.run, &|| format!("the log of node {node}"))?;
    }
    tx.each_record(|ino, first, record| {
        check_place(next, (ino, first), &record)?;
        let what = || format!("block {first} of inode {ino}");
        runs_of(&record).try_for_each(|run| take_all(run, &what))
    })
}

/// Takes the blocks that have owners, but for bad ones. A stale copy of the metadata may name
/// blocks that became pieces after it was written: returns how many pieces in the labels of such
/// disks come before these.
pub(super) async fn claim_space(
    meta: &Meta,
    pool: &Pool,
    is_stale: bool,
) -> Result<BTreeMap<u16, usize>> {
    for member in pool.members() {
        take_pieces_of(&member, &member.space)?;
    }
    let mut wrong_pieces: BTreeMap<u16, usize> = BTreeMap::new();
    let take = |member: &Member, run: &Run| {
        let is_taken = member.space.borrow_mut().take(run.start, run.blocks);
        let wrong = (is_stale && !is_taken).then(|| first_piece_within(member, run));
        let Some(wrong) = wrong.flatten() else { return is_taken };
        let first = wrong_pieces.entry(member.number).or_insert(wrong);
        *first = wrong.min(*first);
        true
    };
    meta.run(|tx| each_named(tx, pool, take)).await?;
    Ok(wrong_pieces)
}

/// Takes the pieces of a disk's metadata slice.
fn take_pieces_of(member: &Member, space: &RefCell<Space>) -> Result<()> {
    let pieces = member.present().map(|present| present.label.borrow().pieces.clone());
    take_pieces(space, member.number, &pieces.unwrap_or_default())
}

/// The place in the label's list of the first piece of the metadata that has blocks of a run.
fn first_piece_within(member: &Member, run: &Run) -> Option<usize> {
    let label = member.present()?.label.borrow();
    let end = run.start + run.blocks;
    label.pieces.iter().position(|piece| piece.start < end && run.start < piece.end)
}

/// Lets labels have only their first pieces. The metadata, which is stale, uses no others: a slice
/// got them later.
///
/// # Errors
/// If the metadata lies on them, or a disk fails.
pub(super) async fn give_pieces_back(
    meta: &Meta,
    pool: &Pool,
    counts: &BTreeMap<u16, usize>,
) -> Result<()> {
    let needed = meta.array()?.status().member_bytes;
    for (number, count) in counts {
        let member = pool.member(*number);
        let Some(present) = member.as_ref().and_then(|member| member.present()) else { continue };
        let label = present.label.borrow().with_first_pieces(*count);
        if label.metadata_bytes() < needed {
            return Err(FsError::Damaged(format!(
                "files have blocks of disk {number} on which the metadata lies"
            )));
        }
        label.write_pieces(&*present.whole).await?;
    }
    Ok(())
}

/// Takes these pieces of a disk's metadata slice.
pub(crate) fn take_pieces(
    space: &RefCell<Space>,
    number: u16,
    pieces: &[Range<u64>],
) -> Result<()> {
    for piece in pieces {
        if !space.borrow_mut().take(piece.start, piece.end - piece.start) {
            return Err(FsError::Damaged(format!(
                "blocks {} to {} of disk {number} are a piece of the metadata, and are not there or have \
                 another owner",
                piece.start,
                piece.end - 1
            )));
        }
    }
    Ok(())
}

/// Takes the blocks that are known to be bad.
pub(super) async fn avoid_bad(meta: &Meta, pool: &Pool) -> Result<()> {
    for (disk, block) in meta.run(|tx| tx.bad_blocks()).await? {
        if let Some(member) = pool.member(disk) {
            member.space.borrow_mut().mark_bad(block);
        }
    }
    Ok(())
}

impl FsState {
    /// Finds out which blocks are free. No node has free blocks of its own: the caller holds the
    /// token of everything exclusively.
    async fn find_free_blocks(&self) -> Result<()> {
        let _slices = self.change_slices().await;
        let _rings = self.begin_rings().await;
        let _alone = self.flush_alone().await;
        self.meta().forget_recent();
        loop {
            self.commit_within_flush().await?;
            if self.meta().run(|tx| self.find_free_blocks_in(tx)).await? {
                // A node may just have left a ring, with a commit that is not durable yet. With
                // this one it is, before the blocks are used.
                return self.commit_within_flush().await;
            }
        }
    }

    /// `false` if something was freed since the last commit.
    fn find_free_blocks_in(&self, tx: &Tx<'_>) -> Result<bool> {
        if !self.freed().is_empty() {
            return Ok(false);
        }
        let members = self.pool().members();
        let space =
            |member: &Rc<Member>| (member.number, RefCell::new(Space::new(member.blocks())));
        let found: BTreeMap<u16, RefCell<Space>> = members.iter().map(space).collect();
        for member in &members {
            take_pieces_of(member, &found[&member.number])?;
        }
        each_named(tx, self.pool(), |member, run| {
            found[&member.number].borrow_mut().take(run.start, run.blocks)
        })?;
        for member in &members {
            let mut space = found[&member.number].borrow_mut();
            for block in member.space.borrow().bad_blocks() {
                space.mark_bad(*block);
            }
        }
        self.left_rings_are_in(&tx.rings()?);
        // Nothing was taken or freed meanwhile: this is one operation, and no flush runs.
        for (number, space) in found {
            if let Some(member) = self.pool().member(number) {
                member.space.replace(space.into_inner());
            }
        }
        Ok(true)
    }
}

impl Fs {
    /// The same in the background.
    pub(super) fn reclaim_space_soon(&self) {
        let fs = self.clone();
        // If it fails the blocks stay taken until it is done once more, or until the next mount.
        self.0.rt().launch(Box::pin(async move { drop(fs.reclaim_space().await) }));
    }

    /// Node 0 finds out which blocks are free, after nodes died. That
    /// [they are recovered](Self::recover_node) starts this as well. It waits until no operation
    /// runs on any node.
    ///
    /// # Errors
    /// If this is not node 0, or the metadata has failed or is damaged.
    pub async fn reclaim_space(&self) -> Result<()> {
        self.0.check_writable()?;
        self.0.meta().array()?;
        // Tokens keep other nodes off. A batch of a job of this node has blocks that no record
        // names yet; it takes tokens after its room, too.
        let _no_batch = self.0.promised().hold(0).await;
        // An unmount has waited for the batch before.
        self.0.check()?;
        let _alone = self.0.hold_all_tokens().await;
        if let Some(node) = self.0.space_desk().any_with_blocks() {
            let NodeId { number, .. } = node;
            return Err(FsError::Invalid(format!(
                "node {number} has not returned its free blocks"
            )));
        }
        self.0.find_free_blocks().await
    }
}
