//! The daemon's log: one line a fact, on standard error, where systemd and shells look for it.

use weft_array::{Array, ArrayState, Event, MemberState};

use crate::output::errln;
use crate::report::status::redundancy;
use crate::size;

/// Writes a line.
pub fn line(text: &str) {
    errln!("weft: {text}");
}

/// Writes a line about an array.
pub fn about(array: &str, text: &str) {
    line(&format!("{array}: {text}"));
}

/// Says how an array stands as it is started; loudly, if something is missing.
pub fn started(array: &Array) {
    let status = array.status();
    let name = &status.name;
    let (size, code) = (size::show(status.size_bytes), &status.code);
    about(name, &format!("{size} of {code}, {}", redundancy(&status)));
    for slot in status.slots.iter().filter(|slot| slot.state != MemberState::Active) {
        let (number, state, disk) = (slot.slot, &slot.state, &slot.disk);
        let disk = if disk.is_empty() { String::new() } else { format!(" ({disk})") };
        about(name, &format!("ALERT: slot {number} is {state}{disk}"));
    }
    if status.state == ArrayState::Degraded && status.spares.is_empty() {
        about(name, &format!("ALERT: no spare; give it a disk with `weft add {name} DISK`"));
    }
}

/// Says what happened to an array, and how it then stands if that changed.
pub fn event(array: &Array, event: &Event) {
    let status = array.status();
    let now = redundancy(&status);
    let text = match event {
        Event::MemberFailed { slot, disk, cause } => {
            let paused = if status.paused {
                format!(
                    "; maintenance is paused, so no spare is taken: `weft rebuild {} resume`",
                    status.name
                )
            } else {
                String::new()
            };
            format!("ALERT: slot {slot} ({disk}) failed: {cause}; {now}{paused}")
        }
        Event::ArrayBroken { cause } => {
            format!("ALERT: no more writes, one failure was too many: {cause}")
        }
        Event::ReadErrorRepaired { slot, offset, len } => {
            format!("slot {slot}: {len} unreadable bytes at {offset} repaired from redundancy")
        }
        Event::NoSpace { slot, disk } => format!(
            "ALERT: slot {slot} ({disk}) has no space left, and writes wait for it: free some, or `weft fail {} {slot}`",
            status.name
        ),
        Event::RebuildStarted { slot, disk } => format!("rebuilding slot {slot} onto {disk}"),
        Event::MemberReturned { slot, disk, stale_regions } => format!(
            "{disk} is back in slot {slot}; {stale_regions} regions were written since it left, and are rebuilt"
        ),
        Event::ReplaceStarted { slot, disk } => {
            format!("copying slot {slot} to {disk}, its replacement")
        }
        Event::ReplaceFinished { slot, disk } => {
            format!("slot {slot} is {disk} now; its old disk is free")
        }
        Event::ReplacementFailed { slot, disk, cause } => {
            format!(
                "ALERT: {disk}, the replacement of slot {slot}, failed: {cause}; the slot's member stays"
            )
        }
        Event::RebuildFinished { slot } => format!("slot {slot} is rebuilt; {now}"),
        Event::ResyncStarted { regions } => {
            format!("parity may not match the data: resync of {regions} regions")
        }
        Event::ResyncFinished => "resync is done".to_owned(),
        Event::ScrubFinished { mismatches, repaired } => {
            format!("scrub is done: {mismatches} mismatches, {repaired} repaired")
        }
        Event::JobStalled { job, cause } => format!("ALERT: {job} cannot go on: {cause}"),
        Event::SpareFailed { disk, cause } => {
            format!("ALERT: the spare {disk} failed ({cause}) and was removed; replace it")
        }
        Event::SpareAdded { disk } => format!("{disk} is a spare"),
    };
    about(&status.name, &text);
}
