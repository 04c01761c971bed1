//! Wiping a member.

use weft_disk::{Class, Disk, DiskError, WriteOpts};

use crate::superblock::area::{LABEL_BYTES, MAP_OFFSET};
use crate::superblock::{erase_label, read_superblock};

const DURABLE: WriteOpts = WriteOpts { class: Class::User, fua: true };

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
