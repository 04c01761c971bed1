//! The walk of a job through the records that may have to move: those of hot parts first, then
//! those of the files in use, then all others, the most recently changed first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::Result;
use crate::format::inode::{Ino, Time};
use crate::jobs::file_queue::FileQueue;
use crate::jobs::migration::{BATCH_BLOCKS, Decide, MovableExtent};
use crate::meta::Tx;
use crate::state::hot_parts::{Part, blocks_of_part, part_of_block};
use crate::state::mounted::FsState;
use crate::write::relayout::at_a_time;

/// Where the next records are looked for.
pub(crate) struct Walk {
    /// Parts that were looked through before their turn. A part that cannot move is not hot again.
    hot: BTreeSet<Part>,
    files: FileQueue,
    /// The next file, and the first block of its next record.
    next: Option<(Ino, u64)>,
    found: MoveQueue,
}

impl Walk {
    fn through(mut files: FileQueue) -> Self {
        let (hot, found) = (BTreeSet::new(), MoveQueue::default());
        let next = files.take_next().map(|ino| (ino, 0));
        Self { hot, files, next, found }
    }

    /// Takes some files out for another node, one of so many that have nothing to do.
    pub(crate) fn take_part(&mut self, idle: usize) -> Vec<Ino> {
        self.files.take_part(idle)
    }

    /// The files that were not looked through, or not moved.
    pub(crate) fn rest(self) -> impl Iterator<Item = Ino> {
        let found = self.found.records.into_iter().map(|found| found.ino);
        found.chain(self.next.map(|(ino, _)| ino)).chain(self.files.rest())
    }

    /// Another node could not move these.
    pub(crate) fn put_back(&mut self, files: impl IntoIterator<Item = Ino>) {
        self.files.put_back(files);
        if self.next.is_none() {
            self.next = self.next_file();
        }
    }

    fn next_file(&mut self) -> Option<(Ino, u64)> {
        self.files.take_next().map(|ino| (ino, 0))
    }
}

/// Records that were found and not yet given out, each once: one in a hot part is in a file, too.
#[derive(Default)]
struct MoveQueue {
    records: Vec<MovableExtent>,
    places: BTreeSet<(Ino, u64)>,
}

impl MoveQueue {
    fn add(&mut self, record: MovableExtent) {
        if self.places.insert((record.ino, record.first)) {
            self.records.push(record);
        }
    }

    /// Whether these are fewer than go into a batch.
    fn is_few(&self) -> bool {
        self.records.iter().map(|found| found.all_blocks).sum::<u64>() < BATCH_BLOCKS
    }

    /// Takes a batch out.
    fn take_batch(&mut self) -> Vec<MovableExtent> {
        let count = match self.records.is_empty() {
            true => 0,
            false => at_a_time(&self.records, BATCH_BLOCKS, |found| found.all_blocks),
        };
        let batch: Vec<_> = self.records.drain(..count).collect();
        for MovableExtent { ino, first, .. } in &batch {
            self.places.remove(&(*ino, *first));
        }
        batch
    }
}
impl FsState {
    /// A walk through the records of the files that have a column on one of these disks.
    pub(crate) async fn walk(&self, disks: &BTreeSet<u16>) -> Result<Walk> {
        Ok(Walk::through(self.files_on(disks).await?))
    }

    /// A walk through the records of these files.
    pub(crate) fn walk_of(&self, files: Vec<Ino>) -> Walk {
        Walk::through(FileQueue::of(files.into_iter().map(|ino| (ino, 0))))
    }

    /// The files with a column on one of these disks: files in use first, then the most recently
    /// changed ones.
    async fn files_on(&self, disks: &BTreeSet<u16>) -> Result<FileQueue> {
        let mut changed: BTreeMap<Ino, (Time, u64)> = BTreeMap::new();
        for disk in disks {
            let mut from = 0;
            loop {
                let some = self.meta().run(|tx| {
                    let inos = tx.inodes_on(*disk, from, self.meta().at_a_time())?;
                    let found = inos.into_iter().map(|ino| {
                        let inode = tx.inode(ino)?;
                        Ok((ino, (inode.modified, inode.blocks)))
                    });
                    found.collect()
                });
                let some: Vec<(Ino, (Time, u64))> = some.await?;
                let Some((last, _)) = some.last() else { break };
                from = last + 1;
                changed.extend(some);
            }
        }
        let mut files: Vec<_> = changed.into_iter().collect();
        files.sort_by_cached_key(|(ino, (changed, _))| {
            Reverse((self.open_files().is_used(*ino), *changed))
        });
        Ok(FileQueue::of(files.into_iter().map(|(ino, (_, blocks))| (ino, blocks))))
    }

    /// The next records with columns that are to move, about [`BATCH_BLOCKS`]; none are left if
    /// there are none. Those of hot parts come first, then those of the files in their order.
    pub(crate) async fn next_found(
        &self,
        walk: &mut Walk,
        decide: &impl Decide,
    ) -> Result<Vec<MovableExtent>> {
        let max = self.meta().at_a_time();
        while walk.found.is_few()
            && let Some(part) = self.hot_parts().take_hottest(self.rt().now())
        {
            let mut range = Some(blocks_of_part(part)).filter(|_| walk.hot.insert(part));
            while let Some(blocks) = range {
                let (end, at) = (blocks.end, (part.0, blocks));
                let found = &mut walk.found;
                let look = |tx: &Tx<'_>| records_to_move(tx, at.clone(), max, decide, found);
                range = self.meta().run(look).await?.map(|from| from..end);
                self.job_may_go_on()?;
            }
        }
        while let Some((ino, from)) = walk.next
            && walk.found.is_few()
        {
            let at = (ino, from..u64::MAX);
            let Walk { hot, found, .. } = walk;
            let known = found.records.len();
            let look = |tx: &Tx<'_>| records_to_move(tx, at.clone(), max, decide, found);
            let rest = self.meta().run(look).await?;
            // Those of a hot part were given out before, and could not move.
            let again = found.records.iter_mut().skip(known);
            again
                .filter(|record| hot.contains(&part_of_block(record.ino, record.first)))
                .for_each(|record| record.blocks = 0);
            walk.next = rest.map(|from| (ino, from)).or_else(|| walk.next_file());
            self.job_may_go_on()?;
        }
        Ok(walk.found.take_batch())
    }
}

/// Adds those of the next `max` records that begin within blocks of a file and have columns which
/// are to move. Returns from which block on there may be more.
fn records_to_move(
    tx: &Tx<'_>,
    (ino, blocks): (Ino, Range<u64>),
    max: usize,
    decide: &impl Decide,
    found: &mut MoveQueue,
) -> Result<Option<u64>> {
    let mut records = tx.records_from((ino, blocks.start), max)?;
    let count = records.len();
    records.retain(|(of, first, _)| *of == ino && *first < blocks.end);
    let is_all = count < max || records.len() < count;
    let rest = records.last().filter(|_| !is_all).map(|(_, first, _)| first + 1);
    for (_, first, record) in records {
        let blocks = decide.count(&record) * record.lines;
        let all_blocks = record.active_blocks();
        if blocks > 0 {
            found.add(MovableExtent { ino, first, blocks, all_blocks });
        }
    }
    Ok(rest)
}
