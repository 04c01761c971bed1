//! One connection of a client: the requests in flight on it, and the loop that takes answers.
//!
//! Each request has an entry in a table. The entry's index and a counter form the cookie, and a
//! one-shot hands over the answer. Data of a read is received straight into the caller's buffer.
//! When the connection ends, for any reason, every request in the table gets [`Answer::Lost`].

use std::cell::{Cell, RefCell};
use std::io;

use rustix::net::{Shutdown, shutdown};
use weft_rt::ring::Fd;
use weft_rt::sync::{Receiver, Sender, oneshot};
use weft_rt::{Buf, Frozen, Nanos};

use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::proto::{
    Chunk, Coverage, Errno, Request, Response, Violation, error_of_chunk, put_request, wire,
};

/// How a request ended. A read gets its buffer back.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Option<Buf>),
    Refused(Errno, String, Option<Buf>),
    Lost(Option<Buf>),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the server broke the protocol: {0}")]
    Protocol(#[from] Violation),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the server closed the connection")]
    Closed,
}

struct Pending {
    request: Request,
    started: Nanos,
    /// What a read fills; away while data is being received.
    buf: Option<Buf>,
    /// What has come of a read's data.
    received: Coverage,
    refusal: Option<(Errno, String)>,
    answer: Sender<Answer>,
    /// Writes completed before this flush started.
    writes_before: u64,
}

#[derive(Default)]
struct Table {
    slots: Vec<Option<Pending>>,
    free: Vec<u32>,
    count: u32,
    ended: bool,
}

/// Writes that were not yet made durable, across all connections of a disk.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Writes that have completed and were not durable when they did.
    written: Cell<u64>,
    /// So many of the first of them are durable.
    flushed: Cell<u64>,
}

impl Durability {
    pub(super) fn has_unflushed(&self) -> bool {
        self.written.get() > self.flushed.get()
    }

    fn note(&self, pending: &Pending) {
        let fua = pending.request.flags & wire::CMD_FLAG_FUA != 0;
        match pending.request.command {
            wire::CMD_FLUSH => self.flushed.set(self.flushed.get().max(pending.writes_before)),
            wire::CMD_WRITE | wire::CMD_WRITE_ZEROES if !fua => {
                self.written.set(self.written.get() + 1);
            }
            _ => {}
        }
    }
}

/// A connection in transmission.
pub(super) struct Link {
    pub(super) fd: Fd,
    pub(super) outbox: Outbox<()>,
    table: RefCell<Table>,
    cut_because: Cell<Option<&'static str>>,
}

impl Link {
    pub(super) fn new(fd: Fd) -> Self {
        Self { fd, outbox: Outbox::new(), table: RefCell::default(), cut_because: Cell::new(None) }
    }

    /// Sends a request that was made at `started`; the receiver gives the answer.
    pub(super) fn submit(
        &self,
        mut request: Request,
        data: Option<Frozen>,
        buf: Option<Buf>,
        started: Nanos,
        durability: &Durability,
    ) -> Receiver<Answer> {
        let (answer, receiver) = oneshot();
        let mut table = self.table.borrow_mut();
        if table.ended {
            drop(table);
            answer.send(Answer::Lost(buf));
            return receiver;
        }
        let index = table.free.pop().unwrap_or_else(|| {
            table.slots.push(None);
            u32::try_from(table.slots.len() - 1).expect("requests in flight are bounded")
        });
        table.count = table.count.wrapping_add(1);
        request.cookie = u64::from(table.count) << 32 | u64::from(index);
        table.slots[index as usize] = Some(Pending {
            request,
            started,
            buf,
            received: Coverage::default(),
            refusal: None,
            answer,
            writes_before: durability.written.get(),
        });
        drop(table);
        self.outbox.push(|out| put_request(out, &request), data, ());
        receiver
    }

    /// Whether it answers no request any more.
    pub(super) fn has_ended(&self) -> bool {
        self.table.borrow().ended
    }

    /// When the oldest request in flight was made.
    pub(super) fn oldest(&self) -> Option<Nanos> {
        let table = self.table.borrow();
        table.slots.iter().flatten().map(|pending| pending.started).min()
    }

    /// Whether a request is in flight that is not just a read.
    pub(super) fn is_modifying(&self) -> bool {
        let table = self.table.borrow();
        table.slots.iter().flatten().any(|pending| pending.request.command != wire::CMD_READ)
    }

    /// Ends the connection now.
    pub(super) fn cut(&self, why: &'static str) {
        self.cut_because.set(Some(why));
        // It may be gone already.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Why it was cut, if it was.
    pub(super) fn cut_because(&self) -> Option<&'static str> {
        self.cut_because.get()
    }

    /// Answers every request in flight, and any later one, that the connection is lost.
    pub(super) fn end(&self) {
        self.outbox.close();
        let slots = {
            let mut table = self.table.borrow_mut();
            table.ended = true;
            std::mem::take(&mut table.slots)
        };
        for pending in slots.into_iter().flatten() {
            pending.answer.send(Answer::Lost(pending.buf));
        }
    }

    /// Takes answers until the connection ends.
    pub(super) async fn receive(
        &self,
        inbox: &mut Inbox,
        durability: &Durability,
    ) -> Result<(), LinkError> {
        loop {
            match next_response(inbox).await? {
                Response::Simple { cookie, error: None } => {
                    self.receive_simple_data(inbox, cookie).await?;
                    self.complete(cookie, durability)?;
                }
                Response::Simple { cookie, error: Some(errno) } => {
                    self.with(cookie, |pending| {
                        pending.refusal = Some((errno, String::new()));
                    })?;
                    self.complete(cookie, durability)?;
                }
                Response::Chunk { cookie, kind, done, len } => {
                    self.receive_chunk(inbox, cookie, kind, len).await?;
                    if done {
                        self.complete(cookie, durability)?;
                    }
                }
            }
        }
    }

    fn with<T>(&self, cookie: u64, f: impl FnOnce(&mut Pending) -> T) -> Result<T, Violation> {
        let mut table = self.table.borrow_mut();
        let index = cookie & u64::from(u32::MAX);
        let slot = usize::try_from(index).ok().and_then(|index| table.slots.get_mut(index));
        match slot {
            Some(Some(pending)) if pending.request.cookie == cookie => Ok(f(pending)),
            _ => Err(Violation::Cookie(cookie)),
        }
    }

    fn complete(&self, cookie: u64, durability: &Durability) -> Result<(), Violation> {
        let whole = self.with(cookie, |pending| {
            pending.refusal.is_some()
                || pending.request.command != wire::CMD_READ
                || pending.received.is_whole(pending.request.len.into())
        })?;
        if !whole {
            return Err(Violation::Malformed("reply: data is missing"));
        }
        let index = u32::try_from(cookie & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let mut table = self.table.borrow_mut();
        let Some(pending) = table.slots[index as usize].take() else { return Ok(()) };
        table.free.push(index);
        drop(table);
        let answer = match pending.refusal {
            Some((errno, text)) => Answer::Refused(errno, text, pending.buf),
            None => {
                durability.note(&pending);
                Answer::Done(pending.buf)
            }
        };
        pending.answer.send(answer);
        Ok(())
    }

    async fn receive_simple_data(&self, inbox: &mut Inbox, cookie: u64) -> Result<(), LinkError> {
        let request = self.with(cookie, |pending| pending.request)?;
        if request.command == wire::CMD_READ && request.len > 0 {
            self.receive_data(inbox, cookie, request.offset, request.len.into()).await?;
        }
        Ok(())
    }

    async fn receive_chunk(
        &self,
        inbox: &mut Inbox,
        cookie: u64,
        kind: Chunk,
        len: u32,
    ) -> Result<(), LinkError> {
        match kind {
            Chunk::None => Ok(()),
            Chunk::Data => {
                let offset = take_u64(inbox).await?;
                self.receive_data(inbox, cookie, offset, u64::from(len) - 8).await
            }
            Chunk::Hole => {
                let offset = take_u64(inbox).await?;
                let payload = take(inbox, 4).await?;
                let zeros = payload.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
                self.with(cookie, |pending| {
                    let range = range_in(pending, offset, zeros)?;
                    if let Some(buf) = &mut pending.buf {
                        buf[range].fill(0);
                    }
                    Ok::<_, Violation>(())
                })??;
                Ok(())
            }
            Chunk::Error => {
                let payload = take(inbox, len as usize).await?;
                let refusal = error_of_chunk(&payload)?;
                self.with(cookie, |pending| _ = pending.refusal.get_or_insert(refusal))?;
                Ok(())
            }
            Chunk::Other(_) => Err(Violation::Malformed("reply: unrequested chunk").into()),
        }
    }

    /// Receives data straight to its place in the buffer of a read.
    async fn receive_data(
        &self,
        inbox: &mut Inbox,
        cookie: u64,
        offset: u64,
        len: u64,
    ) -> Result<(), LinkError> {
        let (range, mut buf) = self.with(cookie, |pending| {
            let range = range_in(pending, offset, len)?;
            let buf = pending.buf.take().ok_or(Violation::Malformed("reply: data twice"))?;
            Ok::<_, Violation>((range, buf))
        })??;
        let after = buf.split_off(range.end);
        let middle = buf.split_off(range.start);
        let filled = inbox.take_payload(middle).await?.ok_or(LinkError::Closed)?;
        for part in [filled, after] {
            buf.join(part).expect("the parts of one buffer follow each other");
        }
        self.with(cookie, |pending| {
            pending.buf = Some(buf);
        })?;
        Ok(())
    }
}

/// Where in the buffer of a read `len` bytes from `offset` (of the export) lie, which come now. No
/// byte may come twice, and none from outside the requested range.
fn range_in(
    pending: &mut Pending,
    offset: u64,
    len: u64,
) -> Result<std::ops::Range<usize>, Violation> {
    const OUTSIDE: Violation = Violation::Malformed("reply: data outside of the requested range");
    let request = &pending.request;
    let total = u64::from(request.len);
    let start = offset.checked_sub(request.offset).filter(|start| *start <= total);
    let start = start.filter(|start| request.command == wire::CMD_READ && len <= total - start);
    let Some(start) = start else { return Err(OUTSIDE) };
    pending.received.add(start..start + len)?;
    let index = |at: u64| usize::try_from(at).map_err(|_| OUTSIDE);
    Ok(index(start)?..index(start + len)?)
}

/// The next head of an answer.
async fn next_response(inbox: &mut Inbox) -> Result<Response, LinkError> {
    let mut wanted = wire::SIMPLE_REPLY_BYTES;
    loop {
        if !inbox.fill(wanted).await? {
            return Err(LinkError::Closed);
        }
        if let Some((response, len)) = Response::parse(inbox.bytes())? {
            inbox.consume(len);
            return Ok(response);
        }
        wanted = wire::CHUNK_HEAD_BYTES;
    }
}

async fn take(inbox: &mut Inbox, len: usize) -> Result<Vec<u8>, LinkError> {
    if !inbox.fill(len).await? {
        return Err(LinkError::Closed);
    }
    let bytes = inbox.bytes()[..len].to_vec();
    inbox.consume(len);
    Ok(bytes)
}

async fn take_u64(inbox: &mut Inbox) -> Result<u64, LinkError> {
    if !inbox.fill(8).await? {
        return Err(LinkError::Closed);
    }
    let value = inbox.bytes()[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    inbox.consume(8);
    Ok(value)
}
