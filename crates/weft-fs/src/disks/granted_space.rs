//! The free blocks of a node that is not node 0: they were granted to it.
//!
//! Node 0 has the map of all free blocks ([`crate::state::space_desk`]). Any other node asks it for
//! runs of blocks of each disk, and has a map of these only. What it frees comes into this map too,
//! when that is durable, whoever had the blocks before. So a block is always in one of these
//! places:
//!
//! ```text
//!   free at node 0 ──grant──▶ free at a node ──take──▶ unsettled ──durable record──▶ a file's
//!          ▲                   │   ▲   ▲                   │                           │
//!          └─────give back─────┘   │   └──────release──────┘                           │
//!                                  └──────────────durable removal, at any node─────────┘
//! ```
//!
//! *Stock.* A node aims at a sixteenth of what is free on a disk, and at most
//! [`STOCK_BLOCKS_MAX`], or four times what may wait to be written. It asks again when half of that
//! is left, and gives back what is more than twice as much.
//!
//! *Messages* are counted, and one of each kind is on its way at a time. One that was not answered
//! is repeated. Node 0 answers a repeated wish as before, and ignores a repeated give back. A node
//! 0 that has just taken over has worked out its map from the records, without the blocks that
//! nodes state: so what was on its way back is free there, and what a node was granted and did not
//! hear of as well. The node states what it has, and drops what an earlier grant still says.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use rangemap::RangeSet;
use weft_rt::sync::Semaphore;
use weft_wire::{DiskBlocks, GiveBack, RoomWish, Run};

use crate::disks::free_map::Space;
use crate::format::extent;

/// The most blocks of a disk that a node with a usual cache wants to have free: 256 MiB.
pub(crate) const STOCK_BLOCKS_MAX: u64 = 64 << 10;
/// A node wants this part of what is free on a disk.
const STOCK_PART: u64 = 16;
/// Runs in a message.
pub(crate) const RUNS_MAX: usize = 16 << 10;

/// The free blocks of each disk.
pub(crate) type Spaces<'a> = [(u16, &'a RefCell<Space>)];

/// What a node knows of the blocks that were granted to it, besides which they are.
pub(crate) struct Stock {
    /// Blocks of a disk that it wants at most.
    blocks_max: u64,
    /// Blocks that are free elsewhere, as node 0 said last.
    elsewhere: RefCell<BTreeMap<u16, u64>>,
    wishes: Cell<u64>,
    give_backs: Cell<u64>,
    /// What was sent and not answered.
    wish: RefCell<Option<RoomWish>>,
    give_back: RefCell<Option<GiveBack>>,
    /// How often it has stated what it has.
    statements: Cell<u64>,
    /// Held by who asks.
    pub(crate) asking: Semaphore,
    /// Held by who gives back.
    pub(crate) giving: Semaphore,
}

/// Blocks of a disk, as messages have them.
pub(crate) fn run_of(disk: u16, blocks: Range<u64>) -> Run {
    Run { disk, start: blocks.start, blocks: blocks.end - blocks.start }
}

/// How many blocks of each disk are free.
pub(crate) fn free_of(spaces: &Spaces<'_>) -> Vec<DiskBlocks> {
    let free = |(disk, space): &(u16, &RefCell<Space>)| DiskBlocks {
        disk: *disk,
        blocks: space.borrow().free_blocks(),
    };
    spaces.iter().map(free).collect()
}

impl Stock {
    /// Nothing was granted yet. `waiting_max` blocks may wait to be written.
    pub(crate) fn new(waiting_max: u64) -> Self {
        Self {
            blocks_max: STOCK_BLOCKS_MAX.max(4 * waiting_max),
            elsewhere: RefCell::default(),
            wishes: Cell::new(0),
            give_backs: Cell::new(0),
            wish: RefCell::default(),
            give_back: RefCell::default(),
            statements: Cell::new(0),
            asking: Semaphore::new(1),
            giving: Semaphore::new(1),
        }
    }

    /// Blocks of a disk that are free elsewhere, if that is known.
    pub(crate) fn elsewhere(&self, disk: u16) -> Option<u64> {
        self.elsewhere.borrow().get(&disk).copied()
    }

    /// Node 0 says what is free elsewhere.
    pub(crate) fn note_elsewhere(&self, elsewhere: &[DiskBlocks]) {
        let of = |of: &DiskBlocks| (of.disk, of.blocks);
        *self.elsewhere.borrow_mut() = elsewhere.iter().map(of).collect();
    }

    /// How many free blocks of a disk are wanted, if so many are there.
    pub(crate) fn aim(&self, disk: u16, free: u64) -> u64 {
        ((free + self.elsewhere(disk).unwrap_or(0)) / STOCK_PART).min(self.blocks_max)
    }

    /// Whether it is time to ask for more blocks of a disk.
    pub(crate) fn is_low(&self, disk: u16, free: u64) -> bool {
        free < self.aim(disk, free).div_ceil(2) && self.elsewhere(disk) > Some(0)
    }

    /// Blocks of a disk that are to go back.
    pub(crate) fn excess(&self, disk: u16, free: u64) -> u64 {
        let aim = self.aim(disk, free);
        if free > 2 * aim + extent::LINES_MAX { free - aim } else { 0 }
    }

    /// A wish for blocks. Those before were answered.
    pub(crate) fn begin_wish(&self, spaces: &Spaces<'_>, wanted: Vec<DiskBlocks>, is_urgent: bool) {
        let number = self.wishes.get();
        self.wishes.set(number + 1);
        let has = free_of(spaces);
        *self.wish.borrow_mut() = Some(RoomWish { number, wanted, has, is_urgent });
    }

    /// The wish that was not answered, if there is one, and how often was stated before it is sent
    /// now.
    pub(crate) fn wish(&self) -> Option<(RoomWish, u64)> {
        self.wish.borrow().clone().map(|wish| (wish, self.statements.get()))
    }

    /// A wish was answered. Returns how many blocks came; none if the answer does not count, as
    /// this node has stated since that it does not have them: then the wish is to be sent again.
    pub(crate) fn take_grant(
        &self,
        spaces: &Spaces<'_>,
        runs: &[Run],
        statements: u64,
    ) -> Option<u64> {
        if statements != self.statements.get() {
            return None;
        }
        self.wish.take();
        let mut came = 0;
        for run in runs {
            if let Some((_, space)) = spaces.iter().find(|(disk, _)| *disk == run.disk) {
                space.borrow_mut().release(run.start, run.blocks);
                came += run.blocks;
            }
        }
        Some(came)
    }

    /// Takes free blocks out, of each disk all but as many as `kept` says, to give them back. Those
    /// before were answered. `round` is what it answers, if it is all. Returns whether it is.
    pub(crate) fn begin_give_back(
        &self,
        spaces: &Spaces<'_>,
        kept: impl Fn(u16) -> u64,
        round: u64,
    ) -> bool {
        let (mut runs, mut is_all) = (Vec::new(), true);
        for (disk, space) in spaces {
            let kept = kept(*disk);
            let mut space = space.borrow_mut();
            let spare = space.free_blocks().saturating_sub(kept);
            let given = space.grant(spare, RUNS_MAX - runs.len());
            is_all &= given.iter().map(|run| run.end - run.start).sum::<u64>() == spare;
            runs.extend(given.into_iter().map(|blocks| run_of(*disk, blocks)));
        }
        let (number, has) = (self.give_backs.get(), free_of(spaces));
        self.give_backs.set(number + 1);
        let round = if is_all { round } else { 0 };
        *self.give_back.borrow_mut() = Some(GiveBack { number, runs, has, round });
        is_all
    }

    /// What was to go back, and was not answered.
    pub(crate) fn give_back(&self) -> Option<GiveBack> {
        self.give_back.borrow().clone()
    }

    /// It was answered.
    pub(crate) fn end_give_back(&self) {
        self.give_back.take();
    }

    /// What this node has: free blocks, those that it took and that no durable record names, and
    /// those of records whose removal may be durable (`freed`). Also says which give back comes
    /// next.
    pub(crate) fn state(
        &self,
        spaces: &Spaces<'_>,
        freed: impl IntoIterator<Item = extent::Run>,
    ) -> (Vec<Run>, u64) {
        self.statements.set(self.statements.get() + 1);
        let own = |(disk, space): &(u16, &RefCell<Space>)| (*disk, space.borrow().own_runs());
        let mut all: BTreeMap<u16, RangeSet<u64>> = spaces.iter().map(own).collect();
        for run in freed.into_iter().filter(|run| run.blocks > 0) {
            all.entry(run.disk).or_default().insert(run.start..run.start + run.blocks);
        }
        let runs = all
            .iter()
            .flat_map(|(disk, runs)| runs.iter().map(|blocks| run_of(*disk, blocks.clone())));
        (runs.collect(), self.give_backs.get())
    }
}
