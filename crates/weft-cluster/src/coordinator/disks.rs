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
//! *Numbers.* A node's number, and so its block, goes with its name, which its block has: a node
//! with a new name takes the first block that has none (`numbers.rs`). Number 0 is for commands,
//! one at a time. A number is never given to another name.
//!
//! *Which disks vote.* A disk that is blank looks as if nobody had promised anything. So each disk
//! of a group has a *marker*, from [`DiskCoordinator::set_up`] on, and one without it, or with that
//! of another group, does not count. The marker says which of the voters the disk is: disks may be
//! given in any order, and some that do not vote among them. A disk that was replaced is set up
//! again from a majority of the others ([`DiskCoordinator::replace`]):
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
//! *One process of a node.* A block also has a *claim*: which process may write it (`claim.rs`):
//!
//! ```text
//!   the process before me    writes nothing for as long as a lease lasts, or has ended in order
//!   write my claim           on a majority; from now on another process that looks for its own ends
//!   wait                     what it had begun ends
//!   read my block            and go on with what it says
//! ```
//!
//! A process looks for its claim before each write. Of several that start together the one with
//! the highest number goes on.
//!
//! *What a crash leaves.* Blocks are pairs of frames (see `frame.rs`): a write that is torn leaves
//! the old block, and it had not been confirmed. When both frames of a block are damaged, its disk
//! does not count for who reads it. A node that starts reads its own blocks from a majority of
//! disks, goes on with the newest, and writes it to a majority with a sequence number above all
//! that an earlier process may have left on a minority. A disk that was away when it started counts
//! some time after it has the claim. A disk that was being set up anew has no
//! marker.
//!
//! *Limits.* Each node has a number of its own. A write of a process that died must not reach a
//! disk after the next process of the same node has read its block, which is the time of a lease
//! and of an operation later. Disks of the same machine, SANs and disk servers keep to that. One
//! node at a time may set up a disk anew: the keeper.

mod ballots;
mod block;
mod claim;
mod marker;
mod numbers;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Frozen, Nanos, Rng, Rt};

use super::{Coordinator, CoordinatorError, CoordinatorFuture, Swap, Version, View};
use crate::clock::Clock;
use crate::{NodeName, Record, Session};
use block::{Block, Blocks};
use claim::Claim;
use marker::{Group, Marker, group_of, read_marker, write_marker};

pub(crate) use marker::is_for_leases;
pub use numbers::COMMANDS;

/// Nodes of a cluster, at most.
pub const NODES_MAX: u32 = 64;
/// Bytes of half a block: a frame, and a claim.
const HALF_BYTES: u64 = HALF as u64;
const HALF: usize = 64 << 10;
/// Bytes of a block on a disk: two halves.
pub const BLOCK_BYTES: u64 = 2 * HALF_BYTES;

/// Bytes on each disk for a cluster of so many nodes: the marker, and their blocks.
pub const fn area_bytes(nodes: u32) -> u64 {
    (nodes as u64 + 1) * BLOCK_BYTES
}

/// What a pool's disks have at their start for their leases; the file system comes after it.
pub const AREA_BYTES: u64 = 4 << 20;
/// Numbers of nodes that a pool has room for; 0 is that of commands.
pub const POOL_NODES: u32 = 16;

const _: () = assert!(area_bytes(POOL_NODES) <= AREA_BYTES);

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
    /// Held during a write.
    writing: Semaphore,
    /// When it got this process's claim.
    claimed: Cell<Option<Nanos>>,
    /// The highest sequence number whose write was started.
    begun: Cell<u64>,
    /// The highest one that was written.
    written: Cell<u64>,
    behind: Cell<u32>,
}

impl Place {
    fn new(disk: Rc<dyn Disk>) -> Self {
        let (begun, written, behind, claimed) = Default::default();
        let [turn, writing] = [(); 2].map(|()| Semaphore::new(1));
        Self { disk, turn, writing, begun, written, behind, claimed }
    }
}

/// What was read on one disk.
struct Visit {
    /// Which voter it is.
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
    disks: RefCell<Vec<Rc<Place>>>,
    own: RefCell<Block>,
    sequence: Cell<u64>,
    /// What this process puts on the disks before it writes; `None`: it only looks.
    claim: Cell<Option<Claim>>,
    /// Another process may write this node's block.
    is_ousted: Cell<bool>,
    /// The group of the disks that vote.
    group: Group,
    /// The node's name, if it has one.
    name: Option<NodeName>,
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

impl Drop for DiskCoordinator {
    fn drop(&mut self) {
        // What still waits for a disk writes nothing any more.
        self.0.is_ousted.set(true);
    }
}

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
        Self::prepare(rt, clock, disks, (config, None)).await?.started().await
    }

    /// It has started. If it fails, nothing of it is on its way to a disk: the next one that starts
    /// in this process may use the same blocks.
    async fn started(self) -> Result<Self, CoordinatorError> {
        match self.start().await {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end().await;
                Err(error)
            }
        }
    }

    /// Writes nothing any more. Returns when no write is on its way to a disk; of a disk that hangs
    /// this is never known.
    async fn end(&self) {
        self.0.is_ousted.set(true);
        let places = self.0.disks.borrow().clone();
        for place in places {
            drop(place.writing.acquire(1).await);
        }
    }

    /// Looks at the record as none of the nodes: writes nothing, and needs no number.
    ///
    /// # Errors
    /// No majority of the disks answers or was set up.
    pub async fn watch(
        rt: &Rt,
        clock: Rc<dyn Clock>,
        disks: Vec<Rc<dyn Disk>>,
        config: DiskLeaseConfig,
    ) -> Result<Self, CoordinatorError> {
        Self::prepare(rt, clock, disks, (config, None)).await
    }

    async fn prepare(
        rt: &Rt,
        clock: Rc<dyn Clock>,
        disks: Vec<Rc<dyn Disk>>,
        (config, name): (DiskLeaseConfig, Option<NodeName>),
    ) -> Result<Self, CoordinatorError> {
        check(&disks, &config)?;
        let group = group_of(&*clock, &disks, &config).await?;
        let disks = disks.into_iter().map(|disk| Rc::new(Place::new(disk))).collect();
        Ok(Self(Rc::new(Shared {
            rt: rt.clone(),
            clock,
            disks: RefCell::new(disks),
            own: RefCell::default(),
            sequence: Cell::new(0),
            claim: Cell::new(None),
            is_ousted: Cell::new(false),
            group,
            name,
            signs: RefCell::default(),
            rng: RefCell::new(Rng::new(config.seed)),
            proposing: Semaphore::new(1),
            config,
        })))
    }

    /// Takes over the block of the node from an earlier process.
    async fn start(&self) -> Result<(), CoordinatorError> {
        let shared = &self.0;
        let process = shared.rng.borrow_mut().next_u64();
        let (before, left) = self.recall().await?;
        // Also one without a lease may be about to change the record.
        if left.process.is_some() && !left.has_ended {
            shared.clock.sleep(shared.config.lease).await;
            if self.recall().await?.0 != before {
                return Err(self.ousted());
            }
        }
        // Of several that start together one has the highest number.
        let further = shared.rng.borrow_mut().within(1, 1 << 20);
        let number = shared.highest_claim().await + further;
        shared.claim.set(Some(Claim { number, process }));
        let deadline = shared.clock.now() + 2 * shared.quiet();
        let (sequence, block) = loop {
            let found = self.recall().await;
            shared.check_ousted()?;
            match found {
                Ok(found) => break found,
                Err(error) if shared.clock.now() > deadline => return Err(error),
                // Disks have its claim, for a short time yet.
                Err(_) => shared.clock.sleep(shared.config.patience / 4).await,
            }
        };
        // What it had promised holds on.
        shared.sequence.set(((sequence >> 32) + 1) << 32);
        let name = shared.name.clone().or_else(|| block.name.clone());
        let process = Some(process);
        *shared.own.borrow_mut() =
            Block { session: None, process, has_ended: false, name, ..block };
        shared.write_own().await?.ok_or_else(|| unreachable(NO_MAJORITY)).map(drop)
    }

    fn ousted(&self) -> CoordinatorError {
        self.0.is_ousted.set(true);
        self.0.ousted()
    }

    /// Makes the disks of a pool the voters of a new group: all of them must work, and their areas
    /// must hold nothing but zeros, or the markers of a group that was set up and never used.
    /// `group` is a random number.
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

    /// One more disk, which does not vote unless its marker says so. Returns which of the disks it
    /// is.
    pub fn add_disk(&self, disk: Rc<dyn Disk>) -> usize {
        let mut disks = self.0.disks.borrow_mut();
        disks.push(Rc::new(Place::new(disk)));
        disks.len() - 1
    }

    /// This node's number.
    pub fn number(&self) -> u32 {
        self.0.config.number
    }

    /// Whether one of the disks votes now, as far as it answers.
    pub async fn votes(&self, disk: usize) -> bool {
        let shared = &self.0;
        let Some(place) = shared.disks.borrow().get(disk).cloned() else { return false };
        let disks = [place.disk.clone()];
        let marker = marker::read_markers(&*shared.clock, &disks, &shared.config).await.remove(0);
        marker.is_some_and(|marker| shared.is_current(&marker))
    }

    /// The places of voters that none of the disks has now: disks were replaced, are gone, or do
    /// not answer.
    ///
    /// # Errors
    /// No majority of the disks answers.
    pub async fn vacant(&self) -> Result<Vec<usize>, CoordinatorError> {
        let shared = &self.0;
        shared.learn(&shared.round(None).await.ok_or_else(|| unreachable(NO_MAJORITY))?);
        let disks: Vec<_> = shared.disks.borrow().iter().map(|of| of.disk.clone()).collect();
        let found = marker::read_markers(&*shared.clock, &disks, &shared.config).await;
        let current = found.into_iter().flatten().filter(|marker| shared.is_current(marker));
        let taken: BTreeSet<usize> = current.map(|marker| marker.place).collect();
        Ok((0..shared.group.disks).filter(|place| !taken.contains(place)).collect())
    }

    /// Makes one of the disks, which was replaced or has lost what it had, the voter of this place,
    /// with what a majority of the disks knows. One node at a time may do so.
    ///
    /// # Errors
    /// No majority of the other disks answers, or the disk failed.
    pub async fn replace(&self, disk: usize, place: usize) -> Result<(), CoordinatorError> {
        let shared = &self.0;
        let target = shared.disks.borrow().get(disk).cloned();
        let target = target.filter(|_| place < shared.group.disks).ok_or_else(|| {
            CoordinatorError::Refused(format!(
                "there is no disk number {disk}, or no place {place}"
            ))
        })?;
        if shared.marker(&*target.disk).await.is_some_and(|marker| marker.place != place) {
            let why = format!("disk number {disk} has the vote of another place");
            return Err(CoordinatorError::Refused(why));
        }
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
        let zeroes = |at, bytes| target.disk.write_zeroes(at, bytes, opts);
        zeroes(config.offset, BLOCK_BYTES).await.map_err(failed)?;
        // Claims of another time would count.
        let rest = area_bytes(config.nodes) - BLOCK_BYTES;
        zeroes(config.offset + BLOCK_BYTES, rest).await.map_err(failed)?;
        for node in 0..config.nodes {
            let of_node = visits.iter().map(|visit| &visit.blocks[node as usize]);
            let newest = of_node.max_by_key(|(sequence, _)| *sequence);
            let (sequence, block) = newest.expect("a majority is not empty");
            let frame = block::encode(*sequence, block)?;
            let at = config.block_at(node);
            for at in [at, at + HALF_BYTES] {
                target.disk.write(at, frame.clone(), opts).await.map_err(failed)?;
            }
        }
        let (Group { id: group, disks }, nodes) = (shared.group, config.nodes);
        let marker = Marker { group, disks, nodes, place, number };
        write_marker(&*target.disk, config.offset, &marker).await.map_err(failed)?;
        target.written.set(0);
        target.claimed.set(None);
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
            own.has_ended = session.is_none();
            own.session = session;
            own.beat += 1;
        }
        let disks = self.0.write_own().await?.ok_or_else(|| unreachable(NO_MAJORITY))?;
        self.0.learn(&disks);
        Ok(())
    }
}

impl Shared {
    fn majority(&self) -> usize {
        self.group.disks / 2 + 1
    }

    /// On each disk: writes a frame, if one is given, and then reads all blocks. Returns the blocks
    /// read on the disks of a majority, or of more; `None` if there is none in time.
    async fn round(self: &Rc<Self>, own: Option<(u64, Frozen)>) -> Option<Vec<Visit>> {
        let (found, news) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Notify::default()));
        let pending = Rc::new(Cell::new(0_usize));
        let places = self.disks.borrow().clone();
        for place in places {
            if place.behind.get() >= ROUNDS_BEHIND_MAX {
                continue;
            }
            place.behind.update(|behind| behind + 1);
            pending.set(pending.get() + 1);
            let (shared, own) = (self.clone(), own.clone());
            let (found, news, pending) = (found.clone(), news.clone(), pending.clone());
            drop(self.rt.spawn(async move {
                let turn = place.turn.acquire(1).await;
                let visit = shared.visit(&place, own).await;
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

    /// Drops what was read on disks that are known to have been replaced since, and on disks that
    /// are copies of each other: which of them has what was written last is not known.
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
        let mut count: BTreeMap<usize, usize> = BTreeMap::new();
        visits.iter().for_each(|visit| *count.entry(visit.place).or_default() += 1);
        visits.retain(|visit| count[&visit.place] == 1);
    }

    fn is_of_group(&self, marker: &Marker) -> bool {
        let Group { id, disks } = self.group;
        (marker.group, marker.disks, marker.nodes) == (id, disks, self.config.nodes)
            && marker.place < disks
    }

    /// Whether the disk with this marker votes, as far as is known.
    fn is_current(&self, marker: &Marker) -> bool {
        let own = self.own.borrow();
        let number = own.markers.get(&marker.place);
        self.is_of_group(marker) && number.is_none_or(|number| *number == marker.number)
    }

    /// The disk's marker, if it belongs to the group.
    async fn marker(&self, disk: &dyn Disk) -> Option<Marker> {
        read_marker(disk, self.config.offset).await.filter(|marker| self.is_of_group(marker))
    }

    async fn block(&self, disk: &dyn Disk, node: u32) -> Option<(u64, Block)> {
        block::read(disk, self.config.block_at(node)).await
    }

    /// How long the disks have a claim before the block is read: what an earlier process had begun
    /// has ended by then.
    fn quiet(&self) -> Nanos {
        self.config.lease + self.config.patience
    }

    /// The highest number of a claim to this node's block on the disks that answer.
    async fn highest_claim(&self) -> u64 {
        let places = self.disks.borrow().clone();
        let at = self.config.block_at(self.config.number);
        let look = |place: Rc<Place>| async move {
            let look = async {
                self.marker(&*place.disk).await?;
                claim::read(&*place.disk, at).await.flatten()
            };
            match select(Box::pin(look), self.clock.sleep(self.config.patience)).await {
                Either::Left((claim, _)) => claim,
                Either::Right(_) => None,
            }
        };
        let claims = futures_util::future::join_all(places.into_iter().map(look)).await;
        claims.into_iter().flatten().map(|claim| claim.number).max().unwrap_or(0)
    }

    /// Looks for this process's claim, and puts it on a disk that has an earlier one. Returns
    /// whether the disk counts.
    async fn has_claim(&self, place: &Place) -> bool {
        let Some(own) = self.claim.get() else { return true };
        let at = self.config.block_at(self.config.number);
        match claim::read(&*place.disk, at).await {
            None => return false,
            Some(Some(found)) if found == own => {}
            Some(Some(found)) if found.number >= own.number => {
                self.is_ousted.set(true);
                return false;
            }
            Some(_) => {
                place.claimed.set(None);
                let _writing = place.writing.acquire(1).await;
                if self.is_ousted.get() || claim::write(&*place.disk, at, &own).await.is_err() {
                    return false;
                }
            }
        }
        let now = self.clock.now();
        let since = place.claimed.get().unwrap_or(now);
        place.claimed.set(Some(since));
        now.saturating_sub(since) >= self.quiet()
    }

    fn check_ousted(&self) -> Result<(), CoordinatorError> {
        if self.is_ousted.get() { Err(self.ousted()) } else { Ok(()) }
    }

    fn ousted(&self) -> CoordinatorError {
        CoordinatorError::Ousted(match &self.name {
            Some(name) => format!("the name {name}"),
            None => format!("the node number {}", self.config.number),
        })
    }

    async fn visit(&self, place: &Place, own: Option<(u64, Frozen)>) -> Option<Visit> {
        let disk = &*place.disk;
        let before = self.marker(disk).await?;
        if !self.has_claim(place).await {
            return None;
        }
        if let Some((sequence, frame)) = own {
            if sequence > place.begun.get() {
                let _writing = place.writing.acquire(1).await;
                if self.is_ousted.get() {
                    return None;
                }
                place.begun.set(sequence);
                let at = self.config.block_at(self.config.number);
                let opts = WriteOpts { class: Class::Urgent, fua: true };
                for at in [at, at + HALF_BYTES] {
                    disk.write(at, frame.clone(), opts).await.ok()?;
                }
                place.written.set(sequence);
            }
            // A later state of the first block contains all of this one, if it is there.
            if place.written.get() < sequence {
                return None;
            }
        }
        let blocks = (0..self.config.nodes).map(|node| self.block(disk, node));
        let blocks = futures_util::future::join_all(blocks).await;
        let blocks = blocks.into_iter().collect::<Option<Blocks>>()?;
        // Had it been replaced meanwhile, what was written would be gone.
        let marker = self.marker(disk).await.filter(|after| *after == before)?;
        let place = marker.place;
        (!self.is_ousted.get()).then_some(Visit { place, marker, blocks })
    }

    async fn write_own(self: &Rc<Self>) -> Result<Option<Vec<Visit>>, CoordinatorError> {
        self.check_ousted()?;
        if self.claim.get().is_none() {
            return Err(CoordinatorError::Refused("this process only looks at it".to_owned()));
        }
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
}

impl DiskLeaseConfig {
    /// Where the block of a node is.
    fn block_at(&self, node: u32) -> u64 {
        self.offset + (u64::from(node) + 1) * BLOCK_BYTES
    }
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
