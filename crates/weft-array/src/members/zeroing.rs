//! Zeroing the data of a member.

use weft_disk::{Class, Disk, DiskError, WriteOpts};

use crate::superblock::Superblock;

const MAINTENANCE: WriteOpts = WriteOpts { class: Class::Maintenance, fua: false };

/// Zeroes the data area.
pub(crate) async fn zero_data(disk: &dyn Disk, superblock: &Superblock) -> Result<(), DiskError> {
    let len = superblock.rows * superblock.unit_bytes;
    disk.write_zeroes(superblock.area.data_offset, len, MAINTENANCE).await
}
