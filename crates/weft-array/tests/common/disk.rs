//! A disk for crash and fault tests: it has a volatile cache, its operations take virtual time, its
//! power can be cut, and tests can inject faults. [`Cells`] are the contents that survive; a new
//! [`TestDisk`] can be opened on them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::rc::Rc;

use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::sync::Notify;
use weft_rt::{Buf, Frozen, Nanos, Rt};

const CELL: u64 = 512;
const EIO: i32 = 5;
const ENODEV: i32 = 19;
const ENOSPC: i32 = 28;

/// The power of all disks, and the clock of steps.
pub struct Power {
    on: Cell<bool>,
    /// Called before each step that changes the contents of a disk, or what a power cut may leave
    /// of them.
    watch: RefCell<Option<Box<dyn Fn()>>>,
}

impl Power {
    pub fn new() -> Rc<Self> {
        Rc::new(Self { on: Cell::new(true), watch: RefCell::default() })
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

    /// Cuts the power: no operation completes on any disk from now on.
    pub fn cut(&self) {
        self.on.set(false);
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

type Cellful = Rc<[u8]>;

/// The contents of a disk; sectors never written are zeros.
#[derive(Clone, Default)]
pub struct Cells {
    durable: BTreeMap<u64, Cellful>,
    /// Versions that are complete but not durable, by sector, oldest first, with the order of
    /// completion.
    cached: BTreeMap<u64, Vec<(u64, Cellful)>>,
    in_flight: BTreeMap<u64, Vec<(u64, Cellful)>>,
    order: u64,
    next: u64,
    /// Ranges of sectors that were only written with zeros, and are allocated.
    reserved: Vec<std::ops::Range<u64>>,
}

impl Cells {
    fn get(&self, cell: u64) -> Option<&Cellful> {
        self.cached
            .get(&cell)
            .and_then(|versions| versions.last())
            .map(|(_, bytes)| bytes)
            .or_else(|| self.durable.get(&cell))
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) {
        // Most of a log is never written.
        out.fill(0);
        let first = offset / CELL;
        let cells = first..first + out.len() as u64 / CELL;
        let durable = self.durable.range(cells.clone());
        let cached = self.cached.range(cells);
        let cached = cached.filter_map(|(cell, all)| Some((cell, &all.last()?.1)));
        for (cell, bytes) in durable.chain(cached) {
            let at = ((cell - first) * CELL) as usize;
            out[at..at + CELL as usize].copy_from_slice(bytes);
        }
    }

    /// Whether every sector of the range was written before.
    fn covers(&self, offset: u64, len: u64) -> bool {
        let reserved = |cell: &u64| self.reserved.iter().any(|range| range.contains(cell));
        (offset / CELL..(offset + len) / CELL)
            .all(|cell| self.get(cell).is_some() || reserved(&cell))
    }

    /// Whether nothing is stored in the range or about to be.
    fn is_blank(&self, offset: u64, len: u64) -> bool {
        let range = offset / CELL..(offset + len) / CELL;
        self.durable.range(range.clone()).next().is_none()
            && self.cached.range(range.clone()).next().is_none()
            && !self.in_flight.values().flatten().any(|(cell, _)| range.contains(cell))
    }

    /// Changes stored bytes behind the disk's interface.
    pub fn poke(&mut self, offset: u64, bytes: &[u8]) {
        for (cell, part) in (offset / CELL..).zip(bytes.chunks(CELL as usize)) {
            self.cached.remove(&cell);
            self.durable.insert(cell, part.into());
        }
    }

    fn begin(&mut self, offset: u64, bytes: &[u8]) -> u64 {
        self.next += 1;
        let cells = (offset / CELL..).zip(bytes.chunks(CELL as usize));
        self.in_flight.insert(self.next, cells.map(|(cell, part)| (cell, part.into())).collect());
        self.next
    }

    fn complete(&mut self, op: u64, fua: bool) {
        self.order += 1;
        for (cell, bytes) in self.in_flight.remove(&op).expect("in flight") {
            if fua {
                self.cached.remove(&cell);
                self.durable.insert(cell, bytes);
            } else {
                self.cached.entry(cell).or_default().push((self.order, bytes));
            }
        }
    }

    fn flush(&mut self, order: u64) {
        for (cell, versions) in &mut self.cached {
            let covered = versions.partition_point(|(of, _)| *of <= order);
            if let Some((_, bytes)) = versions.drain(..covered).next_back() {
                self.durable.insert(*cell, bytes);
            }
        }
        self.cached.retain(|_, versions| !versions.is_empty());
    }

    /// The contents that a power cut leaves.
    #[must_use]
    pub fn after_cut(&self, leave: Leave) -> Self {
        let mut cells = self.clone();
        if matches!(leave, Leave::Completed) {
            cells.in_flight.clear();
            return cells;
        }
        for (_, write) in std::mem::take(&mut cells.in_flight) {
            cells.order += 1;
            for (cell, bytes) in write {
                cells.cached.entry(cell).or_default().push((cells.order, bytes));
            }
        }
        if matches!(leave, Leave::Cached) {
            return cells;
        }
        for (cell, versions) in std::mem::take(&mut cells.cached) {
            let kept = match leave {
                Leave::All | Leave::Completed | Leave::Cached => versions.last(),
                Leave::Nothing => None,
                Leave::Some(seed) => {
                    let choices = versions.len() as u64 + 1;
                    let choice = mix(seed ^ mix(cell)) % choices;
                    (choice > 0).then(|| &versions[choice as usize - 1])
                }
            };
            if let Some((_, bytes)) = kept {
                cells.durable.insert(cell, bytes.clone());
            }
        }
        cells
    }
}

pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// See [`Faults::room`].
pub type Room = Box<dyn Fn(u64, u64, bool) -> Option<u64>>;

/// The present faults of a disk.
#[derive(Default)]
pub struct Faults {
    /// Every operation fails.
    pub gone: Cell<bool>,
    /// `gone` is set after this many more writes.
    pub gone_after_writes: Cell<Option<u64>>,
    /// Sectors that cannot be read until they are written, by number.
    pub unreadable: RefCell<BTreeSet<u64>>,
    /// Writes that begin in this range (bytes) fail.
    pub unwritable: RefCell<Range<u64>>,
    /// Writes to sectors never written before get "no space".
    pub full: Cell<bool>,
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

impl Faults {
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
pub fn holding(rt: &Rt, power: &Rc<Power>, size: u64, cells: &[Cells]) -> Vec<Rc<TestDisk>> {
    let disk = |(n, cells): (usize, &Cells)| TestDisk::new(rt, power, n, size, 512, cells.clone());
    cells.iter().enumerate().map(disk).collect()
}

pub struct TestDisk {
    info: DiskInfo,
    rt: Rt,
    power: Rc<Power>,
    pub cells: Rc<RefCell<Cells>>,
    pub faults: Faults,
    ops: Cell<u64>,
    salt: u64,
    /// Writes so far: offset and length.
    pub writes: RefCell<Vec<(u64, u64)>>,
}

impl TestDisk {
    pub fn new(
        rt: &Rt,
        power: &Rc<Power>,
        number: usize,
        size: u64,
        sector: u32,
        cells: Cells,
    ) -> Rc<Self> {
        Rc::new(Self {
            info: DiskInfo {
                name: format!("test{number}"),
                size_bytes: size,
                sector_bytes: sector,
                fast_zeroes: true,
            },
            rt: rt.clone(),
            power: power.clone(),
            cells: Rc::new(RefCell::new(cells)),
            faults: Faults::default(),
            ops: Cell::new(0),
            salt: number as u64,
            writes: RefCell::default(),
        })
    }

    fn error(&self, op: DiskOp, offset: u64, len: u64, errno: i32) -> DiskError {
        DiskError::new(&self.info.name, op, offset, len, io::Error::from_raw_os_error(errno))
    }

    fn check(&self, offset: u64, len: u64, aligned: bool) {
        let sector = u64::from(self.info.sector_bytes);
        assert!(offset.is_multiple_of(sector) && len.is_multiple_of(sector) && aligned);
        assert!(offset + len <= self.info.size_bytes, "beyond the end of {}", self.info.name);
    }

    /// Takes some time; without power, forever.
    async fn begin(&self) {
        if !self.power.on.get() {
            std::future::pending::<()>().await;
        }
        self.ops.set(self.ops.get() + 1);
    }

    fn delay(&self) -> Nanos {
        1000 + mix(self.salt << 32 | self.ops.get()) % 20_000
    }

    async fn end(&self, delay: Nanos) {
        self.rt.sleep(delay).await;
        if !self.power.on.get() {
            std::future::pending::<()>().await;
        }
    }

    async fn store(
        &self,
        op: DiskOp,
        offset: u64,
        bytes: &[u8],
        fua: bool,
    ) -> Result<(), DiskError> {
        let len = bytes.len() as u64;
        self.begin().await;
        self.writes.borrow_mut().push((offset, len));
        if let Some(left) = self.faults.gone_after_writes.get() {
            self.faults.gone_after_writes.set(Some(left.saturating_sub(1)));
            self.faults.gone.set(self.faults.gone.get() || left == 0);
        }
        let delay = self.delay();
        self.power.step();
        let number = self.cells.borrow_mut().begin(offset, bytes);
        while self.faults.stuck.get() {
            self.rt.sleep(100_000).await;
        }
        self.end(delay).await;
        let mut released = self.faults.released.wait();
        while self.faults.is_held(offset) {
            released.await;
            released = self.faults.released.wait();
        }
        self.power.step();
        let mut cells = self.cells.borrow_mut();
        let is_new = op == DiskOp::Write && !cells.covers(offset, len);
        let full = self.faults.full.get() && is_new;
        let room = self.faults.room.borrow();
        let room = room.as_ref().and_then(|room| room(offset, len, !is_new));
        if let Some(stored) = room.filter(|_| !self.faults.gone.get()) {
            let cell = (offset + stored) / CELL;
            let write = cells.in_flight.get_mut(&number).expect("in flight");
            write.retain(|(of, _)| *of < cell);
            cells.complete(number, fua);
            return Err(self.error(op, offset, len, ENOSPC));
        }
        let errno = match (self.faults.gone.get(), full) {
            (true, _) => Some(ENODEV),
            (_, true) => Some(ENOSPC),
            _ => self.faults.unwritable.borrow().contains(&offset).then_some(EIO),
        };
        if let Some(errno) = errno {
            cells.in_flight.remove(&number);
            return Err(self.error(op, offset, len, errno));
        }
        cells.complete(number, fua);
        let mut unreadable = self.faults.unreadable.borrow_mut();
        for cell in offset / CELL..(offset + len) / CELL {
            unreadable.remove(&cell);
        }
        Ok(())
    }
}

impl Disk for TestDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        let len = buf.len() as u64;
        self.check(offset, len, buf.is_aligned_to(self.info.sector_bytes as usize));
        Box::pin(async move {
            self.begin().await;
            self.end(self.delay()).await;
            let errno = if self.faults.gone.get() {
                ENODEV
            } else if self
                .faults
                .unreadable
                .borrow()
                .range(offset / CELL..(offset + len) / CELL)
                .next()
                .is_some()
            {
                EIO
            } else {
                self.cells.borrow().read(offset, &mut buf);
                return (Ok(()), buf);
            };
            (Err(self.error(DiskOp::Read, offset, len, errno)), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let aligned = data.is_aligned_to(self.info.sector_bytes as usize);
        self.check(offset, data.len() as u64, aligned);
        Box::pin(async move {
            let reserves = data.len() as u64 > 8 * CELL
                && data.iter().all(|byte| *byte == 0)
                && self.cells.borrow().is_blank(offset, data.len() as u64);
            if reserves {
                // Allocation only: large ranges stay cheap.
                let len = data.len() as u64;
                let result = self.store(DiskOp::Write, offset, &[], opts.fua).await;
                let range = offset / CELL..(offset + len) / CELL;
                self.cells.borrow_mut().reserved.push(range);
                return result;
            }
            self.store(DiskOp::Write, offset, &data, opts.fua).await
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            let order = self.cells.borrow().order;
            self.begin().await;
            self.end(self.delay()).await;
            if self.faults.gone.get() {
                return Err(self.error(DiskOp::Flush, 0, 0, ENODEV));
            }
            self.power.step();
            self.cells.borrow_mut().flush(order);
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.check(offset, len, true);
        Box::pin(async move {
            // Only sectors that hold something change: large ranges stay cheap.
            let zeros = vec![0; len as usize];
            let first = offset / CELL;
            let stored: Vec<u64> = {
                let cells = self.cells.borrow();
                let range = first..first + len / CELL;
                let held = cells.durable.range(range.clone()).map(|(cell, _)| *cell);
                held.chain(cells.cached.range(range).map(|(cell, _)| *cell)).collect()
            };
            if stored.is_empty() {
                self.begin().await;
                self.end(self.delay()).await;
                let gone = self.faults.gone.get();
                return if gone {
                    Err(self.error(DiskOp::WriteZeroes, offset, len, ENODEV))
                } else {
                    Ok(())
                };
            }
            self.store(DiskOp::WriteZeroes, offset, &zeros, opts.fua).await
        })
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }
}
