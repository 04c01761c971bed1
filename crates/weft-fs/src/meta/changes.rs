//! What was changed since the last durable commit, as far as fsync and the RAID log must know.
//!
//! An overwrite of active lines needs no commit to survive a crash: the RAID log has all of it. So
//! fsync commits only for files that something else was done to.
//!
//! The log speaks of places. Recovery goes by the places of the *committed* record, and a line with
//! only some known columns cannot be recovered. So lines that exist and have got another column
//! since then are *reshaped*: a commit must come before they are logged again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::rc::Rc;

use weft_rt::rng::Fold;

use super::extent_watches::{ExtentWatch, ExtentWatches};
use crate::format::inode::Ino;

/// Changes of a transaction.
#[derive(Default)]
struct ChangeSet {
    /// Each row that changes asks for it.
    files: HashSet<Ino, BuildHasherDefault<Fold>>,
    reshaped: BTreeSet<(Ino, u64)>,
}

/// The most changed files and folders that a watch notes.
const WATCHED_MAX: usize = 1 << 18;

/// What changes while someone looks at all of it, in steps.
#[derive(Default)]
enum Watch {
    /// Nobody looks.
    #[default]
    Off,
    /// These have changed.
    Some(BTreeSet<Ino>),
    /// Too many have.
    Many,
}

/// The changes of the open transaction, and of the one that is being committed.
#[derive(Default)]
pub(crate) struct Changes {
    any: Cell<bool>,
    /// Bytes of all rows that this node has added, less those that it has removed, as of now: with
    /// other nodes it may be below zero.
    row_bytes: Cell<u64>,
    /// Whether the present changes are in the RAID log.
    logged: Cell<bool>,
    open: RefCell<ChangeSet>,
    committing: RefCell<ChangeSet>,
    watch: RefCell<Watch>,
    extents: Rc<ExtentWatches>,
}

impl Changes {
    /// Something changes that belongs to a file or folder, if to any.
    pub(super) fn note(&self, ino: Option<Ino>) {
        self.any.set(true);
        let mut watch = self.watch.borrow_mut();
        if let Watch::Some(changed) = &mut *watch {
            changed.extend(ino);
            if changed.len() > WATCHED_MAX {
                *watch = Watch::Many;
            }
        }
        drop(watch);
        if !self.logged.get() {
            self.open.borrow_mut().files.extend(ino);
        }
    }

    /// Starts to note what changes, or ends it.
    pub(super) fn watch(&self, on: bool) {
        *self.watch.borrow_mut() = if on { Watch::Some(BTreeSet::new()) } else { Watch::Off };
    }

    /// Whether a file or folder may have changed since the watch started.
    pub(super) fn may_have_changed(&self, ino: Ino) -> bool {
        match &*self.watch.borrow() {
            Watch::Some(changed) => changed.contains(&ino),
            Watch::Off | Watch::Many => true,
        }
    }

    /// Watches these blocks of a file, which are those of an extent.
    pub(super) fn watch_extent(&self, ino: Ino, blocks: Range<u64>) -> ExtentWatch {
        self.extents.watch(ino, blocks)
    }

    /// A record with these blocks of a file is stored or removed, or another node may do so.
    pub(super) fn note_extent(&self, ino: Ino, blocks: Range<u64>) {
        self.extents.note(ino, blocks);
    }

    /// A row of `old` bytes is replaced by one of `new`. `None`: no row.
    pub(super) fn note_row(&self, old: Option<u64>, new: Option<u64>) {
        let left = self.row_bytes.get().wrapping_sub(old.unwrap_or(0));
        self.row_bytes.set(left.wrapping_add(new.unwrap_or(0)));
    }

    /// Bytes of all rows that this node has added, less those that it has removed.
    pub(super) fn row_bytes(&self) -> u64 {
        self.row_bytes.get()
    }

    pub(super) fn set_row_bytes(&self, bytes: u64) {
        self.row_bytes.set(bytes);
    }

    /// Runs a part of an operation that changes nothing but what the RAID log has, or what recovery
    /// does not depend on.
    pub(super) fn logged<T>(&self, part: impl FnOnce() -> T) -> T {
        self.logged.set(true);
        let result = part();
        self.logged.set(false);
        result
    }

    /// A line that exists, with this first block, gets another column.
    pub(super) fn note_reshaped(&self, ino: Ino, block: u64) {
        self.open.borrow_mut().reshaped.insert((ino, block));
    }

    /// Whether the open transaction changes anything.
    pub(super) fn any(&self) -> bool {
        self.any.get()
    }

    /// Whether anything was done to a file since the last durable commit that the RAID log does not
    /// have.
    pub(super) fn has(&self, ino: Ino) -> bool {
        [&self.open, &self.committing].iter().any(|of| of.borrow().files.contains(&ino))
    }

    /// Whether a line was reshaped since the last durable commit.
    pub(super) fn is_reshaped(&self, ino: Ino, block: u64) -> bool {
        let line = (ino, block);
        [&self.open, &self.committing].iter().any(|of| of.borrow().reshaped.contains(&line))
    }

    /// The open transaction ends. One before may have been left by a commit that was dropped: it is
    /// made durable with this one.
    pub(super) fn begin_commit(&self) {
        self.any.set(false);
        let (open, mut committing) = (self.open.take(), self.committing.borrow_mut());
        committing.files.extend(open.files);
        committing.reshaped.extend(open.reshaped);
    }

    /// The commit that had started is durable.
    pub(super) fn end_commit(&self) {
        self.committing.take();
    }
}
