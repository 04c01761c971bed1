//! Which disks and blocks new lines get.
//!
//! Two aims contradict each other: long runs on the same disks, and disks that fill evenly. A run
//! continues after the previous record, as long as its disks have almost as much room as any other.
//! Then the disks with the most free space are selected again, and no more than 1/RAIDRATIO of a
//! disk's free space is taken at a time. When one of these is almost full, lines that are not whole
//! take those with the most: so the room that was promised to blocks that wait is there
//! ([`crate::write::reserve`]).
//!
//! Which of the disks gets the parity turns, also within a run:
//!
//! ```text
//!     disk 0   D D D D  P P P P  D D D D  D D D D      a letter: a record's column
//!     disk 1   D D D D  D D D D  P P P P  D D D D      from left to right: one behind the other
//!     disk 2   P P P P  D D D D  D D D D  P P P P
//! ```
//!
//! So each disk holds its part of a file in one piece, and has the same share of reads, of parity
//! that is read and written to overwrite blocks, and of degraded reads. If the parity turned with
//! each record, disks with platters would pass over it as slowly as they read it; so it turns after
//! several, and they seek.

use std::rc::Rc;

use weft_code::UnitSet;

use crate::disks::member::Member;
use crate::disks::pool::{Pool, runs_of};
use crate::error::{FsError, Result};
use crate::format::extent::{Column, Extent, LINES_MAX};
use crate::format::inode::Ino;
use crate::format::redundancy::{Coded, Redundancy};

/// Lines of a file after which the next disk gets the parity: 1 MiB of each disk. Runs as long as
/// that can be skipped by a seek.
const TURN_LINES: u64 = 4 * LINES_MAX;
/// At most this part of a disk's free space is allocated at a time.
pub(crate) const RAIDRATIO: u64 = 16;

/// Whether lines fit on disks with these free blocks ([`Pool::fits`]). Blocks that are held are
/// taken first from what lines could not use anyway: a disk has as much of that as it has free
/// blocks beyond one for each line. So they cost lines nothing where all disks have much room.
fn fit(free: impl Iterator<Item = u64>, lines: u64, columns: usize, held: u64) -> bool {
    let (mut all, mut of_use, mut lost) = (0, 0, 0);
    for free in free {
        let its = free.min(lines);
        all += free;
        of_use += its;
        lost += its.min(held.saturating_sub(free - its));
    }
    let needed = lines.saturating_mul(columns as u64);
    needed.saturating_add(held) <= all && needed.saturating_add(lost.min(held)) <= of_use
}

impl Pool {
    /// Disks with room, those with the most first.
    fn roomy(&self) -> Vec<Rc<Member>> {
        let mut members = self.members();
        members.retain(|member| member.free_blocks() > 0 && !self.holds_still());
        let amount = self.amount(&members);
        members.sort_by_key(|member| std::cmp::Reverse(amount(member)));
        members
    }

    /// By what disks with room are compared: by all that is free on them, so that they fill evenly
    /// although a node has only a part of it; and by this part where it is small, as promises are
    /// kept with it.
    fn amount(&self, roomy: &[Rc<Member>]) -> fn(&Member) -> u64 {
        let few = self.at_hand.waiting_max();
        match roomy.iter().any(|member| member.free_blocks() <= few) {
            true => Member::free_blocks,
            false => Member::room,
        }
    }

    /// Free blocks of the fullest among the `width` disks with the most room.
    pub(crate) fn least_free(&self, disks: usize) -> u64 {
        self.roomy().get(disks - 1).map_or(0, |member| member.free_blocks())
    }

    /// The code that new lines of this redundancy get now.
    pub(crate) fn coded_now(&self, redundancy: Redundancy) -> Result<Coded> {
        let roomy = self.look_at_free(|free| free.filter(|free| *free > 0).count());
        redundancy.coded(roomy).ok_or(FsError::NoSpace)
    }

    /// Whether there is room for `lines` lines of `columns` columns each, besides `held` blocks,
    /// wherever these are taken. Lines that always take the disks with the most room find it, and
    /// also if some of them are narrower.
    pub(crate) fn fits(&self, lines: u64, columns: usize, held: u64) -> bool {
        self.look_at_free(|free| fit(free, lines, columns, held))
    }

    /// Whether a disk has at most this number of free blocks, or takes none.
    pub(crate) fn is_any_full(&self, blocks: u64) -> bool {
        self.look_at_free(|free| free.min()).is_some_and(|least| least <= blocks)
    }

    /// Allocates up to `lines` lines with these units (data and parity) active, after `before` if
    /// possible. `line` is their first line in the file.
    pub(crate) fn allocate(
        &self,
        coded: Coded,
        units: UnitSet,
        lines: u64,
        before: Option<&Extent>,
        (ino, line): (Ino, u64),
    ) -> Result<Extent> {
        let lines = lines.min(Extent::lines_max(coded));
        let roomy = self.roomy();
        if let Some(record) =
            before.and_then(|before| self.go_on(&roomy, coded, units, lines, (before, line)))
        {
            return Ok(record);
        }
        let picked = roomy.get(..coded.columns).ok_or(FsError::NoSpace)?;
        let least = picked.iter().map(|member| member.free_blocks()).min().unwrap_or(0);
        // The first `units` of them have the most room.
        let is_scarce = least <= self.at_hand.waiting_max();
        let used = if is_scarce { units.len() } else { picked.len() };
        let turn = ino.wrapping_add(line) % used.max(1) as u64;
        let turn = usize::try_from(turn).expect("few disks");
        let mut lines = lines.min((least / RAIDRATIO).max(1));
        while lines > 0 {
            let mut record = Extent::new(coded, 0, lines);
            let all = units.iter().enumerate().all(|(n, unit)| {
                let at = if is_scarce { n } else { unit };
                let member = &picked[(at + turn) % used];
                let start = member.space.borrow_mut().allocate(lines);
                record.columns[unit] = start.map(|start| column(member, start, lines));
                start.is_some()
            });
            if all {
                return Ok(record);
            }
            self.release(runs_of(&record));
            lines /= 2;
        }
        Err(FsError::NoSpace)
    }

    /// Allocates lines of a file, from one on, after the lines of a record.
    fn go_on(
        &self,
        roomy: &[Rc<Member>],
        coded: Coded,
        units: UnitSet,
        lines: u64,
        (before, line): (&Extent, u64),
    ) -> Option<Extent> {
        let amount = self.amount(roomy);
        let most = amount(roomy.first()?);
        if before.coded != coded {
            return None;
        }
        let has_roles = coded.k() > 1 && coded.p() > 0;
        let turns = has_roles && line / TURN_LINES != (line - before.lines) / TURN_LINES;
        let mut record = Extent::new(coded, 0, lines);
        for unit in units.iter() {
            let last = before.columns[(unit + usize::from(turns)) % coded.columns].as_ref();
            let member = last.and_then(|last| self.member(last.disk));
            let start = last.map(|last| last.start + before.lines);
            let taken = member.zip(start).filter(|(member, start)| {
                amount(member) >= most - most / RAIDRATIO
                    && member.space.borrow_mut().take(*start, lines)
            });
            let Some((member, start)) = taken else {
                self.release(runs_of(&record));
                return None;
            };
            record.columns[unit] = Some(column(&member, start, lines));
        }
        Some(record)
    }

    /// Whether `width` disks have room for one more column of an extent each.
    pub(crate) fn has_columns_for(&self, record: &Extent, count: usize) -> bool {
        let is_used = |number: u16| record.active().any(|(_, column)| column.disk == number);
        self.roomy().iter().filter(|member| !is_used(member.number)).count() >= count
    }

    /// Allocates one more column of a record, on a disk that it does not use; `behind` is where it
    /// would continue another run.
    pub(crate) fn allocate_column(
        &self,
        record: &Extent,
        behind: Option<(u16, u64)>,
    ) -> Result<Column> {
        let is_used = |number: u16| record.active().any(|(_, column)| column.disk == number);
        if let Some((number, start)) = behind.filter(|(number, _)| !is_used(*number))
            && !self.holds_still()
            && let Some(member) = self.member(number).filter(|member| member.free_blocks() > 0)
            && member.space.borrow_mut().take(start, record.lines)
        {
            return Ok(column(&member, start, record.lines));
        }
        for member in self.roomy().iter().filter(|member| !is_used(member.number)) {
            if let Some(column) = allocate_on(member, record.lines) {
                return Ok(column);
            }
        }
        Err(FsError::NoSpace)
    }

    /// Allocates another place for a block of a line, on its own disk if that has room.
    pub(crate) fn allocate_instead(&self, line: &Extent, unit: usize) -> Option<Column> {
        let own = line.columns[unit].as_ref().and_then(|column| self.member(column.disk));
        let own = own.filter(|member| member.free_blocks() > 0 && !self.holds_still());
        let there = own.and_then(|member| allocate_on(&member, 1));
        there.or_else(|| self.allocate_column(line, None).ok())
    }
}

/// Allocates a column of `lines` lines on a disk.
pub(crate) fn allocate_on(member: &Member, lines: u64) -> Option<Column> {
    let start = member.space.borrow_mut().allocate(lines)?;
    Some(column(member, start, lines))
}

fn column(member: &Member, start: u64, lines: u64) -> Column {
    let lines = usize::try_from(lines).expect("at most 64 lines");
    Column { disk: member.number, start, sums: vec![0; lines] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ways to take blocks from disks.
    fn takings(free: &[u64], blocks: u64) -> Vec<Vec<u64>> {
        let Some((first, rest)) = free.split_first() else { return vec![Vec::new()] };
        let with = |taken: u64| {
            let of_rest = takings(rest, blocks - taken);
            of_rest.into_iter().map(move |left| [vec![first - taken], left].concat())
        };
        (0..=blocks.min(*first)).flat_map(with).collect()
    }

    #[test]
    fn lines_that_fit_do_so_wherever_held_blocks_are_taken() {
        let is_room = |free: &[u64], lines: u64, columns: usize| {
            lines * columns as u64 <= free.iter().map(|free| (*free).min(lines)).sum()
        };
        let mut fitted = 0;
        for disks in 0..4_u32.pow(4) {
            let free: Vec<u64> = (0..4).map(|n| u64::from(disks / 4_u32.pow(n) % 4) * 2).collect();
            for (lines, columns, held) in
                (0..5).flat_map(|n| (1..4).flat_map(move |w| (0..7).map(move |held| (n, w, held))))
            {
                if fit(free.iter().copied(), lines, columns, held) {
                    fitted += 1;
                    let left = takings(&free, held);
                    let fits = left.iter().all(|left| is_room(left, lines, columns));
                    assert!(fits, "{lines} of {columns} besides {held}: {free:?}");
                } else {
                    assert!(held > 0 || !is_room(&free, lines, columns), "{free:?}");
                }
            }
        }
        assert!(fitted > 1000, "{fitted}");
    }

    #[test]
    fn few_lines_fit_beside_many_held_blocks_where_there_is_much_room() {
        for free in [vec![500; 4], vec![500, 500, 500, 0], vec![500, 500, 500, 3]] {
            assert!(fit(free.iter().copied(), 0, 2, 300), "{free:?}");
            assert!(fit(free.iter().copied(), 10, 2, 300), "{free:?}");
            assert!(!fit(free.iter().copied(), 10, 2, 2000), "{free:?}");
            assert!(!fit(free.iter().copied(), 0, 2, 2001), "{free:?}");
        }
    }
}
