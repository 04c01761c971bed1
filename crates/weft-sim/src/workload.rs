//! Clients: tasks that send random reads, writes and flushes to a volume and check every answer
//! against the [`Oracle`].
//!
//! The seed gives each client an access pattern: sequential, a few hot spots, or random. Request
//! sizes range from one cell to several stripes; clients send in bursts and pause between them.

mod block_status;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_disk::Volume;
use weft_rt::rng::mix;
use weft_rt::{Buf, MILLISECOND, Nanos, Rng, SECOND, Task};

use crate::exposure::Exposure;
use crate::oracle::{Kind, Oracle, Writing};
use crate::violation::{Violation, ViolationKind};
use crate::world::World;

/// The load: how many clients, how many requests, and their kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Clients at the same time.
    pub clients: usize,
    /// Requests per client.
    pub requests: u64,
    /// Percentage of reads among reads and writes.
    pub reads_percent: u64,
    /// Percentage of flushes among all requests.
    pub flushes_percent: u64,
    /// Percentage of writes with FUA.
    pub fua_percent: u64,
    /// Percentage of writes that are write-zeroes or discards.
    pub zeroes_percent: u64,
    /// Cells of the largest request.
    pub cells_max: u64,
    /// Cells per stripe; some requests cover whole stripes.
    pub stripe_cells: u64,
    /// The longest pause of a client between bursts, in virtual nanoseconds.
    pub pause_ns_max: u64,
    /// Percentage of requests that the client abandons before the answer.
    pub abandon_percent: u64,
    /// Percentage of requests that are preceded by a request of zero bytes.
    pub empty_percent: u64,
    /// After this many requests a client only writes whole stripes, which need no log records.
    pub whole_after: u64,
    /// Cells per stripe after the run's reshape; some requests cover whole stripes of that size.
    pub other_stripe_cells: u64,
    /// Percentage of requests that are preceded by a question for the block status.
    pub status_percent: u64,
}

impl Load {
    /// At least four clients that mostly write and never pause; every write has FUA
    /// if `durable`.
    pub(crate) fn heavy(&self, durable: bool) -> Self {
        Self {
            clients: self.clients.max(4),
            requests: self.requests.max(60),
            reads_percent: 10,
            fua_percent: if durable { 100 } else { self.fua_percent },
            pause_ns_max: 0,
            ..self.clone()
        }
    }
}

/// Every request ends within this time: no disk hangs or is full for as long as that.
const REQUEST_MAX: Nanos = 2 * 3600 * SECOND;

/// Clients from this number on verify the volume and never abandon a request.
const FIRST_CHECKER: usize = 80;

/// Tells the oracle which members the engine has lost since the last call.
type NoteLosses = Box<dyn Fn(&mut Oracle)>;

/// What a discard leaves in its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discards {
    /// Anything.
    #[default]
    Anything,
    /// Zeros or the old data, in any mixture.
    ZerosOrNothing,
    /// Zeros in whole stripes of this many bytes; the rest keeps its contents.
    Stripes(u64),
}

/// What the clients share: the volume's reference, the switches of the run, and its first
/// violation.
pub struct ClientHarness {
    /// Power, time and trace.
    pub world: World,
    /// The reference that answers are checked against.
    pub oracle: RefCell<Oracle>,
    /// The first violation. It also cuts the power.
    pub violation: RefCell<Option<Violation>>,
    /// Clients stop before their next request once this is set.
    pub quiesce: Cell<bool>,
    /// Requests may fail, because the array has lost more than it tolerates. A wrong byte is still
    /// a violation.
    pub errors_allowed: Cell<bool>,
    /// From now on a write that succeeds is a violation.
    pub writes_must_fail: Cell<bool>,
    /// What a discard leaves.
    pub discards: Cell<Discards>,
    /// Percentage of requests that clients abandon before the answer.
    pub abandon_percent: Cell<u64>,
    /// Returns whether the members that have failed so far force the array to stop.
    pub(crate) stop_rule: RefCell<Option<Box<dyn Fn() -> bool>>>,
    /// Passes the members that the engine has lost on to the oracle.
    pub(crate) losses: RefCell<Option<NoteLosses>>,
    /// The array had to stop.
    pub(crate) array_stopped: Cell<bool>,
    /// How the array is kept consistent.
    pub(crate) exposure: Exposure,
    /// Writes that their clients have abandoned.
    abandoned: RefCell<Vec<Writing>>,
    rng: RefCell<Rng>,
    requests: Cell<u64>,
    errors: Cell<u64>,
}

impl std::fmt::Debug for ClientHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHarness").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl ClientHarness {
    /// A harness for the volume that `oracle` describes.
    pub fn new(world: &World, oracle: Oracle) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            oracle: RefCell::new(oracle),
            violation: RefCell::new(None),
            quiesce: Cell::new(false),
            errors_allowed: Cell::new(false),
            writes_must_fail: Cell::new(false),
            discards: Cell::default(),
            abandon_percent: Cell::new(0),
            stop_rule: RefCell::default(),
            losses: RefCell::default(),
            array_stopped: Cell::new(false),
            exposure: Exposure::default(),
            abandoned: RefCell::default(),
            rng: RefCell::new(world.rng(60)),
            requests: Cell::new(0),
            errors: Cell::new(0),
        })
    }

    /// Requests sent.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Requests that failed while errors were allowed.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    /// Records a violation and cuts the power.
    pub(crate) fn fail(
        &self,
        kind: ViolationKind,
        text: impl Into<String>,
        place: Option<Range<u64>>,
    ) {
        self.record(Violation { kind, text: text.into(), place });
    }

    /// As [`ClientHarness::fail`].
    pub(crate) fn record(&self, violation: Violation) {
        self.world.note(format!("VIOLATION: {}", violation.text));
        self.violation.borrow_mut().get_or_insert(violation);
        self.world.cut();
    }

    pub(crate) fn check_result<E: std::fmt::Display>(
        &self,
        what: &str,
        place: &Range<u64>,
        result: &Result<(), E>,
    ) {
        match result {
            Ok(()) if self.writes_must_fail.get() && what == "write" => {
                let text = "an array that is lost acknowledged a write";
                self.fail(ViolationKind::FalseAcknowledgement, text, Some(place.clone()));
            }
            Ok(()) => {}
            Err(_) if self.errors_allowed.get() || self.has_to_stop() => {
                self.errors.set(self.errors.get() + 1);
            }
            Err(error) => {
                let text = format!("{what} failed: {error}");
                self.fail(ViolationKind::RequestFailed, text, Some(place.clone()));
            }
        }
    }

    /// Whether the membership rules force the array to stop. If so, clients are told to end.
    pub(crate) fn has_to_stop(&self) -> bool {
        let stops =
            self.array_stopped.get() || self.stop_rule.borrow().as_ref().is_some_and(|rule| rule());
        if stops && !self.array_stopped.replace(true) {
            self.world.note("the array had to stop: most active members failed at once");
            self.quiesce.set(true);
        }
        stops
    }

    /// Passes the members that the engine has lost on to the oracle.
    pub(crate) fn note_losses(&self) {
        if let Some(note) = &*self.losses.borrow() {
            note(&mut self.oracle.borrow_mut());
        }
    }

    /// The volume is consistent: see [`Oracle::consistent_again`]. Members lost before are noted
    /// first, so that the values that their loss made possible stay possible.
    pub(crate) fn consistent_again(&self) {
        self.note_losses();
        self.oracle.borrow_mut().consistent_again();
        self.exposure.consistent_again();
    }

    /// Ends the abandoned writes: by now each has been carried out or not.
    pub(crate) fn end_abandoned(&self) {
        for writing in self.abandoned.take() {
            self.oracle.borrow_mut().end_write(writing, false, false);
        }
    }

    /// Waits for the end of something; `None`, and a violation, if that takes longer than `most`.
    pub(crate) async fn ends<T>(
        &self,
        what: &str,
        most: Nanos,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let (future, end) = (std::pin::pin!(future), self.world.rt().sleep(most));
        match select(future, std::pin::pin!(end)).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => {
                let text = format!("{what} did not end within {} s", most / SECOND);
                self.fail(ViolationKind::NeverSettles, text, None);
                None
            }
        }
    }

    /// The answer to a request; `None` if the client abandons it first.
    async fn answer<T>(&self, client: usize, request: impl Future<Output = T>) -> Option<T> {
        let patience = {
            let rng = &mut *self.rng.borrow_mut();
            let may = client < FIRST_CHECKER && self.abandon_percent.get() > 0;
            let goes = may && rng.chance(self.abandon_percent.get());
            goes.then(|| rng.below(3 * MILLISECOND))
        };
        let Some(patience) = patience else {
            return self.ends("a request", REQUEST_MAX, request).await;
        };
        let (request, end) = (std::pin::pin!(request), self.world.rt().sleep(patience));
        match select(request, std::pin::pin!(end)).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }

    /// Reads cells and checks them. Returns whether the read succeeded.
    pub async fn read(&self, volume: &dyn Volume, client: usize, cells: Range<usize>) -> bool {
        let place = self.oracle.borrow().bytes(&cells);
        let len = place.end - place.start;
        self.requests.set(self.requests.get() + 1);
        self.world.client(client, "reads", place.start, len, 0);
        let reading = self.oracle.borrow_mut().begin_read(cells);
        let buf = Buf::new(usize::try_from(len).unwrap_or(usize::MAX));
        let Some((result, buf)) = self.answer(client, volume.read(place.start, buf)).await else {
            self.world.client(client, "abandons the read of", place.start, len, 0);
            self.oracle.borrow_mut().abandon_read(reading);
            return false;
        };
        self.check_result("read", &place, &result);
        if result.is_err() {
            self.oracle.borrow_mut().abandon_read(reading);
            return false;
        }
        self.world.fold(fold_bytes(&buf));
        self.note_losses();
        let checked = self.oracle.borrow_mut().end_read(reading, &buf);
        if let Err(mismatch) = checked {
            let size = self.oracle.borrow().cell_bytes() as u64;
            let cell = mismatch.offset..mismatch.offset + size;
            let text =
                format!("client {client} read a value that is not allowed: {}", mismatch.text);
            self.fail(ViolationKind::WrongRead, text, Some(cell));
        }
        true
    }

    /// Writes, zeroes or discards cells.
    pub async fn write(
        &self,
        volume: &dyn Volume,
        client: usize,
        cells: Range<usize>,
        kind: Kind,
        fua: bool,
    ) {
        let place = self.oracle.borrow().bytes(&cells);
        let len = place.end - place.start;
        self.requests.set(self.requests.get() + 1);
        let (writing, perhaps) = self.begin_write(cells, kind);
        let version = writing.version.number();
        let verb = match (kind, fua) {
            (Kind::Data, false) => "writes",
            (Kind::Data, true) => "writes+fua",
            (Kind::Zero, _) => "zeroes",
            (Kind::Anything, _) => "discards",
        };
        self.world.client(client, verb, place.start, len, version);
        let request = match kind {
            Kind::Data => {
                let mut buf = Buf::new(usize::try_from(len).unwrap_or(usize::MAX));
                self.oracle.borrow().fill(&writing, &mut buf);
                volume.write(place.start, buf.freeze(), fua)
            }
            Kind::Zero => {
                let deallocate = mix(u64::from(version)).is_multiple_of(2);
                volume.write_zeroes(place.start, len, fua, deallocate)
            }
            Kind::Anything => volume.discard(place.start, len),
        };
        let answer = self.answer(client, request).await;
        // With the power off the client receives no answer.
        if !self.world.is_on() {
            return;
        }
        let Some(result) = answer else {
            self.world.client(client, "abandons the write of", place.start, len, version);
            self.abandoned.borrow_mut().extend(perhaps);
            return self.abandoned.borrow_mut().push(writing);
        };
        let outcome = if result.is_ok() { "completes" } else { "fails" };
        self.world.client(client, outcome, place.start, len, version);
        self.check_result("write", &place, &result);
        for writing in perhaps {
            self.oracle.borrow_mut().end_write(writing, false, false);
        }
        let fua = fua && kind != Kind::Anything;
        self.oracle.borrow_mut().end_write(writing, result.is_ok(), fua);
    }

    /// Starts a write. A discard starts as up to three: of cells that hold zeros afterwards, and of
    /// cells that may.
    fn begin_write(&self, cells: Range<usize>, kind: Kind) -> (Writing, Vec<Writing>) {
        let oracle = &mut *self.oracle.borrow_mut();
        let zeroed = match self.discards.get() {
            _ if kind != Kind::Anything => return (oracle.begin_write(cells, kind), Vec::new()),
            Discards::Anything => return (oracle.begin_write(cells, kind), Vec::new()),
            Discards::ZerosOrNothing => cells.start..cells.start,
            Discards::Stripes(stripe) => {
                let (size, bytes) = (oracle.cell_bytes() as u64, oracle.bytes(&cells));
                let start = bytes.start.next_multiple_of(stripe);
                let end = (bytes.end / stripe * stripe).max(start);
                let (first, last) = (start.div_ceil(size), end / size);
                // Cells that a stripe cuts may hold zeros in part.
                let touched = oracle.cells_of(&(start..end));
                let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                let whole = index(first)..index(last).max(index(first));
                let parts = match touched.is_empty() {
                    true => Vec::new(),
                    false if whole.is_empty() => vec![touched],
                    false => vec![touched.start..whole.start, whole.end..touched.end],
                };
                let parts = parts.into_iter().filter(|part| !part.is_empty());
                let parts = parts.map(|part| oracle.begin_write(part, Kind::Zero)).collect();
                return (oracle.begin_write(whole, Kind::Zero), parts);
            }
        };
        let perhaps = vec![oracle.begin_write(cells, Kind::Zero)];
        (oracle.begin_write(zeroed, Kind::Zero), perhaps)
    }

    /// Flushes the volume.
    pub async fn flush(&self, volume: &dyn Volume, client: usize) {
        self.requests.set(self.requests.get() + 1);
        self.world.client(client, "flushes", 0, 0, 0);
        let flushing = self.oracle.borrow_mut().begin_flush();
        let result = self.answer(client, volume.flush()).await;
        if !self.world.is_on() {
            return;
        }
        let Some(result) = result else { return };
        self.world.client(client, "flushed", 0, 0, u32::from(result.is_ok()));
        self.check_result("flush", &(0..0), &result);
        if result.is_ok() {
            self.oracle.borrow_mut().end_flush(flushing);
        }
    }

    /// Sends a request of zero bytes at the start, at the end or anywhere between.
    async fn empty_request(&self, volume: &dyn Volume, client: usize, rng: &mut Rng) {
        let size = volume.size_bytes();
        let anywhere = rng.below(size + 1);
        let offset = *rng.pick(&[0, anywhere, size]);
        let (kind, fua) = (rng.below(4), rng.chance(30));
        self.requests.set(self.requests.get() + 1);
        self.world.client(client, "sends an empty request,", offset, 0, 0);
        let request = async {
            match kind {
                0 => volume.read(offset, Buf::new(0)).await.0,
                1 => volume.write(offset, Buf::new(0).freeze(), fua).await,
                2 => volume.write_zeroes(offset, 0, fua, rng.chance(50)).await,
                _ => volume.discard(offset, 0).await,
            }
        };
        let result = request.await;
        if self.world.is_on() {
            self.check_result("an empty request", &(offset..offset), &result);
        }
    }

    /// Reads and checks the whole volume.
    pub async fn read_all(&self, volume: &dyn Volume, client: usize) {
        let count = self.oracle.borrow().len();
        self.read_cells(volume, client, 0..count).await;
    }

    /// Reads and checks these cells.
    pub(crate) async fn read_cells(&self, volume: &dyn Volume, client: usize, cells: Range<usize>) {
        let size = self.oracle.borrow().cell_bytes();
        let step = (256 * 1024 / size).max(1);
        for from in cells.clone().step_by(step) {
            let part = from..(from + step).min(cells.end);
            self.check_block_status(volume, client, &part);
            self.read(volume, client, part).await;
        }
    }

    /// Starts the clients of `load`.
    pub fn start(
        self: &Rc<Self>,
        volume: &Rc<dyn Volume>,
        load: &Load,
        rng: &Rng,
    ) -> Vec<Task<()>> {
        (0..load.clients)
            .map(|number| {
                let client = Client {
                    number,
                    harness: self.clone(),
                    volume: volume.clone(),
                    load: load.clone(),
                    rng: rng.fork(number as u64),
                    empty_rng: rng.fork(1000 + number as u64),
                    status_rng: rng.fork(2000 + number as u64),
                };
                self.world.rt().spawn(client.run())
            })
            .collect()
    }
}

/// A hash of bytes, computed in four independent lanes.
fn fold_bytes(bytes: &[u8]) -> u64 {
    let fold =
        |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    let mut lanes = [bytes.len() as u64, 1, 2, 3];
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        let words = block.as_chunks::<8>().0;
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = fold(*lane, u64::from_le_bytes(*word));
        }
    }
    let rest = blocks.remainder().iter().map(|byte| u64::from(*byte));
    lanes.into_iter().chain(rest).fold(0, fold)
}

struct Client {
    number: usize,
    harness: Rc<ClientHarness>,
    volume: Rc<dyn Volume>,
    load: Load,
    rng: Rng,
    /// Draws requests of zero bytes.
    empty_rng: Rng,
    /// Draws questions for the block status.
    status_rng: Rng,
}

/// Where a client sends its requests.
enum AccessPattern {
    Random,
    Sequential { next: u64 },
    Hot { spots: Vec<u64> },
}

impl Client {
    async fn run(mut self) {
        let cells = self.harness.oracle.borrow().len() as u64;
        if cells == 0 {
            return;
        }
        let mut pattern = match self.rng.below(4) {
            0 => AccessPattern::Sequential { next: self.rng.below(cells) },
            1 | 2 => {
                let spots = self.rng.within(1, 4);
                AccessPattern::Hot { spots: (0..spots).map(|_| self.rng.below(cells)).collect() }
            }
            _ => AccessPattern::Random,
        };
        let rt = self.harness.world.rt().clone();
        for number in 0..self.load.requests {
            if self.harness.quiesce.get() || !self.harness.world.is_on() {
                return;
            }
            if number >= self.load.whole_after {
                let stripes = self.whole_stripes(cells);
                self.harness.write(&*self.volume, self.number, stripes, Kind::Data, false).await;
                continue;
            }
            if self.rng.chance(self.load.flushes_percent) {
                self.harness.flush(&*self.volume, self.number).await;
                continue;
            }
            if self.empty_rng.chance(self.load.empty_percent) {
                let rng = &mut self.empty_rng;
                self.harness.empty_request(&*self.volume, self.number, rng).await;
            }
            let range = self.place(&mut pattern, cells);
            if self.status_rng.chance(self.load.status_percent) {
                self.harness.check_block_status(&*self.volume, self.number, &range);
            }
            if self.rng.chance(self.load.reads_percent) {
                self.harness.read(&*self.volume, self.number, range).await;
            } else {
                let zeroes = self.rng.chance(self.load.zeroes_percent);
                let kind = match zeroes {
                    true if self.rng.chance(50) => Kind::Zero,
                    true => Kind::Anything,
                    false => Kind::Data,
                };
                let fua = self.rng.chance(self.load.fua_percent);
                self.harness.write(&*self.volume, self.number, range, kind, fua).await;
            }
            // Clients send in bursts: most requests follow at once.
            if self.rng.chance(20) {
                rt.sleep(self.rng.below(self.load.pause_ns_max.max(MILLISECOND))).await;
            }
        }
    }

    /// A whole stripe, or a few.
    fn whole_stripes(&mut self, cells: u64) -> Range<usize> {
        let stripe = *self.rng.pick(&[self.load.stripe_cells, self.load.other_stripe_cells]);
        let stripe = stripe.clamp(1, cells);
        let start = self.rng.below(cells / stripe) * stripe;
        let len = (stripe * self.rng.within(1, 2)).min(cells - start);
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        index(start)..index(start + len)
    }

    fn place(&mut self, pattern: &mut AccessPattern, cells: u64) -> Range<usize> {
        let stripe = self.load.stripe_cells.clamp(1, cells);
        let len = match self.rng.below(10) {
            0..=4 => self.rng.within(1, self.load.cells_max.min(8)),
            5..=7 => self.rng.within(1, self.load.cells_max),
            _ => stripe * self.rng.within(1, 2),
        };
        let len = len.clamp(1, cells);
        let mut start = match pattern {
            AccessPattern::Random => self.rng.below(cells - len + 1),
            AccessPattern::Sequential { next } => *next,
            AccessPattern::Hot { spots } => *self.rng.pick(spots) + self.rng.below(4),
        };
        // Most requests of whole stripes are aligned to stripes.
        if len.is_multiple_of(stripe) && self.rng.chance(80) {
            start -= start % stripe;
        }
        if start + len > cells {
            start =
                if matches!(pattern, AccessPattern::Sequential { .. }) { 0 } else { cells - len };
        }
        if let AccessPattern::Sequential { next } = pattern {
            *next = (start + len) % cells;
        }
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        index(start)..index(start + len)
    }
}
