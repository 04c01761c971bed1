//! A rate limit for log lines that clients can cause at will, so that they cannot fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_cli::output::log_line;

/// At most this many lines of a kind are written per [`PERIOD`].
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Lines of one kind.
#[derive(Debug, Default)]
pub struct LimitedLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LimitedLog {
    /// Writes a line, unless there were too many lately; the next line then reports their number.
    pub fn line(&self, text: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left_out) = state.admit(Instant::now()) else { return };
        drop(state);
        if left_out > 0 {
            log_line(&format!("suppressed {left_out} more lines of this kind"));
        }
        log_line(text);
    }
}

impl State {
    /// Whether a line may be written now, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_few_lines_and_their_number() {
        let (mut state, now) = (State::default(), Instant::now());
        let written = (0..1000).filter(|_| state.admit(now).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(state.admit(now + PERIOD), Some(990));
        assert_eq!(state.admit(now + PERIOD), Some(0));
    }
}
