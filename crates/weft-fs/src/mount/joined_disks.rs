//! Disks that a node was not given at its mount: it opens them itself, or reaches them through the
//! keeper.
//!
//! ```text
//!   a row of the metadata names a disk that the node does not know
//!        ── open it, by its name at the keeper ──┬─ its label is that of the row ──▶ it is used
//!                                                └─ no ── ask the keeper (`NoPath`) ──┐
//!              it is used through the keeper (`crate::disks::relayed`) ◀── it works ──┤
//!              it is lost ◀── it does not work for the keeper either ─────────────────┘
//! ```
//!
//! A node finds such rows when it mounts, and when it looks at the rows of disks again
//! ([`super::learned_disks`]): that comes before its next operation after a disk has joined,
//! however long it was away, and whichever keeper it has by then.
//!
//! *A disk that comes back* has another number ([`crate::disks::successor`]). A node that has used
//! it under the one before first ends that use. If it had lost its path there, the disk refuses it
//! in its epoch, and it goes on through the keeper.

use std::cell::Cell;
use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::Rt;

use crate::disks::member::{Member, PresentDisk};
use crate::disks::relayed::{RelayedDisk, through_keeper};
use crate::disks::reopen::{PathDisk, Reopen};
use crate::error::{FsError, Result};
use crate::format::label::Label;
use crate::meta::DiskRow;
use crate::meta::remote::{Link, unexpected};
use crate::mount::present_by;
use crate::state::mounted::FsState;

/// The ways of a node to a disk.
pub(super) struct Ways<'a> {
    pub(super) rt: &'a Rt,
    pub(super) link: &'a Rc<Link>,
    /// Opens disks by the names that they have at the keeper.
    pub(super) open: Option<&'a Reopen>,
}

/// What a node finds at the end of its ways.
pub(super) enum Reached {
    /// The disk.
    Disk(Box<PresentDisk>),
    /// The disk is lost, for this reason.
    Lost(String),
    /// Another disk, or none that can be read.
    Other,
}

impl Ways<'_> {
    /// A disk that the node reaches by itself.
    pub(super) fn own(
        &self,
        number: u16,
        disk: &Rc<dyn Disk>,
        label: &Label,
    ) -> Result<PresentDisk> {
        self.present(number, disk, label, false)
    }

    fn present(
        &self,
        number: u16,
        disk: &Rc<dyn Disk>,
        label: &Label,
        is_relayed: bool,
    ) -> Result<PresentDisk> {
        let is_relayed = Rc::new(Cell::new(is_relayed));
        let reopen = through_keeper((self.rt, self.link), number, is_relayed.clone());
        let path = Rc::new(PathDisk::cut_off(disk.clone(), label.clone(), reopen));
        present_by(disk, label, Some(path), is_relayed)
    }

    /// A disk that the node was not given.
    pub(super) async fn reach(&self, number: u16, row: &DiskRow) -> Result<Reached> {
        if let Some(open) = self.open
            && let Ok(disk) = open(row.name.clone()).await
            && let Some(label) = label_of(&*disk, row).await
        {
            return Ok(Reached::Disk(Box::new(self.own(number, &disk, &label)?)));
        }
        self.reach_through_keeper(number, row).await
    }

    async fn reach_through_keeper(&self, number: u16, row: &DiskRow) -> Result<Reached> {
        let place = (number, row.name.clone());
        let disk = match RelayedDisk::reach((self.rt, self.link), place, None).await {
            Ok(disk) => disk,
            Err(why) => return Ok(Reached::Lost(why)),
        };
        let Some(label) = label_of(&*disk, row).await else { return Ok(Reached::Other) };
        Ok(Reached::Disk(Box::new(self.present(number, &disk, &label, true)?)))
    }
}

/// The label of a disk, if it is the one that the metadata means.
async fn label_of(disk: &dyn Disk, row: &DiskRow) -> Option<Label> {
    Label::read(disk).await.ok().flatten().filter(|label| label.disk_id.0 == row.id)
}

impl FsState {
    /// A disk has joined, or come back, or its row is there although it is lost. None of its blocks
    /// is free here until it is granted.
    pub(super) async fn take_in_disk(&self, number: u16, mut row: DiskRow) -> Result<()> {
        let (mut present, mut why_lost) = (None, None);
        if !row.lost {
            match self.reach_joined(number, &row).await? {
                Reached::Disk(disk) => {
                    row.name.clone_from(&disk.whole.info().name);
                    present = Some(*disk);
                }
                Reached::Lost(why) => why_lost = Some(why),
                Reached::Other => {
                    let why = format!(
                        "disk {number} ({}) has joined, and is another disk here: mount this node again",
                        row.name
                    );
                    return Err(FsError::Stopped(why));
                }
            }
        }
        let member = Member::new(number, row, present);
        member.have_only_granted();
        *member.why_lost.borrow_mut() = why_lost;
        self.pool().add(member);
        Ok(())
    }

    async fn reach_joined(&self, number: u16, row: &DiskRow) -> Result<Reached> {
        let link = self.meta().link().ok_or_else(unexpected)?;
        let ways = Ways { rt: self.rt(), link: &link, open: self.reopen() };
        let members = self.pool().members();
        for before in members.iter().filter(|member| member.row().id == row.id) {
            let Some(present) = before.present() else { continue };
            if present.is_relayed.get() {
                return ways.reach_through_keeper(number, row).await;
            }
            present.whole.sever("it has come back under another number");
        }
        ways.reach(number, row).await
    }
}
