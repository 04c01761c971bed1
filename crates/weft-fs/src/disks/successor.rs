//! Disks that come back: what they still have is used.
//!
//! A lost disk misses writes, and no record is kept of which. But the extents of files have a checksum of
//! each block. So a disk that comes back is verified block by block.
//!
//! ```text
//!   disk 1 is lost ── it is added again ──▶ it is disk 4, the successor of disk 1
//!      extents name disk 1 ── each block of it is read: its checksum matches ──▶ it stays
//!                                                       wrong, or not known ──▶ rebuilt in place
//!      the extent names disk 4 from then on; when none names disk 1 any more, disk 1 leaves
//! ```
//!
//! The new number tells verified blocks from those that are not: a column on disk 1 is lost as before, and
//! is never written; one on disk 4 is as good as any. So a crash leaves each extent as it was or as it is to
//! be, as in every rebuild, of which this is a kind ([`crate::jobs::rebuild`]). Until a column is verified,
//! single blocks of it are used where nothing else gives a line ([`crate::disks::extent_stripe`]): files
//! that lost two disks at once are readable as soon as one of them is back.
//!
//! Both numbers stand for the same blocks: those that extents of disk 1 name are not free on disk 4. A disk
//! may be lost and come back several times; then its numbers are a chain.
//!
//! *Limits.* A block that was overwritten in the meantime has the same checksum in one of four billion cases.
//! Lines that need blocks of such a disk are not overwritten before they are rebuilt.

use std::rc::Rc;

use weft_disk::Class;
use weft_rt::{Buf, Frozen};

use crate::disks::extent_stripe::Laid;
use crate::disks::member::Member;
use crate::disks::old_block_cache::{UNKNOWN, sum_of};
use crate::disks::pool::Pool;
use crate::error::Result;
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;
use crate::format::extent::{Record, Run};
use crate::format::label::Label;
use crate::meta::{DiskRow, Tx};

/// Under which name the state has the number of a disk's successor, plus one.
fn state_name(number: u16) -> String {
    format!("successor of disk {number}")
}

/// A disk that was lost gets a successor, once that has joined.
pub(crate) fn put_successor(tx: &Tx<'_>, number: u16, successor: u16) -> Result<()> {
    tx.set_state(&state_name(number), u64::from(successor) + 1)
}

/// The successor of a disk, if it ever was to have one. It may not have joined.
pub(crate) fn successor_in(tx: &Tx<'_>, number: u16) -> Result<Option<u16>> {
    let stored = tx.state(&state_name(number))?.checked_sub(1);
    // Numbers only grow, so a chain has an end.
    Ok(stored.and_then(|by| u16::try_from(by).ok()).filter(|by| *by > number))
}

/// A disk that has its label comes into the metadata. Blocks that are bad stay bad under its new number.
pub(crate) fn put_joined(tx: &Tx<'_>, label: &Label, row: &DiskRow) -> Result<()> {
    for (number, _) in tx.disks()? {
        if successor_in(tx, number)? != Some(label.number) {
            continue;
        }
        for (disk, block) in tx.bad_blocks()? {
            if disk == number {
                tx.put_bad(label.number, block)?;
            }
        }
    }
    tx.put_disk(label.number, row)
}

impl Pool {
    /// A disk has come back under another number.
    pub(crate) fn succeed(&self, number: u16, successor: u16) {
        self.successors.borrow_mut().insert(number, successor);
    }

    fn next_number(&self, number: u16) -> Option<u16> {
        self.successors.borrow().get(&number).copied()
    }

    /// The last number under which a disk has come back, or its own.
    pub(crate) fn last_number(&self, number: u16) -> u16 {
        std::iter::successors(Some(number), |number| self.next_number(*number))
            .last()
            .unwrap_or(number)
    }

    /// The disk with the blocks of a lost one that has come back, if it works.
    pub(crate) fn successor(&self, number: u16) -> Option<Rc<Member>> {
        self.next_number(number)?;
        self.member(self.last_number(number)).filter(|member| !member.is_lost())
    }

    /// The lost disk whose blocks a disk still has to have verified, if any.
    pub(crate) fn succeeded_by(&self, number: u16) -> Option<u16> {
        let successors = self.successors.borrow();
        successors.iter().find(|(_, by)| **by == number).map(|(number, _)| *number)
    }

    /// The numbers before a disk in a chain, and the one after it: when the disk goes, they are linked.
    pub(crate) fn before(&self, number: u16) -> Vec<(u16, Option<u16>)> {
        let successors = self.successors.borrow();
        let next = successors.get(&number).copied();
        let before = successors.iter().filter(|(_, by)| **by == number);
        before.map(|(before, _)| (*before, next)).collect()
    }

    /// Takes a disk that goes out of its chain.
    pub(crate) fn forget_successor(&self, number: u16) {
        let all_before = self.before(number);
        let mut successors = self.successors.borrow_mut();
        successors.remove(&number);
        for (before, next) in all_before {
            match next {
                Some(next) => successors.insert(before, next),
                None => successors.remove(&before),
            };
        }
    }

    /// All disks that have blocks of this number: it, and those that succeeded it.
    pub(crate) fn chain(&self, number: u16) -> impl Iterator<Item = Rc<Member>> + '_ {
        let numbers = std::iter::successors(Some(number), |number| self.next_number(*number));
        numbers.filter_map(|number| self.member(number))
    }

    /// Records name these blocks under the last number of their disk from now on.
    pub(crate) fn leave_to_successor(&self, run: Run) {
        let last = self.last_number(run.disk);
        for member in self.chain(run.disk).filter(|member| member.number != last) {
            member.space.borrow_mut().release(run.start, run.blocks);
        }
    }
}

/// Takes a disk that goes out of the chains in the state.
pub(crate) fn forget_in(tx: &Tx<'_>, number: u16, before: &[(u16, Option<u16>)]) -> Result<()> {
    tx.set_state(&state_name(number), 0)?;
    before.iter().try_for_each(|(before, next)| {
        tx.set_state(&state_name(*before), next.map_or(0, |next| u64::from(next) + 1))
    })
}

impl Laid {
    /// A block of a lost disk that is back, if it is what the record says.
    pub(crate) async fn salvage(&self, record: &Record, unit: usize, line: u64) -> Option<Frozen> {
        let (member, start) = self.column(unit)?;
        let sum = sum_of(record.columns[unit].as_ref()?, line);
        let successor = self.pool().successor(member.number).filter(|_| sum != UNKNOWN)?;
        let disk = successor.data()?.clone();
        let at = (start + line) * BLOCK_BYTES;
        let (result, block) = disk.read(at, Buf::new(BLOCK), Class::User).await;
        (result.is_ok() && crc32c(&block) == sum).then(|| block.freeze())
    }

    /// The lines of a unit that a lost disk which is back does not have any more, a bit for each.
    pub(crate) async fn missed_lines(&self, record: &Record, unit: usize) -> u64 {
        let all = (0..record.lines).fold(0, |lines, line| lines | 1 << line);
        let (Some(column), Some((member, start))) =
            (record.columns[unit].as_ref(), self.column(unit))
        else {
            return all;
        };
        let successor = self.pool().successor(member.number);
        let Some(disk) = successor.as_ref().and_then(|member| member.data().cloned()) else {
            return all;
        };
        let len = usize::try_from(record.lines).expect("at most 64 lines") * BLOCK;
        let (result, found) =
            disk.read(start * BLOCK_BYTES, Buf::new(len), Class::Maintenance).await;
        let mut missed = 0;
        for (line, block) in (0..record.lines).zip(found.chunks_exact(BLOCK)) {
            let is_there = match result {
                Ok(()) => {
                    let sum = sum_of(column, line);
                    sum != UNKNOWN && crc32c(block) == sum
                }
                // One bad block fails all of the request.
                Err(_) => self.salvage(record, unit, line).await.is_some(),
            };
            missed |= u64::from(!is_there) << line;
        }
        missed
    }
}
