//! A range of a device, as a disk of its own.
//!
//! Several owners may share a device: arrays, file systems, a cache. Each gets a slice, and reaches
//! nothing else. All slices are made from the device's one queue, so they share its depth and its
//! classes: however many owners there are, a user's request waits for no more than the queue's
//! rules say ([`QueuedDisk`]), and the device never has more requests than its depth. A time limit
//! belongs below the queue, where it measures the device alone.
//!
//! ```text
//!   array ── slice ─┐
//!                   ├── queue ── time limit ── device
//!   cache ── slice ─┘
//! ```
//!
//! A flush of a slice flushes the device: it makes the writes of all slices durable. Giving up a
//! slice ([`Disk::sever`]) ends the requests of its owner; the others keep the device.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use weft_rt::{Buf, Frozen};

use crate::given_up::GivenUpDisk;
use crate::{
    Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, QueuedDisk, ReadFuture, WriteOpts,
};

/// A range of a device.
pub struct SliceDisk {
    device: Rc<QueuedDisk>,
    start: u64,
    info: DiskInfo,
    /// Its size now.
    size: Cell<u64>,
    given_up: GivenUpDisk,
    /// Users' requests are urgent.
    is_urgent: bool,
}

impl std::fmt::Debug for SliceDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SliceDisk").field("info", &self.info).finish_non_exhaustive()
    }
}

impl SliceDisk {
    /// The bytes in `range` of the device behind this queue, as the disk `name`.
    ///
    /// # Errors
    /// If the range reaches beyond the device, or does not begin and end with a sector.
    pub fn new(device: &Rc<QueuedDisk>, range: Range<u64>, name: &str) -> Result<Self, DiskError> {
        let below = Disk::info(&**device);
        let size_bytes = range.end.saturating_sub(range.start);
        let (whole, start) = (Disk::size_now(&**device), range.start);
        below.check_within(whole, DiskOp::Open, start, size_bytes)?;
        let info = DiskInfo { name: name.to_owned(), size_bytes, ..below.clone() };
        let (device, given_up) = (device.clone(), GivenUpDisk::default());
        let size = Cell::new(size_bytes);
        Ok(Self { device, start, info, size, given_up, is_urgent: false })
    }

    /// It becomes larger: the device may have been enlarged behind it.
    ///
    /// # Errors
    /// If it would reach beyond the device.
    pub fn extend(&self, size_bytes: u64) -> Result<(), DiskError> {
        let below = Disk::info(&*self.device);
        let whole = self.device().size_now();
        below.check_within(whole, DiskOp::Open, self.start, size_bytes)?;
        self.size.set(size_bytes.max(self.size.get()));
        Ok(())
    }

    /// Gives requests of this slice's users precedence over those of other slices.
    #[must_use]
    pub fn urgent(self) -> Self {
        Self { is_urgent: true, ..self }
    }

    fn class(&self, class: Class) -> Class {
        if self.is_urgent && class == Class::User { Class::Urgent } else { class }
    }

    /// The disk below, with its own methods.
    fn device(&self) -> &dyn Disk {
        &*self.device
    }

    /// Fails if the request reaches outside the slice, or the slice was given up.
    fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        self.info.check_within(self.size.get(), op, offset, len)?;
        self.given_up.check(&self.info.name, op, offset, len)
    }

    async fn done<'a>(
        &'a self,
        op: DiskOp,
        offset: u64,
        len: u64,
        request: impl FnOnce(&'a dyn Disk, u64) -> DoneFuture<'a>,
    ) -> Result<(), DiskError> {
        self.check(op, offset, len)?;
        let request = request(self.device(), self.start + offset);
        match self.given_up.unless(request).await {
            Some(result) => result,
            None => self.check(op, offset, len),
        }
    }
}

impl Disk for SliceDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let len = buf.len();
            if let Err(error) = self.check(DiskOp::Read, offset, len as u64) {
                return (Err(error), buf);
            }
            let request = self.device().read(self.start + offset, buf, self.class(class));
            match self.given_up.unless(request).await {
                Some(done) => done,
                None => (self.check(DiskOp::Read, offset, len as u64), Buf::new(len)),
            }
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let len = data.len() as u64;
        let opts = WriteOpts { class: self.class(opts.class), ..opts };
        Box::pin(
            self.done(DiskOp::Write, offset, len, move |device, at| device.write(at, data, opts)),
        )
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(self.done(DiskOp::Flush, 0, 0, |device, _| device.flush()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        let opts = WriteOpts { class: self.class(opts.class), ..opts };
        Box::pin(self.done(DiskOp::WriteZeroes, offset, len, move |device, at| {
            device.write_zeroes(at, len, opts)
        }))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(self.done(DiskOp::Discard, offset, len, move |device, at| device.discard(at, len)))
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        if offset >= self.size.get() {
            return None;
        }
        let at = self.device().next_data(self.start + offset)? - self.start;
        (at < self.size.get()).then_some(at)
    }

    fn size_now(&self) -> u64 {
        self.size.get()
    }

    fn sever(&self, why: &str) {
        self.given_up.sever(why);
    }
}
