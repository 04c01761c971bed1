//! Ctrl-C while a command follows a job that another process carries out.
//!
//! The signal ends only the command, so it should tell that the job goes on, and how to get back to
//! it. A second Ctrl-C ends the command at once, also while it waits for an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use signal_hook::low_level::unregister;

use crate::failure::{Failure, INTERRUPTED};

/// Notes Ctrl-C until it is dropped.
#[derive(Debug)]
pub struct Interrupt {
    seen: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interrupt {
    /// Notes Ctrl-C from now on. If that is not possible, Ctrl-C ends the command as usual.
    pub fn noted() -> Self {
        let seen = Arc::new(AtomicBool::new(false));
        // In this order: the first Ctrl-C finds the flag not set.
        let end = flag::register_conditional_shutdown(SIGINT, INTERRUPTED.into(), seen.clone());
        let handlers = match end {
            Ok(end) => {
                [Ok(end), flag::register(SIGINT, seen.clone())].into_iter().flatten().collect()
            }
            Err(_) => Vec::new(),
        };
        Self { seen, handlers }
    }

    /// Fails once Ctrl-C was pressed: with what goes on without the command, and what to do about
    /// it.
    ///
    /// # Errors
    /// After Ctrl-C.
    pub fn check(&self, what: &str, hint: &str) -> Result<(), Failure> {
        if !self.seen.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Failure::new(format!("{what} continues in the background"))
            .with_code(INTERRUPTED)
            .hint(hint))
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}
