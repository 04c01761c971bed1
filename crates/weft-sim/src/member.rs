//! The disks of a run, members or not.

use crate::disk::{Faults, Platter};

/// A disk of a run.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub platter: Platter,
    /// Not attached in this life.
    pub absent: bool,
}

impl Member {
    /// The disk works again. It still lacks the writes that it missed: to the array it is a failed
    /// member until it is added as a new one.
    pub(crate) fn comes_back(&mut self) {
        let away = std::mem::replace(&mut self.absent, false);
        self.platter.faults(|f| {
            let failed = f.failed || f.gone || away;
            let failed_writes = std::mem::take(&mut f.failed_writes);
            *f = Faults { failed, failed_writes, ..Faults::default() };
        });
    }
}
