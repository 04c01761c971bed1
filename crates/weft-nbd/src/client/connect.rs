//! Reaching a server: address, connection, handshake.

use std::net::{SocketAddr, ToSocketAddrs};

use futures_util::future::{Either, select};
use weft_rt::ring::{Fd, Ring};
use weft_rt::{Buf, Nanos, Rt};

use super::{NbdAddress, NbdUri, OpenError};
use crate::inbox::{INBOX_BYTES, Inbox};
use crate::proto::{ClientNegotiation, ClientStep, Peer};
use crate::socket::tune;

/// The addresses of a server. Blocks for a host name until the resolver has answered.
pub(super) fn resolve(address: &NbdAddress) -> Result<Vec<SocketAddr>, OpenError> {
    let NbdAddress::Tcp(host, port) = address else { return Ok(Vec::new()) };
    let found = (host.as_str(), *port).to_socket_addrs();
    let found: Vec<_> = found.map_err(|e| OpenError::Resolve(host.clone(), e))?.collect();
    if found.is_empty() {
        let none = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(OpenError::Resolve(host.clone(), none));
    }
    Ok(found)
}

/// `future`, or nothing if it takes longer than `patience`.
async fn within<T>(rt: &Rt, patience: Nanos, future: impl Future<Output = T>) -> Option<T> {
    let late = std::pin::pin!(rt.sleep(patience));
    match select(std::pin::pin!(future), late).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

/// A connection in transmission; what was received already stays in the inbox.
pub(super) async fn connect(
    rt: &Rt,
    ring: &Ring,
    uri: &NbdUri,
    addresses: &[SocketAddr],
    patience: Nanos,
) -> Result<(Fd, Inbox, Peer), OpenError> {
    let attempt = async {
        let fd = dial(ring, uri, addresses).await?;
        let mut inbox = Inbox::new(rt, ring, &fd);
        let peer = shake_hands(ring, &fd, &mut inbox, &uri.export).await?;
        Ok((fd, inbox, peer))
    };
    within(rt, patience, attempt).await.unwrap_or(Err(OpenError::TimedOut))
}

async fn dial(ring: &Ring, uri: &NbdUri, addresses: &[SocketAddr]) -> Result<Fd, OpenError> {
    if let NbdAddress::Unix(path) = &uri.address {
        let fd = ring.connect_unix(path).await?;
        tune(&fd);
        return Ok(fd);
    }
    let mut failure = None;
    for address in addresses {
        match ring.connect_tcp(*address).await {
            Ok(fd) => {
                tune(&fd);
                return Ok(fd);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()).into())
}

async fn shake_hands(
    ring: &Ring,
    fd: &Fd,
    inbox: &mut Inbox,
    export: &str,
) -> Result<Peer, OpenError> {
    let mut negotiation = ClientNegotiation::new(export)?;
    let mut out = Vec::new();
    loop {
        let (used, step) = negotiation.step(inbox.bytes(), &mut out)?;
        inbox.consume(used);
        if !out.is_empty() {
            ring.send(fd, Buf::copy_from(&out).freeze()).await?;
            out.clear();
        }
        match step {
            ClientStep::Again => {}
            ClientStep::Ready(peer) => return Ok(peer),
            ClientStep::NeedMore => {
                let wanted = (inbox.bytes().len() + 1).min(INBOX_BYTES);
                if !inbox.fill(wanted).await? {
                    return Err(OpenError::HungUp);
                }
            }
        }
    }
}
