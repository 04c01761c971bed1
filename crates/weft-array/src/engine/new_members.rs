//! Disks that are to become members: whether they fit, and how they are prepared.

use std::rc::Rc;

use weft_code::SlotNo;
use weft_disk::{Bytes, Disk};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::members::Spare;
use crate::members::preparation::prepare_member;
use crate::members::slot::Slot;
use crate::superblock::{SPARES_MAX, Superblock, mark_erased, write_labels, write_superblock};

impl Engine {
    /// Checks that a disk is large enough to be a member.
    pub(crate) fn check_size(&self, disk: &dyn Disk) -> Result<(), ArrayError> {
        let (size, needed) = (disk.size_now(), self.members.superblock().member_bytes());
        if size >= needed {
            return Ok(());
        }
        Err(ArrayError::Refused(format!(
            "{} is too small: it has {:#}, and the array's members need {:#}",
            disk.info().name,
            Bytes(size),
            Bytes(needed)
        )))
    }

    /// Checks that a disk can be a member, and is not one already.
    pub(crate) fn check_fits(&self, disk: &dyn Disk) -> Result<(), ArrayError> {
        let info = disk.info();
        self.check_size(disk)?;
        if u64::from(info.sector_bytes) > self.geometry().sector_bytes {
            return Err(ArrayError::Refused(format!(
                "{} has sectors of {} bytes; the array supports at most {}",
                info.name,
                info.sector_bytes,
                self.geometry().sector_bytes
            )));
        }
        let known = self.members.all_disks().into_iter().map(|(_, disk)| disk);
        let spares: Vec<_> =
            self.members.spares().all().iter().map(|spare| spare.disk.clone()).collect();
        if known.chain(spares).any(|member| member.info().name == info.name) {
            return Err(ArrayError::Refused(format!(
                "{} is already a member of this array",
                info.name
            )));
        }
        Ok(())
    }

    /// Checks that superblocks can list one more spare: also when those have become spares that a
    /// reshape takes out of their slots, or that may get no slot in the end.
    pub(crate) fn check_spare_room(&self) -> Result<(), ArrayError> {
        let slots = self.members.len();
        let released = self
            .geometries
            .former()
            .map_or(0, |(old, _)| slots - old.layout.slots().min(self.geometry().layout.slots()));
        let joining = |slot: &SlotNo| {
            matches!(self.members.slot(*slot), Slot::Staged { .. } | Slot::ReplacementStaged { .. })
        };
        let joining = self.members.slots().filter(joining).count();
        if self.members.spares().all().len() + released + joining < SPARES_MAX {
            return Ok(());
        }
        let why = match released {
            0 => format!("the array has {SPARES_MAX} spares, and no more are possible"),
            _ => format!(
                "{released} disks may become spares when the reshape ends, and more than {SPARES_MAX} are not possible"
            ),
        };
        Err(ArrayError::Refused(why))
    }

    /// Checks a disk that is to become a spare, and makes it a member.
    pub(crate) async fn prepare_spare(&self, disk: Rc<dyn Disk>) -> Result<Spare, ArrayError> {
        self.check_fits(&*disk)?;
        let info = disk.info();
        if self.members_zeroed() && !info.fast_zeroes {
            // Zeroing all of it would take hours. From now on each region is zeroed on all members
            // before its first write.
            self.change(|change| change.superblock().members_zeroed = false).await?;
        }
        let id = self.members.edit(Superblock::new_member_id);
        let superblock = self.members.superblock().clone();
        // It may be a former member, which the array would take back after a crash.
        mark_erased(&*disk).await?;
        prepare_member(&*disk, &superblock).await?;
        // The superblock first: a label without one would look like a damaged member.
        write_superblock(&*disk, &superblock, id).await?;
        write_labels(&*disk, &superblock, id).await?;
        Ok(Spare::prepared(id, disk, superblock.member_bytes()))
    }
}
