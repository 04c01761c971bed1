//! A network that delays messages without bound, loses them, reorders them, and is cut in one
//! direction.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use weft_rt::sync::Receiver;
use weft_rt::{MICROSECOND, MILLISECOND, Nanos, Rng, Rt, SECOND};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Node(usize),
    Disk(usize),
    Coordinator,
}

pub struct Network {
    rt: Rt,
    rng: RefCell<Rng>,
    /// Until when messages from one place to another are lost.
    cuts: RefCell<BTreeMap<(Place, Place), Nanos>>,
    /// Until when delays have no bound.
    disturbed: Cell<Nanos>,
}

impl Network {
    pub fn new(rt: &Rt, rng: Rng) -> Self {
        let (rng, cuts) = (RefCell::new(rng), RefCell::default());
        Self { rt: rt.clone(), rng, cuts, disturbed: Cell::new(0) }
    }

    pub fn cut(&self, from: Place, to: Place, long: Nanos) {
        self.cuts.borrow_mut().insert((from, to), self.rt.now() + long);
    }

    pub fn disturb(&self, long: Nanos) {
        self.disturbed.set(self.rt.now() + long);
    }

    pub fn heal(&self) {
        self.cuts.borrow_mut().clear();
        self.disturbed.set(0);
    }

    fn is_cut(&self, from: Place, to: Place) -> bool {
        self.cuts.borrow().get(&(from, to)).is_some_and(|until| self.rt.now() < *until)
    }

    /// How long a message takes; `None`: for ever.
    fn delay(&self, from: Place, to: Place) -> Option<Nanos> {
        let disturbed = self.rt.now() < self.disturbed.get();
        let mut rng = self.rng.borrow_mut();
        if self.is_cut(from, to) || (disturbed && rng.chance(10)) {
            return None;
        }
        Some(match rng.below(100) {
            0..15 if disturbed => rng.within(1, 60) * SECOND,
            0 => rng.within(1, 2000) * MILLISECOND,
            _ => rng.within(50, 3000) * MICROSECOND,
        })
    }

    /// Whether a message arrives, after its time.
    pub async fn carry(&self, from: Place, to: Place) -> bool {
        let Some(delay) = self.delay(from, to) else { return false };
        self.rt.sleep(delay).await;
        !self.is_cut(from, to)
    }

    /// Waits for ever, or for the value that a task sends.
    pub async fn answer<T>(receiver: Receiver<T>) -> T {
        match receiver.await {
            Some(value) => value,
            None => std::future::pending().await,
        }
    }
}
