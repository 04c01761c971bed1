//! The reordering window: how far a reshape may write before it overwrites what it still needs.
//!
//! A reshape moves an array from an old geometry to a new one, in the order of addresses, on the
//! same disks. An array that grows has more data in each row of the disks, so every address moves
//! towards the start of the disks, and the more the higher it is. Moved data leaves a hole,
//! which the next new stripes fill. The hole grows with the progress:
//!
//! ```text
//! raid5 from 3 to 4 disks, left-asymmetric; addresses in units; P old parity, Q new parity
//!
//!          0   1   2   3   4   5   6   7   8   9      rows of the disks
//! disk 0   0   2   P   6   8   P  12  14   P  18
//! disk 1   1   P   4   7   P  10  13   P  16  19
//! disk 2   P   3   5   P   9  11   P  15  17   P
//!
//! moved and checkpointed up to address 18; `.` is the hole, which new stripes 6, 7, 8 will fill
//!
//! disk 0   0   3   6   Q  12  15   .   .   .  18
//! disk 1   1   4   Q   9  13  16   .   .   .  19
//! disk 2   2   Q   7  10  14   Q   .   .   .   P
//! disk 3   Q   5   8  11   Q  17   .   .   .
//! ```
//!
//! Within the hole data can be moved in any order and in large requests, and nothing moved needs to
//! be recorded at once: until the next *checkpoint* is durable, every address at or above the last
//! one is read from its old place. The idea is that of SLAS (Zhang et al., ACM TOS 2007) and ALV
//! (the same, IEEE TC 2010), which give a closed form for adding disks to a RAID-5
//! ([`theorem_1`]; and [`safe_window`], which is the one to use). [`Window`] computes it for any
//! two geometries: more or fewer slots, another code, another unit, another start of the data.
//!
//! **What may be overwritten.** Let C be the durable checkpoint: addresses below it are in the new
//! geometry (when working upwards). New stripes are written whole, data and parity, from memory. A
//! new stripe may be written if on no disk it touches a unit – data *or parity* – of an old stripe
//! that contains an address at or above C. The *limit* is the first new stripe that may not; the
//! window reaches from C to there.
//!
//! **Why that is safe** when a crash comes together with lost disks:
//! * Addresses at or above C are read from old stripes. All units of these are unchanged: no window
//!   that started at C touched them. So the old code still corrects as many losses as it ever did.
//!   This needs the *whole* stripe that contains C: the units below C are not needed themselves any
//!   more, but the remaining units cannot be reconstructed without them. The paper's theorem
//!   protects only data, and its Fig. 1 data and parity, but neither these siblings; after a crash
//!   with one lost disk both lose data.
//! * Addresses below C are read from new stripes. They were complete and flushed before C became
//!   durable, and only users' writes have touched them since.
//! * The old stripe that contains C stays consistent under users' writes: its units below C are
//!   frozen, as writes to those addresses go to the new place, and its parity agrees with the
//!   frozen units.
//! * A write to an address that was moved but not checkpointed must wait for a checkpoint above it.
//!   Written to the old place only, the new copy would be stale; to the new place only, a crash
//!   would lose it.
//!
//! So at every moment the array survives the losses that both codes survive.
//!
//! **Where the window is empty** a new stripe lies on old stripes that are still needed. Such
//! stretches must be copied to a backup first. When disks are added it is the start, the first
//! few stripes ([`Window::cramped`]). When the data per row stays the same (raid5 to raid6 with one
//! disk more, or another unit size) it is everything, unless the new data starts at a lower byte of
//! the disks.
//!
//! **Downwards.** An array that shrinks has less data in each row, and moves away from the
//! start of the disks. So it is moved from its end to its start, and everything above holds
//! with directions exchanged: addresses at or above C are in the new geometry, an old stripe is
//! needed if it contains an address below C, and the cramped stretch comes last. A reshape turns
//! back half-way in the same manner ([`Window::reversed`]).
//!
//! **Example**, raid5 from 3 to 4 disks, in units: a new stripe has 3, an old one 2.
//!
//! | checkpoint | old stripes no longer needed | limit | window | |
//! |---|---|---|---|---|
//! | 0 | none | 0 | 0 | new stripe 0 lies on old stripe 0: backup |
//! | 3 | 0 | 3 | 0 | new stripe 1 on old stripe 1, which holds address 3: backup |
//! | 6 | 0–2 | 9 | 3 | new stripe 2 on old stripe 2, free |
//! | 9 | 0–3 | 12 | 3 | old stripe 4 holds addresses 8 and 9, so it is still needed |
//! | 12 | 0–5 | 18 | 6 | |
//! | 18 | 0–8 | 27 | 9 | the drawing above |
//!
//! **Cost.** As the checkpoint advances, the limit never goes back, so [`Window::limit`] looks at
//! every new stripe once in the whole reshape: at the old rows under each of its units.

mod paper;

pub use paper::{safe_window, theorem_1};

use std::ops::Range;

use crate::Placement;

/// The order in which a reshape moves addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From address 0 upwards: data moves towards the start of the disks.
    Up,
    /// From the end of the data downwards.
    Down,
}

impl Direction {
    /// The other one.
    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Window {
    old: Placement,
    new: Placement,
    direction: Direction,
    /// Addresses that hold data: those below.
    data_end: u64,
    /// The first new stripe, in the direction of the reshape, not yet known to be free.
    next: u64,
}

impl Window {
    /// The window of a reshape from `old` to `new`. Addresses that only one of them has hold no
    /// data: space that a grown array gains, or a shrunk one discarded. The direction is the one in
    /// which a window can open: upwards if the data ends lower on the disks than before.
    #[must_use]
    pub fn new(old: Placement, new: Placement) -> Self {
        let data_end = old.size_bytes().min(new.size_bytes());
        let upwards = new.disk_end(data_end) <= old.disk_end(data_end);
        let direction = if upwards { Direction::Up } else { Direction::Down };
        Self::towards(direction, old, new)
    }

    /// The window in this direction, if there is one.
    #[must_use]
    pub fn towards(direction: Direction, old: Placement, new: Placement) -> Self {
        let data_end = old.size_bytes().min(new.size_bytes());
        let next = match direction {
            Direction::Up => 0,
            Direction::Down => data_end.div_ceil(new.stripe_bytes()),
        };
        Self { old, new, direction, data_end, next }
    }

    /// The window of the way back.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self::towards(self.direction.reversed(), self.new, self.old)
    }

    /// The geometry that is left, and the one that is entered.
    #[must_use]
    pub fn placements(&self) -> [&Placement; 2] {
        [&self.old, &self.new]
    }

    /// The order in which addresses are moved.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The addresses to move: the data, in whole new stripes.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        0..self.data_end.next_multiple_of(self.new.stripe_bytes())
    }

    /// How far new stripes may be written while `checkpoint` is durable: the end of the window
    /// upwards, its start downwards. A multiple of the new stripe, or `checkpoint` itself if the
    /// window is empty; a checkpoint inside a new stripe has an empty window, as a part of that
    /// stripe is in use already. Looks no further than the stripe that contains the last of
    /// `bytes_max` bytes from the checkpoint. From call to call the checkpoint may only advance.
    pub fn limit(&mut self, checkpoint: u64, bytes_max: u64) -> u64 {
        let bytes = self.new.stripe_bytes();
        if !checkpoint.is_multiple_of(bytes) {
            return checkpoint;
        }
        match self.direction {
            Direction::Up => {
                let last = checkpoint.saturating_add(bytes_max).div_ceil(bytes);
                let end = (self.addresses().end / bytes).min(last);
                self.next = self.next.max(checkpoint / bytes);
                while self.next < end && self.is_free(self.next, checkpoint) {
                    self.next += 1;
                }
            }
            Direction::Down => {
                let end = checkpoint.saturating_sub(bytes_max) / bytes;
                self.next = self.next.min(checkpoint / bytes);
                while self.next > end && self.is_free(self.next - 1, checkpoint) {
                    self.next -= 1;
                }
            }
        }
        self.next * bytes
    }

    /// Whether a stretch that holds no data may be passed without moving it: its new stripes are
    /// free once the checkpoint is at its end, so that they can be written at any time.
    #[must_use]
    pub fn may_skip(&self, checkpoint: u64, to: u64) -> bool {
        let bytes = self.new.stripe_bytes();
        let stripes = match self.direction {
            Direction::Up => checkpoint / bytes..to.div_ceil(bytes),
            Direction::Down => to / bytes..checkpoint.div_ceil(bytes),
        };
        stripes.into_iter().all(|stripe| self.is_free(stripe, to))
    }

    /// The addresses from `checkpoint` on that must go through a backup before a window opens:
    /// whole new stripes, except that the first may be cut at the checkpoint. Empty where there is
    /// a window or nothing is left to move. Looks at about `bytes_max` bytes.
    #[must_use]
    pub fn cramped(&self, checkpoint: u64, bytes_max: u64) -> Range<u64> {
        let bytes = self.new.stripe_bytes();
        let aligned = checkpoint.is_multiple_of(bytes);
        match self.direction {
            Direction::Up => {
                let end = self.addresses().end;
                let (last, mut at) = (checkpoint.saturating_add(bytes_max).min(end), checkpoint);
                if !aligned {
                    at = checkpoint.next_multiple_of(bytes).min(end);
                }
                while at < last && !self.is_free(at / bytes, at) {
                    at += bytes;
                }
                checkpoint..at
            }
            Direction::Down => {
                let (last, mut at) = (checkpoint.saturating_sub(bytes_max), checkpoint);
                if !aligned {
                    at -= checkpoint % bytes;
                }
                while at > last && !self.is_free(at / bytes - 1, at) {
                    at -= bytes;
                }
                at..checkpoint
            }
        }
    }

    /// Whether a new stripe may be written while this checkpoint is durable.
    fn is_free(&self, stripe: u64, checkpoint: u64) -> bool {
        let bytes = self.old.stripe_bytes();
        let needed = match self.direction {
            Direction::Up if checkpoint >= self.data_end => return true,
            Direction::Up => checkpoint / bytes..self.data_end.div_ceil(bytes),
            Direction::Down => 0..checkpoint.min(self.data_end).div_ceil(bytes),
        };
        let mut places = self.new.stripe(stripe);
        places.all(|place| !self.old.stripes_in(&place).any(|stripe| needed.contains(&stripe)))
    }
}
