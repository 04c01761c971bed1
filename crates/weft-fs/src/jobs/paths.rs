//! What files are called, for reports.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::format::inode::{Ino, Kind, ROOT};
use crate::meta::Tx;

/// Paths of files, each by one of its names, as far as they have any.
pub(crate) fn paths_of(tx: &Tx<'_>, inos: &BTreeSet<Ino>) -> Result<BTreeMap<Ino, String>> {
    if inos.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut named: BTreeMap<Ino, (Ino, Vec<u8>)> = BTreeMap::new();
    for (folder, name, entry) in tx.all_entries()? {
        if entry.mode == Kind::Folder.mode() || inos.contains(&entry.ino) {
            named.entry(entry.ino).or_insert((folder, name));
        }
    }
    let path = |ino: &Ino| {
        let (mut parts, mut at) = (Vec::new(), *ino);
        while at != ROOT {
            let (folder, name) = named.get(&at).filter(|_| parts.len() <= named.len())?;
            parts.push(String::from_utf8_lossy(name));
            at = *folder;
        }
        parts.reverse();
        Some((*ino, format!("/{}", parts.join("/"))))
    };
    Ok(inos.iter().filter_map(path).collect())
}
