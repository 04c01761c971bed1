//! The receive buffer of a connection.
//!
//! Small messages are received many at a time into one buffer. Data that goes to a disk must be
//! page-aligned in a buffer of its own: small data is copied there, large data is received there
//! directly. While large payloads follow one another, only the headers between them are received
//! here, so that almost none of the data is copied.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use weft_rt::ring::{Fd, Ring};
use weft_rt::{Buf, Nanos, Rt};

/// Room of the buffer, in bytes: the memory of an idle connection.
pub(crate) const INBOX_BYTES: usize = 128 << 10;

/// Payloads from here on are received directly, in bytes.
const DIRECT_BYTES_MIN: usize = 32 << 10;

/// A payload is received in steps of this many bytes, so that progress is visible.
const STEP_BYTES: usize = 1 << 20;

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct Inbox {
    rt: Rt,
    ring: Ring,
    fd: Fd,
    /// Taken while the ring has it.
    buf: Option<Buf>,
    start: usize,
    end: usize,
    /// Large payloads are coming.
    sparing: bool,
    /// Since when the peer has owed us the rest of a message, or the next step of a long one.
    pub(crate) owed_since: Rc<Cell<Option<Nanos>>>,
}

impl Inbox {
    pub(crate) fn new(rt: &Rt, ring: &Ring, fd: &Fd) -> Self {
        Self {
            rt: rt.clone(),
            ring: ring.clone(),
            fd: fd.clone(),
            buf: Some(Buf::new(INBOX_BYTES)),
            start: 0,
            end: 0,
            sparing: false,
            owed_since: Rc::default(),
        }
    }

    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| &buf[self.start..self.end])
    }

    /// Is done with the first `len` bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end, "consumed more than there is");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives until at least `len` bytes are there. Whether a peer that keeps us waiting owes us
    /// anything depends on whether part of it has come. False: the peer has ended the stream.
    ///
    /// # Errors
    /// The socket's; `InvalidData` if more is wanted than the buffer can ever hold.
    pub(crate) async fn fill(&mut self, len: usize) -> io::Result<bool> {
        if len > INBOX_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        while self.end - self.start < len {
            if self.end > self.start && self.owed_since.get().is_none() {
                self.owed_since.set(Some(self.rt.now()));
            }
            if self.receive(len).await? == 0 {
                return Ok(false);
            }
        }
        self.owed_since.set(None);
        Ok(true)
    }

    /// Receives what comes; `wanted` bytes must be there in the end.
    async fn receive(&mut self, wanted: usize) -> io::Result<usize> {
        let Some(mut buf) = self.buf.take() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if self.start + wanted > buf.len() {
            buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room_end = if self.sparing { self.start + wanted } else { buf.len() };
        let rest = buf.split_off(room_end);
        let (result, mut buf) = self.ring.recv(&self.fd, buf, self.end).await;
        buf.join(rest).expect("the parts of one buffer follow each other");
        self.buf = Some(buf);
        self.end += result.as_ref().copied().unwrap_or(0);
        result
    }

    /// Receives exactly as many bytes as `target` holds. `None`: the peer has ended the stream.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) async fn take_payload(&mut self, mut target: Buf) -> io::Result<Option<Buf>> {
        let len = target.len();
        self.sparing = len >= DIRECT_BYTES_MIN;
        if !self.sparing && !self.fill(len).await? {
            return Ok(None);
        }
        let here = len.min(self.end - self.start);
        target[..here].copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        if here == len {
            return Ok(Some(target));
        }
        let (mut at, mut whole) = (here, true);
        while whole && at < len {
            self.owed_since.set(Some(self.rt.now()));
            let end = len.min(at + STEP_BYTES);
            let rest = target.split_off(end);
            let (result, part) = self.ring.recv_full(&self.fd, target, at).await;
            target = part;
            target.join(rest).expect("the parts of one buffer follow each other");
            whole = result? == end - at;
            at = end;
        }
        self.owed_since.set(None);
        Ok(whole.then_some(target))
    }

    /// Waits until something of a payload has come. False: the peer has ended the stream.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) async fn await_payload(&mut self) -> io::Result<bool> {
        self.owed_since.set(Some(self.rt.now()));
        self.fill(1).await
    }

    /// Receives `len` bytes and forgets them. False: the peer has ended the stream.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) async fn skip(&mut self, len: usize) -> io::Result<bool> {
        let mut left = len;
        self.sparing = false;
        while left > 0 {
            let here = left.min(self.end - self.start);
            self.consume(here);
            left -= here;
            self.owed_since.set(Some(self.rt.now()));
            if left > 0 && !self.fill(1).await? {
                return Ok(false);
            }
        }
        self.owed_since.set(None);
        Ok(true)
    }

    /// The next messages are small.
    pub(crate) fn expect_small(&mut self) {
        self.sparing = false;
    }
}
