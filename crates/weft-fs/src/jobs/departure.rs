//! The departure of a disk that holds nothing any more.

use std::rc::Rc;

use crate::disks::member::Member;
use crate::disks::successor::forget_in;
use crate::error::{FsError, Result};
use crate::format::label::Label;
use crate::state::mounted::FsState;

/// The number that the next disk gets, if it does not follow the highest; in the state.
pub(super) const NEXT: &str = "next disk";

impl FsState {
    /// The disk with this number. The error names those that there are.
    pub(super) fn disk_numbered(&self, number: u16) -> Result<Rc<Member>> {
        self.pool().member(number).ok_or_else(|| {
            let members = self.pool().members();
            let numbers: Vec<String> =
                members.iter().map(|member| member.number.to_string()).collect();
            let numbers = numbers.join(", ");
            FsError::Invalid(format!("there is no disk {number}: the disks are {numbers}"))
        })
    }

    /// A disk that no record names leaves the file system. `false`: other nodes had records that
    /// name it, which were not stored yet.
    pub(crate) async fn let_go(&self, number: u16) -> Result<bool> {
        let _alone = self.hold_all_tokens().await;
        // To return their token they have stored all that they had.
        if self.is_named(number).await? {
            return Ok(false);
        }
        let _slices = self.change_slices().await;
        let member = self.disk_numbered(number)?;
        self.vacate_metadata(&member, true).await?;
        let before = self.pool().before(number);
        self.meta()
            .run(|tx| {
                tx.set_state(NEXT, tx.state(NEXT)?.max(u64::from(number) + 1))?;
                tx.remove_bad_of(number)?;
                forget_in(tx, number, &before)?;
                tx.remove_disk(number)
            })
            .await?;
        self.commit_anyway().await?;
        self.pool().forget_successor(number);
        self.pool().remove(number);
        if let Some(present) = member.present().filter(|_| !member.is_lost()) {
            Label::erase(&*present.whole).await?;
        }
        Ok(true)
    }

    /// Whether records, or the log of a node, name a disk.
    pub(crate) async fn is_named(&self, number: u16) -> Result<bool> {
        let is_used = self.meta().run(|tx| tx.is_disk_used(number)).await?;
        Ok(is_used || self.has_ring(number).await?)
    }
}
