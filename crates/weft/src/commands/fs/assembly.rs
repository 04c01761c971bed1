//! Finds the disks of a file system, opens them, and brings it into use.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use weft_cli::disks::{DiskAddress, Opener};
use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, Host, Label, MountOptions};
use weft_fuse::control;

use super::identity::{self, IdentityLock};
use super::{failed, require_root};
use crate::daemon::scan::members_of;
use crate::members::with_owner;

/// Opens disks. With `some_will_do`, disks that cannot be opened are left out.
pub(super) async fn open_all(
    opener: &Opener,
    places: &[String],
    some_will_do: bool,
    read_only: bool,
) -> Result<Vec<Rc<dyn Disk>>, Failure> {
    let mut disks = Vec::with_capacity(places.len());
    for place in places {
        let opened = match read_only {
            true => opener.open_read_only(place).await,
            false => opener.open(place, false).await,
        };
        match opened {
            Ok(disk) => disks.push(disk),
            Err(error) if some_will_do => {
                let error = with_owner(opener, place, error).await;
                log_line(&format!("left out: {}", error.failure.message));
            }
            Err(error) => return Err(with_owner(opener, place, error).await.into()),
        }
    }
    Ok(disks)
}

/// The disks of the file system `name`: disks given by path, and disks in the given folders,
/// recognised by their labels.
async fn find(opener: &Opener, name: &str, places: &[String]) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    let mut systems = BTreeSet::new();
    for place in places {
        let folder = match DiskAddress::of(place) {
            DiskAddress::Path(path) if path.is_dir() => path,
            _ => {
                found.push(place.clone());
                continue;
            }
        };
        for place in members_of(&folder)? {
            // What cannot be read is no disk that could be used.
            let Ok(disk) = opener.open(&place, true).await else { continue };
            let label = match Label::read(&*disk).await {
                Ok(Some(label)) => label,
                Err(FsError::Unmountable(why)) => {
                    log_line(&format!("{place}: left out: {why}"));
                    continue;
                }
                _ => continue,
            };
            if label.name == name {
                systems.insert(label.fs_id);
                found.push(place);
            }
        }
    }
    match (systems.len(), found.is_empty()) {
        (0 | 1, false) => Ok(found),
        (0, true) => Err(Failure::new(format!("no disk of a file system '{name}' was found"))
            .hint(match rustix::process::geteuid().is_root() {
                true => "name its disks, or a folder in which they are",
                false => "mounting needs root: run it with sudo",
            })),
        _ => Err(Failure::new(format!("there are several file systems called '{name}'"))
            .hint("name the disks of the one that is meant")),
    }
}

/// A file system whose disks were found.
pub(super) struct Assembled {
    pub(super) fs: Fs,
    pub(super) open: control::OpenDisk,
    /// Nothing else on this machine mounts it during this.
    pub(super) _only: Option<IdentityLock>,
}

/// Finds the disks of a file system and brings it into use.
pub(super) async fn assemble(
    opener: &Opener,
    name: &str,
    folder: &Path,
    places: &[String],
    options: MountOptions,
) -> Result<Assembled, Failure> {
    let places = find(opener, name, places).await?;
    require_root("mounting")?;
    let some_will_do = options.degraded || options.stale;
    let disks = open_all(opener, &places, some_will_do, options.read_only).await?;
    let mut system = None;
    for disk in &disks {
        let Ok(Some(label)) = Label::read(&**disk).await else { continue };
        if label.name != name {
            let (disk, other) = (&disk.info().name, label.name);
            return Err(Failure::new(format!("{disk} is a disk of the file system '{other}'")));
        }
        system = Some(label.fs_id);
    }
    let is_remote = |place: &String| matches!(DiskAddress::of(place), DiskAddress::Uri(_));
    let host = places.iter().any(is_remote).then(this_host);
    let options = MountOptions { host, ..options };
    let only = match system {
        Some(id) => identity::lock(&opener.rt, (&id.to_string(), name), folder).await?,
        None => None,
    };
    let again = opener.clone();
    let open: control::OpenDisk = Rc::new(move |place| {
        let opener = again.clone();
        Box::pin(async move {
            match opener.open(&place, false).await {
                Ok(disk) => Ok(disk),
                Err(error) => Err(with_owner(&opener, &place, error).await.failure.to_string()),
            }
        })
    });
    // A disk can be opened again only when nothing else holds it open: these end here.
    let fs = Fs::mount_reopening(&opener.rt, &disks, options, Some(open.clone())).await;
    Ok(Assembled { fs: fs.map_err(failed)?, open, _only: only })
}

/// Whether more disks may cure this.
pub(super) fn lacks_disks(failure: &Failure) -> bool {
    ["as degraded", "as stale", "no disk of a file system"]
        .iter()
        .any(|text| failure.message.contains(text))
}

/// What other hosts call this one.
fn this_host() -> Host {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Host::new(name.trim_end())
}
