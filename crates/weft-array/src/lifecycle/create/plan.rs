//! Plans an array on given disks, and finds what stands in the way. Nothing is written.

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use futures_util::future::join_all;
use serde::Serialize;
use weft_code::{CodeSpec, SlotNo};
use weft_disk::{Bytes, Disk, DiskInfo};
use weft_layout::{Algorithm, code_for, for_code};
use weft_stripe::Generation;

use super::{CreateError, CreateOptions};
use crate::format::consistency::Consistency;
use crate::format::uuid::Id;
use crate::region_map::Regions;
use crate::superblock::area::{Area, usable_bytes};
use crate::superblock::disk_contents::{Contents, contents, recognised};
use crate::superblock::{
    BYTES_MAX, FORMAT_VERSION, REGION_BYTES_MAX, REGION_STRIPES_MAX, SPARES_MAX, SlotMeta,
    SlotState, SpareMeta, Superblock, UNIT_BYTES, check_consistency, check_name, disk_hint,
};

/// Default size of a region, in bytes of the array: at least this.
const REGION_BYTES_DEFAULT: u64 = 4 << 20;
/// By default regions are made larger rather than more than this many.
const REGIONS_DEFAULT_MAX: u64 = 128 << 10;

/// The array that would be created.
#[derive(Debug, Clone, Serialize)]
pub struct CreatePlan {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: Id,
    /// Its code.
    pub code: CodeSpec,
    /// Layout of units.
    pub algorithm: Algorithm,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How many lost members it always survives.
    pub tolerance: usize,
    /// Whether `tolerance` is exact: some set of one more loss is known not to be survived. If not,
    /// it is a lower bound.
    pub tolerance_exact: bool,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Largest sector of the disks, in bytes.
    pub sector_bytes: u32,
    /// Units of data on each slot.
    pub rows: u64,
    /// Whole stripes.
    pub stripes: u64,
    /// Array bytes of a region.
    pub region_bytes: u64,
    /// How parity is kept consistent with data across a crash.
    pub consistency: Consistency,
    /// Whether the data areas will be zeroed.
    pub members_zeroed: bool,
    /// The areas on each member.
    #[serde(serialize_with = "Area::in_bytes")]
    pub area: Area,
    /// The disks, slots first.
    pub members: Vec<PlannedMember>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The planned role of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum PlannedRole {
    /// A member.
    Slot {
        /// Its slot.
        slot: SlotNo,
    },
    /// A spare.
    Spare,
}

/// A disk of the plan.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedMember {
    /// The disk.
    pub disk: String,
    /// Its role.
    #[serde(flatten)]
    pub role: PlannedRole,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes at its end that stay unused.
    pub unused_bytes: u64,
    /// What is on it and will be lost, if recognised.
    pub overwrites: Option<String>,
}

/// Checks options and disks, reads the disks' present contents, and lays out the array.
///
/// # Errors
/// If no array can be created of them. Nothing was changed.
pub async fn plan(
    disks: &[Rc<dyn Disk>],
    options: &CreateOptions,
) -> Result<CreatePlan, CreateError> {
    let infos: Vec<&DiskInfo> = disks.iter().map(|disk| disk.info()).collect();
    let mut plan = lay_out(&infos, options)?;
    let looks = join_all(disks.iter().map(|disk| look(disk.as_ref(), options.force))).await;
    for (member, found) in plan.members.iter_mut().zip(looks) {
        member.overwrites = found?;
    }
    for member in &plan.members {
        if let Some(what) = &member.overwrites {
            plan.notes.push(format!("{} holds {what}, which will be lost", member.disk));
        }
    }
    Ok(plan)
}

fn lay_out(infos: &[&DiskInfo], options: &CreateOptions) -> Result<CreatePlan, CreateError> {
    check_options(infos, options)?;
    let slots = infos.len() - options.spares;
    let algorithm = options.algorithm.unwrap_or_default();
    let unit_bytes = u64::from(options.unit_bytes);
    let code = code_for(options.code, algorithm, slots)?;
    check_consistency(options.code, options.consistency).map_err(CreateError::Option)?;
    let stripe_bytes = code.k() as u64 * unit_bytes;
    let smallest = infos.iter().min_by_key(|info| info.size_bytes).expect("some disks");
    let stripes_of = |rows| for_code(options.code, algorithm, slots, rows).map(|l| l.stripes(rows));

    // The map is placed before the number of units is known, so it gets space for the whole disk.
    let most = stripes_of(smallest.size_bytes / unit_bytes)?;
    let region_bytes = region_bytes(options.region_bytes, most * stripe_bytes, stripe_bytes);
    let regions = Regions { region_bytes, stripe_bytes, stripes: most.max(1) };
    if regions.stripes_max() > REGION_STRIPES_MAX {
        return Err(CreateError::Option(format!(
            "regions of {:#} have more than {REGION_STRIPES_MAX} stripes: use smaller regions, or larger units",
            Bytes(region_bytes)
        )));
    }
    let mut rows_min = 1;
    while stripes_of(rows_min)? == 0 {
        rows_min *= 2;
    }
    let area = Area::plan(
        smallest.size_bytes,
        unit_bytes,
        options.consistency,
        regions.count(),
        rows_min,
        options.log_bytes,
        options.head_room_bytes,
    )
    .map_err(|source| CreateError::Area { disk: smallest.name.clone(), source })?;
    let rows = area.rows(usable_bytes(smallest.size_bytes), unit_bytes);
    let stripes = stripes_of(rows)?;
    let used = area.member_bytes(rows, unit_bytes).expect("less than the smallest disk has");
    let member = |(n, info): (usize, &&DiskInfo)| PlannedMember {
        disk: info.name.clone(),
        role: if n < slots { PlannedRole::Slot { slot: SlotNo(n) } } else { PlannedRole::Spare },
        size_bytes: info.size_bytes,
        unused_bytes: info.size_bytes - used,
        overwrites: None,
    };
    Ok(CreatePlan {
        name: options.name.clone(),
        id: Id(options.id),
        code: options.code,
        algorithm,
        size_bytes: stripes * stripe_bytes,
        tolerance: code.tolerance(),
        tolerance_exact: code.tolerance_is_exact(),
        unit_bytes,
        sector_bytes: infos.iter().map(|info| info.sector_bytes).max().unwrap_or(512),
        rows,
        stripes,
        region_bytes,
        consistency: options.consistency,
        members_zeroed: infos.iter().all(|info| info.fast_zeroes),
        area,
        members: infos.iter().enumerate().map(member).collect(),
        notes: notes(infos, smallest, slots, code.tolerance()),
    })
}

fn check_options(infos: &[&DiskInfo], options: &CreateOptions) -> Result<(), CreateError> {
    let refuse = |why: String| Err(CreateError::Option(why));
    let unit_bytes = u64::from(options.unit_bytes);
    if let Err(why) = check_name(&options.name) {
        return refuse(format!("the array's name {why}"));
    }
    if !unit_bytes.is_power_of_two() || !UNIT_BYTES.contains(&unit_bytes) {
        return refuse(format!(
            "a unit of {:#} is not possible: it must be a power of two from 4 KiB to 16 MiB",
            Bytes(unit_bytes)
        ));
    }
    if options.spares > SPARES_MAX {
        return refuse(format!("{} spares are more than {SPARES_MAX}", options.spares));
    }
    if options.spares >= infos.len() {
        return refuse(format!(
            "{} disks, {} of them spares, leave none for the array",
            infos.len(),
            options.spares
        ));
    }
    let total: u128 = infos.iter().map(|info| u128::from(info.size_bytes)).sum();
    if total > u128::from(BYTES_MAX) {
        return refuse(format!(
            "the disks together are larger than {}, the most that is supported: use fewer or smaller ones",
            Bytes(BYTES_MAX)
        ));
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = infos.iter().find(|info| !names.insert(&info.name)) {
        return Err(CreateError::SameDisk { disk: twice.name.clone() });
    }
    match infos.iter().find(|info| !matches!(info.sector_bytes, 512 | 4096)) {
        Some(odd) => refuse(format!(
            "{} has sectors of {} bytes; 512 and 4096 are possible",
            odd.name, odd.sector_bytes
        )),
        None => Ok(()),
    }
}

/// Bytes of a region: as requested, or so that regions are neither tiny nor too many; rounded up to
/// a power of two that is at least a stripe.
fn region_bytes(asked: Option<u64>, size_bytes: u64, stripe_bytes: u64) -> u64 {
    let bytes = match asked {
        // A region larger than the array is equivalent to one of the array's size.
        Some(bytes) => bytes.min(size_bytes),
        None => REGION_BYTES_DEFAULT.max(size_bytes.div_ceil(REGIONS_DEFAULT_MAX)),
    };
    bytes.max(stripe_bytes).min(REGION_BYTES_MAX).next_power_of_two()
}

fn notes(infos: &[&DiskInfo], smallest: &DiskInfo, slots: usize, tolerance: usize) -> Vec<String> {
    let mut notes = Vec::new();
    // Half of the members are no majority: the other half may have continued without them.
    let half = slots.div_ceil(2);
    if half <= tolerance {
        let disks = if half == 1 { "disk" } else { "disks" };
        notes.push(format!(
            "with {half} of its {slots} {disks} gone, the array goes on, but does not start again automatically, since the other half may be newer: it waits, and `weft start --force-degraded` starts it"
        ));
    }
    let unused: u64 = infos.iter().map(|info| info.size_bytes - smallest.size_bytes).sum();
    if unused > 0 {
        notes.push(format!(
            "the disks differ in size: each is used up to the size of the smallest, {}, and {} of the other disks stay unused",
            smallest.name,
            Bytes(unused)
        ));
    }
    if infos.iter().any(|info| info.sector_bytes != infos[0].sector_bytes) {
        notes.push(
            "some disks have sectors of 512 bytes and some of 4096: all are used in 4096".into(),
        );
    }
    notes
}

/// What is on a disk; an error if there is something that may not be overwritten.
async fn look(disk: &dyn Disk, force: bool) -> Result<Option<String>, CreateError> {
    let name = || disk.info().name.clone();
    if force {
        return Ok(recognised(disk).await?.map(|what| what.to_string()));
    }
    match contents(disk).await? {
        None => Ok(None),
        Some(Contents::Member { name: array, id }) => {
            Err(CreateError::AlreadyMember { disk: name(), name: array, id })
        }
        Some(what) => Err(CreateError::InUse { disk: name(), what: what.to_string() }),
    }
}

impl CreatePlan {
    /// The first superblock of the planned array, as its first member holds it.
    pub(super) fn superblock(&self, options: &CreateOptions) -> Superblock {
        let mut slots = Vec::new();
        let mut spares = Vec::new();
        for (n, member) in self.members.iter().enumerate() {
            let member_id = self.id.member(0, n as u64);
            let disk_hint = disk_hint(&member.disk);
            match member.role {
                PlannedRole::Slot { .. } => slots.push(SlotMeta {
                    member_id: Some(member_id),
                    state: SlotState::Active,
                    disk_hint,
                    left: None,
                    replacement: None,
                }),
                PlannedRole::Spare => spares.push(SpareMeta { member_id, disk_hint }),
            }
        }
        let mut superblock = Superblock {
            format_version: FORMAT_VERSION,
            features: Vec::new(),
            seq: 1,
            array_id: self.id,
            self_id: self.id.member(0, 0),
            members_made: self.members.len() as u64,
            name: self.name.clone(),
            code: self.code,
            algorithm: self.algorithm,
            unit_bytes: self.unit_bytes,
            sector_bytes: self.sector_bytes,
            rows: self.rows,
            region_bytes: self.region_bytes,
            consistency: self.consistency,
            members_zeroed: self.members_zeroed,
            area: self.area.clone(),
            slots,
            spares,
            clean: true,
            log_epoch: 0,
            unreplayed: None,
            scrub: None,
            last_scrub: None,
            last_rebuild: None,
            succeeds: None,
            rebuild: None,
            generation: Generation::default(),
            last_generation: Generation::default(),
            map_regions: 0,
            reshape: None,
            created_unix_s: options.now_unix_s,
            updated_unix_s: options.now_unix_s,
            software: concat!("weft ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        superblock.shorten_hints();
        superblock
    }
}

impl fmt::Display for CreatePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "array '{}' ({}): {}, {}",
            self.name,
            self.id,
            self.code,
            Bytes(self.size_bytes)
        )?;
        writeln!(
            f,
            "  unit {}, {} stripes, consistency {}, can lose {}any {} member{}",
            Bytes(self.unit_bytes),
            self.stripes,
            self.consistency,
            if self.tolerance_exact { "" } else { "at least " },
            self.tolerance,
            if self.tolerance == 1 { "" } else { "s" }
        )?;
        for member in &self.members {
            match member.role {
                PlannedRole::Slot { slot } => write!(f, "  slot {slot}: ")?,
                PlannedRole::Spare => write!(f, "  spare: ")?,
            }
            writeln!(f, "{}, {}", member.disk, Bytes(member.size_bytes))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}
