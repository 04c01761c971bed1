//! What other nodes have found out about disks, or done with them.
//!
//! Each node reads and writes the disks for itself. A disk that fails for it and for node 0, or
//! that has forgotten what the node has written, it loses ([`crate::disks::relayed`]). That is in
//! the metadata before the node writes anything which the disk misses. The keeper tells all nodes
//! before they can read a row of that batch, and they lose the disk at once
//! ([`Fs::lose_when_told`]). So no node takes for right what a lost disk has missed: a checksum
//! that says nothing is that of a block which no node reads.
//!
//! Node 0 also takes the token of everything for a moment. Jobs and commands that change disks have
//! this token, too. So a node looks at the rows of disks again before it uses the file system after
//! that.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::disks::member::Member;
use crate::error::Result;
use crate::format::block::BLOCK_BYTES;
use crate::format::label::Label;
use crate::meta::{DiskRow, LEAVING};
use crate::mount::{find_successors, format_of};
use crate::state::mounted::{Fs, FsState};

impl FsState {
    /// Looks at the rows of disks, which other nodes may have changed. A disk that has joined is
    /// taken in before anything else: no line is to be written in part.
    pub(crate) async fn learn_disks(&self) -> Result<()> {
        self.meta().forget_recent();
        let (rows, bad, leaving, format) = self
            .meta()
            .run(|tx| Ok((tx.disks()?, tx.bad_blocks()?, tx.state(LEAVING)?, format_of(tx)?)))
            .await?;
        let rows: BTreeMap<u16, DiskRow> = rows.into_iter().collect();
        if self.meta().number() != 0 {
            for (number, row) in &rows {
                if self.pool().member(*number).is_none() {
                    self.take_in_disk(*number, row.clone()).await?;
                }
            }
        }
        for member in self.pool().members() {
            let is_lost = rows.get(&member.number).is_some_and(|row| row.lost);
            if is_lost && !member.is_lost() {
                self.pool().lose_as_recorded(&member);
            }
        }
        for (disk, block) in bad {
            if let Some(member) = self.pool().member(disk) {
                member.space.borrow_mut().mark_bad(block);
            }
        }
        if self.meta().number() == 0 {
            // What else there is to know it has done itself.
            return Ok(());
        }
        self.set_format(format);
        for member in self.pool().members() {
            let number = member.number;
            let Some(row) = rows.get(&number) else {
                self.pool().forget_successor(number);
                self.pool().remove(number);
                continue;
            };
            match u64::from(number) + 1 == leaving {
                true => member.leave(),
                false => member.stay(),
            }
            if row.blocks > member.blocks() {
                self.learn_growth(&member, row.blocks).await?;
            }
        }
        find_successors(self.meta(), self.pool()).await
    }

    /// A disk has become larger.
    async fn learn_growth(&self, member: &Rc<Member>, blocks: u64) -> Result<()> {
        let Some(present) = member.present().filter(|_| !member.is_lost()) else { return Ok(()) };
        let label = Label::read(&*present.whole).await?;
        if let Some(label) = label.filter(|label| label.blocks >= blocks) {
            present.slice.extend(label.blocks * BLOCK_BYTES)?;
            member.grow(&label);
        }
        Ok(())
    }
}

impl Fs {
    /// Looks at the rows of disks before the next operation that follows one for which another
    /// node had the token of everything.
    pub(crate) fn learn_disks_when_outdated(&self) {
        let weak = Rc::downgrade(&self.0);
        self.0.tokens().on_outdated(move || {
            let weak = weak.clone();
            Box::pin(async move {
                let Some(fs) = weak.upgrade() else { return true };
                let learned = fs.learn_disks().await;
                if let Err(error) = &learned {
                    // It knows too little to go on.
                    fs.meta().fail(&error.to_string());
                }
                learned.is_ok()
            })
        });
    }
}
