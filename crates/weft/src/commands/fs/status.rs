//! `weft fs status`: the state of a mounted file system, and what needs attention.

use serde_json::{Value, json};
use weft_cli::failure::{ATTENTION, Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_cli::size;
use weft_fuse::control;

use super::ask;
use crate::cli::{FsPlaceArgs, FsStatusArgs};

pub(super) fn status(args: &FsStatusArgs, json: bool) -> Outcome {
    if let Some(at) = &args.cluster {
        let name = args.folder.to_string_lossy();
        return super::cluster::status(&name, (at, &args.disks), args.check, json);
    }
    let mut status = ask(&args.folder, control::STATUS)?;
    let attention = attention(&status, &args.folder.display().to_string());
    match json {
        true => {
            status["attention"] = attention.clone().into();
            answer(&status)?;
        }
        false => print(&status, &attention),
    }
    match args.check && !attention.is_empty() {
        true => Err(Failure::said(ATTENTION)),
        false => Ok(()),
    }
}

/// `weft fs df`.
pub(super) fn df(args: &FsPlaceArgs, json: bool) -> Outcome {
    let status = ask(&args.folder, control::STATUS)?;
    if json {
        return answer(&json!({ "space": status["space"] }));
    }
    print_space(&status, "");
    Ok(())
}

/// The problems, and what to do about each.
fn attention(status: &Value, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(why) = status["stopped"].as_str() {
        found.push(format!("the file system has stopped: {why}; unmount it and mount it again"));
    }
    for disk in status["disks"].as_array().into_iter().flatten() {
        if disk["lost"] == true {
            let number = &disk["number"];
            found.push(match disk["back_as"].as_u64() {
                Some(back) => format!(
                    "disk {number} was lost and is back as disk {back}: the writes that it missed are rebuilt on it: \
                     `weft fs rebuild {folder}` shows the progress"
                ),
                None => format!(
                    "disk {number} is lost{}, and its data is rebuilt on the other disks: `weft fs rebuild \
                     {folder}` shows the progress; if it works again, `weft fs add {folder} DISK` takes it back",
                    disk["lost_because"].as_str().map_or(String::new(), |why| format!(" ({why})"))
                ),
            });
        }
    }
    for disk in status["disks"].as_array().into_iter().flatten() {
        let name = disk["name"].as_str().unwrap_or_default();
        if disk["through_keeper"] == true {
            found.push(format!(
                "this node does not reach {name}, and uses it through the keeper, which is slower: check the \
                 path to it, then unmount this node and mount it again"
            ));
        }
        for node in disk["relayed_for"].as_array().into_iter().flatten() {
            found.push(format!(
                "node {node} does not reach {name}, and uses it through this keeper: check its path to the \
                 disk, then mount it again"
            ));
        }
    }
    for node in status["nodes"].as_array().into_iter().flatten() {
        if let Some(epoch) = node["lost_early_commits"].as_u64() {
            found.push(format!(
                "node {} (epoch {epoch}) died together with a keeper, with --early-commit: what its programs \
                 had synced in the last seconds may be missing. Check their files; the note goes when the node \
                 is next unmounted",
                node["number"]
            ));
        }
    }
    let count = |of: &Value, name: &str| of[name].as_u64().unwrap_or(0);
    found.extend(lack_of_room(&status["job"], folder));
    let last = &status["last_job"];
    let job = last["job"].as_str().unwrap_or_default();
    if let Some(why) = last["error"].as_str().filter(|_| last["cancelled"] != true) {
        found.push(format!("the last {job} failed: {why}"));
    }
    let (damaged, waiting) = (count(last, "damaged_files"), count(last, "waiting_files"));
    if damaged > 0 {
        found.push(format!("{damaged} files have blocks that the last {job} could not read"));
    }
    match job {
        _ if waiting == 0 => {}
        "remove" => found.push(format!(
            "{waiting} files found no room on other disks, so the disk stays: `weft fs add {folder} \
             DISK`, then remove it again"
        )),
        _ => found.push(format!(
            "{waiting} files wait for room or disks: `weft fs add {folder} DISK`, and the {job} goes on"
        )),
    }
    let bad = count(status, "wrong_blocks") + count(status, "unreadable_blocks");
    if bad > count(status, "repaired_blocks") {
        found.push(format!(
            "blocks were wrong or unreadable: `weft fs scrub {folder}` repairs them"
        ));
    }
    if count(status, "metadata_wrong_pages") > count(status, "metadata_repaired_pages") {
        found.push(
            "pages of the metadata are wrong on all copies: copy all readable files, and create the file \
             system again"
                .into(),
        );
    }
    let (rows, most) = (count(status, "metadata_bytes"), count(status, "metadata_bytes_max"));
    if rows > most / 10 * 9 {
        found.push("the metadata is nearly full: there can be few more files".into());
    }
    let (copies, wanted) =
        (count(status, "metadata_copies"), count(status, "metadata_copies_wanted"));
    if copies < wanted {
        found.push(format!(
            "{copies} of {wanted} copies of the metadata are complete: working disks get theirs back; \
             to replace a lost one: `weft fs add {folder} DISK`"
        ));
    }
    found
}

/// What a running job has too little room for, and what to do about it.
pub(super) fn lack_of_room(job: &Value, folder: &str) -> Option<String> {
    let blocks = job["lacking_blocks"].as_u64().filter(|blocks| *blocks > 0)?;
    Some(format!(
        "the {} lacks room for {} on the working disks: `weft fs add {folder} DISK`, and it goes on",
        job["job"].as_str().unwrap_or_default(),
        size::show(blocks.saturating_mul(weft_fs::BLOCK_BYTES))
    ))
}

fn print(status: &Value, attention: &[String]) {
    let bytes = |value: &Value| size::show(value.as_u64().unwrap_or(0));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let health = if attention.is_empty() { "healthy" } else { "needs attention" };
    outln!("file system '{}': {health}, {} files", text(&status["name"]), status["inodes"]);
    if status["read_only"] == true {
        outln!("  mounted read-only: nothing is written to its disks");
    }
    attention.iter().for_each(|what| outln!("  ! {what}"));
    for disk in status["disks"].as_array().into_iter().flatten() {
        let state = match (disk["lost"].as_bool(), disk["present"].as_bool()) {
            (Some(true), _) if disk["back_as"].is_u64() => "back",
            (Some(true), Some(false)) => "missing",
            (Some(true), _) => "lost",
            _ if disk["leaving"] == true => "being emptied",
            _ => "in use",
        };
        let (free, all) = (bytes(&disk["free_bytes"]), bytes(&disk["data_bytes"]));
        let bad = match disk["bad_blocks"].as_u64().unwrap_or(0) {
            0 => String::new(),
            bad => format!(", {bad} bad blocks"),
        };
        let copy = match disk["metadata"].as_str() {
            Some("filling") => ", copy of the metadata being made",
            Some("none") => ", no copy of the metadata",
            _ => "",
        };
        let larger = match disk["unused_bytes"].as_u64().unwrap_or(0) {
            0 => String::new(),
            more => format!(", {} more: `weft fs grow`", size::show(more)),
        };
        outln!(
            "  disk {:<3} {free} of {all} free, {state}{bad}{copy}{larger}  {}",
            disk["number"],
            text(&disk["name"])
        );
    }
    print_job(status);
    print_space(status, "  ");
    let (meta, most) = (bytes(&status["metadata_bytes"]), bytes(&status["metadata_bytes_max"]));
    let copies = &status["metadata_copies"];
    outln!("  metadata {meta} of {most}, copies {copies} of {}", status["metadata_copies_wanted"]);
    let count = |name: &str| status[name].as_u64().unwrap_or(0);
    let wrong = count("metadata_wrong_pages");
    if wrong > 0 {
        outln!(
            "  metadata: {wrong} copies of pages wrong, {} repaired",
            count("metadata_repaired_pages")
        );
    }
    let (wrong, unreadable) = (count("wrong_blocks"), count("unreadable_blocks"));
    if wrong + unreadable + count("moved_blocks") > 0 {
        let (repaired, moved) = (count("repaired_blocks"), count("moved_blocks"));
        outln!(
            "  blocks: {wrong} wrong, {unreadable} unreadable, {repaired} repaired, {moved} moved"
        );
    }
}

/// What is left for which redundancy.
fn print_space(status: &Value, margin: &str) {
    for space in status["space"].as_array().into_iter().flatten() {
        let redundancy = space["redundancy"].as_str().unwrap_or_default();
        let free = size::show(space["free_bytes"].as_u64().unwrap_or(0));
        let limit = match space["limited_by_metadata"] == true {
            true => "  (the metadata has room for no more)",
            false => "",
        };
        outln!("{margin}left for {redundancy:<6} {free}{limit}");
    }
}

/// What runs.
fn print_job(status: &Value) {
    let job = &status["job"];
    if let (Some(name), Some(done)) = (job["job"].as_str(), job["done_blocks"].as_u64()) {
        let total = job["total_blocks"].as_u64().unwrap_or(0);
        let bytes = |blocks: u64| size::show(blocks.saturating_mul(weft_fs::BLOCK_BYTES));
        outln!("  {name}: {} of {}", bytes(done), bytes(total));
    }
}
