//! Taking back a former member: its disk had failed and works again, or was absent at a start.
//!
//! It holds everything it held before, except for the regions marked in its lane
//! (`region_map/absence.rs`). So it takes its slot again as one that is being rebuilt, in that
//! lane, and only those regions are rebuilt. The order is that of a spare (`spares.rs`): the region
//! map and the log ring become durable on it; then one change of the superblock gives it the slot.
//!
//! A disk that failed with errors of its own, or that has become shorter, may have lost more than
//! it tells: it is not remembered, and is rebuilt completely.
//!
//! Until that change is made, written regions are marked as before, and writes do not go to the
//! member. So whether its unit of a stripe is lost is the same before and after a crash, on
//! whichever side of the change the crash falls; log records rely on that (`log.rs`, "Lost units").
//! A record made after the change waits until the change is in effect.

use std::rc::Rc;

use weft_code::SlotNo;
use weft_disk::Disk;

use super::spares::JoiningContents;
use crate::engine::Engine;
use crate::error::ArrayError;
use crate::members::Spare;
use crate::members::assemble::may_return;
use crate::members::slot::Slot;
use crate::state::events::Event;
use crate::superblock::{LeftMeta, read_superblock};

impl Engine {
    /// Takes `disk` back if it is a former member of this array in the state in which it left.
    /// Returns its slot; `None` if it has to be added like any other disk.
    ///
    /// # Errors
    /// If it no longer fits the array.
    pub(crate) async fn take_back(
        &self,
        disk: &Rc<dyn Disk>,
    ) -> Result<Option<SlotNo>, ArrayError> {
        let Some(own) = read_superblock(&**disk).await.ok().flatten() else { return Ok(None) };
        let left = may_return(&self.members().superblock(), &own);
        let (Some(slot), id) = (left, own.self_id) else { return Ok(None) };
        if disk.size_now() < self.members().superblock().member_bytes()
            && let Some(left) = self.members().slot(slot).left()
        {
            // Contents beyond its end do not come back when it is made longer again.
            self.change(|change| change.forget_left(left.lane)).await?;
        }
        self.check_fits(&**disk)?;
        // A stop waits until this has ended: it writes to the members.
        let _running = self.hold_off_stop().await;
        self.check_writable()?;
        // Records that had a sibling in the member's ring are retired, and the ring records that
        // from its new start.
        self.retire_all().await;
        // Meanwhile it may have got another disk, which is the one that left it last now.
        if may_return(&self.members().superblock(), &own) != Some(slot) {
            return Ok(None);
        }
        self.check_fits(&**disk)?;
        let Slot::Left(LeftMeta { lane, .. }) = self.members().slot(slot) else { return Ok(None) };
        let (name, stale_regions) = (disk.info().name.clone(), self.map().stale_count(lane));
        let spare = Spare::new(id, disk.clone());
        let joined = self.join(slot, lane, spare, JoiningContents::Back).await;
        // Nothing was rebuilt meanwhile, on other slots either.
        self.jobs().wake();
        if !joined {
            return Err(ArrayError::Refused(format!(
                "{name} failed again while it was being taken back"
            )));
        }
        self.events().emit(Event::MemberReturned { slot, disk: name, stale_regions });
        Ok(Some(slot))
    }
}
