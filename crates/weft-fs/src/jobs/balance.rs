//! Moving existing data to disks with more room than other disks, such as one that has just joined.
//!
//! Columns move from the disk of their record with the least free space to the one with the most
//! that the record does not use. Lines keep their code: only places change. Each move must make the
//! two disks more alike, so it is made only if their free space differs by more than twice the
//! column, and by more than 1/RAIDRATIO of the free space on the emptier one: disks that are as
//! alike as that get new lines in the same way ([`crate::disks::allocator`]). So no column goes to
//! and fro, and one walk through the files on the fuller disks is enough.
//!
//! What has moved leaves its old place only when that is durable. So each batch is committed, and
//! within one the blocks that it will free are counted ([`BalanceMoves::freed`]).
//!
//! That it is wanted is in the metadata's state until it is done or was cancelled: an unmount, a
//! crash or a rebuild only interrupts it ([`crate::jobs::scheduler`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_code::UnitSet;

use crate::disks::allocator::{RAIDRATIO, allocate_on};
use crate::disks::member::Member;
use crate::disks::pool::Pool;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::jobs::migration::{Decide, Decision, MigrationReport};
use crate::meta::Tx;
use crate::state::mounted::FsState;

/// Whether a balance is wanted; in the state.
const WANTED: &str = "balance";

/// What a balance did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BalanceReport {
    /// Blocks moved.
    pub blocks: u64,
    /// Files with blocks that could not be had, as they had too little redundancy.
    pub damaged: BTreeSet<Ino>,
    /// Files with columns that should have moved, but found no place in one piece.
    pub crowded: BTreeSet<Ino>,
}

/// Columns move to where there is more room.
struct BalanceMoves<'a> {
    pool: &'a Pool,
    /// Blocks that will be free on each disk when the decided moves are committed.
    freed: RefCell<BTreeMap<u16, u64>>,
}

/// A column that is to move, from a disk to one of these, the best first.
struct Step {
    unit: usize,
    from: u16,
    to: Vec<Rc<Member>>,
}

impl<'a> BalanceMoves<'a> {
    fn new(pool: &'a Pool) -> Self {
        Self { pool, freed: RefCell::default() }
    }

    /// The disks that take part, with their free blocks, those with the most first.
    fn rooms(&self) -> Vec<(Rc<Member>, u64)> {
        let members = self.pool.members().into_iter();
        let works = members.filter(|member| member.takes_data());
        let freed = self.freed.borrow();
        let mut rooms: Vec<_> = works
            .map(|member| {
                let free = member.free_blocks() + freed.get(&member.number).unwrap_or(&0);
                (member, free)
            })
            .collect();
        rooms.sort_by_key(|(_, free)| std::cmp::Reverse(*free));
        rooms
    }

    /// The next column of a record that is to move, if it is none of these.
    fn step(&self, record: &Extent, moved: UnitSet) -> Option<Step> {
        let rooms = self.rooms();
        let used: BTreeMap<u16, usize> =
            record.active().map(|(unit, column)| (column.disk, unit)).collect();
        let fullest = rooms.iter().rev().find_map(|(member, free)| {
            let unit = used.get(&member.number).filter(|unit| !moved.contains(**unit))?;
            Some((*unit, member.number, *free))
        });
        let (unit, from, least) = fullest?;
        let is_better = |free: u64| free > least + (2 * record.lines).max(free / RAIDRATIO);
        let to = rooms.into_iter().filter(|(member, _)| !used.contains_key(&member.number));
        let to: Vec<_> =
            to.take_while(|(_, free)| is_better(*free)).map(|(member, _)| member).collect();
        (!to.is_empty()).then_some(Step { unit, from, to })
    }

    /// The disks with less free space than there is on average, and how much that is in all.
    fn fuller(&self) -> (BTreeSet<u16>, u64) {
        let rooms = self.rooms();
        let average = rooms.iter().map(|(_, free)| free).sum::<u64>() / rooms.len().max(1) as u64;
        let fuller = rooms.iter().filter(|(_, free)| *free < average);
        let blocks = fuller.clone().map(|(_, free)| average - free).sum();
        (fuller.map(|(member, _)| member.number).collect(), blocks)
    }
}

impl Decide for BalanceMoves<'_> {
    fn count(&self, record: &Extent) -> u64 {
        u64::from(self.step(record, UnitSet::EMPTY).is_some())
    }

    fn decide(&self, record: &Extent) -> Decision {
        let (mut fresh, mut units) = (record.clone(), UnitSet::EMPTY);
        while let Some(Step { unit, from, to }) = self.step(&fresh, units) {
            let Some(column) = to.iter().find_map(|member| allocate_on(member, record.lines))
            else {
                if units.is_empty() {
                    return Decision::LacksRoom;
                }
                break;
            };
            *self.freed.borrow_mut().entry(from).or_default() += record.lines;
            fresh.columns[unit] = Some(column);
            units.insert(unit);
        }
        if units.is_empty() { Decision::Stays } else { Decision::Moves(fresh, units) }
    }
}

/// Whether a balance is wanted.
pub(crate) fn is_wanted(tx: &Tx<'_>) -> Result<bool> {
    Ok(tx.state(WANTED)? != 0)
}

/// A balance is not wanted any more.
pub(crate) fn forget(tx: &Tx<'_>) -> Result<()> {
    tx.set_state(WANTED, 0)
}

impl FsState {
    /// Evens out the disks, as a job.
    pub(crate) async fn balance(&self) -> Result<BalanceReport> {
        self.meta()
            .run(|tx| {
                self.job_may_go_on()?;
                tx.set_state(WANTED, 1)
            })
            .await?;
        self.commit().await?;
        let ended = self.even_out().await;
        if !self.job_goes_on_later(&ended) {
            // If this fails, the next mount tries it again.
            let _ = self.meta().run(forget).await;
        }
        ended
    }

    async fn even_out(&self) -> Result<BalanceReport> {
        let (fuller, blocks) = BalanceMoves::new(self.pool()).fuller();
        self.job_total(blocks);
        let mut moved = MigrationReport::default();
        let mut walk = self.walk(&fuller).await?;
        loop {
            let even = BalanceMoves::new(self.pool());
            let some = self.next_found(&mut walk, &even).await?;
            if some.is_empty() {
                break;
            }
            let before = moved.blocks;
            self.move_some(&some, &even, &mut moved).await?;
            // The old places are free from then on.
            self.commit().await?;
            self.job_done(moved.blocks - before);
            self.job_may_go_on()?;
        }
        self.job_nears_end()?;
        let MigrationReport { blocks, damaged, waiting: crowded, .. } =
            self.as_it_is_now(moved).await?;
        Ok(BalanceReport { blocks, damaged, crowded })
    }
}
