//! Keeping processors awake while requests come one by one.
//!
//! A program that makes many files waits for an answer after each small request. Nothing else runs
//! on its processor then, so it goes to sleep, and waking it takes longer than the request: in a
//! virtual machine, an exit to the host and back. Linux lets a program state the delay that it
//! tolerates, for as long as it has `/dev/cpu_dma_latency` open
//! (`Documentation/power/pm_qos_interface.rst`); if that is 0, idle processors look for work
//! instead of sleeping.
//!
//! ```text
//!     requests   '   '''''''''''''''''''''''''''''''                  '
//!     says 0           [CLOSE] ├──────────────────────────┤ none for QUIET_NS
//! ```
//!
//! *What it costs.* All idle processors stay awake: power, and time of the host's processors. So it
//! is done only on request (`weft fs mount --awake`), and only while requests that wait for each
//! other follow closely. When the daemon ends, however it ends, the kernel takes it back.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::rc::Rc;

use weft_cli::failure::Failure;
use weft_rt::{MILLISECOND, Nanos, Rt};

const DEVICE: &str = "/dev/cpu_dma_latency";
/// The number of requests in close succession after which processors stay awake.
const CLOSE: u32 = 32;
/// Until there was none of them for so long, at most twice.
const QUIET_NS: Nanos = 10 * MILLISECOND;
/// The delays that are tolerated, in microseconds: none, and any (the kernel's default).
const NONE_US: i32 = 0;
const ANY_US: i32 = 2_000_000_000;

/// Opens the device with which processors are kept awake; needs root.
///
/// # Errors
/// If it cannot be opened.
pub fn open() -> Result<File, Failure> {
    let opened = OpenOptions::new().write(true).open(DEVICE);
    opened.map_err(|e| {
        Failure::new(format!("{DEVICE}: {e}")).hint("without --awake it is not needed")
    })
}

/// It goes on as it is if this fails.
fn say(mut file: &File, us: i32) {
    let _ = file.write_all(&us.to_ne_bytes());
}

/// Says when processors must be awake.
pub(crate) struct Awake {
    rt: Rt,
    state: Rc<State>,
}

struct State {
    /// Says which delay is tolerated, in microseconds.
    say: Box<dyn Fn(i32)>,
    /// Requests since the last that did not follow closely.
    close: Cell<u32>,
    /// Counts requests that did.
    seen: Cell<u64>,
    /// No delay is tolerated.
    holds: Cell<bool>,
}

impl std::fmt::Debug for Awake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awake").field("holds", &self.state.holds).finish_non_exhaustive()
    }
}

impl Awake {
    pub(crate) fn new(rt: Rt, device: File) -> Self {
        Self::saying(rt, move |us| say(&device, us))
    }

    fn saying(rt: Rt, say: impl Fn(i32) + 'static) -> Self {
        let (close, seen, holds) = (Cell::new(0), Cell::new(0), Cell::new(false));
        Self { rt, state: Rc::new(State { say: Box::new(say), close, seen, holds }) }
    }

    /// A request came that may have waited for the last answer; `closely` if it came shortly after
    /// it.
    pub(crate) fn came(&self, closely: bool) {
        let state = &self.state;
        state.close.set(if closely { state.close.get().saturating_add(1) } else { 0 });
        state.seen.set(state.seen.get() + u64::from(closely));
        if state.close.get() < CLOSE || state.holds.replace(true) {
            return;
        }
        (state.say)(NONE_US);
        let (rt, state) = (self.rt.clone(), state.clone());
        self.rt.launch(Box::pin(async move {
            let mut seen = None;
            while seen.replace(state.seen.get()) != Some(state.seen.get()) {
                rt.sleep(QUIET_NS).await;
            }
            (state.say)(ANY_US);
            state.close.set(0);
            state.holds.set(false);
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use weft_rt::{Schedule, virtual_rt};

    use super::*;

    #[test]
    fn processors_are_awake_while_requests_follow_closely() {
        let rt = virtual_rt(Schedule::Fifo);
        let test = rt.clone();
        rt.block_on(async move {
            let said = Rc::new(RefCell::new(Vec::new()));
            let say = said.clone();
            let awake = Awake::saying(test.clone(), move |us| say.borrow_mut().push(us));
            let some = |count: u32| (0..count).for_each(|_| awake.came(true));
            some(CLOSE - 1);
            awake.came(false);
            some(CLOSE - 1);
            assert_eq!(*said.borrow(), [0; 0], "not in a row");
            some(1);
            assert_eq!(*said.borrow(), [NONE_US]);
            for _ in 0..20 {
                test.sleep(QUIET_NS / 2).await;
                awake.came(true);
            }
            awake.came(false);
            assert_eq!(*said.borrow(), [NONE_US], "it goes on");
            test.sleep(2 * QUIET_NS + 1).await;
            assert_eq!(*said.borrow(), [NONE_US, ANY_US]);
            test.sleep(10 * QUIET_NS).await;
            some(CLOSE);
            test.sleep(10 * QUIET_NS).await;
            assert_eq!(*said.borrow(), [NONE_US, ANY_US, NONE_US, ANY_US]);
        });
    }
}
