//! `weft fs mount --background`: another process serves the file system, in a session of its own, and
//! this one returns when it is mounted.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use weft_cli::failure::{FAILED, Failure, Outcome};
use weft_cli::output::{outln, write_err};

use crate::cli::FsMountArgs;

/// What tells the process that serves that it does so in the background.
const DETACHED: &str = "WEFT_FS_DETACHED";

/// Whether this process was started by [`mount`].
pub(super) fn is_detached() -> bool {
    std::env::var_os(DETACHED).is_some()
}

/// Leaves the session, and the folder, of the command that started this process.
pub(super) fn detach() {
    // It fails only for the leader of a session, which has left.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
}

/// Starts the same command again as a process that stays, and returns when the file system is mounted,
/// or with that process's messages and exit code.
pub(super) fn mount(args: &FsMountArgs) -> Outcome {
    let (path, mut log) = open_log(args)?;
    let from = log.seek(SeekFrom::End(0)).unwrap_or(0);
    let failed = |e: std::io::Error| Failure::new(format!("cannot start weft again: {e}"));
    let own = std::env::current_exe().map_err(failed)?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = Command::new(own);
    command.args(arguments).env(DETACHED, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(log.try_clone().map_err(failed)?);
    let mut server = command.spawn().map_err(failed)?;
    let mut said = BufReader::new(server.stdout.take().ok_or_else(|| Failure::new("no output"))?);
    let mut line = String::new();
    let is_mounted = said.read_line(&mut line).is_ok_and(|len| len > 0) && !is_error(&line);
    if is_mounted {
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
fn open_log(args: &FsMountArgs) -> Result<(PathBuf, File), Failure> {
    let usual = || Path::new("/run").join(format!("weftfs-{}.log", args.name.replace('/', "_")));
    let path = args.log.clone().unwrap_or_else(usual);
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
    let opened = options.open(&path);
    let failed = |e: std::io::Error| {
        Failure::new(format!("{}: {e}", path.display())).hint("--log names another file")
    };
    let log = opened.map_err(failed)?;
    Ok((fs::canonicalize(&path).unwrap_or(path), log))
}
