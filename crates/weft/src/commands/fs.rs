//! `weft fs`: creates and mounts file systems, and talks to mounted ones through attributes of their
//! root folder ([`weft_fuse::tree`]).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;

use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use weft_cli::disks::{Opener, absolute};
use weft_cli::failure::{ATTENTION, Failure, Outcome};
use weft_cli::output::{announce, answer, outln};
use weft_cli::{size, thread};
use weft_disk::Disk;
use weft_fs::{CreateOptions, Fs, FsError, MountOptions, Time};
use weft_fuse::{mount, tree};

use crate::cli::{
    FsAction, FsArgs, FsCreateArgs, FsFailArgs, FsMountArgs, FsPlaceArgs, FsSetArgs, FsckArgs,
};

/// Longest value of an attribute, in bytes.
const VALUE_MAX: usize = 64 << 10;

/// `weft fs`.
pub fn fs(args: &FsArgs, json: bool) -> Outcome {
    match &args.action {
        FsAction::Create(args) => create(args, json),
        FsAction::Mount(args) => mount(args),
        FsAction::Status(args) => status(args, json),
        FsAction::Set(args) => set(args),
        FsAction::Fail(args) => fail(args),
        FsAction::Rebuild(args) => rebuild(args, json),
        FsAction::Fsck(args) => fsck(args, json),
    }
}

fn now() -> Time {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Time { s: i64::try_from(since.as_secs()).unwrap_or(0), ns: since.subsec_nanos() }
}

fn failed(error: FsError) -> Failure {
    Failure::new(error.to_string())
}

async fn open_all(opener: &Opener, places: &[String]) -> Result<Vec<Rc<dyn Disk>>, Failure> {
    let mut disks = Vec::with_capacity(places.len());
    for place in places {
        disks.push(opener.open(place, false).await?);
    }
    Ok(disks)
}

fn create(args: &FsCreateArgs, json: bool) -> Outcome {
    let places = args.disks.iter().map(|disk| absolute(disk)).collect::<Result<Vec<_>, _>>()?;
    let options = CreateOptions {
        name: args.name.clone(),
        redundancy: args.redundancy,
        slice_bytes: args.metadata,
        force: args.force,
        id: thread::random()?,
        now: now(),
    };
    let name = args.name.clone();
    let count = places.len();
    thread::run(move |opener: Opener| async move {
        let disks = open_all(&opener, &places).await?;
        weft_fs::create(&opener.rt, &disks, &options).await.map_err(failed)
    })?;
    if json {
        return answer(&json!({ "name": name, "disks": count }));
    }
    outln!("created file system '{name}' on {count} disks");
    outln!("mount it: weft fs mount FOLDER {}", args.disks.join(" "));
    Ok(())
}

fn mount(args: &FsMountArgs) -> Outcome {
    let places = args.disks.iter().map(|disk| absolute(disk)).collect::<Result<Vec<_>, _>>()?;
    let folder = std::path::absolute(&args.folder)
        .map_err(|e| Failure::new(format!("{}: {e}", args.folder.display())))?;
    if !folder.is_dir() {
        return Err(Failure::new(format!("{} is not a folder", folder.display())));
    }
    let options = MountOptions {
        degraded: args.degraded,
        cache_bytes: args.cache,
        nonce: u64::from_le_bytes(thread::random()?),
        now: now(),
    };
    thread::run(move |opener: Opener| async move {
        let disks = open_all(&opener, &places).await?;
        let fs = Fs::mount(&opener.rt, &disks, options).await.map_err(failed)?;
        let channel = mount::mount_on(&folder, &fs.label().name)?;
        let on = folder.clone();
        thread::on_signals(move |_, _| mount::unmount_from(&on))?;
        announce(&format!("file system '{}' is mounted on {}", fs.label().name, folder.display()));
        let served =
            tree::serve(opener.rt.clone(), opener.ring, OwnedFd::from(channel), fs.clone()).await;
        let unmounted = fs.unmount().await.map_err(failed);
        served.map_err(|e| Failure::new(format!("/dev/fuse: {e}")))?;
        unmounted
    })
}

/// Reads an attribute of a mounted file system's root folder.
fn ask(folder: &Path, name: &str) -> Result<Value, Failure> {
    let mut value = vec![0; VALUE_MAX];
    let read = rustix::fs::getxattr(folder, name, &mut value[..]);
    let len = read.map_err(|e| not_reached(folder, e))?;
    let text = &value[..len];
    serde_json::from_slice(text).map_err(|e| Failure::new(format!("{}: {e}", folder.display())))
}

fn not_reached(folder: &Path, error: rustix::io::Errno) -> Failure {
    let failure = Failure::new(format!("{}: {error}", folder.display()));
    match error {
        rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => {
            failure.hint("give the folder on which a weft file system is mounted, as root")
        }
        _ => failure,
    }
}

fn status(args: &FsPlaceArgs, json: bool) -> Outcome {
    let status = ask(&args.folder, tree::STATUS)?;
    if json {
        return answer(&status);
    }
    let bytes = |value: &Value| size::show(value.as_u64().unwrap_or(0));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    outln!("file system '{}', {} files", text(&status["name"]), status["inodes"]);
    for disk in status["disks"].as_array().into_iter().flatten() {
        let state = match (disk["lost"].as_bool(), disk["present"].as_bool()) {
            (Some(true), Some(false)) => "missing: `weft fs rebuild` does without it",
            (Some(true), _) => "lost: `weft fs rebuild` does without it",
            _ => "in use",
        };
        let (free, all) = (bytes(&disk["free_bytes"]), bytes(&disk["data_bytes"]));
        outln!(
            "  disk {:<3} {free} of {all} free, {state}  {}",
            disk["number"],
            text(&disk["name"])
        );
    }
    for space in status["space"].as_array().into_iter().flatten() {
        outln!("  left for {:<6} {}", text(&space["redundancy"]), bytes(&space["free_bytes"]));
    }
    let (meta, most) = (bytes(&status["metadata_bytes"]), bytes(&status["metadata_bytes_max"]));
    outln!("  metadata {meta} of {most}");
    let count = |name: &str| status[name].as_u64().unwrap_or(0);
    let (wrong, unreadable) = (count("wrong_blocks"), count("unreadable_blocks"));
    if wrong + unreadable > 0 {
        let repaired = count("repaired_blocks");
        outln!("  blocks: {wrong} wrong, {unreadable} unreadable, {repaired} repaired");
    }
    Ok(())
}

fn set(args: &FsSetArgs) -> Outcome {
    let value = args.redundancy.to_string();
    for file in &args.files {
        let set = rustix::fs::setxattr(
            file,
            "user.weft.redundancy",
            value.as_bytes(),
            XattrFlags::empty(),
        );
        set.map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
    }
    Ok(())
}

fn fail(args: &FsFailArgs) -> Outcome {
    let number = args.disk.to_string();
    rustix::fs::setxattr(&args.folder, tree::FAIL, number.as_bytes(), XattrFlags::empty())
        .map_err(|e| not_reached(&args.folder, e))?;
    outln!("disk {number} is out of service: `weft fs rebuild` moves what it held to the others");
    Ok(())
}

fn rebuild(args: &FsPlaceArgs, json: bool) -> Outcome {
    let report = ask(&args.folder, tree::REBUILD)?;
    if json {
        answer(&report)?;
    } else {
        outln!("{} blocks rebuilt; disks that left: {}", report["blocks"], report["removed_disks"]);
    }
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    let (damaged, waiting) = (count("damaged_files"), count("waiting_files"));
    if damaged + waiting == 0 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{damaged} files had too little redundancy and are damaged; {waiting} wait for room or disks"
    ))
    .with_code(ATTENTION))
}

fn fsck(args: &FsckArgs, json: bool) -> Outcome {
    let name = if args.data { tree::CHECK_DATA } else { tree::CHECK };
    let report = ask(&args.folder, name)?;
    let findings = report["findings"].as_u64().unwrap_or(0);
    if json {
        answer(&report)?;
    } else {
        outln!(
            "{} inodes, {} blocks read: {findings} findings",
            report["inodes"],
            report["blocks"]
        );
        for finding in report["first_findings"].as_array().into_iter().flatten() {
            let what = finding["what"].as_str().unwrap_or_default();
            outln!("  inode {}: {what}", finding["inode"]);
        }
    }
    if findings == 0 { Ok(()) } else { Err(Failure::said(ATTENTION)) }
}
