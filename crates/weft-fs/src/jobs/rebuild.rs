//! Rebuilding what lay on lost disks.
//!
//! Each record with a column on a lost disk gets another column on a disk that it does not use,
//! computed from checked blocks ([`crate::jobs::migration`]). If there is no such disk, its lines
//! are rewritten, as narrow as the remaining disks require ([`crate::write::relayout`]). No spare
//! is needed, only live blocks are read, and a crash leaves each record old or new. When no record
//! names the disk any more, it leaves the file system. The valid blocks of a disk that has come
//! back stay in place ([`crate::disks::successor`]). A working disk that will leave
//! ([`crate::disks`]) is emptied in the same way; its columns are read instead of computed.

use std::collections::BTreeSet;

use weft_code::UnitSet;
use weft_rt::{Nanos, SECOND};
use weft_wire::{FIRST_VERSION, Task};

use crate::disks::member::Member;
use crate::disks::pool::Pool;
use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::jobs::migration::{Decide, Decision, MigrationReport};
use crate::jobs::spread::SpreadMoves;
use crate::meta::Tx;
use crate::state::job::Job;
use crate::state::mounted::{Fs, FsState};

/// How long a rebuild waits for nodes to log elsewhere. The lost disk goes with the next one then.
const RINGS_WAIT: Nanos = 30 * SECOND;
/// The most records that are looked at to tell whether there is room for a rebuild: about a
/// second's work. The rest is taken to fit on any disk.
const RECORDS_LOOKED_AT: u64 = 1 << 19;

/// What a rebuild did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RebuildReport {
    /// Blocks computed and written.
    pub blocks: u64,
    /// Of these, by other nodes.
    pub elsewhere_blocks: u64,
    /// Blocks that were found on disks that came back, and stayed there.
    pub kept_blocks: u64,
    /// Lost disks that no file needs any more: they left the file system.
    pub removed_disks: Vec<u16>,
    /// Files with blocks that could not be had, as they had too little redundancy.
    pub damaged: BTreeSet<Ino>,
    /// Files that still need a lost disk's place: there are too few disks, or too little room.
    pub waiting: BTreeSet<Ino>,
}

/// Columns on these disks move to any other disks.
pub(crate) struct LostDiskMoves<'a> {
    pool: &'a Pool,
    disks: &'a BTreeSet<u16>,
}

impl<'a> LostDiskMoves<'a> {
    pub(crate) fn new(pool: &'a Pool, disks: &'a BTreeSet<u16>) -> Self {
        Self { pool, disks }
    }

    fn units(&self, record: &Extent) -> UnitSet {
        let leaves = record.active().filter(|(_, column)| self.disks.contains(&column.disk));
        leaves.map(|(unit, _)| unit).collect()
    }

    /// Gives columns of disks that are back the numbers that these have now. Returns which they
    /// are.
    fn stay(&self, fresh: &mut Extent, units: UnitSet) -> UnitSet {
        let mut back = UnitSet::new();
        for unit in units.iter() {
            let successor = fresh.columns[unit]
                .as_ref()
                .and_then(|column| self.pool.successor(column.disk))
                .filter(|successor| successor.takes_data());
            let Some(number) = successor.map(|successor| successor.number) else { continue };
            let is_used = fresh.active().any(|(_, column)| column.disk == number);
            if let Some(column) = fresh.columns[unit].as_mut().filter(|_| !is_used) {
                column.disk = number;
                back.insert(unit);
            }
        }
        back
    }
}

impl Decide for LostDiskMoves<'_> {
    fn count(&self, record: &Extent) -> u64 {
        self.units(record).len() as u64
    }

    fn decide(&self, record: &Extent) -> Decision {
        let units = self.units(record);
        if units.is_empty() {
            return Decision::Stays;
        }
        let mut fresh = record.clone();
        // What a disk that has come back holds of it stays there.
        let back = self.stay(&mut fresh, units);
        let mut allocated = Vec::new();
        for unit in units.difference(&back).iter() {
            let Ok(column) = self.pool.allocate_column(&fresh, None) else {
                self.pool.release(allocated);
                return Decision::Anew;
            };
            allocated.push(column.run());
            fresh.columns[unit] = Some(column);
        }
        Decision::Moves(fresh, units)
    }
}

/// A walk of a rebuild.
struct RebuildWalk<'a> {
    pool: &'a Pool,
    disks: &'a BTreeSet<u16>,
    /// A later one finds again what could not move, which counts once.
    is_first: bool,
}

impl SpreadMoves for RebuildWalk<'_> {
    const COMMITS: bool = false;

    fn version(&self) -> Option<u16> {
        Some(FIRST_VERSION)
    }

    fn decide(&self) -> impl Decide {
        LostDiskMoves::new(self.pool, self.disks)
    }

    fn task(&self, files: Vec<Ino>, _: usize) -> Task {
        Task::Move { disks: self.disks.iter().copied().collect(), files }
    }

    fn progress(&self, found: u64, _: u64) -> u64 {
        if self.is_first { found } else { 0 }
    }
}

/// Whether a disk that works is one of these, which leave.
fn is_leaving(member: &Member, disks: &BTreeSet<u16>) -> bool {
    disks.contains(&member.number) && !member.is_lost()
}

impl FsState {
    pub(crate) async fn rebuild(&self) -> Result<RebuildReport> {
        self.check_writable()?;
        let members = self.pool().members();
        let lost = members.iter().filter(|member| member.is_lost()).map(|member| member.number);
        self.move_off(&lost.collect()).await
    }

    /// Whether records name one of these disks.
    async fn are_used(&self, disks: &BTreeSet<u16>) -> Result<bool> {
        let any = |tx: &Tx<'_>| {
            disks.iter().try_fold(false, |used, disk| Ok(used || tx.is_disk_used(*disk)?))
        };
        self.meta().run(any).await
    }

    /// Whether records of other nodes name one of these disks: they store them to return the token
    /// of everything.
    async fn are_used_elsewhere(&self, disks: &BTreeSet<u16>) -> Result<bool> {
        if !self.sharing().is_shared() {
            return Ok(false);
        }
        drop(self.hold_all_tokens().await);
        self.are_used(disks).await
    }

    /// Gives rings on these disks another place. Nodes that are mounted take it after a while:
    /// waits until all have done that, or for some time.
    async fn wait_for_rings(&self, disks: &BTreeSet<u16>, wait: Nanos) -> Result<()> {
        let until = self.rt().now().saturating_add(wait);
        loop {
            // Another disk may be lost meanwhile.
            match self.move_rings_off(disks).await {
                // A lost disk stays until there is room.
                Err(FsError::NoSpace) if wait < Nanos::MAX => return Ok(()),
                moved => moved?,
            }
            let mut any = false;
            for disk in disks {
                any |= self.has_ring(*disk).await?;
            }
            if !any || self.rt().now() >= until {
                return Ok(());
            }
            self.rt().sleep(SECOND).await;
            self.job_may_go_on()?;
        }
    }

    /// Those of these files that records place on one of these disks.
    async fn files_still_on(
        &self,
        disks: &BTreeSet<u16>,
        files: &BTreeSet<Ino>,
    ) -> Result<BTreeSet<Ino>> {
        let mut still = BTreeSet::new();
        for ino in files {
            let is_on = |tx: &Tx<'_>| {
                disks.iter().try_fold(false, |is_on, disk| {
                    Ok(is_on || tx.inodes_on(*disk, *ino, 1)?.first() == Some(ino))
                })
            };
            if self.meta().run(is_on).await? {
                still.insert(*ino);
            }
        }
        Ok(still)
    }

    /// Tells at the start of a rebuild if the working disks have too little room for what was on
    /// lost ones.
    async fn note_lack_of_room(&self, disks: &BTreeSet<u16>) -> Result<()> {
        // What a disk that is back has stays there.
        let needs_room = |number: &u16| {
            let is_lost = self.pool().member(*number).is_some_and(|member| member.is_lost());
            is_lost && self.pool().successor(*number).is_none()
        };
        let gone: BTreeSet<u16> = disks.iter().copied().filter(needs_room).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let (wanted, taken) = self.room_elsewhere(&gone, Some(RECORDS_LOOKED_AT)).await?;
        self.job_lacks_room(wanted - taken);
        Ok(())
    }

    /// Gives every column on these disks another place. Disks that no record names any more leave
    /// the file system.
    pub(crate) async fn move_off(&self, disks: &BTreeSet<u16>) -> Result<RebuildReport> {
        if self.sharing().is_shared() {
            // Other nodes hear that nothing is to come to these disks: they look at what is stored.
            self.commit().await?;
            drop(self.hold_all_tokens().await);
        }
        let used =
            |number: &u16| self.pool().member(*number).map_or(0, |member| member.used_blocks());
        self.job_total(disks.iter().map(used).sum());
        self.note_lack_of_room(disks).await?;
        let mut moved = MigrationReport::default();
        let mut is_first = true;
        loop {
            let (before, members) = (moved.blocks + moved.kept, self.pool().len());
            moved.start_walk();
            let walk = RebuildWalk { pool: self.pool(), disks, is_first };
            self.move_all(self.walk(disks).await?, &walk, &mut moved).await?;
            let is_any_gain = moved.blocks + moved.kept > before || self.pool().len() > members;
            let goes_on = match self.are_used(disks).await? {
                true => is_any_gain,
                false => self.are_used_elsewhere(disks).await?,
            };
            if !goes_on {
                break;
            }
            // Records that changed after the walk had found them were left alone. The old places of
            // rewritten lines are free after a commit, and disks may have joined: there may be room
            // now, and blocks that could not be read before.
            self.commit().await?;
            is_first = false;
        }
        // Some could be moved after all, as a disk came back or there was room later.
        for files in [&mut moved.damaged, &mut moved.waiting] {
            *files = self.files_still_on(disks, files).await?;
        }
        let MigrationReport { blocks, elsewhere, kept: kept_blocks, damaged, waiting, .. } =
            self.as_it_is_now(moved).await?;
        let removed_disks = Vec::new();
        let mut report = RebuildReport {
            blocks,
            elsewhere_blocks: elsewhere,
            kept_blocks,
            removed_disks,
            damaged,
            waiting,
        };
        self.commit().await?;
        let wait = if self.pool().members().iter().any(|of| is_leaving(of, disks)) {
            Nanos::MAX
        } else {
            RINGS_WAIT
        };
        self.wait_for_rings(disks, wait).await?;
        self.job_nears_end()?;
        // A record may have come to a disk during this, before it was lost.
        for number in disks {
            // Blocks that a number before it names are on it as well.
            if self.is_named(*number).await? || self.pool().succeeded_by(*number).is_some() {
                continue;
            }
            if self.let_go(*number).await? {
                report.removed_disks.push(*number);
            }
        }
        Ok(report)
    }
}

impl Fs {
    /// Moves the contents of lost disks to other disks, and removes the lost ones.
    ///
    /// # Errors
    /// If the metadata has failed, or another job runs. Files that cannot be rebuilt are in the
    /// report.
    pub async fn rebuild(&self) -> Result<RebuildReport> {
        self.0.run_job(Job::Rebuild, FsState::rebuild).await
    }

    /// Whether rebuilds take first what users read and had to be computed, which they do unless
    /// this says otherwise. For experiments: the other order is by files in use and by changes.
    pub fn rebuild_hot_parts_first(&self, is_first: bool) {
        self.0.hot_parts().count(is_first);
    }

    /// How often users have read blocks of a lost disk since the mount, which were computed: once
    /// for each extent of a read.
    #[must_use]
    pub fn computed_extents(&self) -> u64 {
        self.0.hot_parts().noted()
    }
}
