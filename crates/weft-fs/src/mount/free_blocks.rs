//! Node 0 finds out again which blocks are free, while other nodes are mounted.
//!
//! A node that dies leaves blocks that no other node knows to be free: its stock, those that it
//! took for records that never became durable, and those that it freed and did not give back.
//! Nothing names them. So all blocks are free that are none of these: pieces of the metadata, rings
//! of nodes, blocks of records, bad blocks. That is right while no node has free blocks of its own,
//! and no block is about to be named or freed: under the token of everything, with no flush, and
//! after a commit. Until then the blocks are taken, which does no harm.
//!
//! It takes as long as a mount needs for it, and nothing else goes on meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;

use weft_token::NodeId;

use crate::disks::free_map::Space;
use crate::disks::pool::runs_of;
use crate::error::{FsError, Result};
use crate::format::extent::Run;
use crate::meta::Tx;
use crate::mount::take_pieces;
use crate::state::mounted::{Fs, FsState};

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
        let space = |member: &std::rc::Rc<crate::disks::member::Member>| {
            (member.number, RefCell::new(Space::new(member.blocks())))
        };
        let found: BTreeMap<u16, RefCell<Space>> = members.iter().map(space).collect();
        for member in &members {
            let pieces = member.present().map(|present| present.label.borrow().pieces.clone());
            take_pieces(&found[&member.number], member.number, &pieces.unwrap_or_default())?;
        }
        let take = |run: Run| {
            let is_taken = self.pool().member(run.disk).is_some()
                && self
                    .pool()
                    .chain(run.disk)
                    .all(|member| found[&member.number].borrow_mut().take(run.start, run.blocks));
            let wrong = || {
                let Run { disk, start, .. } = run;
                FsError::Damaged(format!(
                    "block {start} of disk {disk} has two owners, or is not there"
                ))
            };
            is_taken.then_some(()).ok_or_else(wrong)
        };
        let rings = tx.rings()?;
        rings.iter().try_for_each(|(_, ring)| take(ring.run))?;
        tx.each_record(|_, _, record| runs_of(&record).try_for_each(take))?;
        for member in &members {
            let mut space = found[&member.number].borrow_mut();
            for block in member.space.borrow().bad_blocks() {
                space.mark_bad(*block);
            }
        }
        self.left_rings_are_in(&rings);
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
