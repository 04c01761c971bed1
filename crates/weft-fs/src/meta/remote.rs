//! A keeper that is somewhere else, as the node reaches it: questions and answers over a stream of
//! bytes ([`weft_wire`]).
//!
//! A connection may end at any time, and a keeper may be another one after that. So a node relies
//! on nothing that it was not told on the present connection:
//!
//! * *Reads* are asked again. What the node knows better than the store lies in front of it
//!   ([`super::node`]), whether the store has it or not.
//! * *A batch* is kept by the node until the keeper says that it is durable. A keeper starts each
//!   connection with the number of the batch that comes next. If that is the kept one, the keeper
//!   has none of it, and all of it is sent again; if that is the one after it, it is there with all
//!   its parts, and the node asks only whether it is durable. So no batch is applied twice, and
//!   none in part.
//! * *Tokens.* Messages about them may be lost with a connection. So each one starts with what the
//!   node holds, and what it waits for is asked for again ([`DeskClient`]). A node connects again
//!   at once, whether it has a question or not: others may wait for its tokens.
//! * *Silence* for [`SILENCE`] counts as the end of a connection. A node that has nothing to ask
//!   asks for signs of life. Whatever the peer does later on the old connection has no effect: the
//!   keeper takes only one connection of a node.
//!
//! A node waits for a keeper without a bound of time, as its programs would wait for a disk. If the
//! keeper refuses it, the file system stops.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use redb::Value;
use weft_array::Id;
use weft_rt::sync::{Notify, Semaphore, Sender, oneshot};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND, fiber};
use weft_token::{Holding, NodeId, ToAuthority};
use weft_wire::{
    Answer, FIRST_VERSION, Frames, FromKeeper, Question, Restated, Room, Run, ToKeeper, VERSION,
    WireError, Work, WorkDone,
};

use super::desk::{DeskClient, EarlyClient, LockClient, SpaceClient};
use super::outbox::Outbox;
use super::rows::{RowKey, StoreKey, TableId};
use super::stream::{Connector, Stream, take_more};
use crate::error::{FsError, Result};

/// After so much time without a word a connection counts as lost.
pub(super) const SILENCE: Nanos = 10 * SECOND;
/// Time between two signs of life.
const ALIVE: Nanos = SILENCE / 4;
/// The most tokens, or runs of blocks, in a message.
const RESTATED_AT_A_TIME: usize = 10_000;
/// Time between two attempts to connect: at first, and later.
const PAUSE: std::ops::Range<Nanos> = 10 * MILLISECOND..SECOND;
/// The number of questions whose answers are not waited for.
const UNHEARD: u64 = u64::MAX;

/// A connection ended before an answer came.
pub(super) struct ConnectionLoss;

/// A connection to a keeper that said welcome.
pub(crate) struct Connection {
    rt: Rt,
    outbox: Rc<Outbox>,
    next_batch: Cell<u64>,
    capacity: u64,
    rows_max: usize,
    asked: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Sender<Answer>>>,
    /// When the keeper last said something.
    heard: Cell<Nanos>,
    is_lost: Cell<bool>,
    /// Told when it is.
    lost: Notify,
}

/// Ends a stream on which no connection came about.
struct StreamGuard(Option<Rc<dyn Stream>>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.iter().for_each(|stream| stream.close());
    }
}

/// Ends a connection, however that comes.
struct LossGuard<'a>(&'a Connection);

impl Drop for LossGuard<'_> {
    fn drop(&mut self) {
        self.0.lose();
    }
}

impl Connection {
    /// The first batch of this node that the keeper does not have.
    pub(super) fn next_batch(&self) -> u64 {
        self.next_batch.get()
    }

    /// The most rows of a part.
    pub(super) fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Whether it has not ended.
    pub(crate) fn is_there(&self) -> bool {
        !self.is_lost.get()
    }

    fn lose(&self) {
        if !self.is_lost.replace(true) {
            self.outbox.stream.close();
            drop(self.waiting.take());
            self.lost.notify_all();
        }
    }

    /// Asks, and waits for the answer.
    pub(super) async fn ask(
        &self,
        question: Question,
    ) -> std::result::Result<Answer, ConnectionLoss> {
        if self.is_lost.get() {
            return Err(ConnectionLoss);
        }
        let number = self.asked.get();
        self.asked.set(number + 1);
        let ends = match &question {
            Question::End(end) => Some(end.batch),
            _ => None,
        };
        let (sender, receiver) = oneshot();
        self.waiting.borrow_mut().insert(number, sender);
        let bytes = ToKeeper::Ask { number, question }.to_bytes();
        let mut asked = std::pin::pin!(async {
            if !self.outbox.write(bytes).await {
                self.lose();
            }
            receiver.await
        });
        let begin = self.rt.now();
        loop {
            // The question may have to wait, as long as the keeper says other things.
            let heard = self.heard.get().max(begin);
            let left = (heard + SILENCE).saturating_sub(self.rt.now());
            if left == 0 {
                self.lose();
                return Err(ConnectionLoss);
            }
            let silence = std::pin::pin!(self.rt.sleep(left));
            match select(asked.as_mut(), silence).await {
                Either::Left((Some(answer), _)) => {
                    if let (Some(batch), Answer::Durable) = (ends, &answer) {
                        self.next_batch.set(batch + 1);
                    }
                    return Ok(answer);
                }
                Either::Left((None, _)) => return Err(ConnectionLoss),
                Either::Right(_) => {}
            }
        }
    }

    /// Takes what the keeper says, until the connection ends.
    async fn listen(&self, mut frames: Frames, link: Weak<Link>) {
        let _end = LossGuard(self);
        while !self.is_lost.get() {
            match FromKeeper::next(&mut frames) {
                Ok(Some(FromKeeper::Answer { number, answer })) => {
                    if let (Answer::Numbers(_, to), Some(link)) = (&answer, link.upgrade()) {
                        // The next keeper is told at once.
                        link.numbers_end.set(link.numbers_end.get().max(*to));
                    }
                    let waiting = self.waiting.borrow_mut().remove(&number);
                    if let Some(waiting) = waiting {
                        waiting.send(answer);
                    }
                }
                Ok(Some(FromKeeper::Token(message))) => {
                    let client = link.upgrade().and_then(|link| link.client());
                    let Some(client) = client else { return };
                    client.take(message);
                }
                Ok(Some(FromKeeper::ReturnRoom { round })) => {
                    let client = link.upgrade().and_then(|link| link.space_client());
                    client.iter().for_each(|client| client.return_room(round));
                }
                Ok(Some(FromKeeper::Room(room))) => {
                    link.upgrade().iter().for_each(|link| link.room.set(room));
                }
                Ok(Some(FromKeeper::Capacity(bytes))) => {
                    link.upgrade().iter().for_each(|link| link.capacity.set(bytes));
                }
                Ok(Some(FromKeeper::LostDisks(disks))) => {
                    link.upgrade().iter().for_each(|link| link.note_lost(&disks));
                }
                Ok(Some(FromKeeper::Refused(why))) => {
                    link.upgrade().iter().for_each(|link| link.refuse(&why));
                    return;
                }
                Ok(None) if take_more(&*self.outbox.stream, &mut frames).await => {
                    self.heard.set(self.rt.now());
                }
                _ => return,
            }
        }
    }
}

/// Hears of a disk that is lost.
pub(crate) type LostClient = Rc<dyn Fn(u16)>;

/// The way of a node to its keepers.
pub(crate) struct Link {
    rt: Rt,
    way: Rc<dyn Connector>,
    file_system: Id,
    node: NodeId,
    connecting: Semaphore,
    /// The version that the next connection begins with.
    version: Cell<u16>,
    connection: RefCell<Option<Rc<Connection>>>,
    /// Bytes that the database may have.
    capacity: Cell<u64>,
    room: Cell<Room>,
    /// No number for a file was given to this node from this one on.
    numbers_end: Cell<u64>,
    client: RefCell<Option<Weak<dyn DeskClient>>>,
    space_client: RefCell<Option<Rc<dyn SpaceClient>>>,
    lock_client: RefCell<Option<Rc<dyn LockClient>>>,
    early_client: RefCell<Option<Rc<dyn EarlyClient>>>,
    /// Disks that are lost, as keepers have said, and who is told of them.
    lost_disks: RefCell<BTreeSet<u16>>,
    lost_client: RefCell<Option<LostClient>>,
    /// Why a keeper refused this node.
    refused: RefCell<Option<String>>,
    /// Whether this node has left. On another connection it would state what it has no more.
    has_left: Cell<bool>,
    /// Told when one did.
    ended: Notify,
}

/// The keeper of this node's metadata, on another machine.
pub(crate) struct RemoteKeeper(Rc<Link>);

impl Drop for RemoteKeeper {
    fn drop(&mut self) {
        self.0.refuse("it is not mounted any more");
        if let Some(connection) = self.0.connection.take() {
            connection.lose();
        }
    }
}

/// The keeper's answer does not fit the question.
pub(crate) fn unexpected() -> FsError {
    FsError::Stopped("the keeper of the metadata gave the answer to another question".into())
}

impl Link {
    /// The node at this end.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Whose tokens are restated, and who hears of them. It has none yet.
    pub(crate) fn set_client(&self, client: Weak<dyn DeskClient>) {
        *self.client.borrow_mut() = Some(client);
    }

    /// Whose blocks are stated. It has none yet.
    pub(crate) fn set_space_client(&self, client: Rc<dyn SpaceClient>) {
        *self.space_client.borrow_mut() = Some(client);
    }

    /// Whose locks are stated. It has none yet.
    pub(crate) fn set_lock_client(&self, client: Rc<dyn LockClient>) {
        *self.lock_client.borrow_mut() = Some(client);
    }

    /// Whose early commits are stated. It has none yet.
    pub(crate) fn set_early_client(&self, client: Rc<dyn EarlyClient>) {
        *self.early_client.borrow_mut() = Some(client);
    }

    /// Who hears of lost disks: of all of which keepers have spoken, and at once of each that
    /// follows.
    pub(crate) fn set_lost_client(&self, client: LostClient) {
        self.lost_disks.borrow().iter().for_each(|disk| client(*disk));
        *self.lost_client.borrow_mut() = Some(client);
    }

    fn note_lost(&self, disks: &[u16]) {
        self.lost_disks.borrow_mut().extend(disks);
        let client = self.lost_client.borrow().clone();
        client.iter().for_each(|client| disks.iter().for_each(|disk| client(*disk)));
    }

    fn space_client(&self) -> Option<Rc<dyn SpaceClient>> {
        self.space_client.borrow().clone()
    }

    fn client(&self) -> Option<Rc<dyn DeskClient>> {
        self.client.borrow().as_ref().and_then(Weak::upgrade)
    }

    /// Asks for a token or returns one. If that is lost with its connection, the next one begins
    /// with what it would have changed.
    pub(crate) fn tell(&self, message: ToAuthority) {
        self.post(ToKeeper::Token(message));
    }

    /// Sends a message on the present connection, if there is one.
    pub(crate) fn post(&self, message: ToKeeper) {
        if let Some(connection) = self.present() {
            connection.outbox.post(&self.rt, message.to_bytes());
        }
    }

    /// The connection to a keeper that said welcome.
    fn present(&self) -> Option<Rc<Connection>> {
        self.connection.borrow().clone().filter(|present| !present.is_lost.get())
    }

    /// The answer on the present connection; none without one, or if it ends before.
    pub(crate) async fn ask_once(&self, question: Question) -> Option<Answer> {
        self.present()?.ask(question).await.ok()
    }

    /// Asks for a part of a job, and says what came of the last one. It comes with its connection.
    /// None: that ended, and it has to be asked again.
    pub(crate) async fn next_work(
        self: &Rc<Self>,
        done: Option<WorkDone>,
    ) -> Result<Option<(Work, Rc<Connection>)>> {
        let connection = self.connected().await?;
        match connection.ask(Question::Work(done)).await {
            Ok(Answer::Work(work)) => Ok(Some((work, connection))),
            Ok(Answer::Failed(_)) => {
                connection.lose();
                Ok(None)
            }
            Ok(_) => Err(unexpected()),
            Err(ConnectionLoss) => Ok(None),
        }
    }

    /// Whether there is a connection to a keeper that said welcome.
    pub(crate) fn is_connected(&self) -> bool {
        self.present().is_some()
    }

    /// Waits until a keeper refuses this node. Returns why.
    pub(crate) async fn refusal(&self) -> String {
        loop {
            let ended = self.ended.wait();
            if let Some(why) = &*self.refused.borrow() {
                return why.clone();
            }
            ended.await;
        }
    }

    /// From now on this node asks nothing: a keeper has refused it.
    pub(crate) fn refuse(&self, why: &str) {
        self.refused.borrow_mut().get_or_insert_with(|| why.to_owned());
        self.ended.notify_all();
    }

    fn check(&self) -> Result<()> {
        if self.has_left.get() {
            return Err(FsError::Stopped("it is unmounted".to_owned()));
        }
        match &*self.refused.borrow() {
            Some(why) => Err(FsError::Stopped(format!("its keeper refuses this node: {why}"))),
            None => Ok(()),
        }
    }

    /// The present connection; makes one if there is none.
    async fn connected(self: &Rc<Self>) -> Result<Rc<Connection>> {
        let _one = self.connecting.acquire(1).await;
        self.check()?;
        if let Some(present) = self.present() {
            return Ok(present);
        }
        let mut pause = PAUSE.start;
        loop {
            self.check()?;
            let connect = std::pin::pin!(self.connect());
            let silence = std::pin::pin!(self.rt.sleep(SILENCE));
            if let Either::Left((connection, _)) = select(connect, silence).await {
                self.check()?;
                if let Some(connection) = connection {
                    return Ok(connection);
                }
            }
            self.rt.sleep(pause).await;
            pause = (2 * pause).min(PAUSE.end);
        }
    }

    /// A new connection; none if that failed and may be tried again, or the node is refused.
    async fn connect(self: &Rc<Self>) -> Option<Rc<Connection>> {
        let stream = self.way.connect().await.ok()?;
        let mut guard = StreamGuard(Some(stream.clone()));
        let (version, file_system) = (self.version.get(), self.file_system.0);
        let hello = ToKeeper::Hello { version, file_system, node: self.node };
        stream.write(hello.to_bytes()).await.ok()?;
        let mut frames = Frames::default();
        loop {
            match FromKeeper::next(&mut frames) {
                Ok(Some(FromKeeper::Welcome { next_batch, capacity, rows_max })) => {
                    let connection = Rc::new(Connection {
                        rt: self.rt.clone(),
                        outbox: Outbox::new(stream),
                        next_batch: Cell::new(next_batch),
                        capacity,
                        rows_max: usize::try_from(rows_max).unwrap_or(usize::MAX).max(1),
                        asked: Cell::new(0),
                        waiting: RefCell::default(),
                        heard: Cell::new(self.rt.now()),
                        is_lost: Cell::new(false),
                        lost: Notify::default(),
                    });
                    guard.0 = None;
                    self.version.set(VERSION);
                    self.begin(&connection, frames);
                    return Some(connection);
                }
                // Another node's batch ends just now.
                Ok(Some(FromKeeper::LostDisks(disks))) => self.note_lost(&disks),
                Ok(Some(FromKeeper::Refused(why))) => {
                    self.refuse(&why);
                    return None;
                }
                Err(WireError::Version(version)) => {
                    self.refuse(&WireError::Version(version).to_string());
                    return None;
                }
                Ok(None) if take_more(&*stream, &mut frames).await => {}
                _ => {
                    // The keeper may not know this version, or had to end: each is tried in turn.
                    self.version.set(FIRST_VERSION + VERSION - version);
                    return None;
                }
            }
        }
    }

    /// A keeper has said welcome. What the node has, and what it waits for, is told first; all of
    /// this is one moment, so that nothing else that it tells is between.
    fn begin(self: &Rc<Self>, connection: &Rc<Connection>, frames: Frames) {
        let client = self.client();
        let (held, asks) = client.map(|client| client.restate()).unwrap_or_default();
        let space = self.space_client().map(|client| client.state_space());
        let locks = self.lock_client.borrow().as_ref().map(|client| client.state_locks());
        let locks = locks.unwrap_or_default();
        let locks = locks.chunks(RESTATED_AT_A_TIME);
        let locks = locks.map(|some| Restated { locks: some.to_vec(), ..Restated::default() });
        let rest = restated(&held, &space.unwrap_or_default(), self.numbers_end.get());
        let parts: Vec<Restated> = locks.chain(rest).collect();
        for message in parts.into_iter().map(ToKeeper::Restate) {
            connection.outbox.post(&self.rt, message.to_bytes());
        }
        let early = self.early_client.borrow().as_ref().map(|client| client.live());
        let (live, commits) = early.map_or((None, Vec::new()), |(live, all)| (Some(live), all));
        // Each fsync hears whether its own is there. These have no listener.
        let commit = |commit| ToKeeper::Ask { number: UNHEARD, question: Question::Early(commit) };
        let early = live.map(ToKeeper::EarlyLive).into_iter();
        let early = early.chain(commits.into_iter().map(commit));
        for message in early.chain(asks.into_iter().map(ToKeeper::Token)) {
            connection.outbox.post(&self.rt, message.to_bytes());
        }
        self.capacity.set(connection.capacity);
        *self.connection.borrow_mut() = Some(connection.clone());
        let (listening, link) = (connection.clone(), Rc::downgrade(self));
        drop(self.rt.spawn(async move { listening.listen(frames, link).await }));
    }

    /// What the keeper answers; none if another keeper is to be asked. In the process of the keeper
    /// there is no other one.
    fn sound(&self, connection: &Connection, answer: Answer) -> Result<Option<Answer>> {
        match answer {
            Answer::Failed(why) if self.node.number == 0 => {
                Err(FsError::Stopped(format!("its keeper has failed: {why}")))
            }
            Answer::Failed(_) => {
                connection.lose();
                Ok(None)
            }
            answer => Ok(Some(answer)),
        }
    }

    /// The answer to a question that may be asked again.
    pub(crate) async fn answer(self: &Rc<Self>, question: Question) -> Result<Answer> {
        loop {
            let connection = self.connected().await?;
            if let Ok(answer) = connection.ask(question.clone()).await
                && let Some(answer) = self.sound(&connection, answer)?
            {
                return Ok(answer);
            }
        }
    }

    /// Keeps a connection while the node is there, with signs of life.
    async fn stay(link: Weak<Self>, rt: Rt) {
        loop {
            let Some(present) = link.upgrade() else { return };
            // It may be the last one to have it.
            let Ok(connection) = present.connected().await else { return };
            drop(present);
            let pause = std::pin::pin!(rt.sleep(ALIVE));
            let lost = std::pin::pin!(connection.lost.wait());
            if connection.is_lost.get() {
                continue;
            }
            if let Either::Left(_) = select(pause, lost).await {
                drop(connection.ask(Question::Alive).await);
            }
        }
    }
}

/// What a node has, in parts.
fn restated(
    held: &[Holding],
    (space, next_give_back): &(Vec<Run>, u64),
    numbers_end: u64,
) -> Vec<Restated> {
    let tokens = held
        .chunks(RESTATED_AT_A_TIME)
        .map(|tokens| Restated { tokens: tokens.to_vec(), ..Restated::default() });
    let space = space
        .chunks(RESTATED_AT_A_TIME)
        .map(|space| Restated { space: space.to_vec(), ..Restated::default() });
    let next_give_back = *next_give_back;
    let last = Restated { numbers_end, next_give_back, is_last: true, ..Restated::default() };
    tokens.chain(space).chain([last]).collect()
}

impl RemoteKeeper {
    /// Connects to the keeper.
    pub(crate) async fn open(
        rt: &Rt,
        way: Rc<dyn Connector>,
        file_system: Id,
        node: NodeId,
    ) -> Result<Self> {
        let keeper = Self(Rc::new(Link {
            rt: rt.clone(),
            way,
            file_system,
            node,
            connecting: Semaphore::new(1),
            version: Cell::new(VERSION),
            connection: RefCell::default(),
            capacity: Cell::new(0),
            room: Cell::default(),
            numbers_end: Cell::new(0),
            client: RefCell::default(),
            space_client: RefCell::default(),
            lock_client: RefCell::default(),
            early_client: RefCell::default(),
            lost_disks: RefCell::default(),
            lost_client: RefCell::default(),
            refused: RefCell::default(),
            has_left: Cell::new(false),
            ended: Notify::default(),
        }));
        keeper.connected().await?;
        drop(rt.spawn(Link::stay(Rc::downgrade(&keeper.0), rt.clone())));
        Ok(keeper)
    }

    /// The number of this node.
    pub(super) fn number(&self) -> u16 {
        self.0.node.number
    }

    /// The way to the keeper.
    pub(super) fn link(&self) -> Rc<Link> {
        self.0.clone()
    }

    /// Bytes that the database may have.
    pub(super) fn capacity(&self) -> u64 {
        self.0.capacity.get()
    }

    /// The present connection; makes one if there is none.
    pub(super) async fn connected(&self) -> Result<Rc<Connection>> {
        self.0.connected().await
    }

    /// The answer to a question that may be asked again.
    pub(super) async fn answer(&self, question: Question) -> Result<Answer> {
        self.0.answer(question).await
    }

    /// The same, for code on a fiber.
    pub(super) fn wait(&self, question: Question) -> Result<Answer> {
        let answer = fiber::wait(self.answer(question));
        answer.map_err(|cancelled| FsError::Stopped(cancelled.to_string()))?
    }

    /// The value of a row.
    pub(super) fn row<K: StoreKey, V: Value>(
        &self,
        table: TableId,
        key: &RowKey<'_>,
    ) -> Result<Option<Box<[u8]>>> {
        match self.wait(Question::Row { table, key: key.clone().into_owned() })? {
            Answer::Row(None) => Ok(None),
            Answer::Row(Some(value)) if is_value::<V>(&value) => Ok(Some(value)),
            _ => Err(unexpected()),
        }
    }

    /// Numbers for new files.
    pub(super) fn numbers(&self) -> Result<std::ops::Range<u64>> {
        match self.wait(Question::Numbers)? {
            Answer::Numbers(from, to) if from < to => Ok(from..to),
            _ => Err(unexpected()),
        }
    }

    /// All is durable, and this node goes: it has nothing any more.
    pub(super) async fn leave(&self) -> Result<()> {
        match self.answer(Question::Leave).await? {
            Answer::Taken => {
                self.0.has_left.set(true);
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    /// What the keeper said last of the room for rows.
    pub(super) fn room(&self) -> Room {
        self.0.room.get()
    }

    /// How many rows a table has, with all batches of this node before another number.
    pub(super) fn len(&self, table: TableId) -> Result<(u64, u64)> {
        match self.wait(Question::Count { table })? {
            Answer::Count { rows, next_batch } => Ok((rows, next_batch)),
            _ => Err(unexpected()),
        }
    }

    /// Sends a part of a batch, or its end, and waits until that is taken or durable. `false`: the
    /// connection was lost.
    pub(super) async fn send(&self, connection: &Connection, question: Question) -> Result<bool> {
        let is_end = matches!(question, Question::End(_));
        let Ok(answer) = connection.ask(question).await else { return Ok(false) };
        match (self.0.sound(connection, answer)?, is_end) {
            (Some(Answer::Taken), false) | (Some(Answer::Durable), true) => Ok(true),
            (None, _) => Ok(false),
            _ => Err(unexpected()),
        }
    }
}

/// Whether bytes can be read as such a value.
pub(super) fn is_value<V: Value>(bytes: &[u8]) -> bool {
    V::fixed_width().is_none_or(|width| width == bytes.len())
}
