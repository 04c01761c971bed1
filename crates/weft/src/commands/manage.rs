//! Commands by which the daemon changes an array.

use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};
use weft_array::{MemberState, RebuildPolicy};
use weft_cli::disks::{DiskAddress, absolute};
use weft_cli::failure::{ATTENTION, Failure, Outcome};
use weft_cli::output::{self, outln};
use weft_cli::size;

use crate::cli::{
    AddArgs, FailArgs, NewDiskArgs, RebuildAction, RebuildArgs, RemoveArgs, ReplaceArgs,
    ScrubAction, ScrubArgs, StartArgs, StopArgs, ThrottleArgs,
};
use crate::control::client::Client;
use crate::control::protocol::{NewDisk, Request, StartTarget};
use crate::members::require;
use crate::report;
use crate::runtime_dir::RuntimeDir;

/// Prints the result: a line for people, or the daemon's answer for programs.
pub(super) fn done(json: bool, line: &str, answer: &Value) -> Outcome {
    if json {
        return output::answer(answer);
    }
    outln!("{line}");
    Ok(())
}

/// The redundancy of an array after a change, in words.
fn now(client: &mut Client, array: &str) -> Result<String, Failure> {
    let status = client.status_of(array)?.status;
    Ok(format!("{} {}", status.name, report::status::redundancy(&status)))
}

/// `weft fail`.
pub fn fail(args: &FailArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let (array, member) = (args.array.clone(), args.member.clone());
    let dry_run = args.dry_run;
    let answer: Value = client.ask(Request::Fail { array, member, dry_run })?;
    let disk = answer["disk"].as_str().unwrap_or("?");
    let line = if dry_run {
        let left = answer["redundancy_remaining"].as_u64().and_then(|n| usize::try_from(n).ok());
        let left = match (left, answer["redundancy_exact"] != false) {
            (Some(0), true) => "the array could then lose no more disks".to_owned(),
            (Some(n), exact) => {
                format!("the array could then lose {}", report::status::more_disks(n, exact))
            }
            (None, _) => "the array would lose data".to_owned(),
        };
        format!("{disk} can be taken out of service: {left}; nothing was changed")
    } else {
        format!("{disk} taken out of service; {}", now(&mut client, &args.array)?)
    };
    done(json, &line, &answer)
}

/// `weft add`.
pub fn add(args: &AddArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let (disk, new_file) = bring(&args.new, args.dry_run)?;
    let array = args.array.clone();
    let answer: Value = client.ask(Request::Add { array, disk })?;
    new_file.keep();
    let line = if let Some(slot) = answer["slot"].as_u64() {
        let verb = if args.dry_run { "can go" } else { "is" };
        let only = "only regions written since it left are rebuilt";
        let changed = if args.dry_run { "; nothing was changed" } else { "" };
        format!("{} {verb} back in slot {slot}: {only}{changed}", args.new.disk)
    } else if args.dry_run {
        format!("{} can be added; nothing was changed", args.new.disk)
    } else {
        format!("{} added as a spare; {}", args.new.disk, now(&mut client, &args.array)?)
    };
    done(json, &line, &answer)
}

/// `weft replace`.
pub fn replace(args: &ReplaceArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let (disk, new_file) = bring(&args.new, args.dry_run)?;
    let (array, member) = (args.array.clone(), args.member.clone());
    let before = client.status_of(&args.array)?.status;
    let answer: Value = client.ask(Request::Replace { array, member, disk })?;
    new_file.keep();
    let slot = &answer["slot"];
    if args.dry_run {
        let line = format!("{} can replace slot {slot}; nothing was changed", args.new.disk);
        return done(json, &line, &answer);
    }
    if args.no_wait {
        return done(json, &format!("slot {slot} is being replaced by {}", args.new.disk), &answer);
    }
    let end = report::follow::replacement(&mut client, &args.array, json)?;
    let number = slot.as_u64().and_then(|slot| usize::try_from(slot).ok());
    let unchanged = |slot: usize| {
        let (old, new) = (&before.slots[slot], &end.slots[slot]);
        old.state == MemberState::Active && (&old.disk, &old.state) == (&new.disk, &new.state)
    };
    if number.is_some_and(unchanged) {
        return Err(Failure::new(format!("{} could not replace slot {slot}", args.new.disk))
            .hint("the old member stays, and nothing is lost; the daemon's log shows why"));
    }
    let now = now(&mut client, &args.array)?;
    let room = report::status::unused_room(&end);
    let room = room.map_or_else(String::new, |room| format!("\n  {room}"));
    done(json, &format!("slot {slot} is now {}; {now}{room}", args.new.disk), &answer)
}

/// The disk as the daemon should open it; a file that does not exist is created if `size` is given.
fn bring(new: &NewDiskArgs, dry_run: bool) -> Result<(NewDisk, crate::members::NewFiles), Failure> {
    let disk = &new.disk;
    if new.size.is_none() {
        require(disk)?;
    }
    let mut new_files = crate::members::NewFiles::default();
    if let (Some(size), DiskAddress::Path(path)) = (new.size, DiskAddress::of(disk)) {
        if dry_run && !Path::new(&path).exists() {
            return Err(Failure::usage(format!("{disk} does not exist"))
                .hint("--dry-run creates nothing; leave out --size, or create the file"));
        }
        new_files.create_if_missing(&path, size)?;
        if !new.sparse {
            crate::members::reserve(std::iter::once(path.as_path()), dry_run)?;
        }
    }
    Ok((NewDisk { place: absolute(disk)?, force: new.force, dry_run }, new_files))
}

/// `weft rebuild`.
pub fn rebuild(args: &RebuildArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let array = args.array.clone();
    let change = args.policy.change();
    if change.is_some() {
        let policy: RebuildPolicy =
            client.ask(Request::RebuildPolicy { array: array.clone(), change })?;
        let answer = serde_json::to_value(&policy).map_err(|e| Failure::new(e.to_string()))?;
        if args.action.is_none() {
            return done(json, &report::status::policy(&policy), &answer);
        }
    }
    let pause = match args.action.unwrap_or(RebuildAction::Wait) {
        RebuildAction::Wait => {
            let before = client.status_of(&array)?.status;
            let end = report::follow::rebuild(&mut client, &array, json)?;
            let whole = |slot: &weft_array::SlotStatus| slot.state == MemberState::Active;
            let what =
                if before.slots.iter().all(whole) { "nothing to rebuild" } else { "rebuilt" };
            let line = format!("{what}; {array} {}", report::status::redundancy(&end));
            return done(
                json,
                &line,
                &json!({
                    "redundancy_remaining": end.redundancy_remaining,
                    "redundancy_exact": end.redundancy_exact,
                }),
            );
        }
        RebuildAction::Pause => true,
        RebuildAction::Resume => false,
    };
    let answer: Value = client.ask(Request::PauseRebuild { array: array.clone(), pause })?;
    let line = if pause {
        format!(
            "maintenance of {array} is paused until `weft rebuild {array} resume`, or until the \
             array is stopped: if a disk fails, no spare is taken"
        )
    } else {
        "maintenance resumed".to_owned()
    };
    done(json, &line, &answer)
}

/// `weft scrub`.
pub fn scrub(args: &ScrubArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let starts = matches!(args.action, None | Some(ScrubAction::Start | ScrubAction::Restart));
    if !starts && (args.repair || args.no_wait) {
        let option = if args.repair { "--repair" } else { "--no-wait" };
        return Err(Failure::usage(format!("{option} applies only when a scrub is started")).hint(
            format!("`weft scrub {} restart {option}` starts from the beginning", args.array),
        ));
    }
    let mut client = Client::connect(dir)?;
    let array = args.array.clone();
    match args.action.unwrap_or(ScrubAction::Start) {
        action @ (ScrubAction::Start | ScrubAction::Restart) => {
            if action == ScrubAction::Restart {
                let _: Value = client.ask(Request::CancelScrub { array: array.clone() })?;
            }
            let _: Value =
                client.ask(Request::StartScrub { array: array.clone(), repair: args.repair })?;
            if args.no_wait {
                return done(json, "scrub started", &json!({ "started": true }));
            }
            report::follow::scrub(&mut client, &array, json)?;
            scrub_result(&mut client, &array, json)
        }
        ScrubAction::Wait => {
            report::follow::scrub(&mut client, &array, json)?;
            scrub_result(&mut client, &array, json)
        }
        ScrubAction::Cancel => {
            let answer: Value = client.ask(Request::CancelScrub { array })?;
            let line = match answer["cancelled"].as_bool() {
                Some(true) => "scrub cancelled",
                _ => "no scrub was running",
            };
            done(json, line, &answer)
        }
        ScrubAction::Status => scrub_result(&mut client, &array, json),
    }
}

/// Prints the results of the scrub; exit code 3 if mismatches or unreadable sectors are left.
fn scrub_result(client: &mut Client, array: &str, json: bool) -> Outcome {
    let status = client.status_of(array)?.status;
    let Some(scrub) = &status.scrub else {
        return Err(Failure::new(format!("{} has not been scrubbed yet", status.name))
            .hint(format!("`weft scrub {}` starts a scrub", status.name)));
    };
    if json {
        output::answer(scrub)?;
    } else if scrub.running {
        let job = status.jobs.iter().find(|job| job.kind == weft_array::JobKind::Scrub);
        outln!("{}", job.map_or_else(|| "scrub running".into(), report::status::job));
    } else {
        outln!("{}: {}", status.name, report::status::scrub(scrub));
    }
    for place in scrub.places.iter().filter(|_| !json) {
        let where_ = match place.slot {
            Some(slot) => format!("slot {slot} disagrees with the other slots"),
            None => "data and redundancy disagree".into(),
        };
        outln!("  stripe {} (byte {}): {where_}", place.stripe, place.offset_bytes);
    }
    if scrub.running {
        return Ok(());
    }
    let name = &status.name;
    let (what, hint) = match (scrub.mismatches > scrub.repaired, scrub.unreadable > 0) {
        (true, _) => {
            let hint = format!("`weft scrub {name} --repair` repairs them");
            (format!("{name} has mismatches"), hint)
        }
        (false, true) => {
            let hint = format!(
                "`weft status {name}` shows which disks have errors or no space: free space, or replace them"
            );
            (format!("{name} has sectors that cannot be read or repaired"), hint)
        }
        (false, false) => return Ok(()),
    };
    Err(Failure::new(what).with_code(ATTENTION).hint(hint))
}

/// `weft throttle`.
pub fn throttle(args: &ThrottleArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    if args.min.zip(args.max).is_some_and(|(min, max)| min > max) {
        return Err(Failure::usage("--min is more than --max"));
    }
    let mut client = Client::connect(dir)?;
    let (array, min_bytes_s, max_bytes_s) = (args.array.clone(), args.min, args.max);
    let latency_us = args.latency;
    let request = Request::Throttle { array, min_bytes_s, max_bytes_s, latency_us };
    let answer: Value = client.ask(request)?;
    let min = answer["min_bytes_s"].as_u64().unwrap_or(0);
    let max = answer["max_bytes_s"].as_u64();
    let max =
        max.map_or_else(|| "unlimited".into(), |max| format!("at most {}", size::show_rate(max)));
    let target = match answer["latency_us"].as_u64() {
        Some(us) => format!("; user requests aim at {}.{:03} ms on average", us / 1000, us % 1000),
        None => String::new(),
    };
    let text =
        format!("maintenance: at least {}, {max} on each disk{target}", size::show_rate(min));
    done(json, &text, &answer)
}

/// `weft stop`.
pub fn stop(args: &StopArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let answer: Value =
        client.ask(Request::Stop { array: args.array.clone(), keep_devices: args.keep_devices })?;
    // The daemon waits for its connections to close.
    drop(client);
    if args.array.is_none() {
        wait_for_end(dir);
    }
    done(json, "stopped cleanly", &answer)
}

/// `weft start`.
pub fn start(args: &StartArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let target = |text: &String| {
        Ok::<_, Failure>(StartTarget { text: text.clone(), place: absolute(text)? })
    };
    let targets = args.targets.iter().map(target).collect::<Result<_, _>>()?;
    let StartArgs { force_degraded, consistency, dry_run, .. } = *args;
    let wait_s = args.wait.map(|wait| wait.as_secs());
    let request = Request::Start { targets, force_degraded, consistency, wait_s, dry_run };
    let answer: Value = client.ask(request)?;
    let mut lines = Vec::new();
    for array in answer["arrays"].as_array().into_iter().flatten() {
        let name = array["name"].as_str().unwrap_or("?");
        let missing: Vec<&str> =
            array["missing"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if dry_run {
            let without = match missing.as_slice() {
                [] => String::new(),
                missing => format!(" without {}", missing.join(", ")),
            };
            lines.push(format!("{name} would be started{without}; nothing was changed"));
        } else {
            lines.push(format!("started; {}", now(&mut client, name)?));
        }
    }
    done(json, &lines.join("\n"), &answer)
}

/// `weft remove`.
pub fn remove(args: &RemoveArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let (array, member) = (args.array.clone(), args.member.clone());
    let dry_run = args.dry_run;
    let answer: Value = client.ask(Request::Remove { array, member, dry_run })?;
    let disk = answer["disk"].as_str().unwrap_or("?");
    let line = match (answer["slot"].as_u64(), dry_run) {
        (None, false) => format!("{disk} is no longer a spare; its label is erased"),
        (None, true) => format!("{disk} can be removed; nothing was changed"),
        (Some(slot), false) => format!("slot {slot} is empty; the array forgot {disk}"),
        (Some(_), true) => format!("{disk} can be forgotten; nothing was changed"),
    };
    done(json, &line, &answer)
}

/// The daemon has answered and is ending: waits until its lock is free.
fn wait_for_end(dir: &RuntimeDir) {
    let Ok(lock) = File::open(dir.path().join("daemon.lock")) else { return };
    let _ = rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared);
}
