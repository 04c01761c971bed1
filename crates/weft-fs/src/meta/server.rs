//! The keeper of a file system's metadata, for nodes that reach it over a network.
//!
//! It opens the store on the metadata array and answers questions of nodes ([`weft_wire`]). The
//! other side is [`super::remote`].
//!
//! * *One connection of a node.* A new one ends the one before it. What was taken on that of a
//!   batch that has not ended is discarded; requests of the old connection that are on their way
//!   have no effect.
//! * *One batch at a time.* The store has one open transaction, and nodes take turns
//!   ([`super::turns`]).
//! * *Batches are counted.* The last row of each batch is the number of the node's next one, in the
//!   state, so that a batch and its number are durable together. A batch that ends once more, on
//!   another connection or at another keeper, is recognised. A node is told only numbers that are
//!   durable.
//! * *One mount of a node.* The epoch of a node's last mount is in the state as well, before that
//!   mount is welcomed: no keeper takes a batch of an earlier one for one of its own.
//! * *Durable.* The end of a batch is answered when its epochs are durable. A keeper that dies
//!   before that may have lost it: its node sends it to the next one.
//!
//! * *The desk* ([`super::desk`]) is for what is not in the store. Node 0 is in the same process,
//!   and sets it; other nodes are welcomed from then on. On each connection they first say what
//!   they have ([`Restated`]).
//! * *How full the metadata is* ([`room_shares`]) is told with some answers, and when it changes
//!   much.
//!
//! * *A lost disk* is told to all nodes before they can read any row of the batch in which it is
//!   lost ([`FromKeeper::LostDisks`]): what is written from then on may have left the disk out, and
//!   a checksum that says so is not one that other nodes could find wrong there.
//!
//! The order in which messages of a connection are taken and answered is in [`conversation`].
//!
//! Only one process may open the metadata array: whoever starts a keeper first fences the one
//! before it (`docs/cluster.md`). Whether a node is a member is for the cluster's record to say,
//! too: the keeper refuses what it was told to ([`KeeperServer::fence`]).

mod conversation;
mod reads;
mod room_shares;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_array::{Array, Id};
use weft_rt::sync::{Notify, Permit, Semaphore};
use weft_rt::{Rt, fiber};
use weft_token::NodeId;
use weft_wire::{Answer, End, Frames, FromKeeper, Part, Restated, Room, ToKeeper};

use super::desk::Desk;
use super::header::{self, Areas};
use super::keeper::Keeper;
use super::keeper_file::KeeperFile;
use super::numbers::NEXT_INODE;
use super::outbox::Outbox;
use super::remote::SILENCE;
use super::row_bytes::row_bytes_name;
use super::rows::{DISKS, RowChange, RowKey, STATE, TableId, all};
use super::rows_at_a_time;
use super::stream::Stream;
use super::tables::DiskRow;
use super::turns::{Connected, Turns};
use crate::error::{FsError, InDatabase as _, Result};
use conversation::next;
use room_shares::RoomShares;

/// A node as it has joined.
struct Member {
    epoch: u64,
    /// None: it has ended. What still comes from it has no effect: parts before it are discarded.
    connection: Option<u64>,
    stream: Rc<dyn Stream>,
    outbox: Rc<Outbox>,
    next_batch: u64,
}

struct Server {
    rt: Rt,
    file_system: Id,
    keeper: Keeper,
    /// Held while the store is used.
    using: Semaphore,
    members: RefCell<BTreeMap<u16, Member>>,
    connections: Cell<u64>,
    /// Whose batch is open.
    turns: Turns,
    /// Held during a checkpoint.
    checkpointing: Semaphore,
    /// Why nothing is answered any more.
    failed: RefCell<Option<String>>,
    /// The first number that no file has and no node was given.
    next_number: Cell<u64>,
    /// Whether that is to be stored with the next batch.
    is_number_due: Cell<bool>,
    /// How full the metadata is, and what nodes were told of that.
    room: RefCell<RoomShares>,
    /// The disks that are lost, as nodes were told.
    lost_disks: RefCell<BTreeSet<u16>>,
    /// What node 0 does for the others.
    desk: RefCell<Option<Rc<dyn Desk>>>,
    /// Told when that is there.
    opened: Notify,
}

/// A keeper that nodes reach over a network. When the last clone is dropped, what is not durable is
/// lost.
#[derive(Clone)]
pub struct KeeperServer(Rc<Server>);

impl std::fmt::Debug for KeeperServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = self.0.members.borrow().len();
        f.debug_struct("KeeperServer").field("nodes", &nodes).finish_non_exhaustive()
    }
}

/// Where a node's next batch is in the state.
fn batch_name(node: u16) -> String {
    format!("next batch of node {node}")
}

/// Where the epoch of a node's last mount is in the state.
fn epoch_name(node: u16) -> String {
    format!("epoch of node {node}")
}

/// A row of the state.
fn state_row(name: &str, value: u64) -> RowChange {
    let key = RowKey::named(0, name.as_bytes()).into_owned();
    RowChange { table: TableId::State, key, value: Some(value.to_le_bytes().into()) }
}

/// Why a node is not welcomed.
enum Refusal {
    /// It means another file system.
    Other,
    /// A later mount of the node has come, or this one is fenced.
    Late,
    /// The keeper can do nothing any more.
    Failure,
}

impl Refusal {
    fn why(&self, node: u16) -> String {
        match self {
            Self::Other => "it keeps another file system".into(),
            Self::Late => format!("node {node} is fenced, or has been mounted once more"),
            Self::Failure => "it has failed".into(),
        }
    }
}

/// The connection is of no more use.
struct ConnectionEnd;

/// One connection of a node.
struct Peer {
    node: NodeId,
    /// The version of messages that it speaks.
    version: u16,
    connection: u64,
    stream: Rc<dyn Stream>,
    outbox: Rc<Outbox>,
    /// Held while a part is taken or a batch ends.
    changing: Semaphore,
    /// What the node has said that it has; none once it has said all.
    restated: RefCell<Option<Restated>>,
    /// Disks whose rows its batch changes, and whether they are lost then.
    disks: RefCell<BTreeMap<u16, bool>>,
    /// Requests to disks that it may have at a time.
    using_disks: Semaphore,
    /// Bytes that the database may have, as the node was told.
    capacity: Cell<u64>,
}

/// Requests to disks that a node may have at a time.
const DISK_REQUESTS_MAX: usize = 16;

/// The disk whose row this is, and whether it is lost.
fn disk_of(row: &RowChange) -> Option<(u16, bool)> {
    let number = u16::try_from(row.key.first).ok().filter(|_| row.table == TableId::Disks)?;
    let stored = row.value.as_deref().and_then(DiskRow::decode);
    Some((number, stored.is_some_and(|row| row.lost)))
}

/// The disks that are lost.
fn lost_disks(keeper: &Keeper) -> Result<BTreeSet<u16>> {
    let mut lost = BTreeSet::new();
    for row in keeper.rows(&DISKS, &all())?.into_iter().flatten() {
        let (number, value) = row.db()?;
        if DiskRow::decode(value.value()).is_some_and(|row| row.lost) {
            lost.extend(u16::try_from(number.value()));
        }
    }
    Ok(lost)
}

impl Peer {
    fn connected(&self) -> Connected {
        (self.node.number, self.connection)
    }
}

impl KeeperServer {
    /// Opens the metadata on its array. About `cache_bytes` of it may be in memory.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub async fn open(
        rt: &Rt,
        array: Array,
        file_system: [u8; 16],
        cache_bytes: u64,
    ) -> Result<Self> {
        let file_system = Id(file_system);
        let stored = header::read(&array, file_system).await?;
        let areas = Areas::stored(array.size_bytes(), &stored)?;
        let keeper = Keeper::open(array, file_system, (&areas, stored), cache_bytes).await?;
        keeper.image.check_awaiting_resync().await?;
        let (room, next, lost) = fiber::run(|| {
            let next = keeper.row(&STATE, &NEXT_INODE, |value| value)?;
            Result::Ok((RoomShares::read(&keeper)?, next, lost_disks(&keeper)?))
        })
        .await?;
        Ok(Self(Rc::new(Server {
            rt: rt.clone(),
            file_system,
            keeper,
            using: Semaphore::new(1),
            members: RefCell::default(),
            connections: Cell::new(0),
            turns: Turns::default(),
            checkpointing: Semaphore::new(1),
            failed: RefCell::default(),
            next_number: Cell::new(next.unwrap_or(0)),
            is_number_due: Cell::new(false),
            room: RefCell::new(room),
            lost_disks: RefCell::new(lost),
            desk: RefCell::default(),
            opened: Notify::default(),
        })))
    }

    /// Node 0 is there. From now on other nodes are welcomed.
    pub(crate) fn set_desk(&self, desk: Rc<dyn Desk>) {
        *self.0.desk.borrow_mut() = Some(desk);
        self.0.opened.notify_all();
    }

    /// The file of the database, for node 0.
    pub(crate) fn file(&self) -> KeeperFile {
        KeeperFile { rt: self.0.rt.clone(), image: self.0.keeper.image.clone() }
    }

    /// Answers a node on a new connection, until that ends.
    pub async fn serve(&self, stream: Rc<dyn Stream>) {
        let mut frames = Frames::default();
        let hello = {
            let hello = std::pin::pin!(next(&*stream, &mut frames));
            let silence = std::pin::pin!(self.0.rt.sleep(SILENCE));
            match select(hello, silence).await {
                Either::Left((Some(ToKeeper::Hello { version, file_system, node }), _)) => {
                    Some((version, file_system, node))
                }
                _ => None,
            }
        };
        if let Some((version, file_system, node)) = hello {
            if node.number != 0 {
                self.0.desk().await;
            }
            match self.0.join(file_system, (node, version), &stream).await {
                Ok((peer, welcome)) => {
                    let room = FromKeeper::Room(self.0.room(peer.node.number));
                    let lost: Vec<u16> = self.0.lost_disks.borrow().iter().copied().collect();
                    let lost = (!lost.is_empty()).then_some(FromKeeper::LostDisks(lost));
                    let first = [welcome, room].into_iter().chain(lost);
                    let first: Vec<u8> = first.flat_map(|first| first.to_bytes()).collect();
                    if peer.outbox.write(first).await {
                        self.0.converse(&peer, &mut frames).await;
                    }
                    self.0.leave(peer.connected()).await;
                }
                // Another keeper may do better, unless it is in the process of this one.
                Err(Refusal::Failure) if node.number != 0 => {}
                Err(refusal) => {
                    let refused = FromKeeper::Refused(refusal.why(node.number));
                    drop(stream.write(refused.to_bytes()).await);
                }
            }
        }
        stream.close();
    }

    /// A node is dead, or must not go on: its present connection ends, and neither this keeper nor
    /// a later one welcomes this mount or an earlier one. Nothing takes effect any more that it
    /// sent to disks through this keeper. Its tokens stay as they are.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub async fn fence(&self, node: NodeId) -> Result<()> {
        let refused = self.0.refuse_before(node.number, node.epoch + 1).await;
        refused.map_err(|refusal| FsError::Stopped(refusal.why(node.number)))?;
        self.0.disks_left(node).await;
        Ok(())
    }

    /// Writes what only the journal has to its place.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn checkpoint(&self) -> Result<()> {
        self.0.keeper.image.checkpoint().await
    }
}

impl Server {
    fn fail(&self, why: &str) {
        self.failed.borrow_mut().get_or_insert_with(|| why.to_owned());
    }

    /// What a use of the store gives. One that fails is the last.
    fn result<T>(&self, result: Result<T>) -> std::result::Result<T, Answer> {
        if let Err(error) = &result {
            self.fail(&error.to_string());
        }
        match &*self.failed.borrow() {
            Some(why) => Err(Answer::Failed(why.clone())),
            None => result.map_err(|error| Answer::Failed(error.to_string())),
        }
    }

    fn check(&self) -> std::result::Result<(), Answer> {
        self.result(Ok(()))
    }

    /// A node comes, on a connection of which it is told the second value.
    async fn join(
        &self,
        file_system: [u8; 16],
        (node, version): (NodeId, u16),
        stream: &Rc<dyn Stream>,
    ) -> std::result::Result<(Rc<Peer>, FromKeeper), Refusal> {
        if file_system != self.file_system.0 {
            return Err(Refusal::Other);
        }
        let newest = self.refuse_before(node.number, node.epoch).await?;
        if newest > node.epoch {
            return Err(Refusal::Late);
        }
        let (peer, next_batch) = {
            let _using = self.using.acquire(1).await;
            // Another mount may have come meanwhile.
            if self.state(&epoch_name(node.number)).await? > node.epoch {
                return Err(Refusal::Late);
            }
            let before = self.members.borrow_mut().remove(&node.number);
            if let Some(before) = before {
                self.room.borrow_mut().leave(node.number);
                before.stream.close();
                if let Some(connection) = before.connection {
                    self.discard((node.number, connection)).await;
                }
            }
            let next_batch = self.state(&batch_name(node.number)).await?;
            let connection = self.next_connection();
            let (stream, outbox) = (stream.clone(), Outbox::new(stream.clone()));
            let member = Member {
                epoch: node.epoch,
                connection: Some(connection),
                stream: stream.clone(),
                outbox: outbox.clone(),
                next_batch,
            };
            self.members.borrow_mut().insert(node.number, member);
            self.room.borrow_mut().join(node.number);
            let peer = Peer {
                node,
                version,
                connection,
                stream,
                outbox,
                changing: Semaphore::new(1),
                restated: RefCell::new(Some(Restated::default())),
                disks: RefCell::default(),
                using_disks: Semaphore::new(DISK_REQUESTS_MAX),
                capacity: Cell::new(0),
            };
            (Rc::new(peer), next_batch)
        };
        // What it sends to disks on this connection comes after what it sent before.
        self.disks_left(node).await;
        // The batch before it may just have ended.
        self.make_durable().await?;
        let (capacity, pages) = (self.keeper.image.capacity(), self.keeper.image.pages_max());
        let rows_max = u32::try_from(rows_at_a_time(pages)).expect("few rows");
        peer.capacity.set(capacity);
        Ok((peer, FromKeeper::Welcome { next_batch, capacity, rows_max }))
    }

    fn next_connection(&self) -> u64 {
        let connection = self.connections.get();
        self.connections.set(connection + 1);
        connection
    }

    /// How full the metadata is, for a node, which is told that now.
    fn room(&self, node: u16) -> Room {
        self.room.borrow_mut().tell(node, self.keeper.image.capacity())
    }

    /// A batch of a node has ended: the others hear of it if they may add much less now.
    fn tell_others_of_room(&self, node: u16) {
        let capacity = self.keeper.image.capacity();
        let (room, nodes) = self.room.borrow_mut().tell_others(node, capacity);
        let members = self.members.borrow();
        for member in nodes.iter().filter_map(|number| members.get(number)) {
            member.outbox.post(&self.rt, FromKeeper::Room(room).to_bytes());
        }
    }

    /// Waits until all requests to disks that a node has made so far have ended. The node is
    /// refused, or has another connection.
    async fn disks_left(&self, node: NodeId) {
        let desk = self.desk.borrow().clone();
        if let Some(desk) = desk {
            desk.disks_left(node).await;
        }
    }

    /// A batch is about to end that changes the rows of these disks: tells all nodes of those that
    /// are lost with it. Returns whether any are.
    fn tell_of_lost(&self, disks: BTreeMap<u16, bool>) -> bool {
        let known = &mut *self.lost_disks.borrow_mut();
        let mut new = Vec::new();
        for (disk, is_lost) in disks {
            if !is_lost {
                // It has left, and another one may get its number.
                known.remove(&disk);
            } else if known.insert(disk) {
                new.push(disk);
            }
        }
        if !new.is_empty() {
            let message = FromKeeper::LostDisks(new.clone()).to_bytes();
            for member in self.members.borrow().values() {
                member.outbox.post(&self.rt, message.clone());
            }
        }
        !new.is_empty()
    }

    /// What the state has under a name. The caller holds `using`.
    async fn state(&self, name: &str) -> std::result::Result<u64, Refusal> {
        let value = fiber::run(|| self.keeper.row(&STATE, &name, |value| value)).await;
        self.result(value).map(Option::unwrap_or_default).map_err(|_| Refusal::Failure)
    }

    async fn make_durable(&self) -> std::result::Result<(), Refusal> {
        let written = self.keeper.image.write_epochs().await;
        self.result(written).map_err(|_| Refusal::Failure)
    }

    /// No mount of a node before this epoch is welcomed any more, durably. Returns the epoch from
    /// which on they are.
    async fn refuse_before(&self, node: u16, epoch: u64) -> std::result::Result<u64, Refusal> {
        let older = {
            let members = self.members.borrow();
            let older = members.get(&node).filter(|member| member.epoch < epoch);
            older.map(|member| (member.stream.clone(), member.connection))
        };
        if let Some((stream, connection)) = older {
            stream.close();
            if let Some(connection) = connection {
                self.leave((node, connection)).await;
            }
        }
        let name = epoch_name(node);
        let mut newest = {
            let _using = self.using.acquire(1).await;
            self.state(&name).await?
        };
        if newest < epoch {
            // A batch of the keeper's own.
            let of = (node, self.next_connection());
            self.turn(of).await;
            let _end = TurnEnd(&self.turns, of);
            let _work = self.turns.work(of, &self.rt);
            let _using = self.using.acquire(1).await;
            newest = self.state(&name).await?;
            if newest < epoch {
                let change = [state_row(&name, epoch)];
                let ended = || {
                    self.keeper.take(&change)?;
                    self.keeper.end(false)
                };
                let ended = self.result(fiber::run(ended).await);
                ended.map_err(|_| Refusal::Failure)?;
                newest = epoch;
            }
        }
        self.make_durable().await?;
        Ok(newest)
    }

    /// A connection has ended.
    async fn leave(&self, of: Connected) {
        let (node, connection) = of;
        let _using = self.using.acquire(1).await;
        if let Some(member) = self.members.borrow_mut().get_mut(&node)
            && member.connection == Some(connection)
        {
            member.connection = None;
            self.room.borrow_mut().leave(node);
        }
        self.discard(of).await;
    }

    /// Discards what is open on a connection, which has ended. The caller holds `using`.
    async fn discard(&self, of: Connected) {
        if self.turns.is_of(of) {
            let discarded = fiber::run(|| self.keeper.discard()).await;
            drop(self.result(discarded));
            self.turns.end(of);
        }
    }

    /// The next batch of a connection; none if its node has another one.
    fn next_batch(&self, peer: &Peer) -> std::result::Result<u64, ConnectionEnd> {
        let members = self.members.borrow();
        let member =
            members.get(&peer.node.number).filter(|of| of.connection == Some(peer.connection));
        member.map(|member| member.next_batch).ok_or(ConnectionEnd)
    }

    /// Waits until a connection may change the store.
    async fn turn(&self, of: Connected) {
        if self.turns.is_of(of) {
            return;
        }
        let mut line = std::pin::pin!(self.turns.line());
        loop {
            let silence = self.rt.sleep(self.turns.patience(self.rt.now()));
            let silence = std::pin::pin!(silence);
            if let Either::Left((turn, _)) = select(line.as_mut(), silence).await {
                return self.turns.open(of, turn, self.rt.now());
            }
            let Some(silent) = self.turns.silent(self.rt.now()) else { continue };
            let stream = {
                let members = self.members.borrow();
                let member = members.get(&silent.0);
                member
                    .filter(|member| member.connection == Some(silent.1))
                    .map(|member| member.stream.clone())
            };
            stream.iter().for_each(|stream| stream.close());
            self.leave(silent).await;
        }
    }

    /// Waits until a connection may change the store, and holds it for that.
    async fn use_in_turn(&self, peer: &Peer) -> std::result::Result<Permit, ConnectionEnd> {
        self.turn(peer.connected()).await;
        if let Err(end) = self.next_batch(peer) {
            self.turns.end(peer.connected());
            return Err(end);
        }
        let using = self.using.acquire(1).await;
        self.next_batch(peer)?;
        if self.turns.is_of(peer.connected()) { Ok(using) } else { Err(ConnectionEnd) }
    }

    async fn take(&self, peer: &Peer, part: Part) -> std::result::Result<Answer, ConnectionEnd> {
        let in_order =
            |one: &RowChange, next: &RowChange| (one.table, &one.key) < (next.table, &next.key);
        if !part.rows.iter().all(reads::is_change) || !part.rows.is_sorted_by(in_order) {
            return Err(ConnectionEnd);
        }
        match part.batch.cmp(&self.next_batch(peer)?) {
            // All of it is there.
            std::cmp::Ordering::Less => return Ok(Answer::Taken),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => return Err(ConnectionEnd),
        }
        let _using = self.use_in_turn(peer).await?;
        let _work = self.turns.work(peer.connected(), &self.rt);
        peer.disks.borrow_mut().extend(part.rows.iter().filter_map(disk_of));
        let taken = match self.check() {
            Ok(()) => self.result(fiber::run(|| self.keeper.take(&part.rows)).await),
            failed => failed,
        };
        Ok(taken.map_or_else(|failed| failed, |()| Answer::Taken))
    }

    async fn end(&self, peer: &Peer, end: End) -> std::result::Result<Answer, ConnectionEnd> {
        let next_batch = self.next_batch(peer)?;
        let mut is_any_lost = false;
        if end.batch > next_batch {
            return Err(ConnectionEnd);
        }
        if end.batch == next_batch {
            let _using = self.use_in_turn(peer).await?;
            let _work = self.turns.work(peer.connected(), &self.rt);
            if let Err(failed) = self.check() {
                return Ok(failed);
            }
            let mut last = vec![state_row(&batch_name(peer.node.number), end.batch + 1)];
            let next_number = self.next_number.get();
            if self.is_number_due.get() {
                // A file of this batch may have one of these numbers.
                last.push(state_row(NEXT_INODE, next_number));
            }
            // No other node reads the rows before it has heard of that.
            is_any_lost = self.tell_of_lost(peer.disks.take());
            let counted = row_bytes_name(peer.node.number);
            let ended = || {
                self.keeper.take(&last)?;
                self.keeper.end(end.is_last)?;
                self.keeper.row(&STATE, &&*counted, |value| value)
            };
            let row_bytes = match self.result(fiber::run(ended).await) {
                Ok(row_bytes) => row_bytes.unwrap_or(0),
                Err(failed) => return Ok(failed),
            };
            self.room.borrow_mut().count(peer.node.number, row_bytes);
            // Others may have been given meanwhile.
            self.is_number_due.set(self.next_number.get() != next_number);
            if let Some(member) = self.members.borrow_mut().get_mut(&peer.node.number) {
                member.next_batch = end.batch + 1;
            }
            self.turns.end(peer.connected());
            self.tell_others_of_room(peer.node.number);
        }
        let written = self.keeper.image.write_epochs().await;
        let ended = self.result(written).map_or_else(|failed| failed, |()| Answer::Durable);
        if is_any_lost && peer.node.number != 0 && ended == Answer::Durable {
            self.desk.borrow().iter().for_each(|desk| desk.disks_changed());
        }
        Ok(ended)
    }
}

/// Ends a batch of the keeper's own, however that comes.
struct TurnEnd<'a>(&'a Turns, Connected);

impl Drop for TurnEnd<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}
