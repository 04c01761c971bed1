//! The command's side of the control socket.

use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::de::DeserializeOwned;
use weft_array::superblock::check_name;
use weft_cli::failure::{Failure, NO_DAEMON};

use crate::control::protocol::{Answer, Envelope, Request, ServedArray, Snapshot, VERSION};
use crate::runtime_dir::RuntimeDir;

/// The longest answer: far more than the status of as many arrays as a daemon can serve.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    place: String,
}

impl Client {
    /// Connects to the daemon of `dir`.
    ///
    /// # Errors
    /// With exit code 5 if none answers; as root also if another user may have put the daemon
    /// there.
    pub fn connect(dir: &RuntimeDir) -> Result<Self, Failure> {
        dir.check_for_client()?;
        let path = dir.control_socket();
        let place = path.display().to_string();
        let stream = UnixStream::connect(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Failure::new(format!("no daemon answers at {place}")).with_code(NO_DAEMON).hint(
                    "start one with `weft serve MEMBER…`, or point --runtime-dir at its folder",
                )
            }
            io::ErrorKind::PermissionDenied => Failure::new(format!("{place}: {e}"))
                .with_code(NO_DAEMON)
                .hint("run this as the daemon's user"),
            _ => Failure::new(format!("{place}: {e}")).with_code(NO_DAEMON),
        })?;
        Ok(Self { stream: BufReader::new(stream), place })
    }

    /// Sends a request and waits for the answer.
    pub fn ask<T: DeserializeOwned>(&mut self, request: Request) -> Result<T, Failure> {
        self.ask_with(request, None)
    }

    /// Whether the daemon is root's: only then can it have made ublk devices, and may name them.
    pub fn is_roots(&self) -> bool {
        let peer = rustix::net::sockopt::socket_peercred(self.stream.get_ref());
        peer.is_ok_and(|peer| peer.uid.is_root())
    }

    /// The state of everything that the daemon serves, or of one array.
    pub fn snapshot(&mut self, array: Option<&str>) -> Result<Snapshot, Failure> {
        let mut snapshot: Snapshot =
            self.ask(Request::Status { array: array.map(str::to_owned) })?;
        if !self.is_roots() {
            snapshot.arrays.iter_mut().for_each(|served| served.block_device = None);
        }
        Ok(snapshot)
    }

    /// One array.
    pub fn status_of(&mut self, array: &str) -> Result<ServedArray, Failure> {
        let mut snapshot = self.snapshot(Some(array))?;
        snapshot.arrays.pop().ok_or_else(|| Failure::new(format!("{array} is not being served")))
    }

    /// The name of an array that may be given by its id. The name is checked, because paths are
    /// made from it, and the daemon may have read it from a disk, or may belong to another user.
    pub fn array_name(&mut self, array: &str) -> Result<String, Failure> {
        let status = self.status_of(array)?.status;
        let wrong = |why: String| {
            Failure::new(format!("the daemon at {} is not to be trusted: {why}", self.place))
                .hint("check that --runtime-dir is your daemon's; nothing was changed")
        };
        check_name(&status.name).map_err(|why| wrong(format!("the name of its array {why}")))?;
        if status.name != array && status.id != array {
            return Err(wrong("it answered for another array than the one asked for".into()));
        }
        Ok(status.name)
    }

    /// Sends a request together with a descriptor, and waits for the answer.
    pub fn ask_with<T: DeserializeOwned>(
        &mut self,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<T, Failure> {
        let mut line = serde_json::to_vec(&Envelope { version: VERSION, request })
            .map_err(|e| Failure::new(format!("cannot encode the request: {e}")))?;
        line.push(b'\n');
        let place = &self.place;
        let lost = |e: io::Error| {
            Failure::new(format!("the daemon at {place} ended before it answered: {e}"))
                .with_code(NO_DAEMON)
                .hint("see its log; acknowledged data is safe")
        };
        // A daemon that refuses the connection reports that, and hangs up, before it reads any
        // request.
        let sent = send_all(self.stream.get_ref(), &line, descriptor);
        let mut answer = String::new();
        let mut stream = (&mut self.stream).take(ANSWER_BYTES_MAX);
        if stream.read_line(&mut answer).map_err(lost)? == 0 {
            return Err(lost(sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())));
        }
        let answer: Answer = serde_json::from_str(&answer).map_err(|e| {
            Failure::new(format!("{place} sent an answer that this weft does not understand: {e}"))
        })?;
        match answer {
            Answer::Ok(value) => serde_json::from_value(value).map_err(|e| {
                Failure::new(format!(
                    "{place} sent an answer that this weft does not understand: {e}"
                ))
            }),
            Answer::Error(failure) => Err(failure.into()),
        }
    }
}

/// Sends all of `bytes`, the descriptor with the first of them.
fn send_all(
    stream: &UnixStream,
    mut bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    while !bytes.is_empty() {
        let sent =
            sendmsg(stream.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        ancillary.clear();
        bytes = &bytes[sent..];
    }
    Ok(())
}
