//! `weft demo fs`: a file system that chooses the redundancy of each file.
//!
//! Files of this machine are copied into three folders with a redundancy each, and a disk is lost
//! half-way. Before they are compared the file system is unmounted and mounted again, so that every
//! byte comes from the disks that are left.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Instant;

use crc_fast::{CrcAlgorithm, checksum};
use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::answer;
use weft_cli::progress::Progress;
use weft_cli::size;

use crate::MountDemoArgs;
use crate::scene::{MOUNT_POINT, Scene};
use crate::tree::{self, Source};

/// Folders with their redundancy.
const FOLDERS: [(&str, &str); 3] = [("letters", "raid1"), ("films", "auto"), ("photos", "raid6")];
/// The disk that is lost.
const LOST: &str = "2";
/// Disks; the last ones are larger.
const DISKS: usize = 6;
/// What a disk has for labels, and for what does not fill a line.
const OVERHEAD_BYTES: u64 = 24 << 20;
/// What a disk has for metadata: this, and more for each file.
const METADATA_BYTES: u64 = 24 << 20;
const METADATA_BYTES_A_FILE: u64 = 4 << 10;

/// A file that was copied.
struct Copied {
    from: PathBuf,
    to: PathBuf,
    sum: u64,
}

fn failed(path: &std::path::Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |e| Failure::new(format!("{}: {e}", path.display()))
}

/// `weft demo fs`.
///
/// # Errors
/// If a step fails, or a byte was lost.
pub fn demo(args: &MountDemoArgs, json: bool) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("a file system can only be mounted as root")
            .hint("`sudo weft demo fs`; `weft demo` needs no root"));
    }
    let start = Instant::now();
    let (root, files) = tree::sources(args.tree.as_deref(), args.limit)?;
    // Copies of everything, on fewer disks than there are.
    let metadata_bytes = METADATA_BYTES + files.len() as u64 * METADATA_BYTES_A_FILE;
    let overhead_bytes = OVERHEAD_BYTES + metadata_bytes;
    let disk_bytes = (args.limit / 2 + overhead_bytes).next_multiple_of(1 << 20);
    let mut scene = Scene::open(args.dir.as_deref(), 2 * args.limit + overhead_bytes, json)?;

    scene.say("Six disks of different sizes form one file system. Each folder has a redundancy.");
    let disks: Vec<String> = (0..DISKS).map(|n| format!("d{n}")).collect();
    for (n, disk) in disks.iter().enumerate() {
        let path = scene.path(disk);
        let file = File::create_new(&path).map_err(failed(&path))?;
        file.set_len(disk_bytes + (n as u64 / 3) * (32 << 20)).map_err(failed(&path))?;
    }
    let metadata = format!("{}M", metadata_bytes >> 20);
    let mut create = vec!["fs", "create", "demo", "--metadata", &metadata];
    create.extend(disks.iter().map(String::as_str));
    scene.weft(&create)?;
    let mount_point = scene.path(MOUNT_POINT);
    fs::create_dir(&mount_point).map_err(failed(&mount_point))?;
    scene.mount("demo")?;
    for (folder, redundancy) in FOLDERS {
        let path = mount_point.join(folder);
        fs::create_dir(&path).map_err(failed(&path))?;
        scene.weft(&["fs", "set", redundancy, &format!("{MOUNT_POINT}/{folder}")])?;
    }

    scene.say(&format!(
        "The files of {} are copied into the folders in turn. Half-way through, a disk fails.",
        root.display()
    ));
    let copied = copy_while_failing(&scene, &files, json)?;
    let bytes: u64 = files.iter().map(|file| file.len).sum();
    scene.tell(&format!("{} files, {} copied", copied.len(), size::show(bytes)));

    scene.say(
        "The rebuild on the other disks has started automatically: it copies only live data, and needs no \
         spare.",
    );
    let report = scene.ask(&["fs", "rebuild", MOUNT_POINT])?;
    let rebuilt = report["blocks"].as_u64().unwrap_or(0) * 4096;
    scene.tell(&format!(
        "{} rebuilt, of a disk of {}",
        size::show(rebuilt),
        size::show(disk_bytes)
    ));
    scene.unmount()?;
    scene.mount("demo")?;
    scene.weft(&["fs", "status", MOUNT_POINT])?;

    scene.say("All files are read back without that disk, and their checksums compared.");
    compare(&scene, &copied, json)?;

    scene.say("A scrub reads every block, data and parity.");
    scene.weft(&["fs", "scrub", MOUNT_POINT])?;
    if args.corrupt
        && let Some(first) =
            copied.iter().find(|copy| fs::metadata(&copy.to).is_ok_and(|m| m.len() > 0))
    {
        let mut bytes = fs::read(&first.to).map_err(failed(&first.to))?;
        bytes[0] ^= 1;
        fs::write(&first.to, bytes).map_err(failed(&first.to))?;
    }
    scene.unmount()?;
    scene.mount("demo")?;

    scene.say("All files are read once more.");
    compare(&scene, &copied, json)?;
    scene.unmount()?;

    let seconds = start.elapsed();
    if json {
        answer(&json!({
            "files": copied.len(), "stored_bytes": bytes, "rebuilt_bytes": rebuilt,
            "wrong_files": 0, "took_s": seconds.as_secs_f64()
        }))?;
    }
    scene.say(&format!(
        "A disk failed, and no byte was lost: {} files, {}, all intact. ({})",
        copied.len(),
        size::show(bytes),
        size::show_duration(seconds)
    ));
    scene.close(false)
}

/// Copies the files; half-way, takes a disk out of service while the copying goes on.
fn copy_while_failing(scene: &Scene, files: &[Source], json: bool) -> Result<Vec<Copied>, Failure> {
    let total: u64 = files.iter().map(|file| file.len).sum();
    let mut progress = Progress::new("copy", total, json);
    let (mut copied, mut done, mut failing) = (Vec::new(), 0, None);
    for (n, source) in files.iter().enumerate() {
        if failing.is_none() && done * 2 >= total {
            sync_last(&copied)?;
            failing = Some(scene.start(&["fs", "fail", MOUNT_POINT, LOST])?);
        }
        // A file of this machine may be gone by now.
        let Ok(bytes) = fs::read(&source.path) else { continue };
        let (folder, _) = FOLDERS[n % FOLDERS.len()];
        let to = scene.path(MOUNT_POINT).join(folder).join(n.to_string());
        fs::write(&to, &bytes).map_err(failed(&to))?;
        let sum = checksum(CrcAlgorithm::Crc64Nvme, &bytes);
        copied.push(Copied { from: source.path.clone(), to, sum });
        done += source.len;
        progress.at(done, total, &format!("{} of {}", size::show(done), size::show(total)));
    }
    drop(progress);
    match failing {
        Some(child) => scene.finish(child)?,
        None => scene.weft(&["fs", "fail", MOUNT_POINT, LOST])?,
    }
    Ok(copied)
}

/// Sees to it that the disks hold some of the files: small ones would still be in memory.
fn sync_last(copied: &[Copied]) -> Outcome {
    for Copied { to, .. } in copied.iter().rev().take(4 * FOLDERS.len()) {
        File::open(to).and_then(|file| file.sync_all()).map_err(failed(to))?;
    }
    Ok(())
}

fn compare(scene: &Scene, copied: &[Copied], json: bool) -> Outcome {
    let mut progress = Progress::new("compare", copied.len() as u64, json);
    let mut wrong = Vec::new();
    for (n, copy) in copied.iter().enumerate() {
        let read = fs::read(&copy.to);
        if !read.is_ok_and(|bytes| checksum(CrcAlgorithm::Crc64Nvme, &bytes) == copy.sum) {
            wrong.push(&copy.from);
        }
        let message = format!("{} of {} files", n + 1, copied.len());
        progress.at(n as u64 + 1, copied.len() as u64, &message);
    }
    drop(progress);
    match wrong.first() {
        None => {
            scene.tell(&format!("{} files, every checksum matches", copied.len()));
            Ok(())
        }
        Some(first) => Err(Failure::new(format!(
            "{} of {} files differ from the stored ones; the first is {}",
            wrong.len(),
            copied.len(),
            first.display()
        ))
        .hint("this must never happen: please report it")),
    }
}
