//! The daemon: `weft serve`.
//!
//! One thread – pinned to a processor, with one io_uring – drives the disks, the arrays, the NBD
//! sockets, the FUSE channels and the ublk devices: a request is received, carried out and answered
//! on the same core. The other threads mostly sleep: one for signals, and those of the control
//! socket ([`crate::control`]). They pass messages to [`Daemon::run`].

mod alerts;
pub(crate) mod attached;
mod bring_up;
mod caches;
pub(crate) mod clients;
mod disks;
mod drain;
mod drill;
mod guarded;
mod heartbeat;
#[cfg(debug_assertions)]
mod injected;
mod isolation;
pub mod log;
mod nbd;
pub mod notify;
mod requests;
pub mod scan;
mod served;
mod start;
mod ublk;
mod vhost;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::rc::{Rc, Weak};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt as _;
use futures_util::future::{join, join_all};
use serde_json::json;
use signal_hook::consts::signal::SIGHUP;
use weft_array::Id;
use weft_cli::disks::{OpenError, Opener};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{announce, announce_answer, log_line};
use weft_disk::{Disk, QueueConfig, QueuedDisk};
use weft_nbd::{Server, ServerConfig};
use weft_rt::inherited;
use weft_rt::ring::RingConfig;
use weft_rt::sync::Semaphore;
use weft_rt::{MILLISECOND, Nanos};

use crate::background;
use crate::cli::{CacheOptions, ServeArgs};
use crate::control::Connections;
use crate::control::protocol::{Request, VanishedDisk};
use crate::control::server::Call;
use crate::runtime_dir::RuntimeDir;
use bring_up::Pending;
pub use caches::check_bytes as check_cache_bytes;
use disks::Opened;
use isolation::Isolation;
use served::Served;

/// The exit code that has systemd start the next daemon (`RestartForceExitStatus=`).
const RESTART: u8 = 75;

/// Messages from the other threads to the engine's thread.
#[derive(Debug)]
enum Message {
    /// A command.
    Call(Call),
    /// SIGHUP, or a signal to stop.
    Signal(i32),
    /// The first start is complete.
    Started(Outcome),
    /// No array is in use as a block device any more, or the time limit has passed.
    Drained,
}

/// The state of the engine's thread.
struct Daemon {
    me: Weak<Self>,
    opener: Opener,
    dir: RuntimeDir,
    /// Configuration of the members' queues.
    queue: QueueConfig,
    server: Server,
    /// For virtual machines.
    vhost: Option<weft_vhost::server::Server>,
    arrays: RefCell<BTreeMap<String, Rc<Served>>>,
    /// The arrays that are not served, and where to search for them.
    pending: Pending,
    /// Arrays start one at a time.
    starting: Semaphore,
    /// Disks of arrays, by the names under which they were opened.
    opened: RefCell<BTreeMap<String, Opened>>,
    /// Members whose file or device node has gone, by array.
    vanished: RefCell<BTreeMap<String, Vec<VanishedDisk>>>,
    /// FUSE channels that an earlier daemon left, by the names under which systemd kept them.
    channels: RefCell<BTreeMap<String, OwnedFd>>,
    next: Cell<Next>,
    /// NBD endpoints, as a prefix and a suffix around an export's name.
    endpoints: Vec<(String, String)>,
    /// How long a signal to stop waits for block devices in use.
    stop_timeout: Nanos,
    /// A disk was announced, and a scan for it is about to start.
    announced: Cell<bool>,
    /// Stopping: nothing new is attached or started.
    stopping: Cell<bool>,
    /// How the arrays' caches start.
    caches: CacheOptions,
    json: bool,
}

/// `weft serve`: returns when it has been stopped.
pub fn serve(args: &ServeArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    // Before anything is opened.
    let channels = inherited::take().into_iter().collect();
    args.tcp.check()?;
    caches::check_bytes(args.cache.size.unwrap_or(0))?;
    alerts::begin(args.program.as_deref(), args.mail.as_deref())?;
    // Held until the process ends, which `weft stop` waits for.
    let _lock = dir.claim()?;
    dir.clear_sockets();
    let (messages, inbox) = unbounded();
    listen_for_signals(messages.clone())?;
    start::pin_thread();
    // A hung disk keeps its places in the ring, so there are enough for a dozen of them.
    // A block device keeps a command for each of its requests.
    let usual = RingConfig { command_ops_max: ublk::COMMANDS_MAX, ..RingConfig::default() };
    let disk_ops_max = usual.disk_ops_max.max(14 * (u32::from(args.disk_depth) + 8));
    let (rt, ring) = weft_cli::thread::start(RingConfig { disk_ops_max, ..usual })?;
    let disk_timeout = Nanos::try_from(args.disk_timeout.as_nanos()).unwrap_or(Nanos::MAX);
    let opener = Opener { disk_timeout, ..Opener::new(&rt, ring) };
    let (args, dir) = (args.clone(), dir.clone());
    isolation::log_panics();
    let work = {
        let dir = dir.clone();
        async move { run(&args, &dir, opener, channels, (messages, inbox), json).await }
    };
    let outcome = isolation::end_on_panic(|| rt.block_on(work));
    dir.clear_sockets();
    if outcome? == Next::IsStartedBySystemd {
        std::process::exit(RESTART.into());
    }
    Ok(())
}

/// Who starts the next daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The user.
    IsStartedByUser,
    /// systemd, as it alone has channels that users wait for.
    IsStartedBySystemd,
}

async fn run(
    args: &ServeArgs,
    dir: &RuntimeDir,
    opener: Opener,
    channels: BTreeMap<String, OwnedFd>,
    (messages, inbox): (UnboundedSender<Message>, UnboundedReceiver<Message>),
    json: bool,
) -> Result<Next, Failure> {
    let server = Server::new(&opener.rt, &opener.ring, ServerConfig::default());
    clients::log_events(&server);
    let endpoints = start::endpoints(args, dir, &server)?;
    let vhost = vhost::server(args, &opener.rt)?;
    let daemon = Rc::new_cyclic(|me| Daemon {
        me: me.clone(),
        opener,
        dir: dir.clone(),
        queue: QueueConfig::of_depth(args.disk_depth.into()),
        server,
        vhost,
        arrays: RefCell::default(),
        pending: Pending::new(args),
        starting: Semaphore::new(1),
        opened: RefCell::default(),
        vanished: RefCell::default(),
        channels: RefCell::new(channels),
        next: Cell::new(Next::IsStartedByUser),
        endpoints,
        stop_timeout: Nanos::try_from(args.stop_timeout.as_nanos()).unwrap_or(Nanos::MAX),
        announced: Cell::new(false),
        stopping: Cell::new(false),
        caches: args.cache.clone(),
        json,
    });
    drop(daemon.opener.rt.spawn(daemon.clone().keep_systemd_informed()));
    let connections = open_control(dir, messages.clone())?;
    let (starter, tell) = (daemon.clone(), messages.clone());
    drop(daemon.opener.rt.spawn(async move {
        let _ = tell.unbounded_send(Message::Started(starter.start_all().await));
    }));
    let ended = daemon.run(inbox, &messages).await;
    daemon.stopping.set(true);
    notify::systemd("STOPPING=1");
    let stopped = daemon.stop_all().await;
    match ended {
        Ended::Asked(call) => {
            let answer = stopped.as_ref().map(|(names, _)| json!({ "stopped": names }));
            call.answer(answer.map_err(Clone::clone));
            connections.wait_answered(&daemon.opener.rt, 2000 * MILLISECOND).await;
        }
        Ended::Signal => {}
        // The reason for not starting is what the caller must see.
        Ended::NotStarted(failure) => return Err(failure),
    }
    log_line("stopped");
    stopped.map(|(_, next)| next)
}

/// Why the daemon ends.
enum Ended {
    /// `weft stop` asked for it.
    Asked(Call),
    Signal,
    /// Nothing could be started.
    NotStarted(Failure),
}

fn open_control(
    dir: &RuntimeDir,
    messages: UnboundedSender<Message>,
) -> Result<Connections, Failure> {
    let path = dir.control_socket();
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    // The folder belongs to this user; the mode guards it once more.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(&path);
    rustix::process::umask(before);
    let pass = move |call| messages.unbounded_send(Message::Call(call)).is_ok();
    crate::control::server::start(listener.map_err(failed)?, pass).map_err(failed)
}

fn listen_for_signals(messages: UnboundedSender<Message>) -> Outcome {
    weft_cli::thread::on_signals(move |signal, before| {
        if before > 0 && signal != SIGHUP {
            // What was flushed is safe; the next start recovers the rest.
            log_line("second signal: ending at once, without stopping the arrays");
            std::process::exit(1);
        }
        let _ = messages.unbounded_send(Message::Signal(signal));
    })
}

impl Daemon {
    /// The array of this name or id.
    fn find(&self, wanted: &str) -> Result<Rc<Served>, Failure> {
        let arrays = self.arrays.borrow();
        let by_id = || arrays.values().find(|served| served.array.status().id == wanted);
        arrays.get(wanted).or_else(by_id).cloned().ok_or_else(|| {
            let failure = Failure::new(format!("no array {wanted} is being served"));
            let not_started = self.pending.not_started.borrow();
            if let Some(array) = not_started.iter().find(|a| a.name == wanted || a.id == wanted) {
                return Failure::new(format!("{wanted} is not started: {}", array.why)).hint(
                    array.hint.clone().unwrap_or_else(|| format!("try `weft start {wanted}`")),
                );
            }
            let names: Vec<&str> = arrays.keys().map(String::as_str).collect();
            match names.as_slice() {
                [] => failure.hint("the daemon serves no array; `weft start DISK…` starts one"),
                _ => failure.hint(format!("served arrays: {}", names.join(", "))),
            }
        })
    }

    /// Opens a member, or a disk to become one, with a queue.
    async fn open_member(&self, place: &str, look_only: bool) -> Result<Rc<dyn Disk>, OpenError> {
        let disk = self.opener.open(place, look_only).await?;
        self.opened.borrow_mut().insert(place.to_owned(), Opened::new(place, &*disk));
        #[cfg(debug_assertions)]
        let disk: Rc<dyn Disk> = Rc::new(injected::Faulty(disk));
        Ok(Rc::new(QueuedDisk::new(disk, self.queue)))
    }

    /// Carries out commands until the daemon is asked to stop.
    async fn run(
        self: &Rc<Self>,
        mut inbox: UnboundedReceiver<Message>,
        messages: &UnboundedSender<Message>,
    ) -> Ended {
        loop {
            match inbox.next().await {
                Some(Message::Call(call))
                    if matches!(call.request, Request::Stop { array: None, .. }) =>
                {
                    let keep = matches!(call.request, Request::Stop { keep_devices: true, .. });
                    match self.refuse_attached(keep).await {
                        Ok(()) => return Ended::Asked(call),
                        Err(failure) => call.answer(Err(failure)),
                    }
                }
                Some(Message::Call(call)) => {
                    let daemon = self.clone();
                    drop(self.opener.rt.spawn(async move { daemon.carry_out(call).await }));
                }
                Some(Message::Started(Err(failure))) => return Ended::NotStarted(failure),
                Some(Message::Started(Ok(()))) => self.begin_service(),
                Some(Message::Signal(SIGHUP)) => {
                    log_line("SIGHUP: scanning for missing disks");
                    let daemon = self.clone();
                    drop(self.opener.rt.spawn(async move {
                        #[cfg(debug_assertions)]
                        injected::panic_point("SIGHUP");
                        daemon.scan_now().await;
                    }));
                }
                Some(Message::Signal(signal)) => {
                    log_line(&format!("signal {signal}: stopping"));
                    self.stopping.set(true);
                    notify::systemd("STOPPING=1");
                    let (daemon, tell) = (self.clone(), messages.clone());
                    drop(self.opener.rt.spawn(async move {
                        daemon.drain().await;
                        let _ = tell.unbounded_send(Message::Drained);
                    }));
                }
                // The senders live as long as the process.
                Some(Message::Drained) | None => return Ended::Signal,
            }
        }
    }

    /// Everything that can be served is served: announces it, and starts the background tasks.
    fn begin_service(self: &Rc<Self>) {
        if self.stopping.get() {
            return;
        }
        let names: Vec<String> = self.arrays.borrow().keys().cloned().collect();
        names.iter().for_each(|name| self.announce(name));
        if names.is_empty() && background::is_detached() {
            // The command that started this process waits for a line.
            match self.json {
                true => announce_answer(&json!({ "serving": null, "nbd_uris": [] })),
                false => announce("serving no array yet: waiting for members"),
            }
        }
        notify::systemd("READY=1");
        drop(self.opener.rt.spawn(self.clone().keep_scanning()));
        drop(self.opener.rt.spawn(self.clone().watch_members()));
    }

    /// The boundary around an array that is about to start. If the array fails, it counts as not
    /// started; its clients keep their connections, and get errors.
    fn isolate(&self, id: Id, name: &str) -> Rc<Isolation> {
        let (me, rt, name) = (self.me.clone(), self.opener.rt.clone(), name.to_owned());
        Isolation::new(&self.opener.rt, move |isolated| {
            // In a task of its own: the caller of the array may hold the list.
            drop(rt.spawn(async move {
                let failure = Failure::from(isolated);
                log::about(&name, &format!("ALERT: {failure}"));
                if let Some(daemon) = me.upgrade() {
                    let served = daemon.arrays.borrow_mut().remove(&name);
                    if served.is_some_and(|served| ublk::tell_of_failure(&name, &served)) {
                        daemon.next.set(Next::IsStartedBySystemd);
                    }
                    daemon.pending.note_failed(id, name.clone(), failure);
                    daemon.remove_vhost(&name).await;
                }
            }));
        })
    }

    /// Names of the arrays that are block devices now, with the numbers of ublk devices.
    fn attached(&self) -> Vec<(String, Option<u32>)> {
        let arrays = self.arrays.borrow();
        let attached = arrays.iter().filter(|(_, served)| served.front.borrow().is_some());
        attached.map(|(name, served)| (name.clone(), served.ublk())).collect()
    }

    /// Whether the next daemon can take over the block device of an array.
    fn can_be_left(&self, array: &str) -> bool {
        self.arrays.borrow().get(array).is_none_or(|served| served.can_be_left())
    }

    /// Refuses to stop under block devices; with `keep`, only under those that no other daemon can
    /// take over.
    async fn refuse_attached(&self, keep: bool) -> Outcome {
        let attached = self.attached();
        let mut lost = attached.iter().filter(|(name, _)| !(keep && self.can_be_left(name)));
        let Some((name, _)) = lost.next() else { return Ok(()) };
        let user = self.user_of(name).await.map_or_else(String::new, |user| format!(", {user}"));
        let (why, or) = match keep {
            true => (
                ", and the next daemon could not take it over: no systemd keeps its channel",
                ". For the next time: run weft as a service of the system, with \
                 `FileDescriptorStoreMax=256` in its unit",
            ),
            false => ("", ""),
        };
        Err(Failure::new(format!("{name} is attached as a block device{user}{why}")).hint(format!(
            "unmount it, run `weft detach {name}`, then stop; nothing was changed{or}"
        )))
    }

    /// Ends service, then stops every array cleanly; returns their names.
    async fn stop_all(&self) -> Result<(Vec<String>, Next), Failure> {
        // An array that is just starting is stopped like the others.
        let _turn = self.starting.acquire(1).await;
        let (cut, ()) = join(self.server.shutdown(), self.end_vhost()).await;
        if cut > 0 {
            log_line(&format!("disconnected {cut} clients that did not finish"));
        }
        let arrays = std::mem::take(&mut *self.arrays.borrow_mut());
        let left = join_all(arrays.iter().map(|(name, served)| ublk::leave(name, served))).await;
        let stopped = join_all(arrays.values().map(|served| served.stop())).await;
        stopped.into_iter().collect::<Outcome>()?;
        if left.contains(&true) {
            self.next.set(Next::IsStartedBySystemd);
        }
        Ok((arrays.into_keys().collect(), self.next.get()))
    }

    /// Announces on standard output that clients of an array may connect.
    fn announce(&self, name: &str) {
        let uris = self.uris(name);
        if self.json {
            announce_answer(&json!({ "serving": name, "nbd_uris": uris }));
        } else {
            announce(&format!("serving {name} at {}", uris.join(" and ")));
        }
    }

    /// Where NBD clients find the array `name`.
    fn uris(&self, name: &str) -> Vec<String> {
        self.endpoints.iter().map(|(head, tail)| format!("{head}/{name}{tail}")).collect()
    }
}
