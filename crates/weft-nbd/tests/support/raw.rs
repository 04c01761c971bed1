//! A client that sends raw messages.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use weft_nbd::proto::{Request, put_request, wire::*};
use weft_nbd::server::Event;

use super::Served;

/// A connection: handshake done, no structured replies.
pub struct Raw(pub UnixStream);

impl Raw {
    pub fn dial(served: &Served) -> UnixStream {
        UnixStream::connect(&served.socket).expect("the server listens")
    }

    pub fn new(served: &Served) -> Self {
        Self::of(served, "")
    }

    /// One that uses the export `name`.
    pub fn of(served: &Served, name: &str) -> Self {
        let mut stream = Self::dial(served);
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPT_EXPORT_NAME.to_be_bytes());
        hello.extend(u32::try_from(name.len()).expect("short").to_be_bytes());
        hello.extend(name.as_bytes());
        stream.write_all(&hello).expect("say hello");
        stream.read_exact(&mut [0; 10]).expect("size and flags");
        Self(stream)
    }

    pub fn send(&mut self, command: u16, cookie: u64, offset: u64, len: u32) {
        let mut bytes = Vec::new();
        put_request(&mut bytes, &Request { flags: 0, command, cookie, offset, len });
        self.0.write_all(&bytes).expect("send a request");
    }

    /// The next simple reply: cookie and error.
    pub fn reply(&mut self) -> (u64, u32) {
        let mut bytes = [0; 16];
        self.0.read_exact(&mut bytes).expect("a reply");
        assert_eq!(bytes[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        let error = u32::from_be_bytes(bytes[4..8].try_into().expect("four bytes"));
        (u64::from_be_bytes(bytes[8..].try_into().expect("eight bytes")), error)
    }

    pub fn data(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.0.read_exact(&mut data).expect("data");
        data
    }

    pub fn at_end(&mut self) -> bool {
        match self.0.read(&mut [0; 1]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// The server still does its work.
    pub fn works(mut self) {
        self.send(CMD_WRITE, 1, 4096, 4);
        self.0.write_all(b"weft").expect("send data");
        assert_eq!(self.reply(), (1, 0));
        self.send(CMD_READ, 2, 4096, 4);
        assert_eq!(self.reply(), (2, 0));
        assert_eq!(self.data(4), b"weft");
        self.send(CMD_DISC, 3, 0, 0);
        assert!(self.at_end());
    }
}

/// Why connections were ended.
pub fn faults(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Disconnected { fault: Some(fault), .. } => Some(fault.as_str()),
            _ => None,
        })
        .collect()
}
