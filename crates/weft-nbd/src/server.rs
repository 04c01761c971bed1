//! The server: listeners, exports by name, and the connections.
//!
//! Everything runs on one thread, on the ring that also drives the disks. Each connection has two
//! tasks. The **reader** parses requests (many per receive) and starts them: a request that can
//! complete at once, as on a RAM disk, does so in the reader's own turn; another becomes a task.
//! The **writer** sends replies in the order in which requests end, many at once.
//!
//! **Memory is bounded** by [`ServerConfig`]: connections × the receive buffer (128 KiB), plus the
//! bytes of requests in flight, for which a reader takes permits *before* it takes the payload off
//! the socket. Without a permit it stops reading: the client's socket fills up, and the client
//! waits. A reply counts until it has been sent; the socket bounds what the kernel then holds for a
//! client. `memory.rs` explains how the memory is shared.
//!
//! **No client can stop another one.** Each has some memory that no other can take, and one that
//! makes no progress loses its memory or its place as soon as other clients need it
//! (`admission.rs`). A client that owes us the rest of a message, or does not read our replies, for
//! [`ServerConfig::stall_timeout`] is disconnected in any case. An idle client may stay forever.
//!
//! **Ends.** On `DISC`, or when the client just disappears, requests in flight run to their end and
//! release what they hold. Only a long trim or write of zeros ends early if the client has gone or
//! the server stops. [`Server::shutdown`] stops accepting, refuses new requests, waits for those in
//! flight, and disconnects the remaining clients after a while.

mod admission;
mod connection;
mod listen;
mod memory;
mod resolve;
mod session;
mod transmission;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_rt::ring::{Fd, Ring};
use weft_rt::sync::Notify;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::Export;
use crate::proto::{Catalogue, ExportInfo, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, wire};
use connection::Connection;
use memory::Pool;

pub use listen::Listener;
pub use resolve::{Resolved, Resolver};

/// The port of NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// Bounds of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerConfig {
    /// Connections at the same time. The ring should allow for two socket operations of each.
    pub connections_max: usize,
    /// Requests of one connection in flight.
    pub requests_per_connection: usize,
    /// Bytes of requests of one connection in flight.
    pub bytes_per_connection: usize,
    /// Bytes of requests of all connections in flight. A quarter is divided among
    /// [`ServerConfig::connections_max`] connections for each to have for itself; they share the
    /// rest.
    pub bytes_total: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Nanos,
    /// How long a client may keep us waiting in the middle of a message.
    pub stall_timeout: Nanos,
    /// How long it may do so while another has waited for memory for
    /// [`ServerConfig::pool_patience`].
    pub stall_timeout_contended: Nanos,
    /// How long a request waits for memory before clients that hold some and stall are cut off.
    pub pool_patience: Nanos,
    /// How long [`Server::shutdown`] waits for requests in flight.
    pub shutdown_grace: Nanos,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connections_max: 256,
            requests_per_connection: 256,
            bytes_per_connection: 64 << 20,
            bytes_total: 256 << 20,
            handshake_timeout: 10 * SECOND,
            stall_timeout: 60 * SECOND,
            stall_timeout_contended: SECOND,
            pool_patience: 3 * SECOND,
            shutdown_grace: 10 * SECOND,
        }
    }
}

impl ServerConfig {
    /// The largest payload that fits every bound.
    fn payload_max(&self) -> u32 {
        u32::try_from(self.request_bytes_max()).unwrap_or(u32::MAX).min(PAYLOAD_BYTES_MAX)
    }
}

/// An error of a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address or path.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Another server is alive on this socket.
    #[error("{0} is in use by a running server; stop it, or choose another path")]
    InUse(String),
    /// A file that is not a socket is in the way.
    #[error("{0} exists and is not a socket; remove it, or choose another path")]
    NotASocket(String),
    /// There is an export of this name.
    #[error("an export named {0:?} already exists")]
    Duplicate(String),
    /// A name that the protocol cannot carry.
    #[error("export names have at most {NAME_BYTES_MAX} bytes, none of them NUL")]
    Name,
    /// Block sizes that make no sense.
    #[error("the block sizes of export {0:?} are not ascending powers of two")]
    BlockSizes(String),
}

/// Something that happened, for a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client chose an export.
    Connected {
        /// Number of the connection.
        connection: u64,
        /// The export's name.
        export: String,
    },
    /// A connection has ended.
    Disconnected {
        /// Number of the connection.
        connection: u64,
        /// Why, unless it ended as it should.
        fault: Option<String>,
    },
    /// A connection was refused: all places are taken by clients that use them.
    Refused,
    /// A listener met an error and tries again.
    AcceptFailed(String),
}

/// Handle of a server; clones are handles of the same one.
#[derive(Clone)]
pub struct Server(Rc<ServerState>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("connections", &self.connections())
            .field("bytes_in_flight", &self.bytes_in_flight())
            .finish_non_exhaustive()
    }
}

struct ServerState {
    rt: Rt,
    ring: Ring,
    config: ServerConfig,
    exports: RefCell<Exports>,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    connections_made: Cell<u64>,
    listeners: RefCell<Vec<Listener>>,
    pool: Pool,
    stopping: Cell<bool>,
    stop: Notify,
    /// Rings when a connection has ended.
    ended: Notify,
    log: RefCell<Option<Log>>,
    resolver: RefCell<Option<Rc<dyn Resolver>>>,
}

type Log = Rc<dyn Fn(Event)>;

#[derive(Default)]
struct Exports {
    list: Vec<(String, Rc<Export>)>,
    default: Option<String>,
}

impl Server {
    /// A server that listens nowhere and serves nothing yet.
    pub fn new(rt: &Rt, ring: &Ring, config: ServerConfig) -> Self {
        let inner = Rc::new(ServerState {
            rt: rt.clone(),
            ring: ring.clone(),
            config,
            exports: RefCell::default(),
            connections: RefCell::default(),
            connections_made: Cell::new(0),
            listeners: RefCell::default(),
            pool: Pool::new(rt, &config),
            stopping: Cell::new(false),
            stop: Notify::default(),
            ended: Notify::default(),
            log: RefCell::default(),
            resolver: RefCell::default(),
        });
        rt.spawn(admission::watch(rt.clone(), Rc::downgrade(&inner)));
        Self(inner)
    }

    /// Calls `log` with everything that happens from now on.
    pub fn on_event(&self, log: impl Fn(Event) + 'static) {
        *self.0.log.borrow_mut() = Some(Rc::new(log));
    }

    /// Serves `export` as `name`. The first is also the default, which the empty name means.
    ///
    /// # Errors
    /// The name is taken or impossible, or the block sizes are.
    pub fn add_export(&self, name: &str, export: Export) -> Result<(), ServerError> {
        if name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(ServerError::Name);
        }
        if !export.has_sound_sizes() {
            return Err(ServerError::BlockSizes(name.to_owned()));
        }
        let mut exports = self.0.exports.borrow_mut();
        if exports.list.iter().any(|(taken, _)| taken == name) {
            return Err(ServerError::Duplicate(name.to_owned()));
        }
        exports.default.get_or_insert_with(|| name.to_owned());
        exports.list.push((name.to_owned(), Rc::new(export)));
        Ok(())
    }

    /// Asks `resolver` for exports that are not listed.
    pub fn resolve_with(&self, resolver: Rc<dyn Resolver>) {
        *self.0.resolver.borrow_mut() = Some(resolver);
    }

    /// Stops serving `name`: no client can choose it, and its clients are disconnected once their
    /// requests in flight have ended (at most [`ServerConfig::shutdown_grace`]). Returns whether
    /// there was such an export.
    pub async fn remove_export(&self, name: &str) -> bool {
        let removed = {
            let mut exports = self.0.exports.borrow_mut();
            let Some(at) = exports.list.iter().position(|(known, _)| known == name) else {
                return false;
            };
            exports.default.take_if(|default| default == name);
            exports.list.remove(at).1
        };
        self.0.end_connections(|connection| connection.serves(&removed)).await;
        true
    }

    /// Listens on a TCP address (port 0: any that is free); gives the address with its port.
    ///
    /// # Errors
    /// The kernel's: in use, not ours, not permitted.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<SocketAddr, ServerError> {
        let (listener, address) = Listener::tcp(address)?;
        self.start_listener(listener);
        Ok(address)
    }

    /// Listens on a Unix socket at `path`, accessible to this user only, or also to a group (its
    /// number). A socket of a dead server is replaced; a live one is not.
    ///
    /// # Errors
    /// Another server is alive there, something else is in the way, or the kernel's: only root can
    /// give the socket to a group that it is not in.
    pub fn listen_unix(&self, path: &Path, group: Option<u32>) -> Result<(), ServerError> {
        let listener = Listener::unix(path, group)?;
        self.start_listener(listener);
        Ok(())
    }

    /// Serves a client at the other end of a socket, which makes again, on another connection, what
    /// gets no answer here: when the connection ends, requests that fail get none. Returns the
    /// number of the connection; `None` if there is no room for it.
    pub fn serve(&self, socket: OwnedFd) -> Option<u64> {
        let number = admission::welcome(&self.0, Fd::from(socket))?;
        if let Some(connection) = self.0.connections.borrow().get(&number) {
            connection.repeats.set(true);
        }
        Some(number)
    }

    /// Waits until a connection has ended.
    pub async fn until_ended(&self, connection: u64) {
        loop {
            let ended = self.0.ended.wait();
            if !self.0.connections.borrow().contains_key(&connection) {
                return;
            }
            ended.await;
        }
    }

    fn start_listener(&self, listener: Listener) {
        let accept = admission::accept(self.0.clone(), listener.fd().clone());
        self.0.rt.spawn(accept);
        self.0.listeners.borrow_mut().push(listener);
    }

    /// The connections that there are.
    pub fn connections(&self) -> usize {
        self.0.connections.borrow().len()
    }

    /// The connections that use the export `name`.
    pub fn connections_to(&self, name: &str) -> usize {
        self.count(name, |_, _| true)
    }

    /// Those whose clients know another size than the export `name` has now.
    pub fn connections_of_other_size(&self, name: &str) -> usize {
        self.count(name, |connection, export| {
            connection.size_bytes.get() != export.volume.size_bytes()
        })
    }

    fn count(&self, name: &str, which: impl Fn(&Connection, &Export) -> bool) -> usize {
        let exports = self.0.exports.borrow();
        let Some((_, export)) = exports.list.iter().find(|(known, _)| known == name) else {
            return 0;
        };
        let connections = self.0.connections.borrow();
        connections.values().filter(|c| c.serves(export) && which(c, export)).count()
    }

    /// Bytes of requests in flight, of all connections.
    pub fn bytes_in_flight(&self) -> usize {
        let connections = self.0.connections.borrow();
        let own: usize = connections.values().map(|c| c.memory.own_taken()).sum();
        self.0.pool.taken() + own
    }

    /// Stops: no more connections, no more requests; those in flight end and are answered, then the
    /// connections are closed, at the latest after [`ServerConfig::shutdown_grace`]. Returns how
    /// many had to be cut off. Socket files are removed.
    pub async fn shutdown(&self) -> usize {
        self.0.stopping.set(true);
        self.0.listeners.borrow_mut().clear();
        self.0.stop.notify_all();
        self.0.end_connections(|_| true).await
    }
}

impl ServerState {
    fn emit(&self, event: Event) {
        let log = self.log.borrow().clone();
        if let Some(log) = log {
            log(event);
        }
    }

    /// What is on offer now, with the exports in the same order.
    fn catalogue(&self) -> (Catalogue, Vec<Rc<Export>>) {
        let exports = self.exports.borrow();
        let resolves = self.resolver.borrow().is_some();
        let mut catalogue = Catalogue { resolves, ..Catalogue::default() };
        for (name, export) in &exports.list {
            if exports.default.as_ref() == Some(name) {
                catalogue.default = Some(catalogue.exports.len());
            }
            catalogue.exports.push(self.describe(name, export));
        }
        (catalogue, exports.list.iter().map(|(_, export)| export.clone()).collect())
    }

    /// An export that is not listed, or what a client is told.
    async fn resolve(&self, name: &str) -> Result<Resolved, String> {
        let resolver = self.resolver.borrow().clone();
        let resolver = resolver.ok_or("there is no export of this name")?;
        let resolved = resolver.resolve(name).await?;
        match resolved.export.has_sound_sizes() {
            true => Ok(resolved),
            false => Err("its block sizes are not ascending powers of two".to_owned()),
        }
    }

    fn describe(&self, name: &str, export: &Export) -> ExportInfo {
        let mut flags = wire::EXPORT_HAS_FLAGS
            | wire::EXPORT_SEND_FLUSH
            | wire::EXPORT_SEND_FUA
            | wire::EXPORT_SEND_DF
            | wire::EXPORT_CAN_MULTI_CONN;
        flags |= if export.read_only {
            wire::EXPORT_READ_ONLY
        } else {
            wire::EXPORT_SEND_TRIM | wire::EXPORT_SEND_WRITE_ZEROES | wire::EXPORT_SEND_FAST_ZERO
        };
        let mut block = export.block_sizes();
        block.max = block.max.min(self.config.payload_max()).max(block.min);
        ExportInfo {
            name: name.to_owned(),
            description: export.description.clone(),
            size_bytes: export.volume.size_bytes(),
            block,
            flags,
        }
    }

    fn still_serves(&self, export: &Rc<Export>) -> bool {
        self.exports.borrow().list.iter().any(|(_, known)| Rc::ptr_eq(known, export))
    }

    /// Ends some connections; returns how many had to be cut off.
    async fn end_connections(self: &Rc<Self>, which: impl Fn(&Connection) -> bool) -> usize {
        let chosen: Vec<(u64, Rc<Connection>)> = {
            let connections = self.connections.borrow();
            let chosen = connections.iter().filter(|(_, connection)| which(connection));
            chosen.map(|(id, connection)| (*id, connection.clone())).collect()
        };
        for (_, connection) in &chosen {
            connection.drain();
        }
        let left = |inner: &Self| {
            let connections = inner.connections.borrow();
            chosen.iter().filter(|(id, _)| connections.contains_key(id)).count()
        };
        self.wait_until(self.config.shutdown_grace, || left(self) == 0).await;
        let cut = left(self);
        for (_, connection) in &chosen {
            connection.cut("the server stopped");
        }
        // A connection that is cut ends at once, unless an export never answers: then its requests
        // stay, with all that they hold.
        self.wait_until(100 * MILLISECOND, || left(self) == 0).await;
        cut
    }

    async fn wait_until(&self, patience: Nanos, done: impl Fn() -> bool) {
        let deadline = self.rt.now().saturating_add(patience);
        loop {
            let ended = self.ended.wait();
            if done() {
                return;
            }
            let ended = std::pin::pin!(ended);
            let late = std::pin::pin!(self.rt.sleep_until(deadline));
            if let Either::Right(_) = select(ended, late).await {
                return;
            }
        }
    }
}
