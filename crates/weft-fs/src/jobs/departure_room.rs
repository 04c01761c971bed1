//! Whether the other disks can take the contents of a disk that will leave, or of lost ones.
//!
//! A column goes to a disk that its record does not use, so free blocks may be of no use: those of
//! the disk that has the other copy of a mirrored file, above all. What can be laid out narrower,
//! if it must, may go anywhere. So this is a flow:
//!
//! ```text
//!     columns, by the disks that they may go to ──▶ free blocks of each disk
//! ```
//!
//! If not all of it flows, the disk cannot be emptied.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::Result;
use crate::format::extent::{Column, Extent};
use crate::format::redundancy::Redundancy;
use crate::state::mounted::FsState;

/// The most kinds of columns that are told apart.
const KINDS_MAX: usize = 256;

/// Blocks that have to move, by the disks that may take them: a bit for each.
#[derive(Debug, Default)]
pub(super) struct Demand(BTreeMap<u64, u64>);

impl Demand {
    /// A record has columns on disks that leave; `others` are the disks that stay.
    fn add(&mut self, record: &Extent, columns: u64, others: &[u16]) {
        let all = (0..others.len()).fold(0, |all, at| all | 1 << at);
        let is_used = |disk: &u16| record.active().any(|(_, column)| column.disk == *disk);
        let unused = others.iter().enumerate().filter(|(_, disk)| !is_used(disk));
        let unused = unused.fold(0, |mask, (at, _)| mask | 1 << at);
        let narrowest = Redundancy::Code(record.coded.spec).columns_min();
        let may_be_narrower = record.active().count() > narrowest;
        let is_known = self.0.contains_key(&unused) || self.0.len() < KINDS_MAX;
        let mask = if may_be_narrower || unused == 0 || !is_known { all } else { unused };
        *self.0.entry(mask).or_default() += record.lines * columns;
    }

    /// Blocks that were not looked at are taken to fit anywhere.
    fn add_unknown(&mut self, blocks: u64, others: usize) {
        *self.0.entry((0..others).fold(0, |all, at| all | 1 << at)).or_default() += blocks;
    }

    /// How many of the blocks disks with these numbers of free ones can take.
    fn taken(&self, mut free: Vec<u64>) -> u64 {
        let kinds: Vec<(u64, u64)> = self.0.iter().map(|(mask, blocks)| (*mask, *blocks)).collect();
        let mut flow = vec![vec![0_u64; free.len()]; kinds.len()];
        let mut taken = 0;
        for (kind, (_, blocks)) in kinds.iter().enumerate() {
            let mut left = *blocks;
            while left > 0
                && let Some(way) = way_to_room(kind, &kinds, &flow, &free)
            {
                let end = way.last().expect("a disk").1;
                // It gets on the next disk the room that another kind releases on the way.
                let given = way.windows(2).map(|step| flow[step[1].0][step[0].1]).min();
                let some = left.min(free[end]).min(given.unwrap_or(u64::MAX));
                for (n, (kind, disk)) in way.iter().enumerate() {
                    flow[*kind][*disk] += some;
                    if let Some((next, _)) = way.get(n + 1) {
                        flow[*next][*disk] -= some;
                    }
                }
                free[end] -= some;
                left -= some;
                taken += some;
            }
        }
        taken
    }

    fn blocks(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Steps from a kind to a disk with room: each goes to a disk on which the next kind releases room.
fn way_to_room(
    kind: usize,
    kinds: &[(u64, u64)],
    flow: &[Vec<u64>],
    free: &[u64],
) -> Option<Vec<(usize, usize)>> {
    let mut ways = VecDeque::from([(kind, Vec::new())]);
    let mut seen = BTreeSet::from([kind]);
    while let Some((kind, way)) = ways.pop_front() {
        for disk in (0..free.len()).filter(|disk| kinds[kind].0 >> disk & 1 == 1) {
            let mut way: Vec<(usize, usize)> = way.clone();
            way.push((kind, disk));
            if free[disk] > 0 {
                return Some(way);
            }
            for next in (0..kinds.len()).filter(|next| flow[*next][disk] > 0) {
                if seen.insert(next) {
                    ways.push_back((next, way.clone()));
                }
            }
        }
    }
    None
}

impl FsState {
    /// Blocks of columns on these disks, and how many of them the other disks can take that take
    /// data. Looks at about `most` records at most: the rest of the blocks is taken to fit on any
    /// disk.
    pub(super) async fn room_elsewhere(
        &self,
        disks: &BTreeSet<u16>,
        most: Option<u64>,
    ) -> Result<(u64, u64)> {
        let mut others = self.pool().members();
        others.retain(|member| member.takes_data() && !disks.contains(&member.number));
        let numbers: Vec<u16> = others.iter().map(|member| member.number).collect();
        let (mut demand, mut left) = (Demand::default(), most);
        for disk in disks {
            self.add_columns_on(*disk, &numbers, &mut left, &mut demand).await?;
        }
        if left == Some(0) {
            let leaving = disks.iter().filter_map(|disk| self.pool().member(*disk));
            let used: u64 = leaving.map(|member| member.used_blocks()).sum();
            demand.add_unknown(used.saturating_sub(demand.blocks()), others.len());
        }
        let free = others.iter().map(|member| member.free_blocks()).collect();
        Ok((demand.blocks(), demand.taken(free)))
    }

    /// Adds the columns on a disk, until no records are `left` to look at.
    async fn add_columns_on(
        &self,
        disk: u16,
        others: &[u16],
        left: &mut Option<u64>,
        demand: &mut Demand,
    ) -> Result<()> {
        let mut from = 0;
        loop {
            let max = self.meta().at_a_time();
            let inos = self.meta().run(|tx| tx.inodes_on(disk, from, max)).await?;
            let Some(last) = inos.last() else { return Ok(()) };
            from = last + 1;
            for ino in inos {
                let mut next = Some(0);
                while let Some(first) = next {
                    if *left == Some(0) {
                        return Ok(());
                    }
                    self.check()?;
                    let mut some = self.meta().run(|tx| tx.records_from((ino, first), max)).await?;
                    let is_all = some.len() < max;
                    some.retain(|(of, ..)| *of == ino);
                    next = some.last().filter(|_| !is_all).map(|(_, first, _)| first + 1);
                    *left = left.map(|left| left.saturating_sub(some.len() as u64));
                    for (_, _, record) in &some {
                        let is_there = |(_, column): &(usize, &Column)| column.disk == disk;
                        let columns = record.active().filter(is_there).count() as u64;
                        if columns > 0 {
                            demand.add(record, columns, others);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_flows_is_what_fits() {
        let taken = |kinds: &[(u64, u64)], free: &[u64]| {
            Demand(kinds.iter().copied().collect()).taken(free.to_vec())
        };
        assert_eq!(taken(&[], &[5]), 0);
        assert_eq!(taken(&[(0b1, 7)], &[5, 100]), 5);
        assert_eq!(taken(&[(0b11, 7)], &[5, 100]), 7);
        // The first kind makes room for the second one, and that for the third.
        assert_eq!(taken(&[(0b11, 10), (0b110, 10), (0b100, 10)], &[10, 10, 10]), 30);
        assert_eq!(taken(&[(0b01, 10), (0b011, 10), (0b111, 10)], &[10, 10, 10]), 30);
        assert_eq!(taken(&[(0b01, 10), (0b011, 10), (0b111, 15)], &[10, 10, 10]), 30);
        assert_eq!(taken(&[(0b01, 10), (0b10, 10)], &[15, 5]), 15);
    }

    /// Against all ways to part blocks.
    #[test]
    fn no_part_of_the_kinds_wants_more_than_its_disks_have() {
        let mut rng = weft_random::Rng::new(5);
        for _ in 0..500 {
            let free: Vec<u64> = (0..4).map(|_| rng.below(20)).collect();
            let kinds: BTreeMap<u64, u64> =
                (0..1 + rng.below(5)).map(|_| (1 + rng.below(15), rng.below(20))).collect();
            let all: Vec<(u64, u64)> =
                kinds.iter().map(|(mask, blocks)| (*mask, *blocks)).collect();
            let total: u64 = kinds.values().sum();
            // What is left of any kinds has no place.
            let lacking = (0..1_u32 << all.len()).map(|chosen| {
                let chosen = all.iter().enumerate().filter(|(n, _)| chosen >> n & 1 == 1);
                let (mask, wanted) = chosen
                    .fold((0, 0), |(mask, wanted), (_, (of, blocks))| (mask | of, wanted + blocks));
                let room: u64 =
                    (0..4).filter(|disk| mask >> disk & 1 == 1).map(|disk| free[disk]).sum();
                wanted.saturating_sub(room)
            });
            let lacking = lacking.max().unwrap_or(0);
            assert_eq!(
                Demand(kinds.clone()).taken(free.clone()),
                total - lacking,
                "{kinds:?} {free:?}"
            );
        }
    }
}
