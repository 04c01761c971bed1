//! Zeros and discards: ask the file system or device to do it, write zeros where it can't.
//!
//! On a block device PUNCH_HOLE is a write of zeros that may deallocate and never falls back to
//! writing, ZERO_RANGE one that the kernel carries out somehow. On a file PUNCH_HOLE gives the
//! space back (and a member file stays sparse), ZERO_RANGE reserves it. Both are durable only after
//! a flush.
//!
//! A file whose space is all reserved keeps it: zeroed ranges can be written again, however full
//! the file system is. Where ZERO_RANGE is not known (tmpfs) it is punched and reserved again.

use std::io;

use rustix::fs::{FallocateFlags, FileType};
use weft_rt::{Frozen, ZEROS_BYTES_MAX};

use super::{FileDisk, IoMode};

/// How zeros are written: the best way that the target has not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To be found out.
    Unknown,
    /// Zeros that keep their space.
    Keep,
    Refill,
    Punch,
    ZeroRange,
    Write,
}

pub(super) const PUNCH: FallocateFlags =
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const RESERVE: FallocateFlags = FallocateFlags::KEEP_SIZE;
const ZERO_RANGE: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

/// Whether the target cannot do this at all, as opposed to having failed at it.
fn is_refusal(error: &io::Error) -> bool {
    const REFUSALS: [rustix::io::Errno; 4] = [
        rustix::io::Errno::OPNOTSUPP,
        rustix::io::Errno::NOSYS,
        rustix::io::Errno::NODEV,
        rustix::io::Errno::INVAL,
    ];
    REFUSALS.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl FileDisk {
    async fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
        match self.io_mode {
            IoMode::InPlace => Ok(rustix::fs::fallocate(&self.fd, mode, offset, len)?),
            IoMode::Ring => self.ring.fallocate(&self.fd, mode.bits(), offset, len).await,
        }
    }

    /// Makes the range read as zeros.
    pub(super) async fn zero(&self, offset: u64, len: u64, fua: bool) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        loop {
            let way = self.zeroing.get();
            let (mode, next) = match way {
                Way::Unknown => {
                    self.zeroing.set(if self.is_reserved()? { Way::Keep } else { Way::Punch });
                    continue;
                }
                Way::Keep => (ZERO_RANGE, Way::Refill),
                Way::Refill => {
                    self.punch(offset, len).await?;
                    (RESERVE, Way::Write)
                }
                Way::Punch => (PUNCH, Way::ZeroRange),
                Way::ZeroRange => (ZERO_RANGE, Way::Write),
                Way::Write => return self.write_zeros(offset, len, fua).await,
            };
            match self.fallocate(mode, offset, len).await {
                Ok(()) if fua => return self.sync().await,
                Ok(()) => return Ok(()),
                Err(error) if is_refusal(&error) => self.zeroing.set(next),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether it is a file without holes.
    fn is_reserved(&self) -> io::Result<bool> {
        let stat = rustix::fs::fstat(&self.fd)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(is_file && stat.st_blocks.saturating_mul(512) >= stat.st_size)
    }

    async fn write_zeros(&self, offset: u64, len: u64, fua: bool) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let step = usize::try_from(len - done).unwrap_or(usize::MAX).min(ZEROS_BYTES_MAX);
            self.write_all(offset + done, Frozen::zeros(step), false).await?;
            done += step as u64;
        }
        if fua { self.sync().await } else { Ok(()) }
    }

    /// Gives the range's space back, if the target can.
    pub(super) async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 || !self.can_discard.get() {
            return Ok(());
        }
        match self.fallocate(PUNCH, offset, len).await {
            Err(error) if is_refusal(&error) => {
                self.can_discard.set(false);
                Ok(())
            }
            result => result,
        }
    }
}
