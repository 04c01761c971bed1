//! Creating a file system, and mounting it.
//!
//! *Create*: check everything; erase old labels; make the metadata array on slices of all disks;
//! put an empty tree into it; write the labels, last. A disk belongs to the file system only once
//! it has its label.
//!
//! *Mount*: read the labels; assemble the metadata array; open the database; find the free blocks
//! in one pass over the records; replay the RAID log; delete files without names; commit with a new
//! epoch.

pub(crate) mod claim;
mod early_recovery;
pub(crate) mod free_blocks;
pub(crate) mod given_disks;
mod joined_disks;
mod learned_disks;
pub(crate) mod node;
pub(crate) mod recovery;
pub(crate) mod rings;
pub(crate) mod sizing;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_array::superblock::read_superblock;
use weft_array::{Array, AssembleOptions, Id};
use weft_disk::{CopyOnWriteDisk, Disk, IoFuture, QueueConfig, QueuedDisk, Ranges, SliceDisk};
use weft_rt::{Rt, SECOND};
use weft_token::NodeId;

use crate::disks::log_medium::LogMedium;
use crate::disks::member::{Member, PresentDisk, slice_of};
use crate::disks::old_block_cache::OldBlockCache;
use crate::disks::pool::Pool;
use crate::disks::reopen::{PathDisk, Reopen};
use crate::disks::successor::{put_joined, successor_in};
use crate::error::{FsError, Result};
use crate::format::inode::Time;
use crate::format::label::{Label, NAME_BYTES_MAX};
use crate::format::redundancy::Redundancy;
use crate::format::use_number;
use crate::meta::remote::RemoteKeeper;
use crate::meta::stream::Connector;
use crate::meta::{DiskRow, FORMAT, FORMAT_WITH_RINGS, LEAVING, Meta, Tx, array_options};
use crate::mount::free_blocks::{avoid_bad, claim_space, give_pieces_back};
use crate::mount::given_disks::Given;
use crate::mount::recovery::{recover, recover_log};
use crate::mount::sizing::plan_room;
use crate::raid_log::{Log, Medium as _, scan};
use crate::state::early_desk::LoggedBlock;
use crate::state::metadata_copies;
use crate::state::mounted::{Fs, FsState, MountOptions};

/// The number of the disk that is joining, plus one; in the state.
pub(crate) const JOINING: &str = "joining disk";
/// Bytes of long requests that are with a rotating disk at most when metadata may come: a few
/// hundredths of a second of its work.
const LONG_BYTES: u64 = 2 << 20;
/// Requests of jobs that are with a disk which users have just used. One is enough to keep the disk
/// busy, as the next one is at hand.
const JOB_REQUESTS_BESIDE_USERS: usize = 1;
/// The most disks.
pub(crate) const DISKS_MAX: usize = 64;
/// Default bytes of memory for metadata.
pub const META_CACHE_BYTES: u64 = 64 << 20;
/// How long a write may stay only in memory.
const FLUSH_EVERY_S: u64 = 5;
/// The most memory for what a read-only mount would write: recovery from a crash, above all.
const READ_ONLY_BYTES_MAX: u64 = 1 << 30;

/// Parameters of a new file system.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Its name; at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Redundancy of files, where nothing else is chosen.
    pub redundancy: Redundancy,
    /// Bytes of the metadata slice of each disk, if not the default.
    pub slice_bytes: Option<u64>,
    /// Whether to overwrite the disks' contents.
    pub force: bool,
    /// Identity of the file system: 16 random bytes.
    pub id: [u8; 16],
    /// The time now.
    pub now: Time,
}

/// Metadata with a keeper that is reached by messages.
#[derive(Clone)]
pub struct RemoteMetadata {
    /// This node. A later mount of the same node has a higher epoch.
    pub node: NodeId,
    /// The way to the keeper.
    pub way: Rc<dyn Connector>,
}

impl std::fmt::Debug for RemoteMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteMetadata").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Gives the keeper for the metadata on an array.
type FindKeeper = Rc<dyn Fn(Array) -> IoFuture<'static, Result<RemoteMetadata>>>;

/// A disk's queue, and its data after it.
pub(crate) struct DiskParts {
    pub(crate) queue: Rc<QueuedDisk>,
    pub(crate) data: Rc<SliceDisk>,
}

/// A disk that belongs to a mounted file system. With `reopen` it is opened
/// again if the way to it fails.
pub(crate) fn present(
    disk: &Rc<dyn Disk>,
    label: &Label,
    reopen: Option<&Reopen>,
) -> Result<PresentDisk> {
    let path = reopen.map(|reopen| PathDisk::new(disk.clone(), label.clone(), reopen.clone()));
    present_by(disk, label, path.map(Rc::new), Rc::default())
}

/// A disk that belongs to a mounted file system, with a path to it that may be opened again, and
/// whether that leads through the keeper.
fn present_by(
    disk: &Rc<dyn Disk>,
    label: &Label,
    path: Option<Rc<PathDisk>>,
    is_relayed: Rc<Cell<bool>>,
) -> Result<PresentDisk> {
    let whole: Rc<dyn Disk> = match &path {
        Some(path) => path.clone(),
        None => disk.clone(),
    };
    let DiskParts { queue, data } = part(&whole, label)?;
    let metadata = Rc::new(Ranges::new(label.slice_ranges()));
    let (label, is_label_due) = (RefCell::new(label.clone()), Cell::new(false));
    let slice = data.clone();
    Ok(PresentDisk { label, whole, path, queue, data, slice, metadata, is_label_due, is_relayed })
}

pub(crate) fn part(disk: &Rc<dyn Disk>, label: &Label) -> Result<DiskParts> {
    let config = QueueConfig {
        long_bytes: LONG_BYTES,
        maintenance_beside_users: JOB_REQUESTS_BESIDE_USERS,
        ..QueueConfig::default()
    };
    let queue = Rc::new(QueuedDisk::new(disk.clone(), config));
    let data = Rc::new(SliceDisk::new(&queue, label.data(), &disk.info().name)?);
    Ok(DiskParts { queue, data })
}

/// Makes a file system of these disks.
///
/// # Errors
/// If the disks or the options do not fit (nothing is changed then), or a disk fails.
pub async fn create(rt: &Rt, disks: &[Rc<dyn Disk>], options: &CreateOptions) -> Result<()> {
    let labels = plan(disks, options)?;
    if !options.force {
        for disk in disks {
            check_unused(disk).await?;
        }
    }
    for disk in disks {
        Label::erase(&**disk).await?;
    }
    let parts = disks.iter().zip(&labels).map(|(disk, label)| part(disk, label));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let slice = |(part, label): (&DiskParts, &Label)| {
        let ranges = Rc::new(Ranges::new(label.slice_ranges()));
        slice_of(&part.queue, &ranges, label.number)
    };
    let slices = parts.iter().zip(&labels).map(slice);
    let slices: Vec<Rc<dyn Disk>> = slices.collect::<Result<_>>()?;
    let now_unix_s = u64::try_from(options.now.s).unwrap_or(0);
    let array = array_options(&options.name, disks.len(), Id(options.id), now_unix_s);
    let made = weft_array::create(&slices, &array).await;
    made.map_err(|error| FsError::Invalid(error.to_string()))?;
    let nonce = u64::from_le_bytes(options.id[..8].try_into().expect("eight bytes"));
    let array = Array::assemble(rt, slices, AssembleOptions { nonce, ..Default::default() });
    let array = array.await?;
    let meta = Meta::create(array.clone(), Id(options.id), META_CACHE_BYTES).await?;
    let rows = disks.iter().zip(&labels).map(|(disk, label)| (label.number, row(label, disk)));
    let rows: Vec<_> = rows.collect();
    meta.commit(|tx| {
        tx.set_state("format", FORMAT)?;
        for (number, row) in &rows {
            tx.put_disk(*number, row)?;
        }
        FsState::make_root(tx, options.redundancy, options.now)
    })
    .await?;
    meta.checkpoint().await?;
    array.stop().await?;
    for (disk, label) in disks.iter().zip(&labels) {
        label.write(&**disk).await?;
    }
    Ok(())
}

fn plan(disks: &[Rc<dyn Disk>], options: &CreateOptions) -> Result<Vec<Label>> {
    let invalid = |why: &str| Err(FsError::Invalid(why.to_owned()));
    if disks.len() < 2 || disks.len() > DISKS_MAX {
        return Err(FsError::Invalid(format!(
            "a file system has 2 to {DISKS_MAX} disks, and not {}",
            disks.len()
        )));
    }
    if options.name.is_empty() || options.name.len() > NAME_BYTES_MAX {
        return invalid("a name has 1 to 64 bytes");
    }
    let names: BTreeSet<&str> = disks.iter().map(|disk| &*disk.info().name).collect();
    if names.len() < disks.len() {
        return invalid("a disk was given twice");
    }
    if options.redundancy.coded(disks.len()).is_none() {
        return Err(FsError::Invalid(format!(
            "{} needs more disks than these {}",
            options.redundancy,
            disks.len()
        )));
    }
    let sizes: Vec<u64> = disks.iter().map(|disk| disk.info().size_bytes).collect();
    let slice = plan_room(&sizes, options.redundancy, options.slice_bytes).slice_bytes;
    let label = |(number, disk): (usize, &Rc<dyn Disk>)| {
        let number = u16::try_from(number).expect("few disks");
        Label::plan(Id(options.id), &options.name, number, disk.info().size_bytes, slice)
            .map_err(|error| FsError::Invalid(format!("{}: {error}", disk.info().name)))
    };
    disks.iter().enumerate().map(label).collect()
}

/// Fails if a disk holds something that would be lost.
pub(crate) async fn check_unused(disk: &Rc<dyn Disk>) -> Result<()> {
    let name = &disk.info().name;
    if let Ok(Some(label)) = Label::read(&**disk).await {
        return Err(FsError::Invalid(format!(
            "{name} is a disk of the file system '{}'",
            label.name
        )));
    }
    match weft_array::contents(&**disk).await? {
        Some(what) => Err(FsError::Invalid(format!("{name} holds {what}"))),
        None => Ok(()),
    }
}

pub(crate) fn row(label: &Label, disk: &Rc<dyn Disk>) -> DiskRow {
    DiskRow {
        id: label.disk_id.0,
        blocks: label.blocks,
        lost: false,
        name: disk.info().name.clone(),
    }
}

/// The same disks, unchanged: writes stay in memory.
fn kept_in_memory(disks: &[Rc<dyn Disk>]) -> Vec<Rc<dyn Disk>> {
    let room = Rc::new(Cell::new(READ_ONLY_BYTES_MAX));
    let disk =
        |disk: &Rc<dyn Disk>| Rc::new(CopyOnWriteDisk::new(disk.clone(), &room)) as Rc<dyn Disk>;
    disks.iter().map(disk).collect()
}

impl Fs {
    /// Mounts the file system on these disks, given in any order. Recovers from a crash first.
    ///
    /// # Errors
    /// If the disks are not of one file system, or not enough of it.
    pub async fn mount(rt: &Rt, disks: &[Rc<dyn Disk>], options: MountOptions) -> Result<Self> {
        Self::mount_reopening(rt, disks, options, None).await
    }

    /// Mounts; with `reopen`, disks are opened again if the path to them fails.
    ///
    /// # Errors
    /// As [`Fs::mount`].
    pub async fn mount_reopening(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: MountOptions,
        reopen: Option<Reopen>,
    ) -> Result<Self> {
        Self::mount_by(rt, disks, options, (reopen, None)).await
    }

    /// Mounts with a keeper of the metadata that is reached by messages. `keeper` starts or finds
    /// it, and gets the array that has the metadata. The node uses this array for its log, so node
    /// and keeper share it, in one process (`docs/cluster.md`). The metadata grows, and status and
    /// scrub know of its pages, from [`Fs::serve_nodes`] on.
    ///
    /// # Errors
    /// As [`Fs::mount`], or if the keeper refuses the node.
    pub async fn mount_with_keeper<F: Future<Output = Result<RemoteMetadata>> + 'static>(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: MountOptions,
        keeper: impl Fn(Array) -> F + 'static,
    ) -> Result<Self> {
        let keeper: FindKeeper = Rc::new(move |array| Box::pin(keeper(array)));
        Self::mount_by(rt, disks, options, (None, Some(keeper))).await
    }

    async fn mount_by(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: MountOptions,
        (reopen, keeper): (Option<Reopen>, Option<FindKeeper>),
    ) -> Result<Self> {
        let (copies, reopen) = match options.read_only {
            // One that is opened again would not have the writes in memory.
            true => (Some(kept_in_memory(disks)), None),
            false => (None, reopen),
        };
        let disks = copies.as_deref().unwrap_or(disks);
        let by = (reopen, keeper);
        let Some(host) = options.host else {
            return Self::mount_again(rt, disks, &options, by).await;
        };
        let given = Given::look(disks, options.some_will_do()).await?;
        let (fs_id, _) = given_parts(&given, &options, None).await?;
        // One that can be read only later is not claimed, and stays out.
        let disks: Vec<_> = given.found.values().map(|(_, disk)| disk.clone()).collect();
        let owner = (fs_id, host, options.nonce);
        claim::claim(rt, &disks, owner).await?;
        let done = Cell::new(false);
        let claimed = pin!(claim::keep_claimed(rt, &disks, owner, &done));
        let mounting = pin!(Self::mount_again(rt, &disks, &options, by));
        match select(mounting, claimed).await {
            Either::Left((mounted, claimed)) => {
                // A mark that is being written must not come after the next ones.
                done.set(true);
                claimed.await.and(mounted)
            }
            Either::Right((claimed, mounting)) => {
                claimed?;
                mounting.await
            }
        }
    }

    /// Mounts disks that no other host has, again if their labels were wrong.
    async fn mount_again(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: &MountOptions,
        (reopen, keeper): (Option<Reopen>, Option<FindKeeper>),
    ) -> Result<Self> {
        loop {
            let by = (reopen.clone(), keeper.clone());
            if let Some(fs) = Self::mount_claimed(rt, disks, options, by).await? {
                return Ok(fs);
            }
        }
    }

    /// Mounts disks that no other host has. Until it was claimed, another host may have had them,
    /// so what is known of them is read only now. `None` if labels were wrong, and must be read
    /// again.
    async fn mount_claimed(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: &MountOptions,
        (reopen, keeper): (Option<Reopen>, Option<FindKeeper>),
    ) -> Result<Option<Self>> {
        let some_will_do = options.some_will_do();
        let given = Given::look(disks, some_will_do).await?;
        let (_, Parts { mut parts, slices }) =
            given_parts(&given, options, reopen.as_ref()).await?;
        let found = &given.found;
        let (label, _) = found.values().next().expect("there is one");
        let label = label.clone();
        for (label, disk) in found.values() {
            // Before any of its blocks is given to others.
            label.settle(&**disk).await;
        }
        let array = metadata_copies::assemble(rt, slices, options).await?;
        // After a crash it makes copies alike, the first of them being right. What has a checksum
        // of its own is looked for on all of them before.
        array.set_paused(true);
        // Without a keeper for several nodes the disks have no other user.
        let is_alone = keeper.is_none();
        let meta = match keeper {
            None => Meta::open(array, label.fs_id, options.meta_cache_bytes).await?,
            Some(keeper) => {
                let RemoteMetadata { node, way } = keeper(array.clone()).await?;
                let keeper = RemoteKeeper::open(rt, way, label.fs_id, node).await?;
                let (array, cache) = (Some(array), options.meta_cache_bytes);
                Meta::open_remote(array, label.fs_id, keeper, cache).await?
            }
        };
        let (leaving, epoch, mark, format) = meta
            .run(|tx| {
                let format = format_of(tx)?;
                Ok((tx.state(LEAVING)?, tx.state("epoch")?, tx.mark(0)?, format))
            })
            .await?;
        complete_join(&meta, found).await?;
        let rows = meta.run(|tx| tx.disks()).await?;
        let (mut members, mut last_use) = (Vec::new(), epoch);
        for (number, mut row) in rows {
            let here = found.get(&number).filter(|(label, _)| label.disk_id.0 == row.id);
            if here.is_none() && !row.lost && !some_will_do {
                return Err(given.is_missing(&format!("disk {number} ({})", row.name)));
            }
            given.check_row(number, &row)?;
            let mut is_set_back = false;
            if let Some((label, disk)) = here {
                row.name.clone_from(&disk.info().name);
                let wanted = meta.run(|tx| tx.state(&use_number::state_name(number))).await?;
                let found = use_number::read(&**disk, label).await;
                is_set_back = !row.lost && found.is_some_and(|found| found < wanted);
                last_use = last_use.max(found.map_or(0, use_number::epoch_of));
            }
            if is_set_back && !(options.degraded || options.stale) {
                return Err(FsError::Unmountable(format!(
                    "disk {number} ({}) lacks what was written last: it is an image of the disk that was \
                     taken before, or was set back. Give the disk as it was, or mount as degraded: then \
                     it counts as lost",
                    row.name
                )));
            }
            let present = here.and_then(|_| parts.remove(&number));
            let member = Member::new(number, row, present);
            if u64::from(number) + 1 == leaving {
                member.leave();
            }
            if is_set_back {
                member.lose();
            }
            members.push(member);
        }
        if last_use > epoch && options.degraded && !options.stale {
            return Err(FsError::Unmountable(format!(
                "the copies of its metadata that are here missed {} of its mounts, in which other disks \
                 that are here were used. Give more disks; or mount as stale: then files are as they \
                 were before",
                last_use - epoch
            )));
        }
        let pool = Pool::new(members, OldBlockCache::new(options.cache_bytes)?);
        find_successors(&meta, &pool).await?;
        let wrong_pieces = claim_space(&meta, &pool, options.stale).await?;
        if !wrong_pieces.is_empty() {
            give_pieces_back(&meta, &pool, &wrong_pieces).await?;
            meta.array()?.stop().await?;
            return Ok(None);
        }
        avoid_bad(&meta, &pool).await?;
        let medium = LogMedium::Array(meta.array()?.clone(), meta.log_area());
        let (records, last_id) = scan(&medium, (0, epoch), mark).await?;
        // Copies that are filled again would fill the memory that a read-only mount writes to.
        meta.array()?.set_paused(options.read_only);
        let nodes = meta.run(|tx| tx.node_logs()).await?;
        let live = nodes.into_iter().filter(|(_, log)| log.is_live);
        let live = live.map(|(number, log)| NodeId { number, epoch: log.epoch });
        let live: Vec<NodeId> = live.collect();
        let are_others_there = !is_alone && !live.is_empty();
        // They may have blocks that no record names, and files open that have no name.
        pool.set_still(are_others_there);
        recover(&meta, &pool, &records).await?;
        for node in live.iter().filter(|_| is_alone) {
            // What it had committed early was in the memory of a keeper.
            recover_log(&meta, &pool, node.number, |_, _: &[LoggedBlock]| true).await?;
        }
        // Also after the numbers of mounts that stale copies have missed.
        let epoch = last_use + 1;
        meta.run(|tx| tx.set_state("epoch", epoch)).await?;
        let log = Log::new(medium.bytes(), (0, epoch), last_id);
        let inner = FsState::new(rt.clone(), label, (meta, pool), (log, medium), options, reopen);
        let fs = Self(Rc::new(inner));
        fs.0.set_format(format);
        if are_others_there {
            // Those that are dead hold tokens and blocks until they are recovered.
            fs.0.tokens().expect(&live);
            fs.0.space_desk().expect(&live);
        }
        if options.read_only {
            return Ok(Some(fs));
        }
        let orphans = match are_others_there {
            true => Vec::new(),
            false => fs.0.meta().run(|tx| tx.orphans()).await?,
        };
        for ino in orphans {
            fs.0.purge(ino).await?;
        }
        // A disk with the number of this mount tells that metadata without its epoch is an old
        // copy.
        fs.0.commit().await?;
        fs.0.note_use(false).await?;
        fs.0.commit().await?;
        fs.revoke_when_asked();
        fs.purge_after_nodes();
        fs.flush_now_and_then();
        fs.watch_copies();
        fs.keep_marked();
        Ok(Some(fs))
    }

    /// Writes what has been in memory for some seconds.
    fn flush_now_and_then(&self) {
        let (fs, rt) = (Rc::downgrade(&self.0), self.0.rt().clone());
        self.0.rt().spawn(async move {
            loop {
                rt.sleep(FLUSH_EVERY_S * SECOND).await;
                let Some(fs) = fs.upgrade().filter(|fs| !fs.is_stopped()) else { return };
                // fsync reports failures.
                let _ = fs.sync().await;
                fs.return_excess().await;
                let _ = fs.meta().checkpoint_if_due().await;
                let _ = match fs.meta().number() {
                    0 => fs.free_left_rings().await,
                    _ => fs.take_next_ring().await,
                };
            }
        });
    }

    /// Ends what runs in the background and an unmount waits for; nothing of it begins any more.
    /// It may wait for tokens of other nodes: node 0 serves them until this has returned, and is
    /// unmounted then.
    pub async fn end_background(&self) {
        self.0.stop();
        // What it does for node 0 ends first.
        drop(self.0.work_desk().working.acquire(1).await);
        // The batch of a job that is under way ends, and no other begins.
        self.0.promised().after_batch().await;
        drop(self.0.metadata_growth().turn().await);
    }

    /// Writes everything and ends. Later requests fail.
    ///
    /// # Errors
    /// If blocks cannot be written, or the metadata has failed. [`FsError::LostWrites`] if it has
    /// ended in order, but blocks that were written since the last [`Fs::sync`] are nowhere.
    pub async fn unmount(&self) -> Result<()> {
        self.0.begin_unmount()?;
        if self.0.is_read_only() {
            return Ok(());
        }
        self.end_background().await;
        drop(self.0.unwritten().drained().await);
        let mut ended = self.0.sync().await;
        let lacks_room = matches!(ended, Err(FsError::NoSpace));
        if lacks_room {
            self.0.give_up_what_has_no_room().await;
        }
        let lost = self.0.lost_writes().await;
        // The error was that of the blocks that are lost, also of files that have no name any more.
        if lacks_room || lost.is_some() {
            ended = self.0.sync().await;
        }
        if ended.is_ok() {
            ended = match self.0.meta().number() {
                0 => self.0.end_use().await,
                node => self.0.end_node(node).await,
            };
        }
        if let Ok(array) = self.0.meta().array() {
            ended = ended.and(array.stop().await.map_err(FsError::from));
        }
        self.0.end_mark().await;
        ended?;
        let (lost_later, _) = self.0.take_losses();
        lost.or(lost_later).map_or(Ok(()), Err)
    }
}

impl FsState {
    /// All is written: the last commit, and what else the next mount goes by.
    async fn end_use(&self) -> Result<()> {
        // The next keeper may not fence this one.
        self.path_desk().close().await;
        self.note_use(true).await?;
        self.meta().end();
        self.commit_anyway().await?;
        self.meta().checkpoint().await
    }
}

/// The format of the metadata.
///
/// # Errors
/// If it is none that this program knows.
fn format_of(tx: &Tx<'_>) -> Result<u64> {
    let format = tx.state("format")?;
    match (FORMAT..=FORMAT_WITH_RINGS).contains(&format) {
        true => Ok(format),
        false => Err(FsError::Unmountable(format!(
            "its metadata has format {format}, and this program knows {FORMAT} to {FORMAT_WITH_RINGS}"
        ))),
    }
}

/// Takes in a disk that was joining when the file system stopped, if it is there with its label.
/// That may be in its cache only, if just the program was killed, so it is written again.
async fn complete_join(meta: &Meta, found: &BTreeMap<u16, (Label, Rc<dyn Disk>)>) -> Result<()> {
    let joining = meta.run(|tx| tx.state(JOINING)).await?.checked_sub(1);
    let number = joining.and_then(|number| u16::try_from(number).ok());
    let Some((label, disk)) = number.and_then(|number| found.get(&number)) else { return Ok(()) };
    if label.write(&**disk).await.is_err() {
        // It fails, and nothing is on it: it is out.
        return Ok(());
    }
    meta.run(|tx| end_join(tx, label, &row(label, disk))).await
}

/// The label of a disk is written: it is one of the file system from the next commit on.
pub(crate) fn end_join(tx: &Tx<'_>, label: &Label, row: &DiskRow) -> Result<()> {
    tx.set_state(JOINING, 0)?;
    put_joined(tx, label, row)
}

/// Finds the numbers that lost disks have since they came back.
async fn find_successors(meta: &Meta, pool: &Pool) -> Result<()> {
    let lost: Vec<u16> = pool.members().iter().map(|member| member.number).collect();
    let found = meta.run(|tx| {
        let found = lost.iter().map(|number| Ok((*number, successor_in(tx, *number)?)));
        found.collect::<Result<Vec<_>>>()
    });
    for (number, successor) in found.await? {
        // One that has not joined is none.
        if let Some(successor) = successor.filter(|by| pool.member(*by).is_some()) {
            pool.succeed(number, successor);
        }
    }
    Ok(())
}

/// What was given of a file system.
struct Parts {
    parts: BTreeMap<u16, PresentDisk>,
    /// Slices that have something of the metadata.
    slices: Vec<Rc<dyn Disk>>,
}

/// The file system whose disks were given, and their parts. Fails if the disks are too few, and
/// writes nothing.
async fn given_parts(
    given: &Given,
    options: &MountOptions,
    reopen: Option<&Reopen>,
) -> Result<(Id, Parts)> {
    let (mut parts, mut slices) = (BTreeMap::new(), Vec::new());
    for (number, (label, disk)) in &given.found {
        let part = present(disk, label, reopen)?;
        // A disk that was taken out of service released its slice.
        let slice = part.slice()?;
        if !matches!(read_superblock(&*slice).await, Ok(None)) {
            slices.push(slice);
        }
        parts.insert(*number, part);
    }
    if !options.some_will_do() {
        given.check_copies(&slices).await?;
    }
    let (label, _) = given.found.values().next().expect("there is one");
    Ok((label.fs_id, Parts { parts, slices }))
}
