//! Early commits of this node: what programs have synced that is in the keeper's memory, and that
//! the disks may not have ([`crate::write::early_commit`]).
//!
//! An entry is a block of a file, or the attributes of one. It counts until this node has made the
//! same or newer contents durable and the keeper has heard of that. Until then a node that dies has
//! these contents written by the keeper.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Frozen, Nanos};
use weft_wire::{EARLY_ATTRIBUTES, EarlyAttributes, EarlyBlock, EarlyCommit, EarlyLive};

use crate::format::inode::Ino;
use crate::state::open_files::PendingAttributes;

/// The most entries.
const ENTRIES_MAX: usize = 4096;

/// What an early commit has of a file.
#[derive(Debug, Clone)]
pub(crate) enum EarlyValue {
    Block(Frozen),
    Attributes(PendingAttributes),
}

impl EarlyValue {
    /// Whether these are the same. Contents in memory do not change.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Block(one), Self::Block(other)) => one.as_ptr() == other.as_ptr(),
            (Self::Attributes(one), Self::Attributes(other)) => one == other,
            _ => false,
        }
    }

    /// Adds it to an early commit.
    fn put(&self, block: u64, commit: &mut EarlyCommit) {
        match self {
            Self::Block(data) => commit.blocks.push((block, Box::from(&data[..]))),
            Self::Attributes(PendingAttributes { size, modified }) => {
                let (modified_s, modified_ns) = (modified.s, modified.ns);
                commit.attributes = Some(EarlyAttributes { size: *size, modified_s, modified_ns });
            }
        }
    }
}

struct Entry {
    /// The number of the last early commit of it, and the last log record before that.
    number: u64,
    after: u64,
    /// What that has.
    value: EarlyValue,
    /// Whether a keeper had it at some time, as it is or older.
    was_committed: bool,
    /// Whether the present keeper has answered that it has this.
    is_there: bool,
    /// The disks have it: it counts no more when the keeper knows that.
    is_over: bool,
}

/// How many early commits there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EarlyCounts {
    /// Syncs that the keeper's memory has taken.
    pub commits: u64,
    /// Syncs of overwritten blocks that the keeper did not take in time.
    pub refused: u64,
}

/// See the [module](self).
pub(crate) struct EarlyCommits {
    is_on: Cell<bool>,
    entries: RefCell<BTreeMap<(Ino, u64), Entry>>,
    last_number: Cell<u64>,
    /// No early commit is tried before.
    paused_until: Cell<Nanos>,
    counts: Cell<EarlyCounts>,
    /// Held while they are written because there are many.
    writing: Semaphore,
}

impl Default for EarlyCommits {
    fn default() -> Self {
        Self {
            is_on: Cell::new(false),
            entries: RefCell::default(),
            last_number: Cell::new(0),
            paused_until: Cell::new(0),
            counts: Cell::default(),
            writing: Semaphore::new(1),
        }
    }
}

impl EarlyCommits {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    pub(crate) fn turn_on(&self) {
        self.is_on.set(true);
    }

    pub(crate) fn counts(&self) -> EarlyCounts {
        self.counts.get()
    }

    /// Whether an early commit may be tried.
    pub(crate) fn may_try(&self, now: Nanos) -> bool {
        now >= self.paused_until.get()
    }

    /// One was not answered, or refused.
    pub(crate) fn pause(&self, until: Nanos) {
        self.paused_until.set(until);
        let counts = self.counts.get();
        self.counts.set(EarlyCounts { refused: counts.refused + 1, ..counts });
    }

    /// How many entries there are.
    pub(crate) fn count(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Whether there is room for so many more.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.count() + more <= ENTRIES_MAX
    }

    /// Whether so many are there that they should be written.
    pub(crate) fn are_many(&self) -> bool {
        self.count() >= ENTRIES_MAX / 2
    }

    /// They begin to be written, unless they are being written.
    pub(crate) fn begin_write(&self) -> Option<Permit> {
        self.writing.try_acquire(1)
    }

    /// Whether the keeper has this, as it is.
    pub(crate) fn has(&self, ino: Ino, block: u64, value: &EarlyValue) -> bool {
        let entries = self.entries.borrow();
        let entry = entries.get(&(ino, block));
        entry.is_some_and(|of| of.is_there && !of.is_over && of.value.is(value))
    }

    /// An early commit of blocks of a file begins, after a log record. Returns its number.
    pub(crate) fn begin(&self, ino: Ino, after: u64, values: Vec<(u64, EarlyValue)>) -> u64 {
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        let mut entries = self.entries.borrow_mut();
        for (block, value) in values {
            let was_committed = entries.get(&(ino, block)).is_some_and(|of| of.was_committed);
            let (is_there, is_over) = (false, false);
            let entry = Entry { number, after, value, was_committed, is_there, is_over };
            entries.insert((ino, block), entry);
        }
        number
    }

    /// The keeper has it.
    pub(crate) fn committed(&self, ino: Ino, number: u64) {
        let counts = self.counts.get();
        self.counts.set(EarlyCounts { commits: counts.commits + 1, ..counts });
        let mut entries = self.entries.borrow_mut();
        let of_file = entries.range_mut((ino, 0)..=(ino, EARLY_ATTRIBUTES));
        for (_, entry) in of_file.filter(|(_, entry)| entry.number == number) {
            (entry.was_committed, entry.is_there) = (true, true);
        }
    }

    fn listed(&self, counts: impl Fn(Ino, u64, &Entry) -> bool) -> Vec<EarlyBlock> {
        let entries = self.entries.borrow();
        let counting = entries.iter().filter(|((ino, block), of)| counts(*ino, *block, of));
        let entry = |(&(ino, block), of): (&(Ino, u64), &Entry)| EarlyBlock {
            ino,
            block,
            number: of.number,
        };
        counting.map(entry).collect()
    }

    /// All entries.
    pub(crate) fn all(&self) -> Vec<EarlyBlock> {
        self.listed(|_, _, _| true)
    }

    /// The entries of a file.
    pub(crate) fn of_file(&self, ino: Ino) -> Vec<EarlyBlock> {
        self.listed(|of, _, _| of == ino)
    }

    /// Those of these entries that still have these numbers are over. Returns them.
    pub(crate) fn end(&self, blocks: &[EarlyBlock]) -> Vec<EarlyBlock> {
        let mut entries = self.entries.borrow_mut();
        let mut ended = Vec::new();
        for of in blocks {
            if let Some(entry) =
                entries.get_mut(&(of.ino, of.block)).filter(|at| at.number == of.number)
            {
                entry.is_over = true;
                ended.push(*of);
            }
        }
        ended
    }

    /// The keeper knows that these are over.
    pub(crate) fn forget(&self, blocks: &[EarlyBlock]) {
        let mut entries = self.entries.borrow_mut();
        for of in blocks {
            let at = (of.ino, of.block);
            if entries.get(&at).is_some_and(|entry| entry.is_over && entry.number == of.number) {
                entries.remove(&at);
            }
        }
    }

    /// The RAID log has these blocks of a file, and its attributes if `attributes` is set: they
    /// count no more. Returns those that were entries.
    pub(crate) fn logged(
        &self,
        ino: Ino,
        blocks: impl IntoIterator<Item = u64>,
        attributes: bool,
    ) -> Vec<EarlyBlock> {
        let mut entries = self.entries.borrow_mut();
        let blocks = blocks.into_iter().chain(attributes.then_some(EARLY_ATTRIBUTES));
        let entry = |block| {
            let Entry { number, .. } = entries.remove(&(ino, block))?;
            Some(EarlyBlock { ino, block, number })
        };
        blocks.filter_map(entry).collect()
    }

    /// Which entries count, for a keeper that may have more of them, or none, and what they have.
    pub(crate) fn live(&self) -> (EarlyLive, Vec<EarlyCommit>) {
        let live = EarlyLive {
            committed: self.listed(|_, _, of| !of.is_over && of.was_committed),
            unanswered: self.listed(|_, _, of| !of.is_over && !of.was_committed),
        };
        let mut commits: BTreeMap<(u64, Ino), EarlyCommit> = BTreeMap::new();
        for (&(ino, block), entry) in &mut *self.entries.borrow_mut() {
            // Whether this keeper has it is not known from now on.
            entry.is_there = false;
            if entry.is_over {
                continue;
            }
            let &mut Entry { number, after, .. } = entry;
            let commit = commits.entry((number, ino)).or_insert_with(|| EarlyCommit {
                number,
                after,
                ino,
                attributes: None,
                blocks: Vec::new(),
            });
            entry.value.put(block, commit);
        }
        (live, commits.into_values().collect())
    }

    /// The early commit with this number, as it was begun.
    pub(crate) fn commit(&self, ino: Ino, number: u64) -> Option<EarlyCommit> {
        let entries = self.entries.borrow();
        let of_file = entries.range((ino, 0)..=(ino, EARLY_ATTRIBUTES));
        let mut of_commit = of_file.filter(|(_, entry)| entry.number == number).peekable();
        let after = of_commit.peek()?.1.after;
        let mut commit = EarlyCommit { number, after, ino, attributes: None, blocks: Vec::new() };
        of_commit.for_each(|((_, block), entry)| entry.value.put(*block, &mut commit));
        Some(commit)
    }
}
