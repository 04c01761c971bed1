//! Writing into places that are reserved ([`crate::files::preallocate`]).
//!
//! Lines of an unwritten record are written as new lines are: as a whole, with parity, without log
//! and old contents. Data blocks of such a line that nothing was written to get zeros, and so keep
//! their places. Each written line leaves the unwritten record, in the same transaction that has
//! its checksums: after a crash before that it reads as zeros, as before.
//!
//! That needs no room on the disks. In the metadata a record with some lines written becomes up to
//! three; where there is no room for that, all of its lines are written at once.
//!
//! Places on lost disks and bad blocks are exchanged first, as far as there are other places.

use std::ops::Range;

use weft_code::UnitSet;
use weft_rt::Frozen;

use crate::disks::pool::runs_of;
use crate::error::{FsError, Result};
use crate::format::block::BLOCK;
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::state::mounted::FsState;
use crate::write::new_lines::{LineWrite, ReplacedLines, covering};

/// The most bytes of rows that two more records may take.
const CUT_BYTES: u64 = 2 * 4096;

impl FsState {
    /// Whether all places of some lines can be written.
    fn are_usable(&self, record: &Extent) -> bool {
        record.active().all(|(_, column)| {
            let run = column.run();
            let member = self.pool().member(run.disk).filter(|member| !member.is_lost());
            member.is_some_and(|member| {
                member.space.borrow().bad_blocks().range(run.start..run.start + run.blocks).count()
                    == 0
            })
        })
    }

    /// Other places for columns of an unwritten record that lie on lost disks. None if there are
    /// none.
    fn with_other_places(&self, record: &Extent) -> Option<Extent> {
        let is_lost = |disk| self.pool().member(disk).is_none_or(|member| member.is_lost());
        let lost = record.active().filter(|(_, column)| is_lost(column.disk));
        let lost: UnitSet = lost.map(|(unit, _)| unit).collect();
        let (mut fresh, mut allocated) = (record.clone(), Vec::new());
        for unit in lost.iter() {
            let Ok(column) = self.pool().allocate_column(&fresh, None) else {
                self.pool().release(allocated);
                return None;
            };
            allocated.push(column.run());
            fresh.columns[unit] = Some(column);
        }
        Some(fresh)
    }

    /// Exchanges places of these lines of an unwritten record that cannot be written. If there are
    /// no other places, nothing is reserved for the lines any more.
    fn exchange_places(&self, tx: &Tx<'_>, ino: Ino, first: u64, lines: Range<u64>) -> Result<()> {
        let (from, part) = take_lines(tx, ino, first, lines)?;
        if let Some(fresh) = self.with_other_places(&part) {
            let both = runs_of(&part).zip(runs_of(&fresh));
            let other: Vec<_> = both.filter(|(old, new)| old != new).collect();
            if self.are_usable(&fresh) {
                other.into_iter().for_each(|(old, _)| self.free_run_later(old));
                return tx.put_record(ino, from, &fresh);
            }
            self.pool().release(other.into_iter().map(|(_, new)| new));
        }
        let mut inode = tx.inode(ino)?;
        inode.blocks -= part.data_blocks();
        tx.put_inode(ino, &inode)?;
        self.free_later(&part);
        Ok(())
    }

    /// Whether an unwritten record, with some lines written but not in the metadata yet, can be cut
    /// again.
    pub(crate) fn can_cut_again(&self) -> bool {
        self.meta().has_room(CUT_BYTES, false)
    }

    /// The lines of an unwritten record for the first of these blocks and for later ones in the
    /// next lines: at most this number of blocks, or one line. Also returns how many of the blocks
    /// belong to these lines: blocks without a place there wait until the lines are written. None
    /// if the places cannot be used: the metadata has changed then.
    pub(crate) fn reserved_lines(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        (first, record): (u64, &Extent),
        dirty: &[(u64, Frozen)],
        blocks_max: usize,
    ) -> Result<Option<(LineWrite, usize)>> {
        let k = record.k();
        let next = tx.next_record(ino, first + 1)?.unwrap_or(u64::MAX);
        let end = (first + record.blocks()).min(next);
        let line_of = |block: u64| record.locate(block - first).0;
        let start = line_of(dirty[0].0);
        let mut to = start + 1;
        let lines_max = (blocks_max as u64 / k).max(1);
        for (block, _) in dirty.iter().take_while(|(block, _)| *block < end) {
            match line_of(*block) {
                line if line < to => {}
                line if line == to && to - start < lines_max => to += 1,
                _ => break,
            }
        }
        let lines = match self.can_cut_again() {
            true => start..to,
            false => 0..record.lines,
        };
        let part = record.part(lines.clone());
        if !self.are_usable(&part) {
            self.exchange_places(tx, ino, first, lines)?;
            return Ok(None);
        }
        let from = first + lines.start * k;
        let behind = end.min(from + part.blocks());
        let count = dirty.iter().take_while(|(block, _)| *block < behind).count();
        let mut written = dirty[..count].iter();
        let mut next = written.next();
        let (mut blocks, mut of_file) = (Vec::new(), Vec::new());
        for line in 0..part.lines {
            for unit in 0..part.coded.k() {
                let block = from + line * k + unit as u64;
                let new = next.filter(|(at, _)| *at == block);
                if new.is_some() {
                    next = written.next();
                }
                // A block that has no place gets one when its line is there.
                if part.columns[unit].is_some() {
                    of_file.extend(new.map(|(block, _)| *block));
                    let data = new.map_or_else(|| Frozen::zeros(BLOCK), |(_, data)| data.clone());
                    blocks.push((line, unit, data));
                }
            }
        }
        let record = Extent { unwritten: false, ..part.clone() };
        let replaced = Some(ReplacedLines { record: part, dirty: of_file });
        let moved = Vec::new();
        let target = LineWrite { ino, first: from, old: None, replaced, record, blocks, moved };
        Ok(Some((target, count)))
    }
}

/// Takes lines out of the unwritten record that has the first of them. Returns them, with their
/// first block.
fn take_lines(tx: &Tx<'_>, ino: Ino, first: u64, lines: Range<u64>) -> Result<(u64, Extent)> {
    let damaged = || FsError::Damaged(format!("nothing is reserved at block {first} of {ino}"));
    let (at, mut head) = covering(tx, ino, first)?.ok_or_else(damaged)?;
    let before = (first - at) / head.k();
    let lines = before + lines.start..before + lines.end;
    if !head.unwritten || lines.end > head.lines || !(first - at).is_multiple_of(head.k()) {
        return Err(damaged());
    }
    let k = head.k();
    tx.remove_record(ino, at)?;
    let tail = head.split_off(lines.end);
    let part = head.split_off(lines.start);
    if head.lines > 0 {
        tx.put_record(ino, at, &head)?;
    }
    if tail.lines > 0 {
        tx.put_record(ino, at + lines.end * k, &tail)?;
    }
    Ok((at + lines.start * k, part))
}

/// Takes the places of written lines out of the reserved ones.
pub(crate) fn end_reservation(tx: &Tx<'_>, ino: Ino, first: u64, written: &Extent) -> Result<()> {
    take_lines(tx, ino, first, 0..written.lines).map(drop)
}
