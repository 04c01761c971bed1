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

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use futures_util::future::{Either, select};
use rustix::mount::MountFlags;
use serde_json::json;
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{announce, announce_answer, log_line};
use weft_cli::thread;
use weft_cluster::channel::handshake::Terms;
use weft_cluster::channel::{Channel, ChannelError, Listener};
use weft_cluster::{ClusterName, DiskName, Keeper, Standing};
use weft_disk::Disk;
use weft_fs::{AccessTimes, Fs, FsError, Label, MountOptions};
use weft_fuse::{control, mount, tree};
use weft_nodes::{MemoryWay, Term};
use weft_rt::reservation::InFlight;
use weft_rt::{Nanos, SECOND};

use super::links::ChannelStream;
use super::{
    Party, Role, cluster_name, joined_disks, lost_disks, mount_guarded, no_channel, node_name,
    pool, shared_key, why_stopped,
};
use crate::cli::FsKeeperArgs;
use crate::commands::fs::{ending, failed as failed_fs, now, require_root};
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
    let signals = ending::Signals::listen(&opener.rt)?;
    let cluster = cluster_name(&args.name)?;
    let key = shared_key(args.cluster.key.as_deref())?;
    let channel = Terms { cluster: cluster.clone(), key };
    let listener = Listener::bind(&opener.rt, &opener.ring, &args.listen, channel);
    let listener = Rc::new(listener.map_err(|error| no_channel(&error))?);
    let address = listener.address().to_string();
    let in_flight = if args.no_abort { InFlight::Leave } else { InFlight::Abort };
    let (address_as_keeper, degraded) = (Some(address.clone()), args.degraded);
    let role = Role { address: address_as_keeper, degraded, in_flight, creates: None };
    let terms = pool::Terms { degraded: false, ..role.terms(args.cluster.at()?, &args.cluster) };
    let party = {
        // With leases on the disks this takes some seconds.
        let starting = Party::start(opener, &args.name, &args.cluster, &args.disks, role);
        match select(Box::pin(starting), Box::pin(signals.wait(1))).await {
            Either::Left((party, _)) => Rc::new(party?),
            Either::Right(_) => return Ok(()),
        }
    };
    let following = joined_disks::follow_record(Rc::downgrade(&party), cluster.clone(), terms);
    drop(opener.rt.spawn(following));
    let way = MemoryWay::new(&opener.rt);
    opener.rt.spawn(accept(listener, &way));
    let node = node_name(&args.cluster)?;
    let ended = {
        let joined = Box::pin(party.joined());
        match select(joined, Box::pin(signals.wait(1))).await {
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
        match select(becomes, Box::pin(signals.wait(1))).await {
            Either::Left((became, _)) => Some(became?),
            Either::Right(_) => None,
        }
    };
    if let Some((keeper, lost)) = became {
        let term = Term {
            rt: opener.rt.clone(),
            membership: party.membership.clone(),
            way: way.clone(),
            keeper,
            say: Rc::new(log_line),
        };
        let signals = &signals;
        let active =
            Active { opener, args, party: &party, term, signals, folder, cluster, terms, json };
        let kept = active.keep(&lost).await;
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
fn accept(listener: Rc<Listener>, way: &Rc<MemoryWay>) -> impl Future<Output = ()> + 'static {
    let way = way.clone();
    let serve = move |channel: Rc<Channel>| way.accept(Rc::new(ChannelStream(channel)));
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
    party: &'a Rc<Party>,
    term: Term,
    signals: &'a ending::Signals,
    folder: Option<PathBuf>,
    cluster: ClusterName,
    /// How it uses disks that join.
    terms: pool::Terms,
    json: bool,
}

impl Active<'_> {
    /// Mounts node 0, and serves nodes until a signal comes or the use of the disks ends.
    async fn keep(mut self, lost: &BTreeSet<DiskName>) -> Outcome {
        let fs = {
            let mounting = Box::pin(self.mount(lost));
            let ended = Box::pin(self.party.end.wait());
            let late = Box::pin(async {
                self.signals.wait(1).await;
                log_line("ending as soon as the mount is complete; a second signal ends at once");
                self.is_late(END_PATIENCE).await
            });
            match select(mounting, select(ended, late)).await {
                Either::Left((fs, _)) => fs?,
                // The caller says why.
                Either::Right((Either::Left(_), _)) => return Ok(()),
                Either::Right((Either::Right((failure, _)), _)) => return Err(failure),
            }
        };
        let Keeper { node, term, .. } = &self.term.keeper;
        let name = &self.args.name;
        match self.json {
            true => announce_answer(&json!({ "keeps": name, "term": term })),
            false => announce(&format!("{} keeps '{name}' in term {term}", node.node)),
        }
        let party = self.party.clone();
        self.term.cut_paths(&fs, move |place| {
            let disks = party.disks.borrow();
            disks.iter().find(|disk| disk.place() == place).map(|disk| disk.fence())
        });
        let attendance = self.term.serve_nodes(&fs).await.map_err(failed_fs)?;
        let before = self.party.membership.outlook().view.record;
        self.party.lost.learn(before.map(|record| record.away).unwrap_or_default());
        let notes = joined_disks::keep_notes(self.party.clone(), fs.clone());
        drop(self.opener.rt.spawn(notes));
        let as_keeper = (self.cluster.clone(), self.term.keeper.node.clone());
        let (party, terms) = (self.party.clone(), self.terms);
        let taking_back = lost_disks::take_back(party, fs.clone(), as_keeper, terms);
        drop(self.opener.rt.spawn(taking_back));
        if let Some(leases) = self.party.leases.clone() {
            let (party, name) = (self.party.clone(), self.args.name.clone());
            self.opener.rt.spawn(async move {
                leases.keep_voters(&name, || party.disks.borrow().clone()).await;
            });
        }
        let folder = self.folder.take();
        let served = match &folder {
            // A signal may have come during the mount.
            Some(folder) if self.signals.heard() == 0 => self.serve_folder(&fs, folder).await,
            _ => {
                self.keep_jobs(&fs);
                let told = Box::pin(self.signals.wait(1));
                let ends = select(told, Box::pin(self.party.end.wait()));
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
        let late = Box::pin(self.is_late(END_PATIENCE));
        let ended = select(Box::pin(self.party.end.wait()), late);
        match select(Box::pin(self.term.end(&fs, &attendance)), ended).await {
            Either::Left((unmounted, _)) => unmounted.map_err(failed_fs),
            Either::Right((Either::Left(_), _)) => Ok(()),
            Either::Right((Either::Right((failure, _)), _)) => Err(failure),
        }
    }

    /// Waits until an end in order has taken too long, or a second signal comes. The keeper does
    /// not leave the cluster then: it is fenced, as a request may be on its way to a disk.
    async fn is_late(&self, patience: Nanos) -> Failure {
        let late = Box::pin(self.opener.rt.sleep(patience));
        drop(select(late, Box::pin(self.signals.wait(2))).await);
        Failure::new("it could not end in order, and has ended at once")
            .hint("nothing that was synced is lost: the next keeper recovers it")
    }

    /// Waits until the file system has failed; another keeper may do better.
    async fn stopped(&self, fs: &Fs) -> Failure {
        match why_stopped(&self.opener.rt, fs).await {
            Some(why) => Failure::new(format!("the file system has stopped: {why}"))
                .hint("another keeper takes over; start this one again"),
            // Who unmounts it waits for that.
            None => std::future::pending().await,
        }
    }

    /// Node 0, whose keeper is in this process.
    async fn mount(&self, lost: &BTreeSet<DiskName>) -> Result<Fs, Failure> {
        let lost = self.term.not_regained(lost).await;
        let (own, degraded) = (&self.term.keeper.node, self.args.degraded);
        let disks = self.party.open_disks(own, &lost, degraded).await?;
        self.party.note_left_out(&disks);
        let disks = self.joined_of(disks).await;
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
        if disks.is_empty() {
            return Err(Failure::new("no disk can be used").hint("start the servers of the disks"));
        }
        let mounted = self.term.mount(&disks, options).await;
        mounted.map_err(|error| match error {
            FsError::Unmountable(why) => Failure::new(why)
                .hint("name all disks of the file system; --degraded goes on without missing ones"),
            error => failed_fs(error),
        })
    }

    /// Without a folder, which has commands and does the same: jobs start automatically, and the
    /// log has what happens to disks.
    fn keep_jobs(&self, fs: &Fs) {
        let name = self.args.name.clone();
        fs.on_lost_disk(move |number, disk, why| {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            log_line(&format!(
                "ALERT: file system '{name}': disk {number} ({disk}) is lost and not used any more{why}"
            ));
        });
        let name = self.args.name.clone();
        fs.keep(move |job, ended| {
            let ended = ended.map_or_else(|error| error.to_string(), |_| "done".to_owned());
            log_line(&format!("file system '{name}': {}: {ended}", job.name()));
        });
    }

    /// Without those that were about to join when the keeper before this one died. They are the
    /// file system's only once they have its label.
    async fn joined_of(&self, disks: Vec<Rc<dyn Disk>>) -> Vec<Rc<dyn Disk>> {
        let mut joined = Vec::new();
        for disk in disks {
            let name = &disk.info().name;
            let label = Label::read(&*disk).await;
            if !self.args.disks.contains(name)
                && label.is_ok_and(|label| label.is_none_or(|of| of.name != self.args.name))
            {
                log_line(&format!("left out: {name} has not joined the file system"));
                continue;
            }
            joined.push(disk);
        }
        joined
    }

    /// Serves node 0 on a folder as well, until it is unmounted.
    async fn serve_folder(&self, fs: &Fs, folder: &std::path::Path) -> Outcome {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let channel = mount_guarded(folder, &self.args.name, flags, false)?;
        prepare_for_reclaim();
        announce(&format!("'{}' is mounted on {}", self.args.name, folder.display()));
        let open = self.opens_as();
        let (rt, ring) = (self.opener.rt.clone(), self.opener.ring.clone());
        let serving = tree::serve(rt, ring, OwnedFd::from(channel), fs.clone(), open, None);
        let mut serving = Box::pin(serving);
        let ended = select(Box::pin(self.party.end.wait()), Box::pin(self.stopped(fs)));
        let told = Box::pin(select(Box::pin(self.signals.wait(1)), ended));
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
                let (at, patience) = (folder.to_owned(), self.args.stop_timeout);
                let heard = self.signals.counter();
                let drain = thread::elsewhere(move || ending::drain(&at, patience, &heard));
                // What the kernel writes back may wait for nodes, or for disks.
                let bound = Nanos::try_from(patience.as_nanos()).unwrap_or(Nanos::MAX);
                let late = Box::pin(self.is_late(bound.saturating_add(END_PATIENCE)));
                let ended = Box::pin(self.party.end.wait());
                let drained = futures_util::future::join(serving, drain);
                match select(Box::pin(drained), select(ended, late)).await {
                    Either::Left(((served, drained), _)) => {
                        drained?;
                        served
                    }
                    Either::Right((ended, _)) => {
                        ending::cut(&self.opener.rt, folder).await;
                        return match ended {
                            Either::Left(_) => Ok(()),
                            Either::Right((failure, _)) => Err(failure),
                        };
                    }
                }
            }
        };
        served.map_err(|e| Failure::new(format!("/dev/fuse: {e}")))
    }

    /// Opens disks that are added.
    fn opens_as(&self) -> control::OpenDisk {
        let (own, cluster) = (self.term.keeper.node.clone(), self.cluster.clone());
        let (party, terms) = (self.party.clone(), self.terms);
        Rc::new(move |place| {
            let (party, own, cluster) = (party.clone(), own.clone(), cluster.clone());
            Box::pin(async move { party.add_disk((&cluster, &own), &place, terms).await })
        })
    }
}

/// How long a keeper takes to end in order at most.
const END_PATIENCE: Nanos = 60 * SECOND;

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
