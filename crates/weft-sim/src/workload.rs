//! Clients: tasks that read, write and flush a volume at random and hold every answer against
//! the [`Oracle`].
//!
//! Each client has a temper of its own, drawn from the seed – one runs sequentially,
//! one hammers a few hot places, one strolls at random – with sizes from a single cell to
//! several stripes, bursts, and pauses.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_rt::{Buf, MILLISECOND, Task};

use crate::oracle::{Kind, Oracle, Writing};
use crate::rng::{Rng, mix};
use crate::violation::{Broken, Violation};
use crate::volume::Volume;
use crate::world::World;

/// How hard the clients work, and at what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Clients at the same time.
    pub clients: usize,
    /// Requests of each client; then it stops.
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
    /// Cells of a stripe: some requests are whole stripes.
    pub stripe_cells: u64,
    /// Pause of a client between bursts, at most, in virtual nanoseconds.
    pub pause_max: u64,
    /// Percentage of requests whose client does not wait for the answer.
    pub vanish_percent: u64,
    /// Percentage of requests before which one of no bytes is made.
    pub empty_percent: u64,
}

impl Load {
    /// At least four clients that hardly read or pause; what is acknowledged is durable, if
    /// `durable`.
    pub(crate) fn pressing(&self, durable: bool) -> Self {
        Self {
            clients: self.clients.max(4),
            requests: self.requests.max(60),
            reads_percent: 10,
            fua_percent: if durable { 100 } else { self.fua_percent },
            pause_max: 0,
            ..self.clone()
        }
    }
}

/// Clients with this number or a greater one check the volume, and wait for every answer.
const STEADY: usize = 80;

/// Ends the promises that end with the members that the engine has lost.
type NoteLosses = Box<dyn Fn(&mut Oracle)>;

/// What the clients of one incarnation share.
pub struct Desk {
    /// Power, trace, time.
    pub world: World,
    /// The reference.
    pub oracle: RefCell<Oracle>,
    /// The first failed expectation; the power goes when it is set.
    pub broken: RefCell<Option<Broken>>,
    /// Clients end when this is set.
    pub quiesce: Cell<bool>,
    /// Requests may fail (the array has lost more than it survives): an error is then no
    /// failure, a wrong byte still is.
    pub errors_allowed: Cell<bool>,
    /// Writes must fail from now on.
    pub writes_must_fail: Cell<bool>,
    /// Bytes of a stripe, if a discard zeroes the whole stripes in its range and leaves the rest
    /// alone; without this a discarded range may hold anything.
    pub discard_zeroes: Cell<Option<u64>>,
    /// Percentage of requests that are dropped before their answer.
    pub vanish_percent: Cell<u64>,
    /// Whether the array has to stop by what has failed so far.
    pub(crate) may_stop: RefCell<Option<Box<dyn Fn() -> bool>>>,
    /// Notes the members that the engine has lost.
    pub(crate) losses: RefCell<Option<NoteLosses>>,
    /// The array had to stop.
    pub(crate) gave_up: Cell<bool>,
    /// Writes whose clients have gone.
    vanished: RefCell<Vec<Writing>>,
    rng: RefCell<Rng>,
    requests: Cell<u64>,
    errors: Cell<u64>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Desk {
    /// A desk for a volume that `oracle` describes.
    pub fn new(world: &World, oracle: Oracle) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            oracle: RefCell::new(oracle),
            broken: RefCell::new(None),
            quiesce: Cell::new(false),
            errors_allowed: Cell::new(false),
            writes_must_fail: Cell::new(false),
            discard_zeroes: Cell::new(None),
            vanish_percent: Cell::new(0),
            may_stop: RefCell::default(),
            losses: RefCell::default(),
            gave_up: Cell::new(false),
            vanished: RefCell::default(),
            rng: RefCell::new(world.rng(60)),
            requests: Cell::new(0),
            errors: Cell::new(0),
        })
    }

    /// Requests made.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Requests that failed where that was allowed.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    /// An expectation has failed: the run ends here.
    pub(crate) fn fail(&self, kind: Violation, text: impl Into<String>, place: Option<Range<u64>>) {
        self.broke(Broken { kind, text: text.into(), place });
    }

    /// As [`Desk::fail`].
    pub(crate) fn broke(&self, broken: Broken) {
        self.world.note(format!("BROKEN: {}", broken.text));
        self.broken.borrow_mut().get_or_insert(broken);
        self.world.cut();
    }

    fn settle<E: std::fmt::Display>(&self, what: &str, place: &Range<u64>, result: &Result<(), E>) {
        match result {
            Ok(()) if self.writes_must_fail.get() && what == "write" => {
                let text = "a write was acknowledged by an array that is lost";
                self.fail(Violation::FalseAcknowledgement, text, Some(place.clone()));
            }
            Ok(()) => {}
            Err(_) if self.errors_allowed.get() || self.has_to_stop() => {
                self.errors.set(self.errors.get() + 1);
            }
            Err(error) => {
                let text = format!("{what} failed: {error}");
                self.fail(Violation::RequestFailed, text, Some(place.clone()));
            }
        }
    }

    /// Whether the array has to stop by the rules of membership; the clients go then.
    pub(crate) fn has_to_stop(&self) -> bool {
        let stops =
            self.gave_up.get() || self.may_stop.borrow().as_ref().is_some_and(|rule| rule());
        if stops && !self.gave_up.replace(true) {
            self.world.note("the array had to stop: most active members failed at once");
            self.quiesce.set(true);
        }
        stops
    }

    /// Notes the members that the engine has lost.
    pub(crate) fn note_losses(&self) {
        if let Some(note) = &*self.losses.borrow() {
            note(&mut self.oracle.borrow_mut());
        }
    }

    /// The volume is consistent: see [`Oracle::consistent_again`]. Members that were lost before it
    /// was are noted first; the values that their loss made possible again stay so.
    pub(crate) fn consistent_again(&self) {
        self.note_losses();
        self.oracle.borrow_mut().consistent_again();
    }

    /// The writes whose clients have gone have ended by now, one way or the other.
    pub(crate) fn forget_vanished(&self) {
        for writing in self.vanished.take() {
            self.oracle.borrow_mut().end_write(writing, false, false);
        }
    }

    /// The answer to a request; `None` if its client has gone before.
    async fn answer<T>(&self, client: usize, request: impl Future<Output = T>) -> Option<T> {
        let patience = {
            let rng = &mut *self.rng.borrow_mut();
            let may = client < STEADY && self.vanish_percent.get() > 0;
            let goes = may && rng.chance(self.vanish_percent.get());
            goes.then(|| rng.below(3 * MILLISECOND))
        };
        let Some(patience) = patience else { return Some(request.await) };
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
            self.world.client(client, "goes away, reading", place.start, len, 0);
            self.oracle.borrow_mut().abandon_read(reading);
            return false;
        };
        self.settle("read", &place, &result);
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
            let text = format!("client {client} read what must not be: {}", mismatch.text);
            self.fail(Violation::WrongRead, text, Some(cell));
        }
        true
    }

    /// Writes cells.
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
        let writing = self.begin_write(cells, kind);
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
        // With the power off nobody hears of it any more.
        if !self.world.is_on() {
            return;
        }
        let Some(result) = answer else {
            self.world.client(client, "goes away, writing", place.start, len, version);
            return self.vanished.borrow_mut().push(writing);
        };
        let outcome = if result.is_ok() { "is answered" } else { "is refused" };
        self.world.client(client, outcome, place.start, len, version);
        self.settle("write", &place, &result);
        let fua = fua && kind != Kind::Anything;
        self.oracle.borrow_mut().end_write(writing, result.is_ok(), fua);
    }

    fn begin_write(&self, cells: Range<usize>, kind: Kind) -> Writing {
        let oracle = &mut *self.oracle.borrow_mut();
        let size = oracle.cell_bytes() as u64;
        match self.discard_zeroes.get() {
            Some(stripe) if kind == Kind::Anything && stripe.is_multiple_of(size) => {
                let bytes = oracle.bytes(&cells);
                let (start, end) =
                    (bytes.start.next_multiple_of(stripe), bytes.end / stripe * stripe);
                let zeroed = oracle.cells_of(&(start..end.max(start)));
                oracle.begin_write(zeroed, Kind::Zero)
            }
            _ => oracle.begin_write(cells, kind),
        }
    }

    /// Flushes.
    pub async fn flush(&self, volume: &dyn Volume, client: usize) {
        self.requests.set(self.requests.get() + 1);
        self.world.client(client, "flushes", 0, 0, 0);
        let flushing = self.oracle.borrow_mut().begin_flush();
        let result = self.answer(client, volume.flush()).await;
        if !self.world.is_on() {
            return;
        }
        let Some(result) = result else { return };
        self.world.client(client, "is flushed", 0, 0, u32::from(result.is_ok()));
        self.settle("flush", &(0..0), &result);
        if result.is_ok() {
            self.oracle.borrow_mut().end_flush(flushing);
        }
    }

    /// A request of no bytes, at the beginning, anywhere, or at the very end.
    async fn ask_for_nothing(&self, volume: &dyn Volume, client: usize, rng: &mut Rng) {
        let size = volume.size_bytes();
        let anywhere = rng.below(size + 1);
        let offset = *rng.pick(&[0, anywhere, size]);
        let (kind, fua) = (rng.below(4), rng.chance(30));
        self.requests.set(self.requests.get() + 1);
        self.world.client(client, "asks for nothing", offset, 0, 0);
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
            self.settle("a request of no bytes", &(offset..offset), &result);
        }
    }

    /// Reads the whole volume and checks it.
    pub async fn read_all(&self, volume: &dyn Volume, client: usize) {
        let (count, size) = {
            let oracle = self.oracle.borrow();
            (oracle.len(), oracle.cell_bytes())
        };
        let step = (256 * 1024 / size).max(1);
        for from in (0..count).step_by(step) {
            self.read(volume, client, from..(from + step).min(count)).await;
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
                    desk: self.clone(),
                    volume: volume.clone(),
                    load: load.clone(),
                    rng: rng.fork(number as u64),
                    empties: rng.fork(1000 + number as u64),
                };
                self.world.rt().spawn(client.run())
            })
            .collect()
    }
}

/// A hash of bytes, in four lanes that do not wait for each other.
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
    desk: Rc<Desk>,
    volume: Rc<dyn Volume>,
    load: Load,
    rng: Rng,
    /// What empty requests are drawn from.
    empties: Rng,
}

/// Where a client works.
enum Temper {
    Random,
    Sequential { next: u64 },
    Hot { spots: Vec<u64> },
}

impl Client {
    async fn run(mut self) {
        let cells = self.desk.oracle.borrow().len() as u64;
        if cells == 0 {
            return;
        }
        let mut temper = match self.rng.below(4) {
            0 => Temper::Sequential { next: self.rng.below(cells) },
            1 | 2 => {
                let spots = self.rng.within(1, 4);
                Temper::Hot { spots: (0..spots).map(|_| self.rng.below(cells)).collect() }
            }
            _ => Temper::Random,
        };
        let rt = self.desk.world.rt().clone();
        for _ in 0..self.load.requests {
            if self.desk.quiesce.get() || !self.desk.world.is_on() {
                return;
            }
            if self.rng.chance(self.load.flushes_percent) {
                self.desk.flush(&*self.volume, self.number).await;
                continue;
            }
            if self.empties.chance(self.load.empty_percent) {
                let rng = &mut self.empties;
                self.desk.ask_for_nothing(&*self.volume, self.number, rng).await;
            }
            let range = self.place(&mut temper, cells);
            if self.rng.chance(self.load.reads_percent) {
                self.desk.read(&*self.volume, self.number, range).await;
            } else {
                let zeroes = self.rng.chance(self.load.zeroes_percent);
                let kind = match zeroes {
                    true if self.rng.chance(50) => Kind::Zero,
                    true => Kind::Anything,
                    false => Kind::Data,
                };
                let fua = self.rng.chance(self.load.fua_percent);
                self.desk.write(&*self.volume, self.number, range, kind, fua).await;
            }
            // Bursts: most requests follow at once.
            if self.rng.chance(20) {
                rt.sleep(self.rng.below(self.load.pause_max.max(MILLISECOND))).await;
            }
        }
    }

    fn place(&mut self, temper: &mut Temper, cells: u64) -> Range<usize> {
        let stripe = self.load.stripe_cells.clamp(1, cells);
        let len = match self.rng.below(10) {
            0..=4 => self.rng.within(1, self.load.cells_max.min(8)),
            5..=7 => self.rng.within(1, self.load.cells_max),
            _ => stripe * self.rng.within(1, 2),
        };
        let len = len.clamp(1, cells);
        let mut start = match temper {
            Temper::Random => self.rng.below(cells - len + 1),
            Temper::Sequential { next } => *next,
            Temper::Hot { spots } => *self.rng.pick(spots) + self.rng.below(4),
        };
        // Whole stripes lie on stripes, mostly.
        if len.is_multiple_of(stripe) && self.rng.chance(80) {
            start -= start % stripe;
        }
        if start + len > cells {
            start = if matches!(temper, Temper::Sequential { .. }) { 0 } else { cells - len };
        }
        if let Temper::Sequential { next } = temper {
            *next = (start + len) % cells;
        }
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        index(start)..index(start + len)
    }
}
