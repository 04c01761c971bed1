//! Gradual assimilation (Gonzalez and Cortes, "Increasing the capacity of RAID5 by online gradual
//! assimilation", SNAPI 2004): one new stripe at a time, each recorded at once.

use super::{Job, Policy, Progress, Step};

/// See the [module](self).
pub(crate) struct GradualAssimilation;

impl Policy for GradualAssimilation {
    fn next(&mut self, job: &mut Job, at: Progress) -> Step {
        if at.begun > at.checkpoint {
            Step::Checkpoint
        } else if at.begun >= job.end {
            Step::Done
        } else {
            Step::MoveTo(at.begun + job.new_stripe())
        }
    }
}
