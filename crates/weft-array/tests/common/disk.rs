//! A disk for crash and fault tests: it has a volatile cache, its operations take virtual time, its
//! power can be cut, and tests can inject faults. Its [`Medium`] survives; a new [`TestDisk`] can
//! be opened on it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts,
};
pub use weft_model::Medium;
use weft_rt::sync::Notify;
use weft_rt::{Buf, Frozen, Nanos, Rt};

const SECTOR: u64 = 512;
const EIO: i32 = 5;
const ENODEV: i32 = 19;
const ENOSPC: i32 = 28;

/// The clock of steps of all disks: at each the power may be cut.
#[derive(Default)]
pub struct Power {
    /// Called before each step that changes the contents of a disk, or what a power cut may leave
    /// of them.
    watch: RefCell<Option<Box<dyn Fn()>>>,
}

impl Power {
    pub fn new() -> Rc<Self> {
        Rc::default()
    }

    /// Calls `watch` before each step that changes a disk.
    pub fn watch(&self, watch: impl Fn() + 'static) {
        *self.watch.borrow_mut() = Some(Box::new(watch));
    }

    fn step(&self) {
        if let Some(watch) = &*self.watch.borrow() {
            watch();
        }
    }
}

/// What a power cut leaves of writes that were not durable.
#[derive(Debug, Clone, Copy)]
pub enum Leave {
    All,
    /// The completed ones: only the program was killed.
    Completed,
    /// Only the program was killed, and what it had begun has reached the caches.
    Cached,
    Nothing,
    /// For each sector, any of its versions.
    Some(u64),
}

impl Leave {
    /// What it leaves of a disk.
    #[must_use]
    pub fn of(self, medium: &Medium) -> Medium {
        let mut left = medium.clone();
        left.land(|sectors| 0..if matches!(self, Self::Completed) { 0 } else { sectors });
        match self {
            Self::Completed | Self::Cached => {}
            Self::All => left.cut(|_, versions| versions.last()),
            Self::Nothing => left.cut(|_, _| None),
            Self::Some(seed) => left.cut(|sector, versions| {
                let choice = mix(seed ^ mix(sector)) % (versions.len() as u64 + 1);
                (choice as usize).checked_sub(1).map(|n| &versions[n])
            }),
        }
        left
    }
}

pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// See [`Faults::room`].
pub type Room = Box<dyn Fn(u64, u64, bool) -> Option<u64>>;

/// Where a user's reads wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadStep {
    /// Nowhere.
    #[default]
    End,
    /// Before they have looked at the medium.
    Start,
    /// After that.
    Looked,
}

/// The present faults of a disk.
#[derive(Default)]
pub struct Faults {
    /// Every operation fails.
    pub gone: Cell<bool>,
    /// The path fails, and not the disk: every operation fails, and writes reach the medium later,
    /// unless they are ended before ([`TestDisk::end_writes`]).
    pub cut: Cell<bool>,
    /// Every operation fails with an error of this kind.
    pub kind: Cell<Option<DiskErrorKind>>,
    /// `gone` is set after this many more writes.
    pub gone_after_writes: Cell<Option<u64>>,
    /// Sectors that cannot be read until they are written, by number.
    pub unreadable: RefCell<BTreeSet<u64>>,
    /// Sectors that cannot be read, whatever is written there, by number.
    pub dead_reads: RefCell<BTreeSet<u64>>,
    /// Sectors that cannot be written, by number. Of a write that meets one, those before it are.
    pub dead_writes: RefCell<BTreeSet<u64>>,
    /// Writes that begin in this range (bytes) fail.
    pub unwritable: RefCell<Range<u64>>,
    /// Writes that begin in this range (bytes) are refused before they are sent, as malformed.
    pub malformed: RefCell<Range<u64>>,
    /// A user's reads wait at this step.
    pub reads_at: Cell<ReadStep>,
    /// Writes to sectors never written before get "no space".
    pub full: Cell<bool>,
    /// Writes that begin in this range (bytes) take this much longer.
    pub slow: RefCell<Range<u64>>,
    pub slow_ns: Cell<Nanos>,
    /// Called for each write with offset, length and whether all of it was written before; returns
    /// how many bytes find space, or `None` if all do.
    pub room: RefCell<Option<Room>>,
    /// While set, writes start and do not end.
    pub stuck: Cell<bool>,
    held: RefCell<Option<Held>>,
    released: Notify,
}

/// Writes that are held back.
struct Held {
    /// Writes that begin in this range of bytes are held.
    range: Range<u64>,
    /// This many of them pass first.
    passes: u64,
}

/// Whether one of these sectors is in a range of bytes: the first one.
fn first_in(sectors: &RefCell<BTreeSet<u64>>, offset: u64, len: u64) -> Option<u64> {
    sectors.borrow().range(offset / SECTOR..(offset + len).div_ceil(SECTOR)).next().copied()
}

impl Faults {
    /// Whether every operation fails.
    fn fails(&self) -> bool {
        self.gone.get() || self.cut.get() || self.kind.get().is_some()
    }

    /// From now on writes that begin in `range` (bytes) are carried out but do not complete, except
    /// for the next `passes`.
    pub fn hold(&self, range: Range<u64>, passes: u64) {
        *self.held.borrow_mut() = Some(Held { range, passes });
    }

    /// Completes all held writes in one poll.
    pub fn release(&self) {
        *self.held.borrow_mut() = None;
        self.released.notify_all();
    }

    fn is_held(&self, offset: u64) -> bool {
        let mut held = self.held.borrow_mut();
        let Some(held) = held.as_mut().filter(|held| held.range.contains(&offset)) else {
            return false;
        };
        let passes = held.passes > 0;
        held.passes = held.passes.saturating_sub(1);
        !passes
    }
}

/// Disks of `size` bytes with these contents, numbered in order.
pub fn holding(rt: &Rt, power: &Rc<Power>, size: u64, media: &[Medium]) -> Vec<Rc<TestDisk>> {
    let disk =
        |(n, medium): (usize, &Medium)| TestDisk::new(rt, power, n, size, 512, medium.clone());
    media.iter().enumerate().map(disk).collect()
}

pub struct TestDisk {
    info: DiskInfo,
    /// Its size now.
    size: Cell<u64>,
    rt: Rt,
    power: Rc<Power>,
    pub medium: Rc<RefCell<Medium>>,
    pub faults: Faults,
    ops: Cell<u64>,
    /// Writes that have begun and not ended.
    in_flight: Rc<RefCell<BTreeSet<u64>>>,
    salt: u64,
    /// Reads and writes so far: offset and length.
    pub reads: RefCell<Vec<(u64, u64)>>,
    pub writes: RefCell<Vec<(u64, u64)>>,
    /// Bytes of data that writes brought so far; zeros that the disk makes do not count.
    pub data_bytes: Cell<u64>,
}

impl TestDisk {
    pub fn new(
        rt: &Rt,
        power: &Rc<Power>,
        number: usize,
        size: u64,
        sector: u32,
        medium: Medium,
    ) -> Rc<Self> {
        Rc::new(Self {
            info: DiskInfo {
                name: format!("test{number}"),
                size_bytes: size,
                sector_bytes: sector,
                fast_zeroes: true,
                volatile_cache: true,
                rotational: true,
            },
            size: Cell::new(size),
            rt: rt.clone(),
            power: power.clone(),
            medium: Rc::new(RefCell::new(medium)),
            faults: Faults::default(),
            ops: Cell::new(0),
            in_flight: Rc::default(),
            salt: number as u64,
            reads: RefCell::default(),
            writes: RefCell::default(),
            data_bytes: Cell::new(0),
        })
    }

    /// The same disk as another host reaches it, of which only the contents are shared. Each host
    /// has a number, which is not 0.
    #[allow(dead_code, reason = "tests of the file system have several hosts")]
    pub fn for_host(&self, rt: &Rt, power: &Rc<Power>, host: u64) -> Rc<Self> {
        let salt = self.salt as usize;
        let disk =
            Self::new(rt, power, salt, self.size.get(), self.info.sector_bytes, Medium::new(512));
        let mut disk = Rc::into_inner(disk).expect("it is new");
        disk.medium = self.medium.clone();
        disk.ops.set(host << 40);
        Rc::new(disk)
    }

    /// The host is dead, and fenced: each of its writes in flight ends. `first` is given the number
    /// of sectors of each, and returns how many of them are written.
    #[allow(dead_code, reason = "tests of the file system have several hosts")]
    pub fn end_writes(&self, mut first: impl FnMut(u64) -> u64) {
        for number in self.in_flight.take() {
            self.medium.borrow_mut().abandon(number, &mut first);
        }
    }

    /// A write that has begun reaches the medium later.
    fn land_late(&self, number: u64, offset: u64, fua: bool) {
        let (medium, in_flight) = (self.medium.clone(), self.in_flight.clone());
        let (rt, delay) = (self.rt.clone(), 50_000 * self.delay());
        drop(self.rt.spawn(async move {
            rt.sleep(delay).await;
            if in_flight.borrow_mut().remove(&number) {
                medium.borrow_mut().complete(number, offset, fua);
            }
        }));
    }

    fn error(&self, op: DiskOp, offset: u64, len: u64, errno: i32) -> DiskError {
        let source = io::Error::from_raw_os_error(errno);
        let mut error = DiskError::new(&self.info.name, op, offset, len, source);
        error.kind = self.faults.kind.get().unwrap_or(error.kind);
        error
    }

    fn check(&self, offset: u64, len: u64, aligned: bool) {
        let sector = u64::from(self.info.sector_bytes);
        assert!(offset.is_multiple_of(sector) && len.is_multiple_of(sector) && aligned);
        assert!(offset + len <= self.size.get(), "beyond the end of {}", self.info.name);
    }

    /// It becomes larger while it is open. What is behind its old end may be anything.
    pub fn enlarge(&self, size: u64) {
        self.size.set(size);
    }

    /// Begins an operation and returns its number.
    fn begin(&self) -> u64 {
        self.ops.set(self.ops.get() + 1);
        self.ops.get()
    }

    fn delay(&self) -> Nanos {
        1000 + mix(self.salt << 32 | self.ops.get()) % 20_000
    }

    async fn store(
        &self,
        op: DiskOp,
        offset: u64,
        data: Frozen,
        fua: bool,
    ) -> Result<(), DiskError> {
        let len = data.len() as u64;
        if self.faults.malformed.borrow().contains(&offset) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "not aligned to sectors");
            return Err(DiskError::new(&self.info.name, op, offset, len, source));
        }
        if op == DiskOp::Write {
            self.data_bytes.set(self.data_bytes.get() + len);
        }
        let number = self.begin();
        self.writes.borrow_mut().push((offset, len));
        if let Some(left) = self.faults.gone_after_writes.get() {
            self.faults.gone_after_writes.set(Some(left.saturating_sub(1)));
            self.faults.gone.set(self.faults.gone.get() || left == 0);
        }
        let delay = self.delay();
        self.power.step();
        self.medium.borrow_mut().begin(number, offset, len, Some(data));
        self.in_flight.borrow_mut().insert(number);
        while self.faults.stuck.get() {
            self.rt.sleep(100_000).await;
        }
        let is_slow = self.faults.slow.borrow().contains(&offset);
        self.rt.sleep(delay + if is_slow { self.faults.slow_ns.get() } else { 0 }).await;
        let mut released = self.faults.released.wait();
        while self.faults.is_held(offset) {
            released.await;
            released = self.faults.released.wait();
        }
        self.power.step();
        if self.faults.cut.get() && self.in_flight.borrow().contains(&number) {
            self.land_late(number, offset, fua);
            return Err(self.error(op, offset, len, ENODEV));
        }
        self.in_flight.borrow_mut().remove(&number);
        let mut medium = self.medium.borrow_mut();
        let is_new = op == DiskOp::Write && !medium.covers(offset, len);
        let full = self.faults.full.get() && is_new;
        let room = self.faults.room.borrow();
        let room = room.as_ref().and_then(|room| room(offset, len, !is_new));
        if let Some(stored) = room.filter(|_| !self.faults.fails()) {
            medium.abandon(number, |_| stored / SECTOR);
            return Err(self.error(op, offset, len, ENOSPC));
        }
        let dead = first_in(&self.faults.dead_writes, offset, len);
        if let Some(dead) = dead.filter(|_| !self.faults.fails()) {
            medium.abandon(number, |_| dead - offset / SECTOR);
            return Err(self.error(op, offset, len, EIO));
        }
        let errno = match (self.faults.fails(), full) {
            (true, _) => Some(ENODEV),
            (_, true) => Some(ENOSPC),
            _ => self.faults.unwritable.borrow().contains(&offset).then_some(EIO),
        };
        if let Some(errno) = errno {
            medium.abandon(number, |_| 0);
            return Err(self.error(op, offset, len, errno));
        }
        medium.complete(number, offset, fua);
        let mut unreadable = self.faults.unreadable.borrow_mut();
        for sector in offset / SECTOR..(offset + len) / SECTOR {
            unreadable.remove(&sector);
        }
        Ok(())
    }
}

impl Disk for TestDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, class: Class) -> ReadFuture<'_> {
        let len = buf.len() as u64;
        self.check(offset, len, buf.is_aligned_to(self.info.sector_bytes as usize));
        self.reads.borrow_mut().push((offset, len));
        Box::pin(async move {
            self.begin();
            self.rt.sleep(self.delay()).await;
            while class == Class::User && self.faults.reads_at.get() == ReadStep::Start {
                self.rt.sleep(100_000).await;
            }
            let errno = if self.faults.fails() {
                ENODEV
            } else if first_in(&self.faults.unreadable, offset, len).is_some()
                || first_in(&self.faults.dead_reads, offset, len).is_some()
            {
                EIO
            } else {
                self.medium.borrow().read(offset, &mut buf);
                while class == Class::User && self.faults.reads_at.get() == ReadStep::Looked {
                    self.rt.sleep(100_000).await;
                }
                return (Ok(()), buf);
            };
            (Err(self.error(DiskOp::Read, offset, len, errno)), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let aligned = data.is_aligned_to(self.info.sector_bytes as usize);
        self.check(offset, data.len() as u64, aligned);
        Box::pin(async move {
            let is_blank = self.medium.borrow().is_blank(offset, data.len() as u64);
            if is_blank && data.len() as u64 > 8 * SECTOR && data.iter().all(|byte| *byte == 0) {
                // Allocation only: large ranges stay cheap.
                let done = self.store(DiskOp::Write, offset, Frozen::zeros(0), opts.fua).await;
                self.medium.borrow_mut().poke(offset, &data);
                return done;
            }
            self.store(DiskOp::Write, offset, data, opts.fua).await
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            let mark = self.medium.borrow().mark();
            self.begin();
            self.rt.sleep(self.delay()).await;
            if self.faults.fails() {
                return Err(self.error(DiskOp::Flush, 0, 0, ENODEV));
            }
            self.power.step();
            self.medium.borrow_mut().flushed(mark);
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.check(offset, len, true);
        Box::pin(async move {
            // Where nothing is stored, nothing changes: large ranges stay cheap.
            if self.medium.borrow().is_blank(offset, len) {
                self.begin();
                self.rt.sleep(self.delay()).await;
                let gone = self.faults.fails();
                return if gone {
                    Err(self.error(DiskOp::WriteZeroes, offset, len, ENODEV))
                } else {
                    Ok(())
                };
            }
            self.store(DiskOp::WriteZeroes, offset, Buf::zeroed(len as usize).freeze(), opts.fua)
                .await
        })
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }

    fn size_now(&self) -> u64 {
        self.size.get()
    }

    fn has_shrunk(&self) -> bool {
        self.faults.kind.get() == Some(DiskErrorKind::Shrunk)
    }
}
