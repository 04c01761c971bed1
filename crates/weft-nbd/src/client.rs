//! The client: a disk that is an export of some NBD server.
//!
//! One connection carries many requests at a time. What happens when it breaks, or the server does
//! not answer for [`NbdOptions::request_timeout`] (then it is broken off):
//!
//! * **Nothing unflushed, nothing but reads in flight**: the server is asked again,
//!   [`NbdOptions::reconnect_attempts`] times, each after a longer pause. Reads are sent again; new
//!   requests wait. If the export has another size or ability now, or no attempt succeeds, the
//!   disk is gone.
//! * **Anything else**: the disk is gone at once, and stays so. A server that comes back may have lost
//!   writes that it had acknowledged and not flushed, and one that we lost sight of may
//!   still carry out a write that was in flight, over a newer one. Neither can be seen from here,
//!   so neither may be papered over: the array has redundancy for exactly this.
//!
//! A gone disk answers [`DiskErrorKind::Gone`] to everything; open it anew.
//!
//! Host names are resolved once, when the disk is opened, by the system's resolver, which
//! blocks the thread; literal addresses and Unix sockets never do.

mod connect;
mod link;
mod uri;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use futures_util::future::join_all;
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts,
};
use weft_rt::ring::Ring;
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt, SECOND};

use crate::inbox::Inbox;
use crate::proto::{Errno, PAYLOAD_BYTES_MAX, Peer, Request, Violation, put_request, wire};
use link::{Answer, Durability, Link, LinkError};

pub use uri::{NbdAddress, NbdUri, UriError};

/// Zeros of one request, at most: even a server that writes them out is done within its timeout.
const ZEROES_BYTES_MAX: u64 = 64 << 20;

/// Zeros of one write to a server that has no command for it.
const ZEROES_WRITTEN_BYTES: u64 = 1 << 20;

/// How an NBD disk behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdOptions {
    /// Opens an export that cannot be written, and writes to none.
    pub read_only: bool,
    /// How long a connection with its handshake may take.
    pub connect_timeout: Nanos,
    /// How long a request may take (it may be up to a quarter more).
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
    /// The server cannot be reached, or the connection broke.
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    /// No connection, or no handshake, in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The server closed the connection in the handshake.
    #[error("the server hung up in the handshake; perhaps it has no such export")]
    HungUp,
    /// The server refused, or speaks something else.
    #[error(transparent)]
    Protocol(#[from] Violation),
    /// The export cannot be written.
    #[error("the export is read-only")]
    ReadOnly,
    /// The server cannot make writes durable on demand.
    #[error("the server offers no flush: nothing written to it could be promised to be durable")]
    NoFlush,
    /// The export's smallest block is larger than any sector.
    #[error("the export wants requests of at least {0} bytes; at most 4096 is possible")]
    BlockSize(u32),
}

/// A disk behind an NBD server.
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
    peer: Peer,
    state: RefCell<State>,
    changed: Notify,
    slots: Semaphore,
    durability: Rc<Durability>,
    /// The disk was dropped.
    closing: Cell<bool>,
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
        let addresses = connect::resolve(&uri.address)?;
        let patience = options.connect_timeout;
        let (fd, inbox, peer) = connect::connect(rt, ring, uri, &addresses, patience).await?;
        let info = describe(uri, &peer, options.read_only)?;
        let link = Rc::new(Link::new(fd));
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            ring: ring.clone(),
            uri: uri.clone(),
            addresses,
            options,
            info,
            peer,
            state: RefCell::new(State::Up(link.clone())),
            changed: Notify::default(),
            slots: Semaphore::new(options.requests_max.max(1)),
            durability: Rc::default(),
            closing: Cell::new(false),
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
        size_bytes: peer.size_bytes - peer.size_bytes % u64::from(sector_bytes),
        sector_bytes,
        fast_zeroes: peer.flags & wire::EXPORT_SEND_WRITE_ZEROES != 0,
    })
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

/// Breaks off a connection whose server does not answer.
async fn watch(rt: Rt, shared: Weak<Shared>) {
    loop {
        let Some(disk) = shared.upgrade() else { return };
        let patience = disk.options.request_timeout;
        if disk.closing.get() || matches!(*disk.state.borrow(), State::Gone(_)) {
            return;
        }
        if let State::Up(link) = &*disk.state.borrow()
            && link.oldest().is_some_and(|since| since.saturating_add(patience) < rt.now())
        {
            link.cut("the server did not answer in time");
        }
        drop(disk);
        rt.sleep((patience / 4).max(MILLISECOND)).await;
    }
}

impl Shared {
    fn set_state(&self, state: State) {
        let old = self.state.replace(state);
        drop(old);
        self.changed.notify_all();
    }

    /// The link is no more.
    async fn lost(self: Rc<Self>, link: &Link, reason: String) {
        let why = if self.closing.get() {
            Some("it was closed".to_owned())
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

    async fn reconnect(self: Rc<Self>, reason: String) {
        let mut pause = self.options.reconnect_pause;
        let mut last = reason;
        for _ in 0..self.options.reconnect_attempts {
            self.rt.sleep(pause).await;
            pause = pause.saturating_mul(2);
            if self.closing.get() {
                break;
            }
            let patience = self.options.connect_timeout;
            let (rt, ring) = (&self.rt, &self.ring);
            match connect::connect(rt, ring, &self.uri, &self.addresses, patience).await {
                Ok((fd, inbox, peer)) if peer == self.peer => {
                    let link = Rc::new(Link::new(fd));
                    self.set_state(State::Up(link.clone()));
                    let rt = self.rt.clone();
                    rt.spawn(run_link_boxed(self, link, inbox));
                    return;
                }
                Ok(_) => {
                    last = "the server came back with a different export".to_owned();
                    break;
                }
                Err(error) => last = error.to_string(),
            }
        }
        self.set_state(State::Gone(last));
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

    /// One request, from beginning to end.
    async fn call(&self, call: Call) -> (Result<(), DiskError>, Option<Buf>) {
        let Call { op, flags, offset, len, data, mut buf } = call;
        let _slot = match self.slots.try_acquire(1) {
            Some(slot) => slot,
            None => self.slots.acquire(1).await,
        };
        let command = match op {
            DiskOp::Read | DiskOp::Open => wire::CMD_READ,
            DiskOp::Write => wire::CMD_WRITE,
            DiskOp::Flush => wire::CMD_FLUSH,
            DiskOp::WriteZeroes => wire::CMD_WRITE_ZEROES,
            DiskOp::Discard => wire::CMD_TRIM,
        };
        let wire_len = u32::try_from(len).expect("requests are cut to the largest payload");
        let request = Request { flags, command, cookie: 0, offset, len: wire_len };
        // Whether a request that was lost may be sent again is decided where the link ended: if
        // not, there is no other link. A read that kills each link is not tried for ever.
        for _ in 0..=self.options.reconnect_attempts {
            let link = match self.link().await {
                Ok(link) => link,
                Err(why) => return (Err(self.gone_error(op, offset, len, why)), buf),
            };
            let now = self.rt.now();
            let answer = link.submit(request, data.clone(), buf.take(), now, &self.durability);
            match answer.await {
                Some(Answer::Done(back)) => return (Ok(()), back),
                Some(Answer::Refused(errno, text, back)) => {
                    return (Err(self.refused(op, offset, len, errno, text)), back);
                }
                Some(Answer::Lost(back)) => buf = back,
                None => {}
            }
            if buf.is_none() && command == wire::CMD_READ {
                buf = Some(Buf::new(wire_len as usize));
            }
        }
        let why = "the connection broke each time this was asked".to_owned();
        (Err(self.gone_error(op, offset, len, why)), buf)
    }

    fn gone_error(&self, op: DiskOp, offset: u64, len: u64, why: String) -> DiskError {
        let source = io::Error::new(io::ErrorKind::NotConnected, why);
        DiskError::new(&self.info.name, op, offset, len, source)
    }

    fn refused(&self, op: DiskOp, offset: u64, len: u64, errno: Errno, text: String) -> DiskError {
        let code = i32::try_from(errno.code()).unwrap_or(i32::MAX);
        let source = io::Error::from_raw_os_error(code);
        let mut error = DiskError::new(&self.info.name, op, offset, len, source);
        if errno == Errno::Shutdown {
            error.kind = DiskErrorKind::Gone;
        }
        if !text.is_empty() {
            let text = format!("{}: the server says: {text}", error.source);
            error.source = io::Error::new(error.source.kind(), text);
        }
        error
    }

    fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        let sector = u64::from(self.info.sector_bytes);
        let end = offset.checked_add(len).filter(|end| *end <= self.info.size_bytes);
        let failed = |kind: io::ErrorKind| {
            Err(DiskError::new(&self.info.name, op, offset, len, io::Error::from(kind)))
        };
        if end.is_none() || !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            let mut error = failed(io::ErrorKind::InvalidInput);
            if let Err(error) = &mut error {
                error.kind = DiskErrorKind::Invalid;
            }
            return error;
        }
        if op != DiskOp::Read && self.options.read_only {
            return failed(io::ErrorKind::PermissionDenied);
        }
        Ok(())
    }

    fn payload_max(&self) -> u64 {
        let max = self.peer.block.max.min(PAYLOAD_BYTES_MAX);
        u64::from(max - max % self.info.sector_bytes).max(self.info.sector_bytes.into())
    }

    fn has(&self, flag: u16) -> bool {
        self.peer.flags & flag != 0
    }

    /// FUA as a flag, and whether a flush must follow instead.
    fn fua(&self, wanted: bool) -> (u16, bool) {
        match (wanted, self.has(wire::EXPORT_SEND_FUA)) {
            (false, _) => (0, false),
            (true, true) => (wire::CMD_FLAG_FUA, false),
            (true, false) => (0, true),
        }
    }

    async fn flush(&self) -> Result<(), DiskError> {
        let (op, flags) = (DiskOp::Flush, 0);
        self.call(Call { op, flags, offset: 0, len: 0, data: None, buf: None }).await.0
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), DiskError>, Buf) {
        let len = buf.len() as u64;
        let op = DiskOp::Read;
        if let Err(error) = self.check(op, offset, len) {
            return (Err(error), buf);
        }
        if len == 0 {
            return (Ok(()), buf);
        }
        let max = usize::try_from(self.payload_max()).unwrap_or(usize::MAX);
        let total = buf.len();
        if total <= max {
            let call = Call { op, flags: 0, offset, len, data: None, buf: Some(buf) };
            let (result, buf) = self.call(call).await;
            return (result, buf.unwrap_or_else(|| Buf::new(total)));
        }
        let mut calls = Vec::new();
        let mut at = offset;
        while !buf.is_empty() {
            let rest = buf.split_off(buf.len().min(max));
            let len = buf.len() as u64;
            let piece = std::mem::replace(&mut buf, rest);
            calls.push(Call { op, flags: 0, offset: at, len, data: None, buf: Some(piece) });
            at += len;
        }
        let mut outcome = Ok(());
        let mut whole: Option<Buf> = None;
        for (result, part) in join_all(calls.into_iter().map(|call| self.call(call))).await {
            outcome = outcome.and(result);
            match (&mut whole, part) {
                (None, part) => whole = part,
                // A part that was lost with its connection was replaced; the read has failed.
                (Some(whole), Some(part)) => _ = whole.join(part),
                (Some(_), None) => {}
            }
        }
        let whole = whole.filter(|whole| whole.len() == total);
        (outcome, whole.unwrap_or_else(|| Buf::new(total)))
    }

    async fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> Result<(), DiskError> {
        let (op, len) = (DiskOp::Write, data.len() as u64);
        self.check(op, offset, len)?;
        let (flags, flush) = self.fua(opts.fua);
        let max = self.payload_max();
        let mut calls = Vec::new();
        for start in (0..len).step_by(usize::try_from(max).unwrap_or(usize::MAX)) {
            let part = max.min(len - start);
            let index = |n: u64| usize::try_from(n).expect("inside a buffer");
            let data = Some(data.slice(index(start), index(part)));
            calls.push(Call { op, flags, offset: offset + start, len: part, data, buf: None });
        }
        for (result, _) in join_all(calls.into_iter().map(|call| self.call(call))).await {
            result?;
        }
        if flush { self.flush().await } else { Ok(()) }
    }

    async fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> Result<(), DiskError> {
        let op = DiskOp::WriteZeroes;
        self.check(op, offset, len)?;
        let (flags, flush) = self.fua(opts.fua);
        let command = self.has(wire::EXPORT_SEND_WRITE_ZEROES);
        let max =
            if command { ZEROES_BYTES_MAX } else { ZEROES_WRITTEN_BYTES.min(self.payload_max()) };
        let zeros =
            (!command && len > 0).then(|| Buf::zeroed(usize::try_from(max).unwrap_or(0)).freeze());
        let mut start = 0;
        while start < len {
            let part = max.min(len - start);
            let offset = offset + start;
            let data = zeros.as_ref().map(|z| z.slice(0, usize::try_from(part).unwrap_or(0)));
            let op = if data.is_some() { DiskOp::Write } else { op };
            self.call(Call { op, flags, offset, len: part, data, buf: None }).await.0?;
            start += part;
        }
        if flush { self.flush().await } else { Ok(()) }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let op = DiskOp::Discard;
        self.check(op, offset, len)?;
        if !self.has(wire::EXPORT_SEND_TRIM) {
            return Ok(());
        }
        let mut start = 0;
        while start < len {
            let part = ZEROES_BYTES_MAX.min(len - start);
            let offset = offset + start;
            let call = Call { op, flags: 0, offset, len: part, data: None, buf: None };
            self.call(call).await.0?;
            start += part;
        }
        Ok(())
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

/// A request to the server.
struct Call {
    op: DiskOp,
    flags: u16,
    offset: u64,
    len: u64,
    data: Option<Frozen>,
    buf: Option<Buf>,
}

impl Disk for NbdDisk {
    fn info(&self) -> &DiskInfo {
        &self.0.info
    }

    fn read(&self, offset: u64, buf: Buf, _class: Class) -> ReadFuture<'_> {
        Box::pin(self.0.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.0.write(offset, data, opts))
    }

    fn flush(&self) -> DoneFuture<'_> {
        // Read-only: there is nothing to flush, and the server may not offer it.
        Box::pin(async { if self.0.options.read_only { Ok(()) } else { self.0.flush().await } })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.0.write_zeroes(offset, len, opts))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(self.0.discard(offset, len))
    }
}
