//! The disks that are given to a mount: which of them belong to the file system, and whether all
//! are there.
//!
//! This is checked before anything is written: labels name the disks, and the superblocks of the
//! metadata array name the disks with copies. So a mount that is refused because a disk is missing
//! has changed nothing.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_array::superblock::{SlotState, Superblock, read_superblock};
use weft_disk::Disk;

use crate::error::{FsError, Result};
use crate::files::write::FILE_BYTES_MAX;
use crate::format::block::BLOCK_BYTES;
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::format::label::{Label, slice_name};
use crate::meta::{DiskRow, NEXT_INODE, Tx};

/// The most blocks of a disk: a pebibyte.
const BLOCKS_MAX: u64 = 1 << 38;

/// Disks that were given.
pub(crate) struct Given {
    /// Those of the file system, by number.
    pub(crate) found: BTreeMap<u16, (Label, Rc<dyn Disk>)>,
    /// Why the rest is left out.
    left_out: Vec<String>,
}

impl Given {
    /// Reads the labels of disks. Those that cannot be read are left out; with `some_will_do` also
    /// disks that have shrunk, or have a label of another version.
    pub(crate) async fn look(disks: &[Rc<dyn Disk>], some_will_do: bool) -> Result<Self> {
        let read = join_all(disks.iter().map(|disk| Label::read(&**disk))).await;
        let mut found: BTreeMap<u16, (Label, Rc<dyn Disk>)> = BTreeMap::new();
        let mut left_out = Vec::new();
        for (disk, label) in disks.iter().zip(read) {
            let name = &disk.info().name;
            let unmountable = |why: String| Err(FsError::Unmountable(why));
            let label = match label {
                Ok(Some(label)) => label,
                Ok(None) => {
                    return unmountable(format!("{name} is not a disk of a weft file system"));
                }
                Err(FsError::Disk(error)) => {
                    left_out.push(error.to_string());
                    continue;
                }
                Err(FsError::Unmountable(why)) if some_will_do => {
                    left_out.push(format!("{name}: {why}"));
                    continue;
                }
                Err(FsError::Unmountable(why)) => {
                    return unmountable(format!("{name}: {why}. Without it, mount as degraded"));
                }
                Err(error) => return Err(error),
            };
            if let Some((other, _)) = found.values().find(|(other, _)| other.fs_id != label.fs_id) {
                return unmountable(format!(
                    "{name} belongs to the file system '{}', and not to '{}' like the other disks",
                    label.name, other.name
                ));
            }
            if let Some((_, other)) = found.get(&label.number) {
                return unmountable(format!(
                    "{name} and {} are the same disk, or one is a copy of the other",
                    other.info().name
                ));
            }
            found.insert(label.number, (label, disk.clone()));
        }
        if found.is_empty() {
            let why = match left_out.is_empty() {
                true => "no disk was given".into(),
                false => format!("no disk could be read: {}", left_out.join("; ")),
            };
            return Err(FsError::Unmountable(why));
        }
        Ok(Self { found, left_out })
    }

    /// The error for a disk that is not there.
    pub(crate) fn is_missing(&self, disk: &str) -> FsError {
        let left_out = match self.left_out.is_empty() {
            true => String::new(),
            false => format!(" ({})", self.left_out.join("; ")),
        };
        FsError::Unmountable(format!(
            "{disk} is missing: give it, or mount without it as degraded{left_out}"
        ))
    }

    /// Fails if a disk with a copy of the metadata is not there. These are its slices.
    pub(crate) async fn check_copies(&self, slices: &[Rc<dyn Disk>]) -> Result<()> {
        let read = join_all(slices.iter().map(|slice| read_superblock(&**slice))).await;
        let found: Vec<Superblock> = read.into_iter().filter_map(|of| of.ok().flatten()).collect();
        let Some(newest) = found.iter().max_by_key(|of| of.seq) else { return Ok(()) };
        let are_here: Vec<String> = self.found.keys().map(|number| slice_name(*number)).collect();
        for slot in newest.slots.iter().filter(|slot| slot.state != SlotState::Missing) {
            let is_here = are_here.contains(&slot.disk_hint)
                || found.iter().any(|own| slot.member_id == Some(own.self_id));
            if !is_here {
                return Err(self.is_missing(&slot.disk_hint));
            }
        }
        Ok(())
    }

    /// Fails if the metadata's row of a disk is impossible. A crash while a disk grows leaves a
    /// label with more blocks than the metadata has.
    pub(crate) fn check_row(&self, number: u16, row: &DiskRow) -> Result<()> {
        let label = self.found.get(&number).map(|(label, _)| label);
        let is_other = |label: &Label| label.disk_id.0 == row.id && label.blocks < row.blocks;
        match row.blocks > BLOCKS_MAX || label.is_some_and(is_other) {
            true => Err(FsError::Damaged(format!(
                "disk {number} has {} blocks by the metadata, which is impossible",
                row.blocks
            ))),
            false => Ok(()),
        }
    }
}

/// Fails if numbers of files are so large that counting from them would overflow. Returns the
/// number of the next file.
pub(crate) fn check_keys(tx: &Tx<'_>) -> Result<Ino> {
    let damaged = |what: String| Err(FsError::Damaged(what));
    let next = tx.state(NEXT_INODE)?;
    if next > i64::MAX.cast_unsigned() {
        return damaged(format!("the next file would have number {next}"));
    }
    match tx.last_inode()?.filter(|last| *last >= next) {
        Some(last) => damaged(format!("there is a file {last}, and the next one would be {next}")),
        None => Ok(next),
    }
}

/// Fails if a record cannot be where it is.
pub(crate) fn check_place(next: Ino, (ino, first): (Ino, u64), record: &Extent) -> Result<()> {
    let end = first.checked_add(record.blocks());
    let most = FILE_BYTES_MAX / BLOCK_BYTES + record.k();
    match ino < next && end.is_some_and(|end| end <= most) {
        true => Ok(()),
        false => Err(FsError::Damaged(format!("inode {ino} cannot have a block {first}"))),
    }
}
