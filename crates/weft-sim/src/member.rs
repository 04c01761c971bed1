//! A disk of a run, whether the array has it or not.

use crate::disk::{Faults, Platter};

/// A disk of the run.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub platter: Platter,
    /// Not attached in this life.
    pub absent: bool,
}

impl Member {
    /// The disk works again. That does not undo what it missed: to the array it stays a member that
    /// failed, until it is taken as a new one.
    pub(crate) fn comes_back(&mut self) {
        let away = std::mem::replace(&mut self.absent, false);
        self.platter.faults(|f| {
            let failed = f.failed || f.gone || away;
            let denied = std::mem::take(&mut f.denied);
            *f = Faults { failed, denied, ..Faults::default() };
        });
    }
}
