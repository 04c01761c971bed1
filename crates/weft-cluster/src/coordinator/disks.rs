//! The pool's own disks as coordinator, for clusters with no third machine: Disk Paxos (Gafni and
//! Lamport, 2000), as sanlock has it.
//!
//! Each node has a *block* on each disk, which it alone writes, and all read. A change of the
//! record is one instance of Disk Paxos, and needs a majority of the disks:
//!
//! ```text
//!   phase 1   write "I try ballot 7" to my blocks, then read all blocks on these disks.
//!             Somebody tries a higher one: try again later, with a higher one still.
//!             Somebody has accepted a value: that of the highest ballot becomes mine.
//!   phase 2   write "I accept this value in ballot 7", then read all blocks once more.
//!             Nobody tries a higher ballot: the value is decided.
//!   last      write "this is decided", and my block is free for the next instance.
//! ```
//!
//! Any two majorities have a disk in common, and on it the later of two nodes reads what the
//! earlier has written. So no two values are decided in one instance. A value that was accepted
//! and not decided when its node died is completed by the next node that tries.
//!
//! *Who is alive.* Each block has a number that rises as long as its node lives. A node whose
//! number has not risen for the time of a lease, by the reader's own clock, is not alive. Clocks
//! are never compared.
//!
//! *What a crash leaves.* Blocks are pairs of frames (see `frame.rs`): a write that is torn leaves
//! the block as it was before, and it had not been confirmed. When both frames of a block are
//! damaged, its disk does not count for who reads it. A node that starts reads its own blocks from
//! a majority of disks, goes on with the newest, and writes it to a majority with a sequence
//! number above all that an earlier process may have left on a minority.
//!
//! *Limits.* Each node has a number of its own, and one process at a time uses it: a second one is
//! refused while the first is alive. A write of a process that died must not reach a disk after
//! the next process of the same node has started. Disks of the same machine and SANs keep to that.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::{Either, select};
use serde::{Deserialize, Serialize};
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rng, Rt};

use super::{Coordinator, CoordinatorError, CoordinatorFuture, Swap, Version, View};
use crate::clock::Clock;
use crate::frame::{self, Frame};
use crate::{Record, Session};

/// Nodes of a cluster, at most.
pub const NODES_MAX: u32 = 64;
/// Bytes of a block on a disk: two frames.
pub const BLOCK_BYTES: u64 = 2 * FRAME_BYTES as u64;

const FRAME_BYTES: usize = 64 << 10;
const MAGIC: [u8; 8] = *b"weftpaxo";
const VERSION: u32 = 1;
/// Rounds of a node that wait for a disk, at most: a disk that is further behind is not waited
/// for.
const ROUNDS_BEHIND_MAX: u32 = 2;

/// How disks are used.
#[derive(Debug, Clone)]
pub struct DiskLeaseConfig {
    /// Where the blocks begin on each disk, in bytes. They take `nodes` × [`BLOCK_BYTES`], which
    /// nothing else uses, and are zeros at first.
    pub offset: u64,
    /// How many nodes there may be.
    pub nodes: u32,
    /// This node's number, from 0.
    pub number: u32,
    /// How long a node counts as alive after its last sign.
    pub lease: Nanos,
    /// How long an operation may take.
    pub patience: Nanos,
    /// A random number.
    pub seed: u64,
}

/// A value, which its proposer knows by a random number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Value {
    nonce: u64,
    record: Record,
}

/// How far a node is in an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Ballot {
    /// The version that is to be decided.
    instance: u64,
    /// The highest ballot that the node has tried.
    tried: u64,
    /// The ballot in which it has accepted `value`; 0: none.
    accepted: u64,
    value: Option<Value>,
}

/// What a node has written last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Block {
    /// The process, if it has a lease.
    session: Option<Session>,
    /// Rises while it lives.
    beat: u64,
    /// The last version that it knows to be decided; 0: none.
    decided: u64,
    value: Option<Value>,
    ballot: Ballot,
}

impl Block {
    /// Takes over a later decision; the ballot of an earlier instance is of no use any more.
    fn learn(&mut self, other: &Self) {
        if other.decided > self.decided {
            self.decided = other.decided;
            self.value.clone_from(&other.value);
        }
        if self.ballot.instance <= self.decided {
            self.ballot = Ballot { instance: self.decided + 1, ..Ballot::default() };
        }
    }
}

/// A disk, to which this node's writes go one after the other.
struct Place {
    disk: Rc<dyn Disk>,
    turn: Semaphore,
    /// The highest sequence number whose write was begun.
    begun: Cell<u64>,
    /// The highest one that was written.
    written: Cell<u64>,
    behind: Cell<u32>,
}

/// The blocks that were read on one disk, by node.
type Blocks = Vec<(u64, Block)>;

/// What is known of another node's life.
struct Sign {
    session: Option<Session>,
    beat: u64,
    since: Nanos,
}

struct Shared {
    rt: Rt,
    clock: Rc<dyn Clock>,
    config: DiskLeaseConfig,
    places: Vec<Place>,
    own: RefCell<Block>,
    sequence: Cell<u64>,
    signs: RefCell<BTreeMap<usize, Sign>>,
    rng: RefCell<Rng>,
    /// One change at a time.
    proposing: Semaphore,
}

/// The record on the disks of a pool.
pub struct DiskCoordinator(Rc<Shared>);

impl std::fmt::Debug for DiskCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskCoordinator").field("config", &self.0.config).finish_non_exhaustive()
    }
}

fn unreachable(why: &str) -> CoordinatorError {
    CoordinatorError::Unreachable(why.to_owned())
}

const NO_MAJORITY: &str = "no majority of the disks answers in time";

impl DiskCoordinator {
    /// Starts to use the blocks of a node. If an earlier process of the node has left its lease,
    /// this waits as long as a lease lasts, to see that it is dead.
    ///
    /// # Errors
    /// No majority of the disks answers, the numbers make no sense, or another process uses the
    /// node's number.
    pub async fn open(
        rt: &Rt,
        clock: Rc<dyn Clock>,
        disks: Vec<Rc<dyn Disk>>,
        config: DiskLeaseConfig,
    ) -> Result<Self, CoordinatorError> {
        let refuse = |why: String| Err(CoordinatorError::Refused(why));
        if config.nodes == 0 || config.nodes > NODES_MAX || config.number >= config.nodes {
            let (number, nodes) = (config.number, config.nodes);
            return refuse(format!("node {number} of {nodes}: there are at most {NODES_MAX}"));
        }
        let end = config.offset + u64::from(config.nodes) * BLOCK_BYTES;
        if let Some(small) = disks.iter().find(|disk| disk.info().size_bytes < end) {
            return refuse(format!("{} is too small for the blocks", small.info().name));
        }
        let place = |disk| Place {
            disk,
            turn: Semaphore::new(1),
            begun: Cell::new(0),
            written: Cell::new(0),
            behind: Cell::new(0),
        };
        let coordinator = Self(Rc::new(Shared {
            rt: rt.clone(),
            clock,
            places: disks.into_iter().map(place).collect(),
            own: RefCell::default(),
            sequence: Cell::new(0),
            signs: RefCell::default(),
            rng: RefCell::new(Rng::new(config.seed)),
            proposing: Semaphore::new(1),
            config,
        }));
        let (_, left) = coordinator.recall().await?;
        if left.session.is_some() {
            let shared = &coordinator.0;
            shared.clock.sleep(shared.config.lease).await;
            let (_, now) = coordinator.recall().await?;
            if now.beat != left.beat || now.session != left.session {
                let number = shared.config.number;
                return refuse(format!("another process uses the node number {number}"));
            }
        }
        // What it had promised holds on.
        let (sequence, block) = coordinator.recall().await?;
        coordinator.0.sequence.set(((sequence >> 32) + 1) << 32);
        *coordinator.0.own.borrow_mut() = Block { session: None, ..block };
        coordinator.0.write_own().await?.ok_or_else(|| unreachable(NO_MAJORITY))?;
        Ok(coordinator)
    }

    /// This node's block, from a majority.
    async fn recall(&self) -> Result<(u64, Block), CoordinatorError> {
        let number = self.0.config.number as usize;
        let disks = self.0.round(None).await.ok_or_else(|| unreachable(NO_MAJORITY))?;
        let own = disks.into_iter().map(|blocks| blocks[number].clone());
        Ok(own.max_by_key(|(sequence, _)| *sequence).unwrap_or_default())
    }

    async fn view(&self) -> Result<View, CoordinatorError> {
        let disks = self.0.round(None).await.ok_or_else(|| unreachable(NO_MAJORITY))?;
        self.0.learn(&disks);
        let own = self.0.own.borrow();
        let record = own.value.as_ref().map(|value| value.record.clone());
        Ok(View { version: Version(own.decided), record, alive: self.0.alive() })
    }

    async fn beat(&self, session: Option<Session>) -> Result<(), CoordinatorError> {
        {
            let mut own = self.0.own.borrow_mut();
            own.session = session;
            own.beat += 1;
        }
        let disks = self.0.write_own().await?.ok_or_else(|| unreachable(NO_MAJORITY))?;
        self.0.learn(&disks);
        Ok(())
    }

    /// Runs the instance after `expected` until it is decided.
    async fn propose(&self, expected: Version, record: Record) -> Result<Swap, CoordinatorError> {
        let shared = &self.0;
        let _one = shared.proposing.acquire(1).await;
        let nonce = shared.rng.borrow_mut().next_u64();
        let (mine, instance) = (Value { nonce, record }, expected.0 + 1);
        let deadline = shared.clock.now().saturating_add(shared.config.patience);
        let (mut is_accepted, mut highest) = (false, 0);
        loop {
            match shared.attempt(instance, &mine, &mut highest, &mut is_accepted).await? {
                Progress::Decided(decided) if decided == Some(nonce) => {
                    return Ok(Swap::Done(Version(instance)));
                }
                Progress::Decided(_) => return Ok(Swap::Conflict),
                Progress::Beaten => {}
                Progress::Lost if is_accepted => {
                    return Err(CoordinatorError::Unknown(NO_MAJORITY.to_owned()));
                }
                Progress::Lost => return Err(unreachable(NO_MAJORITY)),
            }
            if shared.clock.now() >= deadline {
                let why = "other nodes change the record all the time";
                return Err(match is_accepted {
                    true => CoordinatorError::Unknown(why.to_owned()),
                    false => unreachable(why),
                });
            }
            // Of several that beat each other one should get through.
            let pause = shared.rng.borrow_mut().within(1, 40) * MILLISECOND;
            shared.clock.sleep(pause).await;
        }
    }
}

/// What an attempt came to.
enum Progress {
    /// The instance is decided, by the value with this nonce; `None`: a later one is, too.
    Decided(Option<u64>),
    /// Another node tries a higher ballot.
    Beaten,
    /// There was no majority.
    Lost,
}

impl Shared {
    fn majority(&self) -> usize {
        self.places.len() / 2 + 1
    }

    /// On each disk: writes a frame, if one is given, and then reads all blocks. Gives what was
    /// read on the disks of a majority, or of more; `None` if there is none in time.
    async fn round(self: &Rc<Self>, own: Option<(u64, Frozen)>) -> Option<Vec<Blocks>> {
        let (found, news) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Notify::default()));
        let pending = Rc::new(Cell::new(0_usize));
        for place in 0..self.places.len() {
            if self.places[place].behind.get() >= ROUNDS_BEHIND_MAX {
                continue;
            }
            self.places[place].behind.update(|behind| behind + 1);
            pending.set(pending.get() + 1);
            let (shared, own) = (self.clone(), own.clone());
            let (found, news, pending) = (found.clone(), news.clone(), pending.clone());
            drop(self.rt.spawn(async move {
                let place = &shared.places[place];
                let turn = place.turn.acquire(1).await;
                let blocks = shared.visit(place, own).await;
                drop(turn);
                place.behind.update(|behind| behind - 1);
                found.borrow_mut().extend(blocks);
                pending.set(pending.get() - 1);
                news.notify_all();
            }));
        }
        let mut limit = self.clock.sleep(self.config.patience);
        loop {
            let more = news.wait();
            let have = found.borrow().len();
            if have >= self.majority() {
                return Some(found.take());
            }
            if have + pending.get() < self.majority() {
                return None;
            }
            match select(Box::pin(more), limit).await {
                Either::Left(((), rest)) => limit = rest,
                Either::Right(_) => return None,
            }
        }
    }

    async fn visit(&self, place: &Place, own: Option<(u64, Frozen)>) -> Option<Blocks> {
        let own_at = self.config.offset + u64::from(self.config.number) * BLOCK_BYTES;
        if let Some((sequence, frame)) = own {
            if sequence > place.begun.replace(sequence.max(place.begun.get())) {
                let opts = WriteOpts { class: Class::Urgent, fua: true };
                for at in [own_at, own_at + FRAME_BYTES as u64] {
                    place.disk.write(at, frame.clone(), opts).await.ok()?;
                }
                place.written.set(sequence);
            }
            // A later state of the block that came first says all that this one does, if it is
            // there.
            if place.written.get() < sequence {
                return None;
            }
        }
        let mut blocks = Vec::new();
        for number in 0..self.config.nodes {
            let at = self.config.offset + u64::from(number) * BLOCK_BYTES;
            let buf = Buf::new(2 * FRAME_BYTES);
            let (result, buf) = place.disk.read(at, buf, Class::Urgent).await;
            result.ok()?;
            let (first, second) = buf.split_at(FRAME_BYTES);
            let frames = [first, second].map(|bytes| frame::decode(&MAGIC, VERSION, bytes));
            blocks.push(newest(&frames)?);
        }
        Some(blocks)
    }

    async fn write_own(self: &Rc<Self>) -> Result<Option<Vec<Blocks>>, CoordinatorError> {
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        let contents = serde_json::to_vec(&*self.own.borrow()).expect("a block can be written");
        let frame = frame::encode(&MAGIC, VERSION, sequence, &contents, FRAME_BYTES);
        let too_long =
            || CoordinatorError::Refused("the record is too long for a block".to_owned());
        let frame = frame.ok_or_else(too_long)?.freeze();
        Ok(self.round(Some((sequence, frame))).await)
    }

    /// Takes over what others know to be decided, and notes who gives signs of life.
    fn learn(&self, disks: &[Blocks]) {
        let now = self.clock.now();
        let mut signs = self.signs.borrow_mut();
        let mut newest: BTreeMap<usize, (u64, &Block)> = BTreeMap::new();
        for (number, (sequence, block)) in disks.iter().flat_map(|blocks| blocks.iter().enumerate())
        {
            self.own.borrow_mut().learn(block);
            let known = newest.entry(number).or_insert((*sequence, block));
            if *sequence > known.0 {
                *known = (*sequence, block);
            }
        }
        for (number, (_, block)) in newest {
            let (session, beat) = (block.session.clone(), block.beat);
            let sign =
                signs.entry(number).or_insert_with(|| Sign { session: None, beat: 0, since: now });
            if (sign.beat, &sign.session) != (beat, &session) {
                *sign = Sign { session, beat, since: now };
            }
        }
    }

    fn alive(&self) -> BTreeSet<Session> {
        let now = self.clock.now();
        let is_fresh = |sign: &&Sign| now.saturating_sub(sign.since) <= self.config.lease;
        let signs = self.signs.borrow();
        signs.values().filter(is_fresh).filter_map(|sign| sign.session.clone()).collect()
    }

    /// One attempt to decide an instance.
    async fn attempt(
        self: &Rc<Self>,
        instance: u64,
        mine: &Value,
        highest: &mut u64,
        is_accepted: &mut bool,
    ) -> Result<Progress, CoordinatorError> {
        let ballot = {
            let mut own = self.own.borrow_mut();
            let known = own.clone();
            own.learn(&known);
            if own.decided >= instance {
                return Ok(Progress::Decided(self.decision(&own, instance)));
            }
            if own.ballot.instance != instance {
                let decided = own.decided;
                let why = format!("version {} is not known here, only {decided}", instance - 1);
                return Err(CoordinatorError::Refused(why));
            }
            let nodes = u64::from(self.config.nodes);
            let above = (*highest).max(own.ballot.tried);
            let ballot = (above / nodes + 1) * nodes + u64::from(self.config.number);
            own.ballot.tried = ballot;
            ballot
        };
        let Some(disks) = self.write_own().await? else { return Ok(Progress::Lost) };
        if let Some(progress) = self.judge(&disks, instance, ballot, highest) {
            return Ok(progress);
        }
        // Of what was accepted before, the value of the highest ballot must be kept.
        let own = self.own.borrow().ballot.clone();
        let others = disks.iter().flatten().map(|(_, block)| &block.ballot);
        let accepted = others.chain([&own]).filter(|other| other.instance == instance);
        let accepted = accepted.filter(|other| other.accepted > 0);
        let before = accepted.max_by_key(|other| other.accepted).and_then(|b| b.value.clone());
        let value = before.unwrap_or_else(|| mine.clone());
        *is_accepted |= value.nonce == mine.nonce;
        {
            let mut own = self.own.borrow_mut();
            if own.ballot.instance != instance {
                return Ok(Progress::Decided(self.decision(&own, instance)));
            }
            own.ballot.accepted = ballot;
            own.ballot.value = Some(value.clone());
        }
        let Some(disks) = self.write_own().await? else { return Ok(Progress::Lost) };
        if let Some(progress) = self.judge(&disks, instance, ballot, highest) {
            return Ok(progress);
        }
        let nonce = value.nonce;
        let decided = Block { decided: instance, value: Some(value), ..Block::default() };
        self.own.borrow_mut().learn(&decided);
        // Who reads a majority of the disks afterwards must find it.
        match self.write_own().await? {
            Some(disks) => {
                self.learn(&disks);
                Ok(Progress::Decided(Some(nonce)))
            }
            None => Ok(Progress::Lost),
        }
    }

    /// Whether the blocks that were read end an attempt.
    fn judge(
        &self,
        disks: &[Blocks],
        instance: u64,
        ballot: u64,
        highest: &mut u64,
    ) -> Option<Progress> {
        self.learn(disks);
        let own = self.own.borrow();
        if own.decided >= instance {
            return Some(Progress::Decided(self.decision(&own, instance)));
        }
        let others = disks.iter().flatten().map(|(_, block)| &block.ballot);
        let tried = others.filter(|other| other.instance == instance).map(|other| other.tried);
        *highest = tried.max().unwrap_or(0).max(*highest);
        (*highest > ballot).then_some(Progress::Beaten)
    }

    /// The nonce of the value that was decided in `instance`, if that was the last one.
    fn decision(&self, own: &Block, instance: u64) -> Option<u64> {
        let value = own.value.as_ref().filter(|_| own.decided == instance);
        value.map(|value| value.nonce)
    }
}

/// The newer frame of a pair; `None`: neither can be read.
fn newest(frames: &[Frame; 2]) -> Option<(u64, Block)> {
    let sound = frames.iter().filter_map(|frame| match frame {
        Frame::Sound(sequence, contents) => {
            Some((*sequence, serde_json::from_slice(contents).ok()?))
        }
        _ => None,
    });
    match sound.max_by_key(|(sequence, _)| *sequence) {
        Some(newest) => Some(newest),
        // The first write ever may have been torn.
        None => (frames[1] == Frame::Blank).then(<(u64, Block)>::default),
    }
}

impl Coordinator for DiskCoordinator {
    fn read(&self) -> CoordinatorFuture<'_, View> {
        Box::pin(self.view())
    }

    fn compare_and_set(&self, expected: Version, record: Record) -> CoordinatorFuture<'_, Swap> {
        Box::pin(self.propose(expected, record))
    }

    fn keep_alive<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        Box::pin(self.beat(Some(session.clone())))
    }

    fn end_lease<'a>(&'a self, _: &'a Session) -> CoordinatorFuture<'a, ()> {
        Box::pin(self.beat(None))
    }

    fn changed<'a>(&'a self, _: &'a View) -> CoordinatorFuture<'a, ()> {
        Box::pin(async {
            self.0.clock.sleep(self.0.config.lease / 8).await;
            Ok(())
        })
    }
}
