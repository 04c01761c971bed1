//! Disks that join and leave a mounted file system.
//!
//! *Joining.* The number of the new disk is taken, durably, before anything is written to it: no
//! other disk ever gets it. Then it is marked as joining, so that it can be added again if that is
//! cut short. Then its slice joins the metadata array as a spare, its label is written, and last it
//! comes into the metadata. After a crash before the label it is no disk of the file system; after
//! a crash past the label the next mount with the disk completes the join.
//!
//! *Growing.* A disk that has become larger gets a new label, and then more blocks in the metadata
//! ([`crate::format::label`]). Its metadata slice may take of them
//! ([`crate::state::metadata_room`]).
//!
//! *Leaving.* A disk that works is emptied first, like a lost one that is rebuilt, but it is read
//! as long as it is there. Each record is old or new, so a crash leaves a disk that is emptier than
//! before and belongs to the file system as before; the departure is in the metadata, so that a
//! mount goes on ([`crate::jobs::scheduler`]). Until it is empty that can be cancelled, and it
//! stays ([`crate::jobs::cancellation`]). Then its slice leaves the metadata array, whose copies go
//! to a spare. Then it leaves the metadata; last its label is erased. A mount does not touch a disk
//! with a label that the metadata does not know.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_disk::{Bytes, Disk};

use crate::disks::free_map::Space;
use crate::disks::member::Member;
use crate::disks::successor::{put_successor, successor_in};
use crate::error::{FsError, Result};
use crate::format::block::BLOCK_BYTES;
use crate::format::inode::Inode;
use crate::format::label::Label;
use crate::jobs::departure::NEXT;
use crate::jobs::rebuild::RebuildReport;
use crate::meta::{DiskRow, LEAVING, Tx};
use crate::mount::free_blocks::take_pieces;
use crate::mount::{DISKS_MAX, JOINING, check_unused, end_join, present, row};
use crate::state::job::Job;
use crate::state::mounted::{Fs, FsState};

/// A disk is about to join: no other one ever gets its number.
fn begin_join(tx: &Tx<'_>, number: u16) -> Result<()> {
    let next = u64::from(number) + 1;
    tx.set_state(NEXT, next)?;
    tx.set_state(JOINING, next)
}

/// This disk is not to leave any more.
pub(crate) fn forget_leaving(tx: &Tx<'_>, number: u16) -> Result<()> {
    match tx.state(LEAVING)? == u64::from(number) + 1 {
        true => tx.set_state(LEAVING, 0),
        false => Ok(()),
    }
}

/// What a disk is that is to join.
enum Comer {
    /// Nothing is known of it.
    Stranger,
    /// It has left, or its joining was cut short: nothing of it is needed.
    Left,
    /// It was lost, and is back.
    Back(Rc<Member>, Label),
}

/// The free blocks of a disk that comes back with this label: those that it had under the number
/// under which it was lost, but for the pieces of the metadata that the label names.
fn space_of(lost: &Member, label: &Label) -> Result<Space> {
    let mut space = lost.space.borrow().clone();
    let known = lost.present().map(|present| present.label.borrow().pieces.clone());
    for piece in known.into_iter().flatten() {
        space.release(piece.start, piece.end - piece.start);
    }
    let space = RefCell::new(space);
    take_pieces(&space, label.number, &label.pieces)?;
    Ok(space.into_inner())
}

impl FsState {
    async fn add_disk(&self, disk: &Rc<dyn Disk>, force: bool) -> Result<u16> {
        self.meta().array()?;
        let _alone = self.hold_all_tokens().await;
        self.check_writable()?;
        let members = self.pool().members();
        if members.iter().filter(|member| !member.is_lost()).count() >= DISKS_MAX {
            return Err(FsError::Invalid(format!("there are {DISKS_MAX} disks already")));
        }
        match self.comer(disk, force).await? {
            _ if force => {}
            Comer::Left => {}
            Comer::Stranger => check_unused(disk).await?,
            Comer::Back(member, label) => return self.take_back(disk, &member, &label).await,
        }
        let number = self.next_number().await?;
        let (fs_id, slice) = (self.label().fs_id, self.slice_bytes());
        let size = disk.size_now();
        let label = Label::plan(fs_id, &self.label().name, number, size, slice)?;
        let present = present(disk, &label, self.reopen())?;
        self.meta().run(|tx| begin_join(tx, number)).await?;
        self.commit().await?;
        label.announce(&**disk).await?;
        self.meta().array()?.add_spare(present.slice()?).await?;
        label.write(&**disk).await?;
        let row = row(&label, disk);
        self.meta().run(|tx| end_join(tx, &label, &row)).await?;
        self.commit().await?;
        self.pool().add(Member::new(number, row, Some(present)));
        self.job_has_more_room();
        Ok(number)
    }

    /// Lets the file system use what a disk has become larger by. Returns the number of new blocks.
    async fn grow_disk(&self, number: u16) -> Result<u64> {
        self.meta().array()?;
        let _alone = self.hold_all_tokens().await;
        // The metadata takes pieces of it meanwhile, otherwise, and the label lists them.
        let _slices = self.change_slices().await;
        self.check()?;
        let member = self.disk_numbered(number)?;
        let is_lost = || FsError::Invalid(format!("disk {number} is lost"));
        let present = member.present().filter(|_| !member.is_lost()).ok_or_else(is_lost)?;
        if member.is_leaving() {
            return Err(FsError::Invalid(format!("disk {number} is about to leave")));
        }
        let size = present.whole.size_now();
        let label = present.label.borrow().larger(size);
        let Some(label) = label.filter(|label| label.blocks > member.blocks()) else {
            let (name, size) = (&member.row().name, Bytes(size));
            return Err(FsError::Invalid(format!(
                "disk {number}, {name}, has {size:#}, and all of it is used"
            )));
        };
        if let Err(error) = label.write_larger(&*present.whole).await {
            // One copy may be there: the next label counts more changes than it.
            present.label.borrow_mut().changes = label.changes;
            return Err(error);
        }
        present.slice.extend(label.blocks * BLOCK_BYTES)?;
        let row = DiskRow { blocks: label.blocks, ..member.row().clone() };
        self.meta().run(|tx| tx.put_disk(number, &row)).await?;
        self.commit().await?;
        if member.is_lost() {
            return Err(is_lost());
        }
        // One that is in progress writes where data may be afterwards.
        let _undiagnosed = member.diagnosing.acquire(1).await;
        let gained = label.blocks - member.blocks();
        member.grow(&label);
        self.job_has_more_room();
        Ok(gained)
    }

    /// Bytes of the slice of a disk that joins: as many as others have.
    fn slice_bytes(&self) -> u64 {
        let members = self.pool().members();
        let working = members.iter().filter(|member| !member.is_lost());
        let bytes = working.filter_map(|member| member.present());
        let bytes = bytes.map(|present| present.label.borrow().metadata_bytes());
        bytes.max().unwrap_or_else(|| self.label().slice_bytes)
    }

    /// The number that the next disk gets.
    async fn next_number(&self) -> Result<u16> {
        let highest = self.pool().members().last().map_or(0, |member| member.number);
        let number = self.meta().run(|tx| Ok(tx.state(NEXT)?.max(u64::from(highest) + 1))).await?;
        u16::try_from(number).map_err(|_| FsError::TooLarge)
    }

    /// What a disk is to this file system. Fails if it is one that works, or cannot be told from
    /// it: a new one in the place of one that is lost may have its name.
    async fn comer(&self, disk: &Rc<dyn Disk>, force: bool) -> Result<Comer> {
        let name = &disk.info().name;
        let members = self.pool().members();
        let works = |member: &&Rc<Member>| member.is_present() && !member.is_lost();
        if members.iter().filter(works).any(|member| member.row().name == *name) {
            return Err(FsError::Invalid(format!("{name} is a disk of this file system")));
        }
        let label = match Label::read(&**disk).await {
            Err(FsError::Unmountable(why)) if !force => {
                return Err(FsError::Invalid(format!("{name}: {why}")));
            }
            label => label.ok().flatten(),
        };
        let label = label.filter(|label| label.fs_id == self.label().fs_id);
        let Some(label) = label else {
            let announced = Label::announced(&**disk).await;
            let is_ours = announced.is_some_and(|label| label.fs_id == self.label().fs_id);
            return Ok(if is_ours { Comer::Left } else { Comer::Stranger });
        };
        let number = label.number;
        match members.iter().find(|member| member.number == number) {
            Some(member) if member.is_lost() && self.pool().successor(number).is_none() => {
                let fits =
                    member.row().id == label.disk_id.0 && member.row().blocks == label.blocks;
                Ok(if fits { Comer::Back(member.clone(), label) } else { Comer::Stranger })
            }
            Some(_) => Err(FsError::Invalid(format!(
                "{name} is disk {number} of this file system, or a copy of it"
            ))),
            None => {
                // It was on its way back when that was cut short.
                let lost = members.iter().filter(|member| member.is_lost());
                for member in lost.filter(|member| self.pool().successor(member.number).is_none()) {
                    let successor = self.meta().run(|tx| successor_in(tx, member.number)).await?;
                    if successor == Some(number) && member.row().blocks == label.blocks {
                        return Ok(Comer::Back(member.clone(), label));
                    }
                }
                // Its number is taken, and no record names it.
                let has_left = number < self.next_number().await?;
                Ok(if has_left { Comer::Left } else { Comer::Stranger })
            }
        }
    }

    /// Takes a disk back that was lost: it gets another number, under which what it still has is
    /// used ([`crate::disks::successor`]). Its label changes in one step, so a crash leaves it with
    /// either.
    async fn take_back(&self, disk: &Rc<dyn Disk>, lost: &Member, old: &Label) -> Result<u16> {
        let _slices = self.change_slices().await;
        let number = self.next_number().await?;
        let label = old.renumbered(number);
        let present = present(disk, &label, self.reopen())?;
        let space = space_of(lost, &label)?;
        self.vacate_metadata(lost, false).await?;
        self.meta()
            .run(|tx| {
                begin_join(tx, number)?;
                put_successor(tx, lost.number, number)
            })
            .await?;
        // The loss is durable with it.
        self.commit_anyway().await?;
        label.write(&**disk).await?;
        let row = row(&label, disk);
        self.meta().run(|tx| end_join(tx, &label, &row)).await?;
        self.commit().await?;
        let member = Member::new(number, row, Some(present));
        member.space.replace(space);
        self.pool().add(member);
        self.pool().succeed(lost.number, number);
        self.job_has_more_room();
        if let Some(member) = self.pool().member(number) {
            // If it fails, it is tried again.
            let _ = self.give_copy_back(&member).await;
        }
        Ok(number)
    }

    pub(crate) async fn remove_disk(&self, number: u16) -> Result<RebuildReport> {
        let member = self.member_to_remove(number)?;
        self.sync().await?;
        let left = self.empty_disk(&member).await;
        if !self.job_goes_on_later(&left) {
            member.stay();
            // If this fails, the next mount tries it again.
            let _ = self.meta().run(|tx| forget_leaving(tx, number)).await;
        }
        left
    }

    fn member_to_remove(&self, number: u16) -> Result<Rc<Member>> {
        let member = self.disk_numbered(number)?;
        if member.is_lost() {
            let why = format!("disk {number} is lost: a rebuild does without it");
            return Err(FsError::Invalid(why));
        }
        match self.pool().succeeded_by(number) {
            None => Ok(member),
            Some(before) => Err(FsError::Invalid(format!(
                "disk {number} was disk {before}, of which the rebuild still needs something"
            ))),
        }
    }

    async fn empty_disk(&self, member: &Member) -> Result<RebuildReport> {
        self.check_others_suffice(member).await?;
        let number = member.number;
        self.meta()
            .run(|tx| {
                self.job_may_go_on()?;
                member.leave();
                tx.set_state(LEAVING, u64::from(number) + 1)
            })
            .await?;
        self.move_off(&BTreeSet::from([number])).await
    }

    /// Fails if the other disks cannot hold the contents of this one.
    async fn check_others_suffice(&self, leaving: &Member) -> Result<()> {
        let mut others = self.pool().members();
        others.retain(|member| !member.is_lost() && member.number != leaving.number);
        if others.len() < 2 {
            return Err(FsError::Invalid("a file system needs two disks".into()));
        }
        let count = others.len();
        let mut from = 0;
        loop {
            let inodes = self.meta().run(|tx| tx.inodes(from, self.meta().at_a_time())).await?;
            let Some((last, _)) = inodes.last() else { break };
            from = last + 1;
            let too_wide = |(_, inode): &&(_, Inode)| inode.redundancy.coded(count).is_none();
            if let Some((ino, inode)) = inodes.iter().find(too_wide) {
                let paths = self.paths_of(&BTreeSet::from([*ino])).await?;
                let file = paths.get(ino).cloned().unwrap_or_else(|| format!("inode {ino}"));
                return Err(FsError::Invalid(format!(
                    "{file} has redundancy {}, which needs more than the {count} disks that \
                     would be left",
                    inode.redundancy
                )));
            }
        }
        let free: u64 = others.iter().map(|member| member.free_blocks()).sum();
        let used = leaving.used_blocks();
        if used > free {
            let (used, free) = ((used * BLOCK_BYTES) >> 10, (free * BLOCK_BYTES) >> 10);
            return Err(FsError::Invalid(format!(
                "disk {} holds {used} KiB, and the others have {free} KiB free",
                leaving.number
            )));
        }
        let (wanted, taken) = self.room_elsewhere(&BTreeSet::from([leaving.number]), None).await?;
        if taken < wanted {
            let (wanted, taken) = ((wanted * BLOCK_BYTES) >> 10, (taken * BLOCK_BYTES) >> 10);
            return Err(FsError::Invalid(format!(
                "disk {} holds {wanted} KiB, and the others have room for {taken} KiB of it: blocks of \
                 a line are on different disks",
                leaving.number
            )));
        }
        Ok(())
    }

    async fn fail_disk(&self, number: u16) -> Result<()> {
        self.meta().array()?;
        let _alone = self.hold_all_tokens().await;
        self.check_writable()?;
        let _slices = self.change_slices().await;
        let member = self.disk_numbered(number)?;
        self.vacate_metadata(&member, false).await?;
        self.pool().lose(&member);
        self.commit().await
    }

    async fn close_lost_disks(&self) -> Result<()> {
        let _alone = self.hold_all_tokens().await;
        let _slices = self.change_slices().await;
        for member in self.pool().members().iter().filter(|member| member.is_lost()) {
            let path = member.present().and_then(|present| present.path.clone());
            if let Some(path) = path {
                self.vacate_metadata(member, false).await?;
                path.close().await;
            }
        }
        Ok(())
    }
}

impl Fs {
    /// Closes disks that are lost, so that they can be opened again to be added.
    ///
    /// # Errors
    /// If the metadata cannot be written without one of them.
    pub async fn close_lost_disks(&self) -> Result<()> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.close_lost_disks().await }).await
    }

    /// Adds a disk, which may have any size. With `force` what it holds is overwritten. One of this
    /// file system that was lost is taken back, if it is not forced: what it still has is used.
    /// Returns its number, which no disk had before.
    ///
    /// # Errors
    /// If the disk holds something, is too small, or fails.
    pub async fn add_disk(&self, disk: Rc<dyn Disk>, force: bool) -> Result<u16> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.add_disk(&disk, force).await }).await
    }

    /// Lets the file system use what a disk has become larger by, as its file or volume was
    /// enlarged. Returns the bytes that it has more for data.
    ///
    /// # Errors
    /// If there is no such disk, it has not become larger, or it fails.
    pub async fn grow_disk(&self, number: u16) -> Result<u64> {
        let fs = self.0.clone();
        let grown = self.0.rt().attach(|| async move { fs.grow_disk(number).await }).await;
        grown.map(|blocks| blocks * BLOCK_BYTES)
    }

    /// Moves the contents of a working disk to the other disks; then it leaves the file system. It
    /// stays if files are left on it, which are in the report.
    ///
    /// # Errors
    /// If the other disks are too few or have too little room (nothing is changed then), the disk
    /// is lost, another job runs, or this one is cancelled ([`Fs::cancel`]).
    pub async fn remove_disk(&self, number: u16) -> Result<RebuildReport> {
        let remove = async move |fs: &FsState| fs.remove_disk(number).await;
        self.0.run_job(Job::Remove(number), remove).await
    }

    /// Whether a disk may be removed, as far as that is known before it is tried.
    ///
    /// # Errors
    /// If there is no such disk, it is lost, or the other disks are too few or have too little
    /// room.
    pub async fn check_removal(&self, number: u16) -> Result<()> {
        self.0.check()?;
        let member = self.0.member_to_remove(number)?;
        // What was deleted or moved is free after that.
        self.0.sync().await?;
        self.0.check_others_suffice(&member).await
    }

    /// Takes a disk out of service, as if it had failed.
    ///
    /// # Errors
    /// If there is no such disk, or the metadata cannot be written without it.
    pub async fn fail_disk(&self, number: u16) -> Result<()> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.fail_disk(number).await }).await
    }
}
