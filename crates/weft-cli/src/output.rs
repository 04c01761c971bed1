//! What the program prints: the one place that writes to standard output and standard error.
//!
//! The macros of the standard library panic when such a write fails, and neither a full disk below
//! a log file nor `head`, which closes its input early, may cause a panic. So all output goes
//! through these:
//!
//! * [`outln!`] and [`out!`]: a command's answer, on standard output; [`answer`]: the same for
//!   programs. If the write fails, the command ends there, and drops what it holds in order:
//!   quietly with 141 if the reader has gone, as a shell reports a program that ended by SIGPIPE;
//!   with a message and 1 if the write failed for another reason (`/dev/full`).
//! * [`announce`], [`announce_answer`]: a line on standard output of a daemon, which continues to
//!   serve if the line cannot be written.
//! * [`errln!`]: messages and logs, on standard error. There is no other place to report that this
//!   failed, so such a failure is ignored.
//!
//! The crates of commands deny `clippy::print_stdout` and `clippy::print_stderr`.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::failure::{Failure, HINT, INTERNAL_ERROR, Outcome};

/// Version of what `--json` prints, as docs/json.md describes it. Additions do not change it; a key
/// that is renamed, removed, or given another meaning does.
const JSON_VERSION: u32 = 1;

/// A line of JSON: an object whose first key is the version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    weft_json: u32,
    #[serde(flatten)]
    answer: &'a T,
}

/// Standard output was closed by its reader: 128 and the number of SIGPIPE.
const READER_GONE: u8 = 128 + 13;

/// Prints a line of a command's answer.
#[macro_export]
macro_rules! outln {
    () => { $crate::output::write_out(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::write_out(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Prints a part of a command's answer.
#[macro_export]
macro_rules! out {
    ($($arg:tt)*) => { $crate::output::write_out(format_args!($($arg)*)) };
}

/// Prints a line for people, on standard error.
#[macro_export]
macro_rules! errln {
    ($($arg:tt)*) => { $crate::output::write_err(format_args!("{}\n", format_args!($($arg)*))) };
}

pub use crate::{errln, out, outln};

/// Unwinds the main thread when the answer cannot be written.
struct Unwritten(io::Error);

/// Writes a part of the answer, or ends the command.
pub fn write_out(text: Arguments<'_>) {
    io::stdout().lock().write_fmt(text).unwrap_or_else(|error| give_up(error));
}

/// Prints an answer for programs, on a line of its own. It must be a struct or a map.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn answer(answer: &impl Serialize) -> Outcome {
    outln!("{}", json_line(answer)?);
    Answer.flush().map_err(|e| Failure::new(e.to_string()))
}

/// Prints an answer for programs on standard output of a daemon, if that can be written.
pub fn announce_answer(answer: &impl Serialize) {
    if let Ok(line) = json_line(answer) {
        announce(&line);
    }
}

fn json_line(answer: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(&Versioned { weft_json: JSON_VERSION, answer })
        .map_err(|e| Failure::new(format!("the answer cannot be written as JSON: {e}")))
}

/// Writes to standard error, if that can be written.
pub fn write_err(text: Arguments<'_>) {
    // In one write, so that lines of several processes in one log stay whole.
    let _ = io::stderr().lock().write_all(text.to_string().as_bytes());
}

/// Writes a line of the daemon's log: to standard error, where systemd and shells expect it. It is
/// one line for all names in it; a hint follows its message.
pub fn log_line(text: &str) {
    errln!("weft: {}", visible(&text.replace(HINT, " → ")));
}

/// `text`, which may have come from a file's name, with control characters written as escapes: they
/// could start a line, or change what a terminal shows.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return text.into();
    }
    let escape = |c: char| match c {
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect::<String>().into()
}

/// Escapes a name that need not be text: bytes that are not UTF-8 are shown as `\xff`.
#[must_use]
pub fn visible_path(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&visible(chunk.valid()));
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Prints a line on standard output if that can be written.
pub fn announce(line: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

/// Standard output, for code that writes a stream itself. It ends the command as [`outln!`] does.
#[derive(Debug)]
pub struct Answer;

impl Write for Answer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(io::stdout().lock().write(bytes).unwrap_or_else(|error| give_up(error)))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush().unwrap_or_else(|error| give_up(error));
        Ok(())
    }
}

/// Not a panic: the hook is not called and nothing is printed, but everything held is dropped.
fn give_up(error: io::Error) -> ! {
    resume_unwind(Box::new(Unwritten(error)))
}

/// Reports a failure to the user, or with `json` to the program, and returns the exit code.
fn report(failure: &Failure, json: bool) -> ExitCode {
    if failure.message.is_empty() {
        return ExitCode::from(failure.code);
    }
    if json {
        let error = serde_json::json!({
            "error": { "code": failure.code, "message": failure.message, "hint": failure.hint }
        });
        // If this fails there is no other place to report it.
        let _ = answer(&error);
    } else {
        errln!("weft: {failure}");
    }
    ExitCode::from(failure.code)
}

/// Runs a command and returns its exit code, also if its answer could not be written, or if it
/// panicked.
pub fn run(json: bool, command: impl FnOnce() -> Outcome) -> ExitCode {
    // Everything the command held is gone when this returns; nothing half-changed is seen.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let code = match command() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => report(&failure, json),
        };
        let _ = Answer.flush();
        code
    }));
    ended.unwrap_or_else(|payload| match payload.downcast::<Unwritten>() {
        Ok(unwritten) if unwritten.0.kind() == io::ErrorKind::BrokenPipe => READER_GONE.into(),
        Ok(unwritten) => report(&Failure::new(format!("standard output: {}", unwritten.0)), false),
        // The hook has already reported it.
        Err(_) => INTERNAL_ERROR.into(),
    })
}
