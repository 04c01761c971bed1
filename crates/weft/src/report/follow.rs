//! Following a job of the daemon to its end.

use std::time::Duration;

use weft_array::{JobKind, MemberState, Status};
use weft_cli::failure::Failure;
use weft_cli::interrupt::Interrupt;
use weft_cli::progress::Progress;

use crate::control::client::Client;
use crate::report::status;

/// Time between two queries.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// Follows the rebuilds and replacements of `array` until there are none; returns the state then.
///
/// # Errors
/// If a member is still missing, and nothing is going to change that.
pub fn rebuild(client: &mut Client, array: &str, silent: bool) -> Result<Status, Failure> {
    let end = replacement(client, array, silent)?;
    match end.slots.iter().find(|slot| slot.state == MemberState::Missing) {
        Some(slot) => {
            let (number, name) = (slot.slot, &end.name);
            Err(Failure::new(format!("slot {number} of {name} is missing, and there is no spare"))
                .hint(format!("add a disk: `weft add {name} DISK`")))
        }
        None => Ok(end),
    }
}

/// As [`rebuild`], but other members may be missing.
///
/// # Errors
/// If the array is broken.
pub fn replacement(client: &mut Client, array: &str, silent: bool) -> Result<Status, Failure> {
    let is_rebuilding = |status: &Status| {
        status
            .slots
            .iter()
            .any(|slot| slot.state == MemberState::Rebuilding || slot.replacement.is_some())
    };
    // A spare was just accepted: its rebuild is about to start.
    let may_start = |status: &Status| {
        !status.spares.is_empty()
            && status.slots.iter().any(|slot| slot.state == MemberState::Missing)
    };
    let mut patience = 20u32;
    let kinds = [JobKind::Rebuild, JobKind::Replace];
    let end = follow(client, array, &kinds, silent, |status| {
        if status.paused {
            return false;
        }
        if is_rebuilding(status) {
            return true;
        }
        // A reshape first comes to a checkpoint.
        patience -= u32::from(!status.reshaping);
        patience > 0 && may_start(status)
    })?;
    let waits = is_rebuilding(&end) || may_start(&end);
    match &end.broken {
        None if end.paused && waits => Err(Failure::new(format!(
            "maintenance of {} is paused: nothing is rebuilt, and no spare is used",
            end.name
        ))
        .hint(format!("`weft rebuild {} resume` resumes it", end.name))),
        Some(cause) => Err(Failure::new(format!("{} has failed: {cause}", end.name))
            .hint(format!("`weft status {}` shows what can still be read", end.name))),
        None => Ok(end),
    }
}

/// Follows a scrub to its end; returns the state then.
pub fn scrub(client: &mut Client, array: &str, silent: bool) -> Result<Status, Failure> {
    follow(client, array, &[JobKind::Scrub], silent, |status| {
        status.scrub.as_ref().is_some_and(|scrub| scrub.running)
    })
}

/// Follows a reshape, and rebuilds for which it waits, until it ends or is paused; returns the
/// state then.
pub fn reshape(client: &mut Client, array: &str, silent: bool) -> Result<Status, Failure> {
    follow(client, array, &[JobKind::Reshape, JobKind::Rebuild], silent, |status| {
        status.reshaping && !status.paused && status.broken.is_none()
    })
}

/// How to follow a job again, and how to end it.
fn again(kind: JobKind, array: &str) -> String {
    match kind {
        JobKind::Scrub => {
            format!("`weft scrub {array} wait` follows it, `weft scrub {array} cancel` cancels it")
        }
        JobKind::Reshape => format!(
            "`weft reshape {array} --wait` follows it, `weft reshape {array} --back` turns it back"
        ),
        JobKind::Rebuild | JobKind::Replace | JobKind::Resync => {
            format!("`weft rebuild {array}` follows it, `weft rebuild {array} pause` pauses it")
        }
    }
}

fn follow(
    client: &mut Client,
    array: &str,
    kinds: &[JobKind],
    silent: bool,
    mut goes_on: impl FnMut(&Status) -> bool,
) -> Result<Status, Failure> {
    let mut progress = Progress::new(kinds[0].name(), 1, silent);
    let interrupt = Interrupt::noted();
    let name = kinds[0].name();
    loop {
        interrupt.check(&format!("the {name} of {array}"), &again(kinds[0], array))?;
        let status = client.status_of(array)?.status;
        if !goes_on(&status) {
            return Ok(status);
        }
        if let Some(job) = status.jobs.iter().find(|job| kinds.contains(&job.kind)) {
            let line = status::job(job);
            // Of a job that the followed one waits for, the name is shown as well.
            let own = if kinds[0] == JobKind::Reshape { kinds[0] } else { job.kind }.name();
            let line = line.strip_prefix(own).unwrap_or(&line).trim_start();
            progress.at(job.stripes_done, job.stripes_total, line);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
