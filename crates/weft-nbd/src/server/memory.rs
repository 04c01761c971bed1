//! Memory for requests in flight, and who gets it.
//!
//! A request counts with its length from before its payload is received, or its data read, until
//! its reply has been sent. There are three bounds:
//!
//! * Each connection has a little memory **of its own**, which no other can take. Requests that fit
//!   there never wait for other clients, whatever these do.
//! * All others come out of the **pool**, first come, first served.
//! * Both together stay below the connection's **bound**. Who reaches it waits for itself only.
//!
//! The payload of a write that does not fit the connection's own memory must have begun to arrive
//! before it may take any of the second half of the pool: the mere announcement of a write holds
//! nothing up.
//!
//! A client that holds part of the pool, and neither sends the rest of its payload nor takes its
//! replies, must not hold up those that would. The pool therefore remembers since when the first in
//! line has waited; see [`Pool::is_stuck`] and what the server does then (`doorman.rs`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use futures_util::future::{Either, select};
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Nanos, Rt};

use super::ServerConfig;

/// The memory that connections share.
#[derive(Debug)]
pub(super) struct Pool {
    rt: Rt,
    bytes: Semaphore,
    size: usize,
    /// Who waits: since when, and a number.
    line: RefCell<BTreeSet<(Nanos, u64)>>,
    waited: Cell<u64>,
}

/// The memory that a connection may take.
#[derive(Debug)]
pub(super) struct Allowance {
    /// What it takes, of whichever kind.
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
    _taken: Permit,
}

impl ServerConfig {
    /// Memory that a connection has for itself: a quarter of all memory is set aside for it.
    pub(super) fn own_bytes(&self) -> usize {
        let each = self.bytes_total / 4 / self.connections_max.max(1);
        each.min(self.bytes_per_connection)
    }

    /// Memory that connections share.
    pub(super) fn pool_bytes(&self) -> usize {
        self.bytes_total.saturating_sub(self.own_bytes().saturating_mul(self.connections_max))
    }
}

impl Pool {
    pub(super) fn new(rt: &Rt, config: &ServerConfig) -> Self {
        let size = config.pool_bytes();
        Self {
            rt: rt.clone(),
            bytes: Semaphore::new(size),
            size,
            line: RefCell::default(),
            waited: Cell::new(0),
        }
    }

    /// Whether somebody has waited for longer than `patience`.
    pub(super) fn is_stuck(&self, patience: Nanos) -> bool {
        let first = self.line.borrow().first().map(|(since, _)| *since);
        first.is_some_and(|since| since.saturating_add(patience) <= self.rt.now())
    }

    /// Bytes that are taken.
    pub(super) fn taken(&self) -> usize {
        self.size.saturating_sub(self.bytes.available())
    }

    /// Whether `len` bytes may be taken for a payload that has not begun to arrive.
    fn is_ample_for(&self, len: usize) -> bool {
        self.bytes.available() >= len.saturating_add(self.size / 2)
    }
}

/// A place in the line, left on drop.
struct Place<'a> {
    pool: &'a Pool,
    key: (Nanos, u64),
}

impl<'a> Place<'a> {
    fn take(pool: &'a Pool) -> Self {
        let number = pool.waited.get();
        pool.waited.set(number + 1);
        let key = (pool.rt.now(), number);
        pool.line.borrow_mut().insert(key);
        Self { pool, key }
    }
}

impl Drop for Place<'_> {
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
    pub(super) fn try_take(&self, pool: &Pool, len: usize, ahead: bool) -> Option<Share> {
        let bound = self.bound.try_acquire(len)?;
        let from_pool = || {
            let may = !ahead || pool.is_ample_for(len);
            may.then(|| pool.bytes.try_acquire(len)).flatten()
        };
        let taken = self.own.try_acquire(len).or_else(from_pool)?;
        Some(Share { _bound: bound, _taken: taken })
    }

    /// Memory of `len` bytes, as soon as there is some.
    pub(super) async fn take(&self, pool: &Pool, len: usize) -> Share {
        let bound = self.bound.acquire(len).await;
        let place = Place::take(pool);
        let from_pool = pool.bytes.acquire(len);
        let taken = if len > self.own_size {
            from_pool.await
        } else {
            match select(self.own.acquire(len), from_pool).await {
                Either::Left((taken, _)) | Either::Right((taken, _)) => taken,
            }
        };
        drop(place);
        Share { _bound: bound, _taken: taken }
    }
}
