//! Preparing a disk to become a member: the parts that are erased, zeroed and allocated before its
//! superblock.

use weft_disk::{Class, Disk, DiskError, WriteOpts};

use weft_rt::Buf;

use crate::format::consistency::Consistency;
use crate::region_map::{MapConfig, RegionMap};
use crate::superblock::Superblock;
use crate::superblock::area::{LABEL_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};

/// Size of one write of zeros.
const ALLOCATE_BYTES: u64 = 1 << 20;
/// Bytes at the end of a disk that are zeroed: other programs keep signatures there.
const TAIL_BYTES: u64 = 128 << 10;
/// Most dirty regions of an array.
const DIRTY_MAX: usize = 1024;
const DURABLE: WriteOpts = WriteOpts { class: Class::Maintenance, fua: true };
const MAINTENANCE: WriteOpts = WriteOpts { class: Class::Maintenance, fua: false };

/// Makes the data area read as zeros, durably. A map and a superblock that are durable later may
/// rely on it, and nothing else flushes the disk before them.
///
/// # Errors
/// If the disk fails.
pub(crate) async fn clear_data(disk: &dyn Disk, superblock: &Superblock) -> Result<(), DiskError> {
    zero_data(disk, superblock).await?;
    disk.flush().await
}

/// Zeroes the data area. Not durable before the next flush.
async fn zero_data(disk: &dyn Disk, superblock: &Superblock) -> Result<(), DiskError> {
    let len = superblock.rows * superblock.unit_bytes;
    disk.write_zeroes(superblock.area.data_offset, len, MAINTENANCE).await
}

/// Prepares a disk to become a member: all steps except superblock and label. Zeroes old
/// superblocks, map and log, and also the data if the array relies on that, and writes the first
/// pages of the region map. Durable on return.
///
/// # Errors
/// If the disk fails.
pub(crate) async fn prepare_member(
    disk: &dyn Disk,
    superblock: &Superblock,
) -> Result<(), DiskError> {
    let area = &superblock.area;
    let size = disk.info().size_bytes;
    disk.write_zeroes(LABEL_BYTES, area.data_offset - LABEL_BYTES, MAINTENANCE).await?;
    if superblock.members_zeroed {
        zero_data(disk, superblock).await?;
    }
    let tail = (size.saturating_sub(TAIL_BYTES) & !4095).max(area.data_offset);
    disk.write_zeroes(tail, size - tail, MAINTENANCE).await?;
    // Allocates what must be written when a member fails, or before any data.
    for offset in SUPERBLOCK_OFFSETS {
        allocate(disk, offset, SUPERBLOCK_BYTES).await?;
    }
    allocate(disk, area.map_offset, area.map_bytes).await?;
    allocate(disk, area.log_offset, area.log_bytes).await?;
    for (offset, page) in RegionMap::initial_pages(&map_config(superblock)) {
        disk.write(offset, page, DURABLE).await?;
    }
    disk.flush().await
}

/// Writes zeros as data, to allocate the range in a sparse file.
async fn allocate(disk: &dyn Disk, offset: u64, len: u64) -> Result<(), DiskError> {
    let zeros = Buf::zeroed(usize::try_from(len.min(ALLOCATE_BYTES)).expect("a mebibyte"));
    let zeros = zeros.freeze();
    let end = offset + len;
    let mut at = offset;
    while at < end {
        let step = usize::try_from((end - at).min(ALLOCATE_BYTES)).expect("a mebibyte");
        disk.write(at, zeros.slice(0, step), MAINTENANCE).await?;
        at += step as u64;
    }
    Ok(())
}

/// The configuration of a superblock's region map, with this program's defaults.
///
/// # Panics
/// If the superblock was not checked.
pub(crate) fn map_config(superblock: &Superblock) -> MapConfig {
    MapConfig {
        array_id: superblock.array_id,
        area_offset: superblock.area.map_offset,
        regions: superblock.regions().expect("a checked superblock has a layout"),
        room: superblock.map_regions,
        track_dirty: superblock.consistency != Consistency::None,
        dirty_max: DIRTY_MAX,
    }
}
