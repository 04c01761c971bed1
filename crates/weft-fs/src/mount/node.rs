//! Mounting as a node whose keeper is elsewhere, beside node 0.
//!
//! Node 0 mounts where the metadata is, and keeps for all nodes what only one may change: labels,
//! the metadata array, the free blocks of the disks, jobs. Any other node reads the labels of the
//! disks and the rows of the metadata, and reads and writes blocks of files on the disks directly.
//! It logs to a ring of its own ([`crate::mount::rings`]).
//!
//! *Who writes what* before anything else: node 0 gives the ring, and writes that the node is
//! mounted, in which epoch, and that its log starts at the start of the ring. From then on the log
//! has to be recovered if the node dies. Its last commit says that it need not.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};
use weft_wire::{Answer, Question};

use crate::disks::log_medium::{LogMedium, Ring};
use crate::disks::member::Member;
use crate::disks::old_block_cache::OldBlockCache;
use crate::disks::pool::Pool;
use crate::disks::reopen::Reopen;
use crate::error::{FsError, Result};
use crate::meta::remote::{RemoteKeeper, unexpected};
use crate::meta::{LEAVING, Meta};
use crate::mount::free_blocks::avoid_bad;
use crate::mount::given_disks::Given;
use crate::mount::joined_disks::{Reached, Ways};
use crate::mount::{RemoteMetadata, find_successors, format_of};
use crate::raid_log::{Log, Medium as _};
use crate::state::mounted::{Fs, FsState, MountOptions};

/// How often it is looked whether the log of the node's last mount was recovered.
const LOOK_EVERY: Nanos = 100 * MILLISECOND;
/// How long a node waits for that.
const WAIT: Nanos = 60 * SECOND;

impl Fs {
    /// As [`Fs::mount_node`], but for the parts of jobs.
    pub(crate) async fn mount_beside(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: MountOptions,
        (RemoteMetadata { node, way }, open): (RemoteMetadata, Option<Reopen>),
    ) -> Result<Self> {
        if node.number == 0 || options.read_only {
            let why = "node 0 has the keeper, and no other node mounts read-only";
            return Err(FsError::Invalid(why.to_owned()));
        }
        let given = Given::look(disks, false).await?;
        let (label, _) = given.found.values().next().expect("there is one");
        let label = label.clone();
        let keeper = RemoteKeeper::open(rt, way, label.fs_id, node).await?;
        let meta = Meta::open_remote(None, label.fs_id, keeper, options.meta_cache_bytes).await?;
        let format = meta.run(format_of).await?;
        let pool = pool_of((rt, open.as_ref()), &meta, &given, &options).await?;
        wait_for_log(rt, &meta).await?;
        meta.forget_recent();
        let (mark, runs) =
            meta.run(|tx| Ok((tx.mark(node.number)?, tx.ring(node.number)?))).await?;
        let medium = LogMedium::Ring(Ring::new(&pool, node.number, &runs)?);
        let log = Log::new(medium.bytes(), (node.number, node.epoch), mark.completed);
        let inner = FsState::new(rt.clone(), label, (meta, pool), (log, medium), &options, open);
        let fs = Self(Rc::new(inner));
        fs.have_only_granted();
        fs.0.set_format(format);
        fs.lose_when_told();
        fs.share();
        fs.revoke_when_asked();
        fs.learn_disks_when_outdated();
        fs.flush_now_and_then();
        fs.tell_of_waiting_disks();
        Ok(fs)
    }

    /// Whether there is a connection to the keeper. Without one a node waits.
    #[must_use]
    pub fn has_keeper(&self) -> bool {
        self.0.meta().link().is_none_or(|link| link.is_connected())
    }
}

impl FsState {
    /// Node `node` has written everything: nothing of its log has to be recovered after its last
    /// commit.
    pub(super) async fn end_node(&self, node: u16) -> Result<()> {
        // If it dies before the end of its log, all of this is found.
        self.return_stock().await?;
        // What follows changes no row that a token is for.
        self.commit().await?;
        self.tokens().end_claims();
        self.meta()
            .run(|tx| {
                tx.end_early_commits(node)?;
                tx.end_node_log(node)
            })
            .await?;
        self.commit_anyway().await?;
        self.meta().leave().await
    }
}

/// The disks.
async fn pool_of(
    (rt, open): (&Rt, Option<&Reopen>),
    meta: &Meta,
    given: &Given,
    options: &MountOptions,
) -> Result<Rc<Pool>> {
    let link = meta.link().ok_or_else(unexpected)?;
    let ways = Ways { rt, link: &link, open };
    let (leaving, rows) = meta.run(|tx| Ok((tx.state(LEAVING)?, tx.disks()?))).await?;
    let mut parts = BTreeMap::new();
    for (number, (label, disk)) in &given.found {
        parts.insert(*number, ways.own(*number, disk, label)?);
    }
    let mut members = Vec::new();
    for (number, mut row) in rows {
        let here = given.found.get(&number).filter(|(label, _)| label.disk_id.0 == row.id);
        match here {
            Some((_, disk)) => row.name.clone_from(&disk.info().name),
            None if row.lost => {}
            None => match ways.reach(number, &row).await? {
                Reached::Disk(part) => drop(parts.insert(number, *part)),
                Reached::Lost(_) | Reached::Other => {
                    return Err(given.is_missing(&format!("disk {number} ({})", row.name)));
                }
            },
        }
        given.check_row(number, &row)?;
        let is_here = here.is_some() || !row.lost;
        let part = parts.remove(&number).filter(|_| is_here);
        let member = Member::new(number, row, part);
        if u64::from(number) + 1 == leaving {
            member.leave();
        }
        members.push(member);
    }
    let pool = Pool::new(members, OldBlockCache::new(options.cache_bytes)?);
    find_successors(meta, &pool).await?;
    avoid_bad(meta, &pool).await?;
    Ok(pool)
}

/// Waits until node 0 has given the node a log, and nothing of its last mount has to be recovered
/// any more.
async fn wait_for_log(rt: &Rt, meta: &Meta) -> Result<()> {
    let until = rt.now() + WAIT;
    loop {
        match meta.ask_keeper(Question::Log).await? {
            Answer::Log(None) => return Ok(()),
            Answer::Log(Some(why)) if rt.now() > until => return Err(FsError::Unmountable(why)),
            Answer::Log(Some(_)) => rt.sleep(LOOK_EVERY).await,
            _ => return Err(FsError::Stopped("the keeper gave another answer".to_owned())),
        }
    }
}
