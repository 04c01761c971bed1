//! Taking a member back that left: its disk had failed and works again, or was not there at a start.
//!
//! It has all that it held but for the regions that its lane marks (`region_map/absence.rs`). So it
//! takes its slot again as one that is being rebuilt, in that lane, and the rebuild has only these
//! to do. The order is that of a spare (`spares.rs`): the map and the log ring are made durable on
//! it; then one change of the superblock gives it the slot.
//!
//! Until that change is made regions that are written are marked as before, and pass the member
//! by. So whether its unit of a stripe is lost is the same before and after a crash, whichever side
//! of the change the crash leaves: log records rely on that (`log.rs`, "Lost units"). A record
//! that is made after the change waits until that is in effect.

use std::rc::Rc;

use weft_disk::Disk;

use super::spares::Joining;
use crate::array::Inner;
use crate::assemble::may_return;
use crate::error::ArrayError;
use crate::events::Event;
use crate::members::Spare;
use crate::superblock::{Consistency, SlotState, read_superblock};

impl Inner {
    /// The member of `slot` leaves now. Keeps what it holds, if the map can tell what it misses:
    /// under policy `none` it keeps no dirty regions.
    pub(crate) fn remember_member(&self, slot: usize) {
        if self.members.superblock.borrow().consistency == Consistency::None {
            return;
        }
        let state = self.members.state(slot);
        let known = self.members.lane_in_superblock(slot);
        match (state, known) {
            (SlotState::Active, _) => {
                if let Some(lane) = self.members.unused_lane() {
                    self.map.start_absence(lane);
                    self.members.remember(slot, lane);
                }
            }
            (SlotState::Rebuilding { lane }, Some(known)) if lane == known => {
                self.map.resume_absence(lane);
                self.members.remember(slot, lane);
            }
            // A spare that no superblock names yet.
            (SlotState::Rebuilding { .. } | SlotState::Missing, _) => {}
        }
    }

    /// Takes `disk` back if it is a member that left this array, with what it held. Returns its
    /// slot; `None` if it has to be added like any other disk.
    ///
    /// # Errors
    /// If it fits the array no more.
    pub(crate) async fn take_back(&self, disk: &Rc<dyn Disk>) -> Result<Option<usize>, ArrayError> {
        let Some(own) = read_superblock(&**disk).await.ok().flatten() else { return Ok(None) };
        let left = may_return(&self.members.superblock.borrow(), &own);
        let (Some(slot), id) = (left, own.self_id) else { return Ok(None) };
        self.check_fits(&**disk)?;
        // Records that had a sibling on the member's ring are not needed any more, and the ring
        // says so from its new beginning.
        self.retire_all().await;
        let lane = match self.members.left(slot) {
            Some(left) if self.members.state(slot) == SlotState::Missing => left.lane,
            _ => return Ok(None),
        };
        let (name, stale_regions) = (disk.info().name.clone(), self.map.stale_count(lane));
        let spare = Spare::new(id, disk.clone());
        let joined = self.join(slot, lane, spare, Joining::Back).await;
        // Meanwhile nothing was rebuilt, on other slots neither.
        self.jobs.wake();
        if !joined {
            return Err(ArrayError::Refused(format!(
                "{name} failed again while it was taken back"
            )));
        }
        self.events.emit(Event::MemberReturned { slot, disk: name, stale_regions });
        Ok(Some(slot))
    }
}
