//! `weft fs mount --cluster`: mounts a file system as one of several nodes.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use futures_util::future::{Either, select};
use serde_json::json;
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{announce, announce_answer, log_line};
use weft_cli::thread;
use weft_cluster::Incarnation;
use weft_cluster::channel::handshake::Terms;
use weft_cluster::channel::{Address, ChannelError, HandshakeError, connect};
use weft_disk::Disk;
use weft_fs::{Fs, MountOptions, Reopen, Stream};
use weft_fuse::{control, tree};
use weft_nodes::{Dial, KeeperWay, mount_when_ready, number_of};
use weft_rt::ring::Ring;
use weft_rt::{Rt, SECOND};
use weft_token::NodeId;

use super::departure::Departure;
use super::links::ChannelStream;
use super::{
    LOOK_EVERY, Party, Role, cluster_name, joined_disks, mount_guarded, no_channel, pool,
    shared_key, why_stopped,
};
use crate::cli::FsMountArgs;
use crate::commands::fs::options::Options;
use crate::commands::fs::{ending, failed as failed_fs};
use crate::daemon::attached::prepare_for_reclaim;
use crate::daemon::notify;

/// How long a node waits for a keeper, and for that to be ready for it.
const KEEPER_PATIENCE: u64 = 60 * SECOND;

/// How much longer a mount that has begun may take.
const MOUNT_PATIENCE: u64 = 30 * SECOND;

/// How a node reaches a keeper.
#[derive(Clone)]
struct Reach {
    rt: Rt,
    ring: Ring,
    terms: Terms,
}

impl Reach {
    /// Connects to a keeper as the cluster's record names it.
    fn dial(&self) -> Dial {
        let reach = self.clone();
        Rc::new(move |address| {
            let reach = reach.clone();
            Box::pin(async move {
                let address: Address =
                    address.parse().map_err(|_| format!("where is {address}?"))?;
                let channel = connect(&reach.rt, &reach.ring, &address, &reach.terms).await;
                let channel = channel.map_err(|error| error.to_string())?;
                Ok(Rc::new(ChannelStream(Rc::new(channel))) as Rc<dyn Stream>)
            })
        })
    }
}

/// Mounts as a node.
pub(in crate::commands::fs) async fn mount_as_node(
    opener: &Opener,
    args: &FsMountArgs,
    (folder, given): (PathBuf, Options),
    options: MountOptions,
    json: bool,
) -> Outcome {
    let cluster = cluster_name(&args.name)?;
    let key = shared_key(args.cluster.key.as_deref())?;
    let terms = Terms { cluster: cluster.clone(), key };
    if args.disks.is_empty() {
        return Err(Failure::usage("no disks given")
            .hint("name all disks of the file system: nbd://HOST/DISK … or /dev/disk/by-id/…"));
    }
    if args.degraded || args.stale || args.read_only {
        return Err(Failure::usage("--degraded, --stale and --read-only are not for nodes")
            .hint("the keeper decides which disks are used: weft fs keeper --degraded"));
    }
    let signals = ending::Signals::listen(&opener.rt)?;
    let party = {
        let role = Role::member();
        let starting = Party::start(opener, &args.name, &args.cluster, &args.disks, role);
        match select(Box::pin(starting), Box::pin(signals.wait(1))).await {
            Either::Left((party, _)) => Rc::new(party?),
            Either::Right(_) => {
                return Err(Failure::new("a signal has ended it before it was mounted"));
            }
        }
    };
    let started = {
        let disk_terms = Role::member().terms(args.cluster.at()?, &args.cluster);
        let terms = (terms, disk_terms);
        let starting = Box::pin(start(&party, terms, options, args.early_commit));
        let ended = select(Box::pin(party.end.wait()), Box::pin(signals.wait(1)));
        match select(starting, ended).await {
            Either::Left((started, _)) => started,
            Either::Right((Either::Left((why, _)), _)) => return Err(fenced(&why)),
            Either::Right(_) => Err(Failure::new("a signal has ended it before it was mounted")),
        }
    };
    let fs = match started {
        Ok(fs) => fs,
        Err(failure) => {
            // It has written nothing, and only reads may be on their way to disks.
            if party.membership.node().own().is_some() {
                party.leave().await?;
            }
            return Err(failure);
        }
    };
    end_when_stopped(&opener.rt, &fs, &party);
    let departure = Departure::new(&opener.rt, &signals, &fs, args.stop_timeout);
    let served = {
        let serving = Box::pin(serve(opener, args, &folder, given, &fs, &signals, json));
        let stuck = Box::pin(departure.drain_is_stuck());
        let ended = select(Box::pin(party.end.wait()), stuck);
        match select(serving, ended).await {
            Either::Left((served, _)) => served,
            // The end of the process ends the mount: to unmount it here would wait for itself.
            Either::Right((Either::Left((why, _)), _)) => {
                if signals.heard() > 0 {
                    ending::cut(&opener.rt, &folder).await;
                }
                return Err(fenced(&why));
            }
            Either::Right((Either::Right((failure, _)), _)) => {
                ending::cut(&opener.rt, &folder).await;
                return Err(failure);
            }
        }
    };
    match select(Box::pin(departure.unmount()), Box::pin(party.end.wait())).await {
        Either::Left((unmounted, _)) => unmounted?,
        Either::Right((why, _)) => return Err(fenced(&why)),
    }
    served?;
    party.leave().await
}

/// What early commit assumes.
const EARLY_COMMIT: &str = "early commit: what programs sync goes into the keeper's memory, and to the disks within \
     seconds. If this node and the keeper die within that time, as when the power fails for both, what was \
     synced last is lost; the file system stays sound. Give the two independent power";

/// Joins the cluster, and mounts.
async fn start(
    party: &Rc<Party>,
    (terms, disk_terms): (Terms, pool::Terms),
    options: MountOptions,
    early_commit: bool,
) -> Result<Fs, Failure> {
    let opener = &party.opener;
    let own = party.joined().await?;
    let node = party.until(false, |outlook| number_of(outlook, &own)).await?;
    let open = joined_disks::opens(party, terms.cluster.clone(), &own, disk_terms);
    let reach = Reach { rt: opener.rt.clone(), ring: opener.ring.clone(), terms };
    let way = KeeperWay::new(&opener.rt, &party.membership, reach.dial(), Rc::new(log_line));
    let fs = mount_fs(party, &own, (&reach, node, &way), (options, open)).await?;
    if early_commit {
        fs.begin_early_commits().await.map_err(failed_fs)?;
        log_line(EARLY_COMMIT);
    }
    Ok(fs)
}

/// What the end of a mount that has stopped begins with.
const STOPPED: &str = "the file system has stopped: ";

fn fenced(why: &str) -> Failure {
    if let Some(why) = why.strip_prefix(STOPPED) {
        return Failure::new(format!("this node has stopped, and its mount has ended: {why}"))
            .hint("mount it again: the keeper recovers what programs had synced");
    }
    Failure::new(format!("this node was fenced, and its mount has ended: {why}"))
        .hint("mount it again: what programs had not synced is lost")
}

async fn mount_fs(
    party: &Party,
    own: &Incarnation,
    (reach, node, way): (&Reach, NodeId, &Rc<KeeperWay>),
    (options, open): (MountOptions, Reopen),
) -> Result<Fs, Failure> {
    let rt = &party.opener.rt;
    await_keeper(reach, way).await?;
    let disks: Vec<Rc<dyn Disk>> = reached_disks(party, own).await?;
    let by = (&disks[..], Some(&open), options);
    let mounting = mount_when_ready(rt, by, (node, way), KEEPER_PATIENCE);
    // It waits by itself for a keeper that ends meanwhile.
    let late = Box::pin(rt.sleep(KEEPER_PATIENCE + MOUNT_PATIENCE));
    match select(Box::pin(mounting), late).await {
        Either::Left((mounted, _)) => mounted.map_err(failed_fs),
        Either::Right(_) => Err(Failure::new("no keeper has taken this node in time").hint(
            "start a keeper: weft fs keeper; `weft fs status --cluster` shows what there is",
        )),
    }
}

/// A node that has stopped leaves the cluster without a word: so its tokens go to others when it is
/// recovered.
fn end_when_stopped(rt: &Rt, fs: &Fs, party: &Party) {
    let (clock, fs, end) = (rt.clone(), fs.clone(), party.end.clone());
    drop(rt.spawn(async move {
        if let Some(why) = why_stopped(&clock, &fs).await {
            end.end(STOPPED.to_owned() + &why);
        }
    }));
}

/// The disks that this machine reaches; the rest are used through the keeper. One is enough.
async fn reached_disks(party: &Party, own: &Incarnation) -> Result<Vec<Rc<dyn Disk>>, Failure> {
    let (mut disks, mut last) = (Vec::<Rc<dyn Disk>>::new(), None);
    let all = party.disks.borrow().clone();
    for disk in all {
        match disk.open_as(&party.opener, own, &party.end).await {
            Ok(disk) => disks.push(disk),
            Err(failure) => {
                log_line(&format!("{}; it is used through the keeper", failure.message));
                last = Some(failure);
            }
        }
    }
    match last {
        Some(failure) if disks.is_empty() => Err(failure),
        _ => Ok(disks),
    }
}

/// Waits for a keeper that takes this node. What only a change of its command line cures fails at
/// once.
async fn await_keeper(reach: &Reach, way: &KeeperWay) -> Outcome {
    let Reach { rt, ring, terms } = reach;
    let deadline = rt.now() + KEEPER_PATIENCE;
    loop {
        let address = way.address().and_then(|address| address.parse::<Address>().ok());
        let failure = match address {
            None => Failure::new("there is no keeper")
                .hint("start one: weft fs keeper; `weft fs status --cluster` shows what there is"),
            Some(address) => match connect(rt, ring, &address, terms).await {
                Ok(_) => return Ok(()),
                Err(error @ ChannelError::NotLocal(_)) => return Err(no_channel(&error)),
                Err(ChannelError::Handshake(at, error)) if error != HandshakeError::NotWeft => {
                    return Err(no_channel(&ChannelError::Handshake(at, error)));
                }
                Err(error) => no_channel(&error),
            },
        };
        if rt.now() >= deadline {
            return Err(failure);
        }
        way.say(format!("waiting: {}", failure.message));
        rt.sleep(LOOK_EVERY).await;
    }
}

/// Serves the mounted file system until it is unmounted.
async fn serve(
    opener: &Opener,
    args: &FsMountArgs,
    folder: &Path,
    given: Options,
    fs: &Fs,
    signals: &ending::Signals,
    json: bool,
) -> Outcome {
    let channel = mount_guarded(folder, &args.name, given.flags, args.syncfs)?;
    signals.ignore_hangup();
    match json {
        true => announce_answer(&json!({ "mounted": args.name, "folder": folder })),
        false => {
            announce(&format!("file system '{}' is mounted on {}", args.name, folder.display()))
        }
    }
    notify::systemd("READY=1");
    prepare_for_reclaim();
    let open: control::OpenDisk = Rc::new(|_| {
        Box::pin(async { Err("disks are added at the keeper: weft fs keeper --mount".to_owned()) })
    });
    let (rt, ring) = (opener.rt.clone(), opener.ring.clone());
    let serving = Box::pin(tree::serve(rt, ring, OwnedFd::from(channel), fs.clone(), open, None));
    let served = match select(serving, Box::pin(signals.wait(1))).await {
        Either::Left((served, _)) => served,
        Either::Right(((), serving)) => {
            notify::systemd("STOPPING=1");
            let (folder, patience) = (folder.to_owned(), args.stop_timeout);
            let heard = signals.counter();
            // It ends with the service, but may still be in the kernel by then.
            let draining = thread::elsewhere(move || ending::drain(&folder, patience, &heard));
            match select(serving, Box::pin(draining)).await {
                Either::Left((served, _)) => served,
                Either::Right((_, serving)) => serving.await,
            }
        }
    };
    served.map_err(|e| Failure::new(format!("/dev/fuse: {e}")))
}
