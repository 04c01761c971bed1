//! The status of an array.

use serde::{Deserialize, Serialize};
use weft_code::SlotNo;
use weft_layout::Algorithm;

use crate::format::consistency::Consistency;
use crate::format::enum_names::named;
use crate::maintenance::{Bounds, JobStatus, RebuildStatus, ScrubReport};
use crate::superblock::{LastRebuild, SlotState};

/// The status of an array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The array's name.
    pub name: String,
    /// Its identity, 32 hex digits.
    pub id: String,
    /// Its code, as given at creation.
    pub code: String,
    /// The layout of units, as given at creation.
    pub layout: Algorithm,
    /// How many more members may fail, in any combination, without loss of data. `None` if data is
    /// lost already.
    pub redundancy_remaining: Option<usize>,
    /// Whether `redundancy_remaining` is exact: some set of one more member would lose data. If
    /// not, it is a lower bound.
    pub redundancy_exact: bool,
    /// The state in one word.
    pub state: ArrayState,
    /// Why the array takes no more writes.
    pub broken: Option<String>,
    /// What cannot be read; at most the first few ranges.
    pub unreadable: Vec<ByteRange>,
    /// Capacity.
    pub size_bytes: u64,
    /// Size of a unit.
    pub unit_bytes: u64,
    /// Logical sector.
    pub sector_bytes: u64,
    /// Consistency policy.
    pub consistency: Consistency,
    /// Whether the write hole is closed: a crash together with the loss of a disk damages nothing
    /// that was not being written.
    pub write_hole_closed: bool,
    /// The slots, in order.
    pub slots: Vec<SlotStatus>,
    /// Names of the spares.
    pub spares: Vec<String>,
    /// Those that are too small for the array: they are not used.
    #[serde(default)]
    pub spares_too_small: Vec<String>,
    /// Bytes of each member that are used.
    #[serde(default)]
    pub member_bytes: u64,
    /// Bytes that each member has in addition, and that the array could use.
    #[serde(default)]
    pub unused_member_bytes: u64,
    /// Whether maintenance is paused by command: no spare is taken, nothing is rebuilt.
    pub paused: bool,
    /// Running jobs.
    pub jobs: Vec<JobStatus>,
    /// The rebuild in progress, if any.
    pub rebuild: Option<RebuildStatus>,
    /// The running scrub, or the last one.
    pub scrub: Option<ScrubReport>,
    /// When the last rebuild ended, and how long it took.
    pub last_rebuild: Option<LastRebuild>,
    /// Bounds of the jobs' rate.
    pub throttle: Bounds,
    /// Counts of regions: all, written, dirty, waiting for resync.
    pub regions: RegionCounts,
    /// Whether it is being moved to another geometry.
    #[serde(default)]
    pub reshaping: bool,
    /// The sequence number of the superblock.
    pub seq: u64,
}

/// A range of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// Where it starts.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}

impl ByteRange {
    /// Whether the byte at `offset` is in it.
    #[must_use]
    pub fn contains(&self, offset: u64) -> bool {
        offset.checked_sub(self.offset_bytes).is_some_and(|within| within < self.length_bytes)
    }
}

/// Counts of regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionCounts {
    /// Bytes of the array in a region.
    pub region_bytes: u64,
    /// All regions.
    pub total: u64,
    /// Regions that were written: only these are rebuilt.
    pub written: u64,
    /// Regions in which a write may be in progress.
    pub dirty: u64,
    /// Regions that wait for resync.
    pub resync: u64,
}

/// The state of an array. If several apply, the most important one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrayState {
    /// Every member is present and consistent.
    Healthy,
    /// Consistency is being restored after a crash.
    Resyncing,
    /// A working member is being copied to its replacement: nothing is missing.
    Replacing,
    /// The array is being moved to another geometry: nothing is missing.
    Reshaping,
    /// A member is missing, and none is being rebuilt.
    Degraded,
    /// A member is being rebuilt.
    Rebuilding,
    /// The array takes no more writes: more members failed than the code survives, or a change of
    /// membership could not take effect.
    Broken,
    /// Stopped.
    Stopped,
}

/// The state of a slot's member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// It holds everything that was written, and the superblocks on disk say so.
    Active,
    /// It failed when the array could not do without it: the array is broken.
    Failed,
    /// The slot has no member.
    Missing,
    /// It is being rebuilt, or the superblock is being written that makes it active.
    Rebuilding,
}

impl From<SlotState> for MemberState {
    fn from(state: SlotState) -> Self {
        match state {
            SlotState::Active => Self::Active,
            SlotState::Missing => Self::Missing,
            SlotState::Rebuilding { .. } => Self::Rebuilding,
        }
    }
}

named!(
    MemberState,
    Active = "active",
    Failed = "failed",
    Missing = "missing",
    Rebuilding = "rebuilding"
);

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// Its number.
    pub slot: SlotNo,
    /// The state of its member.
    pub state: MemberState,
    /// The disk's name; for a missing member the last one known.
    pub disk: String,
    /// Read errors met.
    pub read_errors: u64,
    /// Read errors repaired from redundancy.
    pub repaired: u64,
    /// Regions still to be rebuilt, or to be copied to the replacement.
    pub stale_regions: u64,
    /// The disk to which it is being copied, and which will replace it.
    pub replacement: Option<String>,
    /// Bytes that wait for space below its disk.
    pub wants_room_bytes: u64,
}

impl Status {
    /// The names of all disks that the array uses: members, replacements, spares.
    #[must_use]
    pub fn disks(&self) -> Vec<String> {
        let present = self.slots.iter().filter(|slot| slot.state != MemberState::Missing);
        let members = present.flat_map(|slot| [Some(&slot.disk), slot.replacement.as_ref()]);
        members.flatten().chain(&self.spares).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_state_is_one_word_everywhere() {
        let states = [
            (MemberState::Active, "active"),
            (MemberState::Failed, "failed"),
            (MemberState::Missing, "missing"),
            (MemberState::Rebuilding, "rebuilding"),
        ];
        for (state, word) in states {
            assert_eq!(state.to_string(), word);
            assert_eq!(serde_json::to_value(state).expect("a word"), word);
        }
    }
}
