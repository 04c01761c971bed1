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
//!
//! Only one process may open the metadata array: whoever starts a keeper first fences the one
//! before it (`docs/cluster.md`). Whether a node is a member is for the cluster's record to say,
//! too: the keeper refuses what it was told to ([`KeeperServer::fence`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use redb::Value;
use weft_array::{Array, Id};
use weft_disk::IoFuture;
use weft_rt::sync::{Notify, Permit, Semaphore};
use weft_rt::{Rt, fiber};
use weft_token::NodeId;
use weft_wire::{Answer, End, Frames, FromKeeper, Part, Question, Restated, Room, Row, ToKeeper};

use super::desk::Desk;
use super::header::{self, Areas};
use super::keeper::Keeper;
use super::numbers::{NEXT_INODE, NUMBERS};
use super::outbox::Outbox;
use super::remote::{SILENCE, is_value};
use super::rings::{ROW_BYTES_OF, row_bytes_name};
use super::room::{row_bytes_for_all, row_bytes_max};
use super::rows::{
    KeyRange, RowChange, RowKey, STATE, StoreKey, Table, TableId, all, by_table, is_empty,
};
use super::stream::{Stream, take_more};
use super::turns::{Connected, Turns};
use super::{ROW_BYTES, ROWS_MAX, rows_at_a_time};
use crate::error::{FsError, Result};

/// The most bytes of values in an answer, unless one row has more.
const ANSWER_BYTES: usize = 256 << 10;
/// The longest name in a key.
const NAME_BYTES_MAX: usize = 1024;
/// The longest value.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// The most tokens and runs of blocks that a node may have.
const RESTATED_MAX: usize = 1 << 20;

/// A node as it has joined.
struct Member {
    epoch: u64,
    /// None: it has ended. What still comes from it has no effect: parts before it are discarded.
    connection: Option<u64>,
    stream: Rc<dyn Stream>,
    outbox: Rc<Outbox>,
    next_batch: u64,
    /// Bytes of rows that it may add, as it was told last.
    told: Cell<u64>,
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
    /// Bytes of rows that each node counts.
    row_bytes: RefCell<BTreeMap<String, u64>>,
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
    connection: u64,
    stream: Rc<dyn Stream>,
    outbox: Rc<Outbox>,
    /// Held while a part is taken or a batch ends.
    changing: Semaphore,
    /// What the node has said that it has; none once it has said all.
    restated: RefCell<Option<Restated>>,
    /// Whether its batch changes rows of disks.
    changes_disks: Cell<bool>,
}

impl Peer {
    fn connected(&self) -> Connected {
        (self.node.number, self.connection)
    }

    /// Answers; some answers come after how full the metadata is.
    async fn tell(&self, number: u64, answer: Answer, room: impl FnOnce() -> Room) {
        let mut bytes = match &answer {
            Answer::Durable | Answer::Alive => FromKeeper::Room(room()).to_bytes(),
            _ => Vec::new(),
        };
        bytes.extend(FromKeeper::Answer { number, answer }.to_bytes());
        self.outbox.write(bytes).await;
    }
}

/// The next message of a stream; none at its end, or if there is something else.
async fn next(stream: &dyn Stream, frames: &mut Frames) -> Option<ToKeeper> {
    loop {
        match ToKeeper::next(frames) {
            Ok(Some(message)) => return Some(message),
            Ok(None) if take_more(stream, frames).await => {}
            _ => return None,
        }
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
        let (row_bytes, next) = fiber::run(|| {
            let (counts, _) = rows(&keeper, &STATE, &all(), false, usize::MAX)?;
            let name = |key: &RowKey<'_>| String::from_utf8_lossy(&key.name).into_owned();
            let counts = counts.iter().map(|(key, value)| (name(key), u64::from_bytes(value)));
            let is_count = |name: &str| name == ROW_BYTES || name.starts_with(ROW_BYTES_OF);
            let counts = counts.filter(|(name, _)| is_count(name)).collect();
            let next = keeper.row(&STATE, &NEXT_INODE, |value| value)?;
            Ok::<(BTreeMap<String, u64>, _), FsError>((counts, next))
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
            row_bytes: RefCell::new(row_bytes),
            desk: RefCell::default(),
            opened: Notify::default(),
        })))
    }

    /// Node 0 is there. From now on other nodes are welcomed.
    pub(crate) fn set_desk(&self, desk: Rc<dyn Desk>) {
        *self.0.desk.borrow_mut() = Some(desk);
        self.0.opened.notify_all();
    }

    /// Answers a node on a new connection, until that ends.
    pub async fn serve(&self, stream: Rc<dyn Stream>) {
        let mut frames = Frames::default();
        let hello = {
            let hello = std::pin::pin!(next(&*stream, &mut frames));
            let silence = std::pin::pin!(self.0.rt.sleep(SILENCE));
            match select(hello, silence).await {
                Either::Left((Some(ToKeeper::Hello { file_system, node }), _)) => {
                    Some((file_system, node))
                }
                _ => None,
            }
        };
        if let Some((file_system, node)) = hello {
            if node.number != 0 {
                self.0.desk().await;
            }
            match self.0.join(file_system, node, &stream).await {
                Ok((peer, welcome)) => {
                    let room = FromKeeper::Room(self.0.room(peer.node.number));
                    if peer.outbox.write([welcome.to_bytes(), room.to_bytes()].concat()).await {
                        self.converse(&peer, &mut frames).await;
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

    async fn converse(&self, peer: &Rc<Peer>, frames: &mut Frames) {
        while let Some(message) = next(&*peer.stream, frames).await {
            let (number, question) = match message {
                ToKeeper::Ask { number, question } => (number, question),
                ToKeeper::Hello { .. } => return,
                ToKeeper::Restate(part) => {
                    if self.0.restate(peer, part).await.is_err() {
                        return;
                    }
                    continue;
                }
                ToKeeper::Token(message) => {
                    let is_early = peer.restated.borrow().is_some();
                    if peer.node.number == 0 || is_early || self.0.next_batch(peer).is_err() {
                        return;
                    }
                    self.0.desk().await.take(peer.node, message);
                    continue;
                }
            };
            let question = match question {
                Question::Log => {
                    let found = self.0.desk().await.log(peer.node);
                    let (server, peer) = (self.0.clone(), peer.clone());
                    drop(self.0.rt.spawn(async move {
                        peer.tell(number, found.await, || server.room(peer.node.number)).await;
                    }));
                    continue;
                }
                Question::Room(_) | Question::GiveBack(_) | Question::Lock(_) => {
                    if peer.restated.borrow().is_some() || self.0.next_batch(peer).is_err() {
                        return;
                    }
                    match question {
                        Question::Room(wish) => {
                            let found = self.0.desk().await.room(peer.node, wish);
                            self.0.tell_later(peer, number, found);
                        }
                        Question::Lock(wish) => {
                            let done = self.0.desk().await.lock(peer.node, wish);
                            self.0.tell_later(peer, number, done);
                        }
                        Question::GiveBack(given) => {
                            let desk = self.0.desk().await;
                            let Some(answer) = desk.take_back(peer.node, given) else { return };
                            peer.tell(number, answer, || self.0.room(peer.node.number)).await;
                        }
                        _ => {}
                    }
                    continue;
                }
                question => question,
            };
            if let Question::Part(_) | Question::End(_) | Question::Numbers = question
                && peer.restated.borrow().is_some()
            {
                // The keeper does not know yet what the node has.
                return;
            }
            if peer.node.number != 0 && question == Question::Numbers {
                self.0.give_numbers(peer, number).await;
                continue;
            }
            if let Question::Part(_) | Question::End(_) = question {
                // Reads go on while it waits for its turn, and until it is durable.
                let permit = peer.changing.acquire(1).await;
                let (server, peer) = (self.0.clone(), peer.clone());
                drop(self.0.rt.spawn(async move {
                    let is_end = matches!(question, Question::End(_));
                    match server.answer(&peer, question).await {
                        Ok(answer) => {
                            peer.tell(number, answer, || server.room(peer.node.number)).await
                        }
                        Err(ConnectionEnd) => peer.stream.close(),
                    }
                    drop(permit);
                    if !is_end {
                        return;
                    }
                    let Some(_one) = server.checkpointing.try_acquire(1) else { return };
                    // An error stops the keeper, which the next question is told.
                    if let Err(error) = server.keeper.image.checkpoint_in_steps().await {
                        server.fail(&error.to_string());
                    }
                }));
                continue;
            }
            match self.0.answer(peer, question).await {
                Ok(answer) => peer.tell(number, answer, || self.0.room(peer.node.number)).await,
                Err(ConnectionEnd) => return,
            }
        }
    }

    /// A node is dead, or must not go on: its present connection ends, and neither this keeper nor
    /// a later one welcomes this mount or an earlier one. Its tokens stay as they are.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub async fn fence(&self, node: NodeId) -> Result<()> {
        let refused = self.0.refuse_before(node.number, node.epoch + 1).await;
        refused.map(drop).map_err(|refusal| FsError::Stopped(refusal.why(node.number)))
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

    /// What node 0 does for others, once it is there.
    async fn desk(&self) -> Rc<dyn Desk> {
        loop {
            let opened = self.opened.wait();
            if let Some(desk) = &*self.desk.borrow() {
                return desk.clone();
            }
            opened.await;
        }
    }

    /// A node says what it has, or a part of it.
    async fn restate(
        &self,
        peer: &Rc<Peer>,
        part: Restated,
    ) -> std::result::Result<(), ConnectionEnd> {
        self.next_batch(peer)?;
        let all = {
            let mut restated = peer.restated.borrow_mut();
            let Some(all) = &mut *restated else { return Err(ConnectionEnd) };
            all.tokens.extend(part.tokens);
            all.locks.extend(part.locks);
            all.space.extend(part.space);
            all.numbers_end = all.numbers_end.max(part.numbers_end);
            all.next_give_back = all.next_give_back.max(part.next_give_back);
            if all.tokens.len() + all.locks.len() + all.space.len() > RESTATED_MAX {
                return Err(ConnectionEnd);
            }
            if !part.is_last {
                return Ok(());
            }
            restated.take().expect("it was there")
        };
        if all.numbers_end > self.next_number.get() {
            self.next_number.set(all.numbers_end);
            self.is_number_due.set(true);
        }
        if peer.node.number == 0 {
            return Ok(());
        }
        let desk = self.desk().await;
        let (rt, to): (Rt, Weak<Outbox>) = (self.rt.clone(), Rc::downgrade(&peer.outbox));
        let deliver = Rc::new(move |message| {
            if let Some(outbox) = to.upgrade() {
                outbox.post(&rt, FromKeeper::Token(message).to_bytes());
            }
        });
        if let Err(why) = desk.restated(peer.node, all, deliver) {
            let Some(why) = why else { return Err(ConnectionEnd) };
            peer.outbox.write(FromKeeper::Refused(why).to_bytes()).await;
            return Err(ConnectionEnd);
        }
        let (rt, to) = (self.rt.clone(), Rc::downgrade(&peer.outbox));
        let ask_back = Rc::new(move |round| {
            let outbox = to.upgrade();
            if let Some(outbox) = &outbox {
                outbox.post(&rt, FromKeeper::ReturnRoom { round }.to_bytes());
            }
            outbox.is_some()
        });
        desk.reached(peer.node, ask_back);
        Ok(())
    }

    /// Answers a wish when it can be answered. With no answer the connection ends.
    fn tell_later(&self, peer: &Rc<Peer>, number: u64, answer: IoFuture<'static, Option<Answer>>) {
        let peer = peer.clone();
        drop(self.rt.spawn(async move {
            match answer.await {
                // It is no answer that comes after how full the metadata is.
                Some(answer) => peer.tell(number, answer, Room::default).await,
                None => peer.stream.close(),
            }
        }));
    }

    /// Gives a node numbers for new files, when it is known which others have: a node may have
    /// numbers of the keeper before this one that are in no batch yet.
    async fn give_numbers(self: &Rc<Self>, peer: &Rc<Peer>, number: u64) {
        let known = self.desk().await.known();
        let (server, peer) = (self.clone(), peer.clone());
        drop(self.rt.spawn(async move {
            known.await;
            match server.answer(&peer, Question::Numbers).await {
                Ok(answer) => peer.tell(number, answer, || server.room(peer.node.number)).await,
                Err(ConnectionEnd) => peer.stream.close(),
            }
        }));
    }

    /// A node comes, on a connection of which it is told the second value.
    async fn join(
        &self,
        file_system: [u8; 16],
        node: NodeId,
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
                told: Cell::new(0),
            };
            self.members.borrow_mut().insert(node.number, member);
            let restated = RefCell::new(Some(Restated::default()));
            let changing = Semaphore::new(1);
            let changes_disks = Cell::new(false);
            let peer = Peer { node, connection, stream, outbox, changing, restated, changes_disks };
            (Rc::new(peer), next_batch)
        };
        // The batch before it may just have ended.
        self.make_durable().await?;
        let (capacity, pages) = (self.keeper.image.capacity(), self.keeper.image.pages_max());
        let rows_max = u32::try_from(rows_at_a_time(pages)).expect("few rows");
        Ok((peer, FromKeeper::Welcome { next_batch, capacity, rows_max }))
    }

    fn next_connection(&self) -> u64 {
        let connection = self.connections.get();
        self.connections.set(connection + 1);
        connection
    }

    /// How full the metadata is, for a node, which is told that now. What all nodes may add before
    /// they hear of it again stays below half of what is left.
    fn room(&self, node: u16) -> Room {
        let rows = self.row_bytes.borrow().values().fold(0, |sum: u64, of| sum.wrapping_add(*of));
        let members = self.members.borrow();
        let nodes = members.values().filter(|member| member.connection.is_some()).count();
        let part = 2 * nodes.max(1) as u64;
        let capacity = self.keeper.image.capacity();
        let left = |most: u64| most.saturating_sub(rows) / part;
        let room = Room {
            rows,
            left: left(row_bytes_for_all(capacity)),
            left_for_root: left(row_bytes_max(capacity)),
        };
        members.get(&node).iter().for_each(|member| member.told.set(room.left));
        room
    }

    /// A batch of a node has ended: the others hear of it if they may add much less now.
    fn tell_others_of_room(&self, node: u16) {
        let others: Vec<(u16, u64, Rc<Outbox>)> = {
            let members = self.members.borrow();
            let others = members
                .iter()
                .filter(|(number, member)| **number != node && member.connection.is_some());
            let of = |(number, member): (&u16, &Member)| {
                (*number, member.told.get(), member.outbox.clone())
            };
            others.map(of).collect()
        };
        for (number, told, outbox) in others {
            let room = self.room(number);
            if room.left < told / 4 * 3 {
                outbox.post(&self.rt, FromKeeper::Room(room).to_bytes());
            } else if let Some(member) = self.members.borrow().get(&number) {
                // It was not told.
                member.told.set(told);
            }
        }
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

    async fn answer(
        &self,
        peer: &Peer,
        question: Question,
    ) -> std::result::Result<Answer, ConnectionEnd> {
        match question {
            Question::Row { table, key } => {
                if !by_table!(table, |of| is_key(of, &key)) {
                    return Err(ConnectionEnd);
                }
                let _using = self.using.acquire(1).await;
                let row = || by_table!(table, |of| row(&self.keeper, of, &key));
                Ok(match self.result(fiber::run(row).await) {
                    Ok(value) => Answer::Row(value),
                    Err(failed) => failed,
                })
            }
            Question::Rows { table, range, is_backward, max } => {
                let bounds = [&range.0, &range.1];
                let is_known = bounds.iter().all(|bound| match bound {
                    std::ops::Bound::Unbounded => true,
                    std::ops::Bound::Included(key) | std::ops::Bound::Excluded(key) => {
                        by_table!(table, |of| is_key(of, key))
                    }
                });
                if !is_known {
                    return Err(ConnectionEnd);
                }
                let max = usize::try_from(max).unwrap_or(usize::MAX).min(ROWS_MAX);
                let _using = self.using.acquire(1).await;
                let rows =
                    || by_table!(table, |of| rows(&self.keeper, of, &range, is_backward, max));
                Ok(match self.result(fiber::run(rows).await) {
                    Ok((rows, is_end)) => Answer::Rows { rows, is_end },
                    Err(failed) => failed,
                })
            }
            Question::Count { table } => {
                let _using = self.using.acquire(1).await;
                let next_batch = self.next_batch(peer)?;
                let rows = fiber::run(|| by_table!(table, |of| self.keeper.len(of))).await;
                Ok(match self.result(rows) {
                    Ok(rows) => Answer::Count { rows, next_batch },
                    Err(failed) => failed,
                })
            }
            Question::Numbers => {
                self.next_batch(peer)?;
                let from = self.next_number.get();
                self.next_number.set(from + NUMBERS);
                self.is_number_due.set(true);
                Ok(Answer::Numbers(from, from + NUMBERS))
            }
            Question::Leave => {
                self.next_batch(peer)?;
                if peer.node.number != 0 {
                    self.desk().await.left(peer.node);
                }
                Ok(Answer::Taken)
            }
            Question::Alive => self.next_batch(peer).map(|_| Answer::Alive),
            Question::Part(part) => self.take(peer, part).await,
            Question::End(end) => self.end(peer, end).await,
            // The connection asks the desk.
            Question::Room(_) | Question::GiveBack(_) | Question::Log | Question::Lock(_) => {
                Err(ConnectionEnd)
            }
        }
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
        let is_sound = |row: &RowChange| by_table!(row.table, |of| is_change(of, row));
        let in_order =
            |one: &RowChange, next: &RowChange| (one.table, &one.key) < (next.table, &next.key);
        if !part.rows.iter().all(is_sound) || !part.rows.is_sorted_by(in_order) {
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
        if part.rows.iter().any(|row| row.table == TableId::Disks) {
            peer.changes_disks.set(true);
        }
        let taken = match self.check() {
            Ok(()) => self.result(fiber::run(|| self.keeper.take(&part.rows)).await),
            failed => failed,
        };
        Ok(taken.map_or_else(|failed| failed, |()| Answer::Taken))
    }

    async fn end(&self, peer: &Peer, end: End) -> std::result::Result<Answer, ConnectionEnd> {
        let next_batch = self.next_batch(peer)?;
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
            self.row_bytes.borrow_mut().insert(counted, row_bytes);
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
        if peer.changes_disks.take() && peer.node.number != 0 && ended == Answer::Durable {
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

fn is_key<K: StoreKey, V: Value>(_: &Table<K, V>, key: &RowKey<'_>) -> bool {
    key.name.len() <= NAME_BYTES_MAX && K::is_key(key)
}

fn is_change<K: StoreKey, V: Value>(of: &Table<K, V>, row: &RowChange) -> bool {
    let is_sound = |value: &[u8]| value.len() <= VALUE_BYTES_MAX && is_value::<V>(value);
    is_key(of, &row.key) && row.value.as_deref().is_none_or(is_sound)
}

fn row<K: StoreKey, V: Value>(
    keeper: &Keeper,
    table: &Table<K, V>,
    key: &RowKey<'_>,
) -> Result<Option<Box<[u8]>>> {
    keeper.value(table, &K::of(key))
}

/// Rows of a range, up to `max`, and whether there are no more.
fn rows<K: StoreKey, V: Value>(
    keeper: &Keeper,
    table: &Table<K, V>,
    range: &KeyRange<'_>,
    is_backward: bool,
    max: usize,
) -> Result<(Vec<Row>, bool)> {
    use crate::error::InDatabase as _;
    let mut found = Vec::new();
    if is_empty(range) {
        return Ok((found, true));
    }
    let Some(mut stored) = keeper.rows(table, range)? else { return Ok((found, true)) };
    let mut bytes = 0;
    while found.len() < max.max(1) && bytes < ANSWER_BYTES {
        let row = if is_backward { stored.next_back() } else { stored.next() };
        let Some((key, value)) = row.transpose().db()? else { return Ok((found, true)) };
        let value: Box<[u8]> = V::as_bytes(&value.value()).as_ref().into();
        bytes += value.len();
        found.push((K::row(&key.value()).into_owned(), value));
    }
    Ok((found, false))
}
