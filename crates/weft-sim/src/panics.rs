//! Catches panics. A panic in a simulated run is a violation and does not end the program; its
//! message and place are printed with the failure.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Runs `body`. Returns the message and place of a panic, and the backtrace's frames in weft.
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

/// The frames of a backtrace that are in weft.
fn own_frames(trace: &str) -> String {
    let lines: Vec<_> = trace.lines().collect();
    let pairs =
        lines.windows(2).filter(|pair| pair[0].contains("weft_") && pair[1].contains(" at "));
    let own = pairs.filter(|pair| !pair[0].contains("weft_sim::panics"));
    own.take(12).map(|pair| format!("{}\n{}\n", pair[0], pair[1])).collect()
}
