//! A keeper of the metadata that nodes reach over a simulated network: it delays bytes, cuts them
//! into pieces, ends connections in the middle of a message, swallows what is sent, and the keeper
//! dies and another one starts. All of it is drawn from a seed.
//!
//! Messages of one connection stay in their order; those of several connections do not.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};

use super::links::{Connector, KeeperServer, Stream};
use futures_util::future::select;
use weft_array::Array;
use weft_disk::IoFuture;
use weft_random::Rng;
use weft_rt::sync::{Notify, oneshot};
use weft_rt::{MILLISECOND, Nanos, Rt};
use weft_wire::{Answer, Frames, FromKeeper, Part, Question, ToKeeper};

/// A rule that a network breaks, so that tests must find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    None,
    /// Some parts of batches do not reach the keeper, and are answered.
    PartLost,
    /// Some parts are put into a later batch once more.
    BatchRepeated,
    /// A batch counts as durable as soon as its end was sent.
    DurableEarly,
    /// Early commits do not reach the keeper, and are answered.
    EarlyLost,
    /// The keeper does not hear that early commits are over.
    EarlyEndless,
}

/// Hears of a keeper that starts.
type OnStart = Rc<dyn Fn(&KeeperServer)>;

/// Bytes on their way in one direction.
struct Pipe {
    rt: Rt,
    bytes: RefCell<VecDeque<(Nanos, Vec<u8>)>>,
    is_closed: Cell<bool>,
    /// Whether it swallows what is sent.
    is_hole: Cell<bool>,
    told: Notify,
}

impl Pipe {
    fn new(rt: &Rt) -> Rc<Self> {
        let (bytes, told) = (RefCell::default(), Notify::default());
        let (is_closed, is_hole) = (Cell::new(false), Cell::new(false));
        Rc::new(Self { rt: rt.clone(), bytes, is_closed, is_hole, told })
    }

    fn close(&self) {
        self.is_closed.set(true);
        self.told.notify_all();
    }

    fn push(&self, delay: Nanos, bytes: Vec<u8>) {
        if self.is_hole.get() {
            return;
        }
        let last = self.bytes.borrow().back().map_or(0, |(at, _)| *at);
        self.bytes.borrow_mut().push_back((last.max(self.rt.now() + delay), bytes));
        self.told.notify_all();
    }

    async fn read(&self) -> Vec<u8> {
        loop {
            let told = self.told.wait();
            let first = self.bytes.borrow().front().map(|(at, _)| *at);
            match first {
                Some(at) if at <= self.rt.now() => {
                    return self.bytes.borrow_mut().pop_front().expect("there").1;
                }
                Some(at) => {
                    let sleep = std::pin::pin!(self.rt.sleep(at - self.rt.now()));
                    select(sleep, std::pin::pin!(told)).await;
                }
                None if self.is_closed.get() => return Vec::new(),
                None => told.await,
            }
        }
    }
}

/// One end of a connection.
struct End {
    network: Weak<Network>,
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
    /// Of the node's end: what it sends is looked at.
    watched: Option<RefCell<Watched>>,
}

#[derive(Default)]
struct Watched {
    frames: Frames,
    before: Vec<Part>,
}

impl End {
    /// What goes to the keeper in place of what a node sends.
    fn broken(&self, network: &Network, bytes: &[u8]) -> Vec<u8> {
        let Some(watched) = &self.watched else { return bytes.to_vec() };
        let Watched { frames, before } = &mut *watched.borrow_mut();
        frames.push(bytes);
        let mut out = Vec::new();
        while let Some(message) = ToKeeper::next(frames).expect("a node sends sound messages") {
            let chance = network.rng.borrow_mut().chance(30);
            let answer = |number, answer| {
                let answer = FromKeeper::Answer { number, answer };
                self.incoming.push(0, answer.to_bytes());
            };
            match (&message, network.canary) {
                (ToKeeper::Ask { number, question: Question::Part(_) }, Canary::PartLost)
                    if chance =>
                {
                    answer(*number, Answer::Taken);
                    continue;
                }
                (ToKeeper::Ask { number, question: Question::End(_) }, Canary::DurableEarly) => {
                    answer(*number, Answer::Durable);
                }
                (ToKeeper::Ask { number, question: Question::Early(_) }, Canary::EarlyLost) => {
                    answer(*number, Answer::Early(true));
                    continue;
                }
                (ToKeeper::EarlyDone(_), Canary::EarlyEndless) => continue,
                (ToKeeper::Ask { question: Question::Part(part), .. }, Canary::BatchRepeated) => {
                    before.push(part.clone());
                }
                (ToKeeper::Ask { question: Question::End(end), .. }, Canary::BatchRepeated)
                    if before.iter().any(|part| part.batch < end.batch) =>
                {
                    before.retain(|part| part.batch < end.batch);
                    let at = network.rng.borrow_mut().index(before.len());
                    let part = Part { batch: end.batch, ..before[at].clone() };
                    let number = u64::MAX;
                    out.extend(ToKeeper::Ask { number, question: Question::Part(part) }.to_bytes());
                }
                _ => {}
            }
            out.extend(message.to_bytes());
        }
        out
    }
}

impl Stream for End {
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>> {
        Box::pin(async { Ok(self.incoming.read().await) })
    }

    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let network = self.network.upgrade().filter(|_| !self.outgoing.is_closed.get());
            let network = network.ok_or(io::ErrorKind::ConnectionReset)?;
            let bytes = match network.canary {
                Canary::None => bytes,
                _ => self.broken(&network, &bytes),
            };
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let mut rng = network.rng.borrow_mut();
                let len = if rng.chance(70) { rest.len() } else { 1 + rng.index(rest.len()) };
                let (piece, after) = rest.split_at(len);
                let delay = rng.below(4) * rng.below(MILLISECOND);
                drop(rng);
                self.outgoing.push(delay, piece.to_vec());
                rest = after;
            }
            Ok(())
        })
    }

    fn close(&self) {
        self.incoming.close();
        self.outgoing.close();
    }
}

/// The network, and the keeper.
pub struct Network {
    rt: Rt,
    file_system: [u8; 16],
    cache_bytes: u64,
    canary: Canary,
    rng: RefCell<Rng>,
    array: RefCell<Option<Array>>,
    /// The keeper, and the domain of its tasks.
    keeper: RefCell<Option<(Rt, KeeperServer)>>,
    pipes: RefCell<Vec<Rc<Pipe>>>,
    /// Called with each keeper that starts.
    on_start: RefCell<Option<OnStart>>,
    me: Weak<Self>,
    /// How often a connection was cut, and a keeper started.
    pub cuts: Cell<u64>,
    pub keepers: Cell<u64>,
}

impl Network {
    pub fn new(
        rt: &Rt,
        file_system: [u8; 16],
        cache_bytes: u64,
        seed: u64,
        canary: Canary,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            rt: rt.clone(),
            file_system,
            cache_bytes,
            canary,
            rng: RefCell::new(Rng::new(seed)),
            array: RefCell::default(),
            keeper: RefCell::default(),
            pipes: RefCell::default(),
            on_start: RefCell::default(),
            me: me.clone(),
            cuts: Cell::new(0),
            keepers: Cell::new(0),
        })
    }

    /// `told` is called with each keeper that starts from now on.
    pub fn on_start(&self, told: impl Fn(&KeeperServer) + 'static) {
        *self.on_start.borrow_mut() = Some(Rc::new(told));
    }

    /// A keeper of the metadata on this array starts, unless one runs.
    pub async fn start(&self, array: &Array) {
        *self.array.borrow_mut() = Some(array.clone());
        self.start_again().await;
    }

    /// The array of the keepers.
    pub fn array(&self) -> Array {
        self.array.borrow().clone().expect("it was started")
    }

    /// The keeper that runs.
    pub fn keeper(&self) -> KeeperServer {
        self.keeper.borrow().as_ref().expect("it runs").1.clone()
    }

    /// Does something in the process of the keeper that runs. None: there is none, or it died.
    pub async fn at_keeper<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        act: impl FnOnce(KeeperServer) -> F,
    ) -> Option<T> {
        let (rt, acting) = {
            let keeper = self.keeper.borrow();
            let (rt, keeper) = keeper.as_ref()?;
            (rt.clone(), act(keeper.clone()))
        };
        let (done, wait) = oneshot();
        drop(rt.spawn(async move { done.send(acting.await) }));
        wait.await
    }

    async fn start_again(&self) {
        let array = self.array();
        if self.keeper.borrow().is_some() {
            return;
        }
        let rt = self.rt.domain(|| {});
        let opened = KeeperServer::open(&rt, array, self.file_system, self.cache_bytes).await;
        let opened = opened.expect("opened");
        self.on_start.borrow().iter().for_each(|told| told(&opened));
        *self.keeper.borrow_mut() = Some((rt, opened));
        self.keepers.set(self.keepers.get() + 1);
    }

    /// The keeper dies where it stands. What it has in flight ends before another one may start:
    /// that is what a fence is for.
    pub async fn kill(&self) {
        let keeper = self.keeper.borrow_mut().take();
        if let Some((rt, keeper)) = keeper {
            rt.fail_domain();
            drop(keeper);
            self.cut();
            self.rt.sleep(200 * MILLISECOND).await;
        }
    }

    /// All connections end. Some of what is on its way still comes.
    pub fn cut(&self) {
        self.cuts.set(self.cuts.get() + 1);
        for pipe in self.pipes.take() {
            let left = self.rng.borrow_mut().index(pipe.bytes.borrow().len() + 1);
            pipe.bytes.borrow_mut().truncate(left);
            pipe.close();
        }
    }

    /// One direction of all connections swallows what is sent from now on.
    fn swallow(&self) {
        let direction = self.rng.borrow_mut().index(2);
        let pipes = self.pipes.borrow();
        pipes.iter().skip(direction).step_by(2).for_each(|pipe| pipe.is_hole.set(true));
    }

    /// Something happens to the network or the keeper.
    pub async fn trouble(&self) {
        let what = self.rng.borrow_mut().below(8);
        match what {
            0..4 => self.cut(),
            4 => self.swallow(),
            _ => {
                self.kill().await;
                self.start_again().await;
            }
        }
    }

    /// Trouble at random times, for ever.
    pub async fn storm(self: Rc<Self>, every: Nanos) {
        loop {
            let pause = self.rng.borrow_mut().below(2 * every);
            self.rt.sleep(pause).await;
            self.trouble().await;
        }
    }
}

impl Connector for Network {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        Box::pin(async {
            let delay = self.rng.borrow_mut().below(3 * MILLISECOND);
            self.rt.sleep(delay).await;
            let keeper = self.keeper.borrow();
            let (rt, keeper) = keeper.as_ref().ok_or(io::ErrorKind::ConnectionRefused)?;
            let (there, back) = (Pipe::new(&self.rt), Pipe::new(&self.rt));
            self.pipes.borrow_mut().extend([there.clone(), back.clone()]);
            let (network, watched) = (self.me.clone(), Some(RefCell::default()));
            let near = End { network, incoming: back.clone(), outgoing: there.clone(), watched };
            let network = self.me.clone();
            let far = End { network, incoming: there, outgoing: back, watched: None };
            let keeper = keeper.clone();
            drop(rt.spawn(async move { keeper.serve(Rc::new(far)).await }));
            Ok(Rc::new(near) as Rc<dyn Stream>)
        })
    }
}
