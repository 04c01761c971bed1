//! A network that delays without bound, is cut in one direction or both, and loses what is sent
//! without a connection; and streams over it, which wait for the end of a cut.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::{Rc, Weak};

use futures_util::future::select;
use weft_disk::IoFuture;
use weft_fs::Stream;
use weft_random::Rng;
use weft_rt::sync::Notify;
use weft_rt::{MICROSECOND, MILLISECOND, Nanos, Rt, SECOND};

use super::canary::Filter;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Machine(usize),
    Disk(usize),
    Coordinator,
}

pub struct Network {
    rt: Rt,
    rng: RefCell<Rng>,
    /// Until when nothing comes from one place to another.
    cuts: RefCell<BTreeMap<(Place, Place), Nanos>>,
    /// Until when delays have no bound.
    disturbed: Cell<Nanos>,
    /// Streams of machines.
    pipes: RefCell<Vec<Weak<Pipe>>>,
}

impl Network {
    pub fn new(rt: &Rt, rng: Rng) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            rng: RefCell::new(rng),
            cuts: RefCell::default(),
            disturbed: Cell::new(0),
            pipes: RefCell::default(),
        })
    }

    pub fn cut(&self, from: Place, to: Place, long: Nanos) {
        let until = self.rt.now() + long;
        let mut cuts = self.cuts.borrow_mut();
        let end = cuts.entry((from, to)).or_default();
        *end = until.max(*end);
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

    fn delay(&self) -> Nanos {
        let disturbed = self.rt.now() < self.disturbed.get();
        let mut rng = self.rng.borrow_mut();
        match rng.below(200) {
            0..20 if disturbed => rng.within(1, 6000) * MILLISECOND,
            0 => rng.within(1, 1000) * MILLISECOND,
            _ => rng.within(50, 1500) * MICROSECOND,
        }
    }

    /// Whether a message comes, after its time: one of no connection, which a cut swallows.
    pub async fn carry(&self, from: Place, to: Place) -> bool {
        let is_lost = self.rt.now() < self.disturbed.get() && self.rng.borrow_mut().chance(10);
        if self.is_cut(from, to) || is_lost {
            return false;
        }
        self.rt.sleep(self.delay()).await;
        !self.is_cut(from, to)
    }

    /// Brings what is sent on a connection: after the end of a cut.
    pub async fn bring(&self, from: Place, to: Place) {
        self.rt.sleep(self.delay()).await;
        while self.is_cut(from, to) {
            self.rt.sleep(50 * MILLISECOND).await;
        }
    }

    /// The two ends of a stream; what the first one sends may be changed.
    pub fn stream(
        self: &Rc<Self>,
        near: Place,
        far: Place,
        filter: Option<Filter>,
    ) -> (Rc<dyn Stream>, Rc<dyn Stream>) {
        let pipe = |from, to| {
            let pipe = Rc::new(Pipe {
                network: self.clone(),
                from,
                to,
                bytes: RefCell::default(),
                is_closed: Cell::new(false),
                told: Notify::default(),
            });
            self.pipes.borrow_mut().push(Rc::downgrade(&pipe));
            pipe
        };
        let (there, back) = (pipe(near, far), pipe(far, near));
        let filter = filter.map(|filter| Rc::new(RefCell::new(filter)));
        let end = |incoming: &Rc<Pipe>, outgoing: &Rc<Pipe>, is_near| {
            let (incoming, outgoing) = (incoming.clone(), outgoing.clone());
            Rc::new(End { incoming, outgoing, filter: filter.clone(), is_near })
        };
        (end(&back, &there, true), end(&there, &back, false))
    }

    /// The process of a machine has ended: the kernel closes its streams.
    pub fn close_streams(&self, machine: usize) {
        let place = Place::Machine(machine);
        self.pipes.borrow_mut().retain(|pipe| {
            let Some(pipe) = pipe.upgrade() else { return false };
            if pipe.from == place || pipe.to == place {
                pipe.close();
            }
            true
        });
    }
}

/// Bytes on their way in one direction.
struct Pipe {
    network: Rc<Network>,
    from: Place,
    to: Place,
    bytes: RefCell<VecDeque<(Nanos, Vec<u8>)>>,
    is_closed: Cell<bool>,
    told: Notify,
}

impl Pipe {
    fn close(&self) {
        self.is_closed.set(true);
        self.told.notify_all();
    }

    fn push(&self, bytes: Vec<u8>) {
        let at = self.network.rt.now() + self.network.delay();
        let last = self.bytes.borrow().back().map_or(0, |(at, _)| *at);
        self.bytes.borrow_mut().push_back((last.max(at), bytes));
        self.told.notify_all();
    }

    async fn read(&self) -> Vec<u8> {
        let Network { rt, .. } = &*self.network;
        loop {
            let told = self.told.wait();
            let first = self.bytes.borrow().front().map(|(at, _)| *at);
            let is_cut = self.network.is_cut(self.from, self.to);
            match first {
                _ if is_cut => rt.sleep(50 * MILLISECOND).await,
                Some(at) if at <= rt.now() => {
                    return self.bytes.borrow_mut().pop_front().expect("there").1;
                }
                Some(at) => {
                    let sleep = std::pin::pin!(rt.sleep_until(at));
                    select(sleep, std::pin::pin!(told)).await;
                }
                None if self.is_closed.get() => return Vec::new(),
                None => told.await,
            }
        }
    }
}

/// One end of a stream.
struct End {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
    filter: Option<Rc<RefCell<Filter>>>,
    is_near: bool,
}

impl Stream for End {
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>> {
        Box::pin(async { Ok(self.incoming.read().await) })
    }

    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if self.outgoing.is_closed.get() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let bytes = match &self.filter {
                None => bytes,
                Some(filter) => {
                    let node = if self.is_near { self.outgoing.from } else { self.outgoing.to };
                    let Place::Machine(node) = node else { unreachable!("of machines") };
                    let at = (self.outgoing.network.rt.now(), node);
                    let (on, back) = filter.borrow_mut().pass(at, self.is_near, &bytes);
                    if !back.is_empty() {
                        self.incoming.push(back);
                    }
                    on
                }
            };
            if !bytes.is_empty() {
                self.outgoing.push(bytes);
            }
            Ok(())
        })
    }

    fn close(&self) {
        self.incoming.close();
        self.outgoing.close();
    }
}

/// How long a connection attempt takes at most.
pub const CONNECT: Nanos = 3 * SECOND;
