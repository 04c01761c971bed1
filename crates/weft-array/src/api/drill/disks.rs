//! The disks of a drill: members that are lent, and a replacement that keeps nothing.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::rc::Rc;

use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen, Nanos, Rt, SECOND};

/// A member of the array in use, lent to the second one: to be read, and nothing else. Above all,
/// it is not severed when the second array has lost it.
pub(super) struct LentDisk(Rc<dyn Disk>);

impl LentDisk {
    pub(super) fn new(disk: Rc<dyn Disk>) -> Self {
        Self(disk)
    }

    fn refuse(&self, op: DiskOp, offset: u64, len: u64) -> DoneFuture<'_> {
        let source = std::io::Error::new(std::io::ErrorKind::ReadOnlyFilesystem, "lent to a drill");
        let error = DiskError::new(&self.0.info().name, op, offset, len, source);
        Box::pin(std::future::ready(Err(error)))
    }
}

impl Disk for LentDisk {
    fn info(&self) -> &DiskInfo {
        self.0.info()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.0.read(offset, buf, class)
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::Write, offset, data.len() as u64)
    }

    fn flush(&self) -> DoneFuture<'_> {
        self.refuse(DiskOp::Flush, 0, 0)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::WriteZeroes, offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.refuse(DiskOp::Discard, offset, len)
    }
}

/// The bytes per second at which a disk is read from its begin on.
pub(super) async fn sequential_rate(rt: &Rt, disk: &dyn Disk) -> u64 {
    const PROBE_BYTES: usize = 1 << 20;
    const PROBES_MAX: u64 = 256;
    let begun = rt.now();
    let mut bytes = 0;
    // A first one, which seeks, is not counted.
    let mut counted_from = begun;
    for probe in 0..PROBES_MAX {
        let offset = probe * PROBE_BYTES as u64;
        let past_end = offset + PROBE_BYTES as u64 > disk.info().size_bytes;
        if past_end || rt.now() - begun > SECOND {
            break;
        }
        let (result, _) = disk.read(offset, Buf::new(PROBE_BYTES), Class::Maintenance).await;
        match (result, probe) {
            (Err(_), _) => break,
            (Ok(()), 0) => counted_from = rt.now(),
            (Ok(()), _) => bytes += PROBE_BYTES as u64,
        }
    }
    let rate =
        u128::from(bytes) * u128::from(SECOND) / u128::from((rt.now() - counted_from).max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A replacement that keeps nothing, and takes as long to write as a disk that is written one byte
/// after the other.
pub(super) struct Replacement {
    info: DiskInfo,
    rt: Rt,
    /// None: writes take no time.
    rate_bytes_s: Option<NonZeroU64>,
    /// When what it was given so far will be written.
    written_at: Cell<Nanos>,
}

impl Replacement {
    pub(super) fn of(rt: &Rt, failed: &DiskInfo, rate_bytes_s: u64) -> Self {
        let name = format!("a new disk for {}", failed.name);
        let info = DiskInfo { name, fast_zeroes: true, volatile_cache: false, ..failed.clone() };
        let rate_bytes_s = NonZeroU64::new(rate_bytes_s);
        Self { info, rt: rt.clone(), rate_bytes_s, written_at: Cell::new(0) }
    }

    async fn take_time(&self, bytes: u64) {
        let Some(rate) = self.rate_bytes_s else { return };
        let time = u128::from(bytes) * u128::from(SECOND) / u128::from(rate.get());
        let begins = self.written_at.get().max(self.rt.now());
        let ends = begins.saturating_add(Nanos::try_from(time).unwrap_or(Nanos::MAX));
        self.written_at.set(ends);
        self.rt.sleep(ends.saturating_sub(self.rt.now())).await;
    }
}

impl Disk for Replacement {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            if let Err(error) = self.info.check(DiskOp::Read, offset, buf.len() as u64) {
                return (Err(error), buf);
            }
            self.take_time(buf.len() as u64).await;
            buf.fill(0);
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.info.check(DiskOp::Write, offset, data.len() as u64)?;
            self.take_time(data.len() as u64).await;
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(std::future::ready(self.info.check(DiskOp::WriteZeroes, offset, len)))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(std::future::ready(self.info.check(DiskOp::Discard, offset, len)))
    }
}
