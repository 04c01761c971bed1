//! What a node knows of the disks, when another node may have changed it.
//!
//! Which disks there are, which of them are lost or being emptied, their bad blocks, and the format
//! of the metadata: node 0 changes these while it alone has the token of everything. The others
//! look again when they have it again, before their next operation. A disk that has joined since is
//! not known here: its blocks are found when this node mounts again.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::error::Result;
use crate::mount::{LEAVING, find_successors, format_of};
use crate::state::mounted::{Fs, FsState};

impl FsState {
    async fn look_at_disks(&self) -> Result<()> {
        let (rows, leaving, bad, format) = self
            .meta()
            .run(|tx| Ok((tx.disks()?, tx.state(LEAVING)?, tx.bad_blocks()?, format_of(tx)?)))
            .await?;
        self.set_format(format);
        let known: BTreeSet<u16> = rows.iter().map(|(number, _)| *number).collect();
        for (number, row) in rows {
            let Some(member) = self.pool().member(number) else { continue };
            if row.lost && !member.is_lost() {
                self.pool().lose_as_recorded(&member);
            }
            match u64::from(number) + 1 == leaving {
                true => member.leave(),
                false => member.stay(),
            }
        }
        // One that was taken out has no blocks of files.
        for member in self.pool().members() {
            if !known.contains(&member.number) && !member.is_lost() {
                self.pool().lose_as_recorded(&member);
            }
        }
        for (disk, block) in bad {
            if let Some(member) = self.pool().member(disk) {
                member.space.borrow_mut().mark_bad(block);
            }
        }
        find_successors(self.meta(), self.pool()).await
    }
}

impl Fs {
    /// Looks at the disks again when another node may have changed what is known of them.
    pub(super) fn look_when_outdated(&self) {
        let weak = Rc::downgrade(&self.0);
        self.0.tokens().on_outdated(move || {
            let weak = weak.clone();
            Box::pin(async move {
                match weak.upgrade() {
                    Some(fs) => fs.look_at_disks().await.is_ok(),
                    None => true,
                }
            })
        });
    }
}
