//! Locks that programs take on files, by `fcntl` and by `flock`, of all nodes.
//!
//! *Meaning*, as on Linux. An owner's locks of a file are ranges of bytes. A new lock of an owner
//! takes the place of what it has there, and locks of other owners stay in the way of it, unless
//! both are shared. Locks of `flock` are of whole files, and have nothing to do with the others; an
//! owner that changes one gives the old one up first, also if it does not get the new one.
//!
//! *Waiting.* A lock that another one is in the way of can be waited for. When locks go, waiting
//! requests are tried in the order in which they came. If the owners of what is in the way of a
//! `fcntl` lock wait themselves, and in the end for the one that asks, it fails instead
//! ([`LockAnswer::Deadlock`]). Those of `flock` wait for ever then, as on Linux.
//!
//! *Nodes.* Locks of a node that dies go, and so do its requests. A node keeps what it was granted
//! ([`FileLocks::of_node`]), and tells it to the next keeper ([`FileLocks::restate`]).
//!
//! This is plain state without I/O, like [`Authority`](crate::Authority).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::message::{Mode, NodeId};

/// Which locks know each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockFamily {
    /// Of ranges of bytes: `fcntl`.
    Posix,
    /// Of whole files: `flock`.
    Flock,
}

/// Who has a lock: a number that the kernel of a node gives to a process, or to an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockOwner {
    /// The node.
    pub node: NodeId,
    /// The kernel's number.
    pub number: u64,
}

/// A file that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockedFile {
    /// Which locks of it.
    pub family: LockFamily,
    /// Its number.
    pub ino: u64,
}

/// A lock of some bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLock {
    /// Who has it.
    pub owner: LockOwner,
    /// The process that took it, as its node calls it.
    pub pid: u32,
    /// The bytes, which are some.
    pub bytes: Range<u64>,
    /// Whether others may have shared locks there.
    pub mode: Mode,
}

impl FileLock {
    fn overlaps(&self, bytes: &Range<u64>) -> bool {
        self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }

    fn is_in_the_way(&self, of: &Self) -> bool {
        self.owner != of.owner && self.mode.conflicts(of.mode) && self.overlaps(&of.bytes)
    }
}

/// A request that waits: its node, and the node's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockRequest {
    /// The node.
    pub node: NodeId,
    /// The node's number for it.
    pub number: u64,
}

/// What became of a request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAnswer {
    /// The owner has it.
    Granted,
    /// Another lock is in the way.
    Busy,
    /// Its owner would wait for itself.
    Deadlock,
    /// It waits. It is granted later, or cancelled.
    Waits,
}

#[derive(Debug, Default)]
struct Locks {
    held: Vec<FileLock>,
    /// In the order in which they came.
    waiting: Vec<(LockRequest, FileLock)>,
}

impl Locks {
    fn is_unused(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    fn in_the_way<'a>(&'a self, of: &'a FileLock) -> impl Iterator<Item = &'a FileLock> {
        self.held.iter().filter(move |held| held.is_in_the_way(of))
    }

    /// An owner has no lock of these bytes any more.
    fn remove(&mut self, owner: LockOwner, bytes: &Range<u64>) {
        let is_cut = |held: &FileLock| held.owner == owner && held.overlaps(bytes);
        let (cut, kept) = std::mem::take(&mut self.held).into_iter().partition(is_cut);
        self.held = kept;
        let cut: Vec<FileLock> = cut;
        for held in cut {
            let (before, after) = (held.bytes.start..bytes.start, bytes.end..held.bytes.end);
            for rest in [before, after] {
                if rest.start < rest.end {
                    self.held.push(FileLock { bytes: rest, ..held.clone() });
                }
            }
        }
    }

    /// An owner has this lock. It is one with those of its bytes' neighbours that are alike.
    fn add(&mut self, mut lock: FileLock) {
        self.remove(lock.owner, &lock.bytes);
        self.held.retain(|held| {
            let touches = held.bytes.start == lock.bytes.end || held.bytes.end == lock.bytes.start;
            let is_one = held.owner == lock.owner && held.mode == lock.mode && touches;
            if is_one {
                let start = lock.bytes.start.min(held.bytes.start);
                lock.bytes = start..lock.bytes.end.max(held.bytes.end);
            }
            !is_one
        });
        self.held.push(lock);
    }

    /// Grants what waited and can be had now.
    fn advance(&mut self, granted: &mut Vec<LockRequest>) {
        let mut at = 0;
        while at < self.waiting.len() {
            if self.in_the_way(&self.waiting[at].1).next().is_some() {
                at += 1;
                continue;
            }
            let (request, lock) = self.waiting.remove(at);
            // It may be weaker than what its owner had: that may be what another one waits for.
            self.add(lock);
            granted.push(request);
            at = 0;
        }
    }
}

/// The locks of all files.
#[derive(Debug, Default)]
pub struct FileLocks {
    files: BTreeMap<LockedFile, Locks>,
}

impl FileLocks {
    /// A lock that is in the way of this one, if there is one.
    pub fn conflict<'a>(&'a self, file: LockedFile, lock: &'a FileLock) -> Option<&'a FileLock> {
        self.files.get(&file).and_then(|locks| locks.in_the_way(lock).next())
    }

    /// An owner wants a lock. If another one is in the way, it waits if the request has a number.
    /// Requests that waited and are granted by that are added to `granted`.
    pub fn lock(
        &mut self,
        file: LockedFile,
        lock: FileLock,
        waits: Option<LockRequest>,
        granted: &mut Vec<LockRequest>,
    ) -> LockAnswer {
        debug_assert!(lock.bytes.start < lock.bytes.end, "it locks something");
        let locks = self.files.entry(file).or_default();
        let is_free = |locks: &Locks| locks.in_the_way(&lock).next().is_none();
        if file.family == LockFamily::Flock && !is_free(locks) {
            locks.remove(lock.owner, &lock.bytes);
            locks.advance(granted);
        }
        // What waited may be in the way by now.
        if is_free(locks) {
            locks.add(lock);
            locks.advance(granted);
            return LockAnswer::Granted;
        }
        let answer = match waits {
            None => LockAnswer::Busy,
            Some(_) if file.family == LockFamily::Posix && self.is_circle(file, &lock) => {
                LockAnswer::Deadlock
            }
            Some(request) => {
                self.files.entry(file).or_default().waiting.push((request, lock));
                LockAnswer::Waits
            }
        };
        self.forget_unused(file);
        answer
    }

    /// Whether the owners of what is in the way of a lock wait for its owner in the end.
    fn is_circle(&self, file: LockedFile, lock: &FileLock) -> bool {
        let owners_before = |file: &LockedFile, lock: &FileLock| -> Vec<LockOwner> {
            let of = self.files.get(file).into_iter();
            of.flat_map(|locks| locks.in_the_way(lock)).map(|held| held.owner).collect()
        };
        let (mut todo, mut seen) = (owners_before(&file, lock), BTreeSet::new());
        while let Some(owner) = todo.pop() {
            if owner == lock.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            let posix = self.files.iter().filter(|(file, _)| file.family == LockFamily::Posix);
            for (file, locks) in posix {
                let its = locks.waiting.iter().filter(|(_, waiting)| waiting.owner == owner);
                its.for_each(|(_, waiting)| todo.extend(owners_before(file, waiting)));
            }
        }
        false
    }

    /// An owner gives up its locks of these bytes. Requests that are granted by that are added to
    /// `granted`.
    pub fn unlock(
        &mut self,
        file: LockedFile,
        owner: LockOwner,
        bytes: &Range<u64>,
        granted: &mut Vec<LockRequest>,
    ) {
        if let Some(locks) = self.files.get_mut(&file) {
            locks.remove(owner, bytes);
            locks.advance(granted);
            self.forget_unused(file);
        }
    }

    /// A request waits no longer: its program was interrupted. `false` if it does not wait: it was
    /// granted.
    pub fn cancel(&mut self, request: LockRequest) -> bool {
        let mut found = None;
        for (file, locks) in &mut self.files {
            let before = locks.waiting.len();
            locks.waiting.retain(|(waiting, _)| *waiting != request);
            if locks.waiting.len() < before {
                found = Some(*file);
            }
        }
        if let Some(file) = found {
            self.forget_unused(file);
        }
        found.is_some()
    }

    /// A node is dead, or has none of what is known of it. Requests of other nodes that are granted
    /// by that are added to `granted`.
    pub fn end_node(&mut self, node: NodeId, granted: &mut Vec<LockRequest>) {
        for locks in self.files.values_mut() {
            locks.held.retain(|held| held.owner.node != node);
            locks.waiting.retain(|(request, _)| request.node != node);
            locks.advance(granted);
        }
        self.files.retain(|_, locks| !locks.is_unused());
    }

    /// A node is there on a new connection, and has these locks: they take the place of what was
    /// known of it and of its earlier mounts. `false` if a lock of another node is in the way of
    /// one of them. What it waits for it asks for again.
    pub fn replace(
        &mut self,
        node: NodeId,
        held: Vec<(LockedFile, FileLock)>,
        granted: &mut Vec<LockRequest>,
    ) -> bool {
        for locks in self.files.values_mut() {
            locks.held.retain(|held| held.owner.node.number != node.number);
            locks.waiting.retain(|(request, _)| request.node.number != node.number);
        }
        let is_free = held.into_iter().all(|(file, lock)| self.restate(file, lock));
        for locks in self.files.values_mut() {
            locks.advance(granted);
        }
        self.files.retain(|_, locks| !locks.is_unused());
        is_free
    }

    /// Whether an owner has a lock of a file.
    pub fn has(&self, file: LockedFile, owner: LockOwner) -> bool {
        let locks = self.files.get(&file);
        locks.is_some_and(|locks| locks.held.iter().any(|held| held.owner == owner))
    }

    /// A node was granted this by the keeper before. `false` if a lock of another node is in the
    /// way.
    pub fn restate(&mut self, file: LockedFile, lock: FileLock) -> bool {
        let locks = self.files.entry(file).or_default();
        let is_free = locks.in_the_way(&lock).next().is_none();
        if is_free {
            locks.add(lock);
        }
        self.forget_unused(file);
        is_free
    }

    /// The locks of a node.
    pub fn of_node(&self, node: NodeId) -> impl Iterator<Item = (LockedFile, &FileLock)> + '_ {
        let each = self.files.iter();
        let each = each.flat_map(|(file, locks)| locks.held.iter().map(|held| (*file, held)));
        each.filter(move |(_, held)| held.owner.node == node)
    }

    fn forget_unused(&mut self, file: LockedFile) {
        if self.files.get(&file).is_some_and(Locks::is_unused) {
            self.files.remove(&file);
        }
    }
}
