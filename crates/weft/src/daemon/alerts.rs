//! Tells a program and a mail address what happens to arrays: `--program`, `--mail`.
//!
//! Events have mdadm's names where mdadm has one, and the program gets mdadm's arguments – event,
//! array, member – so that scripts move over. A thread of its own runs the programs one after the
//! other: a slow one delays later ones, and neither users nor the daemon.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use weft_array::{Event, Status};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::log_line;

/// Events that wait for a program; further ones are only in the log.
const WAITING_MAX: usize = 1024;
/// A program that runs for longer is ended.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Programs that send mail.
const SENDMAIL: [&str; 2] = ["/usr/sbin/sendmail", "/usr/lib/sendmail"];

static TOLD: OnceLock<SyncSender<Alert>> = OnceLock::new();

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Its name, as mdadm's.
    pub event: &'static str,
    /// The array.
    pub array: String,
    /// The member, if it is about one.
    pub member: Option<String>,
    /// The alert in words.
    pub text: String,
    /// It needs attention.
    pub attention: bool,
}

/// Starts to tell.
///
/// # Errors
/// If the program cannot be run, or mail cannot be sent from this machine.
pub fn begin(program: Option<&Path>, mail: Option<&str>) -> Outcome {
    let program = program.map(Path::to_owned);
    if let Some(program) = &program {
        let found = std::fs::metadata(program);
        let found = found.map_err(|e| Failure::new(format!("{}: {e}", program.display())))?;
        if !found.is_file() {
            return Err(Failure::new(format!("{}: it is no program", program.display())));
        }
    }
    let mail = match mail {
        None => None,
        Some(address) => {
            let sendmail = SENDMAIL.map(PathBuf::from).into_iter().find(|path| path.exists());
            if sendmail.is_none() {
                log_line("ALERT: no mail can be sent: there is no /usr/sbin/sendmail");
            }
            sendmail.map(|sendmail| (sendmail, address.to_owned()))
        }
    };
    if program.is_none() && mail.is_none() {
        return Ok(());
    }
    let (sender, alerts) = sync_channel::<Alert>(WAITING_MAX);
    let work = move || {
        for alert in alerts {
            if let Some(program) = &program {
                let arguments = [alert.event.into(), alert.array.clone().into()];
                let member = alert.member.clone().map(OsString::from);
                run(program, arguments.into_iter().chain(member), &alert.text, "");
            }
            if let Some((sendmail, address)) = mail.as_ref().filter(|_| alert.attention) {
                let text = letter(&alert, address);
                run(sendmail, ["-i".into(), "-t".into()].into_iter(), &alert.text, &text);
            }
        }
    };
    let thread = std::thread::Builder::new().name("weft-alerts".into()).spawn(work);
    thread.map_err(|e| Failure::new(format!("cannot start a thread: {e}")))?;
    let _ = TOLD.set(sender);
    Ok(())
}

/// Tells what happened, if anybody asked.
pub fn tell(alert: Alert) {
    let Some(sender) = TOLD.get() else { return };
    if let Err(TrySendError::Full(alert)) = sender.try_send(alert) {
        log_line(&format!(
            "ALERT: too many events wait for --program: {} is left out",
            alert.event
        ));
    }
}

/// The mail about an alert.
fn letter(alert: &Alert, address: &str) -> String {
    let Alert { event, array, text, .. } = alert;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim_end();
    format!(
        "To: {address}\nSubject: weft: {event} on {array}:{host}\nAuto-Submitted: auto-generated\n\
         Content-Type: text/plain; charset=utf-8\n\n{array}: {text}\n\n\
         `weft status {array}` on {host} shows its state now.\n"
    )
}

fn run(program: &Path, arguments: impl Iterator<Item = OsString>, text: &str, input: &str) {
    let mut command = Command::new(program);
    command.args(arguments).env("WEFT_MESSAGE", text).env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let ended = command.spawn().and_then(|mut child| {
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read it has ended, or wants nothing.
            let _ = stdin.write_all(input.as_bytes());
        }
        wait(&mut child)
    });
    match ended {
        Ok(None) => log_line(&format!("ALERT: {}: ended after 60 s", program.display())),
        Ok(Some(status)) if !status.success() => {
            log_line(&format!("ALERT: {}: {status}", program.display()));
        }
        Ok(_) => {}
        Err(e) => log_line(&format!("ALERT: {}: {e}", program.display())),
    }
}

/// How a program ended; `None`: it did not, and was killed.
fn wait(child: &mut Child) -> std::io::Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// The alerts for an event of an array, whose state afterwards is `status`, and in words `text`.
pub fn of_event(event: &Event, status: &Status, text: &str) -> Vec<Alert> {
    let alert = |event, member: Option<&String>, attention| Alert {
        event,
        array: status.name.clone(),
        member: member.cloned(),
        text: text.trim_start_matches("ALERT: ").to_owned(),
        attention,
    };
    let of_slot = |slot| status.slots.iter().find(|of| of.slot == slot).map(|of| of.disk.clone());
    match event {
        Event::MemberFailed { disk, .. } => {
            vec![alert("Fail", Some(disk), true), alert("DegradedArray", None, false)]
        }
        Event::ArrayBroken { .. } => vec![alert("ArrayFailed", None, true)],
        Event::RebuildStarted { disk, .. } => vec![alert("RebuildStarted", Some(disk), false)],
        Event::RebuildFinished { slot } => {
            let disk = of_slot(*slot);
            vec![
                alert("RebuildFinished", disk.as_ref(), false),
                alert("SpareActive", disk.as_ref(), false),
            ]
        }
        Event::MemberReturned { disk, .. } => vec![alert("MemberReturned", Some(disk), false)],
        Event::SpareFailed { disk, .. } | Event::ReplacementFailed { disk, .. } => {
            vec![alert("FailSpare", Some(disk), true)]
        }
        Event::NoSpace { disk, .. } => vec![alert("NoSpace", Some(disk), true)],
        Event::JobStalled { .. } => vec![alert("JobStalled", None, true)],
        Event::MetadataRepaired { disk, .. } => vec![alert("MetadataRepaired", Some(disk), true)],
        Event::ScrubFinished { mismatches, .. } if *mismatches > 0 => {
            vec![alert("MismatchesFound", None, true)]
        }
        Event::ScrubFinished { .. } => vec![alert("ScrubFinished", None, false)],
        _ => Vec::new(),
    }
}

/// The alert for an array that starts with fewer members than it should have.
pub fn of_start(status: &Status) -> Option<Alert> {
    let is_missing = |state| state != weft_array::MemberState::Active;
    status.slots.iter().any(|slot| is_missing(slot.state)).then(|| Alert {
        event: "DegradedArray",
        array: status.name.clone(),
        member: None,
        text: "started with members missing or being rebuilt".to_owned(),
        attention: true,
    })
}
