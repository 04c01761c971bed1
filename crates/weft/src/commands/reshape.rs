//! `weft reshape`, `weft grow`, `weft shrink`.

use std::cmp::Ordering;

use serde_json::json;
use weft_array::reshape::ReshapePlan;
use weft_array::superblock::Shape;
use weft_array::{GrowthPlan, Status};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{self, outln};
use weft_cli::size;
use weft_ublk::device::can_resize;

use crate::block::attachment::Attachment;
use crate::cli::{HowArgs, ReshapeArgs, ShrinkArgs, UsedSize};
use crate::control::client::Client;
use crate::control::protocol::Request;
use crate::report;
use crate::runtime_dir::RuntimeDir;

fn shape(shape: &Shape) -> String {
    format!("{} of {} disks, unit {}", shape.code, shape.slots, size::show(shape.unit_bytes))
}

fn show(array: &str, plan: &ReshapePlan) {
    outln!("{array}: {} becomes {}", shape(&plan.from), shape(&plan.to));
    let (before, after) = (size::show(plan.size_bytes), size::show(plan.new_size_bytes));
    outln!("  {before} become {after}; written data is moved");
    if plan.new_size_bytes < plan.size_bytes {
        outln!("  data beyond the first {after} is discarded");
    }
}

/// What has become of a block device, and the next step. Some devices cannot get another size.
fn device_line(device: &str, resizes: bool, before: u64, after: u64) -> Option<String> {
    match after.cmp(&before) {
        Ordering::Greater if !resizes => Some(format!(
            "{device} keeps its size, as this kernel cannot resize ublk devices: detach the array \
             and attach it again"
        )),
        Ordering::Less => Some(format!("{device} is smaller now: {}", size::show(after))),
        Ordering::Equal => None,
        Ordering::Greater => Some(format!(
            "{device} gets the new size; enlarge its file system: `resize2fs {device}`, …"
        )),
    }
}

/// What users of the array must do to use its new size; it had `before` bytes.
fn show_users(client: &mut Client, array: &str, before: u64, dir: &RuntimeDir) -> Outcome {
    let served = client.status_of(array)?;
    if let Some(clients) = report::status::outdated_clients(served.nbd_outdated) {
        outln!("  {clients}");
    }
    let attachment = Attachment::of(dir, &served.status.name, served.ublk());
    let attachment = attachment.filter(|_| served.attached);
    if let Some(device) = attachment.and_then(|attachment| attachment.device()) {
        let device = device.display().to_string();
        let resizes = served.ublk().is_none() || can_resize();
        if let Some(line) = device_line(&device, resizes, before, served.status.size_bytes) {
            outln!("  {line}");
        }
    }
    Ok(())
}

/// `weft reshape`.
pub fn reshape(args: &ReshapeArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let array = args.array.clone();
    if args.back {
        return turn_back(&mut client, &array, args.how.no_wait, json);
    }
    if let Some(size) = args.size {
        return grow(&mut client, &array, size, args.how.dry_run, dir, json);
    }
    if args.wait {
        return follow(&mut client, &array, dir, json);
    }
    let request = Request::Reshape {
        array: array.clone(),
        code: args.code.clone(),
        unit_bytes: args.unit,
        add: args.add,
        remove: 0,
        used_bytes: args.how.used,
        dry_run: args.how.dry_run,
    };
    carry_out(&mut client, &array, request, &args.how, dir, json)
}

/// `weft shrink`.
pub fn shrink(args: &ShrinkArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    if args.disks == 0 {
        return Err(Failure::usage("--disks: give the number of disks to remove, at least 1"));
    }
    let array = args.array.clone();
    let request = Request::Reshape {
        array: array.clone(),
        code: None,
        unit_bytes: None,
        add: None,
        remove: args.disks,
        used_bytes: args.how.used,
        dry_run: args.how.dry_run,
    };
    carry_out(&mut Client::connect(dir)?, &array, request, &args.how, dir, json)
}

fn carry_out(
    client: &mut Client,
    array: &str,
    request: Request,
    how: &HowArgs,
    dir: &RuntimeDir,
    json: bool,
) -> Outcome {
    let HowArgs { dry_run, no_wait, .. } = *how;
    let plan: ReshapePlan = client.ask(request)?;
    let answer = || json!({ "plan": plan, "done": !dry_run });
    if !json {
        show(array, &plan);
    }
    if dry_run {
        if !json {
            outln!("nothing was changed");
            return Ok(());
        }
        return output::answer(&answer());
    }
    if !no_wait {
        let end = report::follow::reshape(client, array, json)?;
        check_end(array, &end)?;
        if end.size_bytes != plan.new_size_bytes {
            return Err(Failure::new(format!("the reshape of {array} was turned back")));
        }
    }
    if json {
        return output::answer(&answer());
    }
    if no_wait {
        outln!("it goes on in the background: `weft status {array}` shows how far it is");
    } else {
        outln!("done");
        show_users(client, array, plan.size_bytes, dir)?;
        if plan.to.slots < plan.from.slots {
            outln!("the disks removed are spares now: `weft remove {array} DISK` takes one out");
        }
    }
    Ok(())
}

/// `weft grow --size`.
fn grow(
    client: &mut Client,
    array: &str,
    used: UsedSize,
    dry_run: bool,
    dir: &RuntimeDir,
    json: bool,
) -> Outcome {
    let request = Request::Grow { array: array.to_owned(), member_bytes: used.bytes(), dry_run };
    let plan: GrowthPlan = client.ask(request)?;
    if json {
        return output::answer(&json!({ "growth": plan, "done": !dry_run }));
    }
    let [before, after] = [plan.member_bytes, plan.new_member_bytes].map(size::show);
    outln!("{array}: {before} of each disk become {after}");
    let [before, after] = [plan.size_bytes, plan.new_size_bytes].map(size::show);
    outln!("  {before} become {after}");
    if plan.beyond_map_bytes > 0 {
        let beyond = size::show(plan.beyond_map_bytes);
        outln!("  {beyond} more on each disk stay unused: the region map has no room for them");
    }
    for spare in &plan.spares_too_small {
        outln!("  the spare {} is too small then, and is not used", output::visible(spare));
    }
    if dry_run {
        outln!("nothing was changed");
        return Ok(());
    }
    outln!("done");
    show_users(client, array, plan.size_bytes, dir)
}

/// `weft reshape --wait`.
fn follow(client: &mut Client, array: &str, dir: &RuntimeDir, json: bool) -> Outcome {
    let before = client.status_of(array)?.status;
    let was_running = before.reshaping;
    if was_running {
        check_end(array, &report::follow::reshape(client, array, json)?)?;
    }
    if json {
        return output::answer(&json!({ "done": true }));
    }
    if was_running {
        outln!("done");
        return show_users(client, array, before.size_bytes, dir);
    }
    outln!("no reshape of {array} is running");
    Ok(())
}

/// `weft reshape --back`.
fn turn_back(client: &mut Client, array: &str, no_wait: bool, json: bool) -> Outcome {
    let _: serde_json::Value = client.ask(Request::TurnReshape { array: array.to_owned() })?;
    if !no_wait {
        check_end(array, &report::follow::reshape(client, array, json)?)?;
    }
    if json {
        return output::answer(&json!({ "done": true }));
    }
    if no_wait {
        outln!("it moves back: `weft status {array}` shows how far it is");
    } else {
        outln!("{array} has its former geometry again");
    }
    Ok(())
}

fn check_end(array: &str, end: &Status) -> Outcome {
    if end.reshaping {
        return Err(Failure::new(format!("{array} has not been moved completely"))
            .hint("it goes on once that is possible: `weft status` shows what it waits for"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::device_line;

    #[test]
    fn a_device_that_became_smaller_asks_for_no_larger_file_system() {
        let line = |before, after| device_line("/dev/loop3", true, before, after);
        let kept = device_line("/dev/ublkb0", false, 1, 2).expect("a line");
        assert!(kept.contains("keeps its size"), "{kept}");
        assert_eq!(device_line("/dev/ublkb0", false, 1, 1), None);
        assert!(line(1 << 30, 2 << 30).is_some_and(|line| line.contains("resize2fs /dev/loop3")));
        let smaller = line(2 << 30, 1 << 30).expect("it has changed");
        assert!(smaller.contains("smaller") && !smaller.contains("enlarge"), "{smaller}");
        assert_eq!(line(1 << 30, 1 << 30), None);
    }
}
