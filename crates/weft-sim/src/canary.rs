//! Canaries: the engine with one of its guarantees removed. The simulator must notice each.
//!
//! The product has no such switches. A canary sits between the engine and its disks: it drops or
//! delays an operation and reports success. From outside this looks like an engine that forgot to
//! do it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use weft_array::Area;
use weft_disk::{Class, Disk, DiskError, DiskOp, DoneFuture, Layer, ReadFuture, WriteOpts};
use weft_rt::rng::mix;
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt};

use crate::format::SUPERBLOCKS;
use crate::violation::ViolationKind;

/// Offsets in a page of the region map: the checksum, and the flags of the first region.
const MAP_CRC_AT: usize = 8;
const MAP_FLAGS_AT: usize = 64;
const MAP_DIRTY: u8 = 2;

/// The longest delay of a superblock for which the engine seems not to wait.
const LATE_MAX: Nanos = 200 * MILLISECOND;

/// What the engine seems to omit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    /// Flushes.
    Flush,
    /// FUA of writes, data and metadata.
    Fua,
    /// Waiting for the writes of a stripe before acknowledging.
    WaitForWrites,
    /// Writing partial parity to the log.
    Log,
    /// Applying the log after a crash.
    Replay,
    /// Marking regions dirty.
    DirtyMark,
    /// Recording an exclusion in the superblocks of the remaining members.
    Exclusion,
    /// Waiting for that record before acknowledging a request that relies on it.
    WaitForExclusion,
    /// Writing reconstructed data before it counts as rebuilt.
    Rebuild,
    /// Zeroing ranges that must read as zeros.
    Zeroes,
    /// Continuing as long as the membership rules allow: when one member fails, the engine takes
    /// the other members for failed at the same moment, and stops.
    Continue,
}

impl Canary {
    /// All canaries.
    pub const ALL: [Self; 11] = [
        Self::Flush,
        Self::Fua,
        Self::WaitForWrites,
        Self::Log,
        Self::Replay,
        Self::DirtyMark,
        Self::Exclusion,
        Self::WaitForExclusion,
        Self::Rebuild,
        Self::Zeroes,
        Self::Continue,
    ];

    /// The violations that this canary can cause. Any other violation does not count as catching
    /// it.
    pub fn violations(self) -> &'static [ViolationKind] {
        match self {
            Self::Continue => &[ViolationKind::RequestFailed, ViolationKind::CommandFailed],
            _ => &[ViolationKind::WrongRead],
        }
    }
}

/// A disk layer that drops or delays what the canary omits.
#[derive(Debug)]
pub(crate) struct CanaryDisk<D> {
    pub rt: Rt,
    pub disk: Rc<D>,
    pub canary: Canary,
    pub area: Area,
    /// The array is in use: data was written.
    pub in_use: Cell<bool>,
    /// When the last delayed superblock is stored.
    pub late: Cell<Nanos>,
}

impl<D> CanaryDisk<D> {
    fn is_log(&self, offset: u64) -> bool {
        (self.area.log_offset..self.area.log_offset + self.area.log_bytes).contains(&offset)
    }

    fn is_map(&self, offset: u64) -> bool {
        (self.area.map_offset..self.area.map_offset + self.area.map_bytes).contains(&offset)
    }

    fn is_data(&self, offset: u64) -> bool {
        offset >= self.area.data_offset
    }

    fn drops_write(&self, offset: u64, opts: WriteOpts) -> bool {
        match self.canary {
            Canary::Log => self.is_log(offset),
            Canary::Exclusion => SUPERBLOCKS.contains(&offset),
            Canary::Rebuild => self.is_data(offset) && opts.class == Class::Maintenance,
            _ => false,
        }
    }

    fn maybe_without_fua(&self, opts: WriteOpts) -> WriteOpts {
        WriteOpts { fua: opts.fua && self.canary != Canary::Fua, ..opts }
    }
}

fn done<'a>() -> DoneFuture<'a> {
    Box::pin(std::future::ready(Ok(())))
}

/// The page with all dirty flags cleared.
fn without_dirty_marks(page: &Frozen) -> Frozen {
    let mut page = Buf::copy_from(page);
    page[MAP_FLAGS_AT..].iter_mut().step_by(2).for_each(|flags| *flags &= !MAP_DIRTY);
    page[MAP_CRC_AT..MAP_CRC_AT + 4].fill(0);
    let crc = crc32c(&page);
    page[MAP_CRC_AT..MAP_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    page.freeze()
}

/// The CRC32C of each byte value.
const CRC_OF: [u32; 256] = {
    let mut table = [0; 256];
    let (mut byte, mut at) = (0_u32, 0);
    while at < table.len() {
        let (mut crc, mut bit) = (byte, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[at] = crc;
        (byte, at) = (byte + 1, at + 1);
    }
    table
};

/// CRC32C of `bytes`.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        crc >> 8 ^ CRC_OF[usize::from(low ^ byte)]
    })
}

impl<D: Disk + 'static> Layer for CanaryDisk<D> {
    fn below(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        if self.canary == Canary::Replay && self.is_log(offset) {
            return Box::pin(std::future::ready((Ok(()), Buf::zeroed(buf.len()))));
        }
        self.disk.read(offset, buf, class)
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        if self.drops_write(offset, opts) {
            return done();
        }
        self.in_use.set(self.in_use.get() || self.is_data(offset));
        match self.canary {
            Canary::Continue if self.in_use.get() && SUPERBLOCKS.contains(&offset) => {
                let (name, len) = (&self.disk.info().name, data.len() as u64);
                let error = io::Error::other("refused by the canary");
                let error = DiskError::new(name, DiskOp::Write, offset, len, error);
                Box::pin(std::future::ready(Err(error)))
            }
            Canary::WaitForWrites if self.is_data(offset) => {
                let disk = self.disk.clone();
                drop(self.rt.spawn(async move { disk.write(offset, data, opts).await }));
                done()
            }
            // The superblock is stored later.
            Canary::WaitForExclusion if self.in_use.get() && SUPERBLOCKS.contains(&offset) => {
                let (rt, disk) = (self.rt.clone(), self.disk.clone());
                let now = rt.now();
                let until = (now + mix(now) % LATE_MAX).max(self.late.get() + MILLISECOND);
                self.late.set(until);
                drop(self.rt.spawn(async move {
                    rt.sleep_until(until).await;
                    disk.write(offset, data, opts).await
                }));
                done()
            }
            Canary::DirtyMark if self.is_map(offset) && data.len() == 4096 => {
                self.disk.write(offset, without_dirty_marks(&data), opts)
            }
            _ => self.disk.write(offset, data, self.maybe_without_fua(opts)),
        }
    }

    fn flush(&self) -> DoneFuture<'_> {
        if self.canary == Canary::Flush { done() } else { self.disk.flush() }
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        if self.canary == Canary::Zeroes || self.drops_write(offset, opts) {
            return done();
        }
        self.disk.write_zeroes(offset, len, self.maybe_without_fua(opts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
