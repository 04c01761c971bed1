//! Parts of a job that another node carries out for node 0.
//!
//! Node 0 walks through what a job has to do, and gives some of it to nodes that have nothing to do
//! ([`crate::state::work_desk`]): of a scrub, 16 records; of the other jobs whole files, up to
//! 256 MiB at a time and no more than its share. It goes on with the rest itself, and looks between
//! two steps of its own whether nodes are done. What a node could not do, node 0 does.
//!
//! *Order.* Files that are used at node 0 are moved there, as their tokens are there. Each node
//! moves first what its own users read and what has to be computed
//! ([`crate::state::hot_parts`]), then the files that it was given, in their order.
//!
//! *Room.* A node has blocks of its own to move columns to, and gets more as for writes. If it has
//! none of the right disk, it leaves the file to node 0, and does not rewrite lines in a narrower
//! way: node 0 knows all that is free.
//!
//! *Another redundancy.* A node lays out files only while it has enough blocks on all disks that
//! have room, as lines would be narrower otherwise ([`crate::jobs::set`]).
//!
//! *A balance* goes by the free blocks that came with the part ([`crate::jobs::balance`]). Node 0
//! keeps account of them. So a node whose connection ends during such a part leaves the rest of it
//! to node 0, which may be another one.

use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::Rt;
use weft_wire::{Moved, Outcome, Task, WorkDone};

use crate::disks::reopen::Reopen;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::jobs::balance::BalanceMoves;
use crate::jobs::migration::{Decide, Decision, MigrationReport};
use crate::jobs::rebuild::LostDiskMoves;
use crate::mount::RemoteMetadata;
use crate::state::mounted::{Fs, FsState, MountOptions};

/// Moves that need no more than room on other disks.
struct Narrowing<'a>(LostDiskMoves<'a>);

impl Decide for Narrowing<'_> {
    fn count(&self, record: &Extent) -> u64 {
        self.0.count(record)
    }

    fn decide(&self, record: &Extent) -> Decision {
        match self.0.decide(record) {
            Decision::Anew => Decision::LacksRoom,
            decision => decision,
        }
    }
}

impl FsState {
    /// Carries out a part of a job for node 0, which knows of it as long as `is_known`. None: it
    /// could not.
    async fn carry_out_part(&self, task: Task, is_known: impl Fn() -> bool) -> Option<Outcome> {
        let _working = self.work_desk().working.acquire(1).await;
        match task {
            Task::Move { disks, files } => {
                let disks = disks.into_iter().collect();
                let off = Narrowing(LostDiskMoves::new(self.pool(), &disks));
                self.move_files(&off, files, || true).await.ok().map(Outcome::Moved)
            }
            Task::Even { free, files } => {
                let free = free.into_iter().map(|of| (of.disk, of.blocks)).collect();
                let even = BalanceMoves::new(self.pool(), free);
                let moved = self.move_files(&even, files, is_known).await;
                // Node 0 goes by what is free from now on.
                self.return_excess().await;
                moved.ok().map(Outcome::Moved)
            }
            Task::Lay { files } => {
                self.lay_out_part(files, is_known).await.ok().map(Outcome::Moved)
            }
            Task::Check { from, to } => {
                let checked = self.check_records(from..to, |_| self.check()).await;
                checked.ok().map(Outcome::Checked)
            }
        }
    }

    /// Moves columns of files, while `goes_on`.
    async fn move_files(
        &self,
        decide: &impl Decide,
        files: Vec<Ino>,
        goes_on: impl Fn() -> bool,
    ) -> Result<Moved> {
        let (mut moved, mut walk, mut found) = (MigrationReport::default(), self.walk_of(files), 0);
        while goes_on() {
            // Disks that have joined, or are to leave, are known then.
            drop(self.hold_everything().await);
            let some = self.next_found(&mut walk, decide).await?;
            if some.is_empty() {
                break;
            }
            let blocks: u64 = some.iter().map(|found| found.blocks).sum();
            found += blocks;
            {
                let _everything = self.hold_everything().await;
                self.obtain_room(blocks, false).await;
            }
            self.move_some(&some, decide, &mut moved).await?;
        }
        moved.waiting.extend(walk.rest());
        self.commit().await?;
        Ok(moved.into_part(found))
    }
}

impl Fs {
    /// Mounts as a node with a number that is not 0, beside the node 0 of a keeper
    /// ([`Fs::mount_with_keeper`]), which gives it a log and parts of jobs. Disks that are not
    /// given, or fail here and work for node 0, are reached through the keeper; one is enough.
    /// Nothing is written to labels; the options for disks that are missing, and for other hosts,
    /// have no meaning.
    ///
    /// # Errors
    /// If no disk is there, the keeper refuses the node, or its last mount was not recovered.
    pub async fn mount_node(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: MountOptions,
        metadata: RemoteMetadata,
    ) -> Result<Self> {
        Self::mount_node_opening(rt, disks, options, metadata, None).await
    }

    /// As [`Fs::mount_node`]. Disks that it was not given, and those that join later, the node
    /// opens itself, by the names that they have at the keeper. Those that it cannot open, it
    /// reaches through the keeper.
    ///
    /// # Errors
    /// As [`Fs::mount_node`].
    pub async fn mount_node_opening(
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        options: MountOptions,
        metadata: RemoteMetadata,
        open: Option<Reopen>,
    ) -> Result<Self> {
        let fs = Self::mount_beside(rt, disks, options, (metadata, open)).await?;
        fs.carry_out_parts();
        Ok(fs)
    }

    /// From now on this node, which is not node 0, carries out parts of jobs.
    fn carry_out_parts(&self) {
        let Some(link) = self.0.meta().link() else { return };
        let weak = Rc::downgrade(&self.0);
        self.0.rt().launch(Box::pin(async move {
            let mut done = None;
            // A node that is being unmounted asks for nothing. If it is given a part meanwhile, the
            // keeper hears that it has left.
            let mounted = || weak.upgrade().filter(|fs| !fs.is_stopped());
            while mounted().is_some() {
                let Ok(given) = link.next_work(done.clone()).await else { return };
                let (Some((work, connection)), Some(fs)) = (given, mounted()) else { continue };
                let is_known = || connection.is_there();
                let (number, outcome) = (work.number, fs.carry_out_part(work.task, is_known).await);
                done = Some(WorkDone { number, outcome });
            }
        }));
    }
}
