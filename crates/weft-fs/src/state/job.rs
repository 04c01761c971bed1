//! What long work is called, and how far it is.

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// It moves what lost disks held to others.
    Rebuild,
    /// It empties this disk, which then leaves.
    Remove(u16),
    /// It reads every block, and repairs those that are wrong.
    Scrub,
    /// It spreads what is stored over disks with more room.
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
    /// Blocks in all, as known when it began.
    pub total_blocks: u64,
}

/// Whether the job that runs can still be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobEnd {
    /// It can.
    Open,
    /// It was, and ends after its step.
    Cancelled,
    /// It has done its work, and only ends.
    Near,
}
