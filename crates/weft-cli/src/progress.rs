//! A progress bar on a terminal, and a plain line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::errln;

/// Nothing is shown of a task that is shorter than this.
const QUIET: Duration = Duration::from_millis(500);
/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of something long, on standard error.
#[derive(Debug)]
pub struct Progress {
    what: String,
    bar: ProgressBar,
    plain: bool,
    start: Instant,
    last_line: Option<Instant>,
    /// Shows nothing (JSON is asked for).
    silent: bool,
}

impl Progress {
    /// Progress of `what` towards `total`.
    pub fn new(what: &str, total: u64, silent: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("  {prefix:<10} [{bar:36}] {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_prefix(what.to_owned());
        let plain = bar.is_hidden();
        if silent {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { what: what.to_owned(), bar, plain, start: Instant::now(), last_line: None, silent }
    }

    /// Shows that `done` of `total` is done; `message` is the text for people.
    pub fn at(&mut self, done: u64, total: u64, message: &str) {
        if self.silent || self.start.elapsed() < QUIET {
            return;
        }
        if !self.plain {
            self.bar.set_length(total);
            self.bar.set_position(done.min(total));
            self.bar.set_message(message.to_owned());
        } else if self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            errln!("{}: {message}", self.what);
            self.last_line = Some(Instant::now());
        }
    }

    /// A lasting line of text, above the bar.
    pub fn say(&self, line: &str) {
        if self.silent {
            return;
        }
        if self.plain {
            errln!("{line}");
        } else {
            self.bar.println(line);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
