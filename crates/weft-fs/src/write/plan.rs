//! Sorting dirty blocks into lines: existing lines, and new ones, which get places.

use std::rc::Rc;

use weft_rt::Frozen;

use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::raid_log::{LoggedBand, LoggedFile};
use crate::state::mounted::FsState;
use crate::state::open_files::{Dirty, Node};
use crate::write::dirty_memory::BLOCKS_MAX;
use crate::write::new_lines::{LineWrite, NewPlaces, covering, cut_out};

impl FsState {
    /// Cuts records so that each line with a newly active block has its own record.
    pub(crate) async fn cut_for_new_columns(
        &self,
        ino: Ino,
        dirty: &[(u64, Frozen)],
    ) -> Result<()> {
        // Each line stays where it is, and recovery looks at lines.
        let cut = |tx: &Tx<'_>| {
            tx.logged(|| {
                for (block, _) in dirty {
                    let Some((first, record)) = covering(tx, ino, *block)? else { continue };
                    let (line, unit) = record.locate(block - first);
                    let has_place = record.columns[unit].is_some();
                    if has_place || record.unwritten || record.lines == 1 {
                        continue;
                    }
                    let (first, alone) = cut_out(tx, ino, (first, record), line)?;
                    tx.put_record(ino, first, &alone)?;
                }
                Ok(())
            })
        };
        self.meta().run(cut).await
    }

    /// Rewrites, as narrow as needed, lines with a newly active block for which no disk is left:
    /// they were made when there were more. Returns whether there were any. Several of the new
    /// lines may be in one record, so they must be cut again.
    pub(crate) async fn make_narrower(&self, ino: Ino, dirty: &[(u64, Frozen)]) -> Result<bool> {
        let mut any = false;
        for (block, _) in dirty {
            let covering = self.meta().run(|tx| covering(tx, ino, *block)).await?;
            let Some((first, record)) = covering.filter(|(_, record)| !record.unwritten) else {
                continue;
            };
            let is_new = |block: u64| record.columns[record.locate(block - first).1].is_none();
            let range = first..first + record.blocks();
            let new = dirty.iter().filter(|(block, _)| range.contains(block) && is_new(*block));
            let new = new.count();
            if !is_new(*block) || self.pool().has_columns_for(&record, new) {
                continue;
            }
            let redundancy = self.meta().run(|tx| tx.inode(ino)).await?.redundancy;
            if self.pool().coded_now(redundancy)? != record.coded {
                let old = self.old(ino, first, record).await?;
                self.relayout_all(&[old]).await?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Sorts blocks of files into lines, and allocates places for blocks without one. Takes as many
    /// as the log can name at a time.
    pub(crate) async fn plan(
        &self,
        files: &[(Rc<Node>, Dirty)],
        mut afresh: NewPlaces,
    ) -> Result<Vec<LineWrite>> {
        let mut targets: Vec<LineWrite> = Vec::new();
        let planned = self.meta().run(|tx| {
            let mut room = self.log().record_bytes_max();
            room = room.saturating_sub(files.len() as u64 * LoggedFile::BYTES);
            for (node, dirty) in files {
                if !self.plan_file(tx, (node.ino, dirty), &mut afresh, &mut room, &mut targets)? {
                    break;
                }
            }
            Ok(())
        });
        match planned.await {
            Ok(()) => Ok(targets),
            Err(error) => {
                self.release_new(&targets);
                Err(error)
            }
        }
    }

    /// Plans one file. `false` if the log has no more room.
    fn plan_file(
        &self,
        tx: &Tx<'_>,
        (ino, dirty): (Ino, &[(u64, Frozen)]),
        afresh: &mut NewPlaces,
        room: &mut u64,
        targets: &mut Vec<LineWrite>,
    ) -> Result<bool> {
        let redundancy = tx.inode(ino)?.redundancy;
        let mut at = 0;
        while let Some((block, data)) = dirty.get(at) {
            let covered = covering(tx, ino, *block)?;
            if let Some((first, record)) = covered.as_ref().filter(|(_, record)| record.unwritten) {
                let blocks: usize = targets.iter().map(|target| target.blocks.len()).sum();
                let of_it = first..&(first + record.blocks());
                let is_begun = targets.iter().any(|of| of.ino == ino && of_it.contains(&&of.first));
                if blocks > BLOCKS_MAX || is_begun && !self.can_cut_again() {
                    return Ok(false);
                }
                let at_once = self.batch_blocks();
                let lines =
                    self.reserved_lines(tx, ino, (*first, record), &dirty[at..], at_once)?;
                let Some((target, count)) = lines else {
                    // What was planned before may have been cut short by these lines: where nothing
                    // is reserved any more, it covers the block when it is stored.
                    let behind = |of: &LineWrite| of.first + of.record.blocks();
                    match targets.iter().any(|of| of.ino == ino && behind(of) > *block) {
                        true => return Ok(false),
                        false => continue,
                    }
                };
                at += count;
                targets.push(target);
                continue;
            }
            if let Some((first, record)) = covered {
                if let Some(fresh) =
                    afresh.remove(&(ino, first)).filter(|fresh| fresh.old == record)
                    && let Some(target) = self.afresh(tx, (ino, first), fresh, targets)?
                {
                    at += target.written().count();
                    targets.push(target);
                    continue;
                }
                let need = LoggedBand::bytes_max(&record, 1);
                if need > *room && !targets.is_empty() {
                    return Ok(false);
                }
                *room = room.saturating_sub(need);
                let (line, unit) = record.locate(block - first);
                self.add_active(tx, ino, targets, (first, record), unit)?;
                let target = targets.last_mut().expect("just added");
                target.blocks.push((line, unit, data.clone()));
                at += 1;
            } else {
                let planned =
                    targets.iter().rfind(|target| target.ino == ino && target.old.is_none());
                let planned = planned.map(|target| (target.first, &target.record));
                let rest = &dirty[at..];
                let target = self.new_lines(tx, ino, redundancy, rest, planned)?;
                if target.is_full(self.batch_blocks()) {
                    // Many blocks that need no log follow: they are written as such.
                    self.release_new(&[target]);
                    return Ok(true);
                }
                at += target.blocks.len();
                targets.push(target);
            }
        }
        Ok(true)
    }

    /// The target of an active line's record, with a column for `unit`, becomes the last one.
    fn add_active(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        targets: &mut Vec<LineWrite>,
        (first, record): (u64, Extent),
        unit: usize,
    ) -> Result<()> {
        if targets.last().is_none_or(|target| (target.ino, target.first) != (ino, first)) {
            let old = Some(record.clone());
            let (blocks, moved) = (Vec::new(), Vec::new());
            targets.push(LineWrite { ino, first, old, replaced: None, record, blocks, moved });
        }
        let record = &mut targets.last_mut().expect("just added").record;
        if record.columns[unit].is_none() {
            // Its other lines would get a block that is not written.
            debug_assert_eq!(record.lines, 1, "lines of block {first} of inode {ino} are not cut");
            let before = tx.record_before(ino, first)?.filter(|(at, before)| {
                at + before.blocks() == first && before.coded == record.coded
            });
            let behind = before.and_then(|(_, before)| {
                let column = before.columns[unit].as_ref()?;
                Some((column.disk, column.start + before.lines))
            });
            record.columns[unit] = Some(self.pool().allocate_column(record, behind)?);
        }
        Ok(())
    }
}
