//! Ranges of a device, as a disk of its own.
//!
//! Several owners may share a device: arrays, file systems, a cache. Each gets a slice, and reaches
//! nothing else. All slices are made from the device's one queue, so they share its depth and its
//! classes: however many owners there are, a user's request waits for no more than the queue's
//! rules allow ([`QueuedDisk`]), and the device never has more requests than its depth. A time
//! limit belongs below the queue, where it measures only the device.
//!
//! ```text
//!   array ── slice ─┐
//!                   ├── queue ── time limit ── device
//!   cache ── slice ─┘
//! ```
//!
//! A slice is one range of the device, or several, one behind the other ([`Ranges`]): so an owner
//! can be given more of the device while it uses what it has. Slices that are made of the same
//! ranges become larger together. A request over the end of a range is one request to the device
//! for each.
//!
//! A flush of a slice flushes the device: it makes the writes of all slices durable. Giving up a
//! slice ([`Disk::sever`]) ends the requests of its owner; the other owners keep the device.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use weft_rt::{Buf, Frozen};

use crate::given_up::GivenUpDisk;
use crate::{
    Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, QueuedDisk, ReadFuture, WriteOpts,
};

/// The ranges of a device that a slice has, in the order of its addresses.
#[derive(Debug, Default)]
pub struct Ranges {
    ranges: RefCell<Vec<Range<u64>>>,
    bytes: Cell<u64>,
}

/// A part of a request: where it begins on the device, and its length.
type Part = (u64, u64);

impl Ranges {
    /// These ranges of a device.
    #[must_use]
    pub fn new(ranges: Vec<Range<u64>>) -> Self {
        let all = Self::default();
        ranges.into_iter().for_each(|range| all.push(range));
        all
    }

    /// One more. The caller knows that the device has it, and that no other slice does.
    pub fn push(&self, range: Range<u64>) {
        self.bytes.set(self.bytes.get() + range.end.saturating_sub(range.start));
        self.ranges.borrow_mut().push(range);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ranges.borrow().len()
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// The parts of a request that lies within them.
    fn parts(&self, offset: u64, len: u64) -> Vec<Part> {
        let (mut parts, mut before) = (Vec::with_capacity(1), 0);
        for range in &*self.ranges.borrow() {
            let size = range.end - range.start;
            let from = offset.max(before);
            let to = (offset + len).min(before + size);
            // A flush has no bytes, and belongs to the first one.
            if from < to || (len == 0 && parts.is_empty()) {
                parts.push((range.start + (from - before).min(size), to.saturating_sub(from)));
            }
            before += size;
        }
        parts
    }

    /// The address of the slice that is at this one of the device, in one of its ranges.
    fn address(&self, range: usize, at: u64) -> u64 {
        let ranges = self.ranges.borrow();
        let before: u64 = ranges[..range].iter().map(|range| range.end - range.start).sum();
        before + at - ranges[range].start
    }
}

/// Ranges of a device.
pub struct SliceDisk {
    device: Rc<QueuedDisk>,
    ranges: Rc<Ranges>,
    info: DiskInfo,
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
    /// The bytes in `range` of this queue's device, as the disk `name`.
    ///
    /// # Errors
    /// If the range reaches beyond the device, or does not start and end with a sector.
    pub fn new(device: &Rc<QueuedDisk>, range: Range<u64>, name: &str) -> Result<Self, DiskError> {
        let size_bytes = range.end.saturating_sub(range.start);
        let ranges = Ranges::new(
            std::iter::once(range.start..range.start.saturating_add(size_bytes)).collect(),
        );
        Self::of(device, &Rc::new(ranges), name)
    }

    /// These ranges of the device behind this queue, as the disk `name`.
    ///
    /// # Errors
    /// If one reaches beyond the device, or does not begin and end with a sector.
    pub fn of(device: &Rc<QueuedDisk>, ranges: &Rc<Ranges>, name: &str) -> Result<Self, DiskError> {
        let below = Disk::info(&**device);
        let whole = Disk::size_now(&**device);
        for range in &*ranges.ranges.borrow() {
            let bytes = range.end.saturating_sub(range.start);
            below.check_within(whole, DiskOp::Open, range.start, bytes)?;
        }
        let info = DiskInfo { name: name.to_owned(), size_bytes: ranges.bytes(), ..below.clone() };
        let (device, ranges) = (device.clone(), ranges.clone());
        Ok(Self { device, ranges, info, given_up: GivenUpDisk::default(), is_urgent: false })
    }

    /// Its last range becomes longer, so that it has `size_bytes`: the device may have been
    /// enlarged behind it.
    ///
    /// # Errors
    /// If it would reach beyond the device.
    pub fn extend(&self, size_bytes: u64) -> Result<(), DiskError> {
        let more = size_bytes.saturating_sub(self.ranges.bytes());
        let mut ranges = self.ranges.ranges.borrow_mut();
        let Some(last) = ranges.last_mut() else { return Ok(()) };
        let below = Disk::info(&*self.device);
        let whole = self.device().size_now();
        below.check_within(whole, DiskOp::Open, last.start, last.end - last.start + more)?;
        last.end += more;
        self.ranges.bytes.set(self.ranges.bytes() + more);
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

    /// Fails if the request reaches outside the slice, or the slice is severed.
    fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        self.info.check_within(self.ranges.bytes(), op, offset, len)?;
        self.given_up.check(&self.info.name, op, offset, len)
    }

    /// Carries out a request, part by part: `request` makes that of a part, of its address on the
    /// device, its length, and how many bytes are before it.
    async fn done<'a>(
        &'a self,
        op: DiskOp,
        offset: u64,
        len: u64,
        mut request: impl FnMut(&'a dyn Disk, Part, u64) -> DoneFuture<'a>,
    ) -> Result<(), DiskError> {
        self.check(op, offset, len)?;
        let mut before = 0;
        for part in self.ranges.parts(offset, len) {
            let request = request(self.device(), part, before);
            match self.given_up.unless(request).await {
                Some(result) => result?,
                None => return self.check(op, offset, len),
            }
            before += part.1;
        }
        Ok(())
    }

    async fn read_part(
        &self,
        offset: u64,
        at: u64,
        buf: Buf,
        class: Class,
    ) -> (Result<(), DiskError>, Buf) {
        let len = buf.len();
        match self.given_up.unless(self.device().read(at, buf, class)).await {
            Some(done) => done,
            None => (self.check(DiskOp::Read, offset, len as u64), Buf::new(len)),
        }
    }
}

impl Disk for SliceDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let (len, class) = (buf.len(), self.class(class));
            if let Err(error) = self.check(DiskOp::Read, offset, len as u64) {
                return (Err(error), buf);
            }
            let parts = self.ranges.parts(offset, len as u64);
            if let [(at, _)] = parts[..] {
                return self.read_part(offset, at, buf, class).await;
            }
            let (mut buf, mut done) = (buf, 0);
            for (at, bytes) in parts {
                let bytes = usize::try_from(bytes).expect("a part of a buffer");
                let part = Buf::new(bytes);
                let (read, part) = self.read_part(offset + done as u64, at, part, class).await;
                if read.is_err() {
                    return (read, buf);
                }
                buf[done..done + bytes].copy_from_slice(&part);
                done += bytes;
            }
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let len = data.len() as u64;
        let opts = WriteOpts { class: self.class(opts.class), ..opts };
        Box::pin(self.done(DiskOp::Write, offset, len, move |device, (at, bytes), before| {
            let index = |n: u64| usize::try_from(n).expect("a part of a buffer");
            let part = match bytes == len {
                true => data.clone(),
                false => data.slice(index(before), index(bytes)),
            };
            device.write(at, part, opts)
        }))
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(self.done(DiskOp::Flush, 0, 0, |device, _, _| device.flush()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        let opts = WriteOpts { class: self.class(opts.class), ..opts };
        Box::pin(self.done(DiskOp::WriteZeroes, offset, len, move |device, (at, bytes), _| {
            device.write_zeroes(at, bytes, opts)
        }))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(self.done(DiskOp::Discard, offset, len, move |device, (at, bytes), _| {
            device.discard(at, bytes)
        }))
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let count = self.ranges.ranges.borrow().len();
        let mut before = 0;
        for n in 0..count {
            let range = self.ranges.ranges.borrow()[n].clone();
            let size = range.end - range.start;
            let from = range.start + offset.saturating_sub(before);
            before += size;
            if from >= range.end {
                continue;
            }
            if let Some(at) = self.device().next_data(from).filter(|at| *at < range.end) {
                return Some(self.ranges.address(n, at));
            }
        }
        None
    }

    fn size_now(&self) -> u64 {
        self.ranges.bytes()
    }

    fn sever(&self, why: &str) {
        self.given_up.sever(why);
    }
}
