//! The superblock: what an array is, kept on each of its members.
//!
//! A superblock is a small binary header (magic, CRC32C, version, sequence number) and a JSON
//! payload that a person can read with `dd`. Each member has two copies; the one with sequence
//! number s is written to copy s mod 2, so a torn write leaves the one before, and the newest valid
//! copy is the member's. All members hold the same payload but for `self_id`, which says which of
//! them this is; slot and role are found by looking that up.
//!
//! A change takes effect when its superblock (sequence number + 1) is durable on every member that
//! it lists as active or rebuilding (a spare holds nothing that could be stale). A crash in between
//! leaves the change on some members only; each change is made such that the array is right both
//! with it and without it. Which set of members may be started from what they say is decided in
//! [`crate::assemble`].
//!
//! Versions: the format version is bumped when old programs must not touch the array at all;
//! `features` names what a program must know to use this one array. Both are refused, clearly,
//! when unknown. There are no optional features: unknown JSON fields are refused too.

mod check;
pub(crate) mod checksum;
mod codec;
mod foreign;
mod io;
mod label;
mod signatures;

use serde::{Deserialize, Serialize};
use weft_code::CodeSpec;
use weft_disk::DiskError;
use weft_layout::Algorithm;

use crate::area::Area;
use crate::jobs::RebuildPolicy;
use crate::uuid::Id;

pub use check::check_name;
use check::impossible;
pub(crate) use check::{BYTES_MAX, REGION_STRIPES_MAX, check_consistency};
pub use foreign::{Foreign, find_foreign};
pub(crate) use io::read_copies;
pub use io::{erase_label, read_superblock, write_label, write_superblock};

/// Version of the format on disk.
pub const FORMAT_VERSION: u32 = 1;
/// Features that this program knows.
pub const FEATURES: &[&str] = &[REPLACEMENT, JOINT, UNREPLAYED];
/// A working member is being copied to a replacement.
const REPLACEMENT: &str = "replacement";
/// Two majorities are needed.
const JOINT: &str = "joint";
/// The log of an earlier assembly counts.
const UNREPLAYED: &str = "unreplayed";
/// Smallest and largest unit, in bytes.
pub const UNIT_BYTES: std::ops::RangeInclusive<u64> = 4096..=(16 << 20);
/// Members that can be rebuilt at the same time: each has a lane in the region map.
pub const LANES: u8 = 8;
/// Most spares of an array.
pub const SPARES_MAX: usize = 64;
/// Longest name of an array, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// What is kept of a disk's path or URI, in characters (the end of it).
const HINT_CHARS_MAX: usize = 128;

/// How the array keeps parity and data together over a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// Partial parity log: no write hole, also when a member is lost with the crash.
    Ppl,
    /// Dirty regions are resynced after a crash.
    Bitmap,
    /// Nothing is kept; after a crash everything written is resynced.
    None,
}

impl Consistency {
    /// What suits a code: `ppl` for parity, `bitmap` for copies, `none` where nothing is redundant.
    #[must_use]
    pub fn default_for(code: CodeSpec) -> Self {
        if code == CodeSpec::Raid0 {
            Self::None
        } else if code.is_mirror() {
            Self::Bitmap
        } else {
            Self::Ppl
        }
    }
}

impl std::fmt::Display for Consistency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ppl => "ppl",
            Self::Bitmap => "bitmap",
            Self::None => "none",
        })
    }
}

/// What a slot's member is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum SlotState {
    /// Holds everything that was written.
    Active,
    /// Nobody holds the slot. The member named, if any, held it last and is stale.
    Missing,
    /// Holds what was rebuilt: all but the regions with bit `lane` in the region map.
    Rebuilding {
        /// Bit number in the region map.
        lane: u8,
    },
}

/// A position in the array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotMeta {
    /// The member in it; of a missing slot the last one.
    pub member_id: Option<Id>,
    /// What it is good for.
    pub state: SlotState,
    /// The path or URI by which it was last seen: a hint for people, never relied on.
    pub disk_hint: String,
    /// Of a missing slot: what is kept for its last member, should it come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<LeftMeta>,
    /// Who is to take the place of an active member, and has part of what that holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<ReplacementMeta>,
}

/// A member that left, and may come back with all that it held: it lacks the regions with bit
/// `lane` in the region map, and no others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftMeta {
    /// Bit number in the region map.
    pub lane: u8,
    /// The member has a superblock of this number or a later one, or was set back to an earlier
    /// state since it left.
    pub seq: u64,
    /// The assembly in which it left. A member with another number was in use since.
    pub log_epoch: u64,
    /// Whether it was not there at an assembly; otherwise it failed, or was failed by command.
    pub absent: bool,
}

/// The replacement of a member that works. It gets all writes, and holds everything but the regions
/// with bit `lane` in the region map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplacementMeta {
    /// The replacement.
    pub member_id: Id,
    /// Bit number in the region map.
    pub lane: u8,
    /// The path or URI by which it was last seen.
    pub disk_hint: String,
}

/// A member that waits to replace another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpareMeta {
    /// The member.
    pub member_id: Id,
    /// The path or URI by which it was last seen.
    pub disk_hint: String,
}

/// What a scrub does with a mismatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubMode {
    /// Counts it.
    Check,
    /// Makes parity match the data.
    Repair,
}

/// How far a scrub has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubProgress {
    /// What it does with a mismatch.
    pub mode: ScrubMode,
    /// The next stripe to look at.
    pub next_stripe: u64,
    /// Stripes looked at so far.
    #[serde(default)]
    pub stripes: u64,
    /// Stripes that did not match so far.
    pub mismatches: u64,
    /// Stripes corrected so far.
    pub repaired: u64,
    /// Stripes that could not be read so far.
    #[serde(default)]
    pub unreadable: u64,
}

/// How the last scrub ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastScrub {
    /// When, in seconds since 1970.
    pub ended_unix_s: u64,
    /// What it did with a mismatch.
    pub mode: ScrubMode,
    /// Whether it came to its end; false if it was cancelled.
    pub complete: bool,
    /// Stripes looked at.
    pub stripes: u64,
    /// Stripes that did not match.
    pub mismatches: u64,
    /// Stripes corrected.
    pub repaired: u64,
    /// Stripes that could not be read.
    pub unreadable: u64,
}

/// How the last rebuild, or replacement of a working member, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastRebuild {
    /// When, in seconds since 1970.
    pub ended_unix_s: u64,
    /// How long it took since it was started or the array was last assembled, in seconds.
    pub took_s: u64,
}

/// An array's description, as one member holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Superblock {
    /// Version of the format on disk.
    pub format_version: u32,
    /// What a program must know to use this array.
    pub features: Vec<String>,
    /// Counts the changes of the superblock.
    pub seq: u64,
    /// The array.
    pub array_id: Id,
    /// The member that holds this copy.
    pub self_id: Id,
    /// Members made so far: numbers the next one.
    pub members_made: u64,
    /// What people call the array.
    pub name: String,
    /// The stripe code.
    pub code: CodeSpec,
    /// Rotation of parity.
    pub algorithm: Algorithm,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Largest logical sector of the members: requests to the array are aligned to it inside.
    pub sector_bytes: u32,
    /// Rows of data on each slot.
    pub rows: u64,
    /// Stripes that share one entry of the region map.
    pub region_stripes: u64,
    /// How parity and data are kept together over a crash.
    pub consistency: Consistency,
    /// Whether the data areas are known to read as zeros wherever a region is unwritten.
    pub members_zeroed: bool,
    /// Where things lie on each member.
    pub area: Area,
    /// The positions, in order.
    pub slots: Vec<SlotMeta>,
    /// Members that wait.
    pub spares: Vec<SpareMeta>,
    /// Whether the array was stopped in order: nothing is dirty.
    pub clean: bool,
    /// A random number, new with each assembly; log records of other epochs are void.
    pub log_epoch: u64,
    /// The epoch of the log that the recovery of this assembly has to replay, until it has: a crash
    /// before that leaves the next assembly the same log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreplayed: Option<u64>,
    /// The scrub under way, if any.
    pub scrub: Option<ScrubProgress>,
    /// How the last scrub ended, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scrub: Option<LastScrub>,
    /// How the last rebuild ended, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_rebuild: Option<LastRebuild>,
    /// While a change is not known to be in effect, and a majority of the members before it need
    /// not share one with a majority of those after it: an assembly needs both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeds: Option<Predecessor>,
    /// How rebuilds go about their work, if that was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<RebuildPolicy>,
    /// When the array was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// When this superblock was made, in seconds since 1970.
    pub updated_unix_s: u64,
    /// The program that made it.
    pub software: String,
}

/// The superblock that was in effect when another one was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predecessor {
    /// Its number.
    pub seq: u64,
    /// The members that were active in it.
    pub active: Vec<Id>,
}

/// What a member is to its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It holds this slot, in this state.
    Slot(usize, SlotState),
    /// It is to replace the member in this slot, which works.
    Replacement(usize),
    /// It waits.
    Spare,
    /// It is not part of the array any more.
    None,
}

impl Superblock {
    /// What member `id` is to the array. The last holder of a missing slot is not part of it.
    #[must_use]
    pub fn role_of(&self, id: Id) -> Role {
        let holds =
            |slot: &SlotMeta| slot.member_id == Some(id) && slot.state != SlotState::Missing;
        if let Some(slot) = self.slots.iter().position(holds) {
            Role::Slot(slot, self.slots[slot].state)
        } else if let Some(slot) = self.slots.iter().position(|slot| {
            slot.replacement.as_ref().is_some_and(|replacement| replacement.member_id == id)
        }) {
            Role::Replacement(slot)
        } else if self.spares.iter().any(|spare| spare.member_id == id) {
            Role::Spare
        } else {
            Role::None
        }
    }

    /// An identity for one more member, that no other disk has, not even one whose adding was cut
    /// off.
    pub fn new_member_id(&mut self) -> Id {
        let id = self.array_id.member(self.log_epoch, self.members_made);
        self.members_made += 1;
        id
    }

    /// A lane of the region map that is not in use.
    pub(crate) fn unused_lane(&self) -> Option<u8> {
        let of = |slot: &SlotMeta| {
            let rebuilding = match slot.state {
                SlotState::Rebuilding { lane } => Some(lane),
                SlotState::Active | SlotState::Missing => None,
            };
            let replacement = slot.replacement.as_ref().map(|replacement| replacement.lane);
            [rebuilding, replacement, slot.left.as_ref().map(|left| left.lane)]
        };
        let used: Vec<u8> = self.slots.iter().flat_map(of).flatten().collect();
        (0..LANES).find(|lane| !used.contains(lane))
    }

    /// Whether the last member of a missing slot was not there at an assembly, and did not fail.
    pub(crate) fn was_absent(&self, slot: usize) -> bool {
        self.slots[slot].left.as_ref().is_some_and(|left| left.absent)
    }

    /// All members, spares last.
    pub fn members(&self) -> impl Iterator<Item = Id> + '_ {
        let slots = self.slots.iter().filter(|slot| slot.state != SlotState::Missing);
        let replacements = self.slots.iter().filter_map(|slot| slot.replacement.as_ref());
        slots
            .filter_map(|slot| slot.member_id)
            .chain(replacements.map(|replacement| replacement.member_id))
            .chain(self.spares.iter().map(|s| s.member_id))
    }

    /// The members that hold everything.
    pub fn active_members(&self) -> Vec<Id> {
        self.active_slots().filter_map(|slot| self.slots[slot].member_id).collect()
    }

    /// Names the features that the array needs as it is.
    pub(crate) fn note_features(&mut self) {
        let replacing = self.slots.iter().any(|slot| slot.replacement.is_some());
        let needed = [
            (REPLACEMENT, replacing),
            (JOINT, self.succeeds.is_some()),
            (UNREPLAYED, self.unreplayed.is_some()),
        ];
        let needed = needed.into_iter().filter(|(_, needed)| *needed);
        self.features = needed.map(|(name, _)| name.to_owned()).collect();
    }

    /// The slots whose members hold everything.
    pub fn active_slots(&self) -> impl Iterator<Item = usize> + '_ {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.state == SlotState::Active).map(|(index, _)| index)
    }

    /// Whole stripes of the array.
    ///
    /// # Errors
    /// If code, algorithm and slots do not go together.
    pub fn stripes(&self) -> Result<u64, SuperblockError> {
        let layout = weft_layout::for_code(self.code, self.algorithm, self.slots.len(), self.rows);
        Ok(layout.map_err(|error| impossible(error.to_string()))?.stripes(self.rows))
    }

    /// Whether it differs from `other` in nothing but whose copy it is.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        *self == Self { self_id: self.self_id, ..other.clone() }
    }
}

/// The array and the member that a disk's first 4 KiB name; none if they are no label.
///
/// # Errors
/// If they are a label, but damaged or of a version that is not known.
pub fn peek_label(bytes: &[u8]) -> Result<Option<(Id, Id)>, SuperblockError> {
    Ok(label::Label::decode(bytes)?.map(|label| (label.array_id, label.member_id)))
}

/// The end of a disk's path or URI, short enough for a superblock and fit to be printed.
#[must_use]
pub fn disk_hint(name: &str) -> String {
    let skip = name.chars().count().saturating_sub(HINT_CHARS_MAX);
    let shown = |c| if check::is_control(c) { char::REPLACEMENT_CHARACTER } else { c };
    name.chars().skip(skip).map(shown).collect()
}

/// Why a superblock cannot be had, or not be used.
#[derive(Debug, thiserror::Error)]
pub enum SuperblockError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It is a member, but its label is damaged.
    #[error(
        "the label of this member is damaged: {what}; the array can do without it and rebuild it"
    )]
    DamagedLabel {
        /// What is wrong.
        what: String,
    },
    /// Nothing was ever written to this place of a superblock copy.
    #[error("there is no superblock")]
    NotThere,
    /// It is a member, but no superblock copy is whole.
    #[error(
        "the superblock of this member is damaged: {what}; the array can do without it and rebuild it"
    )]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// Written by another version of the format.
    #[error(
        "format version {version} is not known (this program knows version {FORMAT_VERSION}): use the program that made the array"
    )]
    UnknownVersion {
        /// The version found.
        version: u32,
    },
    /// The array uses what this program does not know.
    #[error("the array needs features that are not known here: {}: use a newer program", .unknown.join(", "))]
    UnknownFeatures {
        /// Their names.
        unknown: Vec<String>,
    },
    /// Whole, but it describes no array that can be.
    #[error("the superblock describes an impossible array: {what}")]
    Impossible {
        /// What cannot be.
        what: String,
    },
    /// More members or longer names than a superblock has room for.
    #[error("a superblock of {bytes} bytes does not fit its place")]
    TooLarge {
        /// The size it would have.
        bytes: usize,
    },
}
