//! Tells systemd how the daemon is doing (`sd_notify`): a datagram to the socket that
//! `NOTIFY_SOCKET` names, if there is one.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use weft_cli::output::log_line;
use weft_rt::{MICROSECOND, Nanos};

/// How much longer systemd should wait for the current operation.
const EXTENSION: Duration = Duration::from_secs(20);

/// Asks for more time to start or stop; repeated as long as that takes.
pub fn extend_timeout() {
    systemd(&format!("EXTEND_TIMEOUT_USEC={}", EXTENSION.as_micros()));
}

/// Sends `state`, for example `READY=1`. Without systemd nothing happens.
pub fn systemd(state: &str) {
    send(state, None);
}

/// Gives systemd a copy of a descriptor, to be passed to the next daemon
/// ([`weft_rt::inherited::take`]). Returns whether it was sent: whether the unit allows it
/// (`FileDescriptorStoreMax=`) is not told.
pub fn keep(name: &str, descriptor: BorrowedFd<'_>) -> bool {
    send(&format!("FDSTORE=1\nFDNAME={name}"), Some(descriptor))
}

/// Has systemd close the descriptors of this name.
pub fn forget(name: &str) {
    send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None);
}

/// Sends a message; returns whether there is systemd, and takes it.
fn send(state: &str, descriptor: Option<BorrowedFd<'_>>) -> bool {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return false };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(Path::new(&name)),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let text = [IoSlice::new(state.as_bytes())];
        sendmsg(&socket, &text, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    });
    if let Err(e) = &sent {
        log_line(&format!("NOTIFY_SOCKET: {e}"));
    }
    sent.is_ok()
}

/// Whether systemd wants to be told.
pub fn is_asked() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// How long systemd waits for a sign of life, if it does.
pub fn watchdog() -> Option<Nanos> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_meant = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|us| is_meant && *us > 0)?.checked_mul(MICROSECOND)
}
