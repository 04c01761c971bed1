//! The node's half of the metadata: changes that wait, changes that a commit carries to the store,
//! and the numbers that this node gives to new files.
//!
//! Operations change the *open* overlay. A commit freezes it, and sends it to the store in parts;
//! operations continue with a new one, in front of the *frozen* one. The frozen one goes when the
//! store has all of it.
//!
//! *Numbers.* Numbers of files are taken in ranges, so that making a file needs no message. Those
//! that this node gave out since the last batch ended are known to no store: it need not be asked
//! for rows of such a file. After a crash the rest of the range stays unused, and numbers that went
//! with the crash are used again; the generation of a file tells them apart.

use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::overlay::Overlay;
use super::recent_rows::RecentRows;
use super::rows::{RowKey, TableId};
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
    /// The store has no rows of files from this number on.
    unknown_from: Cell<Ino>,
    recent: RefCell<RecentRows>,
}

/// The changes that a commit carries to the store.
pub(super) struct Frozen {
    rows: Overlay,
    /// The store will know no files from this number on.
    unknown_from: Ino,
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
            recent: RefCell::default(),
        }
    }
}

impl Node {
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

    /// The store says this of a row.
    pub(super) fn note_recent(&self, table: TableId, key: RowKey<'_>, value: Option<Box<[u8]>>) {
        self.recent.borrow_mut().put(table, key, value);
    }

    /// Whether the store can have no rows of a file.
    pub(super) fn is_unknown_to_store(&self, ino: Option<Ino>) -> bool {
        ino.is_some_and(|ino| ino >= self.unknown_from.get())
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

    /// The first of the numbers that were not used; none if all were.
    pub(super) fn return_numbers(&self) -> Option<Ino> {
        let mut numbers = self.numbers.borrow_mut();
        let unused = numbers.start;
        let any = !numbers.is_empty();
        numbers.end = unused;
        any.then_some(unused)
    }

    /// Freezes what waits. What was frozen before is in the store.
    pub(super) fn freeze(&self) {
        let rows = self.open.take();
        let unknown_from = match self.unknown_from.get() {
            Ino::MAX => Ino::MAX,
            from => from.max(self.numbers.borrow().start),
        };
        let before = self.frozen.replace(Some(Rc::new(Frozen { rows, unknown_from })));
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
            self.unknown_from.set(frozen.unknown_from);
            self.batch.set(self.batch.get() + 1);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::ops::ControlFlow;

    use futures_util::future::{Either, join, select};
    use weft_array::{Array, Id};
    use weft_random::Rng;
    use weft_rt::Buf;
    use weft_testkit::for_seeds;

    use crate::format::inode::Ino;
    use crate::meta::rows::{RowKey, XATTRS, all, between};
    use crate::meta::tests::with_array;
    use crate::meta::{Entry, Meta, NEXT_INODE, Tx};

    pub(in crate::meta) const ID: Id = Id([9; 16]);
    const FOLDERS: u64 = 4;

    /// The expected metadata.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    struct Model {
        xattrs: BTreeMap<(Ino, Vec<u8>), Vec<u8>>,
        /// Folder and position: name and file.
        entries: BTreeMap<(Ino, u64), (Vec<u8>, Ino)>,
        bad: BTreeSet<(u16, u64)>,
        /// Files that were given a number.
        files: Vec<Ino>,
    }

    impl Model {
        /// Does something to both, in one operation.
        fn change(&mut self, tx: &Tx<'_>, rng: &mut Rng) {
            for _ in 0..1 + rng.below(4) {
                let known = self.files.len();
                let ino = if known > 0 && rng.chance(50) {
                    self.files[rng.index(known)]
                } else {
                    1 + rng.below(FOLDERS)
                };
                let name = format!("user.{}", rng.below(6)).into_bytes();
                let (folder, position) = (1 + rng.below(FOLDERS), rng.below(12));
                match rng.below(9) {
                    0..3 => {
                        let len = *rng.pick(&[0, 5, 600, 1500]);
                        let value = vec![*rng.pick(&[1, 7, 200]); len];
                        tx.put_xattr(ino, &name, &value).expect("put");
                        self.xattrs.insert((ino, name), value);
                    }
                    3 => {
                        let was = tx.remove_xattr(ino, &name).expect("removed");
                        assert_eq!(was, self.xattrs.remove(&(ino, name)).is_some());
                    }
                    4..6 => {
                        let name = format!("name{position}").into_bytes();
                        tx.put_entry(folder, &name, &Entry { ino, mode: 0, position })
                            .expect("put");
                        self.entries.insert((folder, position), (name, ino));
                    }
                    6 => {
                        if let Some((name, ino)) = self.entries.remove(&(folder, position)) {
                            let entry = Entry { ino, mode: 0, position };
                            tx.remove_entry(folder, &name, &entry).expect("removed");
                        }
                    }
                    7 if rng.chance(20) => {
                        tx.remove_bad_of(1).expect("removed");
                        self.bad.retain(|(disk, _)| *disk != 1);
                    }
                    7 => {
                        let bad = (*rng.pick(&[0, 1, 2]), rng.below(20));
                        tx.put_bad(bad.0, bad.1).expect("put");
                        self.bad.insert(bad);
                    }
                    _ => self.files.push(tx.new_number().expect("a number")),
                }
            }
        }

        /// Looks at a part of the metadata.
        fn look(&self, tx: &Tx<'_>, rng: &mut Rng) {
            let ino = 1 + rng.below(FOLDERS);
            let of_file: Vec<_> = self.xattrs.iter().filter(|((of, _), _)| *of == ino).collect();
            let names: Vec<_> = of_file.iter().map(|((_, name), _)| name.clone()).collect();
            assert_eq!(tx.xattr_names(ino, usize::MAX).expect("read"), names);
            let name = format!("user.{}", rng.below(6)).into_bytes();
            let value = self.xattrs.get(&(ino, name.clone())).cloned();
            assert_eq!(tx.xattr(ino, &name).expect("read"), value);
            let last = tx.last(
                &XATTRS,
                between(RowKey::number(ino), RowKey::number(ino + 1)),
                |(_, name), _| name.to_vec(),
            );
            assert_eq!(last.expect("read"), names.last().cloned());
            let (from, max) = (rng.below(12), rng.index(6));
            let entries: Vec<_> = self
                .entries
                .range((ino, from)..(ino + 1, 0))
                .take(max)
                .map(|((_, position), (name, ino))| (name.clone(), *ino, *position))
                .collect();
            let found = tx.entries(ino, from, max).expect("read").into_iter();
            let found: Vec<_> =
                found.map(|(name, entry)| (name, entry.ino, entry.position)).collect();
            assert_eq!(found, entries);
            assert_eq!(tx.count(&XATTRS).expect("known"), self.xattrs.len() as u64);
            assert_eq!(tx.count_row_bytes().expect("read"), tx.changes.row_bytes());
        }

        /// The metadata as it is.
        fn of(tx: &Tx<'_>, files: &[Ino]) -> Self {
            let mut names = Vec::new();
            tx.scan(&XATTRS, &all(), |(ino, name), _| {
                names.push((ino, name.to_vec()));
                Ok(ControlFlow::Continue(()))
            })
            .expect("read");
            let value = |(ino, name): (Ino, Vec<u8>)| {
                let value = tx.xattr(ino, &name).expect("read").expect("there");
                ((ino, name), value)
            };
            let entries = tx.names_behind((0, b""), usize::MAX).expect("read").into_iter();
            let next = tx.state(NEXT_INODE).expect("read");
            Self {
                xattrs: names.into_iter().map(value).collect(),
                entries: entries
                    .map(|(folder, name, entry)| ((folder, entry.position), (name, entry.ino)))
                    .collect(),
                bad: tx.bad_blocks().expect("read").into_iter().collect(),
                files: files.iter().copied().filter(|ino| *ino < next).collect(),
            }
        }
    }

    /// Where the keeper is, and how a node reaches it.
    pub(in crate::meta) trait Site {
        /// A node comes.
        async fn open(&self, cache: u64) -> Meta;

        /// After the node has died: the keeper dies as well, or lives on.
        async fn reopen(&self, cache: u64, lives_on: bool) -> Meta;
    }

    /// In the process of the node.
    impl Site for Array {
        async fn open(&self, cache: u64) -> Meta {
            Meta::open(self.clone(), ID, cache).await.expect("opened")
        }

        async fn reopen(&self, cache: u64, _: bool) -> Meta {
            self.open(cache).await
        }
    }

    async fn pass(array: &Array, turns: u64) {
        for _ in 0..turns {
            array.read(0, Buf::new(512)).await.0.expect("read");
        }
    }

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

    /// Random changes, commits and crashes.
    pub(in crate::meta) async fn story(array: Array, site: &impl Site, seed: u64) {
        let mut rng = Rng::new(seed);
        let cache = *rng.pick(&[0, 1 << 20]);
        let meta = Meta::create(array.clone(), ID, cache).await.expect("made");
        meta.commit(|tx| tx.set_state(NEXT_INODE, 100)).await.expect("committed");
        meta.checkpoint().await.expect("written");
        drop(meta);
        let mut model = Model::default();
        for _ in 0..4 {
            let meta = site.open(cache).await;
            let found = meta.run(|tx| Ok(Model::of(tx, &model.files))).await.expect("read");
            assert_eq!(found.xattrs, model.xattrs);
            assert_eq!(found.entries, model.entries);
            assert_eq!(found.bad, model.bad);
            let mut durable = vec![model.clone()];
            for _ in 0..20 + rng.below(100) {
                match rng.below(12) {
                    0 => {
                        meta.commit(|_| Ok(())).await.expect("committed");
                        durable = vec![model.clone()];
                    }
                    1 => {
                        let before = model.clone();
                        let turns = rng.below(4);
                        let changes = async {
                            pass(&array, turns).await;
                            for _ in 0..5 {
                                let run = meta.run(|tx| {
                                    model.change(tx, &mut rng);
                                    model.look(tx, &mut rng);
                                    Ok(())
                                });
                                run.await.expect("changed");
                            }
                        };
                        // Which of the changes the commit takes is not known from here.
                        let frozen = std::cell::RefCell::new(None);
                        let commit = meta.commit(|tx| {
                            let all = (1..=FOLDERS).chain(before.files.iter().copied());
                            *frozen.borrow_mut() = Some(Model::of(tx, &all.collect::<Vec<_>>()));
                            Ok(())
                        });
                        join(commit, changes).await.0.expect("committed");
                        durable = vec![frozen.take().expect("it was frozen")];
                    }
                    5 => {
                        if meta.is_settled().await.expect("known") {
                            durable = vec![model.clone()];
                        }
                    }
                    2 => drop(meta.needs_commit().await.expect("known")),
                    3 => {
                        meta.run(|_| Ok(())).await.expect("run");
                        let part = meta.operating.acquire(1).await;
                        if meta.node.frozen().is_none() {
                            meta.send_early().await.expect("sent");
                        }
                        drop(part);
                    }
                    4 => {
                        let dropped = {
                            let commit = std::pin::pin!(meta.commit(|_| Ok(())));
                            let other = std::pin::pin!(pass(&array, rng.below(6)));
                            match select(commit, other).await {
                                Either::Left((ended, _)) => ended.map(|()| false),
                                Either::Right(_) => Ok(true),
                            }
                        };
                        match dropped.expect("committed") {
                            true => durable.push(model.clone()),
                            false => durable = vec![model.clone()],
                        }
                        if meta.is_failed() {
                            break;
                        }
                    }
                    _ => {
                        let run = meta.run(|tx| {
                            model.change(tx, &mut rng);
                            model.look(tx, &mut rng);
                            Ok(())
                        });
                        run.await.expect("changed");
                    }
                }
            }
            drop(meta);
            let meta = site.reopen(cache, rng.chance(50)).await;
            let found = meta.run(|tx| Ok(Model::of(tx, &model.files))).await.expect("read");
            let fits = |at: &&Model| {
                (&at.xattrs, &at.entries, &at.bad) == (&found.xattrs, &found.entries, &found.bad)
            };
            assert!(durable.iter().any(|at| fits(&at)), "{found:?} is none of {durable:?}");
            model = found;
        }
    }
}
