//! Removing a disk from an array for good.
//!
//! A spare is first removed from the superblocks of all members, durably; only then does it lose
//! its label. A crash in between leaves a disk that claims to be a spare of an array that does not
//! list it. The next assembly leaves it out, and is not affected otherwise.

use weft_code::SlotNo;

use crate::api::array::Array;
use crate::error::ArrayError;
use crate::format::uuid::Id;
use crate::superblock::SlotState;
use crate::superblock::wipe::wipe;

impl Array {
    /// The identity of the array, and of every disk that it uses: members, replacements, spares.
    pub fn identities(&self) -> (Id, Vec<Id>) {
        let superblock = self.0.members().superblock();
        let slots = superblock.slots.iter().filter(|slot| slot.state != SlotState::Missing);
        let members = slots.flat_map(|slot| {
            let replacement = slot.replacement.as_ref().map(|replacement| replacement.member_id);
            [slot.member_id, replacement]
        });
        let spares = self.0.members().spares().all();
        let ids = members.flatten().chain(spares.iter().map(|spare| spare.id)).collect();
        (superblock.array_id, ids)
    }

    /// Removes the spare with this name from the array, and wipes it.
    ///
    /// # Errors
    /// If there is no such spare, the array takes no writes, or the disk could not be wiped; in the
    /// last case it is out of the array all the same.
    pub async fn remove_spare(&self, name: &str) -> Result<(), ArrayError> {
        self.0.check_writable()?;
        let spares = self.0.members().spares();
        let named = spares.all().iter().find(|spare| spare.disk.info().name == name).cloned();
        let Some(spare) = named else {
            return Err(ArrayError::Refused(format!("{name} is not a spare of this array")));
        };
        // If that does not take effect, the members still list it.
        self.0.change(|change| change.remove_spare(&spare)).await?;
        // A superblock in progress must not reach a disk that may be in other use by then.
        spares.until_idle(&spare).await;
        wipe(&*spare.disk, false).await.map_err(ArrayError::from)
    }

    /// Forgets which disk was last in a missing slot. The array will not take that disk back.
    ///
    /// # Errors
    /// If the slot is not missing, or the array takes no writes.
    pub async fn forget(&self, slot: SlotNo) -> Result<(), ArrayError> {
        self.0.check_writable()?;
        let members = self.0.members();
        if !members.missing().contains(&slot) {
            return Err(ArrayError::Refused(format!("slot {slot} is not missing")));
        }
        self.0.change(|change| change.forget(slot)).await
    }
}
