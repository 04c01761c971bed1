//! The areas on a member.
//!
//! ```text
//! 0        label, 4 KiB
//! 128 KiB  superblock, copy 0 (even sequence numbers)
//! 256 KiB  superblock, copy 1 (odd sequence numbers)
//! 512 KiB  region map: each 4 KiB page twice, the copies adjacent
//!          log (policy ppl)
//!          head room, for later reshapes
//! n MiB    data: one unit after the other
//! the end  second label, in the last whole 4 KiB block, where there is room
//! ```
//!
//! All offsets are the same on every member of an array. They are multiples of 4096 even on disks
//! with 512-byte sectors, so that a member can be moved to a 4 KiB disk. The gaps are zeros. The
//! array can do without the end of a member: its file or volume may grow.

use serde::{Deserialize, Serialize, Serializer};
use weft_disk::Bytes;

use crate::format::consistency::Consistency;
use crate::region_map;

/// Bytes of the label, at offset 0.
pub const LABEL_BYTES: u64 = 4096;
/// Offsets of the two superblock copies.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [128 << 10, 256 << 10];
/// Space for one superblock copy, in bytes.
pub const SUPERBLOCK_BYTES: u64 = 128 << 10;
/// Where the region map starts.
pub const MAP_OFFSET: u64 = 512 << 10;
/// In a new array data starts at a multiple of this.
pub const DATA_ALIGN: u64 = 1 << 20;

/// The factor by which an array may grow before its region map is full.
const GROWTH: u64 = 8;
/// Head room, as a fraction of the member; on larger members it is [`HEAD_ROOM_MAX`].
const HEAD_ROOM_SHARE: u64 = 64;
const HEAD_ROOM_MAX: u64 = 128 << 20;

const MIB: u64 = 1 << 20;
const LOG_BYTES_DEFAULT: u64 = 16 * MIB;
const LOG_BYTES_MIN: u64 = MIB;
/// The largest log: a larger one gains nothing, and recovery reads all of it.
pub const LOG_BYTES_MAX: u64 = 1 << 30;
/// On small members the log takes at most this fraction of the member.
const LOG_SHARE: u64 = 64;

/// Members of this size and more leave room for a second label.
const SECOND_LABEL_FROM: u64 = 1 << 30;

/// Where the second label of a disk of `disk_bytes` stands; `None` if the data of a member that
/// uses `member_bytes` is there.
pub(crate) fn second_label_offset(disk_bytes: u64, member_bytes: u64) -> Option<u64> {
    let offset = (disk_bytes & !(LABEL_BYTES - 1)).checked_sub(LABEL_BYTES)?;
    (offset >= member_bytes).then_some(offset)
}

/// Bytes of a disk of `disk_bytes` that a new or growing array uses at most. On small disks a
/// second label is not worth a unit of data.
pub(crate) fn usable_bytes(disk_bytes: u64) -> u64 {
    match second_label_offset(disk_bytes, 0) {
        Some(offset) if disk_bytes >= SECOND_LABEL_FROM => offset,
        _ => disk_bytes,
    }
}

/// Offsets and sizes of a member's areas, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Area {
    /// Offset of the region map.
    pub map_offset: u64,
    /// Size of the region map: each page counts twice.
    pub map_bytes: u64,
    /// Offset of the log.
    pub log_offset: u64,
    /// Size of the log; 0 unless the policy is `ppl`.
    pub log_bytes: u64,
    /// Offset of the data.
    pub data_offset: u64,
}

/// [`Area`] for JSON output: the names on disk are shorter.
#[derive(Serialize)]
struct InBytes {
    map_offset_bytes: u64,
    map_bytes: u64,
    log_offset_bytes: u64,
    log_bytes: u64,
    data_offset_bytes: u64,
}

/// A member cannot hold such an array.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    /// The member is too small.
    #[error(
        "a member of {:#} is too small: at least {:#} are needed",
        Bytes(*member_bytes),
        Bytes(*least_bytes)
    )]
    TooSmall {
        /// The member's size.
        member_bytes: u64,
        /// The smallest size that would do.
        least_bytes: u64,
    },
    /// The log is too large for recovery to read in reasonable time.
    #[error(
        "a log of {:#} is too large: at most {} are possible",
        Bytes(*log_bytes),
        Bytes(LOG_BYTES_MAX)
    )]
    LogTooLarge {
        /// Bytes requested.
        log_bytes: u64,
    },
    /// There are too many regions for the size limit of the map.
    #[error(
        "the region map would have {regions} regions, more than {}: choose larger regions",
        region_map::REGIONS_MAX
    )]
    TooManyRegions {
        /// Regions requested.
        regions: u64,
    },
}

impl Area {
    /// Serialises it with the unit in each name.
    pub(crate) fn in_bytes<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { map_offset, map_bytes, log_offset, log_bytes, data_offset } = *self;
        let names = InBytes {
            map_offset_bytes: map_offset,
            map_bytes,
            log_offset_bytes: log_offset,
            log_bytes,
            data_offset_bytes: data_offset,
        };
        names.serialize(serializer)
    }

    /// Lays out members of `member_bytes` or more, with space in the map for `regions` regions and
    /// at least `rows_min` units of data. `log_bytes` and `head_room_bytes` are the sizes of log
    /// and head room, if not the defaults.
    ///
    /// # Errors
    /// If the member is too small (the error has the size that would do), there are too many
    /// regions, or the log is too large.
    pub fn plan(
        member_bytes: u64,
        unit_bytes: u64,
        consistency: Consistency,
        regions: u64,
        rows_min: u64,
        log_bytes: Option<u64>,
        head_room_bytes: Option<u64>,
    ) -> Result<Self, AreaError> {
        if regions > region_map::REGIONS_MAX {
            return Err(AreaError::TooManyRegions { regions });
        }
        if let Some(log_bytes) = log_bytes.filter(|bytes| *bytes > LOG_BYTES_MAX) {
            return Err(AreaError::LogTooLarge { log_bytes });
        }
        // For an array that grows.
        let most = (regions * GROWTH).min(region_map::REGIONS_MAX);
        let map_bytes = region_map::area_bytes(most);
        let log_offset = MAP_OFFSET + map_bytes;
        let log_bytes = match consistency {
            Consistency::Ppl => log_size(member_bytes, unit_bytes, log_bytes),
            Consistency::Bitmap | Consistency::None => 0,
        };
        let scaled = (member_bytes / HEAD_ROOM_SHARE).min(HEAD_ROOM_MAX) / DATA_ALIGN * DATA_ALIGN;
        let head_room = head_room_bytes.unwrap_or(scaled).min(member_bytes);
        let log_end = (log_offset + log_bytes).next_multiple_of(DATA_ALIGN);
        let data_offset = log_end + head_room.next_multiple_of(DATA_ALIGN);
        let area = Self { map_offset: MAP_OFFSET, map_bytes, log_offset, log_bytes, data_offset };
        let rows_min = rows_min.max(1);
        if area.rows(member_bytes, unit_bytes) < rows_min {
            let least_bytes = area.member_bytes(rows_min, unit_bytes).unwrap_or(u64::MAX);
            return Err(AreaError::TooSmall { member_bytes, least_bytes });
        }
        Ok(area)
    }

    /// Units of data on a member of `member_bytes`.
    #[must_use]
    pub fn rows(&self, member_bytes: u64, unit_bytes: u64) -> u64 {
        member_bytes.saturating_sub(self.data_offset) / unit_bytes
    }

    /// Bytes that a member with `rows` units of data needs; `None` if they are too many to count.
    #[must_use]
    pub fn member_bytes(&self, rows: u64, unit_bytes: u64) -> Option<u64> {
        rows.checked_mul(unit_bytes)?.checked_add(self.data_offset)
    }

    /// Whether the areas are in order, aligned, disjoint and bounded. This is checked when an area
    /// is read; whether the disk is large enough for its data is checked when the disk is used.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { map_offset, map_bytes, log_offset, log_bytes, data_offset } = *self;
        let aligned = [map_offset, map_bytes, log_offset, log_bytes, data_offset];
        let after = |offset: u64, len: u64| offset.checked_add(len);
        aligned.iter().all(|value| value.is_multiple_of(4096))
            && self.map_offset >= SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES
            && self.map_bytes <= region_map::area_bytes(region_map::REGIONS_MAX)
            && self.log_bytes <= LOG_BYTES_MAX
            && after(self.map_offset, self.map_bytes).is_some_and(|end| end <= self.log_offset)
            && after(self.log_offset, self.log_bytes).is_some_and(|end| end <= self.data_offset)
    }
}

/// Size of a new log, in bytes: `asked`, or 16 MiB and less on small members, but at least
/// [`log_bytes_min`].
pub(crate) fn log_size(member_bytes: u64, unit_bytes: u64, asked: Option<u64>) -> u64 {
    let scaled = (member_bytes / LOG_SHARE).clamp(LOG_BYTES_MIN, LOG_BYTES_DEFAULT);
    asked.unwrap_or(scaled).next_multiple_of(4096).max(log_bytes_min(unit_bytes))
}

/// The smallest log: space for the records of two whole units, since the partial parity of one
/// write may be a unit long.
pub(crate) fn log_bytes_min(unit_bytes: u64) -> u64 {
    (2 * (unit_bytes + 4096)).next_multiple_of(MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn parts_follow_each_other_and_are_aligned() {
        for member_bytes in [8 * MIB, 64 * MIB, GIB, 4096 * GIB] {
            for unit_bytes in [4096, 64 << 10, MIB] {
                for consistency in [Consistency::Ppl, Consistency::Bitmap, Consistency::None] {
                    for regions in [1, 2016, 2017, 100_000] {
                        let area = Area::plan(
                            member_bytes,
                            unit_bytes,
                            consistency,
                            regions,
                            1,
                            None,
                            None,
                        )
                        .expect("large enough");
                        assert!(area.is_sound(), "{area:?}");
                        assert!(area.rows(member_bytes, unit_bytes) > 0);
                        assert_eq!(area.log_bytes > 0, consistency == Consistency::Ppl);
                    }
                }
            }
        }
    }

    #[test]
    fn the_log_scales_with_the_member_and_holds_two_units() {
        let log = |member: u64, unit: u64| {
            Area::plan(member, unit, Consistency::Ppl, 10, 1, None, None).map(|area| area.log_bytes)
        };
        assert_eq!(log(8 * MIB, 64 << 10), Ok(MIB));
        assert_eq!(log(256 * MIB, 64 << 10), Ok(4 * MIB));
        assert_eq!(log(100 * GIB, 64 << 10), Ok(16 * MIB));
        assert_eq!(log(100 * GIB, 16 * MIB), Ok(33 * MIB));
    }

    #[test]
    fn a_small_member_is_told_the_least_size_and_that_size_does() {
        let plan = |member| Area::plan(member, MIB, Consistency::Bitmap, 1, 4, None, None);
        let Err(AreaError::TooSmall { least_bytes, .. }) = plan(MIB) else {
            panic!("1 MiB cannot hold an array");
        };
        assert_eq!(least_bytes, 5 * MIB);
        assert!(plan(least_bytes).is_ok());
        assert!(plan(least_bytes - 1).is_err());
    }

    #[test]
    fn unsound_areas_are_seen() {
        let good = Area::plan(GIB, MIB, Consistency::Ppl, 1, 4, None, None).expect("large enough");
        let breaks: [fn(&mut Area); 7] = [
            |area| area.map_offset = 4096,
            |area| area.map_bytes = u64::MAX - 4095,
            |area| area.log_offset += 1,
            |area| area.log_bytes = area.data_offset,
            |area| (area.log_bytes, area.data_offset) = (LOG_BYTES_MAX + 4096, 2 * LOG_BYTES_MAX),
            |area| area.data_offset += 512,
            |area| area.data_offset = 0,
        ];
        for broken in breaks {
            let mut area = good.clone();
            broken(&mut area);
            assert!(!area.is_sound(), "{area:?}");
        }
    }
}
