//! One growth of the metadata at a time, and none for a while after one that failed.

use std::cell::Cell;

use weft_rt::Nanos;
use weft_rt::sync::{Permit, Semaphore};

/// See the [module](self).
pub(crate) struct MetadataGrowth {
    turns: Semaphore,
    not_before: Cell<Nanos>,
}

impl Default for MetadataGrowth {
    fn default() -> Self {
        Self { turns: Semaphore::new(1), not_before: Cell::new(0) }
    }
}

impl MetadataGrowth {
    /// Waits until no growth is running; none starts while the permit is held.
    pub(crate) async fn turn(&self) -> Permit {
        self.turns.acquire(1).await
    }

    /// When the next growth may start by itself.
    pub(crate) fn not_before(&self) -> Nanos {
        self.not_before.get()
    }

    /// No growth starts by itself before `time`.
    pub(crate) fn wait_until(&self, time: Nanos) {
        self.not_before.set(time);
    }
}
