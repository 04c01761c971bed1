//! A panic inside a simulated run is a finding, not the end of the program: it is caught, with the
//! place where it happened, and printed only with the failure.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Runs `body`; a panic comes back as its message, place, and the frames of our own code.
pub(crate) fn catch<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                let trace = Backtrace::force_capture().to_string();
                CAUGHT.set(Some(format!("{info}\n{}", own_frames(&trace))));
            } else {
                previous(info);
            }
        }));
    });
    let before = CATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    CATCHING.set(before);
    result.map_err(|_| CAUGHT.take().unwrap_or_else(|| "of unknown cause".into()))
}

/// The frames of a backtrace that lie in weft.
fn own_frames(trace: &str) -> String {
    let lines: Vec<_> = trace.lines().collect();
    let pairs =
        lines.windows(2).filter(|pair| pair[0].contains("weft_") && pair[1].contains(" at "));
    let own = pairs.filter(|pair| !pair[0].contains("weft_sim::panics"));
    own.take(12).map(|pair| format!("{}\n{}\n", pair[0], pair[1])).collect()
}
