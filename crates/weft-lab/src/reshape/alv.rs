//! ALV (Zhang, Zheng and Shu, IEEE Transactions on Computers 2010): aggregated accesses, lazy
//! checkpoints, and a valve ([`valve`](super::valve)).
//!
//! An *aggregation window* is as large as the buffers: it is read with one request for each old
//! disk, and written, with the parity computed in memory, with one for each new disk. The *sliding
//! window* is the [`Window`](weft_layout::window::Window) that the last checkpoint opened. The
//! progress is recorded when the aggregation window reaches its end, or when a user writes to data
//! moved since (see [`UsersWait::ForMove`](super::UsersWait::ForMove)).
//!
//! Where the window is empty, at the start, a stripe is moved and recorded at once. There it needs
//! a backup, whose few requests are not modelled.

use weft_layout::window::theorem_1;

use super::{Grow, Job, Policy, Progress, Step};

/// See the [module](self).
pub(crate) struct Alv {
    grow: Grow,
    /// Bytes of the array in an aggregation window.
    aggregated: u64,
    skip_empty: bool,
    as_printed: bool,
}

impl Alv {
    /// Aggregation windows of whole new stripes, for which the buffers of the old disks suffice.
    /// `skip_empty`: without writing what the array gains, which holds no data.
    pub(crate) fn new(grow: &Grow, buffer_bytes: u64, skip_empty: bool) -> Self {
        let (old_data, new_data) = (grow.disks as u64 - 1, (grow.disks + grow.added) as u64 - 1);
        let stripe = new_data * grow.unit_bytes;
        let aggregated = (buffer_bytes * old_data / stripe).max(1) * stripe;
        Self { grow: grow.clone(), aggregated, skip_empty, as_printed: false }
    }

    /// As the paper's Table 1 can be explained: aggregation windows as large as the buffers, though
    /// that is no multiple of a stripe, in sliding windows of Theorem 1, though that is not safe.
    pub(crate) fn as_printed(grow: &Grow, buffer_bytes: u64) -> Self {
        let aggregated = buffer_bytes * (grow.disks as u64 - 1);
        Self { grow: grow.clone(), aggregated, skip_empty: false, as_printed: true }
    }

    fn limit(&self, job: &mut Job, checkpoint: u64) -> u64 {
        let Grow { disks, added, unit_bytes, .. } = self.grow;
        if !self.as_printed || checkpoint >= job.data_end {
            return job.limit(checkpoint);
        }
        let units = theorem_1(disks as u64, added as u64, checkpoint / unit_bytes);
        (checkpoint + units * unit_bytes).min(job.data_end)
    }
}

impl Policy for Alv {
    fn next(&mut self, job: &mut Job, at: Progress) -> Step {
        let end = if self.skip_empty { job.window.addresses().end } else { job.end };
        let to = self.limit(job, at.checkpoint).min(at.begun + self.aggregated).min(end);
        if to > at.begun {
            Step::MoveTo(to)
        } else if at.begun > at.checkpoint {
            Step::Checkpoint
        } else if at.begun >= end {
            Step::Done
        } else {
            Step::MoveTo(at.begun + job.new_stripe())
        }
    }
}
