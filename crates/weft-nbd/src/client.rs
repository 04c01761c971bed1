//! The client: a disk that is an export of an NBD server.
//!
//! One connection carries many requests at a time. **No request takes longer than**
//! [`NbdOptions::request_timeout`], whether it waits in a queue, for a new connection, or for a
//! silent server. Its time runs from when it is made. When the time is over, the disk is gone, and
//! with it all other requests: a server that let one wait that long would only do it again.
//!
//! When a connection breaks before that:
//!
//! * **Nothing unflushed, and only reads in flight**: the client reconnects, with at most
//!   [`NbdOptions::reconnect_attempts`] attempts, each after a longer pause. It sends the reads
//!   again; new requests wait. If the export is smaller or has other abilities now, if its first
//!   blocks hold something else than before (`witness.rs`), or no attempt succeeds, the disk is
//!   gone. An export that became larger is the same disk if some of its first blocks are known.
//! * **Anything else**: the disk is gone at once, and stays so. A server that comes back may have
//!   lost writes that it had acknowledged and not flushed, and one that was unreachable may still
//!   carry out a write that was in flight, over a newer one. The client can detect neither, so it
//!   must not hide either: the array has redundancy for exactly this.
//!
//! When the owner of a disk severs it ([`Disk::sever`](weft_disk::Disk::sever)), the client closes
//! the connection at once and sends nothing more. The server may still carry out what it has
//! received, at any time until it has noticed that the connection is gone.
//!
//! A gone disk answers [`DiskErrorKind::Gone`](weft_disk::DiskErrorKind::Gone) to everything; open
//! it again.
//!
//! Host names are resolved once, when the disk is opened, by the system's resolver on a thread of
//! its own, since it blocks.

mod connect;
mod link;
mod requests;
mod resolve;
mod uri;
mod witness;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use weft_disk::DiskInfo;
use weft_rt::ring::Ring;
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::inbox::Inbox;
use crate::proto::{Peer, Request, Violation, put_request, wire};
use link::{Durability, Link, LinkError};
use witness::Witness;

pub use resolve::resolve_host;
pub use uri::{NbdAddress, NbdUri, UriError};

/// How an NBD disk behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdOptions {
    /// Opens an export that cannot be written, and writes to none.
    pub read_only: bool,
    /// How long it may take to resolve a name, connect and shake hands, all together.
    pub connect_timeout: Nanos,
    /// Total time that a request may take; the disk is gone if one takes longer.
    pub request_timeout: Nanos,
    /// Attempts to reconnect where that is safe; 0: never.
    pub reconnect_attempts: u32,
    /// Pause before the first attempt; each further one is twice as long.
    pub reconnect_pause: Nanos,
    /// Requests in flight.
    pub requests_max: usize,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            connect_timeout: 10 * SECOND,
            request_timeout: 30 * SECOND,
            reconnect_attempts: 4,
            reconnect_pause: 250 * MILLISECOND,
            requests_max: 128,
        }
    }
}

/// Why an NBD disk cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The host's name has no address.
    #[error("cannot resolve {0:?}: {1}")]
    Resolve(String, #[source] io::Error),
    /// The resolver did not answer.
    #[error("cannot resolve {0:?}: the resolver did not answer in time")]
    ResolveTimedOut(String),
    /// The resolver has not answered for many names already.
    #[error("cannot resolve {0:?}: the resolver is still busy with other names")]
    ResolverBusy(String),
    /// The server cannot be reached, or the connection broke.
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    /// No connection, or no handshake, in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The server closed the connection in the handshake.
    #[error("the server closed the connection during the handshake; it may not have this export")]
    HungUp,
    /// The server refused, or speaks something else.
    #[error(transparent)]
    Protocol(#[from] Violation),
    /// The export cannot be written.
    #[error("the export is read-only")]
    ReadOnly,
    /// The server cannot make writes durable on demand.
    #[error("the server does not support flush, which weft needs to make writes durable")]
    NoFlush,
    /// The export's smallest block is larger than any sector.
    #[error("the export's minimum request is {0} bytes; weft supports at most 4096")]
    BlockSize(u32),
}

/// A disk served by an NBD server.
pub struct NbdDisk(Rc<Shared>);

impl std::fmt::Debug for NbdDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdDisk").field("info", &self.0.info).finish_non_exhaustive()
    }
}

struct Shared {
    rt: Rt,
    ring: Ring,
    uri: NbdUri,
    addresses: Vec<SocketAddr>,
    options: NbdOptions,
    info: DiskInfo,
    /// Its size now: it may have become larger ([`Disk::size_now`](weft_disk::Disk::size_now)).
    size_bytes: Cell<u64>,
    peer: Peer,
    state: RefCell<State>,
    changed: Notify,
    slots: Semaphore,
    durability: Rc<Durability>,
    witness: Witness,
    /// The disk was dropped.
    closing: Cell<bool>,
    /// Its owner has severed it.
    severed: Cell<bool>,
}

enum State {
    Up(Rc<Link>),
    Reconnecting,
    Gone(String),
}

impl NbdDisk {
    /// Connects to the export that `uri` names.
    ///
    /// # Errors
    /// It cannot be reached, refuses, or cannot do what a disk must.
    pub async fn open(
        rt: &Rt,
        ring: &Ring,
        uri: &NbdUri,
        options: NbdOptions,
    ) -> Result<Self, OpenError> {
        let deadline = rt.now().saturating_add(options.connect_timeout);
        let addresses = resolve::resolve(rt, &uri.address, deadline).await?;
        let (fd, inbox, peer) = connect::connect(rt, ring, uri, &addresses, deadline).await?;
        let info = describe(uri, &peer, options.read_only)?;
        let link = Rc::new(Link::new(fd));
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            ring: ring.clone(),
            uri: uri.clone(),
            addresses,
            options,
            size_bytes: Cell::new(info.size_bytes),
            info,
            peer,
            state: RefCell::new(State::Up(link.clone())),
            changed: Notify::default(),
            slots: Semaphore::new(options.requests_max.max(1)),
            durability: Rc::default(),
            witness: Witness::default(),
            closing: Cell::new(false),
            severed: Cell::new(false),
        });
        rt.spawn(run_link(shared.clone(), link, inbox));
        rt.spawn(watch(rt.clone(), Rc::downgrade(&shared)));
        Ok(Self(shared))
    }

    /// The URI that it was opened by.
    pub fn uri(&self) -> &NbdUri {
        &self.0.uri
    }

    /// Why the disk is gone; `None` if it is not.
    pub fn gone(&self) -> Option<String> {
        match &*self.0.state.borrow() {
            State::Gone(why) => Some(why.clone()),
            _ => None,
        }
    }
}

impl Drop for NbdDisk {
    /// Says goodbye; the connection ends when the server has heard it.
    fn drop(&mut self) {
        self.0.closing.set(true);
        if let State::Up(link) = &*self.0.state.borrow() {
            let command = wire::CMD_DISC;
            let goodbye = Request { flags: 0, command, cookie: 0, offset: 0, len: 0 };
            link.outbox.push(|out| put_request(out, &goodbye), None, ());
            link.outbox.finish();
        }
        self.0.changed.notify_all();
    }
}

fn describe(uri: &NbdUri, peer: &Peer, read_only: bool) -> Result<DiskInfo, OpenError> {
    if !read_only && peer.flags & wire::EXPORT_READ_ONLY != 0 {
        return Err(OpenError::ReadOnly);
    }
    if !read_only && peer.flags & wire::EXPORT_SEND_FLUSH == 0 {
        return Err(OpenError::NoFlush);
    }
    let sector_bytes = match peer.block.min {
        0..=512 => 512,
        513..=4096 => 4096,
        larger => return Err(OpenError::BlockSize(larger)),
    };
    Ok(DiskInfo {
        name: uri.to_string(),
        size_bytes: whole_sectors(peer, sector_bytes),
        sector_bytes,
        fast_zeroes: peer.flags & wire::EXPORT_SEND_WRITE_ZEROES != 0,
        volatile_cache: true,
        rotational: false,
    })
}

/// Bytes of an export's whole sectors.
fn whole_sectors(peer: &Peer, sector_bytes: u32) -> u64 {
    peer.size_bytes - peer.size_bytes % u64::from(sector_bytes)
}

/// Serves a link to its end, then decides what becomes of the disk.
async fn run_link(shared: Rc<Shared>, link: Rc<Link>, mut inbox: Inbox) {
    let sender = {
        let (shared, link) = (shared.clone(), link.clone());
        async move {
            if link.outbox.run(&shared.rt, &shared.ring, &link.fd).await.is_err() {
                link.cut("the connection failed while sending");
            }
        }
    };
    shared.rt.spawn(sender);
    let durability = shared.durability.clone();
    let reason = match link.receive(&mut inbox, &durability).await {
        Err(error @ LinkError::Protocol(_)) => error.to_string(),
        Err(error) => link.cut_because().map_or_else(|| error.to_string(), str::to_owned),
        Ok(()) => String::new(),
    };
    link.cut("the connection has ended");
    shared.lost(&link, reason).await;
}

/// The message for a disk whose server let a request take too long.
const LATE: &str = "the server did not answer in time";

/// Gives the disk up when a request has taken too long. It looks when the oldest request must be
/// done; one that is made after it looked must be done later than it looks again.
async fn watch(rt: Rt, shared: Weak<Shared>) {
    loop {
        let Some(disk) = shared.upgrade() else { return };
        let patience = disk.options.request_timeout;
        let now = rt.now();
        let oldest = match &*disk.state.borrow() {
            State::Gone(_) => return,
            _ if disk.closing.get() => return,
            State::Up(link) => link.oldest(),
            // Requests that have to wait for a connection look at the time themselves.
            State::Reconnecting => None,
        };
        let next = oldest.unwrap_or(now).saturating_add(patience);
        if next <= now {
            return disk.give_up(LATE);
        }
        drop(disk);
        rt.sleep_until(next).await;
    }
}

impl Shared {
    /// Ends the connection, with all that was not sent yet, and makes no other.
    fn sever(&self) {
        self.severed.set(true);
        if let State::Up(link) = &*self.state.borrow() {
            link.cut("it was given up");
        }
    }

    fn set_state(&self, state: State) {
        let old = self.state.replace(state);
        drop(old);
        self.changed.notify_all();
    }

    /// Ends the disk: every request ends now, and any later one at once.
    fn give_up(&self, reason: &str) {
        let link = match &*self.state.borrow() {
            State::Up(link) => Some(link.clone()),
            State::Reconnecting => None,
            State::Gone(_) => return,
        };
        let why = match &link {
            Some(link) if link.is_modifying() => format!("{reason}, with writes in flight"),
            _ => reason.to_owned(),
        };
        self.set_state(State::Gone(why));
        if let Some(link) = link {
            link.cut(LATE);
            link.end();
        }
    }

    /// The link has ended.
    async fn lost(self: Rc<Self>, link: &Link, reason: String) {
        if matches!(*self.state.borrow(), State::Gone(_)) {
            return;
        }
        let is_current =
            matches!(&*self.state.borrow(), State::Up(now) if std::ptr::eq(&**now, link));
        if !is_current {
            // It was being tried.
            link.end();
            return;
        }
        let why = if self.closing.get() {
            Some("it was closed".to_owned())
        } else if self.severed.get() {
            Some("it was given up".to_owned())
        } else if link.is_modifying() {
            Some(format!("{reason}, with writes in flight"))
        } else if self.durability.has_unflushed() {
            Some(format!("{reason}, with writes that were not flushed"))
        } else {
            None
        };
        // The state changes before the requests are answered: who hears of the loss finds it.
        let safe = why.is_none();
        self.set_state(why.map_or(State::Reconnecting, State::Gone));
        link.end();
        if safe {
            self.reconnect(reason).await;
        }
    }

    /// Whether an export may be the one that was there before: as large, or larger if its first
    /// blocks can tell it from another disk.
    fn may_be(&self, peer: &Peer) -> bool {
        let (size_bytes, before) =
            (whole_sectors(peer, self.info.sector_bytes), self.size_bytes.get());
        let has_same_abilities = Peer { size_bytes: self.peer.size_bytes, ..*peer } == self.peer;
        let is_known = !self.witness.blocks().is_empty();
        has_same_abilities && (size_bytes == before || size_bytes > before && is_known)
    }

    async fn reconnect(self: Rc<Self>, reason: String) {
        let mut pause = self.options.reconnect_pause;
        let mut last = reason;
        for _ in 0..self.options.reconnect_attempts {
            self.rt.sleep(pause).await;
            pause = pause.saturating_mul(2);
            if self.closing.get() || self.severed.get() {
                break;
            }
            let (rt, ring) = (&self.rt, &self.ring);
            let deadline = rt.now().saturating_add(self.options.connect_timeout);
            let attempt = connect::connect(rt, ring, &self.uri, &self.addresses, deadline).await;
            // A request may have waited for too long by now.
            if matches!(*self.state.borrow(), State::Gone(_)) {
                return;
            }
            match attempt {
                Ok((fd, inbox, peer)) if self.may_be(&peer) => {
                    let link = Rc::new(Link::new(fd));
                    rt.spawn(run_link_boxed(self.clone(), link.clone(), inbox));
                    // Requests wait until it is certain that this is the disk.
                    let same = before(rt, deadline, self.is_same_disk(&link)).await.flatten();
                    if matches!(*self.state.borrow(), State::Gone(_)) {
                        link.cut("the disk is gone");
                        return;
                    }
                    if self.closing.get() || self.severed.get() {
                        link.cut("it was closed");
                        break;
                    }
                    match same {
                        Some(true) if !link.has_ended() => {
                            self.size_bytes.set(whole_sectors(&peer, self.info.sector_bytes));
                            self.set_state(State::Up(link));
                            return;
                        }
                        Some(false) => {
                            link.cut("it is another disk");
                            last =
                                "the server came back with another disk, or an earlier state of it"
                                    .to_owned();
                            break;
                        }
                        _ => {
                            link.cut("it did not answer");
                            last = "the connection broke again".to_owned();
                        }
                    }
                }
                Ok(_) => {
                    last = "the server came back with a different export".to_owned();
                    break;
                }
                Err(error) => last = error.to_string(),
            }
        }
        if !matches!(*self.state.borrow(), State::Gone(_)) {
            self.set_state(State::Gone(last));
        }
    }

    /// The link, once there is one.
    async fn link(&self) -> Result<Rc<Link>, String> {
        loop {
            let changed = self.changed.wait();
            match &*self.state.borrow() {
                State::Up(link) => return Ok(link.clone()),
                State::Gone(why) => return Err(why.clone()),
                State::Reconnecting => {}
            }
            changed.await;
        }
    }

    /// The link if there is one now.
    fn link_now(&self) -> Option<Rc<Link>> {
        match &*self.state.borrow() {
            State::Up(link) => Some(link.clone()),
            _ => None,
        }
    }
}

/// `future`, or nothing if it is not done at `deadline`.
async fn before<T>(rt: &Rt, deadline: Nanos, future: impl Future<Output = T>) -> Option<T> {
    let late = std::pin::pin!(rt.sleep_until(deadline));
    match select(std::pin::pin!(future), late).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

/// [`run_link`] in a box, since it is part of its own future by way of reconnecting.
fn run_link_boxed(
    shared: Rc<Shared>,
    link: Rc<Link>,
    inbox: Inbox,
) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(run_link(shared, link, inbox))
}
