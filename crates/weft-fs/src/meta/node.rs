//! The node's half of the metadata: changes that wait, changes that a commit carries to the store,
//! and the numbers that this node gives to new files.
//!
//! Operations change the *open* overlay. A commit freezes it, and sends it to the store in parts;
//! operations continue with a new one, in front of the *frozen* one. The frozen one goes when the
//! store has all of it.
//!
//! *Numbers.* Numbers of files are taken in ranges, so that making a file needs no message. Those
//! that this node gave out since the last batch ended are known to no store: it need not be asked
//! for rows of such a file. With one node there are no other numbers above them; with several, each
//! has a range. After a crash the rest of the range stays unused, and numbers that went with the
//! crash are used again; the generation of a file tells them apart.
//!
//! *Recent rows* are right until another node changes them. A node gets a token before it relies
//! on a row, and another one changes the row only with that token; so they are forgotten whenever a
//! token comes or goes ([`RecentRows::clear`]).

use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::overlay::Overlay;
use super::recent_rows::RecentRows;
use super::rows::{RowKey, TableId};
use crate::format::extent::{Extent, Run};
use crate::format::inode::Ino;
use weft_wire::{End, Part};

/// What was changed and is not in the store.
pub(super) struct Node {
    open: RefCell<Overlay>,
    frozen: RefCell<Option<Rc<Frozen>>>,
    /// The number of the frozen batch, or of the one whose first rows wait.
    batch: Cell<u64>,
    /// Numbers for new files.
    numbers: RefCell<Range<Ino>>,
    /// The store has no rows of files from this number on, and before the other.
    unknown_from: Cell<Ino>,
    unknown_to: Cell<Ino>,
    recent: Rc<RefCell<RecentRows>>,
    /// What was added to rows, less what was removed, with all batches that the store has.
    stored_row_bytes: Cell<u64>,
    /// Places in records that were put since the last commit began, if they are noted.
    places: RefCell<Option<Vec<Run>>>,
}

/// The changes that a commit carries to the store.
pub(super) struct Frozen {
    rows: Overlay,
    /// The store will know no files of this node's range from this number on.
    unknown_from: Ino,
    /// Bytes of rows with this batch.
    row_bytes: u64,
}

impl std::ops::Deref for Frozen {
    type Target = Overlay;

    fn deref(&self) -> &Overlay {
        &self.rows
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            open: RefCell::default(),
            frozen: RefCell::default(),
            batch: Cell::new(0),
            numbers: RefCell::new(0..0),
            unknown_from: Cell::new(Ino::MAX),
            unknown_to: Cell::new(Ino::MAX),
            recent: Rc::default(),
            stored_row_bytes: Cell::new(0),
            places: RefCell::default(),
        }
    }
}

impl Node {
    /// Places in records are noted from now on.
    pub(super) fn note_places(&self) {
        self.places.borrow_mut().get_or_insert_default();
    }

    /// A record is put.
    pub(super) fn note_places_of(&self, record: &Extent) {
        if let Some(places) = &mut *self.places.borrow_mut() {
            places.extend(record.active().map(|(_, column)| column.run()));
        }
    }

    /// Places in records that were put since this was called last.
    pub(super) fn take_places(&self) -> Vec<Run> {
        self.places.borrow_mut().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The store has no rows of files from a number on.
    pub(super) fn set_unknown_from(&self, number: Ino) {
        self.unknown_from.set(number);
        self.numbers.replace(number..number);
    }

    /// The changes that wait.
    pub(super) fn open(&self) -> Ref<'_, Overlay> {
        self.open.borrow()
    }

    /// Changes what waits.
    pub(super) fn change(&self, change: impl FnOnce(&mut Overlay)) {
        change(&mut self.open.borrow_mut());
    }

    /// The changes that a commit carries to the store.
    pub(super) fn frozen(&self) -> Option<Rc<Frozen>> {
        self.frozen.borrow().clone()
    }

    /// What the store said lately.
    pub(super) fn recent(&self) -> Ref<'_, RecentRows> {
        self.recent.borrow()
    }

    /// The same, to take in more.
    pub(super) fn recent_cell(&self) -> &RefCell<RecentRows> {
        &self.recent
    }

    /// The store said this of a row, when it was asked after [`RecentRows::age`] was this.
    pub(super) fn note_recent(
        &self,
        age: u64,
        table: TableId,
        key: RowKey<'_>,
        value: Option<Box<[u8]>>,
    ) {
        let mut recent = self.recent.borrow_mut();
        if recent.age() == age {
            recent.put(table, key, value);
        }
    }

    /// What the store said lately, to be forgotten by whoever knows when.
    pub(super) fn recent_rows(&self) -> Rc<RefCell<RecentRows>> {
        self.recent.clone()
    }

    /// What the store said may not be so any more.
    pub(super) fn forget_recent(&self) {
        self.recent.borrow_mut().clear();
    }

    /// Whether the store can have no rows of a file.
    pub(super) fn is_unknown_to_store(&self, ino: Option<Ino>) -> bool {
        let unknown = self.unknown_from.get()..self.unknown_to.get();
        ino.is_some_and(|ino| unknown.contains(&ino))
    }

    /// Bytes of rows with all batches that the store has.
    pub(super) fn stored_row_bytes(&self) -> u64 {
        self.stored_row_bytes.get()
    }

    pub(super) fn set_stored_row_bytes(&self, bytes: u64) {
        self.stored_row_bytes.set(bytes);
    }

    /// A number for a new file, if there are any left.
    pub(super) fn next_number(&self) -> Option<Ino> {
        self.numbers.borrow_mut().next()
    }

    /// Numbers for new files; gives the first.
    pub(super) fn take_numbers(&self, numbers: Range<Ino>) -> Ino {
        let first = numbers.start;
        self.numbers.replace(first + 1..numbers.end);
        first
    }

    /// The same for numbers of which only this node knows. Rows of files that it made before are
    /// asked of the store from now on.
    pub(super) fn take_range(&self, numbers: Range<Ino>) -> Ino {
        self.unknown_from.set(numbers.start);
        self.unknown_to.set(numbers.end);
        self.take_numbers(numbers)
    }

    /// The first of the numbers that were not used; none if all were.
    pub(super) fn return_numbers(&self) -> Option<Ino> {
        let mut numbers = self.numbers.borrow_mut();
        let unused = numbers.start;
        let any = !numbers.is_empty();
        numbers.end = unused;
        any.then_some(unused)
    }

    /// Freezes what waits. What was frozen before is in the store.
    pub(super) fn freeze(&self, row_bytes: u64) {
        let rows = self.open.take();
        let unknown_from = match self.unknown_from.get() {
            Ino::MAX => Ino::MAX,
            from => from.max(self.numbers.borrow().start),
        };
        let before = self.frozen.replace(Some(Rc::new(Frozen { rows, unknown_from, row_bytes })));
        debug_assert!(before.is_none(), "one commit at a time");
    }

    /// The next part of the batch of `rows`, which are frozen or wait, after a row; none if all of
    /// it was sent.
    pub(super) fn part(
        &self,
        rows: &Overlay,
        after: Option<&(TableId, RowKey<'static>)>,
        max: usize,
    ) -> Option<Part> {
        let rows = rows.due_after(after, max);
        (!rows.is_empty()).then(|| Part { batch: self.batch.get(), rows })
    }

    /// The number of the frozen batch, or of the next one.
    pub(super) fn batch(&self) -> u64 {
        self.batch.get()
    }

    /// The store has all batches before this one.
    pub(super) fn start_at(&self, batch: u64) {
        self.batch.set(batch);
    }

    /// The end of the frozen batch.
    pub(super) fn end(&self, is_last: bool) -> End {
        End { batch: self.batch.get(), is_last }
    }

    /// The store has all that was frozen.
    pub(super) fn thaw(&self) {
        self.recent.borrow_mut().clear();
        if let Some(frozen) = self.frozen.take() {
            // A range that was taken meanwhile lies above.
            if frozen.unknown_from != Ino::MAX {
                self.unknown_from.set(frozen.unknown_from.max(self.unknown_from.get()));
            }
            self.stored_row_bytes.set(frozen.row_bytes);
            self.batch.set(self.batch.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::for_seeds;

    use crate::meta::story::{ID, story};
    use crate::meta::tests::with_array;
    use crate::meta::{Entry, Meta, NEXT_INODE};

    /// Random changes, commits during further changes, changes that are sent early, commits that
    /// are dropped, and crashes. Reads see all changes; a crash leaves those up to a commit.
    #[test]
    fn changes_in_memory_and_the_store_are_one() {
        for_seeds(0..20, |rng| {
            let seed = rng.below(u64::MAX);
            with_array(move |array| async move { story(array.clone(), &array, seed).await });
        });
    }

    #[test]
    fn what_is_made_and_removed_between_commits_leaves_nothing() {
        with_array(|array| async move {
            let meta = Meta::create(array.clone(), ID, 1 << 20).await.expect("made");
            meta.commit(|tx| tx.set_state(NEXT_INODE, 100)).await.expect("committed");
            meta.checkpoint().await.expect("written");
            drop(meta);
            let meta = Meta::open(array, ID, 1 << 20).await.expect("opened");
            let ino = meta.commit(|tx| tx.new_number()).await.expect("committed");
            assert_eq!(ino, 100);
            let entry = Entry { ino: ino + 1, mode: 0, position: 3 };
            let made = meta.run(|tx| {
                assert_eq!(tx.new_number()?, entry.ino);
                tx.put_entry(1, b"name", &entry)?;
                tx.put_xattr(entry.ino, b"user.long", &[7; 1500])?;
                tx.put_orphan(entry.ino)
            });
            made.await.expect("made");
            assert!(meta.node.open().bytes() > 1500 && meta.node.open().due_pages() > 0);
            let removed = meta.run(|tx| {
                tx.remove_entry(1, b"name", &entry)?;
                assert!(tx.remove_xattr(entry.ino, b"user.long")?);
                tx.remove_orphan(entry.ino)
            });
            removed.await.expect("removed");
            assert_eq!((meta.node.open().bytes(), meta.node.open().due_pages()), (0, 0));
            // The numbers that were not used go back with the last commit.
            meta.end();
            meta.commit(|_| Ok(())).await.expect("committed");
            assert_eq!(meta.run(|tx| tx.state(NEXT_INODE)).await.expect("read"), 102);
        });
    }
}
