//! What long work is called, how far it is, and the states of the place for a job.
//!
//! One job runs at a time. `docs/architecture.md` has a drawing of the states, made from
//! [`JobState::after`].

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// It moves the contents of lost disks to other disks.
    Rebuild,
    /// It empties this disk, which then leaves.
    Remove(u16),
    /// It reads every block, and repairs wrong ones.
    Scrub,
    /// It moves existing data to disks with more room.
    Balance,
    /// It lays out files that have got another redundancy.
    Set,
}

impl Job {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rebuild => "rebuild",
            Self::Remove(_) => "remove",
            Self::Scrub => "scrub",
            Self::Balance => "balance",
            Self::Set => "set",
        }
    }
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobStatus {
    /// What it does.
    pub job: Job,
    /// Blocks done.
    pub done_blocks: u64,
    /// Blocks in all, as known when it started.
    pub total_blocks: u64,
    /// Blocks of lost disks for which the working disks have no room, as known when it started;
    /// none if a disk has joined or grown since.
    pub lacking_blocks: u64,
}

/// A job that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobRun {
    /// How far it is.
    pub(crate) status: JobStatus,
    /// The losses of disks before it started.
    pub(crate) losses: u64,
}

/// The state of the one place for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum JobState {
    /// No job runs.
    #[default]
    Idle,
    /// A job runs, and can be cancelled if its kind can.
    Running(JobRun),
    /// It was cancelled, and ends after its step.
    Cancelled(JobRun),
    /// It has done its work, and cannot be cancelled any more.
    Completing(JobRun),
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobEvent {
    /// It starts.
    Begin(JobRun),
    /// A user cancels it.
    Cancel,
    /// Its work is done: the rest cannot be taken back.
    Complete,
    /// It ends, for any reason.
    End,
}

impl JobState {
    /// The state after `event`; `None` if that cannot happen in this state.
    pub(crate) fn after(self, event: JobEvent) -> Option<Self> {
        use JobEvent::{Begin, Cancel, Complete, End};
        match (self, event) {
            (Self::Idle, Begin(run)) => Some(Self::Running(run)),
            (Self::Running(run) | Self::Cancelled(run), Cancel) => Some(Self::Cancelled(run)),
            (Self::Running(run) | Self::Completing(run), Complete) => Some(Self::Completing(run)),
            (Self::Running(_) | Self::Cancelled(_) | Self::Completing(_), End) => Some(Self::Idle),
            (Self::Idle, Cancel | Complete | End)
            | (Self::Running(_) | Self::Cancelled(_) | Self::Completing(_), Begin(_))
            | (Self::Cancelled(_), Complete)
            | (Self::Completing(_), Cancel) => None,
        }
    }

    /// The job that was started, if there is one.
    pub(crate) fn run(self) -> Option<JobRun> {
        match self {
            Self::Idle => None,
            Self::Running(run) | Self::Cancelled(run) | Self::Completing(run) => Some(run),
        }
    }

    /// Whether its job was cancelled, and has not ended.
    pub(crate) fn is_cancelled(self) -> bool {
        matches!(self, Self::Cancelled(_))
    }

    /// This progress with more done, or more to do.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut JobStatus)) -> Self {
        if let Self::Running(run) | Self::Cancelled(run) | Self::Completing(run) = &mut self {
            change(&mut run.status);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::states;

    use super::*;

    const RUN: JobRun = JobRun {
        status: JobStatus { job: Job::Balance, done_blocks: 3, total_blocks: 9, lacking_blocks: 0 },
        losses: 0,
    };

    const STATES: [(&str, JobState); 4] = [
        ("idle", JobState::Idle),
        ("running", JobState::Running(RUN)),
        ("cancelled", JobState::Cancelled(RUN)),
        ("completing", JobState::Completing(RUN)),
    ];

    const EVENTS: [(&str, JobEvent); 4] = [
        ("it begins", JobEvent::Begin(RUN)),
        ("a user cancels it", JobEvent::Cancel),
        ("its work is done", JobEvent::Complete),
        ("it ends", JobEvent::End),
    ];

    #[test]
    fn the_drawing_shows_what_the_function_does() {
        let page = include_str!("../../../../docs/architecture.md");
        let drawing = states::drawing(&STATES, &EVENTS, JobState::after);
        states::assert_drawn(page, "### A job", &drawing);
    }

    #[test]
    fn a_state_says_how_far_its_job_is() {
        for (_, state) in STATES {
            let more = state.with(|status| status.done_blocks += 4);
            assert_eq!(more.run().map(|run| run.status.done_blocks), state.run().map(|_| 7));
            assert_eq!(std::mem::discriminant(&more), std::mem::discriminant(&state));
        }
    }
}
