//! The server's view of a connection: how far its client has come, what it owes, and how to end it.
//! `session.rs` serves it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use rustix::net::{Shutdown, shutdown};
use weft_rt::Nanos;
use weft_rt::ring::Fd;
use weft_rt::sync::{Permit, Semaphore};

use super::ServerState;
use super::memory::{Allowance, Pool, Share, TRUSTED_BYTES};
use crate::Export;
use crate::outbox::Outbox;
use crate::proto::Violation;

/// Resources that a request holds until its reply has been sent.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    pub(super) request: Option<Permit>,
    pub(super) memory: Option<Share>,
}

/// A connection, as the server sees it.
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) since: Nanos,
    pub(super) fd: Fd,
    pub(super) outbox: Outbox<Ticket>,
    pub(super) export: RefCell<Option<Rc<Export>>>,
    /// The export's size as the client knows it.
    pub(super) size_bytes: Cell<u64>,
    /// New requests are refused.
    pub(super) draining: Cell<bool>,
    /// The client makes again, on another connection, what gets no answer here.
    pub(super) repeats: Cell<bool>,
    /// The client no longer receives answers.
    pub(super) gone: Cell<bool>,
    pub(super) stage: Cell<Stage>,
    pub(super) owed_since: RefCell<Rc<Cell<Option<Nanos>>>>,
    pub(super) fault: RefCell<Option<String>>,
    pub(super) requests: Semaphore,
    pub(super) memory: Allowance,
    /// Bytes of payloads that have arrived.
    pub(super) received: Cell<u64>,
}

/// How far a client has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It has not chosen an export.
    Handshake,
    /// It has asked for nothing yet.
    Unused,
    /// It has made requests.
    Used,
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the client broke the protocol: {0}")]
    Protocol(#[from] Violation),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the client disconnected {0}")]
    Vanished(&'static str),
}

impl Connection {
    pub(super) fn new(id: u64, fd: Fd, server: &ServerState) -> Self {
        Self {
            id,
            fd,
            outbox: Outbox::new(),
            export: RefCell::default(),
            size_bytes: Cell::new(0),
            draining: Cell::new(false),
            repeats: Cell::new(false),
            since: server.rt.now(),
            gone: Cell::new(false),
            stage: Cell::new(Stage::Handshake),
            owed_since: RefCell::default(),
            fault: RefCell::default(),
            requests: Semaphore::new(server.config.requests_per_connection),
            memory: Allowance::new(&server.config),
            received: Cell::new(0),
        }
    }

    pub(super) fn serves(&self, export: &Rc<Export>) -> bool {
        self.export.borrow().as_ref().is_some_and(|served| Rc::ptr_eq(served, export))
    }

    /// Since when this client has kept us waiting: it has sent none of the bytes it owes, or taken
    /// none of the bytes we send.
    pub(super) fn waiting_since(&self) -> Option<Nanos> {
        let owed = self.owed_since.borrow().get();
        [owed, self.outbox.sending_since()].into_iter().flatten().min()
    }

    /// Whether it has moved enough data to be known to work.
    fn is_trusted(&self) -> bool {
        self.received.get().saturating_add(self.outbox.bytes_sent()) >= TRUSTED_BYTES
    }

    /// Memory of `len` bytes if it is there, for a payload on its way (`ahead`) only if plenty is.
    pub(super) fn try_take(&self, pool: &Pool, len: usize, ahead: bool) -> Option<Share> {
        self.memory.try_take(pool, len, ahead, self.is_trusted())
    }

    /// Memory of `len` bytes, as soon as there is some.
    pub(super) async fn take(&self, pool: &Pool, len: usize) -> Share {
        self.memory.take(pool, len, self.is_trusted()).await
    }

    /// Whether it is being ended.
    pub(super) fn is_cut(&self) -> bool {
        self.fault.borrow().is_some()
    }

    /// Waits for requests in flight; the reader sees the end of the stream.
    pub(super) fn drain(&self) {
        self.draining.set(true);
        // It may be gone already.
        let _ = shutdown(&self.fd, Shutdown::Read);
    }

    /// Ends the stream to the client.
    pub(super) fn hang_up(&self) {
        // It may be gone already.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Closes it now.
    pub(super) fn cut(&self, why: &str) {
        self.fault.borrow_mut().get_or_insert_with(|| why.to_owned());
        self.draining.set(true);
        self.gone.set(true);
        self.outbox.close();
        self.hang_up();
    }
}
