//! The superblock: the description of an array, stored on each of its members.
//!
//! A superblock is a small binary header (magic, CRC32C, version, sequence number) and a JSON
//! payload that a person can read with `dd`. Each member has two copies. The superblock with
//! sequence number s goes to copy s mod 2, so a torn write leaves the previous one; the newest
//! valid copy counts. All members hold the same payload except for `self_id`, the identity of the
//! member itself; slot and role are found by looking it up.
//!
//! A change takes effect when its superblock (sequence number + 1) is durable on every member that
//! it lists as active or rebuilding (a spare holds nothing that could be stale). A crash before
//! that leaves the change on some members only; every change is made so that the array is right
//! both with it and without it. Which sets of members may be started is decided in
//! [`crate::members::assemble`].
//!
//! Versions: the format version increases when old programs must not touch any array of the new
//! format. `features` names what a program must support to use this particular array. Unknown
//! versions and features are refused with a clear message. There are no optional features: unknown
//! JSON fields are refused too.

pub mod area;
mod check;
mod codec;
pub(crate) mod disk_contents;
mod foreign;
mod io;
mod label;
pub(crate) mod salvage;
mod shape;
mod signatures;
pub(crate) mod wipe;

use serde::{Deserialize, Serialize};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::DiskError;
use weft_layout::Algorithm;
use weft_stripe::Generation;

use crate::format::consistency::Consistency;
use crate::format::lane::Lane;
use crate::format::preferences::Preferences;
use crate::format::uuid::Id;
use crate::superblock::area::Area;

pub use check::check_name;
pub(crate) use check::{BYTES_MAX, REGION_BYTES_MAX, REGION_STRIPES_MAX, check_consistency};
pub use foreign::{Foreign, find_foreign};
pub(crate) use io::{
    SecondLabel, mark_erased, read_copies, read_second_label, write_labels, write_second_label,
};
pub use io::{erase_label, read_superblock, write_label, write_superblock};
pub(crate) use shape::direction;
pub use shape::{Reshape, Shape};

/// Version of the format on disk.
pub const FORMAT_VERSION: u32 = 2;
/// Features that this program supports.
pub const FEATURES: &[&str] = &[REPLACEMENT, JOINT, UNREPLAYED, RESHAPE];
/// A working member is being copied to a replacement.
const REPLACEMENT: &str = "replacement";
/// Assembly needs two majorities.
const JOINT: &str = "joint";
/// The log of an earlier assembly must be replayed.
const UNREPLAYED: &str = "unreplayed";
/// The geometry is being changed, or was: the superblock has numbers for it.
const RESHAPE: &str = "reshape";
/// Smallest and largest unit, in bytes.
pub const UNIT_BYTES: std::ops::RangeInclusive<u64> = 4096..=(16 << 20);
/// Most spares of an array.
pub const SPARES_MAX: usize = 64;
/// Longest name of an array, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Characters kept of a disk's path or URI (the end of it).
pub(crate) const HINT_CHARS_MAX: usize = 128;

/// What the member of a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum SlotState {
    /// Everything that was written.
    Active,
    /// The slot has no member. The member named, if any, was the last one, and is stale.
    Missing,
    /// What has been rebuilt: everything except the regions with bit `lane` in the region map.
    Rebuilding {
        /// Bit number in the region map.
        lane: Lane,
    },
}

/// A slot of the array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotMeta {
    /// Its member; of a missing slot, the last one.
    pub member_id: Option<Id>,
    /// What the member holds.
    pub state: SlotState,
    /// The last known path or URI: a hint for people, not relied on.
    pub disk_hint: String,
    /// Of a missing slot: a record of its former member, in case it comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<LeftMeta>,
    /// The disk that is to replace the active member, and holds part of its contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<ReplacementMeta>,
}

/// A former member that may come back with its data: it lacks exactly the regions with bit `lane`
/// in the region map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftMeta {
    /// Bit number in the region map.
    pub lane: Lane,
    /// The member's superblock has this number or a later one, unless it was set back to an earlier
    /// state since it left.
    pub seq: u64,
    /// The assembly in which it left. A member with another epoch was in use elsewhere since.
    pub log_epoch: u64,
    /// Whether it was absent at an assembly; otherwise it failed, or was failed by command.
    pub absent: bool,
}

/// The replacement of a working member. It gets all writes except where its lane is stale, and
/// holds everything except the regions with bit `lane` in the region map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplacementMeta {
    /// The replacement.
    pub member_id: Id,
    /// Bit number in the region map.
    pub lane: Lane,
    /// The last known path or URI.
    pub disk_hint: String,
}

/// A spare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpareMeta {
    /// Its identity.
    pub member_id: Id,
    /// The last known path or URI.
    pub disk_hint: String,
}

/// What a scrub does with a mismatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubMode {
    /// Counts it.
    Check,
    /// Corrects it: the wrong unit if it can be located, otherwise the parity.
    Repair,
}

/// The progress of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubProgress {
    /// What it does with a mismatch.
    pub mode: ScrubMode,
    /// The next stripe to compare.
    pub next_stripe: u64,
    /// Stripes compared so far.
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

/// The result of the last scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastScrub {
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// What it did with a mismatch.
    pub mode: ScrubMode,
    /// Whether it covered the whole array; false if it was cancelled.
    pub complete: bool,
    /// Stripes compared.
    pub stripes: u64,
    /// Stripes that did not match.
    pub mismatches: u64,
    /// Stripes corrected.
    pub repaired: u64,
    /// Stripes that could not be read.
    pub unreadable: u64,
}

/// The last rebuild, or replacement of a working member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastRebuild {
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// How long it took, in seconds, since it was started or the array was last assembled.
    pub took_s: u64,
}

/// The description of an array, as stored on one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Superblock {
    /// Version of the format on disk.
    pub format_version: u32,
    /// Features that a program must support to use this array.
    pub features: Vec<String>,
    /// Number of the superblock; each change increases it.
    pub seq: u64,
    /// The array.
    pub array_id: Id,
    /// The member that holds this copy.
    pub self_id: Id,
    /// Members made so far; the next one gets this number.
    pub members_made: u64,
    /// The array's name.
    pub name: String,
    /// The stripe code.
    pub code: CodeSpec,
    /// The layout of units.
    pub algorithm: Algorithm,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Largest logical sector of the members: requests to them are aligned to it.
    pub sector_bytes: u32,
    /// Units of data on each slot.
    pub rows: u64,
    /// Array bytes that share one entry of the region map; a power of two.
    pub region_bytes: u64,
    /// How parity is kept consistent with data across a crash.
    pub consistency: Consistency,
    /// Whether the data areas are known to read as zeros where regions are unwritten.
    pub members_zeroed: bool,
    /// The areas on each member.
    pub area: Area,
    /// The slots, in order.
    pub slots: Vec<SlotMeta>,
    /// The spares.
    pub spares: Vec<SpareMeta>,
    /// Whether the array was stopped cleanly: nothing is dirty.
    pub clean: bool,
    /// Random number, new for each assembly; log records of other epochs are void.
    pub log_epoch: u64,
    /// The epoch of the log that this assembly still has to replay. A crash before it has done so
    /// leaves the same log to the next assembly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreplayed: Option<u64>,
    /// The scrub in progress, if any.
    pub scrub: Option<ScrubProgress>,
    /// The result of the last scrub, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scrub: Option<LastScrub>,
    /// The last rebuild, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_rebuild: Option<LastRebuild>,
    /// The previous superblock, while this one is not known to be in effect, if a majority of its
    /// active members may share no member with a majority of the present ones: assembly then needs
    /// both majorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeds: Option<Predecessor>,
    /// The rebuild policy and the bounds of the rate of jobs, if they were changed. What is in
    /// words of another version is ignored: no array stays down for a preference.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Preferences::if_known"
    )]
    pub rebuild: Option<Preferences>,
    /// The number of the geometry; while it is being changed, of the new one. Log records carry it.
    #[serde(default, skip_serializing_if = "is_first", with = "generation")]
    pub generation: Generation,
    /// The highest number that a geometry of this array has had. The next one gets one more.
    #[serde(default, skip_serializing_if = "is_first", with = "generation")]
    pub last_generation: Generation,
    /// The most regions that a geometry has had, if it was ever changed: the region map keeps their
    /// pages, and thereby counts the writes of each.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub map_regions: u64,
    /// A change of the geometry in progress.
    pub reshape: Option<Reshape>,
    /// When the array was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// When this superblock was made, in seconds since 1970.
    pub updated_unix_s: u64,
    /// The program that made it.
    pub software: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_first(generation: &Generation) -> bool {
    *generation == Generation::default()
}

/// [`Generation`] as a number.
mod generation {
    use serde::{Deserialize, Deserializer, Serializer};
    use weft_stripe::Generation;

    pub fn serialize<S: Serializer>(generation: &Generation, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u16(generation.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Generation, D::Error> {
        u16::deserialize(from).map(Generation)
    }
}

/// The superblock in effect when another one was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predecessor {
    /// Its sequence number.
    pub seq: u64,
    /// Its active members.
    pub active: Vec<Id>,
}

/// The role of a member in its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The member of this slot, in this state.
    Slot(SlotNo, SlotState),
    /// The replacement of the working member in this slot.
    Replacement(SlotNo),
    /// A spare.
    Spare,
    /// No longer part of the array.
    None,
}

impl Superblock {
    /// The role of member `id`. The former member of a missing slot is not part of the array.
    #[must_use]
    pub fn role_of(&self, id: Id) -> Role {
        let holds =
            |slot: &SlotMeta| slot.member_id == Some(id) && slot.state != SlotState::Missing;
        if let Some(slot) = self.slots.iter().position(holds) {
            Role::Slot(SlotNo(slot), self.slots[slot].state)
        } else if let Some(slot) = self.slots.iter().position(|slot| {
            slot.replacement.as_ref().is_some_and(|replacement| replacement.member_id == id)
        }) {
            Role::Replacement(SlotNo(slot))
        } else if self.spares.iter().any(|spare| spare.member_id == id) {
            Role::Spare
        } else {
            Role::None
        }
    }

    /// An identity for a new member. No other disk has it, not even one whose adding was
    /// interrupted.
    pub fn new_member_id(&mut self) -> Id {
        let id = self.array_id.member(self.log_epoch, self.members_made);
        self.members_made += 1;
        id
    }

    /// Whether the former member of a missing slot was absent at an assembly, and did not fail.
    pub(crate) fn was_absent(&self, slot: SlotNo) -> bool {
        self.slots[slot.0].left.as_ref().is_some_and(|left| left.absent)
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

    /// The active members, which hold everything.
    pub fn active_members(&self) -> Vec<Id> {
        self.active_slots().filter_map(|slot| self.slots[slot.0].member_id).collect()
    }

    /// Sets the features that the array needs in its present state.
    pub(crate) fn note_features(&mut self) {
        let replacing = self.slots.iter().any(|slot| slot.replacement.is_some());
        let needed = [
            (REPLACEMENT, replacing),
            (JOINT, self.succeeds.is_some()),
            (UNREPLAYED, self.unreplayed.is_some()),
            (RESHAPE, self.reshape.is_some() || !is_first(&self.last_generation)),
        ];
        let needed = needed.into_iter().filter(|(_, needed)| *needed);
        self.features = needed.map(|(name, _)| name.to_owned()).collect();
    }

    /// Shortens the names of disks until the superblock fits its space: they are hints for people,
    /// and no change of members may fail for them.
    pub(crate) fn shorten_hints(&mut self) {
        for most in [HINT_CHARS_MAX / 2, HINT_CHARS_MAX / 4, HINT_CHARS_MAX / 8, 0] {
            if !matches!(self.encode(self.self_id), Err(SuperblockError::TooLarge { .. })) {
                return;
            }
            let replacements = self.slots.iter_mut().filter_map(|slot| slot.replacement.as_mut());
            let replacements = replacements.map(|replacement| &mut replacement.disk_hint);
            replacements.for_each(|hint| shorten(hint, most));
            self.slots.iter_mut().for_each(|slot| shorten(&mut slot.disk_hint, most));
            self.spares.iter_mut().for_each(|spare| shorten(&mut spare.disk_hint, most));
        }
    }

    /// The slots with active members.
    pub fn active_slots(&self) -> impl Iterator<Item = SlotNo> + '_ {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.state == SlotState::Active).map(|(index, _)| SlotNo(index))
    }

    /// Whether it differs from `other` in `self_id` only.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        *self == Self { self_id: self.self_id, ..other.clone() }
    }
}

/// The array and member identities in a disk's first 4 KiB; `None` if they are not a label.
///
/// # Errors
/// If they are a label, but damaged or of an unknown version.
pub fn peek_label(bytes: &[u8]) -> Result<Option<(Id, Id)>, SuperblockError> {
    Ok(label::Label::decode(bytes, 0)?.map(|label| (label.array_id, label.member_id)))
}

/// Whether a disk's first 4 KiB are the mark of a member that is being erased: nothing of value.
pub(crate) fn is_erased(bytes: &[u8]) -> bool {
    bytes.get(..label::LEN) == Some(&label::erased())
}

/// The end of a disk's path or URI, shortened for a superblock and safe to print.
#[must_use]
pub fn disk_hint(name: &str) -> String {
    let skip = name.chars().count().saturating_sub(HINT_CHARS_MAX);
    let shown = |c| if check::is_control(c) { char::REPLACEMENT_CHARACTER } else { c };
    name.chars().skip(skip).map(shown).collect()
}

/// Keeps the last `most` characters.
fn shorten(hint: &mut String, most: usize) {
    let skip = hint.chars().count().saturating_sub(most);
    *hint = hint.chars().skip(skip).collect();
}

/// What a user can do about an array of another format version.
fn way_out(version: u32) -> &'static str {
    if version > FORMAT_VERSION {
        return "use a newer program";
    }
    "serve it with the program that made it, and copy its data to a new array"
}

/// A superblock could not be read, or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SuperblockError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The disk is a member, but its label is damaged.
    #[error(
        "the label of this member is damaged: {what}; the array can do without it and rebuild it"
    )]
    DamagedLabel {
        /// What is wrong.
        what: String,
    },
    /// This superblock copy was never written.
    #[error("there is no superblock")]
    NotThere,
    /// The disk is a member, but no superblock copy is valid.
    #[error(
        "the superblock of this member is damaged: {what}; the array can do without it and rebuild it"
    )]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// The superblock has an unknown format version.
    #[error(
        "unsupported format version {version} (this program supports version {FORMAT_VERSION}): {}",
        way_out(*version)
    )]
    UnknownVersion {
        /// The version found.
        version: u32,
    },
    /// The array needs features that this program does not support.
    #[error("the array needs features that this program does not support: {}; use a newer program", .unknown.join(", "))]
    UnknownFeatures {
        /// Their names.
        unknown: Vec<String>,
    },
    /// The superblock is valid, but describes an impossible array.
    #[error("the superblock describes an impossible array: {what}")]
    Impossible {
        /// What is impossible.
        what: String,
    },
    /// There are more members, or longer names, than fit in a superblock.
    #[error("a superblock of {bytes} bytes does not fit its space on the member")]
    TooLarge {
        /// The size it would have.
        bytes: usize,
    },
}
