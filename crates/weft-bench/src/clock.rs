//! Clocks: the time that passes, and the processor time that this thread used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weft_rt::{Driver, Nanos};

/// A driver for disks that complete in the caller's own turn: real time, and nothing to reap.
#[derive(Debug)]
pub struct TrivialDriver(Instant);

impl Default for TrivialDriver {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Driver for TrivialDriver {
    fn now(&self) -> Nanos {
        Nanos::try_from(self.0.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    fn poll(&self) {}

    fn park(&self, deadline: Option<Nanos>) {
        let deadline = deadline.expect("without disks that wait there is always a timer or a task");
        std::thread::sleep(Duration::from_nanos(deadline.saturating_sub(self.now())));
    }

    fn doorbell(&self) -> Arc<dyn Fn() + Send + Sync> {
        Arc::new(|| {})
    }
}

/// Processor time of the calling thread, which other programs on the machine disturb less than the
/// time that passes.
#[derive(Debug, Clone, Copy)]
pub struct CpuClock(Duration);

impl CpuClock {
    /// Starts counting.
    #[must_use]
    pub fn start() -> Self {
        Self(Self::now())
    }

    /// Processor time since the start.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_sub(self.0)
    }

    fn now() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::from_secs(seconds)
            + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
    }
}
