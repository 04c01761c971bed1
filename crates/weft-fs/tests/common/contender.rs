//! Another node that wants tokens. It has no memory of its own: what it would read once it has its
//! token is on the disks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::{Rc, Weak};

use weft_fs::{Fs, Ino};
use weft_random::Rng;
use weft_rt::{MILLISECOND, Rt};
use weft_token::{
    Acquired, Ask, Event, Holder, Kind, Mode, NodeId, Space, ToAuthority, ToNode, UseId,
};

pub struct Contender {
    rt: Rt,
    fs: Fs,
    id: Cell<Option<NodeId>>,
    holder: RefCell<Holder>,
    ready: RefCell<BTreeSet<UseId>>,
    /// Messages from and to it.
    pub messages: Cell<u64>,
}

/// A token that it uses.
pub type InUse = (Space, UseId);

/// All that tokens of a kind are for.
fn all_of(kind: Kind) -> Range<u64> {
    match kind {
        Kind::Everything | Kind::Attributes | Kind::Open => 0..1,
        Kind::Names | Kind::Data => 0..u64::MAX,
    }
}

impl Contender {
    pub fn new(rt: &Rt, fs: &Fs, number: u16) -> Rc<Self> {
        let contender = Rc::new(Self {
            rt: rt.clone(),
            fs: fs.clone(),
            id: Cell::new(None),
            holder: RefCell::default(),
            ready: RefCell::default(),
            messages: Cell::new(0),
        });
        let weak: Weak<Self> = Rc::downgrade(&contender);
        let id = fs.join_node(number, move |message| {
            if let Some(contender) = weak.upgrade() {
                contender.take(message);
            }
        });
        contender.id.set(Some(id));
        contender
    }

    fn send(&self, message: ToAuthority) {
        self.messages.set(self.messages.get() + 1);
        if let Some(id) = self.id.get() {
            self.fs.from_node(id, message);
        }
    }

    fn take(&self, message: ToNode) {
        self.messages.set(self.messages.get() + 1);
        let events = self.holder.borrow_mut().take(message);
        self.handle(events);
    }

    fn handle(&self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Ready(of) => drop(self.ready.borrow_mut().insert(of)),
                Event::Send(message) => self.send(message),
                // It has changed nothing.
                Event::Write { space, range, .. } => {
                    let events = self.holder.borrow_mut().written(space, &range);
                    self.handle(events);
                }
            }
        }
    }

    /// Waits for a token, and uses it.
    pub async fn acquire(&self, kind: Kind, ino: Ino, range: Range<u64>, mode: Mode) -> InUse {
        let space = Space { kind, ino };
        let ask = Ask { space, needed: range, wanted: all_of(kind), mode };
        let acquired = self.holder.borrow_mut().acquire(ask);
        match acquired {
            Acquired::Now(of) => (space, of),
            Acquired::Later(of, message) => {
                self.send(message);
                while !self.ready.borrow_mut().remove(&of) {
                    self.rt.sleep(MILLISECOND / 10).await;
                }
                (space, of)
            }
        }
    }

    /// The same, for all that there is of its kind.
    pub async fn acquire_all(&self, kind: Kind, ino: Ino, mode: Mode) -> InUse {
        self.acquire(kind, ino, all_of(kind), mode).await
    }

    pub fn done(&self, (space, of): InUse) {
        let events = self.holder.borrow_mut().done(space, of);
        self.handle(events);
    }

    /// It is dead. No other node gets what it held until [`Contender::recovered`].
    pub fn die(&self) {
        self.fs.fence_node(self.id.get().expect("it has joined"));
    }

    pub fn recovered(&self) {
        self.fs.recovered_node(self.id.get().expect("it has joined"));
    }

    /// Wants tokens of random things for random times, for ever; sometimes it dies, and another one
    /// comes, with the next number.
    pub async fn contend(rt: Rt, fs: Fs, first: u16, seed: u64) {
        let mut rng = Rng::new(seed + u64::from(first));
        for number in first.. {
            let contender = Self::new(&rt, &fs, number);
            let mut lives = 1 + rng.below(20);
            while lives > 0 {
                lives -= 1;
                rt.sleep(rng.below(40) * MILLISECOND).await;
                let mode = if rng.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
                let (ino, at) = (1 + rng.below(12), rng.below(64));
                let in_use = match rng.below(8) {
                    0 => contender.acquire_all(Kind::Everything, 0, mode).await,
                    1 | 2 => contender.acquire_all(Kind::Names, ino, mode).await,
                    3 | 4 => contender.acquire_all(Kind::Attributes, ino, mode).await,
                    5 => contender.acquire_all(Kind::Data, ino, mode).await,
                    _ => contender.acquire(Kind::Data, ino, at..at + 8, mode).await,
                };
                rt.sleep(rng.below(10) * MILLISECOND).await;
                if lives > 0 {
                    contender.done(in_use);
                }
            }
            contender.die();
            rt.sleep(rng.below(20) * MILLISECOND).await;
            contender.recovered();
        }
    }
}
