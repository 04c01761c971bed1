//! Keeps systemd informed: that the engine's thread turns (the watchdog), that a long start
//! continues, and one line on the arrays served.

use std::rc::Rc;

use weft_rt::{Nanos, SECOND};

use crate::daemon::{Daemon, notify};
use crate::report::status::state;

const LOOK_EVERY: Nanos = 5 * SECOND;

impl Daemon {
    /// Tells systemd how the daemon is doing, until the process ends.
    pub(super) async fn keep_systemd_informed(self: Rc<Self>) {
        if !notify::is_asked() {
            return;
        }
        let watchdog = notify::watchdog();
        // Three chances in each period.
        let period = watchdog.map_or(LOOK_EVERY, |period| LOOK_EVERY.min(period / 3));
        let mut told = String::new();
        loop {
            if watchdog.is_some() {
                notify::systemd("WATCHDOG=1");
            }
            if !self.pending.is_up() {
                notify::extend_timeout();
            }
            // While it stops, what it waits for is told.
            let text = self.in_a_line();
            if text != told && !self.stopping.get() {
                notify::systemd(&format!("STATUS={text}"));
                told = text;
            }
            self.opener.rt.sleep(period).await;
        }
    }

    /// What is served, in a line.
    fn in_a_line(&self) -> String {
        let mut parts = Vec::new();
        for (name, served) in &*self.arrays.borrow() {
            let Ok(status) = served.isolation.call(|| served.array.status()) else { continue };
            let attached = if served.front.borrow().is_some() { ", attached" } else { "" };
            parts.push(format!("{name}: {}{attached}", state(status.state)));
        }
        let not_started = self.pending.not_started.borrow();
        parts.extend(not_started.iter().map(|array| format!("{}: not started", array.name)));
        match parts.is_empty() {
            true => "no array".to_owned(),
            false => parts.join("; "),
        }
    }
}
