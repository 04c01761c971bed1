//! Files in use: their state beyond the metadata.
//!
//! A file is in use while the kernel knows its number or has it open, or while it has blocks or a
//! size that are not written. One without names goes with its last use.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::rc::Rc;

use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Frozen, Nanos};

use crate::error::FsError;
use crate::format::inode::{Ino, Time};
use crate::raid_log::LoggedFile;
use crate::tokens::local_node::HeldTokens;

/// Blocks of a file to write, in their order.
pub(crate) type Dirty = Vec<(u64, Frozen)>;

/// Readers of a file at the same time.
const READERS: usize = 1 << 16;

/// A file in use: its state beyond the metadata.
pub(crate) struct Node {
    pub(crate) ino: Ino,
    lock: Semaphore,
    /// Blocks that are not on the disks yet, each with the number of the first write since it was.
    pub(crate) dirty: RefCell<BTreeMap<u64, (u64, Frozen)>>,
    /// Of these, blocks that were not dirty before writes that have not returned yet: nothing of
    /// them was acknowledged.
    unacknowledged: RefCell<BTreeSet<u64>>,
    /// How often dirty blocks were dropped.
    drops: Cell<u64>,
    /// Whether the lock is held only to flush the file.
    flushed: Cell<bool>,
    /// Size and times that are ahead of the metadata.
    pub(crate) live: Cell<Option<PendingAttributes>>,
    /// How often blocks were lost after they were written and before they were durable.
    losses: Cell<u64>,
    /// How many of these losses an fsync has told of.
    told_losses: Cell<u64>,
    /// The last of them.
    last_loss: Cell<Loss>,
    /// Times it was opened and not released, and lookups that were not forgotten.
    uses: Cell<u64>,
    /// Times it was opened and not released, if other nodes may use it, and the token that says so.
    opens: Cell<u64>,
    open_token: RefCell<Option<HeldTokens>>,
    /// Times it was opened for writing and not released.
    writers: Cell<u64>,
    /// Whether the kernel may have pages of it: the last request that gave it some, and the last
    /// one before it gave them up; and when that was.
    given_to_kernel: Cell<u64>,
    given_back: Cell<u64>,
    gave_kernel_up: Cell<Option<Nanos>>,
}

/// What a file's dirty blocks will make of its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingAttributes {
    pub(crate) size: u64,
    pub(crate) modified: Time,
}

/// Why blocks of a file were lost after they were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// There was no room for them.
    NoRoom,
    /// Too many disks were lost: the first such block.
    Disks(u64),
}

impl Loss {
    /// What an fsync of the file says.
    pub(crate) fn error(self, ino: Ino) -> FsError {
        match self {
            Self::NoRoom => FsError::NoSpace,
            Self::Disks(block) => FsError::Unreadable { inode: ino, block },
        }
    }
}

impl Node {
    /// Blocks were lost after they were written.
    pub(crate) fn note_loss(&self, loss: Loss) {
        self.losses.set(self.losses.get() + 1);
        self.last_loss.set(loss);
    }

    /// How often that has happened.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// How often dirty blocks were dropped.
    pub(crate) fn drops(&self) -> u64 {
        self.drops.get()
    }

    /// Drops dirty blocks. Returns how many, and whether something of them was acknowledged.
    pub(crate) fn drop_dirty(&self, is_dropped: impl Fn(u64) -> bool) -> (usize, bool) {
        let (mut dirty, mut unacknowledged) =
            (self.dirty.borrow_mut(), self.unacknowledged.borrow_mut());
        let (before, mut any_acknowledged) = (dirty.len(), false);
        dirty.retain(|block, _| {
            let drops = is_dropped(*block);
            any_acknowledged |= drops && !unacknowledged.remove(block);
            !drops
        });
        let dropped = before - dirty.len();
        self.drops.set(self.drops.get() + u64::from(dropped > 0));
        (dropped, any_acknowledged)
    }

    /// A write starts. The blocks that it makes dirty count as not acknowledged until it returns,
    /// which is when the guard is dropped.
    pub(crate) fn begin_write(&self) -> WriteGuard<'_> {
        WriteGuard { node: self, blocks: RefCell::default() }
    }

    /// How many of these losses were told to a user of the file: one who opens it now is told of
    /// the rest.
    pub(crate) fn told_losses(&self) -> u64 {
        self.told_losses.get()
    }

    /// The last loss, for a user who knows of the first `known` of them. All are told then.
    pub(crate) fn tell_losses(&self, known: u64) -> Option<Loss> {
        let losses = self.losses.get();
        self.told_losses.set(losses);
        (losses > known).then(|| self.last_loss.get())
    }

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

    /// Whether a block has waited since the write `until`.
    pub(crate) fn waits_since(&self, block: u64, until: u64) -> bool {
        self.dirty.borrow().get(&block).is_some_and(|(write, _)| *write <= until)
    }

    /// Up to `most` dirty blocks between the first and last of these.
    pub(crate) fn dirty_among(&self, until: u64, most: usize) -> Dirty {
        let dirty = self.dirty.borrow();
        let mut waited = dirty.iter().filter(|(_, (write, _))| *write <= until);
        let Some((first, _)) = waited.next() else { return Dirty::new() };
        let last = waited.next_back().map_or(first, |(last, _)| last);
        let among = dirty.range(first..=last).take(most);
        among.map(|(block, (_, data))| (*block, data.clone())).collect()
    }

    /// Up to `most` of these blocks from `first` on.
    pub(crate) fn dirty_from(&self, first: u64, until: u64, most: usize) -> Dirty {
        let dirty = self.dirty.borrow();
        let before = dirty.range(first..).filter(|(_, (write, _))| *write <= until);
        before.take(most).map(|(block, (_, data))| (*block, data.clone())).collect()
    }

    /// Says whether the lock is held only to flush the file.
    pub(crate) fn set_only_flushed(&self, flushed: bool) {
        self.flushed.set(flushed);
    }

    /// `count` uses end.
    pub(crate) fn end_uses(&self, count: u64) {
        self.uses.set(self.uses.get().saturating_sub(count));
    }

    pub(crate) fn is_used(&self) -> bool {
        self.uses.get() > 0 || self.opens.get() > 0 || self.writers.get() > 0
    }

    /// A program of this node opens it, while other nodes may use it.
    pub(crate) fn begin_open(&self) {
        self.opens.set(self.opens.get() + 1);
    }

    /// Whether this node has told that it has the file open.
    pub(crate) fn has_open_token(&self) -> bool {
        self.open_token.borrow().is_some()
    }

    /// This node has told that it has the file open, unless all programs have closed it meanwhile.
    pub(crate) fn keep_open(&self, token: HeldTokens) {
        if self.opens.get() > 0 && !self.has_open_token() {
            *self.open_token.borrow_mut() = Some(token);
        }
    }

    /// A program of this node closes it.
    pub(crate) fn end_open(&self) {
        self.opens.set(self.opens.get().saturating_sub(1));
        if self.opens.get() == 0 {
            drop(self.open_token.take());
        }
    }

    /// A program of this node opens it for writing.
    pub(crate) fn begin_writes(&self) {
        self.writers.set(self.writers.get() + 1);
    }

    /// A program that has opened it for writing closes it.
    pub(crate) fn end_writes(&self) {
        self.writers.set(self.writers.get().saturating_sub(1));
    }

    /// Programs of this node that have it open for writing.
    pub(crate) fn writers(&self) -> u64 {
        self.writers.get()
    }

    /// The kernel may have pages of it from now on.
    pub(crate) fn keep_in_kernel(&self) {
        self.given_to_kernel.set(self.given_to_kernel.get() + 1);
    }

    /// The last request that gave the kernel pages of it, if it may have any.
    pub(crate) fn in_kernel(&self) -> Option<u64> {
        let last = self.given_to_kernel.get();
        (last > self.given_back.get()).then_some(last)
    }

    /// The kernel has given back what it got with the requests up to this one.
    pub(crate) fn give_kernel_up(&self, last: u64, now: Nanos) {
        self.given_back.set(last);
        self.gave_kernel_up.set(Some(now));
    }

    /// When the kernel last gave its pages up.
    pub(crate) fn gave_kernel_up(&self) -> Option<Nanos> {
        self.gave_kernel_up.get()
    }

    fn is_clean(&self) -> bool {
        self.dirty.borrow().is_empty() && self.live.get().is_none()
    }
}

/// A write that has not returned: see [`Node::begin_write`].
pub(crate) struct WriteGuard<'a> {
    node: &'a Node,
    /// Its blocks.
    blocks: RefCell<Vec<u64>>,
}

impl WriteGuard<'_> {
    /// The write makes a block dirty, right after this.
    pub(crate) fn note(&self, block: u64) {
        self.blocks.borrow_mut().push(block);
        if !self.node.dirty.borrow().contains_key(&block) {
            self.node.unacknowledged.borrow_mut().insert(block);
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // Also those of other writes: they hold something that is acknowledged from now on.
        let mut unacknowledged = self.node.unacknowledged.borrow_mut();
        for block in self.blocks.get_mut() {
            unacknowledged.remove(block);
        }
    }
}

/// The node of a file in the hands of an operation.
pub(crate) struct NodeGuard<'a> {
    files: &'a OpenFiles,
    node: Rc<Node>,
}

impl Deref for NodeGuard<'_> {
    type Target = Rc<Node>;

    fn deref(&self) -> &Rc<Node> {
        &self.node
    }
}

impl Drop for NodeGuard<'_> {
    fn drop(&mut self) {
        self.files.forget_clean(&self.node);
    }
}

/// What the dirty blocks of files will make of them.
pub(crate) fn live_of(nodes: &[Rc<Node>]) -> Vec<LoggedFile> {
    let file = |node: &Rc<Node>| {
        let PendingAttributes { size, modified } = node.live.get()?;
        Some(LoggedFile { ino: node.ino, size, modified })
    };
    nodes.iter().filter_map(file).collect()
}

/// The node of a file, among nodes in the order of their numbers.
pub(crate) fn node_among(nodes: &[Rc<Node>], ino: Ino) -> Option<&Rc<Node>> {
    debug_assert!(nodes.is_sorted_by(|a, b| a.ino < b.ino), "in the order of their numbers");
    nodes.binary_search_by_key(&ino, |node| node.ino).ok().map(|at| &nodes[at])
}

/// The files in use.
#[derive(Default)]
pub(crate) struct OpenFiles(RefCell<BTreeMap<Ino, Rc<Node>>>);

impl OpenFiles {
    /// The node of a file for an operation, made if it has none. It goes with the guard, if nothing
    /// else needs it.
    pub(crate) fn node(&self, ino: Ino) -> NodeGuard<'_> {
        NodeGuard { files: self, node: self.get_or_make(ino) }
    }

    fn get_or_make(&self, ino: Ino) -> Rc<Node> {
        let mut nodes = self.0.borrow_mut();
        let fresh = || Node {
            ino,
            lock: Semaphore::new(READERS),
            dirty: RefCell::default(),
            unacknowledged: RefCell::default(),
            drops: Cell::new(0),
            flushed: Cell::new(false),
            live: Cell::new(None),
            losses: Cell::new(0),
            told_losses: Cell::new(0),
            last_loss: Cell::new(Loss::NoRoom),
            uses: Cell::new(0),
            opens: Cell::new(0),
            open_token: RefCell::default(),
            writers: Cell::new(0),
            given_to_kernel: Cell::new(0),
            given_back: Cell::new(0),
            gave_kernel_up: Cell::new(None),
        };
        nodes.entry(ino).or_insert_with(|| Rc::new(fresh())).clone()
    }

    /// The node of a file, if it has one.
    pub(crate) fn get(&self, ino: Ino) -> Option<Rc<Node>> {
        self.0.borrow().get(&ino).cloned()
    }

    /// The files that have blocks or sizes to write.
    pub(crate) fn unclean(&self) -> Vec<Rc<Node>> {
        self.0.borrow().values().filter(|node| !node.is_clean()).cloned().collect()
    }

    /// The blocks of all files that have waited to be written since the write `until`.
    pub(crate) fn count_dirty(&self, until: u64) -> usize {
        self.0.borrow().values().map(|node| node.count_dirty(until)).sum()
    }

    /// Files that have a node.
    pub(crate) fn count(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    /// The node of a file that has blocks or a size to write.
    pub(crate) fn unclean_node(&self, ino: Ino) -> Option<Rc<Node>> {
        self.get(ino).filter(|node| !node.is_clean())
    }

    pub(crate) fn begin_use(&self, ino: Ino) {
        let node = self.get_or_make(ino);
        node.uses.set(node.uses.get() + 1);
    }

    /// Removes the node of a file that is neither in use nor has anything to write.
    pub(crate) fn forget_clean(&self, node: &Rc<Node>) {
        // The table's and the caller's.
        let is_this = self.get(node.ino).is_some_and(|known| Rc::ptr_eq(&known, node));
        if is_this && !node.is_used() && node.is_clean() && Rc::strong_count(node) <= 2 {
            self.0.borrow_mut().remove(&node.ino);
        }
    }

    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        self.get(ino).is_some_and(|node| node.is_used())
    }
}
