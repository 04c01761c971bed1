//! Reading a member's metadata despite unreadable sectors.
//!
//! A power cut may make the sectors unreadable that a disk was writing. A torn log batch or region
//! map page is recognised, and recovery does without it; an unreadable one must not take its
//! neighbours with it. So an area whose read fails as a whole is read again in pieces.

use weft_disk::{Class, Disk, DiskError, DiskErrorKind};
use weft_rt::Buf;

use crate::format::length::to_len;

/// The size of data lost together: a page of the map, a block of the log.
pub(crate) const BLOCK: usize = 4096;

/// The size of a piece that is read at once after the whole read failed.
const PIECE: usize = 64 * BLOCK;

/// The readable part of an area.
pub(crate) struct SalvagedBytes {
    /// The area's contents, with zeros where it could not be read.
    pub area: Buf,
    /// Offsets of the blocks that could not be read.
    pub bad: Vec<usize>,
    /// The disk's error for the first of them.
    pub error: Option<DiskError>,
}

/// Reads `len` bytes at `offset`.
///
/// # Errors
/// Any error other than a medium error.
pub(crate) async fn salvage(
    disk: &dyn Disk,
    offset: u64,
    len: u64,
) -> Result<SalvagedBytes, DiskError> {
    let len = to_len(len);
    let (area, error) = read(disk, offset, len).await?;
    let mut salvaged = SalvagedBytes { area, bad: Vec::new(), error };
    if salvaged.error.is_some() {
        for from in (0..len).step_by(PIECE) {
            salvaged.read_piece(disk, offset, from, PIECE.min(len - from)).await?;
        }
    }
    Ok(salvaged)
}

impl SalvagedBytes {
    async fn read_piece(
        &mut self,
        disk: &dyn Disk,
        offset: u64,
        from: usize,
        len: usize,
    ) -> Result<(), DiskError> {
        let (piece, error) = read(disk, offset + from as u64, len).await?;
        self.area[from..from + len].copy_from_slice(&piece);
        if error.is_none() {
            return Ok(());
        }
        for at in (from..from + len).step_by(BLOCK) {
            let (block, error) = read(disk, offset + at as u64, BLOCK.min(from + len - at)).await?;
            self.area[at..at + block.len()].copy_from_slice(&block);
            if error.is_some() {
                self.bad.push(at);
            }
        }
        Ok(())
    }
}

/// Reads a range; returns zeros on a medium error.
async fn read(
    disk: &dyn Disk,
    offset: u64,
    len: usize,
) -> Result<(Buf, Option<DiskError>), DiskError> {
    let (result, mut buf) = disk.read(offset, Buf::new(len), Class::User).await;
    match result {
        Ok(()) => Ok((buf, None)),
        Err(error) if error.kind == DiskErrorKind::Medium => {
            buf.fill(0);
            Ok((buf, Some(error)))
        }
        Err(error) => Err(error),
    }
}
