//! The daemon: `weft serve`.
//!
//! One thread – pinned to a processor, with one io_uring – drives the disks, the arrays, the
//! NBD sockets and the FUSE channels: a request is accepted, carried out and answered without ever
//! crossing to another core. Beside it there are only threads that mostly sleep: signals, and
//! the control socket ([`crate::control`]); they pass messages into [`Daemon::run`].

mod attached;
mod clients;
mod export;
pub mod log;
mod notify;
mod requests;
mod scan;
mod served;
pub mod sparing;
mod start;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::rc::Rc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use weft_disk::{Disk, QueueConfig, QueuedDisk};
use weft_nbd::{Server, ServerConfig};
use weft_rt::MILLISECOND;
use weft_rt::ring::RingConfig;

use crate::cli::ServeArgs;
use crate::control::Connections;
use crate::control::protocol::{NotStarted, Request};
use crate::control::server::Call;
use crate::failure::{Failure, Outcome};
use crate::members::Opener;
use crate::runtime_dir::RuntimeDir;
use served::Served;
pub use start::refuse_remote;

/// What reaches the engine's thread from the others.
#[derive(Debug)]
enum Message {
    /// A command.
    Call(Call),
    /// A signal that asks to end.
    Signal(i32),
}

/// Everything the engine's thread holds.
struct Daemon {
    opener: Opener,
    /// The queue before each member.
    queue: QueueConfig,
    server: Server,
    arrays: RefCell<BTreeMap<String, Rc<Served>>>,
    not_started: RefCell<Vec<NotStarted>>,
    /// NBD endpoints, as a prefix and a suffix around an export's name.
    endpoints: Vec<(String, String)>,
}

/// `weft serve`: returns when it has been stopped.
pub fn serve(args: &ServeArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    refuse_remote(args.listen, args.allow_remote)?;
    // Held until the process ends: what `weft stop` waits for.
    let _lock = dir.claim()?;
    dir.clear_sockets();
    let (messages, inbox) = unbounded();
    listen_for_signals(messages.clone())?;
    start::pin_thread();
    let (rt, ring) = crate::thread::start(RingConfig::default())?;
    let opener = Opener { rt: rt.clone(), ring };
    let (args, dir) = (args.clone(), dir.clone());
    let outcome = rt.block_on({
        let dir = dir.clone();
        async move { run(&args, &dir, opener, messages, inbox, json).await }
    });
    dir.clear_sockets();
    outcome
}

async fn run(
    args: &ServeArgs,
    dir: &RuntimeDir,
    opener: Opener,
    messages: UnboundedSender<Message>,
    inbox: UnboundedReceiver<Message>,
    json: bool,
) -> Outcome {
    let server = Server::new(&opener.rt, &opener.ring, ServerConfig::default());
    clients::log_events(&server);
    let endpoints = start::endpoints(args, dir, &server)?;
    let daemon = Rc::new(Daemon {
        opener,
        queue: QueueConfig::of_depth(args.disk_depth.into()),
        server,
        arrays: RefCell::default(),
        not_started: RefCell::default(),
        endpoints,
    });
    let started = start::arrays(&daemon, args).await;
    let connections = match started.and_then(|()| open_control(dir, messages)) {
        Ok(connections) => connections,
        Err(failure) => {
            // What kept us from starting is what the caller must know.
            let _ = daemon.stop_all().await;
            return Err(failure);
        }
    };
    daemon.announce(json);
    notify::systemd("READY=1");
    let asked_by = daemon.run(inbox).await;
    notify::systemd("STOPPING=1");
    let outcome = daemon.stop_all().await;
    if let Some(call) = asked_by {
        call.answer(outcome.as_ref().map(|()| serde_json::json!({})).map_err(Clone::clone));
        connections.wait_answered(&daemon.opener.rt, 2000 * MILLISECOND).await;
    }
    log::line("stopped");
    outcome
}

fn open_control(
    dir: &RuntimeDir,
    messages: UnboundedSender<Message>,
) -> Result<Connections, Failure> {
    let path = dir.control_socket();
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    // The folder is this user's own; the mode says so once more.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(&path);
    rustix::process::umask(before);
    let pass = move |call| messages.unbounded_send(Message::Call(call)).is_ok();
    crate::control::server::start(listener.map_err(failed)?, pass).map_err(failed)
}

fn listen_for_signals(messages: UnboundedSender<Message>) -> Outcome {
    crate::thread::on_signals(move |signal, before| {
        if before > 0 {
            // What was acknowledged after a flush is safe; the next start recovers the rest.
            log::line("asked again: ending at once, without stopping the arrays");
            std::process::exit(1);
        }
        let _ = messages.unbounded_send(Message::Signal(signal));
    })
}

impl Daemon {
    /// Opens a member, or a disk that is to be one, with a queue before it.
    async fn open_member(&self, place: &str, look_only: bool) -> Result<Rc<dyn Disk>, Failure> {
        let disk = self.opener.open(place, look_only).await?;
        Ok(Rc::new(QueuedDisk::new(disk, self.queue)))
    }

    /// Carries out commands until the daemon is asked to end; gives the command that asked.
    async fn run(self: &Rc<Self>, mut inbox: UnboundedReceiver<Message>) -> Option<Call> {
        loop {
            match inbox.next().await {
                Some(Message::Call(call))
                    if matches!(call.request, Request::Stop { array: None }) =>
                {
                    match self.refuse_attached() {
                        Ok(()) => return Some(call),
                        Err(failure) => call.answer(Err(failure)),
                    }
                }
                Some(Message::Call(call)) => {
                    let daemon = self.clone();
                    drop(self.opener.rt.spawn(async move { daemon.carry_out(call).await }));
                }
                Some(Message::Signal(signal)) => {
                    log::line(&format!("signal {signal}: stopping"));
                    for name in self.attached() {
                        log::about(&name, "ALERT: stopped while attached as a block device");
                    }
                    return None;
                }
                // The senders live as long as the process.
                None => return None,
            }
        }
    }

    /// Names of the arrays that are block devices now.
    fn attached(&self) -> Vec<String> {
        let arrays = self.arrays.borrow();
        let attached = arrays.iter().filter(|(_, served)| served.attached.get());
        attached.map(|(name, _)| name.clone()).collect()
    }

    fn refuse_attached(&self) -> Outcome {
        match self.attached().first() {
            Some(name) => Err(Failure::new(format!("{name} is attached as a block device"))
                .hint(format!("unmount it, `weft detach {name}`, then stop; nothing was changed"))),
            None => Ok(()),
        }
    }

    /// Ends service, then stops every array cleanly.
    async fn stop_all(&self) -> Outcome {
        let cut = self.server.shutdown().await;
        if cut > 0 {
            log::line(&format!("{cut} clients did not finish and were cut off"));
        }
        let arrays = std::mem::take(&mut *self.arrays.borrow_mut());
        let stopped = join_all(arrays.values().map(|served| served.stop())).await;
        stopped.into_iter().collect()
    }

    /// Tells on standard output that clients may come.
    fn announce(&self, json: bool) {
        let arrays = self.arrays.borrow();
        for name in arrays.keys() {
            let uris = self.uris(name);
            if json {
                println!("{}", serde_json::json!({ "serving": name, "nbd": uris }));
            } else {
                println!("serving {name} at {}", uris.join(" and "));
            }
        }
    }

    /// Where NBD clients find the array `name`.
    fn uris(&self, name: &str) -> Vec<String> {
        self.endpoints.iter().map(|(head, tail)| format!("{head}/{name}{tail}")).collect()
    }
}
