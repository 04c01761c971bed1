//! Receives, checks, carries out and answers requests.

use std::rc::Rc;

use weft_disk::{AllocationRange, Volume, VolumeError};
use weft_rt::{Buf, Frozen};

use super::ServerState;
use super::connection::{Connection, Fault, Stage, Ticket};
use super::memory::Share;
use crate::export::errno;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::proto::{
    Command, Errno, Limits, Request, put_block_status, put_data_chunk_head, put_empty_chunk,
    put_error_chunk, put_simple_reply, wire,
};

/// While more than this waits to be sent, no further request is started: data that is read faster
/// than the client takes it would only fall out of the processor's caches.
const BYTES_UNSENT_MAX: usize = 1 << 20;

/// Extents in one reply, at most.
const EXTENTS_MAX: usize = 1024;

/// How a client left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// It announced it: requests in flight are carried out and answered.
    Goodbye,
    /// It ended the stream between two requests.
    Silent,
}

/// State that the requests of one connection share.
struct Service {
    server: Rc<ServerState>,
    connection: Rc<Connection>,
    volume: Rc<dyn Volume>,
    structured: bool,
}

/// Takes requests until the client leaves.
pub(super) async fn run(
    server: &Rc<ServerState>,
    connection: &Rc<Connection>,
    inbox: &mut Inbox,
    volume: &Rc<dyn Volume>,
    limits: &Limits,
) -> Result<Leave, Fault> {
    let service = Rc::new(Service {
        server: server.clone(),
        connection: connection.clone(),
        volume: volume.clone(),
        structured: limits.structured,
    });
    loop {
        if !inbox.fill(wire::REQUEST_BYTES).await? {
            let between = inbox.bytes().is_empty();
            return if between { Ok(Leave::Silent) } else { Err(Fault::Vanished("in a request")) };
        }
        connection.stage.set(Stage::Used);
        let request = Request::parse(inbox.bytes())?;
        inbox.consume(wire::REQUEST_BYTES);
        let mut ticket = Ticket::default();
        let requests = &connection.requests;
        ticket.request = Some(match requests.try_acquire(1) {
            Some(permit) => permit,
            None => requests.acquire(1).await,
        });
        let verdict = if connection.draining.get() {
            Err((Errno::Shutdown, "the server is shutting down"))
        } else {
            request.check(limits)
        };
        match verdict {
            Ok(Command::Disconnect) => return Ok(Leave::Goodbye),
            Ok(command) => {
                let (memory, share) = receive(server, connection, inbox, &request, command).await?;
                ticket.memory = share;
                service.begin(request, command, memory, ticket);
            }
            Err((errno, text)) => {
                let skipped = skip_payload(inbox, &request, limits).await;
                // Only now: to clients that are still sending, an early reply is out of order. One
                // whose data is too long to wait for gets it at once, and is then disconnected.
                service.refuse(&request, errno, text, ticket);
                skipped?;
            }
        }
    }
}

/// The payload of a request that was refused is on its way nevertheless.
async fn skip_payload(inbox: &mut Inbox, request: &Request, limits: &Limits) -> Result<(), Fault> {
    let len = request.payload_len();
    // A slight excess over the bound may be a mistake; a large one is not.
    if len / 2 > limits.payload_max {
        let (len, max) = (len.into(), limits.payload_max.into());
        let place = "the data of a write";
        return Err(crate::proto::Violation::TooLong { place, len, max }.into());
    }
    if inbox.skip(len as usize).await? {
        Ok(())
    } else {
        Err(Fault::Vanished("in the data of a write"))
    }
}

/// The memory of a request: for a read an empty buffer, for a write its payload. Waits until the
/// client takes its replies, and the bounds allow for another request.
async fn receive(
    server: &ServerState,
    connection: &Connection,
    inbox: &mut Inbox,
    request: &Request,
    command: Command,
) -> Result<(Option<Buf>, Option<Share>), Fault> {
    let len = request.len as usize;
    let pool = &server.pool;
    let (buf, share) = match command {
        Command::Write { .. } => {
            let share = match connection.try_take(pool, len, true) {
                Some(share) => share,
                None => {
                    if len > 0 && !inbox.await_payload().await? {
                        return Err(Fault::Vanished("in the data of a write"));
                    }
                    connection.take(pool, len).await
                }
            };
            let Some(buf) = inbox.take_payload(Buf::new(len)).await? else {
                return Err(Fault::Vanished("in the data of a write"));
            };
            connection.received.set(connection.received.get().saturating_add(len as u64));
            // Only now: a client may send all of a write before it looks at replies.
            connection.outbox.drained_to(BYTES_UNSENT_MAX).await;
            return Ok((Some(buf), Some(share)));
        }
        Command::Read { .. } => {
            connection.outbox.drained_to(BYTES_UNSENT_MAX).await;
            let share = match connection.try_take(pool, len, false) {
                Some(share) => share,
                None => connection.take(pool, len).await,
            };
            (Some(Buf::new(len)), Some(share))
        }
        Command::Trim { .. } | Command::WriteZeroes { .. } => {
            connection.outbox.drained_to(BYTES_UNSENT_MAX).await;
            (None, Some(work_share(server, connection, request.len.into()).await))
        }
        Command::Flush | Command::BlockStatus { .. } | Command::Disconnect => {
            connection.outbox.drained_to(BYTES_UNSENT_MAX).await;
            (None, None)
        }
    };
    inbox.expect_small();
    Ok((buf, share))
}

/// The memory that a piece of a trim or of zeros counts: as much as a write of its length, but no
/// more than the longest one. It holds hardly any memory, but other requests have to wait for it.
async fn work_share(server: &ServerState, connection: &Connection, len: u64) -> Share {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(server.config.payload_max() as usize);
    match connection.try_take(&server.pool, len, false) {
        Some(share) => share,
        None => connection.take(&server.pool, len).await,
    }
}

impl Service {
    fn outbox(&self) -> &Outbox<Ticket> {
        &self.connection.outbox
    }

    /// Starts a request: it ends in this very turn if it can, else a task carries it on.
    fn begin(
        self: &Rc<Self>,
        request: Request,
        command: Command,
        memory: Option<Buf>,
        ticket: Ticket,
    ) {
        let service = self.clone();
        self.server.rt.launch(Box::pin(async move {
            service.carry_out(&request, command, memory, ticket).await;
        }));
    }

    async fn carry_out(
        &self,
        request: &Request,
        command: Command,
        memory: Option<Buf>,
        mut ticket: Ticket,
    ) {
        let offset = request.offset;
        let memory = memory.unwrap_or_else(|| Buf::new(0));
        let done = match command {
            // The protocol leaves open what a range of no bytes means. It succeeds, as with other
            // servers, without a call of the volume.
            Command::Read { .. } if request.len == 0 => {
                return self.send_data(request, memory.freeze(), ticket);
            }
            Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. }
                if request.len == 0 =>
            {
                Ok(())
            }
            Command::Read { .. } => {
                let (result, buf) = self.volume.read(offset, memory).await;
                return match result {
                    Ok(()) => self.send_data(request, buf.freeze(), ticket),
                    Err(error) => self.fail(request, &error, ticket),
                };
            }
            Command::BlockStatus { one } => return self.send_status(request, one, ticket),
            Command::Write { fua } => self.volume.write(offset, memory.freeze(), fua).await,
            Command::Flush => self.volume.flush().await,
            Command::WriteZeroes { fast: true, .. } if !self.volume.info().fast_zeroes => {
                let text = "zeroes would not be faster than a write";
                return self.refuse(request, Errno::NotSupported, text, ticket);
            }
            Command::Trim { .. } | Command::WriteZeroes { .. } => {
                match Box::pin(self.in_pieces(request, command, &mut ticket)).await {
                    Some(done) => done,
                    None => {
                        let text =
                            "the server is shutting down: only part of the range was processed";
                        return self.refuse(request, Errno::Shutdown, text, ticket);
                    }
                }
            }
            Command::Disconnect => Ok(()),
        };
        match done {
            Ok(()) => {
                self.outbox().push(|out| put_simple_reply(out, request.cookie, None), None, ticket);
            }
            Err(error) => self.fail(request, &error, ticket),
        }
    }

    /// Trims or zeroes piece by piece. Before each but the first, other requests get their turn.
    /// `None` if it ended early, since the client has gone or the server stops.
    async fn in_pieces(
        &self,
        request: &Request,
        command: Command,
        ticket: &mut Ticket,
    ) -> Option<Result<(), VolumeError>> {
        let (volume, connection) = (&self.volume, &self.connection);
        let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
        let is_over = || connection.draining.get() || connection.gone.get();
        while at < end {
            if ticket.memory.is_none() && !is_over() {
                ticket.memory = Some(work_share(&self.server, connection, end - at).await);
            }
            if is_over() {
                return None;
            }
            let piece_end = volume.zeroes_end(at).clamp(at + 1, end);
            let len = piece_end - at;
            let done = match command {
                Command::WriteZeroes { fua, may_trim, .. } => {
                    volume.write_zeroes(at, len, fua, may_trim).await
                }
                _ => volume.discard(at, len).await,
            };
            if done.is_err() {
                return Some(done);
            }
            at = piece_end;
            ticket.memory = None;
        }
        Some(match command {
            Command::Trim { fua: true } => volume.flush().await,
            _ => Ok(()),
        })
    }

    fn fail(&self, request: &Request, error: &VolumeError, ticket: Ticket) {
        self.refuse(request, errno(error), &error.to_string(), ticket);
    }

    fn refuse(&self, request: &Request, errno: Errno, text: &str, ticket: Ticket) {
        let (cookie, connection) = (request.cookie, &self.connection);
        if connection.draining.get() && connection.repeats.get() {
            // An error would be the last word; the next server carries the request out.
            return drop(ticket);
        }
        let write_head = |out: &mut Vec<u8>| {
            if self.structured {
                put_error_chunk(out, cookie, errno, text);
            } else {
                put_simple_reply(out, cookie, Some(errno));
            }
        };
        self.outbox().push(write_head, None, ticket);
    }

    fn send_data(&self, request: &Request, data: Frozen, ticket: Ticket) {
        let (cookie, offset) = (request.cookie, request.offset);
        let structured_len = self.structured.then_some(data.len());
        let write_head = |out: &mut Vec<u8>| {
            match structured_len {
                None => put_simple_reply(out, cookie, None),
                // A chunk of data is never empty.
                Some(0) => put_empty_chunk(out, cookie),
                Some(len) => put_data_chunk_head(out, cookie, offset, len, true),
            }
        };
        self.outbox().push(write_head, Some(data), ticket);
    }

    fn send_status(&self, request: &Request, one: bool, ticket: Ticket) {
        let extents = self.volume.allocation(request.offset, request.len.into());
        // Without an answer, all of it may be data.
        let extents = extents.unwrap_or_default();
        let extents = clip(&extents, request.len, if one { 1 } else { EXTENTS_MAX });
        let extents = extents.into_iter();
        self.outbox().push(|out| put_block_status(out, request.cookie, extents), None, ticket);
    }
}

/// Extents as they go on the wire: neighbours of one state joined, none empty, at least one,
/// together not longer than `len`.
fn clip(extents: &[AllocationRange], len: u32, most: usize) -> Vec<(u32, u32)> {
    let mut clipped: Vec<(u32, u32)> = Vec::new();
    let mut left = len;
    for extent in extents {
        let part = u32::try_from(extent.len).unwrap_or(u32::MAX).min(left);
        if part == 0 {
            continue;
        }
        let flags = if extent.hole { wire::STATE_HOLE | wire::STATE_ZERO } else { 0 };
        let full = clipped.len() == most;
        match clipped.last_mut() {
            Some((run, same)) if *same == flags => *run += part,
            _ if full => break,
            _ => clipped.push((part, flags)),
        }
        left -= part;
    }
    if clipped.is_empty() {
        clipped.push((len, 0));
    }
    clipped
}
