//! Another consistency policy for an array that exists.
//!
//! The policy of an array can change when it starts, if it was stopped cleanly: then the log holds
//! nothing, no region is marked as being written, and the run starts with a superblock that is
//! durable on all members before anything is written. A crash in between leaves the old policy or
//! the new one, and nothing that either would have to recover. The space of a log comes from the
//! head room, and goes back to it.

use weft_disk::Bytes;

use crate::error::ArrayError;
use crate::format::consistency::Consistency;
use crate::superblock::area::{log_bytes_min, log_size};
use crate::superblock::{Superblock, check_consistency};

impl Superblock {
    /// The superblock of this array with another consistency policy, in effect from its next run.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if that makes no sense with its code, or there is no room for a log.
    pub(crate) fn kept_consistent_by(&self, consistency: Consistency) -> Result<Self, ArrayError> {
        let refused = |why: String| Err(ArrayError::Refused(why));
        let from = self.reshape.iter().map(|reshape| reshape.from);
        for shape in from.chain([self.shape()]) {
            if let Err(why) = check_consistency(shape.code, consistency) {
                return refused(why);
            }
        }
        let mut changed = Self { consistency, ..self.clone() };
        if consistency != self.consistency {
            changed.area.log_bytes = match consistency {
                Consistency::Ppl => self.room_for_log()?,
                Consistency::Bitmap | Consistency::None => 0,
            };
        }
        if consistency == Consistency::None {
            // From now on the map does not tell what a member that left is missing.
            changed.slots.iter_mut().for_each(|slot| slot.left = None);
        }
        Ok(changed)
    }

    /// The size of a log in the head room: that of a new array of this size, or what there is.
    fn room_for_log(&self) -> Result<u64, ArrayError> {
        let shape = self.shape();
        let from = self.reshape.iter().map(|reshape| reshape.from.data_offset);
        let data_offset = from.fold(shape.data_offset, u64::min);
        let room = (data_offset - self.area.log_offset) / 4096 * 4096;
        let member_bytes = shape.data_offset + shape.rows * shape.unit_bytes;
        let wanted = log_size(member_bytes, shape.unit_bytes, None);
        let least = log_bytes_min(shape.unit_bytes);
        if room < least {
            return Err(ArrayError::Refused(format!(
                "the members have {} before their data, and a log takes {} at least: only an array that was created with more head room can get one",
                Bytes(room),
                Bytes(least)
            )));
        }
        Ok(wanted.min(room))
    }
}
