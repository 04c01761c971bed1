//! A mounted file system: its parts.
//!
//! *Locks.* A file's lock is taken shared to read it and exclusively to write or flush it: it is
//! the data token of this node. While it is held only to flush the file, blocks may be written to
//! the cache that need nothing from the disks. Jobs take it only to put copies in their places
//! ([`crate::jobs::migration`]). Several files are locked in the order of their numbers. Then comes
//! the lock of flushes, which only streams of new lines share; then that of commits. An operation
//! on names takes none: it is one closure in the transaction. The metadata's own locks come last.

mod commits;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Nanos, Rt, SECOND};

use crate::disks::granted_space::Stock;
use crate::disks::log_medium::LogMedium;
use crate::disks::pool::Pool;
use crate::disks::reopen::Reopen;
use crate::error::{FsError, Result};
use crate::format::block::BLOCK_BYTES;
use crate::format::extent::{Extent, Run};
use crate::format::inode::{Ino, Inode, Kind, Time};
use crate::format::label::Label;
use crate::format::mount_mark::Host;
use crate::format::use_number;
use crate::meta::desk::DeskClient;
use crate::meta::{FORMAT, Meta, RingRun, Tx};
use crate::raid_log::Log;
use crate::state::early_commits::EarlyCommits;
use crate::state::early_desk::EarlyDesk;
use crate::state::hot_parts::HotParts;
use crate::state::job::JobState;
use crate::state::job_pace::JobPace;
use crate::state::lock_table::LockTable;
use crate::state::metadata_growth::MetadataGrowth;
use crate::state::open_files::{Loss, OpenFiles};
use crate::state::path_desk::PathDesk;
use crate::state::promised_room::Promised;
use crate::state::space_desk::SpaceDesk;
use crate::state::unwritten::Unwritten;
use crate::state::work_desk::WorkDesk;
use crate::tokens::local_node::Tokens;
use crate::tokens::sharing::Sharing;

/// Which reads of files and folders change the time of the last access. Those that the kernel
/// answers from its memory are never seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// The first since the last change, and the first of a day (Linux's `relatime`).
    #[default]
    Relative,
    /// All.
    Strict,
    /// None.
    None,
    /// The same as relative, but for folders none.
    NotOfFolders,
}

/// How to mount a file system.
#[derive(Debug, Clone, Copy)]
pub struct MountOptions {
    /// Mount although disks are missing: they are lost from then on.
    pub degraded: bool,
    /// As `degraded`, and mount copies of the metadata that may be stale: missing copies may have
    /// been used without them.
    pub stale: bool,
    /// Write nothing to the disks. What a crash has left to be done is done in memory.
    pub read_only: bool,
    /// Which reads are noted.
    pub access_times: AccessTimes,
    /// Bytes of memory for contents: at most half of them wait to be written, and the rest were
    /// read or written lately.
    pub cache_bytes: u64,
    /// Bytes of memory for metadata. There are always some pages.
    pub meta_cache_bytes: u64,
    /// A random number, new for each mount.
    pub nonce: u64,
    /// This host, if other hosts can reach the disks: then only one host can have them mounted, and
    /// a mount takes some seconds longer.
    pub host: Option<Host>,
    /// The time now.
    pub now: Time,
    /// Reads the clock; without it, time goes on from `now` as the executor's does.
    pub clock: Option<fn() -> Time>,
}

impl MountOptions {
    /// Whether disks may be missing.
    pub(crate) fn some_will_do(&self) -> bool {
        self.degraded || self.stale
    }
}

/// Streams of new lines at the same time.
const STREAMS: usize = 1 << 16;
/// Files that lost blocks of which the end of a mount tells.
const LOST_FILES_MAX: usize = 1 << 16;
/// Steps after which an operation on very many rows commits.
const STEPS_TO_COMMIT: u64 = 16;

/// Hears of a file with blocks that were written and are nowhere.
type TellLost = Box<dyn Fn(Ino)>;

/// Hears how many bytes a rebuild has too little room for.
type TellLack = Box<dyn Fn(u64)>;

/// The state of a mounted file system. Its parts are private: each has a method that lends it, and
/// state of the whole has methods that say what happens to it.
pub(crate) struct FsState {
    rt: Rt,
    label: Label,
    meta: Meta,
    pool: Rc<Pool>,
    log: Log,
    /// Where the log lies.
    log_medium: RefCell<Rc<LogMedium>>,
    tokens: Rc<Tokens>,
    sharing: Sharing,
    locks: LockTable,
    /// Opens disks again; of a node that is not node 0, disks that join.
    reopen: Option<Reopen>,
    open_files: OpenFiles,
    /// Held while blocks are written: shared by streams of new lines
    /// ([`crate::write::new_line_stream`]), exclusively by all else.
    flushing: Semaphore,
    /// Batches of new lines that were begun while others were written.
    overlapped_batches: Cell<u64>,
    unwritten: Unwritten,
    hot_parts: HotParts,
    /// Room that is promised.
    promised: Promised,
    /// Held by the operation that commits because much has changed.
    crowded: Semaphore,
    /// Blocks freed in the open transaction: others may have them when it is durable.
    freed: RefCell<Vec<Run>>,
    /// Blocks freed by a commit that is under way.
    freeing: RefCell<Vec<Run>>,
    /// Places in records that a commit carries which is under way, if they are noted.
    settling: RefCell<Vec<Run>>,
    /// The blocks that were granted to this node, if it is not node 0.
    stock: OnceCell<Stock>,
    /// Of node 0: the blocks that other nodes have.
    space_desk: SpaceDesk,
    work_desk: WorkDesk,
    /// Of node 0: the disks that other nodes reach through it.
    path_desk: PathDesk,
    /// What this node has committed early.
    early_commits: EarlyCommits,
    /// Of node 0: what other nodes have.
    early_desk: EarlyDesk,
    /// New lines in the open transaction, and lines that were overwritten and are in the log: file,
    /// first block, record. The disks may have them in their caches only.
    unflushed: RefCell<Vec<(Ino, u64, Extent)>>,
    stopped: Cell<bool>,
    /// Whether an unmount has begun.
    unmounting: Cell<bool>,
    /// Nothing may be changed.
    read_only: bool,
    access_times: AccessTimes,
    /// Format of the metadata.
    format: Cell<u64>,
    /// Held while slices join the metadata array or leave it.
    changing_slices: Semaphore,
    /// Whether the metadata takes more room just now.
    metadata_growth: MetadataGrowth,
    /// Held while all of the metadata is checked.
    checking: Semaphore,
    /// Held while blocks that have failed are moved.
    relocating: Semaphore,
    /// Held while a node's ring or its log changes for it.
    changing_rings: Semaphore,
    /// Rings of nodes that are about to use another one.
    left_rings: RefCell<Vec<(u16, Vec<RingRun>)>>,
    /// The job that runs.
    job: Cell<JobState>,
    /// How many records it copies side by side.
    job_pace: JobPace,
    /// Whether jobs start automatically.
    begins_jobs: Cell<bool>,
    /// How often a file was given a redundancy.
    wanted: Cell<u64>,
    /// This host and mount, if the disks are marked as mounted ([`crate::mount::claim`]).
    marked_as: Option<(Host, u64)>,
    /// Whether the marks have ended.
    mark_ended: Cell<bool>,
    /// Told of files with blocks that were written and are nowhere.
    tell_lost: RefCell<Option<TellLost>>,
    /// Told of a rebuild that has too little room for these blocks.
    tell_lack: RefCell<Option<TellLack>>,
    /// What was written and is nowhere, of which no sync of the whole file system has told: the
    /// first loss, and files.
    losses: RefCell<(Option<FsError>, BTreeSet<Ino>)>,
    mounted: Nanos,
    mounted_at: Time,
    clock: Option<fn() -> Time>,
}

/// A mounted file system. Clones are handles of the same one.
#[derive(Clone)]
pub struct Fs(pub(crate) Rc<FsState>);

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fs").field("name", &self.0.label.name).finish_non_exhaustive()
    }
}

impl FsState {
    pub(crate) fn new(
        rt: Rt,
        label: Label,
        (meta, pool): (Meta, Rc<Pool>),
        (log, log_medium): (Log, LogMedium),
        options: &MountOptions,
        reopen: Option<Reopen>,
    ) -> Self {
        let unwritten = Unwritten::new(pool.at_hand.waiting_max());
        let tokens = match meta.link() {
            None => Tokens::new(log.epoch()),
            Some(link) => {
                let (id, to) = (link.node(), Rc::downgrade(&link));
                let tokens = Tokens::elsewhere(id, move |message| {
                    if let Some(link) = to.upgrade() {
                        link.tell(message);
                    }
                });
                let client: Rc<dyn DeskClient> = tokens.clone();
                link.set_client(Rc::downgrade(&client));
                tokens
            }
        };
        let recent = meta.recent_rows();
        tokens.on_others(move || recent.borrow_mut().clear());
        Self {
            reopen,
            marked_as: options.host.map(|host| (host, options.nonce)),
            mark_ended: Cell::new(false),
            mounted: rt.now(),
            mounted_at: options.now,
            clock: options.clock,
            rt,
            label,
            meta,
            pool,
            log,
            log_medium: RefCell::new(Rc::new(log_medium)),
            tokens,
            sharing: Sharing::default(),
            locks: LockTable::default(),
            open_files: OpenFiles::default(),
            flushing: Semaphore::new(STREAMS),
            overlapped_batches: Cell::new(0),
            hot_parts: HotParts::new(),
            promised: Promised::default(),
            crowded: Semaphore::new(1),
            unwritten,
            freed: RefCell::default(),
            freeing: RefCell::default(),
            settling: RefCell::default(),
            stock: OnceCell::new(),
            space_desk: SpaceDesk::default(),
            work_desk: WorkDesk::default(),
            path_desk: PathDesk::default(),
            early_commits: EarlyCommits::default(),
            early_desk: EarlyDesk::default(),
            unflushed: RefCell::default(),
            stopped: Cell::new(false),
            unmounting: Cell::new(false),
            read_only: options.read_only,
            access_times: options.access_times,
            format: Cell::new(FORMAT),
            changing_slices: Semaphore::new(1),
            metadata_growth: MetadataGrowth::default(),
            checking: Semaphore::new(1),
            relocating: Semaphore::new(1),
            changing_rings: Semaphore::new(1),
            left_rings: RefCell::default(),
            job: Cell::default(),
            job_pace: JobPace::default(),
            begins_jobs: Cell::new(false),
            wanted: Cell::new(0),
            tell_lost: RefCell::default(),
            tell_lack: RefCell::default(),
            losses: RefCell::default(),
        }
    }

    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }

    /// The label that all disks have.
    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The disks.
    pub(crate) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    /// The RAID log.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Where the RAID log lies.
    pub(crate) fn log_medium(&self) -> Rc<LogMedium> {
        self.log_medium.borrow().clone()
    }

    /// Whether a disk was lost, or a copy of the log given up, and the metadata does not have it.
    pub(crate) fn has_unrecorded_losses(&self) -> bool {
        let medium = self.log_medium.borrow();
        self.pool.unrecorded_losses().is_some()
            || medium.ring().is_some_and(|ring| ring.unrecorded().is_some())
    }

    pub(crate) fn tokens(&self) -> &Rc<Tokens> {
        &self.tokens
    }

    /// Locks that programs have on files.
    pub(crate) fn locks(&self) -> &LockTable {
        &self.locks
    }

    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Opens disks again.
    pub(crate) fn reopen(&self) -> Option<&Reopen> {
        self.reopen.as_ref()
    }

    pub(crate) fn open_files(&self) -> &OpenFiles {
        &self.open_files
    }

    /// What waits to be written.
    pub(crate) fn unwritten(&self) -> &Unwritten {
        &self.unwritten
    }

    /// What users read that is lost.
    pub(crate) fn hot_parts(&self) -> &HotParts {
        &self.hot_parts
    }

    /// Room that is promised.
    pub(crate) fn promised(&self) -> &Promised {
        &self.promised
    }

    /// From now on this node has only blocks that node 0 grants.
    pub(crate) fn have_only_granted(&self) {
        self.pool.members().iter().for_each(|member| member.have_only_granted());
        self.meta.note_places();
        drop(self.stock.set(Stock::new(self.unwritten.blocks_max())));
    }

    /// The blocks that were granted to this node, if it is not node 0.
    pub(crate) fn stock(&self) -> Option<&Stock> {
        self.stock.get()
    }

    /// Of node 0: the blocks that other nodes have.
    pub(crate) fn space_desk(&self) -> &SpaceDesk {
        &self.space_desk
    }

    /// Parts of jobs at other nodes.
    pub(crate) fn work_desk(&self) -> &WorkDesk {
        &self.work_desk
    }

    /// Of node 0: the disks that other nodes reach through it.
    pub(crate) fn path_desk(&self) -> &PathDesk {
        &self.path_desk
    }

    /// What this node has committed early.
    pub(crate) fn early_commits(&self) -> &EarlyCommits {
        &self.early_commits
    }

    /// Of node 0: what other nodes have committed early.
    pub(crate) fn early_desk(&self) -> &EarlyDesk {
        &self.early_desk
    }

    /// Blocks of records whose removal is not known to be durable.
    pub(crate) fn freed(&self) -> Vec<Run> {
        self.freeing.borrow().iter().chain(&*self.freed.borrow()).copied().collect()
    }

    /// Which reads of files and folders are noted.
    pub(crate) fn access_times(&self) -> AccessTimes {
        self.access_times
    }

    /// Whether nothing may be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether it is unmounted, or is being unmounted.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// No more operations begin. An unmount follows.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
    }

    /// The unmount begins.
    ///
    /// # Errors
    /// If it has begun before.
    pub(crate) fn begin_unmount(&self) -> Result<()> {
        self.stop();
        match self.unmounting.replace(true) {
            true => self.check(),
            false => Ok(()),
        }
    }

    /// The format of the metadata.
    pub(crate) fn format(&self) -> u64 {
        self.format.get()
    }

    /// The metadata was found to have this format.
    pub(crate) fn set_format(&self, format: u64) {
        self.format.set(format);
    }

    /// The job that runs.
    pub(crate) fn job(&self) -> JobState {
        self.job.get()
    }

    pub(crate) fn set_job(&self, state: JobState) {
        self.job.set(state);
    }

    /// How many records a job copies side by side.
    pub(crate) fn job_pace(&self) -> &JobPace {
        &self.job_pace
    }

    /// Whether jobs start automatically.
    pub(crate) fn begins_jobs(&self) -> bool {
        self.begins_jobs.get()
    }

    /// From now on jobs start automatically.
    pub(crate) fn begin_jobs_automatically(&self) {
        self.begins_jobs.set(true);
    }

    /// How often a file was given a redundancy.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted.get()
    }

    /// A file is given a redundancy.
    pub(crate) fn note_wanted(&self) {
        self.wanted.set(self.wanted.get() + 1);
    }

    /// This host and mount, if the disks are marked as mounted.
    pub(crate) fn marked_as(&self) -> Option<(Host, u64)> {
        self.marked_as
    }

    /// Whether the marks on the disks have ended.
    pub(crate) fn has_mark_ended(&self) -> bool {
        self.mark_ended.get()
    }

    /// The marks on the disks end.
    pub(crate) fn set_mark_ended(&self) {
        self.mark_ended.set(true);
    }

    /// Batches of new lines that were begun while others were written.
    pub(crate) fn overlapped_batches(&self) -> u64 {
        self.overlapped_batches.get()
    }

    /// `count` more batches of new lines were begun while others were written.
    pub(crate) fn note_overlapped(&self, count: u64) {
        self.overlapped_batches.set(self.overlapped_batches.get() + count);
    }

    /// These lines may be in the caches of disks only: file, first block, record.
    pub(crate) fn note_unflushed(&self, lines: impl IntoIterator<Item = (Ino, u64, Extent)>) {
        self.unflushed.borrow_mut().extend(lines);
    }

    /// Waits until only streams of new lines write blocks: the caller is one of them.
    pub(crate) async fn share_flushes(&self) -> Permit {
        self.flushing.acquire(1).await
    }

    /// As [`FsState::share_flushes`], unless that must wait.
    pub(crate) fn try_share_flushes(&self) -> Option<Permit> {
        self.flushing.try_acquire(1)
    }

    /// Whether the metadata takes more room just now.
    pub(crate) fn metadata_growth(&self) -> &MetadataGrowth {
        &self.metadata_growth
    }

    /// Waits until no slices join the metadata array or leave it.
    pub(crate) async fn change_slices(&self) -> Permit {
        self.changing_slices.acquire(1).await
    }

    /// Waits until the metadata is not being checked.
    pub(crate) async fn begin_check(&self) -> Permit {
        self.checking.acquire(1).await
    }

    /// Waits until no blocks that have failed are being moved.
    pub(crate) async fn begin_relocation(&self) -> Permit {
        self.relocating.acquire(1).await
    }

    /// Waits until no node's ring or log changes for it.
    pub(crate) async fn begin_rings(&self) -> Permit {
        self.changing_rings.acquire(1).await
    }

    /// Rings of nodes that are about to use another one: their blocks are free after that.
    pub(crate) fn left_rings(&self) -> &RefCell<Vec<(u16, Vec<RingRun>)>> {
        &self.left_rings
    }

    /// The time now.
    pub(crate) fn now(&self) -> Time {
        if let Some(clock) = self.clock {
            return clock();
        }
        let passed = self.rt.now() - self.mounted + u64::from(self.mounted_at.ns);
        let s = self.mounted_at.s + i64::try_from(passed / SECOND).unwrap_or(0);
        Time { s, ns: u32::try_from(passed % SECOND).unwrap_or(0) }
    }

    /// Waits until nothing writes blocks.
    pub(crate) async fn flush_alone(&self) -> Permit {
        self.flushing.acquire(STREAMS).await
    }

    /// The metadata gets this format, if it has a lower one: older versions are to refuse it.
    pub(crate) fn raise_format(&self, tx: &Tx<'_>, format: u64) -> Result<()> {
        if self.format.get() >= format {
            return Ok(());
        }
        self.format.set(format);
        tx.set_state("format", format)
    }

    /// Blocks of a file that were written are nowhere. The next fsync says so to each user of the
    /// file, and the next sync of the whole file system, or its end; and what others have of the
    /// file is not what is there.
    pub(crate) fn lose(&self, ino: Ino, loss: Loss) {
        if let Some(node) = self.open_files.get(ino) {
            node.note_loss(loss);
        }
        let mut losses = self.losses.borrow_mut();
        let (first, files) = &mut *losses;
        first.get_or_insert_with(|| loss.error(ino));
        if files.len() < LOST_FILES_MAX {
            files.insert(ino);
        }
        drop(losses);
        if let Some(tell) = &*self.tell_lost.borrow() {
            tell(ino);
        }
    }

    /// A rebuild has too little room for these blocks.
    pub(crate) fn tell_lack_of_room(&self, blocks: u64) {
        if let Some(tell) = &*self.tell_lack.borrow() {
            tell(blocks * BLOCK_BYTES);
        }
    }

    /// What was written and is nowhere, if that was not told yet: the first loss, and the files.
    pub(crate) fn take_losses(&self) -> (Option<FsError>, BTreeSet<Ino>) {
        self.losses.take()
    }

    /// Writes the number of this mount, or of its end, to all disks, and to the metadata for the
    /// disks that took it. All that was written before is durable.
    pub(crate) async fn note_use(&self, is_unmount: bool) -> Result<()> {
        let number = use_number::number_of(self.log.epoch(), is_unmount);
        for member in self.pool.members() {
            let Some(present) = member.present().filter(|_| !member.is_lost()) else { continue };
            let label = present.label.borrow().clone();
            let written = use_number::write(&*present.whole, &label, number).await;
            let number = if written.is_ok() { number } else { 0 };
            let name = use_number::state_name(member.number);
            self.meta.run(|tx| tx.set_state(&name, number)).await?;
        }
        Ok(())
    }

    /// Fails if the metadata has no room for this number of bytes more, for everyone or for root.
    /// Within an operation it counts what all before it have done.
    pub(crate) fn check_room(&self, bytes: u64, for_root: bool) -> Result<()> {
        if self.meta.has_room(bytes, for_root) { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// The inode of a file that has contents.
    pub(crate) async fn file(&self, ino: Ino) -> Result<Inode> {
        self.check()?;
        let inode = self.meta.run(|tx| tx.inode(ino)).await?;
        match inode.kind() {
            Kind::File => Ok(self.live(ino, inode)),
            Kind::Folder => Err(FsError::IsFolder),
            _ => Err(FsError::Unsupported),
        }
    }

    /// An inode as users see it: with changes that are not in the metadata yet.
    pub(crate) fn live(&self, ino: Ino, mut inode: Inode) -> Inode {
        if let Some(live) = self.open_files.get(ino).and_then(|node| node.live.get()) {
            inode.size = live.size;
            inode.modified = live.modified;
            // A program may have set a time to come. It is not that of the change.
            inode.changed = inode.changed.max(live.modified.min(self.now()));
        }
        inode
    }

    /// These attributes with the blocks that wait to be written. Those of them that have a place
    /// already count twice, but not behind what the file can have.
    pub(crate) fn seen(&self, ino: Ino, inode: Inode) -> Inode {
        let mut inode = self.live(ino, inode);
        let Some(node) = self.open_files.get(ino) else { return inode };
        let dirty = node.dirty.borrow();
        if !dirty.is_empty() {
            let end = inode.size.div_ceil(BLOCK_BYTES);
            let most = end + dirty.range(end..).count() as u64;
            let all = inode.blocks + dirty.len() as u64;
            inode.blocks = inode.blocks.max(all.min(most));
        }
        inode
    }

    /// Fails if nothing may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check()?;
        if self.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.stopped.get() {
            return Err(FsError::Stopped("it is unmounted".into()));
        }
        Ok(())
    }
}

impl Fs {
    /// Frees deleted blocks for other files, so that they count as free. Without this it does with
    /// the next commit.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn free_deleted(&self) -> Result<()> {
        let is_settled = self.0.freed().is_empty() || self.0.read_only;
        if is_settled { Ok(()) } else { self.0.commit().await }
    }

    /// Whether it is mounted read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }

    /// Tells why the file system has stopped, if that ever happens.
    pub fn on_stop(&self, tell: impl Fn(&str) + 'static) {
        self.0.meta.on_fail(tell);
    }

    /// Reports each file that lost blocks after they were written, before they were on the disks:
    /// it reads otherwise now.
    pub fn on_lost_blocks(&self, tell: impl Fn(Ino) + 'static) {
        *self.0.tell_lost.borrow_mut() = Some(Box::new(tell));
    }

    /// Tells of each disk that is not used any more: its number, what it is called, and what it
    /// said, if it said anything.
    pub fn on_lost_disk(&self, tell: impl Fn(u16, &str, Option<&str>) + 'static) {
        *self.0.pool.tell_lost.borrow_mut() = Some(Box::new(move |member| {
            tell(member.number, &member.row().name, member.why_lost.borrow().as_deref());
        }));
    }

    /// Tells when a rebuild starts for which the disks have too little room, and how many bytes
    /// they lack.
    pub fn on_lack_of_room(&self, tell: impl Fn(u64) + 'static) {
        *self.0.tell_lack.borrow_mut() = Some(Box::new(tell));
    }

    /// Tells which pages of the metadata were found wrong on which disks, and whether they were
    /// repaired.
    pub fn on_wrong_metadata(&self, tell: impl Fn(&str) + 'static) {
        self.0.meta.on_wrong_page(tell);
    }

    /// A use of a file starts: it was opened, or the kernel knows its number.
    pub fn begin_use(&self, ino: Ino) {
        self.0.open_files.begin_use(ino);
    }
}
