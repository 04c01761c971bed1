//! The answer of `weft status --check`: whether users are served, and whether anything needs
//! attention.
//!
//! | what status shows | users | verdict |
//! |---|---|---|
//! | healthy; replacing, reshaping, resyncing, scrubbing in progress | served | fine |
//! | read errors that were repaired; clients or devices that know an earlier size | served | fine |
//! | stopped by command, served with `--read-only` | as was asked | fine |
//! | degraded, rebuilding | served | attention |
//! | maintenance paused | served, but no spare is taken and nothing is repaired | attention |
//! | the last scrub left mismatches or unreadable sectors | served | attention |
//! | a member or spare whose file or device node has gone | served until the stop | attention |
//! | a spare that is too small | served | attention |
//! | a disk that is not used, and should be | served | attention |
//! | a dead block device that nothing uses | – | attention |
//! | writes wait for space below a member | writes hang | unavailable |
//! | broken, data lost, stopped by an error, not started | errors | unavailable |
//! | a dead block device that is in use | errors | unavailable |

use weft_array::{ArrayState, MemberState, Status};
use weft_cli::failure::{ATTENTION, DATA_UNAVAILABLE, Failure, Outcome};

use crate::block::attachment::Via;
use crate::control::protocol::{ServedArray, Snapshot};

/// Something that `--check` reports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// [`ATTENTION`] or [`DATA_UNAVAILABLE`].
    code: u8,
    /// What is wrong.
    what: String,
    /// What to do about it.
    hint: String,
}

/// Fails with everything that is wrong; the exit code and the hint are those of the worst.
pub fn check(snapshot: &Snapshot) -> Outcome {
    let mut findings = findings(snapshot);
    // The order of equally bad ones stays.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.code));
    let Some(worst) = findings.first() else { return Ok(()) };
    let all: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
    Err(Failure::new(all.join("; ")).with_code(worst.code).hint(worst.hint.clone()))
}

fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for array in &snapshot.arrays {
        of_array(array, &mut findings);
    }
    let mut add = |code, what, hint| findings.push(Finding { code, what, hint });
    for array in snapshot.not_started.iter().filter(|array| !array.stopped) {
        let hint = array.hint.clone().unwrap_or_else(|| SEE.to_owned());
        add(
            DATA_UNAVAILABLE,
            format!("failed: {} is not started: {}", array.name, array.why),
            hint,
        );
    }
    for device in &snapshot.dead_devices {
        let (code, first) = match device.user {
            Some(_) => (DATA_UNAVAILABLE, "unmount or close it, then "),
            None => (ATTENTION, ""),
        };
        if device.via != Via::Fuse {
            let what = format!("failed: {} (block device without a daemon)", device.array);
            add(code, what, "start `weft serve` for its array".to_owned());
            continue;
        }
        let what = format!("failed: {} (dead block device)", device.array);
        add(code, what, format!("{first}`weft detach {}`", device.array));
    }
    for disk in snapshot.unused.iter().filter(|disk| disk.attention) {
        let hint = disk.hint.clone().unwrap_or_else(|| SEE.to_owned());
        add(ATTENTION, format!("disks need attention: {}: {}", disk.disk, disk.why), hint);
    }
    if snapshot.arrays.is_empty() && snapshot.not_started.is_empty() {
        let hint = "`weft start DISK` starts the array of a disk".to_owned();
        add(ATTENTION, "no array is being served".to_owned(), hint);
    }
    findings
}

const SEE: &str = "`weft status` shows what is wrong";

/// What is wrong with an array that is served.
fn of_array(served: &ServedArray, findings: &mut Vec<Finding>) {
    let status = &served.status;
    let name = &status.name;
    let mut add = |code, what, hint| findings.push(Finding { code, what, hint });
    let is_lost = status.redundancy_remaining.is_none();
    if is_lost || matches!(status.state, ArrayState::Broken | ArrayState::Stopped) {
        let why = status.broken.as_ref().map_or_else(String::new, |cause| format!(" ({cause})"));
        let hint = format!("`weft status {name}` shows what can still be read");
        add(DATA_UNAVAILABLE, format!("failed: {name}{why}"), hint);
        // What else is wrong follows from that.
        return;
    }
    if let Some(slot) = status.slots.iter().find(|slot| slot.wants_room_bytes > 0) {
        let hint = format!(
            "free some in the file system of {}, or `weft fail {name} {}`",
            slot.disk, slot.slot
        );
        add(DATA_UNAVAILABLE, format!("writes wait for space: {name}"), hint);
    }
    let resume = || format!("`weft rebuild {name} resume` ends the pause");
    let reduced = || format!("redundancy is reduced: {name}");
    match status.state {
        ArrayState::Degraded | ArrayState::Rebuilding if status.paused => {
            add(ATTENTION, format!("{}, and maintenance is paused", reduced()), resume());
        }
        ArrayState::Rebuilding => {
            let hint = format!("`weft rebuild {name}` follows the rebuild to its end");
            add(ATTENTION, reduced(), hint);
        }
        ArrayState::Degraded => add(ATTENTION, reduced(), for_degraded(status)),
        _ if status.paused => add(ATTENTION, format!("maintenance is paused: {name}"), resume()),
        _ => {}
    }
    for spare in &status.spares_too_small {
        let hint = format!("`weft remove {name} {spare}`, and `weft add` a larger disk");
        add(ATTENTION, format!("a spare is too small: {name}"), hint);
    }
    for gone in &served.vanished {
        let slot = status.slots.iter().find(|slot| slot.disk == gone.disk);
        let hint = match slot {
            Some(slot) => {
                format!("`weft replace {name} {} NEWDISK` saves what it holds", slot.slot)
            }
            None => format!("`weft remove {name} {}`, and add another spare", gone.disk),
        };
        add(ATTENTION, format!("disks need attention: {}: {}", gone.disk, gone.what), hint);
    }
    let scrub = status.scrub.as_ref().filter(|scrub| !scrub.running);
    if let Some(scrub) = scrub.filter(|scrub| scrub.mismatches > scrub.repaired) {
        let what = format!("mismatches: {name} ({})", super::status::scrub(scrub));
        add(ATTENTION, what, format!("`weft scrub {name} --repair` repairs them"));
    } else if let Some(scrub) = scrub.filter(|scrub| scrub.unreadable > 0) {
        let what = format!("unreadable sectors: {name} ({})", super::status::scrub(scrub));
        let hint = format!("`weft status {name}` shows which disks have errors: replace them");
        add(ATTENTION, what, hint);
    }
}

/// What a degraded array needs that is not being rebuilt.
fn for_degraded(status: &Status) -> String {
    let name = &status.name;
    let missing = status.slots.iter().find(|slot| slot.state == MemberState::Missing);
    let back = match missing.filter(|slot| !slot.disk.is_empty()) {
        Some(slot) => format!("connect {} again, or ", slot.disk),
        None => String::new(),
    };
    if status.spares.len() == status.spares_too_small.len() {
        format!("{back}`weft add {name} DISK` adds a disk to rebuild onto")
    } else {
        format!("`weft status {name}` shows its spares; the daemon's log shows why none is used")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A healthy array, with these fields of its status and of itself changed.
    fn snapshot(status: &Value, array: &Value, all: &Value) -> Snapshot {
        let slot = |slot: usize| {
            json!({
                "slot": slot, "state": "active", "disk": format!("/dev/sd{slot}"),
                "read_errors": 0, "repaired": 0, "stale_regions": 0, "replacement": null,
                "wants_room_bytes": 0,
            })
        };
        let mut base = json!({
            "name": "t", "id": "0", "code": "raid5", "layout": "left-symmetric",
            "redundancy_remaining": 1, "redundancy_exact": true, "state": "healthy",
            "broken": null, "unreadable": [], "size_bytes": 1 << 30, "unit_bytes": 65536,
            "sector_bytes": 512, "consistency": "ppl", "write_hole_closed": true,
            "slots": [slot(0), slot(1), slot(2)], "spares": [], "paused": false,
            "jobs": [], "rebuild": null, "scrub": null, "last_rebuild": null,
            "throttle": { "min_bytes_s": 0, "max_bytes_s": null }, "seq": 1,
            "regions": { "region_bytes": 1, "total": 1, "written": 0, "dirty": 0, "resync": 0 },
        });
        merge(&mut base, status);
        let mut served = json!({
            "status": base, "disks": [], "nbd_uris": [], "attached": false, "read_only": false,
        });
        merge(&mut served, array);
        let mut whole = json!({
            "daemon_version": "1", "daemon_pid": 1, "arrays": [served], "not_started": [],
        });
        merge(&mut whole, all);
        serde_json::from_value(whole).expect("a snapshot")
    }

    /// Sets what `change` has in `base`; an object in a list's place changes its first element.
    fn merge(base: &mut Value, change: &Value) {
        let Value::Object(change) = change else { return };
        for (key, value) in change {
            match (&mut base[key.as_str()], value) {
                (Value::Array(list), Value::Object(_)) => merge(&mut list[0], value),
                (place, _) => *place = value.clone(),
            }
        }
    }

    #[test]
    fn every_state_has_its_verdict_and_a_hint_that_fits() {
        let none = json!({});
        let gone = |disk: &str| json!({ "vanished": [{ "disk": disk, "what": "deleted" }] });
        let scrub = |mismatches: u64, repaired: u64, unreadable: u64, running: bool| {
            json!({ "scrub": {
                "mode": "check", "running": running, "complete": true, "stripes": 9,
                "mismatches": mismatches, "repaired": repaired, "unreadable": unreadable,
                "places": [], "ended_unix_s": 5,
            } })
        };
        let stopped = |stopped: bool| {
            json!({ "not_started": [{
                "name": "u", "id": "1", "why": "waiting", "hint": "plug it in", "stopped": stopped,
            }] })
        };
        let dead = |user: Option<&str>| json!({ "dead_devices": [{ "via": "fuse", "array": "u", "device": "/dev/loop1", "user": user }] });
        let unused = |attention: bool| {
            json!({ "unused": [{
                "disk": "/dev/sdx", "why": "write-protected", "hint": "let it be written",
                "attention": attention,
            }] })
        };
        let state = |state: &str| json!({ "state": state });
        let table: Vec<(Value, Value, Value, u8, &str)> = vec![
            // Users are served, and nothing needs anybody.
            (none.clone(), none.clone(), none.clone(), 0, ""),
            (state("resyncing"), none.clone(), none.clone(), 0, ""),
            (state("replacing"), none.clone(), none.clone(), 0, ""),
            (state("reshaping"), none.clone(), none.clone(), 0, ""),
            (json!({ "redundancy_remaining": 0 }), none.clone(), none.clone(), 0, ""),
            (
                json!({ "slots": { "read_errors": 2, "repaired": 2 } }),
                none.clone(),
                none.clone(),
                0,
                "",
            ),
            (none.clone(), json!({ "nbd_outdated": 1, "read_only": true }), none.clone(), 0, ""),
            (scrub(3, 3, 0, false), none.clone(), none.clone(), 0, ""),
            (scrub(3, 0, 0, true), none.clone(), none.clone(), 0, ""),
            (none.clone(), none.clone(), stopped(true), 0, ""),
            (none.clone(), none.clone(), unused(false), 0, ""),
            // They are served, and need attention.
            (state("degraded"), none.clone(), none.clone(), 3, "weft add t"),
            (state("rebuilding"), none.clone(), none.clone(), 3, "weft rebuild t`"),
            (
                json!({ "state": "degraded", "paused": true, "spares": ["/dev/sdz"] }),
                none.clone(),
                none.clone(),
                3,
                "weft rebuild t resume",
            ),
            (
                json!({ "state": "degraded", "spares": ["/dev/sdz"] }),
                none.clone(),
                none.clone(),
                3,
                "log shows why",
            ),
            (
                json!({
                    "state": "degraded",
                    "spares": ["/dev/sdz"],
                    "spares_too_small": ["/dev/sdz"],
                }),
                none.clone(),
                none.clone(),
                3,
                "weft add t",
            ),
            (
                json!({ "spares": ["/dev/sdz"], "spares_too_small": ["/dev/sdz"] }),
                none.clone(),
                none.clone(),
                3,
                "weft remove t /dev/sdz",
            ),
            (
                json!({ "state": "rebuilding", "paused": true }),
                none.clone(),
                none.clone(),
                3,
                "weft rebuild t resume",
            ),
            (json!({ "paused": true }), none.clone(), none.clone(), 3, "weft rebuild t resume"),
            (none.clone(), gone("/dev/sd1"), none.clone(), 3, "weft replace t 1"),
            (none.clone(), gone("/dev/sdz"), none.clone(), 3, "weft remove t /dev/sdz"),
            (scrub(3, 1, 0, false), none.clone(), none.clone(), 3, "--repair"),
            (scrub(0, 0, 1, false), none.clone(), none.clone(), 3, "replace them"),
            (none.clone(), none.clone(), unused(true), 3, "let it be written"),
            (none.clone(), none.clone(), dead(None), 3, "weft detach u"),
            (none.clone(), none.clone(), json!({ "arrays": [] }), 3, "weft start"),
            // They are not served, or not all of them.
            (
                json!({ "slots": { "wants_room_bytes": 4096 } }),
                none.clone(),
                none.clone(),
                4,
                "weft fail t 0",
            ),
            (
                json!({ "state": "degraded", "slots": { "wants_room_bytes": 1 } }),
                none.clone(),
                none.clone(),
                4,
                "free some",
            ),
            (
                json!({ "state": "broken", "broken": "too many" }),
                none.clone(),
                none.clone(),
                4,
                "weft status t",
            ),
            (
                json!({ "state": "degraded", "redundancy_remaining": null }),
                none.clone(),
                none.clone(),
                4,
                "weft status t",
            ),
            (state("stopped"), none.clone(), none.clone(), 4, "weft status t"),
            (none.clone(), none.clone(), stopped(false), 4, "plug it in"),
            (none.clone(), none.clone(), dead(Some("mounted on /mnt")), 4, "unmount"),
        ];
        for (status, array, all, code, hint) in table {
            let case = format!("{status} {array} {all}");
            let snapshot = snapshot(&status, &array, &all);
            match (check(&snapshot), code) {
                (Ok(()), 0) => {}
                (Err(failure), code) => {
                    assert_eq!(failure.code, code, "{case}: {failure}");
                    let said = failure.hint.clone().unwrap_or_default();
                    assert!(said.contains(hint), "{case}: {failure}");
                }
                (Ok(()), code) => panic!("{case}: fine instead of {code}"),
            }
            // An array with the headline "healthy" serves all its users.
            let text = super::super::status::snapshot(&snapshot, Default::default());
            assert!(code < 4 || !text.contains("· healthy\n") || status == none, "{case}: {text}");
        }
    }
}
