//! The disks of a file system: which of them may be used, and what they report.
//!
//! A lost disk is not used again, unless it is taken back ([`crate::disks::successor`]). So its
//! loss must be durable in the metadata before anything is written that it misses
//! ([`Pool::unrecorded_losses`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::Code;
use weft_disk::Disk;
use weft_rt::sync::Semaphore;
use weft_stripe::Coding;

use crate::disks::bad_blocks::BadBlocks;
use crate::disks::member::Member;
use crate::disks::memory_disk::Memory;
use crate::disks::old_block_cache::OldBlockCache;
use crate::error::{FsError, Result};
use crate::format::extent::{Extent, Run};
use crate::format::redundancy::Coded;

/// What the pool has seen since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Blocks that did not match their checksum.
    pub wrong_blocks: u64,
    /// Blocks that could not be read.
    pub unreadable_blocks: u64,
    /// Blocks rewritten from redundancy, in their place or another one.
    pub repaired_blocks: u64,
    /// Blocks that got another place, as theirs had failed.
    pub moved_blocks: u64,
    /// Blocks of lines that were overwritten at new places, as much of their record was
    /// overwritten.
    pub out_of_place_blocks: u64,
}

/// Hears of a disk that is not used any more.
type TellLost = Box<dyn Fn(&Member)>;

/// The disks.
pub(crate) struct Pool {
    members: RefCell<BTreeMap<u16, Rc<Member>>>,
    pub(crate) void: Rc<dyn Disk>,
    codings: RefCell<HashMap<Coded, Rc<Coding>>>,
    /// Lost disks that came back, and the numbers that they have since
    /// ([`crate::disks::successor`]).
    pub(crate) successors: RefCell<BTreeMap<u16, u16>>,
    pub(crate) bad: BadBlocks,
    /// Losses so far, and how many of them are in the metadata.
    losses: Cell<u64>,
    recorded: Cell<u64>,
    /// Told of disks that are not used any more.
    pub(crate) tell_lost: RefCell<Option<TellLost>>,
    flushing: Semaphore,
    /// Whether no block may be taken yet: other nodes may have blocks that count as free here.
    holds_still: Cell<bool>,
    diagnoses: Cell<u64>,
    pub(crate) counts: Cell<Counts>,
    pub(crate) at_hand: OldBlockCache,
}

impl Pool {
    pub(crate) fn new(members: Vec<Member>, at_hand: OldBlockCache) -> Rc<Self> {
        // Disks that are missing for the first time.
        let losses = members.iter().filter(|member| member.is_lost() && !member.row().lost).count();
        let members = members.into_iter().map(|member| (member.number, Rc::new(member)));
        Rc::new(Self {
            members: RefCell::new(members.collect()),
            void: Rc::new(Memory::void()),
            codings: RefCell::default(),
            successors: RefCell::default(),
            bad: BadBlocks::default(),
            losses: Cell::new(losses as u64),
            recorded: Cell::new(0),
            tell_lost: RefCell::default(),
            flushing: Semaphore::new(1),
            holds_still: Cell::new(false),
            diagnoses: Cell::new(0),
            counts: Cell::default(),
            at_hand,
        })
    }

    /// All disks, by number.
    pub(crate) fn members(&self) -> Vec<Rc<Member>> {
        self.members.borrow().values().cloned().collect()
    }

    /// How many disks there are.
    pub(crate) fn len(&self) -> usize {
        self.members.borrow().len()
    }

    /// What `look` says of the free blocks of all disks.
    pub(crate) fn look_at_free<T>(
        &self,
        look: impl FnOnce(&mut dyn Iterator<Item = u64>) -> T,
    ) -> T {
        look(&mut self.members.borrow().values().map(|member| member.free_blocks()))
    }

    pub(crate) fn member(&self, number: u16) -> Option<Rc<Member>> {
        self.members.borrow().get(&number).cloned()
    }

    /// A disk joins. It may be lost by then, which the metadata need not have.
    pub(crate) fn add(&self, member: Member) {
        let is_new_loss = member.is_lost() && !member.row().lost;
        let member = Rc::new(member);
        self.members.borrow_mut().insert(member.number, member.clone());
        if is_new_loss {
            self.note_loss(&member);
        }
    }

    fn note_loss(&self, member: &Member) {
        self.losses.set(self.losses.get() + 1);
        if let Some(tell) = &*self.tell_lost.borrow() {
            tell(member);
        }
    }

    /// A disk goes.
    pub(crate) fn remove(&self, number: u16) {
        self.members.borrow_mut().remove(&number);
    }

    /// A disk is not used any more.
    pub(crate) fn lose(&self, member: &Member) {
        if member.lose() {
            self.note_loss(member);
        }
    }

    /// Another node has lost a disk, and the metadata has that.
    pub(crate) fn lose_as_recorded(&self, member: &Member) {
        let is_all_recorded = self.unrecorded_losses().is_none();
        self.lose(member);
        if is_all_recorded {
            self.recorded.set(self.losses.get());
        }
    }

    /// Whether no block may be taken yet.
    pub(crate) fn holds_still(&self) -> bool {
        self.holds_still.get()
    }

    /// No block may be taken, or that may be done again.
    pub(crate) fn set_still(&self, holds_still: bool) {
        self.holds_still.set(holds_still);
    }

    /// The number of losses so far.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// The number of losses so far, if not all of them are in the metadata.
    pub(crate) fn unrecorded_losses(&self) -> Option<u64> {
        let losses = self.losses.get();
        (losses != self.recorded.get()).then_some(losses)
    }

    /// The first `losses` losses are in the metadata, durably.
    pub(crate) fn recorded(&self, losses: u64) {
        self.recorded.set(self.recorded.get().max(losses));
    }

    pub(crate) fn count(&self, note: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        note(&mut counts);
        self.counts.set(counts);
    }

    /// Gives the blocks of a record's columns back.
    pub(crate) fn release(&self, runs: impl IntoIterator<Item = Run>) {
        for run in runs {
            self.at_hand.forget(run);
            for member in self.chain(run.disk) {
                member.space.borrow_mut().release(run.start, run.blocks);
            }
        }
    }

    /// Durable records name these blocks.
    pub(crate) fn settle(&self, runs: impl IntoIterator<Item = Run>) {
        for run in runs {
            if let Some(member) = self.member(run.disk) {
                member.space.borrow_mut().settle(run.start, run.blocks);
            }
        }
    }

    /// The coding of a code.
    pub(crate) fn coding(&self, coded: Coded) -> Result<Rc<Coding>> {
        if let Some(coding) = self.codings.borrow().get(&coded) {
            return Ok(coding.clone());
        }
        let code = Code::new(coded.spec, coded.columns);
        let code = code.map_err(|error| FsError::Damaged(error.to_string()))?;
        let coding = Rc::new(Coding::new(code, false));
        self.codings.borrow_mut().insert(coded, coding.clone());
        Ok(coding)
    }

    /// A number that no diagnosis since the mount has had.
    pub(crate) fn next_diagnosis(&self) -> u64 {
        self.diagnoses.set(self.diagnoses.get() + 1);
        self.diagnoses.get()
    }

    /// A block has failed: nothing gets it any more.
    pub(crate) fn mark_bad(&self, member: &Member, block: u64) {
        if member.space.borrow_mut().mark_bad(block) {
            self.bad.found(member.number, block);
        }
    }

    /// Flushes all disks that were written. Those that fail are lost: which blocks they lost with
    /// their caches is not known.
    pub(crate) async fn flush(&self) {
        // A flush that is under way may be the one that covers our writes.
        let _alone = self.flushing.acquire(1).await;
        let members = self.members();
        let written = members.iter().filter(|member| member.written.replace(false));
        join_all(written.map(|member| async move {
            let Some(disk) = member.data() else { return };
            if disk.flush().await.is_err() {
                self.lose(member);
            }
        }))
        .await;
    }
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

    /// The numbers before a disk in a chain, and the one after it: when the disk goes, they are
    /// linked.
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

    /// All disks that have blocks of this number: it, and its successors.
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

/// The blocks that a record has.
pub(crate) fn runs_of(record: &Extent) -> impl Iterator<Item = Run> {
    record.active().map(|(_, column)| column.run())
}
