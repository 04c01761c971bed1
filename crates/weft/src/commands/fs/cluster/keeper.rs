//! `weft fs keeper`: stands by, takes over when there is no keeper, and keeps the metadata for the
//! nodes.
//!
//! ```text
//!   joins ── stands by ── is keeper in a term, all before it fenced ── mounts node 0 ── serves
//!                                                                         │
//!                  expelled, or refused by a disk: ends with an error ◀───┘
//! ```
//!
//! A keeper that ends in order leaves the cluster, so another one takes over at once. One that was
//! killed has done so when its lease has ended and it is fenced.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_channel::mpsc::UnboundedReceiver;
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use rustix::mount::MountFlags;
use serde_json::json;
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{announce, announce_answer, log_line};
use weft_cli::thread;
use weft_cluster::channel::handshake::Terms;
use weft_cluster::channel::{Channel, ChannelError, Listener};
use weft_cluster::{DiskName, Keeper, Member, Membership, NodeName, Outlook, Standing};
use weft_disk::Disk;
use weft_fs::{
    AccessTimes, Fs, FsError, FsStatus, KeeperServer, Label, MountOptions, RemoteMetadata,
};
use weft_fuse::{control, mount, tree};
use weft_rt::{Nanos, Rt, SECOND};
use weft_token::NodeId;

use super::links::{ChannelStream, MemoryWay};
use super::{LOOK_EVERY, Party, Role, cluster_name, no_channel, node_name, open_as, shared_key};
use crate::cli::FsKeeperArgs;
use crate::commands::fs::{ending, failed as failed_fs, mount_on, now, require_root};
use crate::daemon::attached::prepare_for_reclaim;
use crate::daemon::notify;

/// `weft fs keeper`.
pub(in crate::commands::fs) fn keeper(args: &FsKeeperArgs, json: bool) -> Outcome {
    let folder = match &args.mount {
        None => None,
        Some(folder) => {
            require_root("mounting")?;
            Some(mount::folder_for(folder)?)
        }
    };
    let args = args.clone();
    thread::run(move |opener| async move { run(&opener, &args, folder, json).await })
}

async fn run(opener: &Opener, args: &FsKeeperArgs, folder: Option<PathBuf>, json: bool) -> Outcome {
    let mut signals = thread::ending_signals()?;
    let terms =
        Terms { cluster: cluster_name(&args.name)?, key: shared_key(args.cluster.key.as_deref())? };
    let listener = Listener::bind(&opener.rt, &opener.ring, &args.listen, terms);
    let listener = Rc::new(listener.map_err(|error| no_channel(&error))?);
    let address = listener.address().to_string();
    let role = Role { address: Some(address.clone()), degraded: args.degraded };
    let party = Party::start(opener, &args.name, &args.cluster, &args.disks, role)?;
    let way = MemoryWay::new(&opener.rt);
    opener.rt.spawn(accept(opener, listener, &way));
    let node = node_name(&args.cluster)?;
    let ended = {
        let joined = Box::pin(party.joined());
        match select(joined, signals.next()).await {
            Either::Left((joined, _)) => joined.map(|_| false)?,
            Either::Right(_) => true,
        }
    };
    if ended {
        return party.leave().await;
    }
    match json {
        true => announce_answer(&json!({ "standing_by": node, "listen": address })),
        false => {
            announce(&format!("{node} stands by as keeper of '{}' at {address}", args.name));
        }
    }
    notify::systemd("READY=1");
    let became = {
        let becomes = Box::pin(party.until(true, |outlook| match &outlook.standing {
            Standing::Keeper { keeper, lost_disks } => Some((keeper.clone(), lost_disks.clone())),
            _ => None,
        }));
        match select(becomes, signals.next()).await {
            Either::Left((became, _)) => Some(became?),
            Either::Right(_) => None,
        }
    };
    if let Some((keeper, lost)) = became {
        let active = Active { opener, args, party: &party, way: &way, folder, json };
        let kept = active.keep(&keeper, &lost, &mut signals).await;
        if let Some(why) = party.end.why() {
            // What is in memory must not be written, and nothing waits for that.
            let why = format!("this keeper was fenced, and has ended: {why}");
            return Err(Failure::new(why).hint("start it again: it stands by then"));
        }
        kept?;
    }
    notify::systemd("STOPPING=1");
    party.leave().await
}

/// Accepts nodes, and hands them to the keeper while there is one.
fn accept(
    opener: &Opener,
    listener: Rc<Listener>,
    way: &Rc<MemoryWay>,
) -> impl Future<Output = ()> + 'static {
    let (rt, way) = (opener.rt.clone(), way.clone());
    let serve = move |channel: Rc<Channel>| {
        // Before that, the node tries again.
        if let Some(server) = way.server().filter(|_| way.takes(&channel)) {
            rt.spawn(async move { server.serve(Rc::new(ChannelStream(channel))).await });
        }
    };
    let said = RefCell::new(String::new());
    let refused = move |error: ChannelError| {
        // Strangers must not fill the log.
        let text = error.to_string();
        if *said.borrow() != text {
            log_line(&format!("refused a peer: {text}"));
            *said.borrow_mut() = text;
        }
    };
    listener.run(serve, refused)
}

/// A keeper in its term.
struct Active<'a> {
    opener: &'a Opener,
    args: &'a FsKeeperArgs,
    party: &'a Party,
    way: &'a Rc<MemoryWay>,
    folder: Option<PathBuf>,
    json: bool,
}

impl Active<'_> {
    /// Mounts node 0, and serves nodes until a signal comes or the use of the disks ends.
    async fn keep(
        mut self,
        keeper: &Keeper,
        lost: &BTreeSet<DiskName>,
        signals: &mut UnboundedReceiver<i32>,
    ) -> Outcome {
        let fs = {
            let mounting = Box::pin(self.mount(keeper, lost));
            let ended = Box::pin(self.party.end.wait());
            match select(mounting, ended).await {
                Either::Left((fs, _)) => fs?,
                // The caller says why.
                Either::Right(_) => return Ok(()),
            }
        };
        let (name, term) = (&self.args.name, keeper.term);
        match self.json {
            true => announce_answer(&json!({ "keeps": name, "term": term })),
            false => announce(&format!("{} keeps '{name}' in term {term}", keeper.node.node)),
        }
        let server = self.way.server().ok_or_else(|| Failure::new("there is no keeper"))?;
        let mounted = fs.nodes().await.map_err(failed_fs)?.into_iter();
        let mounted: Vec<NodeId> = mounted.filter(|of| of.is_mounted).map(|of| of.node).collect();
        fs.serve_nodes(&server, &mounted);
        let attendance = Rc::new(Attendance {
            rt: self.opener.rt.clone(),
            membership: self.party.membership.clone(),
            fs: fs.clone(),
            server,
            has_ended: Cell::new(false),
        });
        self.opener.rt.spawn(attendance.clone().attend(mounted));
        let folder = self.folder.take();
        let served = match &folder {
            Some(folder) => self.serve_folder(&fs, keeper, folder, signals).await,
            None => {
                let ends = select(signals.next(), Box::pin(self.party.end.wait()));
                match select(ends, Box::pin(self.stopped(&fs))).await {
                    Either::Left(_) => Ok(()),
                    Either::Right((failure, _)) => Err(failure),
                }
            }
        };
        if self.party.end.why().is_some() {
            return Ok(());
        }
        served?;
        // Nodes wait for the next keeper, and do not hear that this one fails.
        self.way.turn_nodes_away();
        attendance.has_ended.set(true);
        let late = Box::pin(self.opener.rt.sleep(END_PATIENCE));
        let ended = select(Box::pin(self.party.end.wait()), late);
        match select(Box::pin(fs.unmount()), ended).await {
            Either::Left((unmounted, _)) => unmounted.map_err(failed_fs),
            Either::Right((Either::Left(_), _)) => Ok(()),
            Either::Right((Either::Right(_), _)) => {
                Err(Failure::new("it could not end in order, and has ended at once")
                    .hint("nothing that was synced is lost: the next keeper recovers it"))
            }
        }
    }

    /// Waits until the file system has failed; another keeper may do better.
    async fn stopped(&self, fs: &Fs) -> Failure {
        loop {
            self.opener.rt.sleep(AGAIN).await;
            if let Ok(FsStatus { stopped: Some(why), .. }) = fs.status().await {
                return Failure::new(format!("the file system has stopped: {why}"))
                    .hint("another keeper takes over; start this one again");
            }
        }
    }

    /// Those of the lost disks that do not refuse yet all that they must.
    async fn not_regained(&self, mut lost: BTreeSet<DiskName>) -> BTreeSet<DiskName> {
        for disk in lost.clone() {
            match self.party.membership.node().regain_disk(&disk).await {
                Ok(true) => {
                    lost.remove(&disk);
                }
                Ok(false) => {
                    log_line(&format!("{disk} is not used: it may take what it must refuse"))
                }
                Err(error) => log_line(&format!("{disk} is not used: {error}")),
            }
        }
        lost
    }

    /// Node 0, whose keeper is in this process.
    async fn mount(&self, keeper: &Keeper, lost: &BTreeSet<DiskName>) -> Result<Fs, Failure> {
        let lost = self.not_regained(lost.clone()).await;
        let disks = self.party.open_disks(&keeper.node, &lost).await?;
        check_labels(&disks, &self.args.name).await?;
        let options = MountOptions {
            degraded: self.args.degraded,
            stale: false,
            read_only: false,
            access_times: AccessTimes::Relative,
            cache_bytes: self.args.cache,
            meta_cache_bytes: self.args.metadata_cache,
            nonce: u64::from_le_bytes(thread::random()?),
            // Fences keep other machines from the disks: no marks, and no wait for them.
            host: None,
            now: now(),
            clock: Some(now),
        };
        let first = disks.first().ok_or_else(|| {
            Failure::new("no disk can be used").hint("start the servers of the disks")
        })?;
        let id = Label::read(&**first).await.ok().flatten().map(|label| label.fs_id.0);
        let id = id.ok_or_else(|| Failure::new("the first disk has no label"))?;
        let (rt, way) = (self.opener.rt.clone(), self.way.clone());
        let (cache, term) = (self.args.metadata_cache, keeper.term.0);
        let found = move |array| {
            let (rt, way) = (rt.clone(), way.clone());
            async move {
                way.lead_to(None);
                let server = KeeperServer::open(&rt, array, id, cache).await?;
                way.lead_to(Some(server));
                Ok(RemoteMetadata { node: NodeId { number: 0, epoch: term }, way })
            }
        };
        let mounted = Fs::mount_with_keeper(&self.opener.rt, &disks, options, found).await;
        mounted.map_err(|error| match error {
            FsError::Unmountable(why) => Failure::new(why)
                .hint("name all disks of the file system; --degraded goes on without missing ones"),
            error => failed_fs(error),
        })
    }

    /// Serves node 0 on a folder as well, until it is unmounted.
    async fn serve_folder(
        &self,
        fs: &Fs,
        keeper: &Keeper,
        folder: &std::path::Path,
        signals: &mut UnboundedReceiver<i32>,
    ) -> Outcome {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let channel = mount_on(folder, &self.args.name, flags, false)?;
        prepare_for_reclaim();
        announce(&format!("'{}' is mounted on {}", self.args.name, folder.display()));
        let open = self.opens_as(keeper);
        let (rt, ring) = (self.opener.rt.clone(), self.opener.ring.clone());
        let serving = tree::serve(rt, ring, OwnedFd::from(channel), fs.clone(), open, None);
        let mut serving = Box::pin(serving);
        let ended = select(Box::pin(self.party.end.wait()), Box::pin(self.stopped(fs)));
        let told = Box::pin(select(signals.next(), ended));
        let served = match select(&mut serving, told).await {
            Either::Left((served, _)) => served,
            Either::Right((Either::Right((ended, _)), _)) => {
                // The end of the process ends the mount: to unmount it here would wait for itself.
                return match ended {
                    Either::Left(_) => Ok(()),
                    Either::Right((failure, _)) => Err(failure),
                };
            }
            Either::Right((Either::Left(_), _)) => {
                let (folder, patience) = (folder.to_owned(), self.args.stop_timeout);
                let signals = Arc::new(AtomicUsize::new(1));
                let drain = move || {
                    signals.store(1, Ordering::Relaxed);
                    ending::drain(&folder, patience, &signals);
                };
                let draining = thread::elsewhere(drain);
                let (served, drained) = futures_util::future::join(serving, draining).await;
                drained?;
                served
            }
        };
        served.map_err(|e| Failure::new(format!("/dev/fuse: {e}")))
    }

    /// Opens disks that are added.
    fn opens_as(&self, keeper: &Keeper) -> control::OpenDisk {
        let (opener, own, end) = (self.opener.clone(), keeper.node.clone(), self.party.end.clone());
        let cluster = cluster_name(&self.args.name);
        Rc::new(move |place| {
            let (opener, own, end) = (opener.clone(), own.clone(), end.clone());
            let cluster = cluster.as_ref().ok().cloned();
            Box::pin(async move {
                let cluster = cluster.ok_or("it has no name")?;
                let fences = super::fences_of(&opener, &cluster, &[place]);
                let fences = fences.map_err(|failure| failure.to_string())?;
                let opened = open_as(&opener, &fences[0], &own, &end).await;
                opened.map_err(|failure| failure.to_string())
            })
        })
    }
}

/// How long a keeper takes to end in order at most.
const END_PATIENCE: Nanos = 60 * SECOND;
/// Pause before a node is looked at once more.
const AGAIN: Nanos = 2 * SECOND;

/// What node 0 does for nodes as they come and go.
struct Attendance {
    rt: Rt,
    membership: Rc<Membership>,
    fs: Fs,
    server: KeeperServer,
    has_ended: Cell<bool>,
}

/// Nodes by their numbers: names and epochs.
type Nodes = BTreeMap<u16, (NodeName, u64)>;

/// All members but those that may become the keeper: these mount the file system as node 0.
fn nodes_of(outlook: &Outlook) -> Nodes {
    let Some(record) = &outlook.view.record else { return Nodes::default() };
    let nodes = record.members.iter().filter(|(_, member)| member.address.is_none());
    let node = |(name, member): (&NodeName, &Member)| {
        Some((*record.numbers.get(name)?, (name.clone(), member.epoch.0)))
    };
    nodes.filter_map(node).collect()
}

/// The name of the node with a number.
fn name_of(outlook: &Outlook, number: u16) -> Option<NodeName> {
    let numbers = &outlook.view.record.as_ref()?.numbers;
    numbers.iter().find(|(_, of)| **of == number).map(|(name, _)| name.clone())
}

/// Whether a mount of a node is over: it is no member any more, and no disk waits to refuse it.
fn is_over(outlook: &Outlook, number: u16, epoch: u64) -> bool {
    let Some(record) = &outlook.view.record else { return false };
    let pending = name_of(outlook, number).and_then(|name| record.fencing.get(&name));
    let is_pending = pending.is_some_and(|epochs| epochs.iter().any(|of| of.0 <= epoch));
    !is_pending && nodes_of(outlook).get(&number).is_none_or(|(_, now)| *now != epoch)
}

impl Attendance {
    /// Gets nodes ready as they join, and recovers those that are no members any more. `mounted`
    /// are those that the metadata knows of: some may have died under an earlier keeper.
    async fn attend(self: Rc<Self>, mounted: Vec<NodeId>) {
        let mut known: BTreeMap<u16, u64> =
            mounted.into_iter().map(|node| (node.number, node.epoch)).collect();
        while !self.has_ended.get() {
            let over = self
                .membership
                .until(|outlook| {
                    let mut over = known.iter().filter(|(n, epoch)| is_over(outlook, **n, **epoch));
                    let over = over.next().map(|(number, epoch)| (*number, *epoch));
                    let is_any_new = nodes_of(outlook).keys().any(|n| !known.contains_key(n));
                    (over.is_some() || is_any_new).then_some(over)
                })
                .await;
            if self.has_ended.get() {
                return;
            }
            let outcome = match over {
                Some((number, epoch)) => {
                    let recovered = self.recover(NodeId { number, epoch }).await;
                    recovered.map(|()| {
                        known.remove(&number);
                    })
                }
                None => {
                    let mut outcome = Ok(());
                    let mut new = nodes_of(&self.membership.outlook());
                    new.retain(|number, _| !known.contains_key(number));
                    for (number, (_, epoch)) in new {
                        match self.fs.prepare_node(number).await {
                            Ok(()) => {
                                known.insert(number, epoch);
                            }
                            Err(error) => outcome = Err((number, error)),
                        }
                    }
                    outcome
                }
            };
            match outcome {
                Ok(()) => self.rt.sleep(LOOK_EVERY).await,
                Err((number, error)) => {
                    let name = name_of(&self.membership.outlook(), number);
                    let name = name.map_or_else(|| number.to_string(), |name| name.to_string());
                    log_line(&format!("node {name} waits: {error}"));
                    self.rt.sleep(AGAIN).await;
                }
            }
        }
    }

    /// Recovers a node that is dead or has ended: no disk takes anything of it.
    async fn recover(&self, node: NodeId) -> Result<(), (u16, FsError)> {
        let failed = |error| (node.number, error);
        self.server.fence(node).await.map_err(failed)?;
        let lines = self.fs.recover_node(node).await.map_err(failed)?;
        if let Some(name) = name_of(&self.membership.outlook(), node.number) {
            log_line(&format!(
                "node {name} (epoch {}) is gone: {lines} lines of its log recovered",
                node.epoch
            ));
        }
        Ok(())
    }
}

/// Fails if a disk belongs to another file system.
async fn check_labels(disks: &[Rc<dyn Disk>], name: &str) -> Outcome {
    for disk in disks {
        let Ok(Some(label)) = Label::read(&**disk).await else { continue };
        if label.name != name {
            let (disk, other) = (&disk.info().name, label.name);
            return Err(Failure::new(format!("{disk} is a disk of the file system '{other}'")));
        }
    }
    Ok(())
}
