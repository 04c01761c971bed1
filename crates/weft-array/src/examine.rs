//! What a single member says, offline: for people who must find out what happened.

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::json;
use weft_disk::{Class, Disk, DiskError};
use weft_rt::Buf;

use crate::create::map_config;
use crate::region_map::RegionMap;
use crate::status::MemberState;
use crate::superblock::{
    Foreign, LANES, Role, SlotState, Superblock, SuperblockError, find_foreign, read_copies,
};
use crate::uuid::Id;

/// Everything of one member.
#[derive(Debug, Clone, Serialize)]
pub struct MemberReport {
    /// The disk.
    pub disk: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its sectors, in bytes.
    pub sector_bytes: u32,
    /// Whether it is a member, and in which condition.
    pub label: LabelReport,
    /// The superblock copies, if it is a member.
    pub copies: Vec<CopyReport>,
    /// What it is to its array, by its newest superblock.
    #[serde(serialize_with = "in_words")]
    pub role: Option<Role>,
    /// Its newest superblock.
    #[serde(serialize_with = "in_plain_words")]
    pub superblock: Option<Superblock>,
    /// Why there is none, if it is a member.
    pub fault: Option<String>,
    /// The region map as this member has it.
    pub region_map: Option<MapReport>,
}

/// The label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum LabelReport {
    /// A member.
    Whole {
        /// The array.
        array_id: Id,
        /// The member.
        member_id: Id,
    },
    /// A member whose label cannot be used.
    Faulty {
        /// Why not.
        what: String,
    },
    /// No member.
    None {
        /// What stands there instead, if it is recognised.
        foreign: Option<Foreign>,
    },
}

/// A superblock copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum CopyReport {
    /// It can be used.
    Whole {
        /// Its sequence number.
        seq: u64,
    },
    /// Nothing was written to its place yet: a new array has one copy only.
    Unwritten,
    /// It cannot be used.
    Faulty {
        /// Why not.
        what: String,
    },
}

/// A role as an object of words and numbers.
#[derive(Serialize)]
struct RoleReport {
    kind: &'static str,
    slot: Option<usize>,
    state: Option<MemberState>,
}

fn in_words<S: Serializer>(role: &Option<Role>, serializer: S) -> Result<S::Ok, S::Error> {
    let report = role.map(|role| {
        let (kind, slot, state) = match role {
            Role::Slot(slot, SlotState::Active) => ("slot", Some(slot), Some(MemberState::Active)),
            Role::Slot(slot, SlotState::Missing) => {
                ("slot", Some(slot), Some(MemberState::Missing))
            }
            Role::Slot(slot, SlotState::Rebuilding { .. }) => {
                ("slot", Some(slot), Some(MemberState::Rebuilding))
            }
            Role::Replacement(slot) => ("replacement", Some(slot), None),
            Role::Spare => ("spare", None, None),
            Role::None => ("former-member", None, None),
        };
        RoleReport { kind, slot, state }
    });
    report.serialize(serializer)
}

/// A superblock as it is on disk, but for names without a unit and a state that is no word.
fn in_plain_words<S: Serializer>(
    superblock: &Option<Superblock>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Some(superblock) = superblock else { return serializer.serialize_none() };
    let mut fields = serde_json::to_value(superblock).map_err(S::Error::custom)?;
    let area = superblock.area.in_bytes(serde_json::value::Serializer);
    fields["area"] = area.map_err(S::Error::custom)?;
    for (slot, meta) in superblock.slots.iter().enumerate() {
        let (state, lane) = match meta.state {
            SlotState::Active => (MemberState::Active, None),
            SlotState::Missing => (MemberState::Missing, None),
            SlotState::Rebuilding { lane } => (MemberState::Rebuilding, Some(lane)),
        };
        fields["slots"][slot]["state"] = json!(state);
        fields["slots"][slot]["lane"] = json!(lane);
    }
    fields.serialize(serializer)
}

/// The region map in figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MapReport {
    /// Regions of the array.
    pub regions: u64,
    /// Regions that were written.
    pub written: u64,
    /// Regions in which a write may have been under way.
    pub dirty: u64,
    /// Regions that need a resync.
    pub needs_resync: u64,
    /// Regions that are stale on the replacement of each lane.
    pub stale: Vec<u64>,
    /// Pages of which this member has no whole copy.
    pub pages_lost: Vec<u64>,
}

/// Reads everything that a member says of itself and its array.
///
/// # Errors
/// If the disk cannot be read. That it is damaged or no member is no error but what is reported.
pub async fn examine(disk: &dyn Disk) -> Result<MemberReport, DiskError> {
    let info = disk.info();
    let mut report = MemberReport {
        disk: info.name.clone(),
        size_bytes: info.size_bytes,
        sector_bytes: info.sector_bytes,
        label: LabelReport::None { foreign: None },
        copies: Vec::new(),
        role: None,
        superblock: None,
        fault: None,
        region_map: None,
    };
    let copies = match read_copies(disk).await {
        Ok(Some(copies)) => copies,
        Ok(None) => {
            report.label = LabelReport::None { foreign: find_foreign(disk).await? };
            return Ok(report);
        }
        Err(SuperblockError::Disk(error)) => return Err(error),
        Err(error) => {
            report.label = LabelReport::Faulty { what: error.to_string() };
            return Ok(report);
        }
    };
    let (array_id, member_id) = (copies.label.array_id, copies.label.member_id);
    report.label = LabelReport::Whole { array_id, member_id };
    report.copies = copies.copies.iter().map(copy_report).collect();
    match copies.newest() {
        Ok(superblock) => {
            report.role = Some(superblock.role_of(member_id));
            report.region_map = Some(map_report(disk, &superblock).await?);
            report.superblock = Some(superblock);
        }
        Err(error) => report.fault = Some(error.to_string()),
    }
    Ok(report)
}

fn copy_report(copy: &Result<Superblock, SuperblockError>) -> CopyReport {
    match copy {
        Ok(copy) => CopyReport::Whole { seq: copy.seq },
        Err(SuperblockError::NotThere) => CopyReport::Unwritten,
        Err(error) => CopyReport::Faulty { what: error.to_string() },
    }
}

async fn map_report(disk: &dyn Disk, superblock: &Superblock) -> Result<MapReport, DiskError> {
    let area = read_map_area(disk, superblock).await?;
    let (map, loaded) = RegionMap::load(map_config(superblock), &[&area]);
    Ok(MapReport {
        regions: map.config().regions(),
        written: map.written_count(),
        dirty: map.dirty_count() as u64,
        needs_resync: map.resync_count(),
        stale: (0..LANES).map(|lane| map.stale_count(lane)).collect(),
        pages_lost: loaded.pages_lost,
    })
}

/// A member's map area, whole, as [`RegionMap::load`] wants it. Parts that cannot be read for a
/// medium error are zeros.
///
/// # Errors
/// If the disk fails in another way.
pub async fn read_map_area(disk: &dyn Disk, superblock: &Superblock) -> Result<Buf, DiskError> {
    const CHUNK: u64 = 4096;
    let (start, len) = (superblock.area.map_offset, superblock.area.map_bytes);
    let size = |len: u64| usize::try_from(len).expect("map areas are bounded");
    let (result, area) = disk.read(start, Buf::new(size(len)), Class::User).await;
    match result {
        Ok(()) => return Ok(area),
        Err(error) if error.kind != weft_disk::DiskErrorKind::Medium => return Err(error),
        Err(_) => {}
    }
    let mut area = Buf::zeroed(size(len));
    for page in 0..len / CHUNK {
        let buf = Buf::new(size(CHUNK));
        let (result, buf) = disk.read(start + page * CHUNK, buf, Class::User).await;
        match result {
            Ok(()) => area[size(page * CHUNK)..][..size(CHUNK)].copy_from_slice(&buf),
            Err(error) if error.kind == weft_disk::DiskErrorKind::Medium => {}
            Err(error) => return Err(error),
        }
    }
    Ok(area)
}
