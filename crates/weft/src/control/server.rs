//! The daemon's side of the control socket.

use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use weft_cli::failure::Failure;

use crate::control::protocol::{Answer, Envelope, Request, VERSION};
use crate::control::table::{Activity, Admission, CONNECTIONS_MAX, ConnectionSlot, Connections};
use crate::limited_log::LimitedLog;

/// A longer request is refused.
const LINE_BYTES_MAX: usize = 1 << 20;
/// A client that sends nothing, or does not take its answer, for this long is disconnected.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);
/// A client waits at most this long for its answer; the operation continues.
const REQUEST_PATIENCE: Duration = Duration::from_secs(300);

/// A request on its way to the engine's thread.
///
/// The queue that carries it is bounded by [`CONNECTIONS_MAX`], as long as the engine's thread
/// empties it: a connection asks one thing at a time.
#[derive(Debug)]
pub struct Call {
    /// The request.
    pub request: Request,
    /// A descriptor that was sent with it.
    pub descriptor: Option<OwnedFd>,
    /// Where the answer goes.
    pub answer: mpsc::SyncSender<Answer>,
}

impl Call {
    /// Answers the client.
    pub fn answer(self, outcome: Result<serde_json::Value, Failure>) {
        let answer = match outcome {
            Ok(value) => Answer::Ok(value),
            Err(failure) => Answer::Error(failure.into()),
        };
        // The client may have gone; then the answer is dropped.
        let _ = self.answer.send(answer);
    }
}

/// Serves connections of `listener` on threads of its own. `pass` hands a request on to the
/// engine's thread; `false` means that it takes none any more.
pub fn start(
    listener: UnixListener,
    pass: impl Fn(Call) -> bool + Clone + Send + 'static,
) -> io::Result<Connections> {
    let connections = Connections::default();
    let table = connections.clone();
    let accept = move || {
        let lines = LimitedLog::default();
        for stream in listener.incoming() {
            let admission = stream.and_then(|stream| Ok((table.admit(&stream)?, stream)));
            let (place, stream) = match admission {
                Ok((Admission::Free(place), stream)) => (place, stream),
                Ok((Admission::Displaced(place), stream)) => {
                    lines.line("closed an idle control connection to make room");
                    (place, stream)
                }
                Ok((Admission::Full, stream)) => {
                    lines.line("refused a command: too many are in progress");
                    refuse(stream);
                    continue;
                }
                Err(_) => {
                    // Most likely out of descriptors: some will be closed.
                    thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let pass = pass.clone();
            let serve = move || {
                // Errors are the client's: it sees that the connection has ended.
                let _ = serve(stream, &place, &pass);
            };
            // The closure owns the place, so the place is left also if no thread can be started.
            let _ = thread::Builder::new().name("weft-control".into()).spawn(serve);
        }
    };
    thread::Builder::new().name("weft-accept".into()).spawn(accept)?;
    Ok(connections)
}

/// Tells a new client that all places are taken.
fn refuse(mut stream: UnixStream) {
    let failure = Failure::new(format!(
        "the daemon is carrying out {CONNECTIONS_MAX} other commands, the maximum"
    ))
    .hint("try again when some of them have ended");
    // The socket is empty: this does not wait.
    let _ = write_answer(&mut stream, &Answer::Error(failure.into()));
}

fn write_answer(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    stream.write_all(&text)
}

fn serve(
    stream: UnixStream,
    place: &ConnectionSlot,
    pass: &dyn Fn(Call) -> bool,
) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut lines = Lines { stream, bytes: Vec::new(), descriptor: None };
    while let Some(line) = lines.next()? {
        if !place.note(Activity::Working) {
            return Ok(());
        }
        let answer = match parse(&line) {
            Ok(request) => forward(request, lines.descriptor.take(), pass),
            Err(failure) => Answer::Error(failure.into()),
        };
        place.note(Activity::Answering(Instant::now()));
        write_answer(&mut lines.stream, &answer)?;
        place.note(Activity::Listening(Instant::now()));
    }
    Ok(())
}

fn parse(line: &[u8]) -> Result<Request, Failure> {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let not_understood = |e: serde_json::Error| {
        Failure::new(format!("the daemon did not understand the request: {e}"))
            .hint("check that the command and the daemon are the same version of weft")
    };
    // The version first: what follows it may look different in other versions.
    let Version { version } = serde_json::from_slice(line).map_err(not_understood)?;
    if version != VERSION {
        return Err(Failure::new(format!(
            "the daemon speaks version {VERSION} of the control protocol, the command {version}"
        ))
        .hint("use the `weft` that the daemon was started from, or restart the daemon"));
    }
    let envelope: Envelope = serde_json::from_slice(line).map_err(not_understood)?;
    Ok(envelope.request)
}

fn forward(request: Request, descriptor: Option<OwnedFd>, pass: &dyn Fn(Call) -> bool) -> Answer {
    let (sender, receiver) = mpsc::sync_channel(1);
    let passed = pass(Call { request, descriptor, answer: sender });
    let stopping = || Answer::Error(Failure::new("the daemon is stopping").into());
    if !passed {
        return stopping();
    }
    match receiver.recv_timeout(REQUEST_PATIENCE) {
        Ok(answer) => answer,
        Err(mpsc::RecvTimeoutError::Disconnected) => stopping(),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let minutes = REQUEST_PATIENCE.as_secs() / 60;
            let failure =
                Failure::new(format!("the daemon has not finished after {minutes} minutes"))
                    .hint("it continues; `weft status` and its log show what it waits for");
            Answer::Error(failure.into())
        }
    }
}

/// Reads lines from a stream, and keeps the last descriptor that was sent along.
struct Lines {
    stream: UnixStream,
    bytes: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl Lines {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|b| *b == b'\n') {
                let rest = self.bytes.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
            if self.bytes.len() > LINE_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if !self.receive()? {
                return Ok(None);
            }
        }
    }

    /// Receives some bytes; `false` at the end.
    fn receive(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            self.stream.as_fd(),
            &mut [IoSliceMut::new(&mut chunk)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptor = descriptors.last().or_else(|| self.descriptor.take());
            }
        }
        self.bytes.extend_from_slice(&chunk[..received.bytes]);
        Ok(received.bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::sync::{Arc, Mutex};

    use weft_testkit::{Scratch, wait_until};

    use super::*;

    #[test]
    fn commands_at_work_keep_their_places_and_a_newcomer_is_told() {
        let scratch = Scratch::in_memory("control");
        let path = scratch.join("s");
        let listener = UnixListener::bind(&path).expect("bind");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let taken = calls.clone();
        let pass = move |call: Call| {
            taken.lock().expect("whole").push(call);
            true
        };
        let _connections = start(listener, pass).expect("it starts");
        let ask = || {
            let mut stream = UnixStream::connect(&path).expect("connect");
            let line = b"{\"version\":1,\"request\":{\"status\":{\"array\":null}}}\n";
            // One that is refused at once finds the connection closed, and the answer in it.
            let _ = stream.write_all(line);
            BufReader::new(stream)
        };
        let answer_of = |client: &mut BufReader<UnixStream>| {
            let mut answer = String::new();
            client.read_line(&mut answer).expect("an answer");
            answer
        };
        let waiting = |count| calls.lock().expect("whole").len() == count;
        let mut clients: Vec<_> = (0..CONNECTIONS_MAX).map(|_| ask()).collect();
        wait_until("all to be asked", || waiting(CONNECTIONS_MAX));
        let refused = answer_of(&mut ask());
        assert!(refused.contains("carrying out 32 other commands"), "{refused}");
        // They are answered; then they are idle, and one makes room.
        for call in calls.lock().expect("whole").drain(..) {
            call.answer(Ok(serde_json::json!({})));
        }
        for client in &mut clients {
            assert!(answer_of(client).contains("ok"));
        }
        let mut late = ask();
        wait_until("the late one to be asked", || waiting(1));
        for call in calls.lock().expect("whole").drain(..) {
            call.answer(Ok(serde_json::json!({})));
        }
        assert!(answer_of(&mut late).contains("ok"));
    }
}
