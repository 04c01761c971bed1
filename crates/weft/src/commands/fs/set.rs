//! `weft fs set`: gives files another redundancy.
//!
//! Root has the daemon do it as a job, which shows how far it is and goes on if the command ends.
//! Others, and root while another job runs, set an attribute of each file, which returns when it is
//! done.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::answer;
use weft_fs::Job;
use weft_fuse::control;

use super::{ask, follow, require_weftfs, tell};
use crate::cli::FsSetArgs;

/// What shows and sets the redundancy of a file.
const REDUNDANCY: &str = "user.weft.redundancy";
/// Files that one job is told of: an attribute has 64 KiB at most.
const FILES_MAX: usize = 2000;

pub(super) fn set(args: &FsSetArgs, json: bool) -> Outcome {
    let redundancy = args.redundancy.to_string();
    let mut blocks = 0;
    let mut jobs: BTreeMap<PathBuf, Vec<u64>> = BTreeMap::new();
    for file in &args.files {
        let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", file.display()));
        let ino = file.metadata().map_err(failed)?.ino();
        jobs.entry(mounted_on(file).map_err(failed)?).or_default().push(ino);
    }
    let may_begin =
        |folder: &Path| ask(folder, control::STATUS).map(|status| status["job"].is_null());
    let is_job = jobs.keys().map(|folder| may_begin(folder)).collect::<Result<Vec<_>, _>>();
    if args.background {
        is_job?;
        if let Some(many) = jobs.values().find(|inos| inos.len() > FILES_MAX) {
            let why = format!("{} files are too many for one job", many.len());
            return Err(Failure::new(why).hint("name fewer, or leave --background out"));
        }
        for (folder, inos) in &jobs {
            let wanted = json!({ "inodes": inos, "redundancy": redundancy });
            tell(folder, control::SET, &wanted.to_string())?;
        }
    } else if is_job.is_ok_and(|free| free.into_iter().all(|free| free)) {
        for (folder, inos) in &jobs {
            for some in inos.chunks(FILES_MAX) {
                let wanted = json!({ "inodes": some, "redundancy": redundancy });
                let report = follow(folder, Job::Set, (control::SET, &wanted.to_string()), json)?;
                blocks += report["blocks"].as_u64().unwrap_or(0);
            }
        }
    } else {
        args.files.iter().try_for_each(|file| set_one(file, &redundancy))?;
    }
    match json {
        true => answer(&json!({
            "files": args.files.len(), "redundancy": redundancy, "blocks": blocks,
            "background": args.background,
        })),
        false => Ok(()),
    }
}

fn set_one(file: &Path, redundancy: &str) -> Outcome {
    require_weftfs(file, REDUNDANCY)?;
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(file, REDUNDANCY, redundancy.as_bytes(), flags)
        .map_err(|e| Failure::new(format!("{}: {e}", file.display())))
}

/// The folder on which the file system of a file is mounted.
fn mounted_on(file: &Path) -> std::io::Result<PathBuf> {
    let mut folder = file.canonicalize()?;
    let device = folder.metadata()?.dev();
    while let Some(above) = folder.parent()
        && above.metadata()?.dev() == device
    {
        folder = above.to_owned();
    }
    Ok(folder)
}
