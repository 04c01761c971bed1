//! A disk of the file system, and its states.
//!
//! A disk that is *leaving* is being emptied: nothing new goes to it. A *lost* disk is not used
//! again: what it misses is not tracked. One that comes back is judged block by block, under
//! another number ([`crate::disks::successor`]). A disk leaves the file system when no extent names
//! it, from either state ([`crate::jobs::departure`]). `docs/architecture.md` has a drawing of the
//! states, made from [`DiskState::after`].

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use weft_disk::{Disk, QueuedDisk, Ranges, SliceDisk};
use weft_rt::sync::Semaphore;

use crate::disks::free_map::Space;
use crate::disks::reopen::PathDisk;
use crate::error::Result;
use crate::format::label::{Label, slice_name};
use crate::meta::DiskRow;

/// A disk that is there.
pub(crate) struct PresentDisk {
    /// It changes if the disk becomes larger.
    pub(crate) label: RefCell<Label>,
    /// All of it, with label and metadata.
    pub(crate) whole: Rc<dyn Disk>,
    /// The whole disk, with a path that can be opened again, if it can.
    pub(crate) path: Option<Rc<PathDisk>>,
    /// What is asked of it, in turn.
    pub(crate) queue: Rc<QueuedDisk>,
    /// Its data blocks.
    pub(crate) data: Rc<dyn Disk>,
    /// The same data as a slice, which may become larger.
    pub(crate) slice: Rc<SliceDisk>,
    /// What the metadata slice has: pieces that are in the label, durably.
    pub(crate) metadata: Rc<Ranges>,
    /// Whether a copy of the label on the disk may be another one: its last write failed.
    pub(crate) is_label_due: Cell<bool>,
    /// Whether this node reaches it through the keeper.
    pub(crate) is_relayed: Rc<Cell<bool>>,
}

impl PresentDisk {
    /// Its metadata slice. The metadata array never uses one again that it has excluded: it gets
    /// another one.
    pub(crate) fn slice(&self) -> Result<Rc<dyn Disk>> {
        slice_of(&self.queue, &self.metadata, self.label.borrow().number)
    }

    /// Writes the label of a disk whose metadata slice has more pieces, and lets the slice have
    /// them. A copy that could not be written is due.
    pub(crate) async fn put_label(&self, label: Label) -> Result<()> {
        // Until it is known that it is not there, nothing else may have these pieces.
        *self.label.borrow_mut() = label.clone();
        self.is_label_due.set(true);
        let are_both = label.write_pieces(&*self.whole).await?;
        self.is_label_due.set(!are_both);
        let ranges = label.slice_ranges();
        ranges.into_iter().skip(self.metadata.count()).for_each(|range| self.metadata.push(range));
        Ok(())
    }
}

/// The metadata slice of a disk with this number.
pub(crate) fn slice_of(
    queue: &Rc<QueuedDisk>,
    ranges: &Rc<Ranges>,
    number: u16,
) -> Result<Rc<dyn Disk>> {
    Ok(Rc::new(SliceDisk::of(queue, ranges, &slice_name(number))?.urgent()))
}

/// The state of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskState {
    /// It takes data.
    InUse,
    /// It is being emptied: nothing new goes to it.
    Leaving,
    /// It may not be used.
    Lost,
}

/// What happens to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskEvent {
    /// It is being emptied, so that it can go.
    Leave,
    /// It is not to go after all.
    Stay,
    /// Its diagnosis or a flush fails, it is missing, or it is taken out of service.
    Lose,
}

impl DiskState {
    /// The state after `event`; `None` if that cannot happen in this state.
    pub(crate) fn after(self, event: DiskEvent) -> Option<Self> {
        match (self, event) {
            (Self::InUse | Self::Leaving, DiskEvent::Leave) => Some(Self::Leaving),
            (Self::InUse | Self::Leaving, DiskEvent::Stay) => Some(Self::InUse),
            (Self::InUse | Self::Leaving, DiskEvent::Lose) => Some(Self::Lost),
            (Self::Lost, DiskEvent::Leave | DiskEvent::Stay | DiskEvent::Lose) => None,
        }
    }
}

/// A disk of the file system.
pub(crate) struct Member {
    pub(crate) number: u16,
    row: RefCell<DiskRow>,
    present: Option<PresentDisk>,
    state: Cell<DiskState>,
    /// Its error when it was lost, if there was one.
    pub(crate) why_lost: RefCell<Option<String>>,
    pub(crate) busy: Cell<u32>,
    /// Whether writes to it have completed since its last flush started.
    pub(crate) written: Cell<bool>,
    pub(crate) space: RefCell<Space>,
    /// Blocks that are free at other nodes, as far as that is known.
    pub(crate) elsewhere: Cell<u64>,
    /// Held while it is diagnosed.
    pub(crate) diagnosing: Semaphore,
}

impl Member {
    /// A disk, unless it is missing.
    pub(crate) fn new(number: u16, row: DiskRow, present: Option<PresentDisk>) -> Self {
        let is_lost = row.lost || present.is_none();
        let state = Cell::new(if is_lost { DiskState::Lost } else { DiskState::InUse });
        let (space, row) = (RefCell::new(Space::new(row.blocks)), RefCell::new(row));
        let (busy, written) = (Cell::new(0), Cell::new(false));
        let diagnosing = Semaphore::new(1);
        let (why_lost, elsewhere) = (RefCell::default(), Cell::new(0));
        Self { number, row, present, state, why_lost, busy, written, space, elsewhere, diagnosing }
    }

    /// None of its blocks is free until it is granted. Bad ones stay so.
    pub(crate) fn have_only_granted(&self) {
        let mut space = Space::granted(self.blocks());
        for block in self.space.borrow().bad_blocks() {
            space.mark_bad(*block);
        }
        *self.space.borrow_mut() = space;
    }

    /// Its row in the metadata.
    pub(crate) fn row(&self) -> Ref<'_, DiskRow> {
        self.row.borrow()
    }

    /// Blocks for data.
    pub(crate) fn blocks(&self) -> u64 {
        self.row().blocks
    }

    /// It has become larger, and its label records that.
    pub(crate) fn grow(&self, label: &Label) {
        if let Some(present) = &self.present {
            *present.label.borrow_mut() = label.clone();
        }
        self.space.borrow_mut().extend(label.blocks);
        self.row.borrow_mut().blocks = label.blocks;
    }

    /// Whether it may not be used.
    pub(crate) fn is_lost(&self) -> bool {
        self.state.get() == DiskState::Lost
    }

    /// Whether it is being emptied.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.get() == DiskState::Leaving
    }

    /// Whether new data may go to it.
    pub(crate) fn takes_data(&self) -> bool {
        self.state.get() == DiskState::InUse
    }

    /// It is being emptied. A lost disk stays lost.
    pub(crate) fn leave(&self) {
        self.happens(DiskEvent::Leave);
    }

    /// It is not to be emptied any more. A lost disk stays lost.
    pub(crate) fn stay(&self) {
        self.happens(DiskEvent::Stay);
    }

    /// Returns whether that can happen to it.
    fn happens(&self, event: DiskEvent) -> bool {
        let after = self.state.get().after(event);
        if let Some(state) = after {
            self.state.set(state);
        }
        after.is_some()
    }

    /// It may not be used any more. Returns whether that is new.
    pub(crate) fn lose(&self) -> bool {
        self.happens(DiskEvent::Lose)
    }

    /// What is known of it, if it was given at all.
    pub(crate) fn present(&self) -> Option<&PresentDisk> {
        self.present.as_ref()
    }

    /// Its data blocks, if it may be used.
    pub(crate) fn data(&self) -> Option<&Rc<dyn Disk>> {
        self.present.as_ref().filter(|_| !self.is_lost()).map(|present| &present.data)
    }

    /// Whether this node reaches it through the keeper.
    pub(crate) fn is_relayed(&self) -> bool {
        self.present.as_ref().is_some_and(|of| of.is_relayed.get() && !self.is_lost())
    }

    /// Whether it was given at all.
    pub(crate) fn is_present(&self) -> bool {
        self.present.is_some()
    }

    /// Blocks by which it has become larger, and which are not used.
    pub(crate) fn unused_blocks(&self) -> u64 {
        let Some(present) = self.present.as_ref().filter(|_| !self.is_lost()) else { return 0 };
        let larger = present.label.borrow().larger(present.whole.size_now());
        larger.map_or(0, |label| label.blocks.saturating_sub(self.blocks()))
    }

    /// Blocks that are free here, if it takes any.
    pub(crate) fn free_blocks(&self) -> u64 {
        if self.takes_data() { self.space.borrow().free_blocks() } else { 0 }
    }

    /// Blocks that are free at any node, as far as that is known, if it takes any.
    pub(crate) fn room(&self) -> u64 {
        if self.takes_data() { self.free_blocks() + self.elsewhere.get() } else { 0 }
    }

    /// Blocks that are not free, those that are bad included, and pieces of the metadata not.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.data_blocks().saturating_sub(self.space.borrow().free_blocks())
    }

    /// Blocks that are pieces of its metadata slice, as far as it is there.
    pub(crate) fn piece_blocks(&self) -> u64 {
        self.present.as_ref().map_or(0, |present| present.label.borrow().piece_blocks())
    }

    /// Blocks for data, without pieces of the metadata.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.blocks().saturating_sub(self.piece_blocks())
    }

    /// Whether a block is not to be used.
    pub(crate) fn is_bad(&self, block: u64) -> bool {
        self.space.borrow().is_bad(block)
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::states;

    use super::*;

    const STATES: [(&str, DiskState); 3] =
        [("in_use", DiskState::InUse), ("leaving", DiskState::Leaving), ("lost", DiskState::Lost)];

    const EVENTS: [(&str, DiskEvent); 3] = [
        ("it is to be removed", DiskEvent::Leave),
        ("the removal is cancelled or fails", DiskEvent::Stay),
        ("it fails or is missing", DiskEvent::Lose),
    ];

    #[test]
    fn the_drawing_shows_what_the_function_does() {
        let page = include_str!("../../../../docs/architecture.md");
        let drawing = states::drawing(&STATES, &EVENTS, DiskState::after);
        states::assert_drawn(page, "### A disk", &drawing);
    }
}
