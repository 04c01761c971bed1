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
//! * *Silence* for [`SILENCE`] counts as the end of a connection. Whatever the peer does later on
//!   the old one has no effect: the keeper takes only one connection of a node.
//!
//! A node waits for a keeper without a bound of time, as its programs would wait for a disk. If the
//! keeper refuses it, the file system stops.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Bound;
use std::rc::Rc;

use futures_util::future::{Either, select};
use redb::Value;
use weft_array::Id;
use weft_disk::IoFuture;
use weft_rt::sync::{Semaphore, Sender, oneshot};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND, fiber};
use weft_token::NodeId;
use weft_wire::{Answer, Frames, FromKeeper, Question, Row, ToKeeper, WireError};

use super::rows::{KeyRange, RowKey, StoreKey, TableId};
use crate::error::{FsError, Result};

/// A stream of bytes between a node and a keeper. Boxed futures, as networks of all kinds stand
/// side by side.
pub trait Stream {
    /// Waits for bytes and takes them; none at the end of the stream.
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>>;

    /// Sends bytes.
    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>>;

    /// Ends the stream: the reads and writes of both sides fail or end.
    fn close(&self);
}

/// Waits for bytes of a stream; whether there were any.
pub(super) async fn take_more(stream: &dyn Stream, frames: &mut Frames) -> bool {
    let bytes = stream.read().await.unwrap_or_default();
    frames.push(&bytes);
    !bytes.is_empty()
}

/// The way to the keeper, which may be another one each time.
pub trait Connector {
    /// Connects.
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>>;
}

/// After so much time without an answer a connection counts as lost.
pub(super) const SILENCE: Nanos = 10 * SECOND;
/// Time between two attempts to connect: at first, and later.
const PAUSE: std::ops::Range<Nanos> = 10 * MILLISECOND..SECOND;
/// Rows that are asked for together: at first, and later.
const ROWS: std::ops::Range<u32> = 8..256;

/// A connection ended before an answer came.
pub(super) struct ConnectionLoss;

/// A connection to a keeper that said welcome.
pub(super) struct Connection {
    rt: Rt,
    stream: Rc<dyn Stream>,
    next_batch: Cell<u64>,
    capacity: u64,
    rows_max: usize,
    asked: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Sender<Answer>>>,
    writing: Semaphore,
    is_lost: Cell<bool>,
}

/// Ends a connection unless something came to its end: a part of a message may have been sent.
struct LossGuard<'a>(&'a Connection, bool);

impl Drop for LossGuard<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.lose();
        }
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

    fn lose(&self) {
        if !self.is_lost.replace(true) {
            self.stream.close();
            drop(self.waiting.take());
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
        let asked = std::pin::pin!(async {
            {
                let _one = self.writing.acquire(1).await;
                let mut whole = LossGuard(self, false);
                whole.1 = self.stream.write(bytes).await.is_ok();
            }
            receiver.await
        });
        let silence = std::pin::pin!(self.rt.sleep(SILENCE));
        match select(asked, silence).await {
            Either::Left((Some(answer), _)) => {
                if let (Some(batch), Answer::Durable) = (ends, &answer) {
                    self.next_batch.set(batch + 1);
                }
                Ok(answer)
            }
            Either::Left((None, _)) => Err(ConnectionLoss),
            Either::Right(_) => {
                self.lose();
                Err(ConnectionLoss)
            }
        }
    }

    /// Takes answers until the connection ends.
    async fn take_answers(&self, mut frames: Frames) {
        let _end = LossGuard(self, false);
        loop {
            match FromKeeper::next(&mut frames) {
                Ok(Some(FromKeeper::Answer { number, answer })) => {
                    let waiting = self.waiting.borrow_mut().remove(&number);
                    if let Some(waiting) = waiting {
                        waiting.send(answer);
                    }
                }
                Ok(None) if take_more(&*self.stream, &mut frames).await => {}
                _ => return,
            }
        }
    }
}

/// The keeper of this node's metadata, on another machine.
pub(crate) struct RemoteKeeper {
    rt: Rt,
    way: Rc<dyn Connector>,
    file_system: Id,
    node: NodeId,
    connecting: Semaphore,
    connection: RefCell<Option<Rc<Connection>>>,
    /// Bytes that the database may have.
    capacity: Cell<u64>,
}

impl Drop for RemoteKeeper {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.lose();
        }
    }
}

fn unexpected() -> FsError {
    FsError::Stopped("the keeper of the metadata gave the answer to another question".into())
}

/// What the keeper answers; fails if it can do nothing any more.
fn sound(answer: Answer) -> Result<Answer> {
    match answer {
        Answer::Failed(why) => Err(FsError::Stopped(format!("its keeper has failed: {why}"))),
        answer => Ok(answer),
    }
}

impl RemoteKeeper {
    /// Connects to the keeper.
    pub(crate) async fn open(
        rt: &Rt,
        way: Rc<dyn Connector>,
        file_system: Id,
        node: NodeId,
    ) -> Result<Self> {
        let (connecting, connection) = (Semaphore::new(1), RefCell::default());
        let (rt, capacity) = (rt.clone(), Cell::new(0));
        let keeper = Self { rt, way, file_system, node, connecting, connection, capacity };
        keeper.connected().await?;
        Ok(keeper)
    }

    /// The number of this node.
    pub(super) fn number(&self) -> u16 {
        self.node.number
    }

    /// Bytes that the database may have.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity.get()
    }

    /// The present connection; makes one if there is none.
    pub(super) async fn connected(&self) -> Result<Rc<Connection>> {
        let _one = self.connecting.acquire(1).await;
        let present = self.connection.borrow().clone();
        if let Some(present) = present.filter(|present| !present.is_lost.get()) {
            return Ok(present);
        }
        let mut pause = PAUSE.start;
        loop {
            let connect = std::pin::pin!(self.connect());
            let silence = std::pin::pin!(self.rt.sleep(SILENCE));
            if let Either::Left((connection, _)) = select(connect, silence).await
                && let Some(connection) = connection?
            {
                self.capacity.set(connection.capacity);
                *self.connection.borrow_mut() = Some(connection.clone());
                return Ok(connection);
            }
            self.rt.sleep(pause).await;
            pause = (2 * pause).min(PAUSE.end);
        }
    }

    /// A new connection; none if that failed and may be tried again.
    async fn connect(&self) -> Result<Option<Rc<Connection>>> {
        let refused =
            |why: String| FsError::Stopped(format!("its keeper refuses this node: {why}"));
        let Ok(stream) = self.way.connect().await else { return Ok(None) };
        let hello = ToKeeper::Hello { file_system: self.file_system.0, node: self.node };
        if stream.write(hello.to_bytes()).await.is_err() {
            return Ok(None);
        }
        let mut frames = Frames::default();
        loop {
            match FromKeeper::next(&mut frames) {
                Ok(Some(FromKeeper::Welcome { next_batch, capacity, rows_max })) => {
                    let connection = Rc::new(Connection {
                        rt: self.rt.clone(),
                        stream,
                        next_batch: Cell::new(next_batch),
                        capacity,
                        rows_max: usize::try_from(rows_max).unwrap_or(usize::MAX).max(1),
                        asked: Cell::new(0),
                        waiting: RefCell::default(),
                        writing: Semaphore::new(1),
                        is_lost: Cell::new(false),
                    });
                    let taking = connection.clone();
                    drop(self.rt.spawn(async move { taking.take_answers(frames).await }));
                    return Ok(Some(connection));
                }
                Ok(Some(FromKeeper::Refused(why))) => return Err(refused(why)),
                Err(WireError::Version(version)) => {
                    return Err(refused(WireError::Version(version).to_string()));
                }
                Ok(None) if take_more(&*stream, &mut frames).await => {}
                _ => return Ok(None),
            }
        }
    }

    /// The answer to a question that may be asked again.
    async fn answer(&self, question: Question) -> Result<Answer> {
        loop {
            if let Ok(answer) = self.connected().await?.ask(question.clone()).await {
                return sound(answer);
            }
        }
    }

    /// The same, for code on a fiber.
    fn wait(&self, question: Question) -> Result<Answer> {
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

    /// The rows of a part of a table.
    pub(super) fn rows(&self, table: TableId, (from, to): &KeyRange<'_>) -> RemoteRows<'_> {
        let owned = |bound: &Bound<RowKey<'_>>| bound.as_ref().map(|key| key.clone().into_owned());
        let range = (owned(from), owned(to));
        let (rows, is_end) = (VecDeque::new(), false);
        RemoteRows { keeper: self, table, range, rows, is_end, max: ROWS.start }
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
    pub(super) async fn send(connection: &Connection, question: Question) -> Result<bool> {
        let is_end = matches!(question, Question::End(_));
        let Ok(answer) = connection.ask(question).await else { return Ok(false) };
        match (sound(answer)?, is_end) {
            (Answer::Taken, false) | (Answer::Durable, true) => Ok(true),
            _ => Err(unexpected()),
        }
    }
}

/// Whether bytes can be read as such a value.
pub(super) fn is_value<V: Value>(bytes: &[u8]) -> bool {
    V::fixed_width().is_none_or(|width| width == bytes.len())
}

/// Rows that are asked for as they are needed.
pub(super) struct RemoteRows<'a> {
    keeper: &'a RemoteKeeper,
    table: TableId,
    /// What was not asked for.
    range: KeyRange<'static>,
    rows: VecDeque<Row>,
    is_end: bool,
    max: u32,
}

impl RemoteRows<'_> {
    /// The next row from the front, or from the back: always the same.
    pub(super) fn next<K: StoreKey, V: Value>(&mut self, is_backward: bool) -> Result<Option<Row>> {
        if self.rows.is_empty() && !self.is_end {
            let max = if is_backward { 1 } else { self.max };
            self.max = (2 * self.max).min(ROWS.end);
            let range = self.range.clone();
            let asked = Question::Rows { table: self.table, range, is_backward, max };
            let Answer::Rows { rows, is_end } = self.keeper.wait(asked)? else {
                return Err(unexpected());
            };
            match rows.last() {
                Some((key, _)) if is_backward => self.range.1 = Bound::Excluded(key.clone()),
                Some((key, _)) => self.range.0 = Bound::Excluded(key.clone()),
                None if !is_end => return Err(unexpected()),
                None => {}
            }
            let is_row = |(key, value): &Row| K::is_key(key) && is_value::<V>(value);
            if !rows.iter().all(is_row) {
                return Err(unexpected());
            }
            (self.rows, self.is_end) = (rows.into(), is_end);
        }
        Ok(self.rows.pop_front())
    }
}
