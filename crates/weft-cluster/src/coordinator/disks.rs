//! The pool's own disks as coordinator, for clusters with no third machine: Disk Paxos (Gafni and
//! Lamport, 2000), as sanlock has it.
//!
//! Each node has a *block* on each disk, which only it writes, and all read. A change of the record
//! is one instance of Disk Paxos, and needs a majority of the disks:
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
//! *Which disks vote.* A disk that is blank looks as if nobody had promised anything. So each disk
//! of a group has a *marker*, from [`DiskCoordinator::set_up`] on, and one without it, or with that
//! of another group, does not count. A disk that was replaced is set up again from a majority of
//! the others ([`DiskCoordinator::replace`]):
//!
//! ```text
//!   write "the disk's marker is number 5 from now on" to my blocks on a majority, then read all
//!   blocks there; write the newest block of each node to the new disk, and last marker 5.
//! ```
//!
//! A node that reads this note counts a disk with another marker no more. Each writes before it
//! reads: so either the new disk gets what a node has written, or the node finds the note, and does
//! not count the disk. A disk counts with the marker that it had before the node wrote and after.
//!
//! *One process of a node.* Blocks name the process that wrote them. A process that starts writes
//! its block, waits as long as a lease lasts, and reads it again; of several that start together at
//! most one finds only its own. Before each write a process looks whether the block is still its
//! own; when another has it, it ends.
//!
//! *What a crash leaves.* Blocks are pairs of frames (see `frame.rs`): a write that is torn leaves
//! the old block, and it had not been confirmed. When both frames of a block are damaged, its disk
//! does not count for who reads it. A node that starts reads its own blocks from a majority of
//! disks, goes on with the newest, and writes it to a majority with a sequence number above all
//! that an earlier process may have left on a minority. A disk that was being set up anew has no
//! marker.
//!
//! *Limits.* Each node has a number of its own. A write of a process that died must not reach a
//! disk after the next process of the same node has started. Disks of the same machine and SANs
//! keep to that. One node at a time may set up a disk anew: the keeper.

mod block;
mod marker;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rng, Rt};

use super::{Coordinator, CoordinatorError, CoordinatorFuture, Swap, Version, View};
use crate::clock::Clock;
use crate::{Record, Session};
use block::{Block, Blocks, FRAME_BYTES, Value};
use marker::{Marker, group_of, read_marker, write_marker};

/// Nodes of a cluster, at most.
pub const NODES_MAX: u32 = 64;
/// Bytes of a block on a disk: two frames.
pub const BLOCK_BYTES: u64 = 2 * FRAME_BYTES as u64;

/// Bytes on each disk for a cluster of so many nodes: the marker, and their blocks.
pub const fn area_bytes(nodes: u32) -> u64 {
    (nodes as u64 + 1) * BLOCK_BYTES
}

/// Rounds of a node that wait for a disk, at most: a disk that is further behind is not waited
/// for.
const ROUNDS_BEHIND_MAX: u32 = 2;

/// How disks are used.
#[derive(Debug, Clone)]
pub struct DiskLeaseConfig {
    /// Where the marker is on each disk, in bytes, and after it the blocks: [`area_bytes`], which
    /// nothing else uses.
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

/// A disk, to which this node's writes go one after the other.
struct Place {
    disk: Rc<dyn Disk>,
    turn: Semaphore,
    /// The highest sequence number whose write was started.
    begun: Cell<u64>,
    /// The highest one that was written.
    written: Cell<u64>,
    behind: Cell<u32>,
}

/// What was read on one disk.
struct Visit {
    place: usize,
    marker: Marker,
    blocks: Blocks,
}

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
    /// Below it are those of processes before this one; `None` until it has read them.
    first_sequence: Cell<Option<u64>>,
    /// Another process writes this node's block.
    is_ousted: Cell<bool>,
    /// The group of the disks.
    group: u64,
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
    /// Starts to use the blocks of a node, on disks that were [`set_up`](Self::set_up). This takes
    /// as long as a lease lasts, to see that no other process of the node starts, and twice that if
    /// an earlier process has left its lease, to see that it is dead.
    ///
    /// # Errors
    /// No majority of the disks answers or was set up, the numbers make no sense, or another
    /// process uses the node's number.
    pub async fn open(
        rt: &Rt,
        clock: Rc<dyn Clock>,
        disks: Vec<Rc<dyn Disk>>,
        config: DiskLeaseConfig,
    ) -> Result<Self, CoordinatorError> {
        check(&disks, &config)?;
        let group = group_of(&disks, &config).await?;
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
            first_sequence: Cell::new(None),
            is_ousted: Cell::new(false),
            group,
            signs: RefCell::default(),
            rng: RefCell::new(Rng::new(config.seed)),
            proposing: Semaphore::new(1),
            config,
        }));
        coordinator.start().await?;
        Ok(coordinator)
    }

    /// Takes over the block of the node from an earlier process.
    async fn start(&self) -> Result<(), CoordinatorError> {
        let shared = &self.0;
        let process = shared.rng.borrow_mut().next_u64();
        loop {
            let (_, left) = self.recall().await?;
            if left.session.is_some() {
                shared.clock.sleep(shared.config.lease).await;
                let (_, now) = self.recall().await?;
                if (now.beat, &now.session) != (left.beat, &left.session) {
                    return Err(self.ousted());
                }
            }
            let begin = shared.clock.now();
            // What it had promised holds on.
            let (sequence, block) = self.recall().await?;
            let first = ((sequence >> 32) + 1) << 32;
            shared.sequence.set(first);
            // From now on it finds what another process writes.
            shared.first_sequence.set(Some(first));
            *shared.own.borrow_mut() = Block { session: None, process: Some(process), ..block };
            shared.write_own().await?.ok_or_else(|| unreachable(NO_MAJORITY))?;
            let settle = shared.config.lease + shared.config.patience;
            if shared.clock.now().saturating_sub(begin) > settle / 2 {
                // One that started together with this one may have looked already.
                continue;
            }
            shared.clock.sleep(settle).await;
            let visits = shared.round(None).await;
            shared.check_ousted()?;
            let visits = visits.ok_or_else(|| unreachable(NO_MAJORITY))?;
            let number = shared.config.number as usize;
            if !visits.iter().any(|visit| visit.blocks[number].1.process == Some(process)) {
                return Err(self.ousted());
            }
            return Ok(());
        }
    }

    fn ousted(&self) -> CoordinatorError {
        self.0.is_ousted.set(true);
        ousted(self.0.config.number)
    }

    /// Makes the disks of a pool the voters of a new group: all of them must work, and their areas
    /// must hold nothing but zeros. `group` is a random number.
    ///
    /// # Errors
    /// An area holds something, or a disk failed.
    pub async fn set_up(
        disks: &[Rc<dyn Disk>],
        config: &DiskLeaseConfig,
        group: u64,
    ) -> Result<(), CoordinatorError> {
        check(disks, config)?;
        marker::set_up(disks, config, group).await
    }

    /// Makes the disk of this place, which was replaced or has lost what it had, a voter again,
    /// with what a majority of the disks knows. One node at a time may do so.
    ///
    /// # Errors
    /// No majority of the other disks answers, or the disk failed.
    pub async fn replace(&self, place: usize) -> Result<(), CoordinatorError> {
        let shared = &self.0;
        let target = shared.places.get(place);
        let target = target
            .ok_or_else(|| CoordinatorError::Refused(format!("there is no disk number {place}")))?;
        let number = {
            let mut own = shared.own.borrow_mut();
            let number = own.markers.entry(place).or_default();
            *number += 1;
            *number
        };
        // From now on nobody counts the disk, until it has this marker.
        let visits = shared.write_own().await?.ok_or_else(|| unreachable(NO_MAJORITY))?;
        shared.learn(&visits);
        if shared.own.borrow().markers.get(&place) != Some(&number) {
            let why = "another node sets up this disk";
            return Err(CoordinatorError::Refused(why.to_owned()));
        }
        let _turn = target.turn.acquire(1).await;
        let failed = |error: weft_disk::DiskError| unreachable(&error.to_string());
        let opts = WriteOpts { class: Class::Urgent, fua: true };
        let config = &shared.config;
        target.disk.write_zeroes(config.offset, BLOCK_BYTES, opts).await.map_err(failed)?;
        for node in 0..config.nodes {
            let of_node = visits.iter().map(|visit| &visit.blocks[node as usize]);
            let newest = of_node.max_by_key(|(sequence, _)| *sequence);
            let (sequence, block) = newest.expect("a majority is not empty");
            let frame = block::encode(*sequence, block)?;
            let at = config.block_at(node);
            for at in [at, at + FRAME_BYTES as u64] {
                target.disk.write(at, frame.clone(), opts).await.map_err(failed)?;
            }
        }
        let (group, disks, nodes) = (shared.group, shared.places.len(), config.nodes);
        let marker = Marker { group, disks, nodes, place, number };
        write_marker(&*target.disk, config.offset, &marker).await.map_err(failed)?;
        target.written.set(0);
        Ok(())
    }

    /// This node's block, from a majority.
    async fn recall(&self) -> Result<(u64, Block), CoordinatorError> {
        let number = self.0.config.number as usize;
        let disks = self.0.round(None).await.ok_or_else(|| unreachable(NO_MAJORITY))?;
        let own = disks.into_iter().map(|visit| visit.blocks[number].clone());
        Ok(own.max_by_key(|(sequence, _)| *sequence).unwrap_or_default())
    }

    async fn view(&self) -> Result<View, CoordinatorError> {
        self.0.check_ousted()?;
        let disks = self.0.round(None).await.ok_or_else(|| unreachable(NO_MAJORITY))?;
        self.0.learn(&disks);
        self.0.check_ousted()?;
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

    /// On each disk: writes a frame, if one is given, and then reads all blocks. Returns the blocks
    /// read on the disks of a majority, or of more; `None` if there is none in time.
    async fn round(self: &Rc<Self>, own: Option<(u64, Frozen)>) -> Option<Vec<Visit>> {
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
                let (number, place) = (place, &shared.places[place]);
                let turn = place.turn.acquire(1).await;
                let visit = shared.visit(number, place, own).await;
                drop(turn);
                place.behind.update(|behind| behind - 1);
                found.borrow_mut().extend(visit);
                pending.set(pending.get() - 1);
                news.notify_all();
            }));
        }
        let mut limit = self.clock.sleep(self.config.patience);
        loop {
            let more = news.wait();
            let have = {
                let mut found = found.borrow_mut();
                self.drop_replaced(&mut found);
                found.len()
            };
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

    /// Drops what was read on disks that are known to have been replaced since.
    fn drop_replaced(&self, visits: &mut Vec<Visit>) {
        let mut numbers = self.own.borrow().markers.clone();
        for (_, block) in visits.iter().flat_map(|visit| &visit.blocks) {
            for (place, number) in &block.markers {
                let known = numbers.entry(*place).or_default();
                *known = (*known).max(*number);
            }
        }
        let is_current =
            |visit: &Visit| numbers.get(&visit.place).is_none_or(|n| *n == visit.marker.number);
        visits.retain(is_current);
    }

    /// The disk's marker, if it belongs to the group.
    async fn marker(&self, number: usize, disk: &dyn Disk) -> Option<Marker> {
        let marker = read_marker(disk, self.config.offset).await?;
        let is_own = marker.group == self.group
            && marker.place == number
            && marker.disks == self.places.len()
            && marker.nodes == self.config.nodes;
        is_own.then_some(marker)
    }

    async fn block(&self, disk: &dyn Disk, node: u32) -> Option<(u64, Block)> {
        let buf = Buf::new(2 * FRAME_BYTES);
        let (result, buf) = disk.read(self.config.block_at(node), buf, Class::Urgent).await;
        result.ok()?;
        block::decode(&buf)
    }

    /// Notes it if a block of this node is that of a later process.
    fn check_block(&self, sequence: u64, block: &Block) {
        if let Some(first) = self.first_sequence.get()
            && sequence >= first
            && block.process != self.own.borrow().process
        {
            self.is_ousted.set(true);
        }
    }

    fn check_ousted(&self) -> Result<(), CoordinatorError> {
        if self.is_ousted.get() { Err(ousted(self.config.number)) } else { Ok(()) }
    }

    async fn visit(
        &self,
        number: usize,
        place: &Place,
        own: Option<(u64, Frozen)>,
    ) -> Option<Visit> {
        let disk = &*place.disk;
        let before = self.marker(number, disk).await?;
        if let Some((sequence, frame)) = own {
            if sequence > place.begun.get() {
                // An own block that cannot be read is written over.
                if let Some((found, block)) = self.block(disk, self.config.number).await {
                    self.check_block(found, &block);
                }
                if self.is_ousted.get() {
                    return None;
                }
                place.begun.set(sequence);
                let at = self.config.block_at(self.config.number);
                let opts = WriteOpts { class: Class::Urgent, fua: true };
                for at in [at, at + FRAME_BYTES as u64] {
                    disk.write(at, frame.clone(), opts).await.ok()?;
                }
                place.written.set(sequence);
            }
            // A later state of the first block contains all of this one, if it is there.
            if place.written.get() < sequence {
                return None;
            }
        }
        let mut blocks = Vec::new();
        for node in 0..self.config.nodes {
            blocks.push(self.block(disk, node).await?);
        }
        let (sequence, block) = &blocks[self.config.number as usize];
        self.check_block(*sequence, block);
        // Had it been replaced meanwhile, what was written would be gone.
        let marker = self.marker(number, disk).await.filter(|after| *after == before)?;
        (!self.is_ousted.get()).then_some(Visit { place: number, marker, blocks })
    }

    async fn write_own(self: &Rc<Self>) -> Result<Option<Vec<Visit>>, CoordinatorError> {
        self.check_ousted()?;
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        let frame = block::encode(sequence, &self.own.borrow())?;
        let visits = self.round(Some((sequence, frame))).await;
        self.check_ousted()?;
        Ok(visits)
    }

    /// Takes over decisions that other nodes know, and notes which nodes give signs of life.
    fn learn(&self, disks: &[Visit]) {
        let now = self.clock.now();
        let mut signs = self.signs.borrow_mut();
        let mut newest: BTreeMap<usize, (u64, &Block)> = BTreeMap::new();
        let blocks = disks.iter().flat_map(|visit| visit.blocks.iter().enumerate());
        for (number, (sequence, block)) in blocks {
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
        // Of the values accepted before, the one of the highest ballot must be kept.
        let own = self.own.borrow().ballot.clone();
        let others = disks.iter().flat_map(|visit| &visit.blocks).map(|(_, block)| &block.ballot);
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
        disks: &[Visit],
        instance: u64,
        ballot: u64,
        highest: &mut u64,
    ) -> Option<Progress> {
        self.learn(disks);
        let own = self.own.borrow();
        if own.decided >= instance {
            return Some(Progress::Decided(self.decision(&own, instance)));
        }
        let others = disks.iter().flat_map(|visit| &visit.blocks).map(|(_, block)| &block.ballot);
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

impl DiskLeaseConfig {
    /// Where the block of a node is.
    fn block_at(&self, node: u32) -> u64 {
        self.offset + (u64::from(node) + 1) * BLOCK_BYTES
    }
}

fn ousted(number: u32) -> CoordinatorError {
    CoordinatorError::Refused(format!("another process uses the node number {number}"))
}

fn check(disks: &[Rc<dyn Disk>], config: &DiskLeaseConfig) -> Result<(), CoordinatorError> {
    let refuse = |why: String| Err(CoordinatorError::Refused(why));
    if config.nodes == 0 || config.nodes > NODES_MAX || config.number >= config.nodes {
        let (number, nodes) = (config.number, config.nodes);
        return refuse(format!("node {number} of {nodes}: there are at most {NODES_MAX}"));
    }
    let end = config.offset + area_bytes(config.nodes);
    match disks.iter().find(|disk| disk.info().size_bytes < end) {
        Some(small) => refuse(format!("{} is too small for the blocks", small.info().name)),
        None => Ok(()),
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
