//! Reading a member's metadata where some of its sectors cannot be read.
//!
//! A power cut may leave the sectors unreadable that a disk was writing. Log batches and pages of
//! the region map are made so that a torn one is recognised and done without; one that cannot be
//! read must not take its neighbours with it. So what fails as a whole is read once more in pieces.

use weft_disk::{Class, Disk, DiskError, DiskErrorKind};
use weft_rt::Buf;

use crate::geometry::to_len;

/// What is lost together: a page of the map, a block of the log.
pub(crate) const BLOCK: usize = 4096;

/// What is read at once when the whole cannot be.
const PIECE: usize = 64 * BLOCK;

/// What could be read of an area.
pub(crate) struct Salvaged {
    /// The area, with zeros for what could not be read.
    pub area: Buf,
    /// Where the blocks lie that could not be read.
    pub bad: Vec<usize>,
    /// What the disk said of the first of them.
    pub error: Option<DiskError>,
}

/// Reads `len` bytes at `offset`.
///
/// # Errors
/// Whatever is no medium error.
pub(crate) async fn salvage(disk: &dyn Disk, offset: u64, len: u64) -> Result<Salvaged, DiskError> {
    let len = to_len(len);
    let (area, error) = read(disk, offset, len).await?;
    let mut salvaged = Salvaged { area, bad: Vec::new(), error };
    if salvaged.error.is_some() {
        for from in (0..len).step_by(PIECE) {
            salvaged.read_piece(disk, offset, from, PIECE.min(len - from)).await?;
        }
    }
    Ok(salvaged)
}

impl Salvaged {
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

/// Reads a range, zeros if the medium is bad.
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
