//! The devices of the kernel's NBD client that are attached arrays (`drivers/block/nbd.c`).
//!
//! The kernel gets one end of a pair of sockets, the daemon the other. When the daemon ends, the
//! kernel waits for another socket, for [`PATIENCE`]; a request that the dead daemon did not answer
//! is sent again within half a minute. The kernel must never give up a daemon that is only slow: it
//! would send a request again while the first one still waits, and that one could overwrite what is
//! written later. So requests have no time limit of their own.
//!
//! With each device the kernel keeps a text, by which weft knows its own: the id of the array, and
//! the place that it has in the daemon's runtime folder.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weft_cli::failure::{Failure, Outcome};
use weft_nbd::proto::{ClientNegotiation, ClientStep, Peer, wire};

use crate::block::netlink::{Attributes, Family};
use crate::block::node::Node;
use crate::block::ublk_device::OPEN_IN;
use crate::block::{link, ublk_device, users};

/// How long users wait for the next daemon.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// How long the daemon may take to answer a handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// What the text of every device of weft's starts with.
const MARK: &str = "weft:";

/// Commands and attributes (`linux/nbd-netlink.h`).
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const CLIENT_FLAGS: u16 = 6;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;
/// The device goes when it is disconnected.
const DESTROY_ON_DISCONNECT: u64 = 1;

/// Flags of an export that the kernel's client knows.
const KNOWN: u16 = wire::EXPORT_HAS_FLAGS
    | wire::EXPORT_READ_ONLY
    | wire::EXPORT_SEND_FLUSH
    | wire::EXPORT_SEND_FUA
    | wire::EXPORT_SEND_TRIM
    | wire::EXPORT_SEND_WRITE_ZEROES;

/// A device: `/dev/nbdN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdDevice {
    number: u32,
    node: Node,
    /// What the kernel keeps for weft.
    text: String,
}

/// The text of the device of an array: its id, and its place in the daemon's runtime folder.
pub fn text_of(array_id: &str, place: &Path) -> String {
    format!("{MARK}{array_id}:{}", place.display())
}

/// Why there is no such client here; `None` if there is. Loads the driver if that is possible.
pub fn unavailable() -> Option<String> {
    if Family::open("nbd").is_ok() {
        return None;
    }
    let _ = Command::new("modprobe").arg("nbd").output();
    Family::open("nbd").err().map(|e| match Errno::from_io_error(&e) {
        Some(Errno::NOENT) => "the kernel has no driver `nbd`".to_owned(),
        _ => e.to_string(),
    })
}

/// The devices of weft's.
pub fn all() -> Vec<NbdDevice> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let devices = names.filter_map(|name| {
        let number = name.strip_prefix("nbd")?.parse().ok()?;
        let node = Node::new(name);
        let text = node.setting("backend").filter(|text| text.starts_with(MARK))?;
        Some(NbdDevice { number, node, text })
    });
    devices.collect()
}

/// The device of the array at this place in a daemon's runtime folder.
pub fn at(place: &Path) -> Option<NbdDevice> {
    all().into_iter().find(|device| device.place() == Some(place))
}

impl NbdDevice {
    /// What `/sys` shows of it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The id of its array, and the place of that in the daemon's runtime folder.
    fn array_and_place(&self) -> Option<(&str, &str)> {
        self.text.strip_prefix(MARK)?.split_once(':')
    }

    /// The id of its array.
    pub fn array(&self) -> Option<&str> {
        self.array_and_place().map(|(id, _)| id)
    }

    /// The place that its array has in the daemon's runtime folder.
    pub fn place(&self) -> Option<&Path> {
        self.array_and_place().map(|(_, place)| Path::new(place))
    }

    /// Whether it has this text.
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Makes a device of an array that a daemon serves at the other end of `socket`.
    pub fn make(
        array: &str,
        text: String,
        socket: &UnixStream,
        block_bytes: u32,
        read_only: bool,
    ) -> Result<Self, Failure> {
        let peer = greet(socket, array).map_err(failed)?;
        let flags = peer.flags & KNOWN | if read_only { wire::EXPORT_READ_ONLY } else { 0 };
        let asked = common(&text, socket.as_fd())
            .with_u64(SIZE_BYTES, peer.size_bytes)
            .with_u64(BLOCK_SIZE_BYTES, block_bytes.into())
            .with_u64(SERVER_FLAGS, flags.into());
        let answer = Family::open("nbd").and_then(|family| family.ask(CONNECT, &asked));
        let number = answer.map_err(failed)?.u32(INDEX);
        let number = number.ok_or_else(|| Failure::new("nbd: the kernel names no device"))?;
        let device = Self { number, node: Node::new(format!("nbd{number}")), text };
        if device.node.setting("backend").as_deref() != Some(&device.text) {
            device.disconnect()?;
            return Err(Failure::new("nbd: Linux 5.14 or later is needed"));
        }
        // The first one to open it has the kernel look for partitions, which would wait if there is
        // no daemon by then.
        drop(fs::File::open(device.node.path()));
        link::set(array, &format!("nbd{number}"), ublk_device::is_attached);
        // udev has seen the device before it had the link, and looks again.
        let _ = fs::write(format!("/sys/block/nbd{number}/uevent"), "change");
        Ok(device)
    }

    /// Goes on with a daemon that serves the array at the other end of `socket`. Users must not
    /// lose what they have: a device that is larger, or takes writes and should not, stays as it
    /// is.
    pub fn go_on(&self, array: &str, socket: &UnixStream) -> Outcome {
        let peer = greet(socket, array).map_err(failed)?;
        if self.node.size_bytes().is_none_or(|has| has > peer.size_bytes) {
            return Err(Failure::new("nbd: the device is larger than the array"));
        }
        if peer.flags & wire::EXPORT_READ_ONLY != 0 && !self.is_read_only() {
            return Err(Failure::new("nbd: the device takes writes, and the array is read only"));
        }
        let asked = common(&self.text, socket.as_fd()).with_u32(INDEX, self.number);
        let answer = Family::open("nbd").and_then(|family| family.ask(RECONFIGURE, &asked));
        answer.map(drop).map_err(failed)
    }

    fn is_read_only(&self) -> bool {
        self.node.setting("ro").as_deref() == Some("1")
    }

    /// Who uses it, in words; `None` if it is not in use. Also a program that has only opened it:
    /// the driver would not wait for it.
    pub fn user(&self) -> Option<String> {
        self.node.user().or_else(|| {
            let processes = users::processes_in(&[self.node.path()]);
            (!processes.is_empty()).then(|| format!("{OPEN_IN}{processes}"))
        })
    }

    /// Removes it. Refused while it is claimed, unless `force`: then its users get errors.
    pub fn remove(&self, force: bool) -> Outcome {
        // Held until it is disconnected, so that it cannot be mounted in the meantime.
        let claim = match self.node.claim() {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) && !force => {
                return Err(Failure::new(format!("{} is in use", self.node.path().display())));
            }
            claim => claim.ok(),
        };
        link::clear(&format!("nbd{}", self.number));
        self.disconnect()?;
        drop(claim);
        let start = Instant::now();
        while self.node.setting("backend").is_some() && start.elapsed() < HANDSHAKE {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn disconnect(&self) -> Outcome {
        let asked = Attributes::default().with_u32(INDEX, self.number);
        let answer = Family::open("nbd").and_then(|family| family.ask(DISCONNECT, &asked));
        answer.map(drop).map_err(failed)
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::new(format!("nbd: {error}"))
}

/// What the kernel is told each time.
fn common(text: &str, socket: std::os::fd::BorrowedFd<'_>) -> Attributes {
    let fd = u32::try_from(socket.as_raw_fd()).unwrap_or(u32::MAX);
    let item = Attributes::default().with_u32(SOCKET_FD, fd);
    let list = Attributes::default().with_nested(SOCKET_ITEM, &item);
    Attributes::default()
        .with_nested(SOCKETS, &list)
        .with_u64(TIMEOUT, 0)
        .with_u64(DEAD_CONN_TIMEOUT, PATIENCE.as_secs())
        .with_u64(CLIENT_FLAGS, DESTROY_ON_DISCONNECT)
        .with_text(BACKEND_IDENTIFIER, text)
}

/// The handshake, in the kernel's place. Blocks.
fn greet(socket: &UnixStream, export: &str) -> io::Result<Peer> {
    let wrong = |e: weft_nbd::proto::Violation| io::Error::other(e.to_string());
    socket.set_read_timeout(Some(HANDSHAKE))?;
    let mut negotiation = ClientNegotiation::plain(export).map_err(wrong)?;
    let (mut input, mut out) = (Vec::new(), Vec::new());
    loop {
        let (used, step) = negotiation.step(&input, &mut out).map_err(wrong)?;
        input.drain(..used);
        let mut stream = socket;
        stream.write_all(&std::mem::take(&mut out))?;
        match step {
            ClientStep::Again => {}
            ClientStep::Ready(peer) => {
                // The kernel's limit counts from here on.
                socket.set_read_timeout(None)?;
                return Ok(peer);
            }
            ClientStep::NeedMore => {
                let mut bytes = [0; 512];
                match stream.read(&mut bytes)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    len => input.extend_from_slice(&bytes[..len]),
                }
            }
        }
    }
}
