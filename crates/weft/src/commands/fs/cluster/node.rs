//! `weft fs mount --cluster`: mounts a file system as one of several nodes.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use futures_util::future::{Either, select};
use serde_json::json;
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{announce, announce_answer, log_line};
use weft_cluster::channel::handshake::Terms;
use weft_cluster::channel::{Address, Channel, ChannelError, HandshakeError, connect};
use weft_cluster::{Incarnation, Membership, Outlook};
use weft_disk::{Disk, IoFuture};
use weft_fs::{Connector, Fs, FsError, MountOptions, RemoteMetadata, Stream};
use weft_fuse::{control, tree};
use weft_rt::ring::Ring;
use weft_rt::{MILLISECOND, Rt, SECOND};
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

/// The way to the keeper, wherever it is now.
struct KeeperWay {
    rt: Rt,
    ring: Ring,
    membership: Rc<Membership>,
    terms: Terms,
    /// What went wrong last.
    said: RefCell<String>,
}

impl KeeperWay {
    /// Where the keeper is; none while there is none.
    fn address(&self) -> Option<Address> {
        self.membership.outlook().keeper_address()?.parse().ok()
    }

    fn say(&self, text: String) {
        if *self.said.borrow() != text {
            log_line(&text);
            *self.said.borrow_mut() = text;
        }
    }
}

impl Connector for KeeperWay {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        Box::pin(async {
            let Some(address) = self.address() else {
                self.say("waiting: there is no keeper".into());
                return Err(io::ErrorKind::NotConnected.into());
            };
            match connect(&self.rt, &self.ring, &address, &self.terms).await {
                Ok(channel) => {
                    self.said.borrow_mut().clear();
                    let channel = Rc::new(channel);
                    self.rt.spawn(end_with_keeper(self.membership.clone(), address, &channel));
                    Ok(Rc::new(ChannelStream(channel)) as Rc<dyn Stream>)
                }
                Err(error) => {
                    self.say(format!("waiting for the keeper: {error}"));
                    Err(io::Error::other(error.to_string()))
                }
            }
        })
    }
}

/// Ends a channel when the keeper is elsewhere: one whose machine hangs does not do so itself.
fn end_with_keeper(
    membership: Rc<Membership>,
    address: Address,
    channel: &Rc<Channel>,
) -> impl Future<Output = ()> + 'static {
    let (address, channel) = (address.to_string(), Rc::downgrade(channel));
    async move {
        let is_elsewhere = |outlook: &Outlook| {
            let now = outlook.keeper_address();
            channel.strong_count() == 0 || now.is_some_and(|now| now != address)
        };
        membership.until(|outlook| is_elsewhere(outlook).then_some(())).await;
        if let Some(channel) = channel.upgrade() {
            channel.close();
        }
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
    let number = party.until(false, |outlook| {
        let record = outlook.view.record.as_ref()?;
        record.numbers.get(&own.node).copied()
    });
    let node = NodeId { number: number.await?, epoch: own.epoch.0 };
    let way = Rc::new(KeeperWay {
        rt: opener.rt.clone(),
        ring: opener.ring.clone(),
        membership: party.membership.clone(),
        terms,
        said: RefCell::default(),
    });
    let mounting = Box::pin(mount_fs(&party, &own, node, &way, options));
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
    node: NodeId,
    way: &Rc<KeeperWay>,
    options: MountOptions,
) -> Result<Fs, Failure> {
    let rt = &party.opener.rt;
    await_keeper(rt, way).await?;
    let disks: Vec<Rc<dyn Disk>> = party.open_disks(own, &Default::default()).await?;
    let deadline = rt.now() + KEEPER_PATIENCE;
    loop {
        let metadata = RemoteMetadata { node, way: way.clone() };
        let error = match Fs::mount_node(rt, &disks, options, metadata).await {
            Ok(fs) => return Ok(fs),
            Err(error) => error,
        };
        use FsError::{Damaged, Invalid, Unmountable};
        let may_pass = matches!(error, Damaged(_) | Invalid(_) | Unmountable(_));
        if !may_pass || rt.now() >= deadline {
            return Err(failed_fs(error));
        }
        // The keeper prepares the node as soon as it hears of it.
        way.say(format!("waiting for the keeper: {error}"));
        rt.sleep(500 * MILLISECOND).await;
    }
}

/// Waits for a keeper that takes this node. What only a change of its command line cures fails at
/// once.
async fn await_keeper(rt: &Rt, way: &KeeperWay) -> Outcome {
    let deadline = rt.now() + KEEPER_PATIENCE;
    loop {
        let failure = match way.address() {
            None => Failure::new("there is no keeper")
                .hint("start one: weft fs keeper; `weft fs status --cluster` shows what there is"),
            Some(address) => match connect(&way.rt, &way.ring, &address, &way.terms).await {
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
