//! A mounted file system: its parts, the files in use, and commits.
//!
//! *Locks.* A file's lock is taken shared to read it and alone to write or flush it: it is the data
//! token of this node. While it is held only to flush the file, blocks may be written to the cache
//! that need nothing from the disks. Several files are locked in the order of their numbers. Then
//! comes the lock of flushes, which only streams of new lines share; then that of commits. An
//! operation on names takes none: it is one closure in the transaction. The metadata's own locks come
//! last.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_rt::sync::{Notify, Permit, Semaphore};
use weft_rt::{Frozen, Nanos, Rt, SECOND};
use weft_token::Mode;

use crate::error::{FsError, Result};
use crate::inode::{Ino, Inode, Time};
use crate::job::{JobEnd, JobStatus};
use crate::label::Label;
use crate::log::{Log, LoggedFile};
use crate::meta::{Meta, Tx};
use crate::nodes::Tokens;
use crate::path::Reopen;
use crate::pool::{Pool, runs_of};
use crate::record::{Record, Run};

/// Blocks of a file that are to be written, in their order.
pub(crate) type Dirty = Vec<(u64, Frozen)>;

/// Which dirty blocks are to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of them.
    All,
    /// Those at the end of a long file may wait for others that complete their lines.
    Whole,
    /// The same, and of each file only new lines, up to a block that has a place.
    New,
}

/// The most blocks that are written at a time.
pub(crate) const BLOCKS_MAX: usize = 4096;

/// How to mount a file system.
#[derive(Debug, Clone, Copy)]
pub struct MountOptions {
    /// Mount although disks are missing: they are lost from then on.
    pub degraded: bool,
    /// Bytes of memory for contents: at most half of them wait to be written, and the rest were read
    /// or written lately.
    pub cache_bytes: u64,
    /// Bytes of memory for metadata. There are always some pages.
    pub meta_cache_bytes: u64,
    /// A random number, new for each mount.
    pub nonce: u64,
    /// The time now.
    pub now: Time,
}

/// Readers of a file at the same time.
const READERS: usize = 1 << 16;
/// New lines are written from this part of the blocks that may wait. Blocks that have a place wait until
/// only this part is left: the more of them are sorted and written together, the less disks have to seek,
/// and the more of them are overwritten while they wait.
const DRAINED_PART: u64 = 4;
/// Streams of new lines at the same time.
const STREAMS: usize = 1 << 16;
/// After so many steps an operation on very many rows commits.
const STEPS_TO_COMMIT: u64 = 16;
/// Files that are flushed together.
const FILES_MAX: usize = 256;

/// A file in use: what is known of it beyond the metadata.
pub(crate) struct Node {
    pub(crate) ino: Ino,
    lock: Semaphore,
    /// Blocks that are not on the disks yet, each with the number of the first write since it was.
    pub(crate) dirty: RefCell<BTreeMap<u64, (u64, Frozen)>>,
    /// Whether the lock is held only to flush the file.
    flushed: Cell<bool>,
    /// Size and times that are ahead of the metadata.
    pub(crate) live: Cell<Option<Live>>,
    /// The first block of lines that were lost before they were durable.
    pub(crate) lost_block: Cell<Option<u64>>,
    /// Times it was opened and not released, and lookups that were not forgotten.
    uses: Cell<u64>,
}

/// What a file's dirty blocks will make of its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) size: u64,
    pub(crate) modified: Time,
}

impl Node {
    /// Waits until nothing writes the file.
    pub(crate) async fn share(&self) -> Permit {
        self.lock.acquire(1).await
    }

    /// Waits until nothing else uses the file.
    pub(crate) async fn alone(&self) -> Permit {
        self.lock.acquire(READERS).await
    }

    /// Whether anything waits for the lock.
    pub(crate) fn is_wanted(&self) -> bool {
        self.lock.is_wanted()
    }

    /// Whether blocks may be written that need nothing from the disks, although the lock is held.
    pub(crate) fn is_only_flushed(&self) -> bool {
        self.flushed.get()
    }

    /// Whether blocks wait to be written that have waited since the write `until`.
    pub(crate) fn has_dirty(&self, until: u64) -> bool {
        self.dirty.borrow().values().any(|(write, _)| *write <= until)
    }

    /// How many of these blocks there are.
    pub(crate) fn count_dirty(&self, until: u64) -> usize {
        self.dirty.borrow().values().filter(|(write, _)| *write <= until).count()
    }

    /// These blocks from `first` on, at most so many.
    pub(crate) fn dirty_from(&self, first: u64, until: u64, most: usize) -> Dirty {
        let dirty = self.dirty.borrow();
        let before = dirty.range(first..).filter(|(_, (write, _))| *write <= until);
        before.take(most).map(|(block, (_, data))| (*block, data.clone())).collect()
    }

    fn is_clean(&self) -> bool {
        self.dirty.borrow().is_empty() && self.live.get().is_none()
    }
}

/// What the dirty blocks of files will make of them.
pub(crate) fn live_of(nodes: &[Rc<Node>]) -> Vec<LoggedFile> {
    let file = |node: &Rc<Node>| {
        let Live { size, modified } = node.live.get()?;
        Some(LoggedFile { ino: node.ino, size, modified })
    };
    nodes.iter().filter_map(file).collect()
}

pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) label: Label,
    pub(crate) meta: Meta,
    pub(crate) pool: Rc<Pool>,
    pub(crate) log: Log,
    pub(crate) tokens: Rc<Tokens>,
    /// Opens disks again.
    pub(crate) reopen: Option<Reopen>,
    nodes: RefCell<BTreeMap<Ino, Rc<Node>>>,
    /// Held while blocks are written: shared by streams of new lines ([`crate::stream`]), alone by
    /// all else.
    pub(crate) flushing: Semaphore,
    /// Batches of new lines that were begun while others were written.
    pub(crate) overlapped_batches: Cell<u64>,
    pub(crate) dirty_blocks: Cell<u64>,
    pub(crate) dirty_blocks_max: u64,
    /// Writes to the cache so far.
    pub(crate) writes: Cell<u64>,
    /// Held while dirty blocks are written because there are many.
    draining: Semaphore,
    /// Dirty blocks were written.
    pub(crate) written: Notify,
    /// Held by the writer that waits for memory next: they have turns, so that a fast one leaves some to
    /// the others.
    waiting: Semaphore,
    /// Held by the operation that commits because much has changed.
    crowded: Semaphore,
    /// Blocks that this left, as they have a place.
    left_blocks: Cell<u64>,
    /// Blocks freed in the open transaction: others may have them when it is durable.
    freed: RefCell<Vec<Run>>,
    /// New lines in the open transaction: file, first block, record. The disks may have them in their
    /// caches only.
    pub(crate) unflushed: RefCell<Vec<(Ino, u64, Record)>>,
    pub(crate) stopped: Cell<bool>,
    /// Held while blocks that have failed are moved.
    pub(crate) relocating: Semaphore,
    /// The job that runs.
    pub(crate) job: Cell<Option<JobStatus>>,
    /// How many disks had been lost when it began.
    pub(crate) job_losses: Cell<u64>,
    /// Whether it can be cancelled, or was.
    pub(crate) job_end: Cell<JobEnd>,
    /// Whether jobs begin by themselves.
    pub(crate) keeps: Cell<bool>,
    /// How often a file was given a redundancy.
    pub(crate) wanted: Cell<u64>,
    mounted: Nanos,
    mounted_at: Time,
}

/// A mounted file system. Clones are handles of the same one.
#[derive(Clone)]
pub struct Fs(pub(crate) Rc<Inner>);

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fs").field("name", &self.0.label.name).finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn new(
        rt: Rt,
        label: Label,
        (meta, pool, log): (Meta, Rc<Pool>, Log),
        options: &MountOptions,
        reopen: Option<Reopen>,
    ) -> Self {
        let dirty_blocks_max = pool.at_hand.waiting_max();
        let tokens = Tokens::new(log.epoch());
        Self {
            reopen,
            mounted: rt.now(),
            mounted_at: options.now,
            rt,
            label,
            meta,
            pool,
            log,
            tokens,
            nodes: RefCell::default(),
            flushing: Semaphore::new(STREAMS),
            overlapped_batches: Cell::new(0),
            dirty_blocks: Cell::new(0),
            writes: Cell::new(0),
            draining: Semaphore::new(1),
            written: Notify::default(),
            waiting: Semaphore::new(1),
            crowded: Semaphore::new(1),
            left_blocks: Cell::new(0),
            dirty_blocks_max,
            freed: RefCell::default(),
            unflushed: RefCell::default(),
            stopped: Cell::new(false),
            relocating: Semaphore::new(1),
            job: Cell::new(None),
            job_losses: Cell::new(0),
            job_end: Cell::new(JobEnd::Open),
            keeps: Cell::new(false),
            wanted: Cell::new(0),
        }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Time {
        let passed = self.rt.now() - self.mounted + u64::from(self.mounted_at.ns);
        let s = self.mounted_at.s + i64::try_from(passed / SECOND).unwrap_or(0);
        Time { s, ns: u32::try_from(passed % SECOND).unwrap_or(0) }
    }

    /// The node of a file, made if it has none.
    pub(crate) fn node(&self, ino: Ino) -> Rc<Node> {
        let mut nodes = self.nodes.borrow_mut();
        let fresh = || Node {
            ino,
            lock: Semaphore::new(READERS),
            dirty: RefCell::default(),
            flushed: Cell::new(false),
            live: Cell::new(None),
            lost_block: Cell::new(None),
            uses: Cell::new(0),
        };
        nodes.entry(ino).or_insert_with(|| Rc::new(fresh())).clone()
    }

    /// The node of a file, if it has one.
    pub(crate) fn node_in_use(&self, ino: Ino) -> Option<Rc<Node>> {
        self.nodes.borrow().get(&ino).cloned()
    }

    /// The files that have blocks or sizes to write.
    pub(crate) fn unclean(&self) -> Vec<Rc<Node>> {
        self.nodes.borrow().values().filter(|node| !node.is_clean()).cloned().collect()
    }

    /// Files that have a node.
    pub(crate) fn nodes_count(&self) -> u64 {
        self.nodes.borrow().len() as u64
    }

    /// The node of a file that has blocks or a size to write.
    pub(crate) fn unclean_node(&self, ino: Ino) -> Option<Rc<Node>> {
        self.node_in_use(ino).filter(|node| !node.is_clean())
    }

    pub(crate) fn begin_use(&self, ino: Ino) {
        let node = self.node(ino);
        node.uses.set(node.uses.get() + 1);
    }

    /// Ends `count` uses of a file. If it has no name any more, it goes.
    pub(crate) async fn end_uses(&self, ino: Ino, count: u64) -> Result<()> {
        let Some(node) = self.node_in_use(ino) else { return Ok(()) };
        node.uses.set(node.uses.get().saturating_sub(count));
        if node.uses.get() > 0 {
            return Ok(());
        }
        let gone = self.meta.run(|tx| Ok(tx.inode(ino)?.links == 0)).await;
        if matches!(gone, Ok(true)) {
            let _held = self.hold_attributes(ino, Mode::Exclusive).await;
            self.purge(ino).await?;
        }
        self.forget_clean(&node);
        Ok(())
    }

    /// Removes the node of a file that is neither in use nor has anything to write.
    pub(crate) fn forget_clean(&self, node: &Rc<Node>) {
        // The table's and the caller's.
        if node.uses.get() == 0 && node.is_clean() && Rc::strong_count(node) <= 2 {
            self.nodes.borrow_mut().remove(&node.ino);
        }
    }

    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        self.node_in_use(ino).is_some_and(|node| node.uses.get() > 0)
    }

    /// Deletes a file that has no name.
    pub(crate) async fn purge(&self, ino: Ino) -> Result<()> {
        let _held = self.hold_contents(ino).await;
        let node = self.node(ino);
        let alone = node.alone().await;
        self.drop_dirty(&node, 0);
        node.live.set(None);
        let mut steps = 0;
        while self.meta.run(|tx| self.purge_some(tx, ino)).await? {
            self.commit_now_and_then(&mut steps).await?;
        }
        drop(alone);
        self.forget_clean(&node);
        Ok(())
    }

    /// Waits until nothing writes blocks.
    pub(crate) async fn flush_alone(&self) -> Permit {
        self.flushing.acquire(STREAMS).await
    }

    /// Removes some records of a file that has no name, or what is left of it. Returns whether there
    /// is more to remove: a mount goes on with it after a crash.
    fn purge_some(&self, tx: &Tx<'_>, ino: Ino) -> Result<bool> {
        let mut inode = match tx.inode(ino) {
            // Its last use ended at the same time as its last name.
            Err(FsError::NotFound) => return Ok(false),
            inode => inode?,
        };
        let records = tx.first_records(ino, 0..u64::MAX, self.meta.at_a_time())?;
        for (first, record) in &records {
            tx.remove_record(ino, *first)?;
            inode.blocks -= record.data_blocks();
            self.free_later(record);
        }
        if records.len() < self.meta.at_a_time() {
            tx.remove_inode(ino)?;
            return Ok(false);
        }
        tx.put_inode(ino, &inode)?;
        Ok(true)
    }

    /// Between steps of an operation on very many rows: commits after some, so that neither the
    /// transaction nor the list of freed blocks grows with the operation.
    pub(crate) async fn commit_now_and_then(&self, steps: &mut u64) -> Result<()> {
        *steps += 1;
        match steps.is_multiple_of(STEPS_TO_COMMIT) {
            true => self.commit().await,
            false => self.commit_if_crowded().await,
        }
    }

    /// Commits if the open transaction changes so much that the database may have no room for more
    /// ([`Meta::is_crowded`]). The caller does not hold the lock of flushes.
    pub(crate) async fn commit_if_crowded(&self) -> Result<()> {
        if !self.meta.is_crowded() {
            return Ok(());
        }
        // Many may find that at once.
        let _turn = self.crowded.acquire(1).await;
        if self.meta.is_crowded() { self.commit().await } else { Ok(()) }
    }

    /// Puts a block into the cache. One that waits there already keeps its place: a flush that was to
    /// write it writes what is newer.
    pub(crate) fn dirty(&self, node: &Node, block: u64, data: Frozen) {
        let write = self.writes.get() + 1;
        self.writes.set(write);
        let mut dirty = node.dirty.borrow_mut();
        match dirty.get_mut(&block) {
            Some((_, waiting)) => *waiting = data,
            None => {
                dirty.insert(block, (write, data));
                self.note_dirty(self.dirty_blocks.get() + 1);
            }
        }
    }

    /// So many blocks wait to be written now.
    pub(crate) fn note_dirty(&self, blocks: u64) {
        self.dirty_blocks.set(blocks);
        self.pool.at_hand.wait(blocks);
    }

    /// A block is on the disks like this. If it was written again meanwhile, the next flush has it.
    pub(crate) fn drop_written(&self, node: &Node, block: u64, data: &Frozen) {
        let mut dirty = node.dirty.borrow_mut();
        match dirty.get_mut(&block) {
            Some((_, waiting)) if waiting.as_ptr() == data.as_ptr() => {
                dirty.remove(&block);
                self.note_dirty(self.dirty_blocks.get() - 1);
            }
            Some((write, _)) => *write = self.writes.get(),
            None => {}
        }
    }

    /// Forgets blocks of a file, from `first` on, that are not written yet.
    pub(crate) fn drop_dirty(&self, node: &Node, first: u64) {
        let dropped = node.dirty.borrow_mut().split_off(&first);
        self.note_dirty(self.dirty_blocks.get() - dropped.len() as u64);
    }

    /// The blocks of a record that was removed in the open transaction.
    pub(crate) fn free_later(&self, record: &Record) {
        self.freed.borrow_mut().extend(runs_of(record));
    }

    /// A column that was replaced in the open transaction.
    pub(crate) fn free_run_later(&self, run: Run) {
        self.freed.borrow_mut().push(run);
    }

    /// Makes the open transaction durable.
    pub(crate) async fn commit(&self) -> Result<()> {
        let pool = &self.pool;
        if self.meta.is_settled().await?
            && pool.unrecorded_losses().is_none()
            && !pool.bad.any_found()
        {
            return Ok(());
        }
        self.commit_anyway().await
    }

    /// Makes the open transaction durable, and with it the end of what is dead in the log.
    pub(crate) async fn commit_anyway(&self) -> Result<()> {
        let alone = self.flush_alone().await;
        self.commit_holding(Some(alone)).await
    }

    /// The same for a caller that holds the lock of flushes.
    pub(crate) async fn commit_within_flush(&self) -> Result<()> {
        self.commit_holding(None).await
    }

    /// The same, with the lock of flushes until the transaction has ended: no log record may come
    /// between the flush of the disks and the mark in the log.
    async fn commit_holding(&self, flushes: Option<Permit>) -> Result<()> {
        // New lines, and blocks of log records that the commit ends, may be in the caches of disks only.
        let unflushed = self.unflushed.take();
        self.pool.flush().await;
        self.note_lost(&unflushed);
        let last = |tx: &Tx<'_>| {
            let mark = self.log.mark();
            tx.set_state("completed", mark.completed)?;
            tx.set_state("log", mark.position)?;
            let losses = self.pool.unrecorded_losses();
            if losses.is_some() {
                for member in self.pool.members().iter().filter(|member| member.is_lost()) {
                    let mut row = member.row.clone();
                    row.lost = true;
                    tx.put_disk(member.number, &row)?;
                }
            }
            for (disk, block) in self.pool.bad.take_found() {
                tx.put_bad(disk, block)?;
            }
            let moved = self.pool.bad.logged_elsewhere();
            drop(flushes);
            Ok((mark, losses, moved, std::mem::take(&mut *self.freed.borrow_mut())))
        };
        let (mark, losses, moved, freed) = self.meta.commit(last).await?;
        self.pool.bad.durable(moved);
        self.log.retire(mark);
        self.pool.release(freed);
        if let Some(losses) = losses {
            self.pool.recorded(losses);
        }
        Ok(())
    }

    /// New lines were flushed, if their disks were not lost: notes the files of which nothing gives
    /// the blocks.
    fn note_lost(&self, lines: &[(Ino, u64, Record)]) {
        if self.pool.members().iter().all(|member| !member.is_lost()) {
            return;
        }
        let is_gone = |record| self.pool.lay(record).is_ok_and(|laid| !laid.is_readable());
        for (ino, first, record) in lines {
            if let Some(node) = self.node_in_use(*ino).filter(|_| is_gone(record)) {
                node.lost_block.set(Some(*first));
            }
        }
    }

    /// Makes durable what was done to a file. It needs no commit if the RAID log has all of that.
    pub(crate) async fn commit_file(&self, ino: Ino) -> Result<()> {
        match self.meta.has_changed(ino)? || self.pool.unrecorded_losses().is_some() {
            true => self.commit().await,
            false => Ok(()),
        }
    }

    /// Writes a file's dirty blocks and size.
    pub(crate) async fn flush_file(&self, node: &Rc<Node>) -> Result<()> {
        let flushed = self.flush_files(std::slice::from_ref(node), Extent::All).await;
        self.forget_clean(node);
        flushed
    }

    /// The same for several files, in the order of their numbers. Each of them is flushed, even if
    /// others cannot be.
    async fn flush_files(&self, nodes: &[Rc<Node>], extent: Extent) -> Result<()> {
        let mut locks = Vec::with_capacity(nodes.len());
        for node in nodes {
            locks.push(node.alone().await);
            node.flushed.set(true);
        }
        let mut result = self.flush_nodes(nodes, extent).await;
        if result.is_err() && nodes.len() > 1 {
            result = Ok(());
            for node in nodes {
                result = result.and(self.flush_nodes(std::slice::from_ref(node), extent).await);
            }
        }
        nodes.iter().for_each(|node| node.flushed.set(false));
        result
    }

    /// Writes dirty blocks and sizes of all files.
    pub(crate) async fn flush_all(&self, extent: Extent) -> Result<()> {
        self.flush_many(self.unclean(), extent).await
    }

    /// The same of these files, in the order of their numbers.
    pub(crate) async fn flush_many(&self, nodes: Vec<Rc<Node>>, extent: Extent) -> Result<()> {
        let mut result = Ok(());
        let mut rest = &nodes[..];
        while !rest.is_empty() {
            let mut blocks = 0;
            let fits = |node: &&Rc<Node>| {
                blocks += node.dirty.borrow().len();
                blocks <= BLOCKS_MAX
            };
            let count = rest.iter().take(FILES_MAX).take_while(fits).count().max(1);
            let (nodes, behind) = rest.split_at(count);
            result = result.and(self.flush_files(nodes, extent).await);
            result = result.and(self.commit_if_crowded().await);
            rest = behind;
        }
        // Others may have had them as well meanwhile: whoever lets go last removes them.
        for node in nodes {
            self.forget_clean(&node);
        }
        result
    }

    /// Writes dirty blocks if there are many; waits only if there are too many. The caller holds no
    /// lock.
    pub(crate) async fn drain(self: &Rc<Self>) -> Result<()> {
        let (dirty, part) = (self.dirty_blocks.get(), self.dirty_blocks_max / DRAINED_PART);
        let extent = match dirty + part >= self.dirty_blocks_max {
            true => Extent::Whole,
            false if dirty >= self.left_blocks.get() + part => Extent::New,
            false => return Ok(()),
        };
        if let Some(draining) = self.draining.try_acquire(1) {
            let fs = self.clone();
            self.rt.launch(Box::pin(async move {
                let until = fs.writes.get();
                // The blocks stay dirty if this fails, and fsync reports it.
                let _ = fs.flush_all(extent).await;
                let left: usize =
                    fs.nodes.borrow().values().map(|node| node.count_dirty(until)).sum();
                fs.left_blocks.set(left as u64);
                drop(draining);
            }));
        }
        if self.dirty_blocks.get() < self.dirty_blocks_max {
            return Ok(());
        }
        let _turn = self.waiting.acquire(1).await;
        while self.dirty_blocks.get() >= self.dirty_blocks_max {
            let (drained, written) = (pin!(self.draining.acquire(1)), pin!(self.written.wait()));
            match select(drained, written).await {
                Either::Left((none, _)) => {
                    drop(none);
                    if self.dirty_blocks.get() >= self.dirty_blocks_max {
                        return self.flush_all(Extent::All).await;
                    }
                }
                Either::Right(_) => {}
            }
        }
        Ok(())
    }

    /// Moves blocks that have failed, writes all dirty blocks, and makes everything durable. The
    /// caller holds no token.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.relocate().await?;
        self.write_all().await
    }

    /// Writes all dirty blocks, and makes everything durable.
    pub(crate) async fn write_all(&self) -> Result<()> {
        let flushed = self.flush_all(Extent::All).await;
        flushed.and(self.commit().await)
    }

    /// An inode as users see it: with what is not in the metadata yet.
    pub(crate) fn live(&self, ino: Ino, mut inode: Inode) -> Inode {
        if let Some(live) = self.node_in_use(ino).and_then(|node| node.live.get()) {
            inode.size = live.size;
            inode.modified = live.modified;
            inode.changed = inode.changed.max(live.modified);
        }
        inode
    }

    /// Fails if the metadata has no room for more.
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.meta.has_room() { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// Before an operation that changes metadata and holds nothing yet.
    pub(crate) async fn begin_change(&self) -> Result<()> {
        self.check()?;
        self.commit_if_crowded().await
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.stopped.get() {
            return Err(FsError::Stopped("it is unmounted".into()));
        }
        Ok(())
    }
}

impl Fs {
    /// Makes everything durable that was done before.
    ///
    /// # Errors
    /// If blocks cannot be written, or the metadata has failed.
    pub async fn sync(&self) -> Result<()> {
        self.0.check()?;
        self.0.sync().await
    }

    /// A use of a file begins: it was opened, or the kernel knows its number.
    pub fn begin_use(&self, ino: Ino) {
        self.0.begin_use(ino);
    }

    /// `count` uses of a file end. A file without names goes with its last use.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn end_uses(&self, ino: Ino, count: u64) -> Result<()> {
        self.0.end_uses(ino, count).await
    }

    /// Writes everything and ends. Later requests fail.
    ///
    /// # Errors
    /// If blocks cannot be written, or the metadata has failed.
    pub async fn unmount(&self) -> Result<()> {
        self.0.check()?;
        self.0.stopped.set(true);
        drop(self.0.draining.acquire(1).await);
        let mut ended = self.0.sync().await;
        if ended.is_ok() {
            self.0.meta.end();
            ended = self.0.commit_anyway().await;
        }
        if ended.is_ok() {
            ended = self.0.meta.checkpoint().await;
        }
        ended.and(self.0.meta.array.stop().await.map_err(FsError::from))
    }
}
