//! A disk that fails on demand, slows down on demand, and counts.
//!
//! Faults are data ([`Fault`]), injected at once or by a script that counts operations, through a
//! handle ([`Faults`]) that the test keeps when the disk goes into an array. Nothing is random and
//! the executor's clock is the only one, so a run repeats exactly under virtual time.
//!
//! [`Fault::Medium`] and [`Fault::BitFlip`] belong to sectors and go away when these are written,
//! as on a real disk. Lost and misdirected writes are acknowledged: only redundancy can reveal
//! them. An operation that is in progress when the disk goes fails too, and may or may not have
//! been done.

mod state;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use weft_rt::{Buf, Frozen, Nanos, Rt};

use crate::{Class, Disk, DiskError, DiskOp, DoneFuture, Layer, ReadFuture, WriteOpts};
use state::{State, WriteFate};

const EIO: i32 = 5;
const ENXIO: i32 = 6;

/// A fault from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The disk is gone: every operation fails.
    Gone,
    /// A disk that was gone is there again, with its contents.
    Back,
    /// Reads that touch these bytes fail, until they are written.
    Medium(Range<u64>),
    /// Writes that touch these bytes fail (`0..u64::MAX`: all; an empty range: none).
    FailWrites(Range<u64>),
    /// Whether flushes fail.
    FailFlushes(bool),
    /// The number of next writes that are acknowledged but not done.
    LoseWrites(u64),
    /// The next write is done at this offset (bytes) instead of its own.
    MisdirectWrite(u64),
    /// These bits (`mask`) of the byte at `offset` read inverted, until it is written.
    BitFlip {
        /// Byte offset.
        offset: u64,
        /// Bits to invert.
        mask: u8,
    },
    /// The least time that is added to every operation.
    Delay(Nanos),
    /// Bytes and operations per second at most, reads and writes together.
    Limit(RateLimit),
}

/// A limit of speed; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Bytes per second.
    pub bytes_per_s: u64,
    /// Operations per second.
    pub ops_per_s: u64,
}

/// Operations sent to a disk, failed ones included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Writes of zeros.
    pub zeroes: u64,
    /// Discards.
    pub discards: u64,
}

impl OpCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.zeroes + self.discards
    }
}

/// Handle of a [`FaultDisk`]'s faults; clones are handles of the same ones.
#[derive(Clone, Default)]
pub struct Faults(Rc<RefCell<State>>);

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Faults {
    /// Lets `fault` happen now.
    pub fn inject(&self, fault: Fault) {
        self.0.borrow_mut().inject(fault);
    }

    /// Lets `fault` happen just before the operation with this number (counted from 0 since the
    /// disk was made, all kinds together; see [`OpCounts::total`]).
    pub fn inject_at(&self, operation: u64, fault: Fault) {
        self.0.borrow_mut().schedule(operation, fault);
    }

    /// Takes back every fault, delay, limit and script; the counts stay.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// What was asked of the disk so far.
    pub fn counts(&self) -> OpCounts {
        self.0.borrow().counts
    }

    /// Whether the disk is gone.
    pub fn is_gone(&self) -> bool {
        self.0.borrow().gone
    }
}

/// A disk with faults.
pub struct FaultDisk {
    disk: Rc<dyn Disk>,
    rt: Rt,
    faults: Faults,
}

impl fmt::Debug for FaultDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultDisk")
            .field("disk", &self.disk.info().name)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl FaultDisk {
    /// A disk that works as `disk` until faults are injected. Delays and limits are measured by
    /// `rt`'s clock.
    pub fn new(rt: &Rt, disk: Rc<dyn Disk>) -> (Self, Faults) {
        let faults = Faults::default();
        (Self { disk, rt: rt.clone(), faults: faults.clone() }, faults)
    }

    fn error(&self, op: DiskOp, offset: u64, len: u64, errno: i32) -> DiskError {
        let source = io::Error::from_raw_os_error(errno);
        DiskError::new(&self.disk.info().name, op, offset, len, source)
    }

    fn check_there(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        if self.faults.is_gone() { Err(self.error(op, offset, len, ENXIO)) } else { Ok(()) }
    }

    /// Counts the operation, lets the script proceed and time pass.
    async fn begin(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        let start = self.faults.0.borrow_mut().begin(op, len, || self.rt.now());
        self.check_there(op, offset, len)?;
        if let Some(start) = start {
            self.rt.sleep_until(start).await;
            self.check_there(op, offset, len)?;
        }
        Ok(())
    }
}

impl Layer for FaultDisk {
    fn below(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let len = buf.len() as u64;
            if let Err(error) = self.begin(DiskOp::Read, offset, len).await {
                return (Err(error), buf);
            }
            let (result, mut buf) = self.disk.read(offset, buf, class).await;
            let result = result.and_then(|()| self.check_there(DiskOp::Read, offset, len));
            if result.is_ok() {
                let state = self.faults.0.borrow();
                if state.is_bad(offset, len) {
                    return (Err(self.error(DiskOp::Read, offset, len, EIO)), buf);
                }
                state.flip(offset, &mut buf);
            }
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.begin(DiskOp::Write, offset, len).await?;
            let fate = self.faults.0.borrow_mut().fate_of_write(offset, len);
            let to = match fate {
                WriteFate::Fail => return Err(self.error(DiskOp::Write, offset, len, EIO)),
                WriteFate::Lose => return Ok(()),
                WriteFate::Misdirect(to) => to,
                WriteFate::Do => offset,
            };
            self.disk.write(to, data, opts).await?;
            self.faults.0.borrow_mut().written(to, len);
            self.check_there(DiskOp::Write, offset, len)
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            self.begin(DiskOp::Flush, 0, 0).await?;
            if self.faults.0.borrow().fail_flushes {
                return Err(self.error(DiskOp::Flush, 0, 0, EIO));
            }
            self.disk.flush().await?;
            self.check_there(DiskOp::Flush, 0, 0)
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.begin(DiskOp::WriteZeroes, offset, len).await?;
            if self.faults.0.borrow().write_fails(offset, len) {
                return Err(self.error(DiskOp::WriteZeroes, offset, len, EIO));
            }
            self.disk.write_zeroes(offset, len, opts).await?;
            self.faults.0.borrow_mut().written(offset, len);
            self.check_there(DiskOp::WriteZeroes, offset, len)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            self.begin(DiskOp::Discard, offset, len).await?;
            self.disk.discard(offset, len).await?;
            self.check_there(DiskOp::Discard, offset, len)
        })
    }
}
