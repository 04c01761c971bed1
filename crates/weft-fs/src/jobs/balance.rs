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
//! within one the blocks that it will free are counted ([`BalanceMoves::free`]).
//!
//! *In a cluster* other nodes move some of the files ([`crate::jobs::spread`]). A node does not
//! know what the others move meanwhile. So it gets a share of the free blocks of each disk, and
//! evens out its share, as a balance does with all of them: together the nodes move no more than
//! evens out the disks. Node 0 goes by what is in no node's share. A share is back when its node
//! has said what is free now, before the outcome of its part; a balance begins when all are back.
//! Each share stays a little uneven, and nodes have other files than would make use of all of it: a
//! last walk of node 0 alone evens out the rest.
//!
//! That it is wanted is in the metadata's state until it is done or was cancelled: an unmount, a
//! crash or a rebuild only interrupts it ([`crate::jobs::scheduler`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_code::UnitSet;
use weft_rt::SECOND;
use weft_wire::{DiskBlocks, Task};

use crate::disks::allocator::{RAIDRATIO, allocate_on};
use crate::disks::member::Member;
use crate::disks::pool::Pool;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::jobs::migration::{Decide, Decision, MigrationReport};
use crate::jobs::spread::SpreadMoves;
use crate::meta::Tx;
use crate::state::mounted::FsState;

/// Whether a balance is wanted; in the state.
const WANTED: &str = "balance";

/// What a balance did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BalanceReport {
    /// Blocks moved.
    pub blocks: u64,
    /// Of these, by other nodes.
    pub elsewhere_blocks: u64,
    /// Files with blocks that could not be had, as they had too little redundancy.
    pub damaged: BTreeSet<Ino>,
    /// Files with columns that should have moved, but found no place in one piece.
    pub crowded: BTreeSet<Ino>,
}

/// Columns move to where there is more room.
pub(crate) struct BalanceMoves<'a> {
    pool: &'a Pool,
    /// Blocks of each disk that are free, as far as this goes by them, and will be when the decided
    /// moves are committed.
    free: RefCell<BTreeMap<u16, u64>>,
}

/// A column that is to move, from a disk to one of these, the best first.
struct Step {
    unit: usize,
    from: u16,
    to: Vec<Rc<Member>>,
}

impl<'a> BalanceMoves<'a> {
    /// Going by these free blocks of disks.
    pub(crate) fn new(pool: &'a Pool, free: BTreeMap<u16, u64>) -> Self {
        Self { pool, free: RefCell::new(free) }
    }

    /// The disks that take part, with their free blocks, those with the most first.
    fn rooms(&self) -> Vec<(Rc<Member>, u64)> {
        let members = self.pool.members().into_iter();
        let works = members.filter(|member| member.takes_data());
        let free = self.free.borrow();
        let with_free = |member: Rc<Member>| {
            let free = *free.get(&member.number)?;
            Some((member, free))
        };
        let mut rooms: Vec<_> = works.filter_map(with_free).collect();
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
            for (disk, free) in &mut *self.free.borrow_mut() {
                match *disk {
                    of if of == from => *free += record.lines,
                    of if of == column.disk => *free = free.saturating_sub(record.lines),
                    _ => {}
                }
            }
            fresh.columns[unit] = Some(column);
            units.insert(unit);
        }
        if units.is_empty() { Decision::Stays } else { Decision::Moves(fresh, units) }
    }
}

/// A walk of a balance.
struct BalanceWalk<'a> {
    fs: &'a FsState,
    /// Whether other nodes get parts.
    has_help: bool,
}

impl SpreadMoves for BalanceWalk<'_> {
    const COMMITS: bool = true;

    fn version(&self) -> Option<u16> {
        self.has_help.then_some(Task::EVEN_SINCE)
    }

    fn decide(&self) -> impl Decide {
        BalanceMoves::new(self.fs.pool(), self.fs.unshared_room())
    }

    fn task(&self, files: Vec<Ino>, idle: usize) -> Task {
        // Each of them gets as much as node 0 keeps.
        let share = |(disk, free)| DiskBlocks { disk, blocks: free / (idle as u64 + 1) };
        Task::Even { free: self.fs.unshared_room().into_iter().map(share).collect(), files }
    }

    fn progress(&self, _: u64, moved: u64) -> u64 {
        moved
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

    /// Blocks that are free on each disk, at any node, and in no share of a node.
    fn unshared_room(&self) -> BTreeMap<u16, u64> {
        let shares = self.work_desk().shares();
        let room = |member: &Rc<Member>| {
            let shared = shares.get(&member.number).copied().unwrap_or(0);
            (member.number, member.room().saturating_sub(shared))
        };
        self.pool().members().iter().map(room).collect()
    }

    /// One walk through the files on the fuller disks. Returns how many parts other nodes got.
    async fn even_walk(&self, has_help: bool, moved: &mut MigrationReport) -> Result<usize> {
        let (fuller, _) = BalanceMoves::new(self.pool(), self.unshared_room()).fuller();
        let walk = self.walk(&fuller).await?;
        self.move_all(walk, &BalanceWalk { fs: self, has_help }, moved).await
    }

    async fn even_out(&self) -> Result<BalanceReport> {
        // Nodes that are in their parts of a balance that was cancelled end these first.
        while !self.work_desk().shares().is_empty() {
            self.rt().sleep(SECOND).await;
            self.job_may_go_on()?;
        }
        let (_, blocks) = BalanceMoves::new(self.pool(), self.unshared_room()).fuller();
        self.job_total(blocks);
        let mut moved = MigrationReport::default();
        if self.even_walk(true, &mut moved).await? > 0 {
            moved.waiting.clear();
            self.even_walk(false, &mut moved).await?;
        }
        self.job_nears_end()?;
        let MigrationReport { blocks, elsewhere, damaged, waiting: crowded, .. } =
            self.as_it_is_now(moved).await?;
        Ok(BalanceReport { blocks, elsewhere_blocks: elsewhere, damaged, crowded })
    }
}
