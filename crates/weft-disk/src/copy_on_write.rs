//! A disk whose contents are not changed: writes stay in memory, and are gone with it.
//!
//! Whatever recovers, or notes something, before it can be read works on such a disk as on any
//! other. Memory has a bound, which several disks may share. Behind it the disk has no room, as a
//! sparse file on a full file system.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use weft_rt::{Buf, Frozen};

use crate::{
    Class, Counters, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts,
};

/// The errno of a full disk.
const ENOSPC: i32 = 28;
/// What one sector takes beside its bytes, about.
const ENTRY_BYTES: u64 = 64;

/// A disk whose writes stay in memory.
pub struct CopyOnWriteDisk {
    below: Rc<dyn Disk>,
    info: DiskInfo,
    /// What was written, by the number of the sector; none: zeros.
    sectors: RefCell<BTreeMap<u64, Option<Box<[u8]>>>>,
    room_bytes: Rc<Cell<u64>>,
}

impl std::fmt::Debug for CopyOnWriteDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyOnWriteDisk").field("info", &self.info).finish_non_exhaustive()
    }
}

impl CopyOnWriteDisk {
    /// The disk `below`, with `room_bytes` of memory for the writes to all disks that share it.
    pub fn new(below: Rc<dyn Disk>, room_bytes: &Rc<Cell<u64>>) -> Self {
        // Memory is as safe as these writes will ever be.
        let info = DiskInfo { volatile_cache: false, fast_zeroes: true, ..below.info().clone() };
        Self { below, info, sectors: RefCell::default(), room_bytes: room_bytes.clone() }
    }

    fn sector_bytes(&self) -> u64 {
        u64::from(self.info.sector_bytes)
    }

    fn store(
        &self,
        op: DiskOp,
        offset: u64,
        len: u64,
        sector: impl Fn(usize) -> Option<Box<[u8]>>,
    ) -> Result<(), DiskError> {
        self.info.check(op, offset, len)?;
        let first = offset / self.sector_bytes();
        let mut sectors = self.sectors.borrow_mut();
        for (at, number) in (first..first + len / self.sector_bytes()).enumerate() {
            let bytes = sector(at);
            let cost = |bytes: &Option<Box<[u8]>>| {
                ENTRY_BYTES + bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)
            };
            let old = sectors.get(&number).map_or(0, cost);
            let room = (self.room_bytes.get() + old).checked_sub(cost(&bytes));
            let Some(room) = room else {
                let source = io::Error::from_raw_os_error(ENOSPC);
                return Err(DiskError::new(&self.info.name, op, offset, len, source));
            };
            self.room_bytes.set(room);
            sectors.insert(number, bytes);
        }
        Ok(())
    }

    /// Puts the written data over the data read from below. Returns whether that was all of it.
    fn cover(&self, offset: u64, buf: &mut Buf) -> bool {
        let sector = self.info.sector_bytes as usize;
        let first = offset / self.sector_bytes();
        let count = buf.len() / sector;
        let sectors = self.sectors.borrow();
        let mut covered = 0;
        for (number, bytes) in sectors.range(first..first + count as u64) {
            let at = usize::try_from(number - first).expect("in the buffer") * sector;
            match bytes {
                Some(bytes) => buf[at..at + sector].copy_from_slice(bytes),
                None => buf[at..at + sector].fill(0),
            }
            covered += 1;
        }
        covered == count
    }
}

impl Disk for CopyOnWriteDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            if let Err(error) = self.info.check(DiskOp::Read, offset, buf.len() as u64) {
                return (Err(error), buf);
            }
            if self.cover(offset, &mut buf) {
                return (Ok(()), buf);
            }
            let (result, mut buf) = self.below.read(offset, buf, class).await;
            self.cover(offset, &mut buf);
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let sector = self.info.sector_bytes as usize;
            // On the heap: a buffer for a disk takes a page for each sector.
            let part = |at: usize| Some(data[at * sector..(at + 1) * sector].into());
            self.store(DiskOp::Write, offset, data.len() as u64, part)
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move { self.store(DiskOp::WriteZeroes, offset, len, |_| None) })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move { self.info.check(DiskOp::Discard, offset, len) })
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let from = offset / self.sector_bytes();
        let written = self.sectors.borrow().range(from..).next().map(|(number, _)| *number);
        let written = written.map(|number| (number * self.sector_bytes()).max(offset));
        self.below.next_data(offset).into_iter().chain(written).min()
    }

    fn counters(&self) -> Option<Counters> {
        self.below.counters()
    }

    fn sever(&self, why: &str) {
        self.below.sever(why);
    }
}
