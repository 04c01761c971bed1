//! Canaries: the engine, with one of its guarantees taken away. A simulator that does not notice is
//! of no use.
//!
//! The product has no such switches. The fault sits between the engine and its disks, which then do
//! not what the engine asked for, but tell it that they did: to all that can be seen from outside
//! that is an engine that forgot to ask.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use weft_array::Area;
use weft_disk::{Class, Disk, DiskError, DiskOp, DoneFuture, Layer, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt};

use crate::format::SUPERBLOCKS;
use crate::rng::mix;
use crate::violation::Violation;

/// In a page of the region map: the checksum, and the first region's flags.
const MAP_CRC_AT: usize = 8;
const MAP_FLAGS_AT: usize = 64;
const MAP_DIRTY: u8 = 2;

/// How late a superblock lands for which the engine did not wait.
const LATE_MAX: Nanos = 200 * MILLISECOND;

/// What the engine seems to have forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    /// Flushes.
    Flush,
    /// To have durable what must be durable on return (FUA), data and metadata.
    Fua,
    /// To wait for the writes of a stripe before it acknowledges.
    WaitForWrites,
    /// To write partial parity to the log.
    Log,
    /// To apply the log after a crash.
    Replay,
    /// To mark regions dirty.
    DirtyMark,
    /// To tell the superblocks of those that are left who was excluded.
    Exclusion,
    /// To wait until they have it before it acknowledges what relies on that.
    WaitForExclusion,
    /// To write what it has reconstructed before it counts as rebuilt.
    Rebuild,
    /// To zero what is to read as zeros.
    Zeroes,
    /// To go on for as long as the rules of membership allow: when one member fails it counts the
    /// others as failed in the same moment, and stops.
    GoOn,
}

impl Canary {
    /// All of them.
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
        Self::GoOn,
    ];

    /// What it makes the engine do wrong. Anything else that a run finds is not this canary.
    pub fn violations(self) -> &'static [Violation] {
        match self {
            Self::GoOn => &[Violation::RequestFailed, Violation::CommandFailed],
            _ => &[Violation::WrongRead],
        }
    }
}

/// A disk that the engine forgets something about.
#[derive(Debug)]
pub(crate) struct Forgotten<D> {
    pub rt: Rt,
    pub disk: Rc<D>,
    pub canary: Canary,
    pub area: Area,
    /// The array works: data was written.
    pub works: Cell<bool>,
    /// When the last superblock lands for which the engine does not wait.
    pub late: Cell<Nanos>,
}

impl<D> Forgotten<D> {
    fn is_log(&self, offset: u64) -> bool {
        (self.area.log_offset..self.area.log_offset + self.area.log_bytes).contains(&offset)
    }

    fn is_map(&self, offset: u64) -> bool {
        (self.area.map_offset..self.area.map_offset + self.area.map_bytes).contains(&offset)
    }

    fn is_data(&self, offset: u64) -> bool {
        offset >= self.area.data_offset
    }

    fn forgets(&self, offset: u64, opts: WriteOpts) -> bool {
        match self.canary {
            Canary::Log => self.is_log(offset),
            Canary::Exclusion => SUPERBLOCKS.contains(&offset),
            Canary::Rebuild => self.is_data(offset) && opts.class == Class::Maintenance,
            _ => false,
        }
    }

    fn weaken(&self, opts: WriteOpts) -> WriteOpts {
        WriteOpts { fua: opts.fua && self.canary != Canary::Fua, ..opts }
    }
}

fn done<'a>() -> DoneFuture<'a> {
    Box::pin(std::future::ready(Ok(())))
}

/// The page with no region dirty.
fn without_dirty_marks(page: &Frozen) -> Frozen {
    let mut page = Buf::copy_from(page);
    page[MAP_FLAGS_AT..].iter_mut().step_by(2).for_each(|flags| *flags &= !MAP_DIRTY);
    page[MAP_CRC_AT..MAP_CRC_AT + 4].fill(0);
    let crc = crc32c(&page);
    page[MAP_CRC_AT..MAP_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    page.freeze()
}

/// CRC32C of each byte.
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

/// CRC32C.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        crc >> 8 ^ CRC_OF[usize::from(low ^ byte)]
    })
}

impl<D: Disk + 'static> Layer for Forgotten<D> {
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
        if self.forgets(offset, opts) {
            return done();
        }
        self.works.set(self.works.get() || self.is_data(offset));
        match self.canary {
            Canary::GoOn if self.works.get() && SUPERBLOCKS.contains(&offset) => {
                let (name, len) = (&self.disk.info().name, data.len() as u64);
                let error = io::Error::other("as the canary has it");
                let error = DiskError::new(name, DiskOp::Write, offset, len, error);
                Box::pin(std::future::ready(Err(error)))
            }
            Canary::WaitForWrites if self.is_data(offset) => {
                let disk = self.disk.clone();
                drop(self.rt.spawn(async move { disk.write(offset, data, opts).await }));
                done()
            }
            // It lands late.
            Canary::WaitForExclusion if self.works.get() && SUPERBLOCKS.contains(&offset) => {
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
            _ => self.disk.write(offset, data, self.weaken(opts)),
        }
    }

    fn flush(&self) -> DoneFuture<'_> {
        if self.canary == Canary::Flush { done() } else { self.disk.flush() }
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        if self.canary == Canary::Zeroes || self.forgets(offset, opts) {
            return done();
        }
        self.disk.write_zeroes(offset, len, self.weaken(opts))
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
