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

/// Whether systemd keeps descriptors of this daemon: whether the unit allows it
/// (`FileDescriptorStoreMax=`). systemd drops what it does not keep without a word, and other
/// programs may listen at `NOTIFY_SOCKET`, so this is asked for first. May block.
pub fn has_store() -> bool {
    let is_some = |text: &str| text.trim().parse::<u64>().is_ok_and(|most| most > 0);
    if !is_asked() {
        return false;
    }
    // Since version 254 a service is told.
    if let Some(most) = std::env::var_os("FDSTORE") {
        return most.to_str().is_some_and(is_some);
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(unit) = unit_of(&groups) else { return false };
    let mut ask = std::process::Command::new("systemctl");
    ask.args(["show", "--property=FileDescriptorStoreMax", "--value", "--", unit]);
    let answer = ask.stdin(std::process::Stdio::null()).output();
    answer.is_ok_and(|answer| {
        answer.status.success() && is_some(&String::from_utf8_lossy(&answer.stdout))
    })
}

/// The service of the system whose process this is, by the text of `/proc/self/cgroup`.
fn unit_of(groups: &str) -> Option<&str> {
    let paths = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (kind, path) = rest.split_once(':')?;
        ["", "name=systemd"].contains(&kind).then_some(path)
    });
    // Of a user's own services another systemd would know.
    let mut own = paths.filter(|path| !path.split('/').any(|part| part.starts_with("user@")));
    own.find_map(|path| path.split('/').rev().find(|part| part.ends_with(".service")))
}

/// Gives systemd a copy of a descriptor, to be passed to the next daemon
/// ([`weft_rt::inherited::take`]). Returns whether it was sent; see [`has_store`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_its_service() {
        assert_eq!(unit_of("0::/system.slice/weft.service\n"), Some("weft.service"));
        let both = "3:cpu:/other.service\n1:name=systemd:/system.slice/weft.service/main\n0::/\n";
        assert_eq!(unit_of(both), Some("weft.service"));
        for none in ["", "0::/\n", "x", "0::/user.slice/user@0.service/app.slice/weft.service\n"] {
            assert_eq!(unit_of(none), None, "{none}");
        }
    }
}
