//! Channels over TCP and Unix sockets.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;

use futures_util::future::{Either, select};
use rustix::net::{Shutdown, shutdown, sockopt};
use weft_nbd::client::resolve_host;
use weft_nbd::server::Listener as Socket;
use weft_rt::ring::{Fd, Ring};
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, MILLISECOND, Rt};

use super::handshake::{
    ANSWER_BYTES, Acceptance, HELLO_BYTES, HandshakeError, Nonce, Opening, Seals, Terms,
};
use super::{PATIENCE, STRANGERS_MAX};

/// Bytes that are received at once.
const RECEIVE_BYTES: usize = 64 << 10;

/// Where a keeper listens: `HOST:PORT`, or the absolute path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host (a name or a literal address, without brackets) and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a text is no [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a keeper: write HOST:PORT, or /PATH of a Unix socket")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let wrong = || AddressError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let usual = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        let host = bare.unwrap_or(host);
        let is_host = !host.is_empty() && host.chars().all(usual);
        if !is_host || bare.is_none() && host.contains(':') {
            return Err(wrong());
        }
        Ok(Self::Tcp(host.to_owned(), port.parse().map_err(|_| wrong())?))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address.ip().to_string(), address.port())
    }
}

impl Address {
    /// Whether only programs on this machine reach it, as far as the address tells.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(host, _) => {
                host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
            }
            Self::Unix(_) => true,
        }
    }
}

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// There is no connection, or it broke.
    #[error("{0}: {1}")]
    Io(Address, #[source] io::Error),
    /// The peer took too long.
    #[error("{0} does not answer")]
    Silence(Address),
    /// Both ends do not come together.
    #[error("{0}: {1}")]
    Handshake(Address, #[source] HandshakeError),
    /// Other machines can reach it, and there is no key.
    #[error("other machines can reach {0}, and no key was given")]
    NotLocal(Address),
    /// It cannot be listened on.
    #[error(transparent)]
    Listen(#[from] weft_nbd::ServerError),
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// A refused option only costs time: to send small messages, or to notice that the peer is gone.
fn tune(fd: &Fd, address: &Address) {
    if let Address::Tcp(..) = address {
        let _ = sockopt::set_tcp_nodelay(fd, true);
        let _ = sockopt::set_socket_keepalive(fd, true);
    }
}

/// Exactly so many bytes.
async fn receive<const N: usize>(ring: &Ring, fd: &Fd, len: usize) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    if len > 0 {
        let (result, buf) = ring.recv_full(fd, Buf::new(len), 0).await;
        if result? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes[..len].copy_from_slice(&buf);
    }
    Ok(bytes)
}

async fn send(ring: &Ring, fd: &Fd, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    ring.send(fd, Buf::copy_from(bytes).freeze()).await
}

/// A connection whose ends have proved what they are.
pub struct Channel {
    ring: Ring,
    fd: Fd,
    seals: RefCell<Seals>,
    writing: Semaphore,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_sealed = self.seals.borrow().is_some();
        f.debug_struct("Channel").field("is_sealed", &is_sealed).finish_non_exhaustive()
    }
}

impl Channel {
    fn new(ring: &Ring, fd: Fd, seals: Seals) -> Self {
        let (ring, seals, writing) = (ring.clone(), RefCell::new(seals), Semaphore::new(1));
        Self { ring, fd, seals, writing }
    }

    /// Waits for bytes and takes them; none at the end. One read at a time.
    ///
    /// # Errors
    /// The connection broke, or something came that the peer did not send.
    pub async fn read(&self) -> io::Result<Vec<u8>> {
        loop {
            let (count, buf) = self.ring.recv(&self.fd, Buf::new(RECEIVE_BYTES), 0).await;
            let bytes = &buf[..count?];
            let mut seals = self.seals.borrow_mut();
            let Some((_, opener)) = &mut *seals else { return Ok(bytes.to_vec()) };
            if bytes.is_empty() && opener.waiting_bytes() > 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let contents = opener.open(bytes).map_err(|broken| {
                self.close();
                io::Error::new(io::ErrorKind::InvalidData, broken)
            })?;
            if bytes.is_empty() || !contents.is_empty() {
                return Ok(contents);
            }
        }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        // Parts are sent in the order of their numbers.
        let _one = self.writing.acquire(1).await;
        let bytes = match &mut *self.seals.borrow_mut() {
            Some((sealer, _)) => sealer.seal(&bytes),
            None => bytes,
        };
        send(&self.ring, &self.fd, &bytes).await
    }

    /// Ends the connection: reads and writes of both ends fail or end.
    pub fn close(&self) {
        // It may be gone already.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connects to the keeper at an address.
///
/// # Errors
/// It cannot be reached, or is not the keeper of this cluster.
pub async fn connect(
    rt: &Rt,
    ring: &Ring,
    address: &Address,
    terms: &Terms,
) -> Result<Channel, ChannelError> {
    if terms.key.is_none() && !address.is_local() {
        return Err(ChannelError::NotLocal(address.clone()));
    }
    let failed = |error: io::Error| ChannelError::Io(address.clone(), error);
    let wrong = |error: HandshakeError| ChannelError::Handshake(address.clone(), error);
    let attempt = async {
        let fd = match address {
            Address::Unix(path) => ring.connect_unix(path).await.map_err(failed)?,
            Address::Tcp(host, port) => {
                let deadline = rt.now().saturating_add(PATIENCE);
                let found = resolve_host(rt, host, *port, deadline).await;
                let found = found.map_err(|error| failed(io::Error::other(error.to_string())))?;
                let mut outcome = Err(failed(io::ErrorKind::NotFound.into()));
                for address in found {
                    outcome = ring.connect_tcp(address).await.map_err(failed);
                    if outcome.is_ok() {
                        break;
                    }
                }
                outcome?
            }
        };
        tune(&fd, address);
        let opening = Opening::new(terms, &nonce().map_err(failed)?);
        send(ring, &fd, opening.hello()).await.map_err(failed)?;
        let answer = receive::<ANSWER_BYTES>(ring, &fd, ANSWER_BYTES).await.map_err(failed)?;
        let (proof, seals) = opening.take(&answer).map_err(wrong)?;
        send(ring, &fd, &proof).await.map_err(failed)?;
        Ok(Channel::new(ring, fd, seals))
    };
    match select(Box::pin(attempt), Box::pin(rt.sleep(PATIENCE))).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(ChannelError::Silence(address.clone())),
    }
}

/// A keeper's socket.
pub struct Listener {
    rt: Rt,
    ring: Ring,
    socket: Socket,
    address: Address,
    terms: Terms,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens. Port 0 stands for any that is free.
    ///
    /// # Errors
    /// The kernel's; or other machines can reach the address, and there is no key.
    pub fn bind(
        rt: &Rt,
        ring: &Ring,
        address: &Address,
        terms: Terms,
    ) -> Result<Self, ChannelError> {
        if terms.key.is_none() && !address.is_local() {
            return Err(ChannelError::NotLocal(address.clone()));
        }
        let (socket, address) = match address {
            Address::Unix(path) => (Socket::unix(path, None)?, address.clone()),
            Address::Tcp(host, port) => {
                let host = if host == "localhost" { "127.0.0.1" } else { host };
                let ip: IpAddr = host.parse().map_err(|_| {
                    let why = io::Error::other("listen on an IP address of this machine");
                    ChannelError::Io(address.clone(), why)
                })?;
                let (socket, bound) = Socket::tcp(SocketAddr::new(ip, *port))?;
                (socket, bound.into())
            }
        };
        Ok(Self { rt: rt.clone(), ring: ring.clone(), socket, address, terms })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts connections for as long as this is awaited. `serve` gets those of nodes that have
    /// proved themselves; `refused` hears of the others.
    pub async fn run(
        self: Rc<Self>,
        serve: impl Fn(Rc<Channel>) + 'static,
        refused: impl Fn(ChannelError) + 'static,
    ) {
        let strangers = Semaphore::new(STRANGERS_MAX);
        let (serve, refused) = (Rc::new(serve), Rc::new(refused));
        loop {
            let place = strangers.acquire(1).await;
            let fd = match self.ring.accept(self.socket.fd()).await {
                Ok(fd) => fd,
                Err(error) => {
                    // Out of descriptors or memory: this may pass.
                    refused(ChannelError::Io(self.address.clone(), error));
                    self.rt.sleep(100 * MILLISECOND).await;
                    continue;
                }
            };
            let (listener, serve, refused) = (self.clone(), serve.clone(), refused.clone());
            self.rt.spawn(async move {
                let met = listener.meet(fd).await;
                drop(place);
                match met {
                    Ok(channel) => serve(Rc::new(channel)),
                    Err(error) => refused(error),
                }
            });
        }
    }

    /// Lets a stranger prove itself.
    async fn meet(&self, fd: Fd) -> Result<Channel, ChannelError> {
        let failed = |error: io::Error| ChannelError::Io(self.address.clone(), error);
        let wrong = |error: HandshakeError| ChannelError::Handshake(self.address.clone(), error);
        tune(&fd, &self.address);
        let ring = &self.ring;
        let meeting = async {
            let hello = receive::<HELLO_BYTES>(ring, &fd, HELLO_BYTES).await.map_err(failed)?;
            let nonce = nonce().map_err(failed)?;
            let (answer, accepted) = Acceptance::new(&self.terms, &hello, &nonce);
            send(ring, &fd, &answer).await.map_err(failed)?;
            let accepted = accepted.map_err(wrong)?;
            let len = accepted.proof_bytes();
            let proof = receive::<32>(ring, &fd, len).await.map_err(failed)?;
            accepted.take(&proof).map_err(wrong)
        };
        let silence = Box::pin(self.rt.sleep(PATIENCE));
        let seals = match select(Box::pin(meeting), silence).await {
            Either::Left((seals, _)) => seals?,
            Either::Right(_) => return Err(ChannelError::Silence(self.address.clone())),
        };
        Ok(Channel::new(ring, fd, seals))
    }
}
