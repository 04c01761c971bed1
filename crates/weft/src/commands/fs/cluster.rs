//! A file system on several machines: this process's part in the cluster, and its shared disks.
//!
//! ```text
//!   etcd, or leases on the disks ◀── membership ── who is keeper, where it listens, who was expelled
//!   disk servers ◀── exports DISK/CLUSTER/NODE/EPOCH, and the fences of others
//!   or block devices ◀── keys of epochs, and preemptions
//!   keeper: KeeperServer + node 0     ◀── channel ──  node
//! ```
//!
//! The name of the cluster is that of the file system. A process that is no member any more, or
//! that a disk refuses, ends: its disks stand still, and its mount gives errors.

mod coordinators;
mod create;
mod departure;
mod device_name;
mod joined_disks;
mod keeper;
mod links;
mod lost_disks;
mod node;
mod overview;
mod pool;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use futures_util::future::{Either, select};
use rustix::mount::MountFlags;
use weft_cli::disks::Opener;
use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_cli::thread;
use weft_cluster::channel::{ChannelError, HandshakeError, KEY_BYTES_MIN, KeyError, SharedKey};
use weft_cluster::fence::EndOfUse;
use weft_cluster::{
    ClusterName, CoordinatorError, DiskName, FenceError, Incarnation, Membership, Node, NodeConfig,
    NodeError, NodeName, Outlook, Session, Standing,
};
use weft_disk::Disk;
use weft_fs::Fs;
use weft_fuse::guard;
use weft_rt::reservation::InFlight;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::cli::{ClusterAt, FsClusterArgs};

use coordinators::{DiskLeases, User, coordinator};
pub(super) use create::create;
pub(super) use keeper::keeper;
pub(super) use node::mount_as_node;
pub(super) use overview::{evict, status};
use pool::{Leases, PoolDisk, SERVE};

/// How long a process counts as alive after its last sign of life.
const LEASE: Nanos = 5 * SECOND;
/// How long the coordinator may take to answer, and one of its members.
const COORDINATOR_PATIENCE: Nanos = 4 * SECOND;
const MEMBER_PATIENCE: Nanos = 1500 * MILLISECOND;
/// How long a disk server may take to confirm a fence.
const FENCE_PATIENCE: Nanos = 10 * SECOND;
/// Pause between two looks whether a file system has stopped.
const STOPPED_EVERY: Nanos = 2 * SECOND;
/// How long what may pass by itself is waited for: a name that a process has which was just killed,
/// a coordinator that is being started.
const START_PATIENCE: Nanos = 15 * SECOND;
const LOOK_EVERY: Nanos = 50 * MILLISECOND;
/// How long it may take to leave the cluster: longer than the coordinator may take to answer.
const LEAVE_PATIENCE: Nanos = 15 * SECOND;

/// Mounts, with a guard of the mount: the kernel is told to drop pages, which may wait for this
/// process when it is killed.
fn mount_guarded(
    folder: &Path,
    name: &str,
    flags: MountFlags,
    passes_sync_on: bool,
) -> Result<File, Failure> {
    let channel = super::mount_on(folder, name, flags, passes_sync_on)?;
    if let Err(failure) = guard::start(folder, &[]) {
        log_line(&format!(
            "the mount has no guard ({}): if this process is killed, `umount -f {}` may be needed",
            failure.message,
            folder.display()
        ));
    }
    Ok(channel)
}

/// The name of the cluster: that of the file system.
fn cluster_name(name: &str) -> Result<ClusterName, Failure> {
    name.parse().map_err(|error: weft_cluster::NameError| {
        Failure::usage(error.to_string())
            .hint("a file system on several machines gives its name to their cluster")
    })
}

/// The name of this node: the machine's, if no other was given.
fn node_name(args: &FsClusterArgs) -> Result<NodeName, Failure> {
    if let Some(node) = &args.node {
        return Ok(node.clone());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().parse().map_err(|_| {
        Failure::usage("this machine's name is no name of a node").hint("give one: --node NAME")
    })
}

/// The shared key, if a file was named.
fn shared_key(file: Option<&Path>) -> Result<Option<SharedKey>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let key = SharedKey::read(file).map_err(|error| {
        let hint = match &error {
            KeyError::Open(_) => format!("chmod 600 {}", file.display()),
            KeyError::Io(error) if error.kind() != std::io::ErrorKind::NotFound => {
                "check that you may read it".to_owned()
            }
            KeyError::Io(_) | KeyError::Length(_) => format!(
                "make one of {KEY_BYTES_MIN} bytes or more, the same on all nodes: \
                 (umask 077; head -c 32 /dev/urandom | base64 > {})",
                file.display()
            ),
        };
        Failure::new(format!("{}: {error}", file.display())).hint(hint)
    })?;
    Ok(Some(key))
}

/// The failure that ends with a hint what to do next.
fn no_channel(error: &ChannelError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        ChannelError::NotLocal(_) => failure.hint(
            "give --key FILE, the same on all nodes; without a key only 127.0.0.1, [::1] and Unix sockets",
        ),
        ChannelError::Handshake(_, error) => failure.hint(match error {
            HandshakeError::KeyNeeded => "give --key FILE with the keeper's key",
            HandshakeError::NoKey => "leave --key out, or start the keeper with it",
            HandshakeError::OtherKey => "copy the key file of the keeper to this machine",
            HandshakeError::OtherCluster => "check the name, and the address behind --cluster",
            HandshakeError::Version(_) => "update weft, on the machine with the earlier version first",
            HandshakeError::NotWeft => "check what listens there",
        }),
        _ => failure,
    }
}

/// What ends a process's part in a cluster, in words that say what to do.
fn failed(error: &NodeError, at: &ClusterAt) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        NodeError::NameTaken(_) | NodeError::Coordinator(CoordinatorError::Ousted(_)) => failure
            .hint("give each machine its own --node; after a crash the name is free in some seconds"),
        NodeError::Coordinator(CoordinatorError::Refused(_)) => failure.hint(match at {
            ClusterAt::Etcd(_) => "is this the address of an etcd, without TLS and passwords?",
            ClusterAt::Disks => "name the disks of one file system, made with --cluster disks",
        }),
        NodeError::Coordinator(_) => failure.hint(match at {
            ClusterAt::Etcd(_) => {
                "check that etcd runs and can be reached from here; --cluster names its members"
            }
            ClusterAt::Disks => {
                "name all disks, of which most must answer; `weft fs create --cluster disks` sets them up"
            }
        }),
        NodeError::WrongCluster { .. } => failure.hint("check the name and --cluster"),
        NodeError::UnknownFormat(_) => failure.hint("update weft on this machine"),
        NodeError::TooFewDisks { .. } => failure.hint(
            "start the servers of these disks; --degraded goes on without them: no machine that was \
             expelled must reach them then",
        ),
        NodeError::Fence(FenceError::Unconfirmed { .. }) => {
            failure.hint("check that the disk, or its server, can be reached from here")
        }
        NodeError::Fence(FenceError::Unsupported { .. }) => failure.hint(SERVE),
        NodeError::Fence(FenceError::Fenced { .. }) | NodeError::NoMember => failure,
    }
}

/// Whether waiting cures nothing.
fn is_final(error: &NodeError) -> bool {
    match error {
        NodeError::Coordinator(error) => {
            matches!(error, CoordinatorError::Refused(_) | CoordinatorError::Ousted(_))
        }
        NodeError::WrongCluster { .. } | NodeError::UnknownFormat(_) => true,
        NodeError::Fence(error) => matches!(error, FenceError::Unsupported { .. }),
        NodeError::NameTaken(_) | NodeError::NoMember | NodeError::TooFewDisks { .. } => false,
    }
}

/// A process's part in a cluster.
struct Party {
    opener: Opener,
    membership: Rc<Membership>,
    disks: RefCell<Vec<Rc<PoolDisk>>>,
    end: Rc<EndOfUse>,
    /// Disks that it takes in as the keeper.
    joining: joined_disks::Joining,
    /// Disks that it takes back as the keeper, if it can.
    lost: lost_disks::LostDisks,
    at: ClusterAt,
    /// The leases on its disks, if these keep the record.
    leases: Option<Rc<DiskLeases>>,
}

/// What a process is to be in its cluster.
struct Role {
    /// Where it listens as keeper, if it may become one.
    address: Option<String>,
    /// Whether it goes on although some disks are missing.
    degraded: bool,
    /// What becomes of the requests of machines that it fences at block devices.
    in_flight: InFlight,
    /// Whether it makes the file system, and may erase what the disks hold.
    creates: Option<bool>,
}

impl Role {
    /// One that never becomes a keeper.
    fn member() -> Self {
        Self { address: None, degraded: false, in_flight: InFlight::Abort, creates: None }
    }

    fn terms(&self, at: &ClusterAt, args: &FsClusterArgs) -> pool::Terms {
        let leases = match at {
            ClusterAt::Etcd(_) => Leases::Elsewhere,
            ClusterAt::Disks => Leases::Writes,
        };
        // What a node does not reach it uses through the keeper.
        let is_node = self.address.is_none() && self.creates.is_none();
        let (in_flight, degraded) = (self.in_flight, self.degraded || is_node);
        let patience = Nanos::try_from(args.disk_patience.as_nanos()).unwrap_or(Nanos::MAX);
        pool::Terms { in_flight, degraded, leases, patience }
    }
}

impl Party {
    /// Starts to take part.
    async fn start(
        opener: &Opener,
        name: &str,
        args: &FsClusterArgs,
        disks: &[String],
        role: Role,
    ) -> Result<Self, Failure> {
        let (cluster, node) = (cluster_name(name)?, node_name(args)?);
        let at = args.at()?.clone();
        let disks = pool::find(opener, &cluster, disks, role.terms(&at, args)).await?;
        let fences: Vec<_> = disks.iter().map(|disk| disk.fence()).collect();
        if let (Some(force), ClusterAt::Disks) = (role.creates, &at) {
            coordinators::set_up(opener, &disks, force).await?;
        }
        let user = if role.creates.is_some() { User::Command } else { User::Node(&node) };
        let found = coordinator(opener, &at, &cluster, &disks, user).await?;
        let (coordinator, leases) = (found.record, found.leases);
        let session = Session { node, number: u64::from_le_bytes(thread::random()?) };
        let disks_min = if role.degraded { fences.len() / 2 + 1 } else { fences.len() };
        let (may_keep, address) = (role.address.is_some(), role.address);
        let config = NodeConfig { cluster, session, disks_min, may_keep, address };
        let node = Node::new(coordinator.clone(), fences, config);
        let membership = Rc::new(Membership::start(&opener.rt, coordinator, node, LEASE));
        let end = Rc::new(EndOfUse::default());
        let (ending, expelled) = (end.clone(), membership.clone());
        opener.rt.spawn(async move {
            expelled.expelled().await;
            ending.end("it is no member of the cluster any more");
        });
        let disks = RefCell::new(disks);
        let (opener, joining, lost) = (opener.clone(), Default::default(), Default::default());
        Ok(Self { opener, membership, disks, end, joining, lost, at, leases })
    }

    /// Waits until `find` finds something; fails if that cannot come any more. With `is_patient` it
    /// waits for ever for what may pass.
    async fn until<T>(
        &self,
        is_patient: bool,
        find: impl Fn(&Outlook) -> Option<T>,
    ) -> Result<T, Failure> {
        let rt = &self.opener.rt;
        let deadline = rt.now() + START_PATIENCE;
        let mut said = None;
        loop {
            let outlook = self.membership.outlook();
            if let Some(found) = find(&outlook) {
                return Ok(found);
            }
            if let Some(why) = self.end.why() {
                return Err(Failure::new(format!("this node was fenced: {why}"))
                    .hint("start it again: it joins in a new epoch"));
            }
            if let Some(error) = &outlook.failure {
                let may_pass = is_patient && self.membership.node().own().is_some();
                if is_final(error) || rt.now() >= deadline && !may_pass {
                    return Err(failed(error, &self.at));
                }
            }
            if outlook.failure != said {
                if let Some(error) = &outlook.failure {
                    log_line(&format!("waiting: {error}"));
                }
                said = outlook.failure;
            }
            rt.sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until this process is a member.
    async fn joined(&self) -> Result<Incarnation, Failure> {
        self.until(false, |outlook| match &outlook.standing {
            Standing::Member(own) => Some(own.clone()),
            Standing::Keeper { keeper, .. } => Some(keeper.node.clone()),
            Standing::Out | Standing::Expelled(_) => None,
        })
        .await
    }

    /// Opens the disks as a member; without `lost` ones. With `degraded` most of them are enough;
    /// without, one that is away is waited for.
    async fn open_disks(
        &self,
        own: &Incarnation,
        lost: &BTreeSet<DiskName>,
        degraded: bool,
    ) -> Result<Vec<Rc<dyn Disk>>, Failure> {
        let (mut disks, mut left_out) = (Vec::new(), Vec::new());
        let all = self.disks.borrow().clone();
        for disk in all.iter().filter(|disk| !lost.contains(&disk.name())) {
            match self.open_disk(disk, own, degraded).await {
                Ok(disk) => disks.push(disk),
                Err(failure) if degraded => left_out.push(failure),
                Err(failure) => return Err(failure),
            }
        }
        let are_most = disks.len() > all.len() / 2;
        if let Some(failure) = left_out.pop_if(|_| !are_most) {
            return Err(failure);
        }
        for failure in left_out {
            log_line(&format!("left out: {}", failure.message));
        }
        Ok(disks)
    }

    async fn open_disk(
        &self,
        disk: &PoolDisk,
        own: &Incarnation,
        degraded: bool,
    ) -> Result<Rc<dyn Disk>, Failure> {
        let rt = &self.opener.rt;
        let deadline = rt.now() + if degraded { 0 } else { START_PATIENCE };
        let mut has_said = false;
        loop {
            match disk.open_as(&self.opener, own, &self.end).await {
                Err(failure) if rt.now() < deadline && !disk.is_missing() => {
                    if !std::mem::replace(&mut has_said, true) {
                        log_line(&format!("waiting: {}", failure.message));
                    }
                    rt.sleep(LOOK_EVERY).await;
                }
                opened => return opened,
            }
        }
    }

    /// A disk has joined, or come back.
    fn takes(&self, disk: Rc<PoolDisk>) {
        if let Some(leases) = &self.leases {
            leases.take_in(&disk);
        }
        let mut disks = self.disks.borrow_mut();
        disks.retain(|other| other.name() != disk.name());
        disks.push(disk);
    }

    /// Ends the membership in order.
    async fn leave(&self) -> Result<(), Failure> {
        let late = Box::pin(self.opener.rt.sleep(LEAVE_PATIENCE));
        let failure = match select(Box::pin(self.membership.end()), late).await {
            Either::Left((Ok(()), _)) => return Ok(()),
            Either::Left((Err(error), _)) => failed(&error, &self.at),
            Either::Right(_) => Failure::new("it could not leave the cluster in time"),
        };
        Err(failure.hint("nothing is lost: the keeper expels this node in some seconds"))
    }
}

/// Waits until a file system has stopped. Returns why; none if it is unmounted.
async fn why_stopped(rt: &Rt, fs: &Fs) -> Option<String> {
    loop {
        rt.sleep(STOPPED_EVERY).await;
        if let Some(why) = fs.why_stopped().ok()? {
            return Some(why);
        }
    }
}
