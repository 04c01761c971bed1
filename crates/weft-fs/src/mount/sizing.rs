//! How much room the metadata of a new file system gets.
//!
//! Each disk has a slice of the same size, and a slice has the metadata of all disks. Large files
//! need rows for places and checksums: 0.1 to 0.25 % of what they hold, and the pages around them
//! three times that. Small files need more; there are seldom so many that they fill large disks.
//! Metadata grows ([`crate::state::metadata_room`]), so it is made for usual files, and to fit the
//! steps in which the database grows. It cannot become larger than the smallest disk that has a
//! copy.

use crate::format::block::BLOCK_BYTES;
use crate::format::redundancy::Redundancy;
use crate::meta::{
    LongFiles, META_COPIES, array_bytes, capacity_for, next_step, row_bytes_for_all, step_above,
    step_below,
};

/// Bytes of the smallest slice that is chosen.
const SLICE_BYTES_MIN: u64 = 8 << 20;
/// Bytes of a disk that are neither slice nor data, about.
const LABELS_BYTES: u64 = 128 << 10;
/// Slices are whole numbers of these.
const SLICE_STEP: u64 = 1 << 20;

/// Room that a new file system will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRoom {
    /// Bytes of the metadata slice of each disk.
    pub slice_bytes: u64,
    /// Bytes of long files of its redundancy that the disks can hold when the metadata has grown.
    pub disk_bytes: u64,
    /// Bytes of these that the metadata can describe when it has grown.
    pub described_bytes: u64,
    /// Bytes of the slice of each disk then.
    pub grown_slice_bytes: u64,
}

/// The room of a new file system on disks of these sizes, with slices of this size or of the
/// default.
#[must_use]
pub fn plan_room(disks: &[u64], redundancy: Redundancy, slice: Option<u64>) -> PlannedRoom {
    match slice {
        Some(slice) => {
            let slice = slice.next_multiple_of(SLICE_STEP);
            let mut pages = step_below(0);
            while slice_for(step_above(pages)) <= slice {
                pages = step_above(pages);
            }
            room_with(disks, redundancy, slice, pages)
        }
        None => {
            let smallest = disks.iter().copied().min().unwrap_or(0);
            let for_files = (smallest / 16).min(1 << 30);
            let for_checksums = disks.iter().sum::<u64>() / 300;
            let pages = step_below(for_files.max(for_checksums).min(smallest / 8));
            room_with(disks, redundancy, slice_for(pages), pages)
        }
    }
}

/// Bytes of slices for this number of bytes of pages.
fn slice_for(pages: u64) -> u64 {
    // The array's own share comes on top.
    let slice = array_bytes(pages) + pages / 1024 + (1 << 20);
    slice.max(SLICE_BYTES_MIN).next_multiple_of(SLICE_STEP)
}

/// The room with slices of so many bytes for databases of so many bytes of pages, which grow as far
/// as that gives more.
fn room_with(disks: &[u64], redundancy: Redundancy, slice: u64, pages: u64) -> PlannedRoom {
    let files = |slice: u64| {
        let blocks = |disk: &u64| disk.saturating_sub(slice + LABELS_BYTES) / BLOCK_BYTES;
        LongFiles::on(disks.iter().map(blocks).collect(), redundancy)
    };
    let with_copies = disks.iter().take(META_COPIES).copied().min().unwrap_or(0);
    let (mut described_bytes, mut grown_slice_bytes) = (0, slice);
    let (mut grown, mut pages) = (slice, pages);
    while grown == slice || grown + LABELS_BYTES < with_copies {
        let described = files(grown).described(row_bytes_for_all(capacity_for(pages)));
        if described * BLOCK_BYTES > described_bytes {
            (described_bytes, grown_slice_bytes) = (described * BLOCK_BYTES, grown);
        }
        if described == files(grown).blocks {
            break;
        }
        pages = next_step(pages);
        grown = slice_for(pages).max(grown + 1);
    }
    let disk_bytes = files(grown_slice_bytes).blocks * BLOCK_BYTES;
    PlannedRoom { slice_bytes: slice, disk_bytes, described_bytes, grown_slice_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn metadata_is_made_for_the_disks_that_there_are() {
        for (disks, percent) in [
            (vec![128 * MIB, 4 * GIB, 4 * GIB], 100),
            (vec![4 * GIB, 4 * GIB], 100),
            (vec![1 << 40, 1 << 40], 100),
            (vec![4 << 40, 4 << 40], 100),
            (vec![100 * GIB, 4 << 40, 4 << 40, 4 << 40], 100),
            (vec![8 << 40; 12], 100),
            // All of the smallest would not be enough.
            (vec![16 * GIB, 4 << 40, 4 << 40], 10),
        ] {
            let room = plan_room(&disks, Redundancy::Auto, None);
            assert!(
                room.described_bytes >= room.disk_bytes / 100 * percent,
                "{room:?} for {disks:?}"
            );
            assert!(room.slice_bytes <= disks[0] / 4, "{room:?} for {disks:?}");
            assert!(room.grown_slice_bytes <= disks[0], "{room:?} for {disks:?}");
            let same = plan_room(&disks, Redundancy::Auto, Some(room.slice_bytes));
            assert_eq!(same, room, "{disks:?}");
        }
    }

    #[test]
    fn disks_that_are_alike_get_slices_as_ever() {
        let share = |disks: &[u64]| {
            let slice = plan_room(disks, Redundancy::Auto, None).slice_bytes;
            slice * 1000 / disks[0]
        };
        assert!(share(&[GIB; 4]) <= 82, "{}", share(&[GIB; 4]));
        assert!(share(&[1 << 40; 4]) <= 20, "{}", share(&[1 << 40; 4]));
    }
}
