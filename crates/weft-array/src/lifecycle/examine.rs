//! Reads a single member's metadata, offline: for diagnosis.

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::json;
use weft_code::SlotNo;
use weft_disk::{Class, Disk, DiskError};
use weft_rt::Buf;

use crate::engine::status::MemberState;
use crate::format::lane::Lane;
use crate::format::uuid::Id;
use crate::members::preparation::map_config;
use crate::region_map::RegionMap;
use crate::superblock::{
    Foreign, Role, SlotState, Superblock, SuperblockError, find_foreign, read_copies,
};

/// The metadata of one member.
#[derive(Debug, Clone, Serialize)]
pub struct MemberReport {
    /// The disk.
    pub disk: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its sector size in bytes.
    pub sector_bytes: u32,
    /// Whether it is a member, and the condition of its label.
    pub label: LabelReport,
    /// The superblock copies, if it is a member.
    pub copies: Vec<CopyReport>,
    /// Its role in the array, according to its newest superblock.
    #[serde(serialize_with = "in_words")]
    pub role: Option<Role>,
    /// Its newest superblock.
    #[serde(serialize_with = "in_plain_words")]
    pub superblock: Option<Superblock>,
    /// Why there is no superblock, if it is a member.
    pub fault: Option<String>,
    /// The region map according to this member.
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
    /// A member without a sound label: its superblocks describe it. The label is written again when
    /// its array starts.
    Lost {
        /// The array.
        array_id: Id,
        /// The member.
        member_id: Id,
        /// What is wrong with the label.
        what: String,
    },
    /// A member whose label cannot be used.
    Faulty {
        /// Why not.
        what: String,
    },
    /// Not a member.
    None {
        /// What is there instead, if it is recognised.
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
    /// Its place was never written: a new array has one copy only.
    Unwritten,
    /// It cannot be used.
    Faulty {
        /// Why not.
        what: String,
    },
}

/// A role in words and numbers.
#[derive(Serialize)]
struct RoleReport {
    kind: &'static str,
    slot: Option<SlotNo>,
    state: Option<MemberState>,
}

fn in_words<S: Serializer>(role: &Option<Role>, serializer: S) -> Result<S::Ok, S::Error> {
    let report = role.map(|role| {
        let (kind, slot, state) = match role {
            Role::Slot(slot, state) => ("slot", Some(slot), Some(state.into())),
            Role::Replacement(slot) => ("replacement", Some(slot), None),
            Role::Spare => ("spare", None, None),
            Role::None => ("former-member", None, None),
        };
        RoleReport { kind, slot, state }
    });
    report.serialize(serializer)
}

/// A superblock as it is on disk, but with units in the names and states as words.
fn in_plain_words<S: Serializer>(
    superblock: &Option<Superblock>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Some(superblock) = superblock else { return serializer.serialize_none() };
    let mut fields = serde_json::to_value(superblock).map_err(S::Error::custom)?;
    let area = superblock.area.in_bytes(serde_json::value::Serializer);
    fields["area"] = area.map_err(S::Error::custom)?;
    for (slot, meta) in superblock.slots.iter().enumerate() {
        let lane = match meta.state {
            SlotState::Active | SlotState::Missing => None,
            SlotState::Rebuilding { lane } => Some(lane),
        };
        fields["slots"][slot]["state"] = json!(MemberState::from(meta.state));
        fields["slots"][slot]["lane"] = json!(lane);
    }
    fields.serialize(serializer)
}

/// Counts from the region map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MapReport {
    /// Regions of the array.
    pub regions: u64,
    /// Regions that were written.
    pub written: u64,
    /// Regions in which a write may have been in progress.
    pub dirty: u64,
    /// Regions that need a resync.
    pub needs_resync: u64,
    /// Regions that are stale on the replacement, for each lane.
    pub stale: Vec<u64>,
    /// Pages that are intact in neither place on this member.
    pub pages_lost: Vec<u64>,
}

/// Reads all metadata of a member.
///
/// # Errors
/// If the disk cannot be read. Damage, or a disk that is not a member, is not an error but part of
/// the report.
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
    report.label = match copies.label_fault.clone() {
        None => LabelReport::Whole { array_id, member_id },
        Some(what) => LabelReport::Lost { array_id, member_id, what },
    };
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
        regions: map.live().region_count(),
        written: map.written_count(),
        dirty: map.dirty_count() as u64,
        needs_resync: map.resync_count(),
        stale: Lane::all().map(|lane| map.stale_count(lane)).collect(),
        pages_lost: loaded.pages_lost,
    })
}

/// Reads a member's whole map area for [`RegionMap::load`]. Parts with medium errors are zeros.
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
