//! Bad blocks: places that failed on disks that work.
//!
//! A block that cannot be read is a *suspect* first. It is moved when its file can be locked
//! ([`crate::write::remap`]): a reader holds the file together with other readers. With that, or if
//! it cannot be written, it is *bad*: nothing gets it any more, also after the next mount. Bad
//! blocks are in the free space of no disk ([`crate::disks::free_map`]), and in the metadata with
//! the commit that names their contents' new places: the record and the bad block change together.
//!
//! A record may still name a bad block, if no redundancy gives its contents, or no disk has room.
//! It is given another place when it is written, and does not become free when the file goes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::disks::member::Member;
use crate::format::inode::Ino;

/// What lies on a block: the file, the first block of the line, and the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) ino: Ino,
    pub(crate) block: u64,
    pub(crate) unit: usize,
}

/// Disk and block.
pub(crate) type Spot = (u16, u64);

/// What was found since the last commit.
#[derive(Default)]
pub(crate) struct BadBlocks {
    suspects: RefCell<BTreeMap<Spot, Suspect>>,
    found: RefCell<BTreeSet<Spot>>,
    /// Times that a block moved that the log has at its old place, and how many of these are
    /// durable.
    logged_elsewhere: Cell<u64>,
    durable: Cell<u64>,
}

impl BadBlocks {
    /// A block could not be read, or not be rewritten. Returns whether that is new.
    pub(crate) fn suspect(&self, member: &Member, block: u64, suspect: Suspect) -> bool {
        let spot = (member.number, block);
        !member.is_bad(block) && self.suspects.borrow_mut().insert(spot, suspect).is_none()
    }

    /// Whether there are suspects.
    pub(crate) fn any_suspects(&self) -> bool {
        !self.suspects.borrow().is_empty()
    }

    /// A suspect; it stays one until it is cleared.
    pub(crate) fn next_suspect(&self) -> Option<(Spot, Suspect)> {
        let suspects = self.suspects.borrow();
        suspects.first_key_value().map(|(spot, suspect)| (*spot, *suspect))
    }

    /// A block is not suspected any more.
    pub(crate) fn clear(&self, spot: Spot) {
        self.suspects.borrow_mut().remove(&spot);
    }

    /// A block is bad.
    pub(super) fn found(&self, disk: u16, block: u64) {
        self.found.borrow_mut().insert((disk, block));
    }

    /// Whether there are bad blocks that are not in the metadata.
    pub(crate) fn any_found(&self) -> bool {
        !self.found.borrow().is_empty()
    }

    /// Bad blocks that are not in the metadata yet.
    pub(crate) fn take_found(&self) -> BTreeSet<Spot> {
        self.found.take()
    }

    /// A block moved that the log has at its old place.
    pub(crate) fn note_logged_elsewhere(&self) {
        self.logged_elsewhere.set(self.logged_elsewhere.get() + 1);
    }

    /// How often that happened.
    pub(crate) fn logged_elsewhere(&self) -> u64 {
        self.logged_elsewhere.get()
    }

    /// The first `moved` of these are in the metadata, durably.
    pub(crate) fn durable(&self, moved: u64) {
        self.durable.set(self.durable.get().max(moved));
    }

    /// Whether there is such a block whose new place is not durable.
    pub(crate) fn any_logged_elsewhere(&self) -> bool {
        self.logged_elsewhere.get() != self.durable.get()
    }
}
