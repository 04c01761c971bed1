//! What the metadata must be, in tests: a plain model, and a story of random changes, commits and
//! crashes, with the keeper in the process of the node or somewhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use futures_util::future::{Either, join, select};
use weft_array::{Array, Id};
use weft_random::Rng;
use weft_rt::Buf;

use super::rows::{RowKey, XATTRS, all, between};
use super::{Entry, Meta, NEXT_INODE, Tx};
use crate::format::inode::Ino;

pub(super) const ID: Id = Id([9; 16]);
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
                    tx.put_entry(folder, &name, &Entry { ino, mode: 0, position }).expect("put");
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
    fn look(&self, meta: &Meta, tx: &Tx<'_>, rng: &mut Rng) {
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
        let found: Vec<_> = found.map(|(name, entry)| (name, entry.ino, entry.position)).collect();
        assert_eq!(found, entries);
        assert_eq!(tx.count(&XATTRS).expect("known"), self.xattrs.len() as u64);
        assert!(meta.is_counted(tx).expect("read"));
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
pub(super) trait Site {
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

/// Random changes, commits and crashes.
pub(super) async fn story(array: Array, site: &impl Site, seed: u64) {
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
                                model.look(&meta, tx, &mut rng);
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
                        model.look(&meta, tx, &mut rng);
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
