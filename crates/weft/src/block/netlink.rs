//! Requests to a driver of the kernel by generic netlink: a command, with attributes
//! (`linux/netlink.h`, `linux/genetlink.h`). The numbers are in the machine's byte order.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};

/// The family that knows the others, its command to find one, and its attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Flags of a message: a request, and one that is to be acknowledged.
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// The type of the message that ends an answer: an error, or 0.
const ERROR: u16 = 2;
/// The attribute's own flag: there are attributes in it.
const NESTED: u16 = 1 << 15;

/// Bytes of the two heads of a message.
const HEAD: usize = 16;
const GENERIC_HEAD: usize = 4;

/// Attributes of a message.
#[derive(Debug, Default, Clone)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// With one more, of these bytes.
    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// With a number of 32 bits.
    pub fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// With a number of 64 bits.
    pub fn with_u64(self, kind: u16, value: u64) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// With a text.
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// With attributes in one.
    pub fn with_nested(self, kind: u16, inner: &Self) -> Self {
        self.with(kind | NESTED, &inner.0)
    }

    /// The value of an attribute.
    fn value(&self, kind: u16) -> Option<&[u8]> {
        let mut rest = self.0.as_slice();
        while let Some((head, _)) = rest.split_first_chunk::<4>() {
            let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let own = u16::from_ne_bytes([head[2], head[3]]) & !NESTED;
            let value = rest.get(4..len)?;
            if own == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }

    /// A number of 32 bits.
    pub fn u32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.value(kind)?.first_chunk()?))
    }

    fn u16(&self, kind: u16) -> Option<u16> {
        Some(u16::from_ne_bytes(*self.value(kind)?.first_chunk()?))
    }
}

/// A driver's family of commands.
#[derive(Debug)]
pub struct Family {
    socket: OwnedFd,
    id: u16,
    sequence: Cell<u32>,
}

impl Family {
    /// The family of this name.
    ///
    /// # Errors
    /// The kernel's; `ENOENT` if there is none.
    pub fn open(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(GENERIC))?;
        let control = Self { socket, id: CONTROL, sequence: Cell::new(0) };
        let asked = Attributes::default().with_text(FAMILY_NAME, name);
        let id = control.ask(GET_FAMILY, &asked)?.u16(FAMILY_ID);
        Ok(Self { id: id.ok_or(Errno::NOENT)?, ..control })
    }

    /// Sends a command; returns the attributes of the answer.
    ///
    /// # Errors
    /// The driver's.
    pub fn ask(&self, command: u8, attributes: &Attributes) -> io::Result<Attributes> {
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        let len = HEAD + GENERIC_HEAD + attributes.0.len();
        let mut message = u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes().to_vec();
        message.extend_from_slice(&self.id.to_ne_bytes());
        message.extend_from_slice(&(REQUEST | ACK).to_ne_bytes());
        message.extend_from_slice(&sequence.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(&[command, 1, 0, 0]);
        message.extend_from_slice(&attributes.0);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &message, SendFlags::empty(), &kernel)?;
        let (mut answer, mut buffer) = (Attributes::default(), vec![0; 32 << 10]);
        loop {
            let len = rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut buffer))?;
            for message in messages(&buffer[..len]) {
                match message {
                    (ERROR, body) => {
                        let code = body.first_chunk().map_or(-1, |code| i32::from_ne_bytes(*code));
                        return match code {
                            0 => Ok(answer),
                            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                        };
                    }
                    (_, body) => {
                        answer = Attributes(body.get(GENERIC_HEAD..).unwrap_or_default().to_vec());
                    }
                }
            }
        }
    }
}

/// Types and bodies of the messages in a datagram.
fn messages(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some((head, _)) = rest.split_first_chunk::<HEAD>() {
        let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some(body) = rest.get(HEAD..len) else { break };
        found.push((u16::from_ne_bytes([head[4], head[5]]), body));
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again() {
        let inner = Attributes::default().with_u32(1, 7);
        let all = Attributes::default().with_text(9, "abcd").with_nested(2, &inner).with_u64(3, 5);
        assert_eq!(all.value(9), Some(&b"abcd\0"[..]));
        assert_eq!(Attributes(all.value(2).expect("there").to_vec()).u32(1), Some(7));
        assert_eq!(all.value(3), Some(&5_u64.to_ne_bytes()[..]));
        assert_eq!(all.value(4), None);
        for bytes in 0..all.0.len() {
            let _ = Attributes(all.0[..bytes].to_vec()).value(3);
            let _ = messages(&all.0[..bytes]);
        }
    }

    #[test]
    fn the_kernel_knows_its_own_family_and_no_other() {
        let Ok(family) = Family::open("nlctrl") else { return };
        assert_eq!(family.id, CONTROL);
        let unknown = Family::open("weft-none").expect_err("none");
        assert_eq!(Errno::from_io_error(&unknown), Some(Errno::NOENT));
    }
}
