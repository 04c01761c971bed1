//! `weft wipe`: erases the metadata of a member, or the labels of a disk of a weft file system;
//! needs no daemon.
//!
//! A disk in use by any program cannot be opened for writing. Only remote disks have no such claim:
//! for those, the daemon of this runtime directory is asked.

use serde_json::json;
use weft_array::{Contents, contents};
use weft_cli::disks::{DiskAddress, Opener, absolute};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_cli::thread;
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_fs::{BLOCK_BYTES, Label};

use crate::cli::WipeArgs;
use crate::control::client::Client;
use crate::runtime_dir::RuntimeDir;

/// Bytes at the start of a disk of a weft file system, before its metadata.
const FILE_SYSTEM_HEAD_BYTES: u64 = 64 << 10;
/// Bytes at its end, after its data.
const FILE_SYSTEM_END_BYTES: u64 = 3 * BLOCK_BYTES;

/// The result for a disk.
struct Wiped {
    disk: String,
    /// What it is, in words; `None` if there is nothing to erase.
    what: Option<String>,
}

/// `weft wipe`. Checks all disks before it changes one.
pub fn wipe(
    args: &WipeArgs,
    dir: impl FnOnce() -> Result<RuntimeDir, Failure>,
    json: bool,
) -> Outcome {
    let places: Vec<String> = args.disks.iter().map(|d| absolute(d)).collect::<Result<_, _>>()?;
    if places.iter().any(|place| matches!(DiskAddress::of(place), DiskAddress::Uri(_))) {
        refuse_served(&places, dir)?;
    }
    let (force, zero) = (args.force, args.zero);
    let wiped = thread::run(move |opener: Opener| async move {
        let mut disks = Vec::new();
        for place in &places {
            // Claimed even to examine it: a disk in use is refused, not examined.
            let disk = opener.open(place, false).await?;
            let what = erasable(&*disk, zero).await?;
            disks.push((disk, Wiped { disk: place.clone(), what }));
        }
        for (disk, wiped) in &disks {
            if force && wiped.what.is_some() {
                let holds = contents(&**disk).await.map_err(|e| Failure::new(e.to_string()))?;
                let wiped = match holds {
                    Some(Contents::Foreign(_)) => wipe_file_system(&**disk, zero).await,
                    _ => weft_array::wipe(&**disk, zero).await,
                };
                wiped.map_err(|e| Failure::new(e.to_string()))?;
            }
        }
        Ok(disks.into_iter().map(|(_, wiped)| wiped).collect::<Vec<_>>())
    })?;
    let to_erase: Vec<&Wiped> = wiped.iter().filter(|wiped| wiped.what.is_some()).collect();
    if json {
        let disks = wiped.iter().map(|w| json!({ "disk": w.disk, "holds": w.what }));
        let disks: Vec<_> = disks.collect();
        if force || args.dry_run || to_erase.is_empty() {
            answer(&json!({ "disks": disks, "done": force }))?;
        }
    } else {
        for Wiped { disk, what } in &wiped {
            match what {
                None => outln!("{disk}: not a member of a weft array, nothing to erase"),
                Some(what) if force => outln!("{disk}: erased ({what})"),
                Some(what) => outln!("{disk}: {what}"),
            }
        }
        if force && !zero && !to_erase.is_empty() {
            outln!(
                "their data areas were not erased, so `weft create` and `weft add` require --force; \
                 `weft wipe --zero --force` clears them"
            );
        }
        if args.dry_run {
            outln!("nothing was changed");
        }
    }
    if force || args.dry_run || to_erase.is_empty() {
        return Ok(());
    }
    let disks: Vec<&str> = to_erase.iter().map(|wiped| wiped.disk.as_str()).collect();
    Err(Failure::new(format!("not erased: {}", disks.join(", ")))
        .hint("check that these are the right disks; --force erases them. Nothing was changed"))
}

/// What can be erased on a disk.
async fn erasable(disk: &dyn Disk, zero: bool) -> Result<Option<String>, Failure> {
    let name = &disk.info().name;
    match contents(disk).await.map_err(|e| Failure::new(e.to_string()))? {
        None => Ok(None),
        Some(what @ (Contents::Member { .. } | Contents::Damaged { .. })) => {
            Ok(Some(what.to_string()))
        }
        Some(what @ Contents::Unrecognised { .. }) if zero => Ok(Some(what.to_string())),
        // Only a former member of an array has such data without a label.
        Some(Contents::Unrecognised { .. }) => Ok(None),
        Some(what @ Contents::Foreign(_)) => {
            match Label::read(disk).await {
                Ok(None) => {}
                Ok(Some(label)) => {
                    return Ok(Some(format!("a disk of the weft file system {}", label.name)));
                }
                // Of another version, or the disk has shrunk.
                Err(error) => return Ok(Some(format!("{what} ({error})"))),
            }
            Err(Failure::new(format!("{name} holds {what}, and is not a member of a weft array"))
                .hint(format!("`wipefs -a {name}` erases it; nothing was changed")))
        }
    }
}

/// Erases both copies of the label of a weft file system and what lies between it and the metadata,
/// or with `all` everything. Durable on return.
async fn wipe_file_system(disk: &dyn Disk, all: bool) -> Result<(), DiskError> {
    let size = disk.info().size_bytes & !(BLOCK_BYTES - 1);
    let durable = WriteOpts { fua: true, ..WriteOpts::MAINTENANCE };
    let head = if all { size } else { FILE_SYSTEM_HEAD_BYTES.min(size) };
    let end = size.saturating_sub(FILE_SYSTEM_END_BYTES);
    disk.write_zeroes(end, size - end, durable).await?;
    disk.write_zeroes(0, head, durable).await?;
    disk.flush().await
}

fn refuse_served(places: &[String], dir: impl FnOnce() -> Result<RuntimeDir, Failure>) -> Outcome {
    // Without a daemon there is none to ask.
    let Ok(mut client) = dir().and_then(|dir| Client::connect(&dir)) else { return Ok(()) };
    for array in client.snapshot(None)?.arrays {
        let disks = array.status.disks();
        if let Some(used) = places.iter().find(|place| disks.contains(place)) {
            return Err(Failure::new(format!("{used} is in use by {}", array.status.name))
                .hint("fail, replace or remove it first; nothing was changed"));
        }
    }
    Ok(())
}
