//! A disk without its first bytes, which belong to another owner.

use std::rc::Rc;

use weft_rt::{Buf, Frozen};

use crate::{Class, Disk, DiskInfo, DoneFuture, Layer, ReadFuture, WriteOpts};

/// The rest of a disk after its first bytes.
pub struct RestDisk {
    disk: Rc<dyn Disk>,
    first_bytes: u64,
    info: DiskInfo,
}

impl std::fmt::Debug for RestDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RestDisk").field("info", &self.info).finish_non_exhaustive()
    }
}

impl RestDisk {
    /// What comes after so many bytes, a multiple of 4096; nothing of a smaller disk.
    pub fn new(disk: Rc<dyn Disk>, first_bytes: u64) -> Self {
        let whole = disk.info().clone();
        let size_bytes = whole.size_bytes.saturating_sub(first_bytes);
        Self { disk, first_bytes, info: DiskInfo { size_bytes, ..whole } }
    }

    fn at(&self, offset: u64) -> u64 {
        // One beyond all disks stays there.
        offset.saturating_add(self.first_bytes)
    }
}

impl Layer for RestDisk {
    fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.disk.read(self.at(offset), buf, class)
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        self.disk.write(self.at(offset), data, opts)
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.disk.write_zeroes(self.at(offset), len, opts)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.disk.discard(self.at(offset), len)
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let at = self.disk.next_data(self.at(offset))?;
        Some(at.saturating_sub(self.first_bytes))
    }

    fn size_now(&self) -> u64 {
        self.disk.size_now().saturating_sub(self.first_bytes)
    }
}
