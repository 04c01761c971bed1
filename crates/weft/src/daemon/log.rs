//! The daemon's log: one line per fact, on standard error, where systemd and shells expect it.

use std::path::Path;

use weft_array::{Array, ArrayState, Event, MemberState};
use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_cli::size;

use crate::daemon::alerts;
use crate::report::status::redundancy;

/// Writes a line about an array.
pub fn about(array: &str, text: &str) {
    log_line(&format!("{array}: {text}"));
}

/// Logs that a block device that an earlier daemon left is not taken over.
pub fn not_taken_over(array: &str, device: &Path, failure: &Failure) {
    about(
        array,
        &format!(
            "ALERT: {} is not taken over, and its users wait: {failure} (`weft attach {array}` tries \
             again, `weft detach --force {array}` removes it)",
            device.display()
        ),
    );
}

/// Logs the state of an array at its start, with an ALERT for missing members.
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
    alerts::of_start(&status).into_iter().for_each(alerts::tell);
    if status.state == ArrayState::Degraded && status.spares.is_empty() {
        about(name, &format!("ALERT: no spare; add a disk with `weft add {name} DISK`"));
    }
}

/// Logs what happened to an array, and its redundancy if that changed.
pub fn event(array: &Array, event: &Event) {
    let status = array.status();
    let now = redundancy(&status);
    let text = match event {
        Event::MemberFailed { slot, disk, cause } => {
            let paused = if status.paused {
                format!(
                    "; no spare is used while maintenance is paused: `weft rebuild {} resume`",
                    status.name
                )
            } else {
                String::new()
            };
            format!("ALERT: slot {slot} ({disk}) failed: {cause}; {now}{paused}")
        }
        Event::ArrayBroken { cause } => {
            format!("ALERT: array failed, too many members lost; writes stopped: {cause}")
        }
        Event::ReadErrorRepaired { slot, offset, len } => {
            format!("slot {slot}: repaired {len} unreadable bytes at {offset} from redundancy")
        }
        Event::MetadataRepaired { disk, what } => {
            format!(
                "ALERT: {disk} was damaged and is repaired: {what}; something else wrote to it?"
            )
        }
        Event::NoSpace { slot, disk } => format!(
            "ALERT: slot {slot} ({disk}) has no space left, and writes wait: free some space, or `weft fail {} {slot}`",
            status.name
        ),
        Event::RebuildStarted { slot, disk } => format!("rebuilding slot {slot} onto {disk}"),
        Event::MemberReturned { slot, disk, stale_regions } => {
            format!("{disk} is back in slot {slot}; {stale_regions} regions to rebuild")
        }
        Event::ReplaceStarted { slot, disk } => {
            format!("replacing slot {slot}: copying it to {disk}")
        }
        Event::ReplaceFinished { slot, disk } => {
            format!("slot {slot} is now {disk}; its old disk is free")
        }
        Event::ReplacementFailed { slot, disk, cause } => {
            format!(
                "ALERT: {disk}, the replacement of slot {slot}, failed: {cause}; the old member stays"
            )
        }
        Event::RebuildFinished { slot } => format!("slot {slot} rebuilt; {now}"),
        Event::ResyncStarted { regions } => {
            format!("parity may not match the data: resyncing {regions} regions")
        }
        Event::ResyncFinished => "resync finished".to_owned(),
        Event::ScrubFinished { mismatches, repaired } => {
            format!("scrub finished: {mismatches} mismatches, {repaired} repaired")
        }
        Event::ReshapeStarted { from, to, slots } => {
            format!("reshaping: {from} becomes {to} on {slots} disks")
        }
        Event::ReshapeTurned { to, slots, .. } => {
            format!("reshape turned back: it becomes {to} on {slots} disks again")
        }
        Event::ReshapeFinished { size_bytes } => format!(
            "moved to {}; the size is {} now, which NBD clients see when they connect again",
            status.code,
            size::show(*size_bytes)
        ),
        Event::Grown { size_bytes, member_bytes } => format!(
            "{} of each disk are used now; the size is {}, which NBD clients see when they connect again",
            size::show(*member_bytes),
            size::show(*size_bytes)
        ),
        Event::JobStalled { job, cause } => format!("ALERT: {job} stalled: {cause}"),
        Event::SpareFailed { disk, cause } => {
            format!("ALERT: spare {disk} failed ({cause}) and was removed; add another")
        }
        Event::SpareAdded { disk } => format!("{disk} added as a spare"),
    };
    about(&status.name, &text);
    alerts::of_event(event, &status, &text).into_iter().for_each(alerts::tell);
}
