//! `weft serve --background` and `weft fs mount --background`: another process serves, in a session
//! of its own, and this one returns when it does.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use weft_cli::failure::{FAILED, Failure, Outcome};
use weft_cli::output::{announce, errln, outln, write_err};

/// What tells the process that serves that it does so in the background.
const DETACHED: &str = "WEFT_DETACHED";

/// What the process that serves prints before a line for the user of the command, as it is not up
/// yet.
const NOTE: &str = "note: ";

/// Passes a line to the user of the command that started this process, while it waits.
pub fn tell_starter(text: &str) {
    if is_detached() {
        announce(&format!("{NOTE}{text}"));
    }
}

/// Whether this process was started by [`start`].
pub fn is_detached() -> bool {
    std::env::var_os(DETACHED).is_some()
}

/// Leaves the session of the command that started this process.
pub fn leave_session() {
    // It fails only for the leader of a session, which has left.
    let _ = rustix::process::setsid();
}

/// Starts the command `line` again as a process that stays. Its messages go to the file `log`.
/// Returns once it has announced that it serves, or with its messages and exit code. Shows what it
/// waits for until then.
pub fn start(line: Vec<OsString>, log: &Path) -> Outcome {
    let path = log;
    let mut log = open_log(path)?;
    let from = log.seek(SeekFrom::End(0)).unwrap_or(0);
    let failed = |e: std::io::Error| Failure::new(format!("cannot start weft again: {e}"));
    let own = std::env::current_exe().map_err(failed)?;
    let arguments: Vec<OsString> = line.into_iter().skip(1).collect();
    let mut command = Command::new(own);
    command.args(arguments).env(DETACHED, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(log.try_clone().map_err(failed)?);
    let mut server = command.spawn().map_err(failed)?;
    let mut said = BufReader::new(server.stdout.take().ok_or_else(|| Failure::new("no output"))?);
    let mut line = String::new();
    let mut has_said = said.read_line(&mut line).is_ok_and(|len| len > 0);
    while let Some(note) = line.strip_prefix(NOTE).filter(|_| has_said) {
        errln!("{}", note.trim_end());
        line.clear();
        has_said = said.read_line(&mut line).is_ok_and(|len| len > 0);
    }
    let serves = has_said && !is_error(&line);
    if serves {
        outln!("{}", line.trim_end());
        return Ok(());
    }
    let status = server.wait().map_err(failed)?;
    let mut messages = String::new();
    let read = log.seek(SeekFrom::Start(from)).and_then(|_| log.read_to_string(&mut messages));
    if let Err(e) = read {
        return Err(Failure::new(format!("{}: {e}", path.display())));
    }
    if !line.is_empty() {
        outln!("{}", line.trim_end());
    }
    write_err(format_args!("{messages}"));
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Err(Failure::said(code.unwrap_or(FAILED)))
}

/// Whether a line that a server printed is its failure, as JSON.
fn is_error(line: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(line).is_ok_and(|answer| !answer["error"].is_null())
}

/// Opens the file to which the server's messages go.
fn open_log(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
    options.open(path).map_err(|e| {
        Failure::new(format!("{}: {e}", path.display())).hint("--log names another file")
    })
}
