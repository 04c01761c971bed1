//! HTTP/1.1 over the ring: one POST a connection, whose answer is taken whole or as it comes.
//!
//! A connection serves one request: after a timeout there is no state to get wrong, and a
//! coordinator is asked a few times a second. What the server sends is bounded, and parsed by
//! httparse.

use std::io;
use std::net::SocketAddr;

use weft_rt::Buf;
use weft_rt::ring::{Fd, Ring};

/// Bytes of a response's head, at most.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Bytes of a response that is taken whole, at most.
const BODY_BYTES_MAX: usize = 8 << 20;
const RECEIVE_BYTES: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// There is no connection: the server knows nothing of the request.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The connection broke. The server may have the request.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The server speaks something else.
    #[error("the answer is not HTTP: {0}")]
    Malformed(&'static str),
}

/// How the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// After this many more bytes.
    Length(u64),
    /// In chunks, of the present one this many bytes are left.
    Chunk(u64),
    /// Behind a chunk comes the end of its line.
    ChunkEnd,
    /// With the connection.
    Close,
    Over,
}

/// A response in progress.
pub(super) struct Response {
    ring: Ring,
    fd: Fd,
    /// Received and not taken yet.
    input: Vec<u8>,
    framing: Framing,
    pub status: u16,
}

/// Sends `body` and waits for the head of the answer.
pub(super) async fn post(
    ring: &Ring,
    address: SocketAddr,
    host: &str,
    path: &str,
    body: &str,
) -> Result<Response, HttpError> {
    let fd = ring.connect_tcp(address).await.map_err(HttpError::Connect)?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    ring.send(&fd, Buf::copy_from(request.as_bytes()).freeze()).await?;
    let (ring, framing) = (ring.clone(), Framing::Close);
    let mut response = Response { ring, fd, input: Vec::new(), framing, status: 0 };
    while !response.parse_head()? {
        if response.input.len() > HEAD_BYTES_MAX {
            return Err(HttpError::Malformed("its head is too long"));
        }
        response.receive().await?;
    }
    Ok(response)
}

impl Response {
    async fn receive(&mut self) -> Result<(), HttpError> {
        let (count, buf) = self.ring.recv(&self.fd, Buf::new(RECEIVE_BYTES), 0).await;
        match count? {
            0 if self.framing == Framing::Close && self.status != 0 => self.framing = Framing::Over,
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => self.input.extend_from_slice(&buf[..count]),
        }
        Ok(())
    }

    /// Takes the head off the input, if all of it is there.
    fn parse_head(&mut self) -> Result<bool, HttpError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&self.input);
        let parsed = parsed.map_err(|_| HttpError::Malformed("its head cannot be parsed"))?;
        let httparse::Status::Complete(len) = parsed else { return Ok(false) };
        let header = |name: &str| {
            let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        self.status = head.code.unwrap_or(0);
        let is_chunked = |text: &str| text.eq_ignore_ascii_case("chunked");
        self.framing = if header("transfer-encoding").is_some_and(is_chunked) {
            Framing::Chunk(0)
        } else if let Some(length) = header("content-length") {
            let length = length.trim().parse();
            Framing::Length(length.map_err(|_| HttpError::Malformed("its length is no number"))?)
        } else {
            Framing::Close
        };
        self.input.drain(..len);
        Ok(true)
    }

    /// The next bytes of the body; `None` at its end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, HttpError> {
        loop {
            if let Some(bytes) = self.take()? {
                return Ok(Some(bytes));
            }
            if self.framing == Framing::Over {
                return Ok(None);
            }
            self.receive().await?;
        }
    }

    /// What of the body is in the input.
    fn take(&mut self) -> Result<Option<Vec<u8>>, HttpError> {
        loop {
            let available = self.input.len() as u64;
            match self.framing {
                Framing::Over => return Ok(None),
                Framing::Length(0) => self.framing = Framing::Over,
                Framing::Length(left) | Framing::Chunk(left) if left > 0 => {
                    let len = left.min(available);
                    if len == 0 {
                        return Ok(None);
                    }
                    self.framing = match self.framing {
                        Framing::Length(_) => Framing::Length(left - len),
                        _ if left == len => Framing::ChunkEnd,
                        _ => Framing::Chunk(left - len),
                    };
                    let len = usize::try_from(len).expect("it is in memory");
                    return Ok(Some(self.input.drain(..len).collect()));
                }
                Framing::ChunkEnd => {
                    if available < 2 {
                        return Ok(None);
                    }
                    if !self.input.starts_with(b"\r\n") {
                        return Err(HttpError::Malformed("a chunk does not end where it says"));
                    }
                    self.input.drain(..2);
                    self.framing = Framing::Chunk(0);
                }
                Framing::Length(_) | Framing::Chunk(_) => {
                    let size = httparse::parse_chunk_size(&self.input);
                    let size = size.map_err(|_| HttpError::Malformed("a chunk has no size"))?;
                    let httparse::Status::Complete((used, size)) = size else {
                        let long = self.input.len() > HEAD_BYTES_MAX;
                        let error = HttpError::Malformed("a chunk's head is too long");
                        return if long { Err(error) } else { Ok(None) };
                    };
                    self.input.drain(..used);
                    // Trailers after the last chunk mean nothing here.
                    self.framing = if size == 0 { Framing::Over } else { Framing::Chunk(size) };
                }
                Framing::Close if available == 0 => return Ok(None),
                Framing::Close => return Ok(Some(std::mem::take(&mut self.input))),
            }
        }
    }

    /// All of the body.
    pub async fn whole(mut self) -> Result<Vec<u8>, HttpError> {
        let mut body = Vec::new();
        while let Some(bytes) = self.next().await? {
            body.extend_from_slice(&bytes);
            if body.len() > BODY_BYTES_MAX {
                return Err(HttpError::Malformed("it is too long"));
            }
        }
        Ok(body)
    }
}
