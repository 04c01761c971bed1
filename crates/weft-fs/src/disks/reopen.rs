//! The way to a disk, which can fail while the disk works.
//!
//! A cable, a connection to a server, a driver that was reset: requests fail with "gone", and the
//! disk is usable once it is opened again. On one machine this takes the place of asking other
//! nodes whether they reach the disk (Shinkai et al., *path failure*). So a disk is opened once
//! more, by its name, before it is lost:
//!
//! ```text
//!   gone, or the diagnosis fails ── all requests to the old one have ended
//!        ── open it again ── its label is that of the disk
//!        ── writes since the last flush read back ──▶ requests are repeated; otherwise it is lost
//! ```
//!
//! *What must not be taken for granted.* A disk that was without power for a moment has lost its
//! cache. Writes that completed since the last flush started are kept as offset, length and the
//! CRC32C of each part, and read back; the next flush makes them durable if they are there. Writes
//! that failed may have reached the disk in part: what they were to replace is not looked for. A
//! request that timed out may still be carried out, after a later one to the same block: a disk
//! with such a request is not opened again.
//!
//! *Among several nodes* a node goes on through the keeper ([`crate::disks::relayed`]), which first
//! makes the disk refuse all that the node has sent it ([`PathDisk::cut_off`]). So a request that
//! timed out does no harm there. Other nodes write to the disk as well: what this one has written
//! durably is not read back, and a node flushes its disks before others may overwrite the rest.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_disk::{
    Class, Counters, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, ReadFuture,
    WriteOpts,
};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen};

use crate::format::block::BLOCK_BYTES;
use crate::format::checksum::crc32c;
use crate::format::label::Label;

/// Opens a disk by its name; or the reason why it cannot be opened.
pub type Reopen = Rc<dyn Fn(String) -> LocalBoxFuture<'static, Result<Rc<dyn Disk>, String>>>;

/// Writes that are kept to be read back. With more, the disk cannot be opened again before a flush.
const WRITES_MAX: usize = 1 << 16;
const SECTOR_BYTES: u64 = 512;

/// A write that may be in the cache of the disk only.
#[derive(Clone)]
struct Write {
    number: u64,
    offset: u64,
    len: usize,
    /// CRC32C of each of its [`parts`]; none if it wrote zeros.
    sums: Option<Rc<[u32]>>,
    /// Whether it only replaces others, and is not read back itself.
    is_mask: bool,
}

/// The parts of a write that later writes replace one by one: offsets on the disk, and in the
/// write.
fn parts(offset: u64, len: usize, grain: u64) -> impl Iterator<Item = (Range<u64>, Range<usize>)> {
    let end = offset + len as u64;
    (offset / grain..end.div_ceil(grain)).map(move |part| {
        let from = (part * grain).max(offset);
        let to = ((part + 1) * grain).min(end);
        let within = |at: u64| usize::try_from(at - offset).expect("it is in memory");
        (from..to, within(from)..within(to))
    })
}

/// Writes that completed since the last flush started.
#[derive(Default)]
struct Unflushed {
    writes: VecDeque<Write>,
    /// Writes so far.
    count: u64,
    /// The last one that was not kept, as there were too many.
    not_kept: Option<u64>,
}

impl Unflushed {
    fn push(&mut self, offset: u64, len: usize, sums: Option<Rc<[u32]>>, is_mask: bool) {
        let number = self.count;
        self.count += 1;
        match self.writes.len() < WRITES_MAX {
            true => self.writes.push_back(Write { number, offset, len, sums, is_mask }),
            false => self.not_kept = Some(number),
        }
    }

    /// A flush has completed that started after `count` writes.
    fn forget(&mut self, count: u64) {
        while self.writes.front().is_some_and(|write| write.number < count) {
            self.writes.pop_front();
        }
        self.not_kept = self.not_kept.filter(|number| *number >= count);
    }
}

/// A request to the disk that has not ended. Dropped before its end, it may still be carried out.
struct InFlight<'a> {
    path: &'a PathDisk,
    has_ended: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let PathDisk { in_flight, abandoned, idle, .. } = self.path;
        abandoned.set(abandoned.get() || !self.has_ended);
        in_flight.set(in_flight.get() - 1);
        self.path.ended.set(self.path.ended.get() + 1);
        if in_flight.get() == 0 {
            idle.notify_all();
        }
    }
}

/// A write that has not completed. It may reach the disk in part, if it does not.
struct PendingWrite<'a> {
    path: &'a PathDisk,
    number: u64,
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        let pending = self.path.pending.borrow_mut().remove(&self.number);
        if let Some((offset, len)) = pending {
            self.path.unflushed.borrow_mut().push(offset, len, None, true);
        }
    }
}

/// A disk that is opened again if the way to it fails.
pub(crate) struct PathDisk {
    label: Label,
    info: DiskInfo,
    reopen: Reopen,
    /// None while it is being opened, and if that has failed.
    disk: RefCell<Option<Rc<dyn Disk>>>,
    /// Times it was opened again.
    opened: Cell<u64>,
    opening: Semaphore,
    in_flight: Cell<u32>,
    /// Requests that have ended.
    ended: Cell<u64>,
    idle: Notify,
    /// The error of the request after which it could not be opened again.
    why_gone: RefCell<String>,
    /// Whether a request may still be carried out although it has ended.
    abandoned: Cell<bool>,
    unflushed: RefCell<Unflushed>,
    /// Writes that have not completed: offset and length.
    pending: RefCell<BTreeMap<u64, (u64, usize)>>,
    writes: Cell<u64>,
    /// Whether other nodes use the disk, and `reopen` ends what the old one has begun.
    is_cut_off: bool,
}

impl PathDisk {
    pub(crate) fn new(disk: Rc<dyn Disk>, label: Label, reopen: Reopen) -> Self {
        Self {
            label,
            info: disk.info().clone(),
            reopen,
            disk: RefCell::new(Some(disk)),
            opened: Cell::new(0),
            opening: Semaphore::new(1),
            in_flight: Cell::new(0),
            ended: Cell::new(0),
            idle: Notify::default(),
            why_gone: RefCell::default(),
            abandoned: Cell::new(false),
            unflushed: RefCell::default(),
            pending: RefCell::default(),
            writes: Cell::new(0),
            is_cut_off: false,
        }
    }

    /// A disk that other nodes use as well. `reopen` succeeds only when nothing of what the old
    /// disk was asked can take effect any more, and what it has completed is durable.
    pub(crate) fn cut_off(disk: Rc<dyn Disk>, label: Label, reopen: Reopen) -> Self {
        Self { is_cut_off: true, ..Self::new(disk, label, reopen) }
    }

    /// The number of requests that have ended, if others are in flight.
    pub(crate) fn progress(&self) -> Option<u64> {
        (self.in_flight.get() > 0).then(|| self.ended.get())
    }

    /// The disk, if it is open.
    fn now(&self) -> Option<Rc<dyn Disk>> {
        self.disk.borrow().clone()
    }

    /// Opens the disk again, unless that was done since it had been opened `opened` times. Returns
    /// whether it can be used.
    async fn open_again(&self, opened: u64) -> bool {
        let _one = self.opening.acquire(1).await;
        if self.opened.get() != opened {
            return self.now().is_some();
        }
        if self.disk.take().is_none() {
            return false;
        }
        self.opened.set(opened + 1);
        loop {
            let idle = self.idle.wait();
            if self.in_flight.get() == 0 {
                break;
            }
            idle.await;
        }
        if self.abandoned.get() && !self.is_cut_off {
            return false;
        }
        let Ok(disk) = (self.reopen)(self.info.name.clone()).await else { return false };
        // It may have become larger since, and its label records that.
        let is_it = matches!(
            Label::read(&*disk).await,
            Ok(Some(label)) if label.disk_id == self.label.disk_id && label.fs_id == self.label.fs_id
        );
        let fits = disk.size_now() >= self.info.size_bytes;
        if !is_it || !fits || !self.reads_back(&*disk).await {
            return false;
        }
        *self.disk.borrow_mut() = Some(disk);
        true
    }

    /// Closes the disk, so that it can be opened by its name. Requests fail from then on.
    pub(crate) async fn close(&self) {
        let _one = self.opening.acquire(1).await;
        let disk = self.disk.take();
        loop {
            let idle = self.idle.wait();
            if self.in_flight.get() == 0 {
                break;
            }
            idle.await;
        }
        drop(disk);
    }

    /// Opens it again, as a diagnosis has failed.
    pub(crate) async fn try_again(&self) -> bool {
        self.open_again(self.opened.get()).await
    }

    /// Whether writes that were not flushed are there.
    async fn reads_back(&self, disk: &dyn Disk) -> bool {
        let writes = {
            let unflushed = self.unflushed.borrow();
            if unflushed.not_kept.is_some() {
                return false;
            }
            unflushed.writes.clone()
        };
        // From the newest one on: what a later write has replaced is not looked for.
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for (offset, len) in self.pending.borrow().values() {
            let places = parts(*offset, *len, self.grain(*offset));
            seen.extend(places.map(|(place, _)| (place.start, place.end)));
        }
        for Write { offset, len, sums, is_mask, .. } in writes.into_iter().rev() {
            let mut wanted = Vec::new();
            for (n, (place, within)) in parts(offset, len, self.grain(offset)).enumerate() {
                let before = seen.range(..place.end).next_back().map(|(from, to)| (*from, *to));
                match before.filter(|(_, to)| *to > place.start) {
                    Some((from, to)) if from <= place.start && place.end <= to => continue,
                    // Something in a part was replaced: its sum does not cover the rest.
                    Some(_) => return false,
                    None => wanted.push((n, place, within)),
                }
            }
            if is_mask {
                seen.extend(wanted.into_iter().map(|(_, place, _)| (place.start, place.end)));
                continue;
            }
            if wanted.is_empty() {
                continue;
            }
            let (result, found) = disk.read(offset, Buf::new(len), Class::User).await;
            let is_right = |(n, _, within): &(usize, Range<u64>, Range<usize>)| match &sums {
                Some(sums) => sums[*n] == crc32c(&found[within.clone()]),
                None => found[within.clone()].iter().all(|byte| *byte == 0),
            };
            if result.is_err() || !wanted.iter().all(is_right) {
                return false;
            }
            seen.extend(wanted.into_iter().map(|(_, place, _)| (place.start, place.end)));
        }
        true
    }

    /// Carries out a request; again, if the way to the disk has failed and it can be opened again.
    /// None: it could not be opened before.
    async fn request<T>(
        &self,
        mut one: impl AsyncFnMut(Rc<dyn Disk>) -> (Result<(), DiskError>, T),
    ) -> Option<(Result<(), DiskError>, T)> {
        loop {
            if self.now().is_none() {
                // Perhaps it is being opened.
                drop(self.opening.acquire(1).await);
            }
            let (opened, disk) = (self.opened.get(), self.now()?);
            self.in_flight.set(self.in_flight.get() + 1);
            let mut guard = InFlight { path: self, has_ended: false };
            let (result, value) = one(disk).await;
            let kind = result.as_ref().err().map(|error| error.kind);
            if let Err(error) = &result
                && kind == Some(DiskErrorKind::Gone)
                && self.opened.get() == opened
            {
                *self.why_gone.borrow_mut() = error.to_string();
            }
            guard.has_ended = kind != Some(DiskErrorKind::TimedOut);
            drop(guard);
            let is_of_path = match kind {
                Some(DiskErrorKind::Gone) => true,
                Some(DiskErrorKind::TimedOut) => self.is_cut_off,
                _ => false,
            };
            if !is_of_path || !self.open_again(opened).await {
                return Some((result, value));
            }
        }
    }

    fn gone(&self, op: DiskOp, offset: u64, len: u64) -> DiskError {
        let why = format!("it could not be opened again: {}", self.why_gone.borrow());
        let why = io::Error::new(io::ErrorKind::NotConnected, why);
        DiskError::new(&self.info.name, op, offset, len, why)
    }

    /// Repeats a request that returns no data, until it succeeds or the disk is lost.
    async fn done(
        &self,
        (op, offset, len): (DiskOp, u64, u64),
        mut one: impl AsyncFnMut(Rc<dyn Disk>) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let done = self.request(async |disk| (one(disk).await, ())).await;
        done.map_or_else(|| Err(self.gone(op, offset, len)), |(result, ())| result)
    }

    /// Data is written in blocks, metadata in sectors as well.
    fn grain(&self, offset: u64) -> u64 {
        if offset < self.label.data().start { SECTOR_BYTES } else { BLOCK_BYTES }
    }

    /// A write begins.
    fn begin_write(&self, offset: u64, len: u64) -> PendingWrite<'_> {
        let number = self.writes.get();
        self.writes.set(number + 1);
        if self.info.volatile_cache {
            let len = usize::try_from(len).expect("it is in memory, or is zeros");
            self.pending.borrow_mut().insert(number, (offset, len));
        }
        PendingWrite { path: self, number }
    }

    /// A write has completed; none: one of zeros. One that is durable is kept as well: it has
    /// replaced others, which may not be.
    fn wrote(
        &self,
        (offset, len): (u64, u64),
        data: Option<&[u8]>,
        fua: bool,
        pending: PendingWrite<'_>,
    ) {
        self.pending.borrow_mut().remove(&pending.number);
        if self.info.volatile_cache {
            let len = usize::try_from(len).expect("it was in memory, or is zeros");
            let parts = parts(offset, len, self.grain(offset));
            let sums = data.map(|data| parts.map(|(_, within)| crc32c(&data[within])).collect());
            let is_mask = fua && self.is_cut_off;
            self.unflushed.borrow_mut().push(offset, len, sums, is_mask);
        }
    }
}

impl Disk for PathDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let len = buf.len();
            let mut buf = Some(buf);
            let mut one = async |disk: Rc<dyn Disk>| {
                let buf = buf.take().unwrap_or_else(|| Buf::new(len));
                disk.read(offset, buf, class).await
            };
            let read = self.request(&mut one).await;
            read.unwrap_or_else(|| {
                (Err(self.gone(DiskOp::Read, offset, len as u64)), Buf::new(len))
            })
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let len = data.len() as u64;
            let pending = self.begin_write(offset, len);
            let one = async |disk: Rc<dyn Disk>| disk.write(offset, data.clone(), opts).await;
            self.done((DiskOp::Write, offset, len), one).await?;
            self.wrote((offset, len), Some(&data), opts.fua, pending);
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            let count = self.unflushed.borrow().count;
            let one = async |disk: Rc<dyn Disk>| disk.flush().await;
            self.done((DiskOp::Flush, 0, 0), one).await?;
            self.unflushed.borrow_mut().forget(count);
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let pending = self.begin_write(offset, len);
            let one = async |disk: Rc<dyn Disk>| disk.write_zeroes(offset, len, opts).await;
            self.done((DiskOp::WriteZeroes, offset, len), one).await?;
            self.wrote((offset, len), None, opts.fua, pending);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            let one = async |disk: Rc<dyn Disk>| disk.discard(offset, len).await;
            self.done((DiskOp::Discard, offset, len), one).await
        })
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        match self.now() {
            Some(disk) => disk.next_data(offset),
            None => (offset < self.info.size_bytes).then_some(offset),
        }
    }

    fn size_now(&self) -> u64 {
        self.now().map_or(self.info.size_bytes, |disk| disk.size_now())
    }

    fn has_shrunk(&self) -> bool {
        self.now().is_some_and(|disk| disk.has_shrunk())
    }

    fn counters(&self) -> Option<Counters> {
        self.now()?.counters()
    }

    fn sever(&self, why: &str) {
        if let Some(disk) = self.disk.take() {
            disk.sever(why);
        }
    }
}
