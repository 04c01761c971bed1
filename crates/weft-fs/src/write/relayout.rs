//! Laying lines out anew: as narrow as the disks that are left demand, or with another redundancy.
//!
//! The blocks of records are read, laid out as new lines, and replace the records. Many records are
//! taken at a time: all disks read and write side by side, in long requests, and are flushed once.

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_rt::Frozen;

use crate::disks::extent_stripe::part_of;
use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::{Ino, Kind};
use crate::format::redundancy::Redundancy;
use crate::meta::Tx;
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::Dirty;
use crate::write::dirty_memory::BLOCKS_MAX;
use crate::write::new_lines::LineWrite;

/// A record that is to be laid out anew.
pub(crate) struct OldLines {
    pub(crate) ino: Ino,
    pub(crate) first: u64,
    /// The first block of the file behind it.
    end: u64,
    pub(crate) record: Extent,
}

/// How many of these extents are moved at a time: as many as hold about this many blocks.
pub(crate) fn at_a_time<T>(records: &[T], most: u64, blocks: impl Fn(&T) -> u64) -> usize {
    let mut sum = 0;
    let fits = |record: &&T| {
        sum += blocks(record);
        sum <= most
    };
    records.iter().take_while(fits).count().max(1)
}

impl OldLines {
    fn covers(&self, target: &LineWrite) -> bool {
        target.ino == self.ino && (self.first..self.end).contains(&target.first)
    }
}

impl FsState {
    /// A record that is to be laid out anew; `first` is its first block.
    pub(crate) async fn old(&self, ino: Ino, first: u64, record: Extent) -> Result<OldLines> {
        let next = self.meta.run(|tx| tx.next_record(ino, first + 1)).await?;
        let end = (first + record.blocks()).min(next.unwrap_or(u64::MAX));
        Ok(OldLines { ino, first, end, record })
    }

    /// Lays the lines of records out as new ones. Returns for each the number of its blocks, or why
    /// it stays as it is: [`FsError::Unreadable`] or [`FsError::NoSpace`]. The caller holds the
    /// locks of the files alone, and that of flushes.
    pub(crate) async fn relayout(&self, records: &[OldLines]) -> Result<Vec<Result<u64>>> {
        let read = join_all(records.iter().map(|old| self.contents_of(old))).await;
        // What is not read yet counts as done.
        let mut outcomes: Vec<Result<u64>> = Vec::with_capacity(records.len());
        let mut left: Vec<(usize, Dirty)> = Vec::new();
        for (n, read) in read.into_iter().enumerate() {
            outcomes.push(read.map(|blocks| {
                let count = blocks.len() as u64;
                left.push((n, blocks));
                count
            }));
        }
        // Each time that it has to be repeated there is a disk less.
        while !left.is_empty() {
            left = self.try_relayout(records, left, &mut outcomes).await?;
        }
        Ok(outcomes)
    }

    /// Rewrites extents one part at a time; all must succeed.
    pub(crate) async fn relayout_all(&self, records: &[OldLines]) -> Result<()> {
        let mut rest = records;
        while !rest.is_empty() {
            let (some, behind) =
                rest.split_at(at_a_time(rest, BLOCKS_MAX as u64, |old| old.record.active_blocks()));
            self.relayout(some).await?.into_iter().try_for_each(|laid| laid.map(drop))?;
            rest = behind;
        }
        Ok(())
    }

    /// Those that are left, by their numbers, with their blocks. Returns those that must
    /// be tried again: a disk was lost meanwhile.
    async fn try_relayout(
        &self,
        records: &[OldLines],
        left: Vec<(usize, Dirty)>,
        outcomes: &mut [Result<u64>],
    ) -> Result<Vec<(usize, Dirty)>> {
        let mut targets: Vec<LineWrite> = Vec::new();
        let mut planned = Vec::new();
        for (n, blocks) in left {
            match self.lines_for(&records[n], &blocks).await {
                Ok(lines) => {
                    planned.push((n, blocks, lines.len()));
                    targets.extend(lines);
                }
                Err(error) => outcomes[n] = Err(error),
            }
        }
        match self.write_targets(&mut targets, &[]).await {
            Ok(()) => {}
            Err(FsError::NoSpace) => {
                planned.iter().for_each(|(n, _, _)| outcomes[*n] = Err(FsError::NoSpace));
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        }
        // What they replace is intact, and stays so until they are durable.
        self.pool.flush().await;
        targets.retain(|target| {
            let laid = self.pool.lay(&target.record);
            let whole = laid.is_ok_and(|laid| laid.stripe().lost.is_empty());
            if !whole {
                self.release_new(std::slice::from_ref(target));
            }
            whole
        });
        // Lines of which a disk was lost are not among the targets any more.
        let mut targets = targets.into_iter().peekable();
        let (mut again, mut done) = (Vec::new(), Vec::new());
        for (n, blocks, count) in planned {
            let old = &records[n];
            let mut lines = Vec::with_capacity(count);
            while let Some(target) = targets.next_if(|target| old.covers(target)) {
                lines.push(target);
            }
            if lines.len() == count {
                done.push((old, lines));
            } else {
                self.release_new(&lines);
                again.push((n, blocks));
            }
        }
        let replace = |tx: &Tx<'_>| {
            done.iter().try_for_each(|(old, lines)| self.replace_record(tx, old, lines))
        };
        self.meta.run(replace).await?;
        Ok(again)
    }

    /// New lines for the blocks of a record.
    async fn lines_for(&self, old: &OldLines, blocks: &[(u64, Frozen)]) -> Result<Vec<LineWrite>> {
        let OldLines { ino, first, end, .. } = *old;
        let redundancy = self.meta.run(|tx| tx.inode(ino)).await?.redundancy;
        let mut lines: Vec<LineWrite> = Vec::new();
        let mut rest = blocks;
        while !rest.is_empty() {
            let before = lines.last().map(|target| (target.first, &target.record));
            match self.new_lines_between(before, (first, end), ino, redundancy, rest, BLOCKS_MAX) {
                Ok(target) => {
                    rest = &rest[target.blocks.len()..];
                    lines.push(target);
                }
                Err(error) => {
                    self.release_new(&lines);
                    return Err(error);
                }
            }
        }
        Ok(lines)
    }

    fn replace_record(&self, tx: &Tx<'_>, old: &OldLines, lines: &[LineWrite]) -> Result<()> {
        let mut inode = tx.inode(old.ino)?;
        tx.remove_record(old.ino, old.first)?;
        inode.blocks -= old.record.data_blocks();
        for target in lines {
            inode.blocks += target.record.data_blocks();
            tx.put_record(old.ino, target.first, &target.record)?;
        }
        self.free_later(&old.record);
        tx.put_inode(old.ino, &inode)
    }

    /// The contents of a record's active data blocks, as far as no other record covers them.
    async fn contents_of(&self, old: &OldLines) -> Result<Dirty> {
        let OldLines { ino, first, end, record } = old;
        let data = UnitSet::first(record.coded.k());
        let active: UnitSet = record.active().map(|(unit, _)| unit).collect();
        let units = active.intersection(&data);
        let laid = self.pool.lay(record)?;
        let read = laid.read(record, (*ino, *first), units, 0..record.lines).await?;
        let read: Vec<(usize, Frozen)> =
            read.into_iter().map(|(unit, buf)| (unit, buf.freeze())).collect();
        let mut blocks = Vec::new();
        for line in 0..record.lines {
            for (unit, data) in &read {
                let block = first + line * record.k() + *unit as u64;
                if block < *end {
                    let part = part_of(0, line);
                    blocks.push((block, data.slice(part.start, part.len())));
                }
            }
        }
        Ok(blocks)
    }

    /// Fails if there are too few disks for this.
    pub(crate) fn check_redundancy(&self, redundancy: Redundancy) -> Result<()> {
        self.check_writable()?;
        let members = self.pool.members();
        let usable = members.iter().filter(|member| !member.is_lost()).count();
        match redundancy.coded(usable) {
            Some(_) => Ok(()),
            None => Err(FsError::Invalid(format!(
                "{redundancy} needs more disks than the {usable} that are there"
            ))),
        }
    }

    /// Sets the redundancy of a file. What it holds waits to be laid out anew.
    pub(crate) async fn want_redundancy(&self, ino: Ino, redundancy: Redundancy) -> Result<()> {
        let now = self.now();
        let _held = self.hold_files([ino]).await;
        // What waits of it has room for the lines that it was to have.
        if let Some(node) = self.in_use.unclean_node(ino) {
            self.flush_file(&node).await?;
        }
        let set = |tx: &Tx<'_>| {
            let mut inode = tx.inode(ino)?;
            (inode.redundancy, inode.changed) = (redundancy, now);
            tx.put_inode(ino, &inode)?;
            if inode.kind() == Kind::File { tx.put_relayout(ino) } else { Ok(()) }
        };
        self.wanted.set(self.wanted.get() + 1);
        self.meta.run(set).await
    }

    /// Lays the lines of a file that waits for it out anew, some at a time: others use the file in
    /// between. `step` is told of each, and may end it; then the file goes on waiting, as it does
    /// for want of room. Returns how many blocks that were.
    pub(crate) async fn relayout_file(
        &self,
        ino: Ino,
        mut step: impl FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let mut done = 0;
        loop {
            let redundancy = match self.meta.run(|tx| tx.inode(ino)).await {
                Ok(inode) => inode.redundancy,
                Err(FsError::NotFound) => break,
                Err(error) => return Err(error),
            };
            let (mut from, mut laid) = (Some(0), Ok(()));
            while let (Some(block), Ok(())) = (from, &laid) {
                match self.relayout_some(ino, redundancy, block).await {
                    Ok((blocks, next)) => {
                        done += blocks;
                        from = next;
                        step(blocks)?;
                    }
                    Err(error) => laid = Err(error),
                }
                self.commit_if_crowded().await?;
            }
            self.check_writable()?;
            let lacks_room = matches!(laid, Err(FsError::NoSpace));
            let is_set_again = |tx: &Tx<'_>| match tx.inode(ino) {
                Ok(inode) if inode.redundancy != redundancy => Ok(true),
                _ if lacks_room => Ok(false),
                _ => tx.remove_relayout(ino).map(|()| false),
            };
            if !self.meta.run(is_set_again).await? {
                return laid.map(|()| done);
            }
        }
        self.meta.run(|tx| tx.remove_relayout(ino)).await?;
        Ok(done)
    }

    /// Sets the redundancy of a file, and lays out what it holds. Returns how many blocks that
    /// were.
    pub(crate) async fn set_redundancy(
        &self,
        ino: Ino,
        redundancy: Redundancy,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        self.check_redundancy(redundancy)?;
        self.want_redundancy(ino, redundancy).await?;
        let step = |_| if goes_on() { Ok(()) } else { Err(FsError::Cancelled) };
        self.relayout_file(ino, step).await
    }

    /// Lays all files that wait for it out anew, as a job. Goes on with others if one cannot be:
    /// for want of room it stays as it is, in part.
    pub(crate) async fn relayout_waiting(&self) -> Result<u64> {
        let (mut total, mut from) = (0, 0);
        let next = |tx: &Tx<'_>, from| -> Result<Option<(Ino, u64)>> {
            let next = tx.next_relayout(from)?;
            Ok(next.map(|ino| (ino, tx.inode(ino).map_or(0, |inode| inode.blocks))))
        };
        while let Some((ino, blocks)) = self.meta.run(|tx| next(tx, from)).await? {
            total += blocks;
            from = ino + 1;
        }
        self.job_total(total);
        let (mut done, mut from, mut result) = (0, 0, Ok(()));
        while let Some(ino) = self.meta.run(|tx| tx.next_relayout(from)).await? {
            let step = |blocks| {
                self.job_done(blocks);
                self.job_may_go_on()
            };
            match self.relayout_file(ino, step).await {
                Ok(blocks) => done += blocks,
                Err(error) => result = result.and(Err(error)),
            }
            self.job_may_go_on()?;
            from = ino + 1;
        }
        result.map(|()| done)
    }

    /// Lays some records out anew; where there is no room for that, after a commit: what has been
    /// replaced is free then.
    async fn relayout_last(&self, records: &[OldLines]) -> Result<()> {
        match self.relayout_all(records).await {
            Err(FsError::NoSpace) => {
                self.commit_within_flush().await?;
                self.relayout_all(records).await
            }
            laid => laid,
        }
    }

    /// Lays some lines of a file out anew, from a block on, if it is to have this redundancy still.
    /// Returns the blocks of the records that were looked at, and where there are more.
    async fn relayout_some(
        &self,
        ino: Ino,
        redundancy: Redundancy,
        from: u64,
    ) -> Result<(u64, Option<u64>)> {
        let blocks = self.meta.run(|tx| Ok(tx.inode(ino).map_or(0, |inode| inode.blocks))).await?;
        let columns = redundancy.columns_min() as u64;
        let _room = self.hold_room(columns * blocks.min(BLOCKS_MAX as u64)).await;
        let _held = self.hold_files([ino]).await;
        let node = self.in_use.node(ino);
        let alone = node.alone().await;
        let one = self.flush_alone().await;
        let max = self.meta.at_a_time();
        let found = self.meta.run(|tx| match tx.inode(ino) {
            Ok(inode) if inode.redundancy == redundancy => tx.records_from((ino, from), max),
            // It was set again, or deleted.
            Ok(_) | Err(FsError::NotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
        });
        let mut some = found.await?;
        some.retain(|(of, ..)| *of == ino);
        let blocks = |(_, _, record): &(Ino, u64, Extent)| record.data_blocks();
        some.truncate(at_a_time(&some, BLOCKS_MAX as u64, blocks));
        let done = some.iter().map(blocks).sum();
        let (mut records, mut next) = (Vec::new(), None);
        for (_, first, record) in some {
            let old = self.old(ino, first, record).await?;
            next = Some(old.end);
            if self.pool.coded_now(redundancy)? != old.record.coded {
                records.push(old);
            }
        }
        let mut laid = self.relayout_all(&records).await;
        if matches!(laid, Err(FsError::NoSpace)) {
            laid = Ok(());
            for old in &records {
                let again = self.meta.run(|tx| tx.records(ino, old.first, old.first + 1)).await?;
                if again.iter().any(|(first, record)| *first == old.first && *record == old.record)
                {
                    laid = laid.and(self.relayout_last(std::slice::from_ref(old)).await);
                }
            }
        }
        drop((one, alone));
        self.in_use.forget_clean(&node);
        laid.map(|()| (done, next))
    }
}

impl Fs {
    /// Sets the redundancy of a file, and lays out what it holds anew, while others may use it; of
    /// a folder: of files that will be made in it. Returns the blocks that it had.
    ///
    /// # Errors
    /// If there are too few disks, or too little room: a part of the file may be as it was.
    pub async fn set_redundancy(&self, ino: Ino, redundancy: Redundancy) -> Result<u64> {
        self.set_redundancy_while(ino, redundancy, || true).await
    }

    /// As above, while `goes_on` says so.
    ///
    /// # Errors
    /// The same, and [`FsError::Cancelled`] then: the rest of the file waits for a job to lay it
    /// out.
    pub async fn set_redundancy_while(
        &self,
        ino: Ino,
        redundancy: Redundancy,
        goes_on: impl Fn() -> bool + 'static,
    ) -> Result<u64> {
        let fs = self.0.clone();
        let set = || async move { fs.set_redundancy(ino, redundancy, &goes_on).await };
        self.0.rt.attach(set).await
    }
}
