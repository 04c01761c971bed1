//! Finds members: looks at the disks that were named, and into the folders, without changing or
//! claiming anything, and sorts what it finds by array.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use weft_array::superblock::read_superblock;
use weft_array::{Id, Superblock, SuperblockError};

use crate::daemon::log;
use crate::failure::Failure;
use crate::members::{Opener, Place, absolute};

/// Smaller files in a folder are not looked at: no member is.
const MEMBER_BYTES_MIN: u64 = 64 << 10;

/// The members found of one array.
#[derive(Debug)]
pub struct FoundArray {
    /// The name, by the newest superblock.
    pub name: String,
    /// The identity.
    pub id: Id,
    /// Where the members are.
    pub places: Vec<String>,
    newest_seq: u64,
}

/// Looks everywhere that `named` says.
///
/// # Errors
/// If something that was named itself is no member, or cannot be read. What stands in a folder
/// beside members is left alone.
pub async fn scan(opener: &Opener, named: &[String]) -> Result<Vec<FoundArray>, Failure> {
    let mut arrays: BTreeMap<Id, FoundArray> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for place in named {
        let folder = match Place::of(place) {
            Place::Path(path) if path.is_dir() => Some(path),
            _ => None,
        };
        let candidates = match &folder {
            Some(folder) => members_of(folder)?,
            None => vec![absolute(place)?],
        };
        for candidate in candidates {
            if !seen.insert(identity(&candidate)) {
                continue;
            }
            match look(opener, &candidate).await {
                Ok(Some(superblock)) => note(&mut arrays, candidate, &superblock),
                Ok(None) if folder.is_some() => {}
                Err(failure) if folder.is_some() => {
                    log::line(&format!("passed over: {}", failure.message))
                }
                Ok(None) => {
                    return Err(Failure::new(format!(
                        "{candidate} is not a member of a weft array"
                    ))
                    .hint(format!("leave it out, or look at it with `weft examine {candidate}`")));
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(arrays.into_values().collect())
}

fn note(arrays: &mut BTreeMap<Id, FoundArray>, place: String, superblock: &Superblock) {
    let id = superblock.array_id;
    let found = arrays.entry(id).or_insert_with(|| FoundArray {
        name: superblock.name.clone(),
        id,
        places: Vec::new(),
        newest_seq: 0,
    });
    if superblock.seq >= found.newest_seq {
        found.newest_seq = superblock.seq;
        found.name.clone_from(&superblock.name);
    }
    found.places.push(place);
}

async fn look(opener: &Opener, place: &str) -> Result<Option<Superblock>, Failure> {
    let disk = opener.open(place, true).await?;
    read_superblock(&*disk).await.map_err(|e| {
        let failure = Failure::new(format!("{place}: {e}"));
        match e {
            SuperblockError::Disk(_) => failure,
            _ => failure.hint(format!(
                "`weft examine {place}` shows what can be read of it; nothing was changed"
            )),
        }
    })
}

/// Files and block devices directly in `folder`, in the order of their names.
fn members_of(folder: &Path) -> Result<Vec<String>, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", folder.display()));
    let mut places = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let may_be_member = match fs::metadata(&path) {
            Ok(data) if data.is_file() => data.len() >= MEMBER_BYTES_MIN,
            Ok(data) => data.file_type().is_block_device(),
            Err(_) => false,
        };
        if may_be_member {
            // A name that is not UTF-8 cannot be a member's.
            places.extend(path.to_str().and_then(|path| absolute(path).ok()));
        }
    }
    places.sort();
    Ok(places)
}

/// The same for all names of one file.
fn identity(place: &str) -> PathBuf {
    match Place::of(place) {
        Place::Path(path) => fs::canonicalize(&path).unwrap_or(path),
        Place::Uri(uri) => uri.into(),
    }
}
