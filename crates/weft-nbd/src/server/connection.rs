//! One connection: its handshake, its two tasks, its end.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use futures_util::future::join;
use rustix::net::{Shutdown, shutdown};
use weft_rt::Nanos;
use weft_rt::ring::Fd;
use weft_rt::sync::{Permit, Semaphore};
use zerocopy::IntoBytes;

use super::memory::{Allowance, Share};
use super::transmission::{self, Leave};
use super::{Event, Inner};
use crate::Export;
use crate::inbox::{INBOX_BYTES, Inbox};
use crate::outbox::Outbox;
use crate::proto::{ExportInfo, Limits, Negotiation, Step, Violation};
use crate::socket::tune;

/// Replies of a handshake that wait, at most, before more of the input is parsed.
const HANDSHAKE_BYTES_UNSENT: usize = 64 << 10;

/// What a request holds until its reply has been sent.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    pub(super) request: Option<Permit>,
    pub(super) memory: Option<Share>,
}

/// A connection, as the server sees it.
pub(super) struct Connection {
    id: u64,
    pub(super) since: Nanos,
    pub(super) fd: Fd,
    pub(super) outbox: Outbox<Ticket>,
    export: RefCell<Option<Rc<dyn Export>>>,
    /// New requests are refused.
    pub(super) draining: Cell<bool>,
    /// The client no longer receives answers.
    pub(super) gone: Cell<bool>,
    pub(super) stage: Cell<Stage>,
    owed_since: RefCell<Rc<Cell<Option<Nanos>>>>,
    fault: RefCell<Option<String>>,
    pub(super) requests: Semaphore,
    pub(super) memory: Allowance,
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
    #[error("the client went away {0}")]
    Vanished(&'static str),
}

impl Connection {
    pub(super) fn new(id: u64, fd: Fd, server: &Inner) -> Self {
        Self {
            id,
            fd,
            outbox: Outbox::new(),
            export: RefCell::default(),
            draining: Cell::new(false),
            since: server.rt.now(),
            gone: Cell::new(false),
            stage: Cell::new(Stage::Handshake),
            owed_since: RefCell::default(),
            fault: RefCell::default(),
            requests: Semaphore::new(server.config.requests_per_connection),
            memory: Allowance::new(&server.config),
        }
    }

    pub(super) fn serves(&self, export: &Rc<dyn Export>) -> bool {
        self.export.borrow().as_ref().is_some_and(|served| Rc::ptr_eq(served, export))
    }

    /// Since when this client has kept us waiting: not a byte of what it owes us has come, or has
    /// it taken of what we send.
    pub(super) fn waiting_since(&self) -> Option<Nanos> {
        let owed = self.owed_since.borrow().get();
        [owed, self.outbox.sending_since()].into_iter().flatten().min()
    }

    /// Whether it is being ended.
    pub(super) fn is_cut(&self) -> bool {
        self.fault.borrow().is_some()
    }

    /// Lets what is in flight end; the reader sees the end of the stream.
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

    /// Ends it now.
    pub(super) fn cut(&self, why: &str) {
        self.fault.borrow_mut().get_or_insert_with(|| why.to_owned());
        self.draining.set(true);
        self.gone.set(true);
        self.outbox.close();
        self.hang_up();
    }
}

/// Serves a connection to its end; gives what went wrong.
pub(super) async fn run(server: &Rc<Inner>, connection: &Rc<Connection>) -> Option<String> {
    tune(&connection.fd);
    let reader = async {
        let result = read(server, connection).await;
        // What is in flight ends; every request gives its permit back when it is answered.
        let all = server.config.requests_per_connection;
        match result {
            Ok(Leave::Goodbye) => {}
            // A client that leaves without `DISC` may still be listening, but need not.
            Ok(Leave::Silent) | Err(Fault::Protocol(_)) => connection.gone.set(true),
            Err(Fault::Io(_) | Fault::Vanished(_)) => {
                connection.gone.set(true);
                connection.outbox.close();
            }
        }
        drop(connection.requests.acquire(all).await);
        connection.outbox.finish();
        result
    };
    let writer = async {
        let result = connection.outbox.run(&server.rt, &server.ring, &connection.fd).await;
        if result.is_err() {
            // The reader must not wait for a client that takes no answers.
            let _ = shutdown(&connection.fd, Shutdown::Both);
        }
        result
    };
    let (read, written) = join(reader, writer).await;
    let _ = shutdown(&connection.fd, Shutdown::Both);
    let fault = connection.fault.take();
    // Leaving without `DISC` is no error where the protocol allows it.
    fault
        .or_else(|| read.err().map(|fault| fault.to_string()))
        .or_else(|| written.err().map(|error| format!("the client took no answer: {error}")))
}

async fn read(server: &Rc<Inner>, connection: &Rc<Connection>) -> Result<Leave, Fault> {
    let mut inbox = Inbox::new(&server.rt, &server.ring, &connection.fd);
    *connection.owed_since.borrow_mut() = inbox.owed_since.clone();
    let Some((info, export, limits)) = handshake(server, connection, &mut inbox).await? else {
        return Ok(Leave::Silent);
    };
    // It may have been removed, or the server stopped, in the meantime.
    if !server.still_serves(&export) || connection.draining.get() {
        return Ok(Leave::Silent);
    }
    connection.stage.set(Stage::Unused);
    *connection.export.borrow_mut() = Some(export.clone());
    server.emit(Event::Connected { connection: connection.id, export: info.name });
    transmission::run(server, connection, &mut inbox, &export, &limits).await
}

/// Runs the handshake until the client has chosen an export, or has gone.
async fn handshake(
    server: &Inner,
    connection: &Connection,
    inbox: &mut Inbox,
) -> Result<Option<(ExportInfo, Rc<dyn Export>, Limits)>, Fault> {
    let (mut negotiation, greeting) = Negotiation::new();
    let say = |bytes: &[u8]| {
        connection.outbox.push(|out| out.extend_from_slice(bytes), None, Ticket::default());
    };
    say(greeting.as_bytes());
    let (mut catalogue, exports) = server.catalogue();
    let mut out = Vec::new();
    loop {
        let (used, step) = negotiation.step(inbox.bytes(), &catalogue, &mut out)?;
        inbox.consume(used);
        if !out.is_empty() {
            say(&out);
            out.clear();
        }
        match step {
            Step::Again => connection.outbox.drained_to(HANDSHAKE_BYTES_UNSENT).await,
            Step::NeedMore => {
                let wanted = (inbox.bytes().len() + 1).min(INBOX_BYTES);
                if !inbox.fill(wanted).await? {
                    let early = inbox.bytes().is_empty();
                    return if early { Ok(None) } else { Err(Fault::Vanished("in an option")) };
                }
            }
            Step::Close => return Ok(None),
            Step::Transmission(session) => {
                let info = catalogue.exports.swap_remove(session.export);
                let limits = Limits {
                    size_bytes: info.size_bytes,
                    block_min: info.block.min,
                    payload_max: info.block.max,
                    read_only: info.flags & crate::proto::wire::EXPORT_READ_ONLY != 0,
                    structured: session.structured,
                    base_allocation: session.base_allocation,
                };
                return Ok(Some((info, exports[session.export].clone(), limits)));
            }
        }
    }
}
