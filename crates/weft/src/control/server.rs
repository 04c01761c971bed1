//! The daemon's end of the control socket.

use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use weft_rt::{MILLISECOND, Nanos, Rt};

use crate::control::protocol::{Answer, Envelope, Request, VERSION, WireFailure};
use crate::failure::Failure;

/// Connections served at the same time; more wait.
const CONNECTIONS_MAX: usize = 32;
/// A request longer than this is not one.
const LINE_BYTES_MAX: usize = 1 << 20;
/// A client that sends nothing for so long is sent away.
const PATIENCE: Duration = Duration::from_secs(600);

/// A request on its way to the engine's thread.
///
/// The queue that carries it is bounded by [`CONNECTIONS_MAX`]: a connection asks one thing at a
/// time.
#[derive(Debug)]
pub struct Call {
    /// What is asked.
    pub request: Request,
    /// A descriptor that came with it.
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
        // The client may have gone; then nobody wants the answer.
        let _ = self.answer.send(answer);
    }
}

/// How many connections there are.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<AtomicUsize>);

impl Connections {
    /// Waits until there are none, but not for longer than `patience`.
    pub async fn wait_idle(&self, rt: &Rt, patience: Nanos) {
        let deadline = rt.now().saturating_add(patience);
        while self.0.load(Ordering::Acquire) > 0 && rt.now() < deadline {
            rt.sleep(MILLISECOND).await;
        }
    }
}

/// Serves connections of `listener` on threads of its own. `pass` hands a request on to the
/// engine's thread; `false` means that it takes none any more.
pub fn start(
    listener: UnixListener,
    pass: impl Fn(Call) -> bool + Clone + Send + 'static,
) -> io::Result<Connections> {
    let connections = Connections::default();
    let count = connections.0.clone();
    let accept = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, most likely: some will be closed.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            while count.load(Ordering::Acquire) >= CONNECTIONS_MAX {
                thread::sleep(Duration::from_millis(10));
            }
            count.fetch_add(1, Ordering::AcqRel);
            let (pass, guard) = (pass.clone(), Leaving(count.clone()));
            let serve = move || {
                let _guard = guard;
                // An error is the client's own: it reads that the connection has ended.
                let _ = serve(stream, &pass);
            };
            // The guard was moved into the closure: also dropped if no thread can be made.
            let _ = thread::Builder::new().name("weft-control".into()).spawn(serve);
        }
    };
    thread::Builder::new().name("weft-accept".into()).spawn(accept)?;
    Ok(connections)
}

/// Counts a connection down when its thread ends, however it ends.
struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(stream: UnixStream, pass: &dyn Fn(Call) -> bool) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = Lines { stream, bytes: Vec::new(), descriptor: None };
    while let Some(line) = lines.next()? {
        let answer = match parse(&line) {
            Ok(request) => forward(request, lines.descriptor.take(), pass),
            Err(failure) => Answer::Error(failure.into()),
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        lines.stream.write_all(&text)?;
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
            .hint("are the command and the daemon of the same version of weft?")
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
    // Both fail only when the engine's thread is on its way out.
    passed
        .then(|| receiver.recv().ok())
        .flatten()
        .unwrap_or_else(|| Answer::Error(WireFailure::from(Failure::new("the daemon is stopping"))))
}

/// Lines of a stream, and the last descriptor that came along.
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
