//! `weft fs mount --cluster`: mounts a file system as one of several nodes.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use futures_util::future::{Either, select};
use serde_json::json;
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{announce, announce_answer, log_line};
use weft_cluster::Incarnation;
use weft_cluster::channel::handshake::Terms;
use weft_cluster::channel::{Address, ChannelError, HandshakeError, connect};
use weft_disk::Disk;
use weft_fs::{Fs, MountOptions, Stream};
use weft_fuse::{control, tree};
use weft_nodes::{Dial, KeeperWay, mount_when_ready, number_of};
use weft_rt::ring::Ring;
use weft_rt::{Rt, SECOND};
use weft_token::NodeId;

use super::links::ChannelStream;
use super::{LOOK_EVERY, Party, Role, cluster_name, no_channel, shared_key};
use crate::cli::FsMountArgs;
use crate::commands::fs::options::Options;
use crate::commands::fs::{ending, failed as failed_fs, mount_on};
use crate::daemon::attached::prepare_for_reclaim;
use crate::daemon::notify;

/// How long a node waits for a keeper, and for that to be ready for it.
const KEEPER_PATIENCE: u64 = 60 * SECOND;

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
    let terms =
        Terms { cluster: cluster_name(&args.name)?, key: shared_key(args.cluster.key.as_deref())? };
    if args.disks.is_empty() {
        return Err(Failure::usage("no disks given")
            .hint("name all disks of the file system: nbd://HOST/DISK …"));
    }
    if args.degraded || args.stale || args.read_only {
        return Err(Failure::usage("--degraded, --stale and --read-only are not for nodes")
            .hint("the keeper decides which disks are used: weft fs keeper --degraded"));
    }
    let role = Role { address: None, degraded: false };
    let party = Party::start(opener, &args.name, &args.cluster, &args.disks, role)?;
    let own = party.joined().await?;
    let node = party.until(false, |outlook| number_of(outlook, &own)).await?;
    let reach = Reach { rt: opener.rt.clone(), ring: opener.ring.clone(), terms };
    let way = KeeperWay::new(&opener.rt, &party.membership, reach.dial(), Rc::new(log_line));
    let mounting = Box::pin(mount_fs(&party, &own, (&reach, node, &way), options));
    let mounted = match select(mounting, Box::pin(party.end.wait())).await {
        Either::Left((mounted, _)) => mounted,
        Either::Right((why, _)) => return Err(fenced(&why)),
    };
    let fs = match mounted {
        Ok(fs) => fs,
        Err(failure) => {
            party.leave().await?;
            return Err(failure);
        }
    };
    let served = serve(opener, args, &folder, given, &fs, &party, json).await;
    if let Some(why) = party.end.why() {
        // The end of the process ends the mount: to unmount it here would wait for itself.
        return Err(fenced(&why));
    }
    let unmounting = Box::pin(fs.unmount());
    match select(unmounting, Box::pin(party.end.wait())).await {
        Either::Left((unmounted, _)) => unmounted.map_err(failed_fs)?,
        Either::Right((why, _)) => return Err(fenced(&why)),
    }
    served?;
    party.leave().await
}

fn fenced(why: &str) -> Failure {
    Failure::new(format!("this node was fenced, and its mount has ended: {why}"))
        .hint("mount it again: what programs had not synced is lost")
}

async fn mount_fs(
    party: &Party,
    own: &Incarnation,
    (reach, node, way): (&Reach, NodeId, &Rc<KeeperWay>),
    options: MountOptions,
) -> Result<Fs, Failure> {
    let rt = &party.opener.rt;
    await_keeper(reach, way).await?;
    let disks: Vec<Rc<dyn Disk>> = party.open_disks(own, &Default::default()).await?;
    let mounted = mount_when_ready(rt, (&disks, options), (node, way), KEEPER_PATIENCE).await;
    mounted.map_err(failed_fs)
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

/// Serves the mounted file system until it is unmounted, or the node is fenced.
async fn serve(
    opener: &Opener,
    args: &FsMountArgs,
    folder: &Path,
    given: Options,
    fs: &Fs,
    party: &Party,
    json: bool,
) -> Outcome {
    let channel = mount_on(folder, &args.name, given.flags, args.syncfs)?;
    super::guard::start(folder);
    ending::on_signals(folder, args.stop_timeout)?;
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
    let serving = tree::serve(rt, ring, OwnedFd::from(channel), fs.clone(), open, None);
    match select(Box::pin(serving), Box::pin(party.end.wait())).await {
        Either::Left((served, _)) => served.map_err(|e| Failure::new(format!("/dev/fuse: {e}"))),
        Either::Right(_) => Ok(()),
    }
}
