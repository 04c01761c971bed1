//! `weft udev`: what udev's rules have to know about a block device.
//!
//! udev runs this for each block device that appears, so most of the time it reads one block, and
//! finds that the device is none of weft's.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::{Value, json};
use weft_array::Id;
use weft_array::superblock::{check_name, read_superblock};
use weft_cli::disks::Opener;
use weft_cli::failure::{FAILED, Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_cli::thread;
use weft_fs::Label;

use crate::block::link;
use crate::cli::UdevArgs;
use crate::control::client::Client;
use crate::control::protocol::Request;
use crate::runtime_dir::RuntimeDir;

/// Properties, by name.
type Properties = Vec<(&'static str, String)>;

/// What labels start with, also while there is a second one: the first block is then zeros.
const BEGINNINGS: [&[u8]; 3] = [b"WEFTMBR", b"weftfs.", &[0; 8]];

/// `weft udev`.
pub fn udev(
    args: &UdevArgs,
    dir: impl FnOnce() -> Result<RuntimeDir, Failure>,
    json: bool,
) -> Outcome {
    if args.announce {
        let place = args.device.display().to_string();
        // Without a daemon there is nothing to tell: it looks at all devices when it starts.
        let told = dir().and_then(|dir| Client::connect(&dir));
        let told = told.and_then(|mut client| client.ask::<Value>(Request::Announce { place }));
        return match json {
            true => answer(&json!({ "announced": told.is_ok() })),
            false => Ok(()),
        };
    }
    let properties = match attached(&args.device) {
        Some(array) => vec![("WEFT_ARRAY", array)],
        // To read there is to wait for its server.
        None if is_nbd(&args.device) => Vec::new(),
        None => disk(&args.device)?,
    };
    if json {
        let shown = |(name, value)| json!({ "name": name, "value": value });
        let shown: Vec<Value> = properties.into_iter().map(shown).collect();
        return answer(&json!({ "properties": shown }));
    }
    if properties.is_empty() {
        return Err(Failure::said(FAILED));
    }
    for (name, value) in properties {
        outln!("{name}={value}");
    }
    Ok(())
}

fn is_nbd(device: &Path) -> bool {
    let name = device.file_name().and_then(|name| name.to_str());
    let folder = device.parent();
    folder == Some(Path::new("/dev")) && name.is_some_and(|name| name.starts_with("nbd"))
}

/// The properties of a disk; none if it is none of weft's.
fn disk(device: &Path) -> Result<Properties, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", device.display()));
    let mut beginning = [0; 8];
    let file = File::open(device).map_err(failed)?;
    // An empty drive has no first block.
    if file.read_exact_at(&mut beginning, 0).is_err()
        || !BEGINNINGS.iter().any(|known| beginning.starts_with(known))
    {
        return Ok(Vec::new());
    }
    drop(file);
    let Some(place) = device.to_str().map(str::to_owned) else { return Ok(Vec::new()) };
    thread::run(move |opener: Opener| async move {
        let disk = opener.open(&place, true).await?;
        if let Ok(Some(superblock)) = read_superblock(&*disk).await {
            let (array, member) = (superblock.array_id, superblock.self_id);
            return Ok(properties("weft_member", &superblock.name, array, member));
        }
        if let Ok(Some(label)) = Label::read(&*disk).await {
            return Ok(properties("weftfs_member", &label.name, label.fs_id, label.disk_id));
        }
        Ok(Vec::new())
    })
}

fn properties(of: &str, name: &str, whole: Id, part: Id) -> Properties {
    let (whole, part) = (hyphenated(&whole), hyphenated(&part));
    vec![
        ("ID_FS_TYPE", of.to_owned()),
        ("ID_FS_USAGE", "raid".to_owned()),
        ("ID_FS_UUID", whole.clone()),
        ("ID_FS_UUID_ENC", whole),
        ("ID_FS_UUID_SUB", part.clone()),
        ("ID_FS_UUID_SUB_ENC", part),
        ("ID_FS_LABEL", plain(name)),
        ("ID_FS_LABEL_ENC", plain(name)),
    ]
}

/// An id as other programs write one.
fn hyphenated(id: &Id) -> String {
    let digits = id.to_string();
    let mut parts = Vec::new();
    let mut rest = digits.as_str();
    for len in [8, 4, 4, 4] {
        let (part, after) = rest.split_at_checked(len).unwrap_or((rest, ""));
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    parts.join("-")
}

/// A name without what means something in udev's rules.
fn plain(name: &str) -> String {
    let is_plain = |c: &char| c.is_alphanumeric() || "#+-.:=@_".contains(*c);
    name.chars().map(|c| if is_plain(&c) { c } else { '_' }).collect()
}

/// The array that is attached as this device, by the link that weft made of it. The name of a loop
/// device's file tells nothing: users may be allowed to make such devices (udisks).
fn attached(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let is_front = ["loop", "ublkb", "nbd"].iter().any(|prefix| name.starts_with(prefix));
    let array = is_front.then(|| link::array_of(name))??;
    check_name(&array).is_ok().then_some(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_say_more_than_a_name() {
        assert_eq!(plain("tank-1.a_b"), "tank-1.a_b");
        assert_eq!(plain("a b\nX=\"$(x)\""), "a_b_X=___x__");
    }
}
