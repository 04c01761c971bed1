//! Rebuilds as Linux MD and the papers do them, to compare the engine's with: what differs from a
//! policy of the engine is an [`Experiment`] of these [`Parts`].

mod pipelined;
mod speed_control;

use std::rc::Rc;

use serde::Deserialize;
use weft_array::experiment::{Executor, Experiment, Pace, Rebuilder, Redirection};
use weft_array::{Array, ArrayError, Piggyback, RebuildOrder, RebuildPolicy};
use weft_rt::Nanos;

pub use pipelined::Pipelined;
pub use speed_control::Manner;
pub(crate) use speed_control::SpeedControl;

/// A way to rebuild.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// The policy of the engine.
    pub policy: RebuildPolicy,
    /// What differs from it.
    pub parts: Parts,
}

/// What the engine does not offer.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parts {
    /// Small pipelined requests at the same priority as users, as in Linux MD.
    pub pipelined: Option<Pipelined>,
    /// The speed control of Linux MD.
    pub pace: Option<Manner>,
    /// Whether users' reads use units that are rebuilt already. Linux MD before 2.6.34 did not,
    /// until the whole member was rebuilt.
    pub redirect: bool,
}

impl Default for Parts {
    fn default() -> Self {
        Self { pipelined: None, pace: None, redirect: true }
    }
}

impl Way {
    /// Linux MD's RAID-4, 5 and 6: pipelined, ascending, 4 KiB requests at the priority of users,
    /// no piggybacking, with the speed control of 2.6 or of today.
    #[must_use]
    pub fn linux_md(pace: Manner) -> Self {
        Self {
            policy: RebuildPolicy {
                order: RebuildOrder::Ascending,
                piggyback: Piggyback::Off,
                ..RebuildPolicy::default()
            },
            parts: Parts {
                pipelined: Some(Pipelined::default()),
                pace: Some(pace),
                ..Parts::default()
            },
        }
    }

    /// Linux MD's RAID-1 and RAID-10, which have no stripe heads: requests of 64 KiB
    /// (`RESYNC_BLOCK_SIZE`), 32 at a time (`RESYNC_DEPTH`).
    #[must_use]
    pub fn linux_md_mirror(pace: Manner) -> Self {
        let mut way = Self::linux_md(pace);
        way.parts.pipelined = Some(Pipelined { request_bytes: 64 << 10, heads: 32 });
        way
    }

    /// Checks that all parameters are within their limits.
    ///
    /// # Errors
    /// Which parameter is wrong, and its limits.
    pub fn check(&self) -> Result<(), String> {
        self.policy.check()?;
        self.parts.pipelined.map_or(Ok(()), Pipelined::check)
    }

    /// Makes `array` rebuild in this way.
    ///
    /// # Errors
    /// If a parameter of the policy is out of range.
    pub async fn apply(&self, array: &Array) -> Result<(), ArrayError> {
        array.set_rebuild_policy(self.policy.clone()).await?;
        array.set_rebuild_experiment(Some(Rc::new(self.parts.clone())));
        Ok(())
    }
}

impl Experiment for Parts {
    fn executor(&self, rebuilder: Rc<dyn Rebuilder>) -> Option<Rc<dyn Executor>> {
        Some(self.pipelined?.executor(rebuilder))
    }

    fn pace(&self, now: Nanos) -> Option<Box<dyn Pace>> {
        Some(Box::new(SpeedControl::new(self.pace?, now)))
    }

    fn redirection(&self) -> Redirection {
        match self {
            Self { redirect: false, .. } => Redirection::Never,
            Self { pipelined: None, pace: None, .. } => Redirection::Priced,
            // MD reads what it has rebuilt, whatever its disk does.
            _ => Redirection::Always,
        }
    }
}
