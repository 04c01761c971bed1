//! Reaching a server: connection, handshake.

use std::net::SocketAddr;

use weft_rt::ring::{Fd, Ring};
use weft_rt::{Buf, Nanos, Rt};

use super::{NbdAddress, NbdUri, OpenError, before};
use crate::inbox::{INBOX_BYTES, Inbox};
use crate::proto::{ClientNegotiation, ClientStep, Peer};
use crate::socket::tune;

/// A connection in transmission, unless there is none at `deadline`; bytes received already stay in
/// the inbox.
pub(super) async fn connect(
    rt: &Rt,
    ring: &Ring,
    uri: &NbdUri,
    addresses: &[SocketAddr],
    deadline: Nanos,
) -> Result<(Fd, Inbox, Peer), OpenError> {
    let attempt = async {
        let fd = dial(ring, uri, addresses).await?;
        let mut inbox = Inbox::new(rt, ring, &fd);
        let peer = shake_hands(ring, &fd, &mut inbox, &uri.export).await?;
        Ok((fd, inbox, peer))
    };
    before(rt, deadline, attempt).await.unwrap_or(Err(OpenError::TimedOut))
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
