//! Disks that wrap another disk and change part of its behaviour.

use weft_rt::{Buf, Frozen};

use crate::{Class, Counters, Disk, DiskInfo, DoneFuture, ReadFuture, WriteOpts};

/// A [`Disk`] that wraps another. What a layer does not define itself goes straight to the wrapped
/// disk.
///
/// The two traits name their operations alike: where both are imported, call those of a layer
/// through [`Layer::below`] or a `dyn Disk`.
pub trait Layer {
    /// The wrapped disk.
    fn below(&self) -> &dyn Disk;

    /// See [`Disk::info`].
    fn info(&self) -> &DiskInfo {
        self.below().info()
    }

    /// See [`Disk::read`].
    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.below().read(offset, buf, class)
    }

    /// See [`Disk::write`].
    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        self.below().write(offset, data, opts)
    }

    /// See [`Disk::flush`].
    fn flush(&self) -> DoneFuture<'_> {
        self.below().flush()
    }

    /// See [`Disk::write_zeroes`].
    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.below().write_zeroes(offset, len, opts)
    }

    /// See [`Disk::discard`].
    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.below().discard(offset, len)
    }

    /// See [`Disk::next_data`].
    fn next_data(&self, offset: u64) -> Option<u64> {
        self.below().next_data(offset)
    }

    /// See [`Disk::size_now`].
    fn size_now(&self) -> u64 {
        self.below().size_now()
    }

    /// See [`Disk::has_shrunk`].
    fn has_shrunk(&self) -> bool {
        self.below().has_shrunk()
    }

    /// See [`Disk::counters`].
    fn counters(&self) -> Option<Counters> {
        self.below().counters()
    }

    /// See [`Disk::sever`].
    fn sever(&self, why: &str) {
        self.below().sever(why);
    }
}

impl<L: Layer> Disk for L {
    fn info(&self) -> &DiskInfo {
        Layer::info(self)
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Layer::read(self, offset, buf, class)
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Layer::write(self, offset, data, opts)
    }

    fn flush(&self) -> DoneFuture<'_> {
        Layer::flush(self)
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Layer::write_zeroes(self, offset, len, opts)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Layer::discard(self, offset, len)
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        Layer::next_data(self, offset)
    }

    fn size_now(&self) -> u64 {
        Layer::size_now(self)
    }

    fn has_shrunk(&self) -> bool {
        Layer::has_shrunk(self)
    }

    fn counters(&self) -> Option<Counters> {
        Layer::counters(self)
    }

    fn sever(&self, why: &str) {
        Layer::sever(self, why);
    }
}
