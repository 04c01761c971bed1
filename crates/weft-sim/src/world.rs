//! What the parts of a simulation share: the power, the step count at which it may be cut, and the
//! trace of all events.
//!
//! **Steps.** Each start and each completion of a disk operation is a step. The power can be cut at
//! a given step, so that a small run can be repeated with a cut at every step. Once the power is
//! off no disk operation makes progress, and nothing that the engine still does in that turn
//! reaches a disk. The power can also be cut after a time, or some steps after the start of a
//! superblock write ([`CutTrigger`]), in the middle of a membership change.
//!
//! **Trace.** Events are kept as numbers, formatted only when a run fails, and folded into a hash.
//! Two runs of one seed must give the same hash.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use weft_rt::rng::mix;
use weft_rt::sync::Notify;
use weft_rt::{Nanos, Rng, Rt};

/// Events kept per run; older ones are dropped.
const EVENTS_MAX: usize = 60_000;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When it happened, in virtual nanoseconds.
    pub at: Nanos,
    /// The step at which it happened.
    pub step: u64,
    /// What happened.
    pub what: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A disk operation started, completed or failed.
    Disk {
        /// Number of the disk.
        disk: usize,
        /// What the disk did.
        verb: &'static str,
        /// Byte offset on the disk.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Number of the operation on this disk.
        op: u64,
    },
    /// A client sent a request or received an answer.
    Client {
        /// Number of the client.
        client: usize,
        /// What the client did.
        verb: &'static str,
        /// Byte offset in the volume.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Version written, or 0.
        version: u32,
    },
    /// Anything else, in words.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12.3} ms  #{:<6} ", self.at as f64 / 1e6, self.step)?;
        match &self.what {
            EventKind::Disk { disk, verb, offset, len, op } => {
                write!(f, "  disk {disk} {verb} {len} at {offset} (op {op})")
            }
            EventKind::Client { client, verb, offset, len, version } => {
                write!(f, " client {client} {verb} {len} at {offset} (version {version})")
            }
            EventKind::Note(text) => write!(f, "{text}"),
        }
    }
}

/// A handle to what a simulation shares; clones share the same state.
#[derive(Clone)]
pub struct World(Rc<WorldState>);

struct WorldState {
    rt: Rt,
    seed: u64,
    rng: Rng,
    power: Cell<bool>,
    power_lost: Notify,
    step: Cell<u64>,
    cut_at: Cell<Option<u64>>,
    cut_trigger: RefCell<Option<CutTrigger>>,
    events: RefCell<VecDeque<Event>>,
    hash: Cell<u64>,
}

/// Cuts the power some steps after the start of a superblock write.
#[derive(Debug)]
pub(crate) struct CutTrigger {
    /// One superblock write in this many triggers the cut.
    pub one_in: u64,
    /// The cut comes at most this many steps after the start of that write.
    pub steps_max: u64,
    /// Draws both.
    pub rng: Rng,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.0.seed)
            .field("step", &self.0.step.get())
            .finish_non_exhaustive()
    }
}

impl World {
    /// A world with the power on, at step 0.
    pub fn new(rt: &Rt, seed: u64) -> Self {
        Self(Rc::new(WorldState {
            rt: rt.clone(),
            seed,
            rng: Rng::new(seed),
            power: Cell::new(true),
            power_lost: Notify::default(),
            step: Cell::new(0),
            cut_at: Cell::new(None),
            cut_trigger: RefCell::default(),
            events: RefCell::default(),
            hash: Cell::new(mix(seed)),
        }))
    }

    /// The executor.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// A generator for one purpose.
    pub fn rng(&self, purpose: u64) -> Rng {
        self.0.rng.fork(purpose)
    }

    /// Counts a step, and cuts the power if this is the step to cut at. Returns whether it is on.
    pub(crate) fn step(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        let step = self.0.step.get() + 1;
        self.0.step.set(step);
        if self.0.cut_at.get().is_some_and(|at| step >= at) {
            self.cut();
        }
        self.is_on()
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.0.step.get()
    }

    /// Sets the step at which the power is cut, counted from the start of the run.
    pub fn cut_at(&self, step: Option<u64>) {
        self.0.cut_at.set(step);
    }

    /// Sets the trigger of a power cut, or removes it.
    pub(crate) fn set_cut_trigger(&self, cut_trigger: Option<CutTrigger>) {
        *self.0.cut_trigger.borrow_mut() = cut_trigger;
    }

    /// A superblock write has started: draws whether it triggers a cut.
    pub(crate) fn superblock_write_began(&self) {
        let steps = self.0.cut_trigger.borrow_mut().as_mut().and_then(|cut_trigger| {
            let called = cut_trigger.rng.below(cut_trigger.one_in) == 0;
            called.then(|| cut_trigger.rng.below(cut_trigger.steps_max))
        });
        if let Some(steps) = steps {
            self.set_cut_trigger(None);
            let at = self.steps() + 1 + steps;
            self.cut_at(Some(self.0.cut_at.get().map_or(at, |earlier| earlier.min(at))));
        }
    }

    /// Cuts the power after `time`, unless it is off by then.
    pub(crate) fn cut_after(&self, time: Nanos) {
        let world = self.clone();
        drop(self.rt().spawn(async move {
            world.rt().sleep(time).await;
            if world.is_on() {
                world.cut();
            }
        }));
    }

    /// Cuts the power now.
    pub fn cut(&self) {
        self.note("the power is cut");
        self.0.cut_at.set(None);
        self.0.power.set(false);
        self.0.power_lost.notify_all();
    }

    /// Turns the power on again. The caller has dropped all earlier tasks.
    pub fn restore(&self) {
        self.0.power.set(true);
    }

    /// Whether the power is on.
    pub fn is_on(&self) -> bool {
        self.0.power.get()
    }

    /// Completes when the power is cut.
    pub async fn power_loss(&self) {
        while self.is_on() {
            self.0.power_lost.wait().await;
        }
    }

    /// Runs `future` to its end; returns `None` if the power is cut first.
    pub async fn while_on<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        use futures_util::future::{Either, select};
        let (power_lost, future) = (std::pin::pin!(self.power_loss()), std::pin::pin!(future));
        match select(power_lost, future).await {
            Either::Left(_) => None,
            Either::Right((value, _)) => Some(value),
        }
    }

    /// Records a note.
    pub fn note(&self, text: impl Into<String>) {
        let text = text.into();
        let folded = text.bytes().fold(1, |hash, byte| mix(hash ^ u64::from(byte)));
        self.record(EventKind::Note(text), [folded, 0, 0]);
    }

    pub(crate) fn disk(&self, disk: usize, verb: &'static str, offset: u64, len: u64, op: u64) {
        let folded = [offset, len, mix(disk as u64) ^ op ^ u64::from(verb.as_bytes()[0])];
        self.record(EventKind::Disk { disk, verb, offset, len, op }, folded);
    }

    pub(crate) fn client(
        &self,
        client: usize,
        verb: &'static str,
        offset: u64,
        len: u64,
        version: u32,
    ) {
        let folded = [offset, len, mix(client as u64 + 1000) ^ u64::from(version)];
        self.record(EventKind::Client { client, verb, offset, len, version }, folded);
    }

    fn record(&self, what: EventKind, numbers: [u64; 3]) {
        let (at, step) = (self.0.rt.now(), self.steps());
        let hash = numbers.iter().fold(self.0.hash.get() ^ at, |hash, n| mix(hash ^ n));
        self.0.hash.set(hash);
        let mut events = self.0.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(Event { at, step, what });
    }

    /// Folds a number into the hash without recording an event (the contents of a read, for
    /// instance).
    pub(crate) fn fold(&self, number: u64) {
        self.0.hash.set(mix(self.0.hash.get() ^ number));
    }

    /// The hash of all events so far.
    pub fn trace_hash(&self) -> u64 {
        self.0.hash.get()
    }

    /// The last events that satisfy `keep`, at most `count`, oldest first.
    pub fn events(&self, count: usize, keep: impl Fn(&EventKind) -> bool) -> Vec<Event> {
        let events = self.0.events.borrow();
        let mut last: Vec<_> =
            events.iter().rev().filter(|event| keep(&event.what)).take(count).cloned().collect();
        last.reverse();
        last
    }
}
