//! The send queue of a connection, and the loop that sends it.
//!
//! All messages that were queued during one turn of the executor go out in one vectored send,
//! headers and data together, without copying data. Each message holds a token until it has been
//! sent; tokens account for memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;

use weft_rt::ring::{Fd, Ring};
use weft_rt::sync::Notify;
use weft_rt::{Buf, Frozen, Nanos, Rt};

/// Messages of one send, at most (each is a head and perhaps data).
const BATCH_MESSAGES: usize = 32;
/// No further message joins a send of this many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes passed to the kernel at a time, so that progress is visible.
const STEP_BYTES: usize = 1 << 20;

/// Messages on their way out; `T` is what each holds until it has been sent.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    state: RefCell<State<T>>,
    filled: Notify,
    drained: Notify,
    /// Since when a send, or a step of a long one, has been in progress.
    sending_since: Cell<Option<Nanos>>,
    bytes_sent: Cell<u64>,
}

#[derive(Debug)]
struct State<T> {
    heads: Vec<u8>,
    messages: VecDeque<Message<T>>,
    bytes_unsent: usize,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// Sends the queue; then the loop ends.
    Finishing,
    /// Nothing is sent any more.
    Closed,
}

#[derive(Debug)]
struct Message<T> {
    head_len: usize,
    data: Option<Frozen>,
    token: T,
}

/// One send.
struct Batch<T> {
    parts: Vec<Frozen>,
    bytes: usize,
    _tokens: Vec<T>,
}

impl<T> Outbox<T> {
    pub(crate) fn new() -> Self {
        let state =
            State { heads: Vec::new(), messages: VecDeque::new(), bytes_unsent: 0, end: End::Open };
        Self {
            state: RefCell::new(state),
            filled: Notify::default(),
            drained: Notify::default(),
            sending_since: Cell::new(None),
            bytes_sent: Cell::new(0),
        }
    }

    /// Puts in a message: the head that `write_head` appends, and data after it. Dropped if the
    /// connection is closed.
    pub(crate) fn push(
        &self,
        write_head: impl FnOnce(&mut Vec<u8>),
        data: Option<Frozen>,
        token: T,
    ) {
        let mut state = self.state.borrow_mut();
        if state.end == End::Closed {
            drop(state);
            return drop((data, token));
        }
        let before = state.heads.len();
        write_head(&mut state.heads);
        let head_len = state.heads.len() - before;
        state.bytes_unsent += head_len + data.as_ref().map_or(0, |data| data.len());
        state.messages.push_back(Message { head_len, data, token });
        let first = state.messages.len() == 1;
        drop(state);
        if first {
            self.filled.notify_all();
        }
    }

    /// Waits until at most `bytes` are unsent, or nothing will be sent any more.
    pub(crate) async fn drained_to(&self, bytes: usize) {
        loop {
            let wait = {
                let state = self.state.borrow();
                if state.bytes_unsent <= bytes || state.end == End::Closed {
                    return;
                }
                self.drained.wait()
            };
            wait.await;
        }
    }

    /// Lets [`Outbox::run`] end when everything is sent.
    pub(crate) fn finish(&self) {
        let mut state = self.state.borrow_mut();
        if state.end == End::Open {
            state.end = End::Finishing;
        }
        drop(state);
        self.filled.notify_all();
    }

    /// Discards unsent data, and everything queued from now on.
    pub(crate) fn close(&self) {
        let messages = {
            let mut state = self.state.borrow_mut();
            state.end = End::Closed;
            state.bytes_unsent = 0;
            state.heads = Vec::new();
            std::mem::take(&mut state.messages)
        };
        // Outside the borrow: a token may wake a task.
        drop(messages);
        self.filled.notify_all();
        self.drained.notify_all();
    }

    /// Since when a send has been in progress, if one is.
    pub(crate) fn sending_since(&self) -> Option<Nanos> {
        self.sending_since.get()
    }

    /// Bytes that the kernel has taken.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.bytes_sent.get()
    }

    /// Sends the queue until [`Outbox::finish`] or [`Outbox::close`]; closes the outbox.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) async fn run(&self, rt: &Rt, ring: &Ring, fd: &Fd) -> io::Result<()> {
        let result = self.send_all(rt, ring, fd).await;
        self.sending_since.set(None);
        self.close();
        result
    }

    async fn send_all(&self, rt: &Rt, ring: &Ring, fd: &Fd) -> io::Result<()> {
        let mut parts = Vec::new();
        loop {
            let wait = {
                let mut state = self.state.borrow_mut();
                if !state.messages.is_empty() {
                    None
                } else if state.end == End::Open {
                    // Headers are built in memory that is kept for reuse, unless it grew.
                    state.heads.shrink_to(16 << 10);
                    Some(self.filled.wait())
                } else {
                    return Ok(());
                }
            };
            if let Some(wait) = wait {
                wait.await;
                continue;
            }
            let batch = self.next_batch(std::mem::take(&mut parts));
            let mut rest = batch.parts;
            while !rest.is_empty() {
                let later = split_step(&mut rest);
                self.sending_since.set(Some(rt.now()));
                parts = ring.send_parts(fd, rest).await?;
                rest = later;
            }
            self.sending_since.set(None);
            self.bytes_sent.set(self.bytes_sent.get().saturating_add(batch.bytes as u64));
            let mut state = self.state.borrow_mut();
            state.bytes_unsent = state.bytes_unsent.saturating_sub(batch.bytes);
            drop(state);
            self.drained.notify_all();
        }
    }

    fn next_batch(&self, mut parts: Vec<Frozen>) -> Batch<T> {
        let mut state = self.state.borrow_mut();
        let (mut count, mut heads_len, mut bytes) = (0, 0, 0);
        for message in &state.messages {
            if count == BATCH_MESSAGES || bytes >= BATCH_BYTES {
                break;
            }
            count += 1;
            heads_len += message.head_len;
            bytes += message.head_len + message.data.as_ref().map_or(0, |data| data.len());
        }
        let heads = Buf::copy_from(&state.heads[..heads_len]).freeze();
        state.heads.drain(..heads_len);
        let mut tokens = Vec::with_capacity(count);
        let (mut start, mut end) = (0, 0);
        for message in state.messages.drain(..count) {
            end += message.head_len;
            if let Some(data) = message.data {
                parts.push(heads.slice(start, end - start));
                parts.push(data);
                start = end;
            }
            tokens.push(message.token);
        }
        if end > start {
            parts.push(heads.slice(start, end - start));
        }
        Batch { parts, bytes, _tokens: tokens }
    }
}

/// Removes everything in `parts` beyond the first [`STEP_BYTES`].
fn split_step(parts: &mut Vec<Frozen>) -> Vec<Frozen> {
    let mut room = STEP_BYTES;
    for (at, part) in parts.iter_mut().enumerate() {
        if part.len() > room {
            let beyond = part.slice(room, part.len() - room);
            *part = part.slice(0, room);
            let mut later = vec![beyond];
            later.extend(parts.drain(at + 1..));
            return later;
        }
        room -= part.len();
    }
    Vec::new()
}
