//! Memory for requests in flight, and how it is shared.
//!
//! A request counts with its length from before its payload is received, or its data read, until
//! its reply has been sent. There are three bounds:
//!
//! * Each connection has a little memory **of its own**, which no other can take. Requests that fit
//!   there never wait for other clients.
//! * All other requests use the **pool**, first come, first served. A third of it is reserved for
//!   requests of at most a MiB, so that they need not wait for long ones. Of the rest, clients that
//!   have moved little data so far may together take only a part: however many of them stall,
//!   clients known to work do not wait for them.
//! * Both together stay below the connection's **bound**. A client that reaches it waits only for
//!   its own requests.
//!
//! If the payload of a write does not fit the connection's own memory, it must have started to
//! arrive before it may take any of the second half of the pool. So a client cannot block other
//! clients by merely announcing writes.
//!
//! A client that holds part of the pool, and neither sends the rest of its payload nor reads its
//! replies, must not block clients that would. So the pool remembers since when the first in line
//! has waited; see [`Pool::is_stuck`] and what the server does then (`admission.rs`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use futures_util::future::{Either, select};
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Nanos, Rt};

use super::ServerConfig;

/// Requests of at most this many bytes may take the reserved part of the pool.
const MEDIUM_BYTES_MAX: usize = 1 << 20;

/// A client that has moved this many bytes takes its data and sends what it announced. Buffers of
/// the kernel swallow a few MiB for one that does not.
pub(super) const TRUSTED_BYTES: u64 = 16 << 20;

/// The memory that connections share.
#[derive(Debug)]
pub(super) struct Pool {
    rt: Rt,
    /// For all requests.
    large: Part,
    /// What clients that are not trusted yet may take of that.
    untrusted: Part,
    /// For requests that are not long.
    medium: Part,
    /// The waiting requests: since when, and a number.
    line: RefCell<BTreeSet<(Nanos, u64)>>,
    waited: Cell<u64>,
}

#[derive(Debug)]
struct Part {
    bytes: Semaphore,
    size: usize,
}

/// The memory that a connection may take.
#[derive(Debug)]
pub(super) struct Allowance {
    /// The bytes it takes, of either kind.
    bound: Semaphore,
    bound_size: usize,
    /// Its own.
    own: Semaphore,
    own_size: usize,
}

/// Memory of one request.
#[derive(Debug)]
pub(super) struct Share {
    _bound: Permit,
    _untrusted: Option<Permit>,
    _taken: Permit,
}

impl ServerConfig {
    /// Memory that a connection has for itself: a quarter of all memory is set aside for it.
    pub(super) fn own_bytes(&self) -> usize {
        let each = self.bytes_total / 4 / self.connections_max.max(1);
        each.min(self.bytes_per_connection)
    }

    /// Memory that connections share.
    fn pool_bytes(&self) -> usize {
        self.bytes_total.saturating_sub(self.own_bytes().saturating_mul(self.connections_max))
    }

    /// The longest request that there can be memory for.
    pub(super) fn request_bytes_max(&self) -> usize {
        let pool = self.pool_bytes();
        self.bytes_per_connection.min(pool - pool / 3)
    }
}

impl Pool {
    pub(super) fn new(rt: &Rt, config: &ServerConfig) -> Self {
        let size = config.pool_bytes();
        let large = size - size / 3;
        Self {
            rt: rt.clone(),
            large: Part::new(large),
            // The longest request of a trusted client fits beside it.
            untrusted: Part::new((large - config.request_bytes_max()).max(large / 2)),
            medium: Part::new(size / 3),
            line: RefCell::default(),
            waited: Cell::new(0),
        }
    }

    /// Whether a request has waited for longer than `patience`.
    pub(super) fn is_stuck(&self, patience: Nanos) -> bool {
        let first = self.line.borrow().first().map(|(since, _)| *since);
        first.is_some_and(|since| since.saturating_add(patience) <= self.rt.now())
    }

    /// Bytes that are taken.
    pub(super) fn taken(&self) -> usize {
        self.large.taken() + self.medium.taken()
    }

    /// The part that is kept for a request of `len` bytes, if there is one.
    fn kept_for(&self, len: usize) -> Option<&Part> {
        (len <= MEDIUM_BYTES_MAX.min(self.medium.size)).then_some(&self.medium)
    }

    fn try_take(&self, len: usize, ahead: bool, trusted: bool) -> Option<(Option<Permit>, Permit)> {
        if let Some(kept) = self.kept_for(len).and_then(|part| part.try_take(len, ahead)) {
            return Some((None, kept));
        }
        let untrusted = match trusted {
            true => None,
            false => Some(self.untrusted.bytes.try_acquire(len.min(self.untrusted.size))?),
        };
        Some((untrusted, self.large.try_take(len, ahead)?))
    }

    /// Waits for memory without a guaranteed part for the request.
    async fn take_large(&self, len: usize, trusted: bool) -> (Option<Permit>, Permit) {
        let untrusted = match trusted {
            true => None,
            false => Some(self.untrusted.bytes.acquire(len.min(self.untrusted.size)).await),
        };
        (untrusted, self.large.bytes.acquire(len).await)
    }
}

impl Part {
    fn new(size: usize) -> Self {
        Self { bytes: Semaphore::new(size), size }
    }

    fn taken(&self) -> usize {
        self.size.saturating_sub(self.bytes.available())
    }

    /// For a payload that has not started to arrive (`ahead`) at most half of it is given.
    fn try_take(&self, len: usize, ahead: bool) -> Option<Permit> {
        let least = if ahead { len.saturating_add(self.size / 2) } else { len };
        (self.bytes.available() >= least).then(|| self.bytes.try_acquire(len)).flatten()
    }
}

/// A place in the line, left on drop.
struct QueueSlot<'a> {
    pool: &'a Pool,
    key: (Nanos, u64),
}

impl<'a> QueueSlot<'a> {
    fn take(pool: &'a Pool) -> Self {
        let number = pool.waited.get();
        pool.waited.set(number + 1);
        let key = (pool.rt.now(), number);
        pool.line.borrow_mut().insert(key);
        Self { pool, key }
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.pool.line.borrow_mut().remove(&self.key);
    }
}

impl Allowance {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let (bound_size, own_size) = (config.bytes_per_connection, config.own_bytes());
        let (bound, own) = (Semaphore::new(bound_size), Semaphore::new(own_size));
        Self { bound, bound_size, own, own_size }
    }

    /// Bytes of its own that are taken.
    pub(super) fn own_taken(&self) -> usize {
        self.own_size.saturating_sub(self.own.available())
    }

    /// Whether its requests hold part of the pool.
    pub(super) fn holds_pool(&self) -> bool {
        self.bound_size.saturating_sub(self.bound.available()) > self.own_taken()
    }

    /// Memory of `len` bytes if it is there, for a payload on its way (`ahead`) only if plenty is.
    pub(super) fn try_take(
        &self,
        pool: &Pool,
        len: usize,
        ahead: bool,
        trusted: bool,
    ) -> Option<Share> {
        let bound = self.bound.try_acquire(len)?;
        let (untrusted, taken) = match self.own.try_acquire(len) {
            Some(own) => (None, own),
            None => pool.try_take(len, ahead, trusted)?,
        };
        Some(Share { _bound: bound, _untrusted: untrusted, _taken: taken })
    }

    /// Memory of `len` bytes, as soon as there is some.
    pub(super) async fn take(&self, pool: &Pool, len: usize, trusted: bool) -> Share {
        let bound = self.bound.acquire(len).await;
        let place = QueueSlot::take(pool);
        let from_pool = async {
            let large = Box::pin(pool.take_large(len, trusted));
            match pool.kept_for(len) {
                Some(kept) => either(kept.bytes.acquire(len), large).await,
                None => large.await,
            }
        };
        let (untrusted, taken) = if len > self.own_size {
            from_pool.await
        } else {
            either(self.own.acquire(len), Box::pin(from_pool)).await
        };
        drop(place);
        Share { _bound: bound, _untrusted: untrusted, _taken: taken }
    }
}

/// The earlier of the two.
async fn either(
    one: impl Future<Output = Permit> + Unpin,
    other: impl Future<Output = (Option<Permit>, Permit)> + Unpin,
) -> (Option<Permit>, Permit) {
    match select(one, other).await {
        Either::Left((permit, _)) => (None, permit),
        Either::Right((permits, _)) => permits,
    }
}
