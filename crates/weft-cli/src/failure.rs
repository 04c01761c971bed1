//! How a command ends: its exit code, and an error that names the fault and the next step.
//!
//! | code | meaning |
//! |------|---------|
//! | 0 | done |
//! | 1 | the operation failed; unless the message says otherwise nothing was changed |
//! | 2 | the command line was not understood |
//! | 3 | it works, but needs attention: `status --check` found redundancy reduced, `scrub` found mismatches |
//! | 4 | `status --check`: an array has failed or did not start, not all of its data can be read, or writes wait for space |
//! | 5 | no daemon answers in this runtime directory |
//! | 70 | an internal error, also one that ended the whole daemon; please report it |
//! | 130 | Ctrl-C ended a command that followed a job; the job continues |
//! | 141 | standard output was closed early (`weft examine … \| head`); the command had done its work |

use std::fmt;

/// Between a message and its hint, as a [`Failure`] shows them.
pub(crate) const HINT: &str = "\n  → ";

/// Why a command did not simply succeed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What is wrong; lower case, no full stop.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

/// The operation failed.
pub const FAILED: u8 = 1;
/// The command line was not understood.
pub const USAGE: u8 = 2;
/// It works, but needs attention.
pub const ATTENTION: u8 = 3;
/// Data cannot be read.
pub const DATA_UNAVAILABLE: u8 = 4;
/// No daemon answers.
pub const NO_DAEMON: u8 = 5;
/// Ended by Ctrl-C, as a shell reports it.
pub const INTERRUPTED: u8 = 130;
/// A panic (`EX_SOFTWARE` of sysexits.h).
pub const INTERNAL_ERROR: u8 = 70;

impl Failure {
    /// The operation failed because of `message`.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: message.into(), hint: None }
    }

    /// Arguments that parse but do not fit together.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(message) }
    }

    /// The message has been printed already; only the exit code is left.
    pub fn said(code: u8) -> Self {
        Self { code, ..Self::new("") }
    }

    /// With another exit code.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// With what to do next.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "{}{hint}", HINT)?;
        }
        Ok(())
    }
}

/// The result of every command.
pub type Outcome = Result<(), Failure>;
