//! A simulated disk: with contents, modelled latency, and all kinds of faults.
//!
//! A [`Platter`] holds what survives a crash: contents and faults. A [`SimDisk`] is a platter that
//! is open for one life of the program; its operations end with the executor's tasks, and the next
//! life opens the platter again. An operation starts when its future is first polled and continues
//! in its own task even if the future is dropped, as on a real disk.

mod crash;
mod faults;
mod hangs;
mod latency;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

pub use faults::Faults;
use faults::{Errno, WriteOutcome};
use hangs::Hang;
pub(crate) use hangs::Hangs;
pub use latency::{Latency, Request, Uniform};
use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_model::{Command, Medium, Model, Service, Station, Verb};
use weft_rt::rng::mix;
use weft_rt::{Buf, Frozen, Nanos, Rng};

use crate::format::SUPERBLOCKS;
use crate::world::World;

/// A disk whose cache holds this much writes it out on its own.
const CACHE_BYTES: u64 = 8 << 20;

/// The contents and faults of a disk, which survive a crash. Clones share the same state;
/// [`Platter::copy`] makes an independent one.
#[derive(Debug, Clone)]
pub struct Platter(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    number: usize,
    size: u64,
    sector: u32,
    medium: Medium,
    faults: Faults,
    latency: Box<dyn Latency>,
    hangs: Hangs,
    model: Option<Model>,
    rng: Rng,
    ops: u64,
    /// Of these, writes.
    writes: u64,
    depth: usize,
    fast_zeroes: bool,
    volatile_cache: bool,
    rotational: bool,
    /// Reads never see part of a write before it completes.
    whole_writes: bool,
    /// The sectors that were at risk at the last power cut.
    interrupted: Vec<u64>,
}

impl Platter {
    /// An empty disk. `number` identifies it in traces and errors.
    pub fn new(number: usize, size_bytes: u64, sector_bytes: u32, rng: Rng) -> Self {
        let size = size_bytes - size_bytes % u64::from(sector_bytes);
        Self(Rc::new(RefCell::new(State {
            number,
            size,
            sector: sector_bytes,
            medium: Medium::new(sector_bytes),
            faults: Faults::default(),
            latency: Box::new(Uniform::default()),
            hangs: Hangs::default(),
            model: None,
            rng,
            ops: 0,
            writes: 0,
            depth: 0,
            fast_zeroes: true,
            volatile_cache: true,
            rotational: false,
            whole_writes: false,
            interrupted: Vec::new(),
        })))
    }

    /// An independent disk with the same contents and unreadable sectors, without latency spikes
    /// and pending faults.
    #[must_use]
    pub fn copy(&self) -> Self {
        let state = self.0.borrow();
        let faults = Faults { unreadable: state.faults.unreadable.clone(), ..Faults::default() };
        Self(Rc::new(RefCell::new(State {
            number: state.number,
            size: state.size,
            sector: state.sector,
            medium: state.medium.clone(),
            faults,
            latency: Box::new(Uniform { spike_every: 0, ..Uniform::default() }),
            hangs: Hangs::default(),
            model: None,
            rng: state.rng.clone(),
            ops: 0,
            writes: 0,
            depth: 0,
            fast_zeroes: state.fast_zeroes,
            volatile_cache: state.volatile_cache,
            rotational: state.rotational,
            whole_writes: true,
            interrupted: Vec::new(),
        })))
    }

    /// Its number.
    pub fn number(&self) -> usize {
        self.0.borrow().number
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.borrow().size
    }

    /// Bytes of a sector.
    pub fn sector_bytes(&self) -> u32 {
        self.0.borrow().sector
    }

    /// Changes its faults.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        change(&mut self.0.borrow_mut().faults)
    }

    /// Sets the latency model.
    pub fn set_latency(&self, latency: Box<dyn Latency>) {
        self.0.borrow_mut().latency = latency;
    }

    /// Sets which operations hang.
    pub(crate) fn set_hangs(&self, hangs: Hangs) {
        self.0.borrow_mut().hangs = hangs;
    }

    /// Uses the timing of a product from the next opening on. Requests are then served in the order
    /// that the product would choose, and reads see no part of a write before it completes.
    pub fn set_model(&self, model: Model) {
        self.0.borrow_mut().model = Some(model);
    }

    /// Sets whether the disk reports that zeroing is cheap.
    pub fn set_fast_zeroes(&self, fast: bool) {
        self.0.borrow_mut().fast_zeroes = fast;
    }

    /// Sets whether a power cut may take what it has completed.
    pub fn set_volatile_cache(&self, volatile: bool) {
        self.0.borrow_mut().volatile_cache = volatile;
    }

    /// Sets whether the disk reports that it rotates.
    pub fn set_rotational(&self, rotational: bool) {
        self.0.borrow_mut().rotational = rotational;
    }

    /// Whether operations are in progress.
    pub fn is_busy(&self) -> bool {
        self.0.borrow().depth > 0
    }

    /// Whether a write to this range of bytes has started and not ended.
    pub(crate) fn is_written(&self, range: &std::ops::Range<u64>) -> bool {
        self.0.borrow().medium.is_written(range)
    }

    /// Operations so far.
    pub fn ops(&self) -> u64 {
        self.0.borrow().ops
    }

    /// Writes started so far.
    pub(crate) fn writes(&self) -> u64 {
        self.0.borrow().writes
    }

    /// The memory that the contents use, approximately.
    pub fn stored_bytes(&self) -> u64 {
        self.0.borrow().medium.pages().stored_bytes()
    }

    /// The number of sectors that a power cut could change now.
    pub fn sectors_at_risk(&self) -> usize {
        self.0.borrow().medium.at_risk().len()
    }

    /// Changes stored bytes silently (whole sectors).
    pub fn rot(&self, offset: u64, len: u64) {
        let state = &mut *self.0.borrow_mut();
        let mut bytes = vec![0; usize::try_from(len).expect("fits the address space")];
        state.medium.read(offset, &mut bytes);
        bytes.iter_mut().for_each(|byte| *byte ^= state.rng.next_u64().to_le_bytes()[0] | 1);
        state.medium.poke(offset, &bytes);
    }

    /// Whether no sector of the range is unreadable.
    pub fn can_be_read(&self, offset: u64, len: u64) -> bool {
        let state = self.0.borrow();
        let sector = u64::from(state.sector);
        state.faults.first_unreadable(offset / sector..(offset + len).div_ceil(sector)).is_none()
    }

    /// Reads the contents, ignoring faults.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.0.borrow().medium.read(offset, out);
    }

    /// Stores bytes durably, ignoring faults (to damage a disk on purpose).
    pub fn poke(&self, offset: u64, data: &[u8]) {
        self.0.borrow_mut().medium.poke(offset, data);
    }

    /// The disk becomes larger, also while it is open.
    pub(crate) fn enlarge(&self, size_bytes: u64) {
        let state = &mut *self.0.borrow_mut();
        let size = size_bytes - size_bytes % u64::from(state.sector);
        state.size = state.size.max(size);
    }

    /// The disk becomes shorter: what it held from `offset` on is lost, and every operation fails
    /// until [`Faults::shrunk`] is reset.
    pub(crate) fn shrink(&self, offset: u64) {
        let state = &mut *self.0.borrow_mut();
        state.faults.shrunk = true;
        let zeros = vec![0; usize::try_from(state.size - offset).expect("fits the address space")];
        state.medium.poke(offset, &zeros);
    }

    /// Puts back what another copy of this disk holds, as from an image.
    pub(crate) fn set_back(&self, image: &Self) {
        self.0.borrow_mut().medium = image.0.borrow().medium.clone();
    }

    /// The power is cut: draws what each sector at risk holds from now on.
    pub fn power_cut(&self) {
        let state = &mut *self.0.borrow_mut();
        state.depth = 0;
        state.interrupted = crash::power_cut(&mut state.medium, &mut state.rng);
    }

    /// The program was killed; the disk keeps its cache.
    pub fn program_killed(&self) {
        let state = &mut *self.0.borrow_mut();
        state.depth = 0;
        state.interrupted.clear();
        crash::program_killed(&mut state.medium, &mut state.rng);
    }

    /// The sectors, by number and in order, that the last crash interrupted; none if it was no
    /// power cut. Returns them only once.
    pub fn take_interrupted(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.borrow_mut().interrupted)
    }
}

/// A simulated disk, opened.
#[derive(Debug)]
pub struct SimDisk {
    info: DiskInfo,
    world: World,
    state: Rc<RefCell<State>>,
    station: Option<Station>,
}

/// An operation that has started.
struct Started {
    op: u64,
    /// When it ends, without a product's model; `None`: it hangs until the power is cut.
    until: Option<Nanos>,
    /// The service by the product's model, if there is one.
    service: Option<Service>,
    /// When reads start to see part of the write, for some writes.
    shown: Option<Nanos>,
    /// Nothing reaches the disk before the operation ends.
    held: bool,
}

impl SimDisk {
    /// Opens a platter for this life.
    pub fn open(world: &World, platter: &Platter) -> Rc<Self> {
        let state = platter.0.borrow();
        let info = DiskInfo {
            name: format!("sim{}", state.number),
            size_bytes: state.size,
            sector_bytes: state.sector,
            fast_zeroes: state.fast_zeroes,
            volatile_cache: state.volatile_cache,
            rotational: state.model.map_or(state.rotational, |model| model.is_rotational()),
        };
        let number = state.number as u64;
        let station = state.model.map(|model| Station::new(world.rt(), model.mechanism(number)));
        Rc::new(Self { info, world: world.clone(), state: platter.0.clone(), station })
    }

    fn error(info: &DiskInfo, op: DiskOp, offset: u64, len: u64, errno: Errno) -> DiskError {
        DiskError::new(&info.name, op, offset, len, io::Error::from_raw_os_error(errno as i32))
    }

    /// Panics if the caller broke the contract of [`Disk`].
    fn check(&self, op: DiskOp, offset: u64, len: u64, memory_aligned: bool) {
        let sector = u64::from(self.info.sector_bytes);
        let (end, size) = (offset.saturating_add(len), self.state.borrow().size);
        assert!(
            offset.is_multiple_of(sector) && len.is_multiple_of(sector) && end <= size,
            "{op} of {len} bytes at {offset} breaks the contract of {} ({} bytes, sectors of \
             {sector})",
            self.info.name,
            size,
        );
        assert!(
            memory_aligned,
            "{op} of {len} bytes at {offset} on {} from memory that is not aligned to sectors",
            self.info.name
        );
    }

    fn start(&self, what: &'static str, command: Command) -> Option<Started> {
        if !self.world.step() {
            return None;
        }
        let state = &mut *self.state.borrow_mut();
        let op = state.ops;
        state.ops += 1;
        let Command { verb, offset, len, .. } = command;
        state.writes += u64::from(matches!(verb, Verb::Write | Verb::Zero));
        let is_read = verb == Verb::Read;
        let request = Request { offset, len, is_read, depth: state.depth };
        let mut delay = state.latency.delay(request, &mut state.rng);
        let hang = state.hangs.draw_one(offset, verb == Verb::Write, &mut state.rng);
        if let Some(Hang::For(longer)) = hang {
            delay += longer;
        }
        let service = self.station.as_ref().map(|station| station.serve(command));
        let astray = state.faults.goes_astray(&(offset..offset + len));
        let hidden = state.whole_writes || service.is_some() || astray;
        let held = hang.is_some() && state.hangs.holds();
        let shown =
            (!is_read && !hidden && !held && state.rng.chance(10)).then(|| state.rng.below(delay));
        state.depth += 1;
        self.world.disk(state.number, what, offset, len, op);
        if verb == Verb::Write && SUPERBLOCKS.contains(&offset) {
            self.world.superblock_write_began();
        }
        let until = match hang {
            Some(Hang::UntilCut(patience)) => {
                self.world.disk(state.number, "hangs until the power is cut", offset, len, op);
                self.world.cut_after(patience);
                None
            }
            _ => Some(state.hangs.rounded(self.world.rt().now() + delay)),
        };
        Some(Started { op, until, service, shown, held })
    }

    /// Runs `body` in a task that only the end of this life can cancel, and returns its result.
    /// With the power off it never returns.
    fn run<T: 'static>(
        &self,
        started: Option<Started>,
        body: impl FnOnce(&mut State, &World, Started) -> T + 'static,
    ) -> impl Future<Output = T> + 'static {
        let (world, state) = (self.world.clone(), self.state.clone());
        let task = started.map(|mut started| {
            let rt = world.rt().clone();
            let since = rt.now();
            let shown = started.shown.map(|after| rt.now() + after);
            rt.clone().spawn(async move {
                if let Some(shown) = shown {
                    rt.sleep_until(shown).await;
                    if world.is_on() {
                        let state = &mut *state.borrow_mut();
                        // Requests in flight have no order.
                        state.medium.show(started.op, |sectors| state.rng.below(sectors));
                    }
                }
                match (started.service.take(), started.until) {
                    (Some(service), _) => drop(service.await),
                    (None, Some(until)) => rt.sleep_until(until).await,
                    (None, None) => return std::future::pending().await,
                }
                loop {
                    let hangs = state.borrow_mut().faults.hangs(since, rt.now());
                    let Some(until) = hangs else { break };
                    rt.sleep_until(until).await;
                }
                if !world.step() {
                    return std::future::pending().await;
                }
                let state = &mut *state.borrow_mut();
                state.depth = state.depth.saturating_sub(1);
                body(state, &world, started)
            })
        });
        async move {
            match task {
                Some(task) => task.await,
                None => std::future::pending().await,
            }
        }
    }

    async fn do_read(&self, offset: u64, mut buf: Buf) -> (Result<(), DiskError>, Buf) {
        let len = buf.len() as u64;
        let aligned = buf.is_aligned_to(self.info.sector_bytes as usize);
        self.check(DiskOp::Read, offset, len, aligned);
        let started = self.start("read", Command::read(offset, len));
        let info = self.info.clone();
        self.run(started, move |state, world, started| {
            let sector = u64::from(info.sector_bytes);
            let bad = |at, len, errno| Err(Self::error(&info, DiskOp::Read, at, len, errno));
            if !state.faults.answers() {
                world.disk(state.number, "is gone, fails to read", offset, len, started.op);
                state.faults.failed = true;
                return (bad(offset, len, Errno::NoDevice), buf);
            }
            if state.faults.shrunk {
                world.disk(state.number, "is shorter, fails to read", offset, len, started.op);
                return (bad(offset, len, Errno::Io), buf);
            }
            let sectors = offset / sector..(offset + len) / sector;
            if let Some(number) = state.faults.first_unreadable(sectors) {
                world.disk(state.number, "medium error in read", offset, len, started.op);
                // A disk reports that the whole request failed; some name the first bad sector.
                let _ = number;
                return (bad(offset, len, Errno::Io), buf);
            }
            state.medium.read(offset, &mut buf);
            (Ok(()), buf)
        })
        .await
    }

    async fn do_write(
        &self,
        op: DiskOp,
        offset: u64,
        len: u64,
        data: Option<Frozen>,
        fua: bool,
    ) -> Result<(), DiskError> {
        let (what, verb) = match (op, fua) {
            (DiskOp::Write, false) => ("write", Verb::Write),
            (DiskOp::Write, true) => ("write+fua", Verb::Write),
            (DiskOp::WriteZeroes, _) => ("zeroes", Verb::Zero),
            _ => ("discard", Verb::Zero),
        };
        let started = self.start(what, Command { verb, offset, len, fua });
        if let Some(started) = &started {
            let medium = &mut self.state.borrow_mut().medium;
            medium.begin(started.op, offset, len, data);
            if started.held {
                medium.hold(started.op);
            }
        }
        let info = self.info.clone();
        self.run(started, move |state, world, started| {
            let outcome = if state.faults.answers() {
                let allocates = !state.medium.covers(offset, len);
                let (size, range) = (state.size, offset..offset + len);
                state.faults.write_outcome(range, allocates, size, op, &mut state.rng)
            } else {
                WriteOutcome::Fails(Errno::NoDevice)
            };
            let place = match outcome {
                WriteOutcome::Fails(errno) => {
                    world.disk(state.number, "fails to write", offset, len, started.op);
                    let rng = &mut state.rng;
                    let part = |sectors| if rng.chance(50) { rng.below(sectors + 1) } else { 0 };
                    state.medium.abandon(started.op, part);
                    state.faults.failed |= errno != Errno::NoSpace;
                    state.faults.failed_writes.push(offset..offset + len);
                    return Err(Self::error(&info, op, offset, len, errno));
                }
                WriteOutcome::Lost => {
                    world.disk(state.number, "LOSES the write", offset, len, started.op);
                    None
                }
                WriteOutcome::Elsewhere(other) => {
                    world.disk(state.number, "MISDIRECTS the write to", other, len, started.op);
                    Some(other)
                }
                WriteOutcome::Stored => Some(offset),
            };
            match place {
                Some(place) => {
                    let durable = fua || !info.volatile_cache;
                    state.medium.complete(started.op, place, durable);
                    if state.medium.bytes_at_risk() > CACHE_BYTES {
                        state.medium.flushed(state.medium.mark());
                    }
                }
                None => state.medium.abandon(started.op, |_| 0),
            }
            world.disk(state.number, verb_done(op), offset, len, started.op);
            if let Some(place) = place {
                state.faults.write_stored(place..place + len, u64::from(info.sector_bytes));
                // The engine had given the disk up: it was told that this write failed.
                if state.faults.failed {
                    state.faults.failed_writes.push(place..place + len);
                }
            }
            Ok(())
        })
        .await
    }

    async fn do_flush(&self) -> Result<(), DiskError> {
        let mark = self.state.borrow().medium.mark();
        let started = self.start("flush", Command::FLUSH).map(|s| Started { shown: None, ..s });
        let info = self.info.clone();
        self.run(started, move |state, world, started| {
            if !state.faults.answers() {
                world.disk(state.number, "is gone, fails to flush", 0, 0, started.op);
                state.faults.failed = true;
                return Err(Self::error(&info, DiskOp::Flush, 0, 0, Errno::NoDevice));
            }
            if state.faults.shrunk {
                world.disk(state.number, "is shorter, fails to flush", 0, 0, started.op);
                state.faults.failed = true;
                return Err(Self::error(&info, DiskOp::Flush, 0, 0, Errno::Io));
            }
            state.medium.flushed(mark);
            world.disk(state.number, "flushed", 0, 0, started.op);
            Ok(())
        })
        .await
    }
}

/// Pseudo-random bytes.
fn noise(seed: u64, len: u64) -> Frozen {
    let words = (0..len.div_ceil(8)).flat_map(|word| mix(seed ^ word).to_le_bytes());
    Frozen::copy_from(&words.collect::<Vec<_>>())
}

fn verb_done(op: DiskOp) -> &'static str {
    match op {
        DiskOp::Write => "wrote",
        DiskOp::WriteZeroes => "zeroed",
        _ => "discarded",
    }
}

impl Disk for SimDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(self.do_read(offset, buf))
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let aligned = data.is_aligned_to(self.info.sector_bytes as usize);
        let len = data.len() as u64;
        self.check(DiskOp::Write, offset, len, aligned);
        Box::pin(self.do_write(DiskOp::Write, offset, len, Some(data), opts.fua))
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(self.do_flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.check(DiskOp::WriteZeroes, offset, len, true);
        Box::pin(self.do_write(DiskOp::WriteZeroes, offset, len, None, opts.fua))
    }

    fn size_now(&self) -> u64 {
        self.state.borrow().size
    }

    fn sever(&self, _: &str) {
        let faults = &mut self.state.borrow_mut().faults;
        faults.failed |= faults.fail_requested;
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.check(DiskOp::Discard, offset, len, true);
        // What is discarded reads as zeros or as anything.
        let data = {
            let rng = &mut self.state.borrow_mut().rng;
            (!rng.chance(50)).then(|| noise(rng.next_u64(), len))
        };
        Box::pin(self.do_write(DiskOp::Discard, offset, len, data, false))
    }
}
