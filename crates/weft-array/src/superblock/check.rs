//! What a superblock may contain.
//!
//! A superblock comes from a disk, and its checksum only shows that it is undamaged. A disk from
//! elsewhere, or a member file written by another user, can hold any numbers under a correct
//! checksum. The rest of the program computes sizes, offsets and indices from these numbers, and
//! paths from the names. So everything it relies on is checked here, in one place, each time a
//! superblock is read and before one is written.
//!
//! The rules:
//!
//! * What [`Superblock::check`] bounds needs no checked arithmetic later: `rows` × `unit_bytes` ×
//!   slots fit [`BYTES_MAX`], a region has [`REGION_BYTES_MAX`] at most, and every counter is at
//!   most [`COUNT_MAX`] and has room to grow.
//! * No value on disk decides how much memory is taken at once: log and map have upper bounds
//!   (`LOG_BYTES_MAX`, `REGIONS_MAX`) and are read in pieces.
//! * Create allows exactly the superblocks accepted here; names pass [`check_name`] in both
//!   directions.

use std::collections::BTreeSet;

use weft_code::{CodeSpec, SLOTS_MAX};

use super::{
    HINT_CHARS_MAX, LastScrub, NAME_BYTES_MAX, ScrubProgress, Shape, SlotState, Superblock,
    SuperblockError, UNIT_BYTES,
};
use crate::format::consistency::Consistency;
use crate::region_map;
use crate::superblock::area::log_bytes_min;

/// Most bytes of all members of an array together: what NBD and the kernel can count.
pub(crate) const BYTES_MAX: u64 = i64::MAX.cast_unsigned();
/// Largest region, in array bytes.
pub(crate) const REGION_BYTES_MAX: u64 = 1 << 62;
/// Most stripes of a region: a rebuild keeps one bit for each in memory.
pub(crate) const REGION_STRIPES_MAX: u64 = 1 << 26;
/// Largest value of any counter: one change per microsecond for eight years, and far from overflow.
const COUNT_MAX: u64 = 1 << 48;
/// Longest name of the writing program, in bytes.
const SOFTWARE_BYTES_MAX: usize = 128;

/// Checks the name of an array. It becomes the name of a folder when the array is attached, and
/// part of URIs, log lines and terminal output, so only ASCII letters, digits and `-_.` are
/// allowed.
///
/// # Errors
/// What is wrong, as a continuation of "the array's name".
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("must have 1 to {NAME_BYTES_MAX} characters"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !name.chars().all(plain) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("must be made of letters, digits and `-_.`, a letter or digit first".into());
    }
    Ok(())
}

/// Whether a character affects a terminal instead of being shown: controls, line separators, and
/// characters that reverse the direction of text.
pub(super) fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Checks that a policy fits a code; the error gives the reason.
pub(crate) fn check_consistency(code: CodeSpec, consistency: Consistency) -> Result<(), String> {
    let fits = match consistency {
        Consistency::Ppl => code != CodeSpec::Raid0 && !code.is_mirror(),
        Consistency::Bitmap => code != CodeSpec::Raid0,
        Consistency::None => true,
    };
    let better = Consistency::default_for(code);
    if fits {
        return Ok(());
    }
    Err(format!("consistency '{consistency}' makes no sense with {code}: use '{better}'"))
}

pub(super) fn impossible(what: impl Into<String>) -> SuperblockError {
    SuperblockError::Impossible { what: what.into() }
}

/// Fails with an impossible superblock, for this reason, unless `holds`.
fn require(holds: bool, what: &str) -> Result<(), SuperblockError> {
    if holds { Ok(()) } else { Err(impossible(what)) }
}

impl Superblock {
    /// Checks everything that the rest of the program relies on.
    pub(crate) fn check(&self) -> Result<(), SuperblockError> {
        self.check_text()?;
        self.check_counters()?;
        self.check_shape()?;
        self.check_members()
    }

    fn check_text(&self) -> Result<(), SuperblockError> {
        check_name(&self.name).map_err(|why| impossible(format!("its name {why}")))?;
        let software = self.software.len() <= SOFTWARE_BYTES_MAX;
        let software = software && !self.software.chars().any(is_control);
        require(software, "the name of the program that made it is too long or not plain text")?;
        let replacements = self.slots.iter().filter_map(|slot| slot.replacement.as_ref());
        let hints = (self.slots.iter().map(|slot| &slot.disk_hint))
            .chain(replacements.map(|replacement| &replacement.disk_hint))
            .chain(self.spares.iter().map(|spare| &spare.disk_hint));
        let is_sound =
            |hint: &String| hint.chars().take(HINT_CHARS_MAX + 1).count() <= HINT_CHARS_MAX;
        let mut hints = hints.map(|hint| is_sound(hint) && !hint.chars().any(is_control));
        require(hints.all(|sound| sound), "the name of a disk is too long or not plain text")
    }

    fn check_counters(&self) -> Result<(), SuperblockError> {
        require((1..=COUNT_MAX).contains(&self.seq), "its sequence number is out of range")?;
        require(self.members_made <= COUNT_MAX, "its number of members made is out of range")?;
        let scrub = self.scrub.iter().flat_map(|scrub| {
            let ScrubProgress { next_stripe, stripes, mismatches, repaired, unreadable, .. } =
                *scrub;
            [next_stripe, stripes, mismatches, repaired, unreadable]
        });
        let last = self.last_scrub.iter().flat_map(|last| {
            let LastScrub { ended_unix_s, stripes, mismatches, repaired, unreadable, .. } = *last;
            [ended_unix_s, stripes, mismatches, repaired, unreadable]
        });
        let rebuild = self.last_rebuild.iter().flat_map(|last| [last.ended_unix_s, last.took_s]);
        let sound = scrub.chain(last).chain(rebuild).all(|count| count <= COUNT_MAX);
        require(sound, "the counts of a scrub or rebuild are out of range")?;
        let policy = self.rebuild.as_ref().is_none_or(|chosen| chosen.policy.check().is_ok());
        require(policy, "a parameter of its rebuilds is out of range")
    }

    /// Checks sizes and offsets.
    fn check_shape(&self) -> Result<(), SuperblockError> {
        let sector = matches!(self.sector_bytes, 512 | 4096);
        require(sector, "the sector is neither 512 nor 4096 bytes")?;
        require((1..=SLOTS_MAX).contains(&self.slots.len()), "it has no slots, or too many")?;
        require(self.area.is_sound(), "its areas overlap, or are misaligned or too large")?;
        self.shapes().try_for_each(|shape| self.check_geometry(&shape))?;
        let counted = self.map_regions <= region_map::REGIONS_MAX
            && region_map::area_bytes(self.map_regions) <= self.area.map_bytes;
        require(counted, "the size of its region map is out of range")?;
        let Some(reshape) = &self.reshape else { return Ok(()) };
        let old = reshape.from.regions(self.region_bytes)?.size_bytes();
        let new = self.shape().regions(self.region_bytes)?.size_bytes();
        let widest = reshape.from.slots.max(reshape.slots);
        require(widest == self.slots.len(), "its geometries have more slots, or fewer")?;
        let within = reshape.checkpoint_bytes <= old.max(new);
        require(within, "the checkpoint of its reshape lies beyond its end")?;
        // Everything on one side of it is in the new geometry, in whole stripes.
        let edge = self.shape().regions(self.region_bytes)?.stripe_bytes;
        let at_edge = reshape.checkpoint_bytes.is_multiple_of(edge);
        require(at_edge, "the checkpoint of its reshape lies within a stripe")?;
        let distinct = reshape.from_generation != self.generation;
        require(distinct, "both geometries of its reshape have the same number")
    }

    fn check_geometry(&self, shape: &Shape) -> Result<(), SuperblockError> {
        let unit = shape.unit_bytes.is_power_of_two() && UNIT_BYTES.contains(&shape.unit_bytes);
        require(unit, "the unit is not a power of two from 4096 bytes to 16 MiB")?;
        require((1..=SLOTS_MAX).contains(&shape.slots), "it has no slots, or too many")?;
        let all = shape.member_bytes().and_then(|bytes| bytes.checked_mul(shape.slots as u64));
        let fits = shape.rows > 0 && all.is_some_and(|bytes| bytes <= BYTES_MAX);
        require(fits, "its size is out of range")?;
        let log_end = self.area.log_offset + self.area.log_bytes;
        let after = shape.data_offset.is_multiple_of(4096) && shape.data_offset >= log_end;
        require(after, "its data overlaps its log, or is misaligned")?;
        check_consistency(shape.code, self.consistency).map_err(impossible)?;
        let log = match self.consistency {
            Consistency::Ppl => self.area.log_bytes >= log_bytes_min(shape.unit_bytes),
            Consistency::Bitmap | Consistency::None => self.area.log_bytes == 0,
        };
        require(log, "its log is too small, or it has one that its policy does not use")?;
        let regions = shape.regions(self.region_bytes)?;
        require(regions.stripes > 0, "it has no stripes")?;
        let sound = self.region_bytes.is_power_of_two()
            && (regions.stripe_bytes..=REGION_BYTES_MAX).contains(&self.region_bytes)
            && regions.stripes_max() <= REGION_STRIPES_MAX;
        require(sound, "the size of its regions is out of range")?;
        let map = regions.count() <= region_map::REGIONS_MAX
            && region_map::area_bytes(regions.count()) <= self.area.map_bytes;
        require(map, "its region map is too small for its regions")
    }

    fn check_members(&self) -> Result<(), SuperblockError> {
        require(self.spares.len() <= super::SPARES_MAX, "it has too many spares")?;
        let predecessor = self.succeeds.as_ref().is_none_or(|before| {
            before.seq < self.seq && (1..=SLOTS_MAX).contains(&before.active.len())
        });
        require(predecessor, "the superblock that it succeeds is not a possible predecessor")?;
        let may_replay = !self.clean && self.consistency == Consistency::Ppl;
        require(
            self.unreplayed.is_none() || may_replay,
            "it names a log to replay that it cannot have",
        )?;
        let mut members = BTreeSet::new();
        let distinct = self.members().all(|id| members.insert(id));
        require(distinct, "a member is listed twice")?;
        let mut lanes = BTreeSet::new();
        for slot in &self.slots {
            let sound = match slot.state {
                SlotState::Missing => true,
                SlotState::Active => slot.member_id.is_some(),
                SlotState::Rebuilding { lane } => {
                    slot.member_id.is_some() && lane.exists() && lanes.insert(lane)
                }
            };
            let replaced = slot.replacement.as_ref().is_none_or(|replacement| {
                let lane = replacement.lane;
                slot.state == SlotState::Active && lane.exists() && lanes.insert(lane)
            });
            let left = slot.left.as_ref().is_none_or(|left| {
                let missing = slot.state == SlotState::Missing && slot.member_id.is_some();
                missing && left.lane.exists() && lanes.insert(left.lane)
            });
            require(sound && replaced && left, "a slot has no member, or an impossible lane")?;
        }
        Ok(())
    }
}
