//! Disks that come back: what they still have is used.
//!
//! A lost disk misses writes, and they are not recorded. But the extents of files have a checksum
//! of each block. So a disk that comes back is verified block by block.
//!
//! ```text
//!   disk 1 is lost ── it is added again ──▶ it is disk 4, the successor of disk 1
//!      extents name disk 1 ── each block of it is read: its checksum matches ──▶ it stays
//!                                                       wrong, or not known ──▶ rebuilt in place
//!      the extent names disk 4 from then on; when none names disk 1 any more, disk 1 leaves
//! ```
//!
//! The new number marks verified blocks: a column on disk 1 is lost as before, and is never
//! written; one on disk 4 is as good as any. So a crash leaves each extent old or new, as in every
//! rebuild: this is a kind of rebuild ([`crate::jobs::rebuild`]). Until a column is verified,
//! single blocks of it are used where nothing else gives a line ([`crate::disks::extent_stripe`]):
//! files that lost two disks at once are readable as soon as one of them is back.
//!
//! Both numbers stand for the same blocks: a block that extents of disk 1 name is not free on
//! disk 4. A disk may be lost and come back several times; then its numbers are a chain.
//!
//! *Limits.* A block that was overwritten in the meantime has the same checksum in one of four
//! billion cases. Blocks that end with a CRC32C of their own always have: these are computed where
//! they can be ([`crate::format::checksum`]). Lines that need blocks of such a disk are not
//! overwritten before they are rebuilt. An extent with parity whose checksum is not known, and that
//! cannot be computed, keeps the old number.

use crate::error::Result;
use crate::format::label::Label;
use crate::meta::{DiskRow, Tx};

/// Under which name the state has the number of a disk's successor, plus one.
fn state_name(number: u16) -> String {
    format!("successor of disk {number}")
}

/// A disk that was lost gets a successor, once that has joined.
pub(crate) fn put_successor(tx: &Tx<'_>, number: u16, successor: u16) -> Result<()> {
    tx.set_state(&state_name(number), u64::from(successor) + 1)
}

/// The successor of a disk, if it ever was to have one. It may not have joined.
pub(crate) fn successor_in(tx: &Tx<'_>, number: u16) -> Result<Option<u16>> {
    let stored = tx.state(&state_name(number))?.checked_sub(1);
    // Numbers only grow, so a chain has an end.
    Ok(stored.and_then(|by| u16::try_from(by).ok()).filter(|by| *by > number))
}

/// A disk that has its label comes into the metadata. Blocks that are bad stay bad under its new
/// number.
pub(crate) fn put_joined(tx: &Tx<'_>, label: &Label, row: &DiskRow) -> Result<()> {
    for (number, _) in tx.disks()? {
        if successor_in(tx, number)? != Some(label.number) {
            continue;
        }
        for (disk, block) in tx.bad_blocks()? {
            if disk == number {
                tx.put_bad(label.number, block)?;
            }
        }
    }
    tx.put_disk(label.number, row)
}

/// Takes a disk that goes out of the chains in the state.
pub(crate) fn forget_in(tx: &Tx<'_>, number: u16, before: &[(u16, Option<u16>)]) -> Result<()> {
    tx.set_state(&state_name(number), 0)?;
    before.iter().try_for_each(|(before, next)| {
        tx.set_state(&state_name(*before), next.map_or(0, |next| u64::from(next) + 1))
    })
}
