//! `weft demo`: shows on this machine what weft is for, in plain words.
//!
//! The demo uses the program as a user would: it runs commands as processes of their own and shows
//! them as typed, and the data goes over NBD on loopback. Only the client that stores the files is
//! built in, so that neither root nor a file system is needed: it writes the files one after
//! another, as onto a tape, and keeps a checksum of each.
//!
//! ```no_run
//! use weft_demo::{DemoArgs, demo};
//!
//! // Runs the program that it is part of.
//! let limit = 64 << 20;
//! let args = DemoArgs { what: None, keep: false, dir: None, tree: None, limit, corrupt: false };
//! demo(&args, false).expect("every byte is there");
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cluster;
mod files;
mod scene;
mod store;
mod tree;

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, Subcommand};
use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::answer;
use weft_cli::progress::Progress;
use weft_cli::size;

use scene::Scene;
use store::{Store, Stored};

/// Members: the width of `drc-g:4,2,1`.
const MEMBERS: usize = 7;
/// Data units of a stripe.
const DATA_UNITS: u64 = 4;
/// Metadata and rounding of a member.
const OVERHEAD_BYTES: u64 = 32 << 20;
/// The rebuild is limited to this rate on each disk; otherwise it would end before it is
/// seen.
const SHOWN_RATE: &str = "48M";

/// `weft demo`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Needs no root, less than 2 GB of disk space and less than a minute. Everything happens in a \
temporary folder, which is removed at the end.

Examples:
  weft demo
  sudo weft demo fs
  sudo weft demo cluster
  weft demo --keep --dir /var/tmp/weft-demo"
)]
pub struct DemoArgs {
    /// Another demo
    #[command(subcommand)]
    pub what: Option<DemoOf>,
    /// Keep the array's files at the end
    #[arg(long)]
    pub keep: bool,
    /// Use this folder (must not exist yet) [default: a new temporary folder]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Store the files below this folder [default: /usr/share, or a similar folder]
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Store at most this much
    #[arg(long, value_parser = size::parse, default_value = "256M", value_name = "SIZE")]
    pub limit: u64,
    /// Change one byte of what is read back: the demo must notice
    #[arg(long, hide = true)]
    pub corrupt: bool,
}

/// What else is shown.
#[derive(Debug, Subcommand)]
pub enum DemoOf {
    /// Show a file system whose files have different redundancies (needs root)
    #[command(after_help = "\
Needs root, as every mount does, less than 1 GB of disk space and less than a minute. Everything \
happens in a temporary folder, which is removed at the end.")]
    Fs(MountDemoArgs),
    /// Show a file system that three machines share (needs root and etcd)
    #[command(after_help = "\
Needs root, as every mount does, an etcd (apt install etcd-server), less than 1 GB of disk space and \
about a minute. The machines are processes on this one. Everything happens in a temporary folder, which \
is removed at the end.")]
    Cluster(MountDemoArgs),
}

/// `weft demo fs` and `weft demo cluster`.
#[derive(Debug, Args)]
pub struct MountDemoArgs {
    /// Use this folder (must not exist yet) [default: a new temporary folder]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Store the files below this folder [default: /usr/share, or a similar folder]
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Store at most this much
    #[arg(long, value_parser = size::parse, default_value = "64M", value_name = "SIZE")]
    pub limit: u64,
    /// Change one byte of what is read back: the demo must notice
    #[arg(long, hide = true)]
    pub corrupt: bool,
}

/// `weft demo`.
///
/// # Errors
/// If a step fails, or a byte was lost.
pub fn demo(args: &DemoArgs, json: bool) -> Outcome {
    match &args.what {
        Some(DemoOf::Fs(args)) => return files::demo(args, json),
        Some(DemoOf::Cluster(args)) => return cluster::demo(args, json),
        None => {}
    }
    let start = Instant::now();
    let (root, files) = tree::sources(args.tree.as_deref(), args.limit)?;
    let member_bytes = (args.limit / DATA_UNITS + OVERHEAD_BYTES).next_multiple_of(1 << 20);
    let mut scene = Scene::open(args.dir.as_deref(), member_bytes * (MEMBERS as u64 + 2), json)?;

    scene.say("Seven files form one array. Any two of them may be lost.");
    let size = format!("{}M", member_bytes >> 20);
    let members: Vec<String> = (0..MEMBERS).map(|n| format!("d{n}")).collect();
    let mut create = vec!["create", "demo", "--code", "drc-g:4,2,1", "--size", &size];
    create.extend(members.iter().map(String::as_str));
    scene.weft(&create)?;
    let uri = scene.serve()?;

    let mut store = Store::open(&uri)?;
    scene.say(&format!(
        "It stores the files of {} over NBD. Half-way through, a disk fails.",
        root.display()
    ));
    let stored = write_while_failing(&mut scene, &mut store, &files, json)?;
    let bytes = stored.iter().map(|file| file.len).sum();
    scene.tell(&format!("{} files, {} stored", stored.len(), size::show(bytes)));
    scene.weft(&["status", "demo"])?;

    scene.say("A second disk fails. All files are read back, with both missing.");
    scene.weft(&["fail", "demo", "d5"])?;
    scene.weft(&["status", "demo"])?;
    compare(&scene, &mut store, &stored, json)?;

    scene.say("Two spares are added, and the lost data is rebuilt onto them.");
    scene.weft(&["throttle", "demo", "--max", SHOWN_RATE])?;
    scene.weft(&["add", "demo", "spare0", "--size", &size])?;
    scene.weft(&["add", "demo", "spare1", "--size", &size])?;
    scene.weft(&["rebuild", "demo"])?;
    scene.weft(&["throttle", "demo", "--max", "unlimited"])?;

    scene.say("A scrub checks every stripe: does all redundancy match the data?");
    scene.weft(&["scrub", "demo"])?;
    if args.corrupt {
        store.corrupt(&stored)?;
    }

    scene.say("All files are read once more, and their checksums compared.");
    compare(&scene, &mut store, &stored, json)?;
    drop(store);
    scene.weft(&["stop"])?;

    let seconds = start.elapsed();
    if json {
        let took_s = seconds.as_secs_f64();
        answer(&json!({
            "files": stored.len(), "stored_bytes": bytes, "wrong_files": 0, "took_s": took_s
        }))?;
    }
    scene.say(&format!(
        "Two disks failed at once, and no byte was lost: {} files, {}, all intact. ({})",
        stored.len(),
        size::show(bytes),
        size::show_duration(seconds)
    ));
    scene.close(args.keep)
}

/// Stores the files; half-way through, fails a member while the writes continue.
fn write_while_failing(
    scene: &mut Scene,
    store: &mut Store,
    files: &[tree::Source],
    json: bool,
) -> Result<Vec<Stored>, Failure> {
    let total: u64 = files.iter().map(|file| file.len).sum();
    let mut failing = None;
    let mut progress = Progress::new("store", total, json);
    let mut trouble = None;
    let stored = store.write(files, |done| {
        progress.at(done, total, &format!("{} of {}", size::show(done), size::show(total)));
        if failing.is_none() && done * 2 >= total {
            match scene.start(&["fail", "demo", "d2"]) {
                Ok(child) => failing = Some(child),
                Err(failure) => trouble = Some(failure),
            }
        }
    })?;
    drop(progress);
    match (failing, trouble) {
        (Some(child), None) => scene.finish(child)?,
        (_, Some(failure)) => return Err(failure),
        (None, None) => scene.weft(&["fail", "demo", "d2"])?,
    }
    Ok(stored)
}

fn compare(scene: &Scene, store: &mut Store, stored: &[Stored], json: bool) -> Outcome {
    let total: u64 = stored.iter().map(|file| file.len).sum();
    let mut progress = Progress::new("compare", total, json);
    let wrong = store.compare(stored, |done| {
        progress.at(done, total, &format!("{} of {}", size::show(done), size::show(total)));
    })?;
    drop(progress);
    match wrong.first() {
        None => {
            scene.tell(&format!("{} files, every checksum matches", stored.len()));
            Ok(())
        }
        Some(first) => Err(Failure::new(format!(
            "{} of {} files differ from the stored ones; the first is {}",
            wrong.len(),
            stored.len(),
            first.display()
        ))
        .hint("this must never happen: please report it")),
    }
}
