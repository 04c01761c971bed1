//! Block failures: contents of blocks that have failed get other places.
//!
//! *A block cannot be read.* Its contents are computed from the rest of its line, written elsewhere
//! – on the same disk, if it has room, as the paper does it – and the record is cut so that the
//! line has a record, and a place, of its own. The block is bad from then on. Readers share a
//! file's lock, so this happens after them ([`FsState::relocate_soon`]), and before everything is
//! made durable.
//!
//! *A block cannot be written.* A write of many blocks that fails is repeated block by block:
//! blocks that fail again are bad ([`ExtentStripe::write_failed`]). New lines get other places, as
//! if a disk had been lost. A line that exists has been logged at its present place, and its other
//! blocks are written: the block's contents, which are in memory, are written elsewhere, and the
//! record with the new place is committed before anything else is logged. After a crash before that
//! the last log record has the line at its old place: recovery writes it there, finds again that
//! this fails, and does the same.
//!
//! If there is no redundancy, what cannot be read is an I/O error for this block and no other. If
//! no disk has room for a moved block, it is rewritten in its place: many disks then put another
//! sector there.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Frozen;
use weft_stripe::{FailedWrite, UnitWrite};

use crate::disks::bad_blocks::{Spot, Suspect};
use crate::disks::extent_stripe::{ExtentStripe, part_of};
use crate::disks::pool::Pool;
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;
use crate::format::extent::{Column, Extent};
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::state::mounted::FsState;
use crate::state::open_files::Loss;
use crate::write::new_lines::{LineWrite, covering, cut_out};

impl ExtentStripe {
    /// Writes failed. Disks that do not work are lost. On working disks, each block is written
    /// separately; blocks that fail are bad. Returns whether there was no room left below a disk.
    pub(crate) async fn write_failed(&self, failed: &[FailedWrite], writes: &[UnitWrite]) -> bool {
        let mut no_space = false;
        for FailedWrite { slot, error, .. } in failed {
            if error.is_no_space() {
                no_space = true;
                continue;
            }
            let Some(unit) = self.unit_on(*slot) else { continue };
            for write in writes.iter().filter(|write| write.unit == unit) {
                no_space |= self.write_singly(write).await;
            }
        }
        no_space
    }

    /// Writes a unit's blocks one by one. Returns whether there was no room left below the disk.
    async fn write_singly(&self, write: &UnitWrite) -> bool {
        let Some((member, start)) = self.column(write.unit) else { return false };
        if !self.pool().diagnose(member).await {
            return false;
        }
        for (line, data) in blocks_of(write) {
            let Some(disk) = member.data() else { return false };
            let (block, opts) = (start + line, WriteOpts::USER);
            match disk.write(block * BLOCK_BYTES, data, opts).await {
                Ok(()) => {}
                Err(error) if error.is_no_space() => return true,
                Err(_) if self.pool().diagnose(member).await => {
                    self.pool().mark_bad(member, block);
                }
                Err(_) => return false,
            }
        }
        false
    }

    /// The blocks of a write, by their lines, that lie on bad blocks of disks that work.
    pub(crate) fn on_bad_blocks(&self, write: &UnitWrite) -> Vec<(u64, Frozen)> {
        let Some((member, start)) = self.column(write.unit) else { return Vec::new() };
        if member.is_lost() || member.space.borrow().bad_blocks().is_empty() {
            return Vec::new();
        }
        blocks_of(write).filter(|(line, _)| member.is_bad(start + line)).collect()
    }
}

/// The blocks of a write, with their lines.
fn blocks_of(write: &UnitWrite) -> impl Iterator<Item = (u64, Frozen)> {
    let first = write.from / BLOCK_BYTES;
    let end = first + (write.data.len() / BLOCK) as u64;
    (first..end).map(move |line| {
        let part = part_of(first, line);
        (line, write.data.slice(part.start, part.len()))
    })
}

impl Pool {
    /// Writes a block of a line to another place: the unit's column, as it will be. None if no disk
    /// has room. `record` is the line's.
    pub(crate) async fn write_elsewhere(
        &self,
        record: &Extent,
        unit: usize,
        data: &Frozen,
    ) -> Option<Column> {
        debug_assert_eq!(record.lines, 1, "it is one block");
        // Each time that this is repeated, a block or a disk less is left.
        loop {
            let mut column = self.allocate_instead(record, unit)?;
            let member = self.member(column.disk)?;
            let Some(disk) = member.data() else {
                self.release([column.run()]);
                continue;
            };
            let at = column.start * BLOCK_BYTES;
            let Err(error) = disk.write(at, data.clone(), WriteOpts::USER).await else {
                member.written.set(true);
                column.sums = vec![crc32c(data)];
                self.count(|counts| counts.moved_blocks += 1);
                return Some(column);
            };
            if !error.is_no_space() && self.diagnose(&member).await {
                self.mark_bad(&member, column.start);
            }
            self.release([column.run()]);
            if error.is_no_space() {
                return None;
            }
        }
    }
}

/// Gives a block of the line that starts with block `block` of a file another place. The line then
/// has its own record.
pub(crate) fn replace_block(
    tx: &Tx<'_>,
    ino: Ino,
    block: u64,
    unit: usize,
    column: &Column,
) -> Result<()> {
    let Some((first, record)) = covering(tx, ino, block)? else { return Ok(()) };
    let (line, _) = record.locate(block - first);
    let (first, mut record) = cut_out(tx, ino, (first, record), line)?;
    record.columns[unit] = Some(column.clone());
    tx.put_record(ino, first, &record)?;
    tx.note_reshaped(ino, first, &record);
    Ok(())
}

impl FsState {
    /// Writes elsewhere what a target was to write to bad blocks. Returns whether there are such
    /// blocks; new lines must be laid out again then.
    pub(crate) async fn avoid_bad(
        &self,
        target: &mut LineWrite,
        laid: &ExtentStripe,
        writes: &[UnitWrite],
    ) -> bool {
        let mut any = false;
        let mut unplaced: BTreeMap<u64, UnitSet> = BTreeMap::new();
        for write in writes {
            for (line, data) in laid.on_bad_blocks(write) {
                any = true;
                if target.old.is_none() {
                    return true;
                }
                let mut alone = target.record.part(line..line + 1);
                for (_, unit, column) in target.moved.iter().filter(|(of, _, _)| *of == line) {
                    alone.columns[*unit] = Some(column.clone());
                }
                match self.pool().write_elsewhere(&alone, write.unit, &data).await {
                    Some(column) => target.moved.push((line, write.unit, column)),
                    None => unplaced.entry(line).or_default().insert(write.unit),
                }
            }
        }
        let stripe = laid.stripe();
        for (line, units) in unplaced {
            // The next fsync tells of it.
            if !stripe.code().decodable(stripe.id.number, stripe.lost.union(&units)) {
                self.lose(target.ino, Loss::Disks(target.first + line * target.k()));
            }
        }
        any
    }

    /// Moves blocks that could not be read, in the background.
    pub(crate) fn relocate_soon(self: &Rc<Self>) {
        if !self.pool().bad.any_suspects() || self.is_stopped() {
            return;
        }
        let fs = self.clone();
        self.rt().launch(Box::pin(async move {
            // If the metadata has failed, the next request says so.
            let _ = fs.relocate().await;
        }));
    }

    /// Moves blocks that could not be read. The caller holds no lock, and no token.
    pub(crate) async fn relocate(&self) -> Result<()> {
        if !self.pool().bad.any_suspects() {
            return Ok(());
        }
        let _one = self.begin_relocation().await;
        while let Some((spot, suspect)) = self.pool().bad.next_suspect() {
            let _file = self.lock_whole(suspect.ino).await;
            let _one = self.flush_alone().await;
            let moved = self.relocate_block(spot, suspect).await;
            self.pool().bad.clear(spot);
            moved?;
        }
        Ok(())
    }

    /// Moves a block, if it is still in use. The caller holds the lock of its file exclusively, and
    /// the lock of flushes.
    async fn relocate_block(&self, spot: Spot, suspect: Suspect) -> Result<()> {
        let (disk, at) = spot;
        let Suspect { ino, block, unit } = suspect;
        let covered = self.meta().run(|tx| covering(tx, ino, block)).await?;
        let Some((first, record)) = covered else { return Ok(()) };
        let (line, _) = record.locate(block - first);
        let column = record.columns.get(unit).and_then(Option::as_ref);
        let is_there = |column: &&Column| (column.disk, column.start + line) == spot;
        let member = self.pool().member(disk).filter(|member| !member.is_lost());
        let (Some(_), Some(member)) = (column.filter(is_there), member) else { return Ok(()) };
        let laid = self.pool().lay(&record)?;
        let read = laid.read(&record, (ino, first), UnitSet::one(unit), line..line + 1).await;
        let data = match read {
            Ok(mut read) => read.remove(0).1.freeze(),
            Err(FsError::Unreadable { .. }) => {
                // It gets another place when it is written.
                self.pool().mark_bad(&member, at);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if member.is_lost() {
            return Ok(());
        }
        let alone = record.part(line..line + 1);
        if let Some(column) = self.pool().write_elsewhere(&alone, unit, &data).await {
            self.meta().run(|tx| replace_block(tx, ino, block, unit, &column)).await?;
            self.pool().mark_bad(&member, at);
            self.pool().count(|counts| counts.repaired_blocks += 1);
        } else if let Some(disk) = member.data()
            && disk.write(at * BLOCK_BYTES, data, WriteOpts::USER).await.is_ok()
        {
            member.written.set(true);
            self.pool().count(|counts| counts.repaired_blocks += 1);
        }
        Ok(())
    }
}
