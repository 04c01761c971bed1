//! Finds members: examines the disks and folders that were named, without changing or claiming
//! anything, and groups the members by array.
//!
//! A disk that cannot be used stops nothing: it is listed with the reason, and the rest goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use futures_util::stream;
use weft_array::superblock::{SlotState, disk_hint, read_superblock};
use weft_array::{Id, Superblock, SuperblockError};
use weft_cli::disks::{DiskAddress, Opener, absolute};
use weft_cli::failure::Failure;
use weft_cli::output::visible_path;

use crate::block::own::OwnDevices;
use crate::control::protocol::UnusedDisk;

/// Smaller files in a folder are ignored: none can be a member.
const MEMBER_BYTES_MIN: u64 = 64 << 10;
/// The hint for a disk that cannot be opened now.
pub const SCANNED_AGAIN: &str =
    "weft looks for it again every few seconds; if it is gone for good, leave it out";

/// Disks examined at the same time: one that does not answer must not hold up the other disks.
const EXAMINED_MAX: usize = 32;

/// Where to search: a disk, or a folder.
#[derive(Debug, Clone)]
pub struct SearchPlace {
    /// Path or URI.
    pub text: String,
    /// Whether the user named it: it is then reported if it is absent.
    pub named: bool,
}

impl SearchPlace {
    /// A place that the user named.
    pub fn named(text: &str) -> Self {
        Self { text: text.to_owned(), named: true }
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// The arrays.
    pub arrays: Vec<FoundArray>,
    /// Disks that cannot be used, and why.
    pub unused: Vec<UnusedDisk>,
    /// The block devices of this machine, if they were looked at.
    pub devices: Option<Vec<String>>,
}

/// The members of one array that were found.
#[derive(Debug)]
pub struct FoundArray {
    /// The identity.
    pub id: Id,
    /// Its members.
    pub members: Vec<FoundMember>,
}

/// A member.
#[derive(Debug)]
pub struct FoundMember {
    /// Where it is.
    pub place: String,
    /// Its metadata.
    pub superblock: Superblock,
}

/// Scans all places. Other files in a folder are ignored.
pub async fn scan(opener: &Opener, places: &[SearchPlace]) -> Scan {
    let mut scan = Scan::default();
    let mut candidates = Vec::new();
    let mut seen = BTreeSet::new();
    let own_devices = OwnDevices::find();
    for SearchPlace { text, named } in places {
        let (is_missed, places) = match DiskAddress::of(text) {
            DiskAddress::Path(path) if path.is_dir() => {
                scan.unused.extend(unnameable(opener, &path).await);
                (false, members_of(&path))
            }
            _ => (*named, absolute(text).map(|place| vec![place])),
        };
        match places {
            Ok(places) => {
                let others = places.into_iter();
                let others = others.filter(|place| is_missed || !own_devices.has(place));
                let new = others.filter(|place| seen.insert(identity(place)));
                candidates.extend(new.map(|place| (is_missed, place)));
            }
            Err(failure) => scan.unused.push(unused(text, &failure, *named)),
        }
    }
    let examined = candidates.into_iter().map(|(is_missed, place)| async move {
        let found = examine(opener, &place).await;
        (is_missed, place, found)
    });
    let mut examined = stream::iter(examined).buffered(EXAMINED_MAX);
    let mut arrays: BTreeMap<Id, FoundArray> = BTreeMap::new();
    while let Some((is_missed, place, found)) = examined.next().await {
        match found {
            Ok(Some(superblock)) => {
                let id = superblock.array_id;
                let array = arrays.entry(id).or_insert_with(|| FoundArray { id, members: vec![] });
                array.members.push(FoundMember { place, superblock });
            }
            Ok(None) if !is_missed => {}
            Ok(None) => {
                let failure = Failure::new("not a member of a weft array")
                    .hint(format!("leave it out, or inspect it with `weft examine {place}`"));
                scan.unused.push(unused(&place, &failure, true));
            }
            // A device without a medium, such as a loop device that is not in use.
            Err((_, false)) if !is_missed && is_empty_device(&place) => {}
            // A file in a folder that cannot be read need not be a member; a damaged member needs
            // attention wherever it is.
            Err((failure, damaged)) => {
                let failure = match damaged {
                    true => failure,
                    false => failure.hint(SCANNED_AGAIN),
                };
                scan.unused.push(unused(&place, &failure, damaged || is_missed));
            }
        }
    }
    scan.arrays = arrays.into_values().collect();
    for array in &mut scan.arrays {
        scan.unused.extend(array.leave_out_copies());
    }
    scan
}

/// Looks for members of incomplete arrays on all block devices of this machine, whose names may
/// have changed; not if the devices are those of `before`. Returns the places of the disks that it
/// adds.
pub async fn search_devices(opener: &Opener, scan: &mut Scan, before: &[String]) -> Vec<String> {
    let missing: BTreeMap<Id, BTreeMap<Id, String>> = (scan.arrays.iter())
        .map(|array| (array.id, array.wanted()))
        .filter(|(_, wanted)| !wanted.is_empty())
        .collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let devices = block_devices();
    if devices == before {
        scan.devices = Some(devices);
        return Vec::new();
    }
    let known: BTreeSet<PathBuf> = (scan.arrays.iter())
        .flat_map(|array| array.members.iter().map(|member| identity(&member.place)))
        .collect();
    let new = devices.iter().filter(|place| !known.contains(&identity(place))).cloned();
    let new: Vec<String> = new.collect();
    let examined = new.into_iter().map(|place| async move {
        let found = examine(opener, &place).await;
        (place, found)
    });
    let mut examined = stream::iter(examined).buffered(EXAMINED_MAX);
    let on_loops: BTreeSet<Id> = (scan.arrays.iter())
        .filter(|array| array.members.iter().any(|member| is_loop(Path::new(&member.place))))
        .map(|array| array.id)
        .collect();
    let mut candidates: BTreeMap<(Id, Id), Vec<FoundMember>> = BTreeMap::new();
    while let Some((place, found)) = examined.next().await {
        let Ok(Some(superblock)) = found else { continue };
        let (array, member) = (superblock.array_id, superblock.self_id);
        if is_loop(Path::new(&place)) && !on_loops.contains(&array) {
            continue;
        }
        if missing.get(&array).is_some_and(|wanted| wanted.contains_key(&member)) {
            let same = candidates.entry((array, member)).or_default();
            same.push(FoundMember { place, superblock });
        }
    }
    let mut added = Vec::new();
    for ((array, member), mut same) in candidates {
        // One disk may have several devices: that of the name it had, if any.
        if same.len() > 1 {
            let hint = &missing[&array][&member];
            same.retain(|found| disk_hint(&found.place) == *hint);
        }
        // If that does not decide, the array does without it, as before.
        if let (1, Some(found)) = (same.len(), same.pop())
            && let Some(array) = scan.arrays.iter_mut().find(|other| other.id == array)
        {
            added.push(found.place.clone());
            array.members.push(found);
        }
    }
    scan.devices = Some(devices);
    added
}

/// Block devices with a medium; no drives that take long to answer without one, and none that weft
/// serves.
fn block_devices() -> Vec<String> {
    let mut devices = Vec::new();
    let own_devices = OwnDevices::find();
    for entry in fs::read_dir("/sys/class/block").into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let size = fs::read_to_string(entry.path().join("size")).unwrap_or_default();
        let is_slow = ["sr", "fd"].iter().any(|prefix| name.starts_with(prefix));
        let is_own = own_devices.has(&name);
        if !is_slow && !is_own && size.trim().parse().is_ok_and(|sectors: u64| sectors > 0) {
            // The kernel writes `!` for a `/` in the name.
            devices.push(format!("/dev/{}", name.replace('!', "/")));
        }
    }
    devices.sort();
    devices
}

/// Whether a block device has no medium.
fn is_empty_device(place: &str) -> bool {
    let Some(name) = Path::new(place).strip_prefix("/dev").ok().and_then(Path::to_str) else {
        return false;
    };
    // The kernel writes `!` for a `/` in the name.
    let size = format!("/sys/class/block/{}/size", name.replace('/', "!"));
    fs::read_to_string(size).is_ok_and(|size| size.trim() == "0")
}

/// Members whose names are not UTF-8: they cannot be used, and must not be overlooked.
async fn unnameable(opener: &Opener, folder: &Path) -> Vec<UnusedDisk> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.to_str().is_some() || !may_be_member(&path) {
            continue;
        }
        let Ok(disk) = opener.open_path(&path, true).await else { continue };
        if let Ok(None) = read_superblock(&*disk).await {
            continue;
        }
        let shown = visible_path(&std::path::absolute(&path).unwrap_or(path));
        let failure = Failure::new("it is a member, but its name is not UTF-8")
            .hint("rename it: the disks store member names as text");
        found.push(unused(&shown, &failure, true));
    }
    found
}

/// A disk that is not used, as status shows it.
pub fn unused(place: &str, failure: &Failure, attention: bool) -> UnusedDisk {
    let why = failure.message.strip_prefix(&format!("{place}: ")).unwrap_or(&failure.message);
    UnusedDisk {
        disk: place.to_owned(),
        why: why.to_owned(),
        hint: failure.hint.clone(),
        attention,
    }
}

impl FoundArray {
    /// The newest superblock found.
    pub fn newest(&self) -> &Superblock {
        let newest = self.members.iter().max_by_key(|member| member.superblock.seq);
        &newest.expect("an array is found by its members").superblock
    }

    /// The array's name, by the newest superblock.
    pub fn name(&self) -> String {
        self.newest().name.clone()
    }

    /// Whether `text` names this array, or is its id.
    pub fn is_called(&self, wanted: &str) -> bool {
        self.newest().name == wanted || self.id.to_string() == wanted
    }

    /// The members that the newest superblock lists: their ids, their roles, and the disk that each
    /// was last.
    fn listed(&self) -> Vec<(Id, String, &str)> {
        let newest = self.newest();
        let mut listed = Vec::new();
        for (number, slot) in newest.slots.iter().enumerate() {
            if let Some(id) = slot.member_id.filter(|_| slot.state != SlotState::Missing) {
                listed.push((id, format!("slot {number}"), slot.disk_hint.as_str()));
            }
            if let Some(replacement) = &slot.replacement {
                let what = format!("the replacement of slot {number}");
                listed.push((replacement.member_id, what, &replacement.disk_hint));
            }
        }
        for spare in &newest.spares {
            listed.push((spare.member_id, "a spare".to_owned(), &spare.disk_hint));
        }
        listed
    }

    /// The members that were not found and would be used, and what each was called: the listed
    /// ones, and the ones absent when the array was started.
    fn wanted(&self) -> BTreeMap<Id, String> {
        let found: BTreeSet<Id> = self.members.iter().map(|m| m.superblock.self_id).collect();
        let listed = self.listed().into_iter().map(|(id, _, hint)| (id, hint.to_owned()));
        let absent = self.newest().slots.iter().filter_map(|slot| {
            let is_absent = slot.left.as_ref().is_some_and(|left| left.absent);
            Some((slot.member_id.filter(|_| is_absent)?, slot.disk_hint.clone()))
        });
        listed.chain(absent).filter(|(id, _)| !found.contains(id)).collect()
    }

    /// Whether the array would rebuild onto a spare at once if it started now.
    pub fn would_use_spare(&self) -> bool {
        let found: BTreeSet<Id> = self.members.iter().map(|m| m.superblock.self_id).collect();
        let newest = self.newest();
        let is_lost = newest.slots.iter().any(|slot| {
            slot.state != SlotState::Missing
                && slot.member_id.is_some_and(|id| !found.contains(&id))
        });
        is_lost && newest.spares.iter().any(|spare| found.contains(&spare.member_id))
    }

    /// The members that are listed and were not found, in words.
    pub fn missing(&self) -> Vec<String> {
        let found: BTreeSet<Id> = self.members.iter().map(|m| m.superblock.self_id).collect();
        let listed = self.listed().into_iter().filter(|(id, ..)| !found.contains(id));
        listed.map(|(_, what, hint)| format!("{what} (last seen as {hint})")).collect()
    }

    /// If several disks claim to be the same member, all but one were copied by hand. The right one
    /// is the newest, or among those equally new the one at the place where the member was last
    /// seen. If that does not decide, all stay: the assembly then refuses, and reports why.
    fn leave_out_copies(&mut self) -> Vec<UnusedDisk> {
        let mut copies = Vec::new();
        for (id, what, hint) in self.listed() {
            let same: Vec<&FoundMember> =
                self.members.iter().filter(|m| m.superblock.self_id == id).collect();
            let newest = same.iter().map(|m| m.superblock.seq).max().unwrap_or_default();
            let latest = || same.iter().filter(|m| m.superblock.seq == newest);
            let at_place = || latest().filter(|m| disk_hint(&m.place) == hint);
            let right = match (latest().count(), at_place().count()) {
                (1, _) => latest().next(),
                (_, 1) => at_place().next(),
                _ => None,
            };
            let Some(right) = right else { continue };
            for copy in same.iter().filter(|m| m.place != right.place) {
                let failure = Failure::new(format!("it is a copy of {}, {what}", right.place))
                    .hint(format!("move it away, or erase it: `weft wipe {} --force`", copy.place));
                copies.push(unused(&copy.place, &failure, true));
            }
        }
        self.members.retain(|member| copies.iter().all(|copy| copy.disk != member.place));
        copies
    }
}

/// The superblock of the disk, if it is a member; otherwise the reason, and whether it is a damaged
/// member.
async fn examine(opener: &Opener, place: &str) -> Result<Option<Superblock>, (Failure, bool)> {
    let disk = opener.open(place, true).await.map_err(|error| (error.failure, false))?;
    read_superblock(&*disk).await.map_err(|e| {
        let failure = Failure::new(e.to_string());
        match e {
            SuperblockError::Disk(_) => (failure, false),
            _ => {
                let hint = format!("`weft examine {place}` shows what can still be read of it");
                (failure.hint(hint), true)
            }
        }
    })
}

/// Files and block devices directly in `folder`, in the order of their names.
pub fn members_of(folder: &Path) -> Result<Vec<String>, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", folder.display()));
    let mut places = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if may_be_member(&path) && !is_loop(&path) {
            // A member's name must be UTF-8; other names are found by `unnameable`.
            places.extend(path.to_str().and_then(|path| absolute(path).ok()));
        }
    }
    places.sort();
    Ok(places)
}

fn may_be_member(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(data) if data.is_file() => data.len() >= MEMBER_BYTES_MIN,
        Ok(data) => data.file_type().is_block_device(),
        Err(_) => false,
    }
}

/// Whether this is a loop device. Users may be allowed to make one of a file of theirs (udisks), in
/// which they can write what they want, also that it is the newest member of an array. So these are
/// members only if they are named, or if other members of their array are.
fn is_loop(place: &Path) -> bool {
    let name = place.strip_prefix("/dev").ok().and_then(Path::to_str).unwrap_or_default();
    name.strip_prefix("loop").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Equal for all names of one file.
fn identity(place: &str) -> PathBuf {
    match DiskAddress::of(place) {
        DiskAddress::Path(path) => fs::canonicalize(&path).unwrap_or(path),
        DiskAddress::Uri(uri) => uri.into(),
    }
}
