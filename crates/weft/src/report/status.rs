//! An array's state in words, the most important first: how many more disks it can lose.

use std::fmt::Write as _;
use std::time::Duration;

use weft_array::{
    ArrayState, ByteRange, JobStatus, MemberState, RebuildOrder, RebuildPolicy, RebuildStatus,
    SlotStatus, Status,
};
use weft_cli::{output, size, thread};

use crate::block::attachment::Via;
use crate::control::protocol::{DeadDevice, NotStarted, ServedArray, Snapshot, UnusedDisk};
use crate::report::io;

/// Hot zones shown with --watch.
const ZONES_SHOWN: usize = 5;

/// What to show of the arrays in addition to their state.
#[derive(Clone, Copy, Default)]
pub struct Details<'a> {
    /// The report is repeated: show what changes quickly.
    pub watched: bool,
    /// The I/O of each disk.
    pub io: bool,
    /// The previous report, and how long ago it was.
    pub before: Option<(&'a Snapshot, Duration)>,
}

/// Everything the daemon serves, for a terminal.
pub fn snapshot(snapshot: &Snapshot, details: Details<'_>) -> String {
    let snapshot = &visible(snapshot);
    let mut text = String::new();
    for served in &snapshot.arrays {
        text.push_str(&array(served, details.watched));
        if details.io {
            let before = details.before.and_then(|(before, since)| {
                let is_it = |other: &&ServedArray| other.status.id == served.status.id;
                Some((before.arrays.iter().find(is_it)?.disks.as_slice(), since))
            });
            text.push_str(&io::table(&served.disks, before));
        }
    }
    for NotStarted { name, id, why, hint, stopped } in &snapshot.not_started {
        let state = if *stopped { "stopped" } else { "NOT STARTED" };
        let _ = writeln!(text, "{name}: {state}\n  {why}");
        write_hint(&mut text, hint.as_deref());
        let _ = writeln!(text, "  id {id}");
    }
    for UnusedDisk { disk, why, hint, attention } in &snapshot.unused {
        let state = if *attention { "NOT USED" } else { "not used" };
        let _ = writeln!(text, "{disk}: {state}\n  {why}");
        write_hint(&mut text, hint.as_deref());
    }
    for device in &snapshot.dead_devices {
        text.push_str(&dead_device(device));
    }
    if text.is_empty() {
        text.push_str("no arrays\n");
    }
    text
}

/// The report with all names and messages on lines of their own, for any characters in them.
fn visible(snapshot: &Snapshot) -> Snapshot {
    fn escape(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) => *text = output::visible(text).into_owned(),
            serde_json::Value::Array(list) => list.iter_mut().for_each(escape),
            serde_json::Value::Object(fields) => fields.values_mut().for_each(escape),
            _ => {}
        }
    }
    let escaped = serde_json::to_value(snapshot).and_then(|mut value| {
        escape(&mut value);
        serde_json::from_value(value)
    });
    escaped.unwrap_or_else(|_| snapshot.clone())
}

fn write_hint(text: &mut String, hint: Option<&str>) {
    if let Some(hint) = hint {
        let _ = writeln!(text, "  → {hint}");
    }
}

/// A block device whose daemon has ended, and what to do about it.
pub fn dead_device(dead: &DeadDevice) -> String {
    let DeadDevice { via, array, device, user } = dead;
    let device =
        device.as_ref().map_or_else(|| "the block device".into(), |d| d.display().to_string());
    if *via != Via::Fuse {
        let user = user.as_ref().map_or_else(String::new, |user| format!("; it is {user}"));
        return format!(
            "{array}: ORPHANED BLOCK DEVICE: {device} has no daemon, and its users wait for one{user}\n  \
             → start `weft serve` for its array: nothing is lost; or `weft detach --force {array}` \
             removes it, and its users get errors\n"
        );
    }
    let mut text = format!(
        "{array}: DEAD BLOCK DEVICE: {device} returns only errors, as its daemon has ended"
    );
    let first = match user {
        Some(user) => {
            let _ = write!(text, "; it is still {user}");
            "unmount or close it, then "
        }
        None => "",
    };
    let _ = writeln!(text, "\n  → {first}`weft detach {array}`");
    text
}

/// How many more disks an array can lose, in words.
pub fn redundancy(status: &Status) -> String {
    let Some(spare_failures) = status.redundancy_remaining else {
        return "DATA LOST: more disks failed than the code survives".into();
    };
    if status.broken.is_some() {
        return "FAILED: too many members lost; writes stopped".into();
    }
    match spare_failures {
        0 if !status.redundancy_exact => "MAY NOT SURVIVE THE LOSS OF ANOTHER DISK".into(),
        0 if matches!(
            status.state,
            ArrayState::Healthy | ArrayState::Replacing | ArrayState::Reshaping
        ) =>
        {
            "cannot lose any disk".into()
        }
        0 => "CANNOT LOSE ANOTHER DISK".into(),
        n => format!("can lose {}", more_disks(n, status.redundancy_exact)),
    }
}

const WAITS_FOR_SPACE: &str = "WRITES WAIT FOR SPACE";

/// Whether writes wait for space below a member.
fn waits_for_space(status: &Status) -> bool {
    status.slots.iter().any(|slot| slot.wants_room_bytes > 0)
}

/// `n` more disks, or at least as many: `at least 2 more disks`.
pub fn more_disks(n: usize, exact: bool) -> String {
    let bound = if exact { "" } else { "at least " };
    format!("{bound}{n} more disk{}", if n == 1 { "" } else { "s" })
}

pub fn state(state: ArrayState) -> &'static str {
    match state {
        ArrayState::Healthy => "healthy",
        ArrayState::Resyncing => "resyncing",
        ArrayState::Degraded => "degraded",
        ArrayState::Rebuilding => "rebuilding",
        ArrayState::Replacing => "replacing a member",
        ArrayState::Reshaping => "moving to another geometry",
        ArrayState::Broken => "broken",
        ArrayState::Stopped => "stopped",
    }
}

fn array(served: &ServedArray, watched: bool) -> String {
    let status = &served.status;
    let state = match (status.state, waits_for_space(status)) {
        (ArrayState::Healthy, true) => WAITS_FOR_SPACE.to_owned(),
        (state, true) => format!("{} · {WAITS_FOR_SPACE}", self::state(state)),
        (state, false) => self::state(state).to_owned(),
    };
    let mut text = format!("{}: {} · {state}\n", status.name, redundancy(status));
    if status.paused {
        let spares = status.spares.len();
        let what = match spares {
            _ if status.state != ArrayState::Degraded => "no rebuild, resync or scrub runs",
            0 => "no rebuild starts",
            _ => "NO SPARE WILL BE USED",
        };
        let _ = writeln!(
            text,
            "  MAINTENANCE IS PAUSED: {what} until `weft rebuild {} resume`",
            status.name
        );
    }
    let hole = if status.write_hole_closed { "" } else { " (write hole open)" };
    let _ = writeln!(
        text,
        "  {} of {}, unit {}, consistency {}{hole}{}",
        size::show(status.size_bytes),
        status.code,
        size::show(status.unit_bytes),
        status.consistency,
        if served.read_only { ", read only" } else { "" }
    );
    if let Some(cause) = &status.broken {
        let _ = writeln!(text, "  {cause}");
        unreadable(&mut text, &status.unreadable);
    }
    for job in &status.jobs {
        let _ = writeln!(text, "  {}", self::job(job));
    }
    if let Some(rebuild) = &status.rebuild {
        self::rebuild(&mut text, rebuild, watched);
        if status.reshaping {
            text.push_str("  the move to another geometry goes on after the rebuild\n");
        }
    }
    for slot in &status.slots {
        self::slot(&mut text, served, slot);
    }
    if let Some(slot) = status.slots.iter().find(|slot| slot.wants_room_bytes > 0) {
        let _ = writeln!(
            text,
            "  writes wait for space: free some in the file system of {}, or `weft fail {} {}`",
            slot.disk, status.name, slot.slot
        );
    }
    for spare in &status.spares {
        self::spare(&mut text, served, spare);
    }
    if let Some(room) = unused_room(status) {
        let _ = writeln!(text, "  {room}");
    }
    if let Some(scrub) = status.scrub.as_ref().filter(|scrub| !scrub.running) {
        let when = ago(scrub.ended_unix_s);
        let _ = writeln!(text, "  last scrub{when}: {}", self::scrub(scrub));
    }
    if let Some(rebuild) = status.last_rebuild.filter(|_| status.rebuild.is_none()) {
        let (when, took) = (ago(Some(rebuild.ended_unix_s)), Duration::from_secs(rebuild.took_s));
        let _ = writeln!(text, "  last rebuild{when}: took {}", size::show_duration(took));
    }
    if let Some(cache) = &served.cache {
        let _ = writeln!(text, "  cache {}", super::cache::summary(cache));
    }
    for uri in &served.nbd_uris {
        let _ = writeln!(text, "  {uri}");
    }
    if let Some(clients) = outdated_clients(served.nbd_outdated) {
        let _ = writeln!(text, "  {clients}");
    }
    if served.attached {
        attachment(&mut text, served);
    }
    text
}

/// A slot, with what a person must know of its disk.
fn slot(text: &mut String, served: &ServedArray, slot: &SlotStatus) {
    let status = &served.status;
    let mut notes = String::new();
    if slot.read_errors > 0 {
        let _ = write!(notes, "  {} read errors, {} repaired", slot.read_errors, slot.repaired);
    }
    if let Some(disk) = &slot.replacement {
        let _ = write!(notes, "  being replaced by {disk}");
    }
    if slot.wants_room_bytes > 0 {
        let _ = write!(notes, "  NO SPACE: {} waiting", size::show(slot.wants_room_bytes));
    }
    for vanished in served.vanished.iter().filter(|vanished| vanished.disk == slot.disk) {
        let (name, number) = (&status.name, slot.slot);
        let _ = write!(
            notes,
            "\n           LOST WHEN WEFT STOPS: {}; `weft replace {name} {number} NEWDISK`",
            vanished.what
        );
    }
    let hardware = served.disks.iter().find(|disk| disk.disk == slot.disk);
    let label = hardware.and_then(|disk| disk.hardware.label());
    // If a person may have to find the disk.
    let trouble = slot.state != MemberState::Active || !notes.is_empty();
    let label = label.filter(|_| trouble).map_or_else(String::new, |l| format!(" [{l}]"));
    let last = match slot.state {
        MemberState::Missing if slot.disk.is_empty() => "no disk",
        MemberState::Missing => " (last known)",
        _ => "",
    };
    let _ = writeln!(
        text,
        "  slot {:<3} {:<11} {}{label}{last}{notes}",
        slot.slot, slot.state, slot.disk
    );
}

fn spare(text: &mut String, served: &ServedArray, spare: &str) {
    let status = &served.status;
    let vanished = served.vanished.iter().find(|vanished| vanished.disk == spare);
    let note = vanished
        .map_or_else(String::new, |vanished| format!("  LOST WHEN WEFT STOPS: {}", vanished.what));
    let small = match status.spares_too_small.iter().any(|small| small == spare) {
        true => {
            let (size, name) = (size::show(status.member_bytes), &status.name);
            format!("  TOO SMALL: {size} of each member are used; `weft remove {name} {spare}`")
        }
        false => String::new(),
    };
    let _ = writeln!(text, "  spare                {spare}{small}{note}");
}

/// The block device of an array that is attached.
fn attachment(text: &mut String, served: &ServedArray) {
    let status = &served.status;
    let device = served.block_device.as_ref();
    let path = device.and_then(|device| device.path.as_ref());
    let path = path.map_or_else(|| "a block device".into(), |path| path.display().to_string());
    let user = device.and_then(|device| device.user.as_ref());
    let user = user.map_or_else(String::new, |user| format!(", {user}"));
    let via = device.map_or("", |device| match device.via {
        Via::Ublk => " (ublk)",
        Via::Fuse => " (FUSE and loop)",
        Via::Nbd => " (NBD)",
    });
    let _ = writeln!(text, "  attached as {path}{via}{user}");
    let size = device.and_then(|device| device.size_bytes);
    if let Some(size) = size.filter(|size| *size != status.size_bytes) {
        let (size, name) = (size::show(size), &status.name);
        let what = match device.map(|device| device.via) {
            Some(Via::Ublk | Via::Nbd) => {
                format!("detach {name} and attach it again to get the new size")
            }
            _ => format!("`weft attach {name}`, as root, gives it the new size"),
        };
        let _ = writeln!(text, "  {path} still has {size}: {what}");
    }
}

/// Room of which a person is told, as a share of what is used of each member: disks of one kind
/// differ a little.
const ROOM_SHARE: u64 = 100;

/// The unused size of each member, and how to use it; `None` if that is not worth the words.
pub fn unused_room(status: &Status) -> Option<String> {
    let unused = status.unused_member_bytes;
    if unused == 0 || unused < status.member_bytes / ROOM_SHARE {
        return None;
    }
    let name = &status.name;
    Some(format!("{} more on each member: `weft grow {name} --size max`", size::show(unused)))
}

/// What NBD clients that know an earlier size must do; `None` if there are none.
pub fn outdated_clients(connections: usize) -> Option<String> {
    let clients = match connections {
        0 => return None,
        1 => "1 NBD connection has".to_owned(),
        n => format!("{n} NBD connections have"),
    };
    Some(format!("{clients} an earlier size: clients see the new one when they connect again"))
}

/// How long ago something ended, in brackets; empty if it is not known.
fn ago(ended_unix_s: Option<u64>) -> String {
    let since = ended_unix_s.filter(|at| *at > 0).map(|at| thread::unix_s().saturating_sub(at));
    let words = |s| format!(" ({} ago)", size::show_duration(Duration::from_secs(s)));
    since.map_or_else(String::new, words)
}

/// The policy of a rebuild, and what users gain from it so far.
fn rebuild(text: &mut String, rebuild: &RebuildStatus, watched: bool) {
    let _ = write!(text, "  order {}, pace {}", rebuild.order, rebuild.policy.pace);
    let counts = &rebuild.counts;
    if counts.stripes_piggybacked > 0 {
        let _ = write!(text, "; {} stripes rebuilt from user I/O", counts.stripes_piggybacked);
    }
    text.push('\n');
    if let Some(share) = rebuild.redirected_share {
        let percent = share * 100.0;
        let _ = writeln!(
            text,
            "  {percent:.0} % of recent reads of lost data no longer need reconstruction"
        );
    }
    if rebuild.hot_zones_total > 0 && rebuild.order == RebuildOrder::Popularity {
        let _ = writeln!(text, "  {} hot zones left to rebuild", rebuild.hot_zones_total);
        let shown = if watched { ZONES_SHOWN } else { 0 };
        for zone in rebuild.hot_zones.iter().take(shown) {
            let _ = writeln!(
                text,
                "    {} at {}: {:.1} recent accesses",
                size::show(zone.length_bytes),
                size::show(zone.offset_bytes),
                zone.popularity
            );
        }
    }
}

/// A rebuild policy in a line.
pub fn policy(policy: &RebuildPolicy) -> String {
    let seconds = Duration::from_millis(policy.half_life_ms).as_secs_f64();
    format!(
        "rebuilds: order {}, pace {}, piggyback {}; slices of {} stripes, {} zones of {}, half-life {seconds} s{}",
        policy.order,
        policy.pace,
        policy.piggyback,
        policy.slice_stripes,
        policy.zones,
        policy.zone_stripes,
        if policy.preemptive { ", preemptive" } else { "" }
    )
}

fn unreadable(text: &mut String, ranges: &[ByteRange]) {
    if ranges.is_empty() {
        text.push_str("  all written data can still be read\n");
    }
    for ByteRange { offset_bytes, length_bytes } in ranges.iter().take(8) {
        let length = size::show(*length_bytes);
        let _ = writeln!(text, "  unreadable: {length} from byte {offset_bytes}");
    }
    if ranges.len() > 8 {
        let _ = writeln!(text, "  … and at least {} more ranges (see --json)", ranges.len() - 8);
    }
}

/// The result of a scrub, in words.
pub fn scrub(report: &weft_array::ScrubReport) -> String {
    let mut text = format!("{} mismatches in {} stripes", report.mismatches, report.stripes);
    if !report.running && !report.complete {
        text.push_str(" (ended early)");
    }
    if report.repaired > 0 {
        let _ = write!(text, ", {} repaired", report.repaired);
    }
    if report.unreadable > 0 {
        let _ = write!(text, ", {} unreadable", report.unreadable);
    }
    text
}

/// A job in one line: its progress, its rate, and the time left at that rate.
pub fn job(job: &JobStatus) -> String {
    let mut text = format!("{} {}", job.kind, percent(job));
    if job.paused {
        text.push_str(", paused");
        return text;
    }
    if let Some(rate) = job.rate_bytes_s {
        let _ = write!(text, ", {} on each disk", size::show_rate(rate));
    }
    if let Some(eta) = job.eta_s {
        let _ = write!(text, ", {} left", size::show_duration(Duration::from_secs(eta)));
    }
    text
}

/// Its progress, rounded down: 100 % means done.
pub fn percent(job: &JobStatus) -> String {
    let tenths = match job.stripes_total {
        0 => 1000,
        total => u128::from(job.stripes_done.min(total)) * 1000 / u128::from(total),
    };
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use weft_array::JobKind;

    use super::*;

    /// A degraded array with nothing else to report.
    fn served() -> ServedArray {
        let slot = |slot: usize, state: &str| {
            serde_json::json!({
                "slot": slot, "state": state, "disk": format!("/dev/sd{slot}"), "read_errors": 0,
                "repaired": 0, "stale_regions": 0, "replacement": null, "wants_room_bytes": 0,
            })
        };
        let disk = |slot: usize| {
            serde_json::json!({
                "disk": format!("/dev/sd{slot}"), "role": "member", "slot": slot, "io": null,
                "hardware": {
                    "kind": "block-device", "url": null, "serial": format!("S{slot}X"),
                    "model": "Maker 8T", "wwn": null,
                },
            })
        };
        let text = serde_json::json!({
            "status": {
                "name": "t", "id": "0", "code": "lrc:4,2,1", "layout": "left-symmetric",
                "redundancy_remaining": 2, "redundancy_exact": true, "state": "degraded",
                "broken": null, "unreadable": [], "size_bytes": 1 << 30, "unit_bytes": 65536,
                "sector_bytes": 512, "consistency": "ppl", "write_hole_closed": true,
                "slots": [slot(0, "active"), slot(1, "missing")], "spares": [], "paused": false,
                "jobs": [], "rebuild": null, "scrub": null, "last_rebuild": null,
                "throttle": { "min_bytes_s": 0, "max_bytes_s": null }, "seq": 1,
                "regions": { "region_bytes": 1, "total": 1, "written": 0, "dirty": 0, "resync": 0 },
            },
            "disks": [disk(0), disk(1)], "nbd_uris": [], "attached": false, "read_only": false,
        });
        serde_json::from_value(text).expect("an array")
    }

    #[test]
    fn a_missing_disk_is_named_by_its_printed_label() {
        let text = array(&served(), false);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("  slot")).collect();
        let missing = "  slot 1   missing     /dev/sd1 [Maker 8T, serial S1X] (last known)";
        assert_eq!(lines, ["  slot 0   active      /dev/sd0", missing]);
    }

    #[test]
    fn a_bound_is_said_to_be_one() {
        let mut served = served();
        assert!(array(&served, false).starts_with("t: can lose 2 more disks · degraded\n"));
        served.status.redundancy_exact = false;
        assert!(array(&served, false).starts_with("t: can lose at least 2 more disks ·"));
        served.status.redundancy_remaining = Some(1);
        assert!(array(&served, false).starts_with("t: can lose at least 1 more disk ·"));
        served.status.redundancy_remaining = Some(0);
        assert!(array(&served, false).starts_with("t: MAY NOT SURVIVE THE LOSS OF ANOTHER DISK"));
    }

    #[test]
    fn progress_never_lies() {
        let at = |stripes_done, stripes_total| {
            let (kind, rate_bytes_s, eta_s) = (JobKind::Scrub, None, None);
            percent(&JobStatus {
                kind,
                stripes_total,
                stripes_done,
                rate_bytes_s,
                eta_s,
                paused: false,
            })
        };
        assert_eq!(at(0, 7), "0.0 %");
        assert_eq!(at(99_999, 100_000), "99.9 %");
        assert_eq!(at(100_000, 100_000), "100.0 %");
        // A job that grew shorter while it ran is done, not more than done.
        assert_eq!(at(101, 100), "100.0 %");
        assert_eq!(at(0, 0), "100.0 %");
    }
}
