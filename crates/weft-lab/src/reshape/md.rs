//! Linux MD's reshape (`reshape_request` in `raid5.c`).
//!
//! It moves a row of new stripes at a time, in stripe heads of 4 KiB on each disk, as many at a
//! time as the stripe cache has heads. Requests of users to data being moved, or moved since the
//! last checkpoint, wait for the next one. Before each row it decides whether to record its
//! progress, for which all that was started must be complete:
//! * if the row would overwrite data that is still needed;
//! * 2.6.18, the paper's kernel: or if more than 3000 KiB of each disk were written since the last
//!   time ("rather arbitrary, should probably be time based", by its comment);
//! * today: or after ten seconds.
//!
//! It compares rows of disks, so that it stops a row before [`Window`](weft_layout::window::Window)
//! does. It also writes all that the array gains.

use weft_rt::{Nanos, SECOND};

use super::{Cut, Grow, Job, Policy, Progress, Step, UsersWait};

/// A stripe head on each disk, in bytes.
const HEAD_BYTES: u64 = 4096;
/// Bytes of each disk between two checkpoints, 2.6.18.
const GAP_BYTES: u64 = 3000 << 10;
/// Time between two checkpoints, today.
const CHECKPOINT_EVERY: Nanos = 10 * SECOND;

/// The kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// 2.6.18.
    Paper,
    /// Since 2.6.28.
    Today,
}

/// See the [module](self).
pub(crate) struct Md {
    era: Era,
    old_data: u64,
    new_data: u64,
    moves_at_once: usize,
}

impl Md {
    pub(crate) fn new(era: Era, grow: &Grow, buffer_bytes: u64) -> Self {
        let (old_data, new_data) = (grow.disks as u64 - 1, (grow.disks + grow.added) as u64 - 1);
        // A new row takes heads for itself and for the old rows that it is made of.
        let row = grow.unit_bytes + (grow.unit_bytes * new_data).div_ceil(old_data);
        let rows = usize::try_from(buffer_bytes / row).unwrap_or(usize::MAX);
        Self { era, old_data, new_data, moves_at_once: rows.max(1) }
    }
}

impl Policy for Md {
    fn next(&mut self, job: &mut Job, at: Progress) -> Step {
        if at.begun > at.checkpoint {
            let writes_to = (at.begun + job.new_stripe()) / self.new_data;
            let overwrites =
                at.checkpoint < job.data_end && writes_to >= at.checkpoint / self.old_data;
            let long = match self.era {
                Era::Paper => at.begun - at.checkpoint > GAP_BYTES * self.new_data,
                Era::Today => at.now >= at.checkpoint_ns + CHECKPOINT_EVERY,
            };
            if overwrites || long || at.begun >= job.end {
                return Step::Checkpoint;
            }
        }
        if at.begun >= job.end { Step::Done } else { Step::MoveTo(at.begun + job.new_stripe()) }
    }

    fn cut(&self) -> Cut {
        Cut::Pieces(HEAD_BYTES)
    }

    fn moves_at_once(&self) -> usize {
        self.moves_at_once
    }

    fn users_wait(&self) -> UsersWait {
        UsersWait::ForCheckpoint
    }
}
