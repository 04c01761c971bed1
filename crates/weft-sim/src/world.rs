//! What the parts of one simulation share: the power, the count of steps at which it may be
//! cut, and the trace of everything that happened.
//!
//! **Steps.** Every start and every completion of a disk operation is a step. A power cut can be
//! set for step k, so that a small run can be repeated with a cut at each of its steps. From the
//! moment the power is off no disk operation makes progress; what the engine still does
//! in that turn reaches nothing. The power may also go at an instant, and in *ambush*: shortly after
//! the beginning of a superblock write, when a change of the members is half made.
//!
//! **Trace.** Events are kept as plain numbers (text is made only when a run has failed), and
//! folded into a hash: two runs of one seed must give the same.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use weft_rt::sync::Notify;
use weft_rt::{Nanos, Rt};

use crate::rng::{Rng, mix};

/// Events kept of a run; older ones are forgotten.
const EVENTS_MAX: usize = 60_000;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, in virtual nanoseconds.
    pub at: Nanos,
    /// The step it happened at.
    pub step: u64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// On a disk.
    Disk {
        /// Number of the disk.
        disk: usize,
        /// What it did.
        verb: &'static str,
        /// Byte offset on the disk.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Number of the operation on this disk.
        op: u64,
    },
    /// Between a client and the volume.
    Client {
        /// Number of the client.
        client: usize,
        /// What it did.
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
            What::Disk { disk, verb, offset, len, op } => {
                write!(f, "  disk {disk} {verb} {len} at {offset} (op {op})")
            }
            What::Client { client, verb, offset, len, version } => {
                write!(f, " client {client} {verb} {len} at {offset} (version {version})")
            }
            What::Note(text) => write!(f, "{text}"),
        }
    }
}

/// Handle of what a simulation shares; clones are handles of the same one.
#[derive(Clone)]
pub struct World(Rc<Inner>);

struct Inner {
    rt: Rt,
    seed: u64,
    rng: Rng,
    power: Cell<bool>,
    dark: Notify,
    step: Cell<u64>,
    cut_at: Cell<Option<u64>>,
    ambush: RefCell<Option<Ambush>>,
    events: RefCell<VecDeque<Event>>,
    hash: Cell<u64>,
}

/// A power cut that waits for a superblock write.
#[derive(Debug)]
pub(crate) struct Ambush {
    /// One superblock write in this many calls it.
    pub one_in: u64,
    /// Steps from the beginning of that write to the cut, at most.
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
        Self(Rc::new(Inner {
            rt: rt.clone(),
            seed,
            rng: Rng::new(seed),
            power: Cell::new(true),
            dark: Notify::default(),
            step: Cell::new(0),
            cut_at: Cell::new(None),
            ambush: RefCell::default(),
            events: RefCell::default(),
            hash: Cell::new(mix(seed)),
        }))
    }

    /// Its executor.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// Its seed.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// A generator for one purpose.
    pub fn rng(&self, purpose: u64) -> Rng {
        self.0.rng.fork(purpose)
    }

    /// Counts a step, at which the power may go. Says whether it is on.
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

    /// Sets the step at which the power goes (counted from the start of the run).
    pub fn cut_at(&self, step: Option<u64>) {
        self.0.cut_at.set(step);
    }

    /// Sets an ambush, or lifts it.
    pub(crate) fn set_ambush(&self, ambush: Option<Ambush>) {
        *self.0.ambush.borrow_mut() = ambush;
    }

    /// A superblock is being written.
    pub(crate) fn superblock_write_began(&self) {
        let steps = self.0.ambush.borrow_mut().as_mut().and_then(|ambush| {
            let called = ambush.rng.below(ambush.one_in) == 0;
            called.then(|| ambush.rng.below(ambush.steps_max))
        });
        if let Some(steps) = steps {
            self.set_ambush(None);
            let at = self.steps() + 1 + steps;
            self.cut_at(Some(self.0.cut_at.get().map_or(at, |earlier| earlier.min(at))));
        }
    }

    /// Cuts the power after a time, unless it goes before or this life ends.
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
        self.note("the power goes");
        self.0.cut_at.set(None);
        self.0.power.set(false);
        self.0.dark.notify_all();
    }

    /// Turns the power on again. Tasks of the time before must have been dropped.
    pub fn restore(&self) {
        self.0.power.set(true);
    }

    /// Whether the power is on.
    pub fn is_on(&self) -> bool {
        self.0.power.get()
    }

    /// Completes when the power goes.
    pub async fn darkness(&self) {
        while self.is_on() {
            self.0.dark.wait().await;
        }
    }

    /// Runs `future` until it is done, or gives `None` if the power goes before.
    pub async fn while_on<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        use futures_util::future::{Either, select};
        let (dark, future) = (std::pin::pin!(self.darkness()), std::pin::pin!(future));
        match select(dark, future).await {
            Either::Left(_) => None,
            Either::Right((value, _)) => Some(value),
        }
    }

    /// Records an event in words.
    pub fn note(&self, text: impl Into<String>) {
        let text = text.into();
        let folded = text.bytes().fold(1, |hash, byte| mix(hash ^ u64::from(byte)));
        self.record(What::Note(text), [folded, 0, 0]);
    }

    pub(crate) fn disk(&self, disk: usize, verb: &'static str, offset: u64, len: u64, op: u64) {
        let folded = [offset, len, mix(disk as u64) ^ op ^ u64::from(verb.as_bytes()[0])];
        self.record(What::Disk { disk, verb, offset, len, op }, folded);
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
        self.record(What::Client { client, verb, offset, len, version }, folded);
    }

    fn record(&self, what: What, numbers: [u64; 3]) {
        let (at, step) = (self.0.rt.now(), self.steps());
        let hash = numbers.iter().fold(self.0.hash.get() ^ at, |hash, n| mix(hash ^ n));
        self.0.hash.set(hash);
        let mut events = self.0.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(Event { at, step, what });
    }

    /// Folds a number into the trace without an event (the contents of a read, say).
    pub(crate) fn fold(&self, number: u64) {
        self.0.hash.set(mix(self.0.hash.get() ^ number));
    }

    /// The hash of everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.0.hash.get()
    }

    /// The last events for which `keep` holds, oldest first, at most `count`.
    pub fn events(&self, count: usize, keep: impl Fn(&What) -> bool) -> Vec<Event> {
        let events = self.0.events.borrow();
        let mut last: Vec<_> =
            events.iter().rev().filter(|event| keep(&event.what)).take(count).cloned().collect();
        last.reverse();
        last
    }
}
