//! Removing a disk from an array for good, and wiping a member.
//!
//! A spare is first removed from the superblocks of all members, durably; only then does it lose
//! its label. A crash in between leaves a disk that claims to be a spare of an array that does not
//! list it. The next assembly leaves it out, and is not affected otherwise.

use weft_code::SlotNo;
use weft_disk::{Class, Disk, DiskError, WriteOpts};

use crate::area::{LABEL_BYTES, MAP_OFFSET};
use crate::error::ArrayError;
use crate::superblock::{SlotState, erase_label, read_superblock};
use crate::uuid::Id;
use crate::volume::Array;

const DURABLE: WriteOpts = WriteOpts { class: Class::User, fua: true };

impl Array {
    /// The identity of the array, and of every disk that it uses: members, replacements, spares.
    pub fn identities(&self) -> (Id, Vec<Id>) {
        let superblock = self.0.members.superblock();
        let slots = superblock.slots.iter().filter(|slot| slot.state != SlotState::Missing);
        let members = slots.flat_map(|slot| {
            let replacement = slot.replacement.as_ref().map(|replacement| replacement.member_id);
            [slot.member_id, replacement]
        });
        let spares = self.0.members.spares.all();
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
        let spares = &self.0.members.spares;
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
        let members = &self.0.members;
        if !members.missing().contains(&slot) {
            return Err(ArrayError::Refused(format!("slot {slot} is not missing")));
        }
        self.0.change(|change| change.forget(slot)).await
    }
}

/// Erases what makes a disk a member: label, superblocks, region map and log, and with `all` the
/// data, too. The label goes first, so that a crash leaves no half-erased member. Durable on
/// return.
///
/// # Errors
/// If the disk fails.
pub async fn wipe(disk: &dyn Disk, all: bool) -> Result<(), DiskError> {
    let size = disk.info().size_bytes;
    let end = match read_superblock(disk).await {
        _ if all => size,
        Ok(Some(own)) => own.area.data_offset.min(size),
        // The end of its map is unknown.
        _ => MAP_OFFSET.min(size),
    };
    erase_label(disk).await?;
    disk.write_zeroes(LABEL_BYTES, end.saturating_sub(LABEL_BYTES), DURABLE).await?;
    disk.flush().await
}
