//! Growth: the array uses more of each member.
//!
//! The data of a member is the last of its areas (`area.rs`), and its size is one number in the
//! superblock: `rows`. If all members are larger than that, because all disks were replaced or the
//! files and volumes below them were enlarged, the array may use more rows. The smallest member
//! decides how many. (mdadm: `--grow --size=max`.)
//!
//! ```text
//!            map  log  head room   data of each member
//! before   |#####|####|.........|d d d d d d d d|         the member is larger than that
//! after    |#####|####|.........|d d d d d d d d n n n n|
//! ```
//!
//! Everything in front of the data stays where it is, and so does every stripe: on each slot the
//! new stripes follow the old ones ([`Layout::can_be_extended`]). So nothing is moved, and the
//! geometry keeps its number: a log record of a stripe means the same before and after. RAID-10
//! `far` is the exception. Its second copies start in the middle of the members; it is refused.
//!
//! *The region map* has its own area, which `weft create` makes large enough for eight times as
//! many regions (`area.rs`). Growth ends where that is full, and reports it. New regions are
//! unwritten: they read as zeros, need no resync, and are zeroed before their first write.
//!
//! *The last old region* may be written, and its new stripes are written with it. They are zeroed
//! first; zeros are a codeword of every code. Where the array relies on members that read as zeros
//! in unwritten regions (`members_zeroed`), all of the new room is zeroed if that is cheap on every
//! member. If it is not, the array no longer relies on that.
//!
//! **The order**
//!
//! 1. *Room*: the last 4 KiB of the new room are written on each member and read back: a disk that
//!    is smaller than it claims is detected. Stripes are zeroed as above, and flushed.
//! 2. *Map*: pages of the new regions, all unwritten, become durable on all members.
//! 3. *Superblock*: the new number of rows, like any change of the superblock (`commit.rs`). In the
//!    same poll the geometry in memory gets the new stripes, so that every later walk through all
//!    stripes of a region, such as a rebuild, includes them. Users cannot reach them yet.
//! 4. When the change is in effect, the array has its new size. The second labels (`label.rs`) are
//!    written at the ends of the disks; until then they have none there.
//!
//! A failure before step 3 changes nothing: the array uses no room after its last row.
//!
//! **What a crash leaves.** Before the new superblock is on any member: an array of the old size,
//! with zeros after its data and map pages that it ignores. Afterwards members may have the old or
//! the new one. If a new one is found, the array has the new size, and members with the old one get
//! it before anything else is written: they hold all that it relies on, since steps 1 and 2 were
//! complete on all of them, and nothing was acknowledged in the new room. If none is found, or the
//! members with it are absent, the array has the old size, and so no user relied on the new one.
//! Those members are stale then, as after any change that did not take effect (`assemble.rs`).
//!
//! *Membership.* Growth starts only if every slot has its member and no disk is joining: a disk
//! that is away may be too small, and its new room is not zeroed. If the membership changes before
//! step 3, growth is refused. Later failures are handled like any other; a disk that joins is
//! checked against the new size. Spares that are too small are named by the plan and by the status,
//! and are not taken (`members/spares.rs`).
//!
//! [`Layout::can_be_extended`]: weft_layout::Layout::can_be_extended

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use weft_code::SlotNo;
use weft_disk::{Bytes, Class, Disk, DiskError, WriteOpts};
use weft_rt::{Buf, Frozen};

use crate::engine::Engine;
use crate::engine::runs::{Bit, grouped, span};
use crate::error::ArrayError;
use crate::geometry::Geometry;
use crate::geometry::border::geometry;
use crate::members::slot::Slot;
use crate::region_map::{self, RegionNo};
use crate::state::events::Event;
use crate::superblock::{BYTES_MAX, Shape, Superblock, area};
use weft_stripe::Location;

/// Bytes at the end of the new room that each member must take and give back.
const PROBE_BYTES: u64 = 4096;

const MAINTENANCE: WriteOpts = WriteOpts { class: Class::Maintenance, fua: false };

/// What growth will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthPlan {
    /// Bytes of each member that the array uses now.
    pub member_bytes: u64,
    /// Bytes of each member that it uses afterwards.
    pub new_member_bytes: u64,
    /// Bytes of the array now.
    pub size_bytes: u64,
    /// Bytes of the array afterwards.
    pub new_size_bytes: u64,
    /// The smallest member: it decides how large the array can be.
    pub smallest: String,
    /// Bytes of each member that cannot be used, as the region map has no room for more regions.
    pub beyond_map_bytes: u64,
    /// The spares that are too small for the array afterwards.
    pub spares_too_small: Vec<String>,
}

/// A disk's name, and its size in bytes.
type Sized = (String, u64);

fn refused<T>(why: impl Into<String>) -> Result<T, ArrayError> {
    Err(ArrayError::Refused(why.into()))
}

/// The geometry of members with `member_bytes` in use.
fn shape_of(superblock: &Superblock, member_bytes: u64) -> Shape {
    let shape = superblock.shape();
    let rows = superblock.area.rows(member_bytes, shape.unit_bytes).max(shape.rows);
    Shape { rows, ..shape }
}

/// Array bytes of a geometry.
fn size_of(superblock: &Superblock, shape: &Shape) -> Result<u64, ArrayError> {
    Ok(shape.regions(superblock.region_bytes)?.size_bytes())
}

/// Bytes of each member that an array with this superblock can use, of `member_bytes` that each
/// has: as many as can be counted and as its region map has room for.
fn usable_bytes(superblock: &Superblock, member_bytes: u64) -> Result<u64, ArrayError> {
    let countable = BYTES_MAX / superblock.slots.len() as u64;
    let shape = shape_of(superblock, member_bytes.min(countable));
    let fits = |rows: u64| {
        let regions = Shape { rows, ..shape }.regions(superblock.region_bytes)?;
        let count = regions.count();
        let has_room = count <= region_map::REGIONS_MAX
            && region_map::area_bytes(count) <= superblock.area.map_bytes;
        Ok::<bool, ArrayError>(has_room)
    };
    if shape.rows == superblock.rows || fits(shape.rows)? {
        return Ok(shape.member_bytes().unwrap_or(member_bytes));
    }
    // The number of regions grows with the rows.
    let (mut most, mut too_many) = (superblock.rows, shape.rows + 1);
    while most + 1 < too_many {
        let middle = most + (too_many - most) / 2;
        if fits(middle)? { most = middle } else { too_many = middle }
    }
    let used = Shape { rows: most, ..shape }.member_bytes();
    used.ok_or_else(|| ArrayError::Refused("the members are too large to count".into()))
}

/// Plans growth of an array with this superblock to `wanted` bytes of each member; `None`: to what
/// the smallest of `members` has.
///
/// # Errors
/// [`ArrayError::Refused`] if it cannot grow so, or not at all.
pub fn plan_growth(
    superblock: &Superblock,
    members: &[Sized],
    spares: &[Sized],
    wanted: Option<u64>,
) -> Result<GrowthPlan, ArrayError> {
    let now = superblock.shape();
    if !now.layout()?.can_be_extended() {
        return refused(format!(
            "{} places its further copies by the size of the members, so it cannot use more of them: copy the data to a new array",
            superblock.code
        ));
    }
    let Some((smallest, smallest_bytes)) = members.iter().min_by_key(|(_, bytes)| *bytes) else {
        return refused("the array has no members");
    };
    let member_bytes = superblock.member_bytes();
    if let Some(wanted) = wanted.filter(|wanted| *wanted > *smallest_bytes) {
        return refused(format!(
            "{:#} of each member are too much: the smallest, {smallest}, has {:#}",
            Bytes(wanted),
            Bytes(*smallest_bytes)
        ));
    }
    if let Some(wanted) = wanted.filter(|wanted| *wanted < member_bytes) {
        return refused(format!(
            "{:#} of each member are in use already, and {:#} are less: only disks can be removed (`weft shrink`)",
            Bytes(member_bytes),
            Bytes(wanted)
        ));
    }
    let there = wanted.unwrap_or_else(|| area::usable_bytes(*smallest_bytes));
    let usable = usable_bytes(superblock, there)?;
    let to = shape_of(superblock, usable);
    let whole = shape_of(superblock, there).member_bytes().unwrap_or(there);
    let beyond_map_bytes = whole.saturating_sub(usable);
    let [size_bytes, new_size_bytes] = [size_of(superblock, &now)?, size_of(superblock, &to)?];
    if new_size_bytes <= size_bytes && beyond_map_bytes > 0 {
        return refused(format!(
            "the array's region map has no room for more regions, so the array stays at {:#}: copy the data to a new array",
            Bytes(size_bytes)
        ));
    }
    if new_size_bytes <= size_bytes {
        return refused(format!(
            "there is nothing to gain: the smallest member, {smallest}, has {:#}, and {:#} of each member are in use",
            Bytes(*smallest_bytes),
            Bytes(member_bytes)
        ));
    }
    if wanted.is_some() && beyond_map_bytes > 0 {
        return refused(format!(
            "the array's region map has room for {:#} of each member, which is an array of {:#}",
            Bytes(usable),
            Bytes(new_size_bytes)
        ));
    }
    let grown = Superblock { rows: to.rows, ..superblock.clone() };
    grown.encode(superblock.self_id)?;
    let is_small = |(_, bytes): &&Sized| (member_bytes..usable).contains(bytes);
    Ok(GrowthPlan {
        member_bytes,
        new_member_bytes: usable,
        size_bytes,
        new_size_bytes,
        smallest: smallest.clone(),
        beyond_map_bytes,
        spares_too_small: spares.iter().filter(is_small).map(|(name, _)| name.clone()).collect(),
    })
}

/// Where the units of these stripes are: adjoining ones of a slot together, in their order.
fn ranges_of(grown: &Geometry, stripes: Range<u64>) -> Vec<(SlotNo, Range<u64>)> {
    let mut units = Vec::new();
    for stripe in stripes {
        for unit in grown.units().iter() {
            let (slot, offset) = grown.locate(stripe, unit, 0);
            units.push(Bit { place: Location { slot, offset }, len: grown.unit_bytes, what: () });
        }
    }
    let range = |(Location { slot, offset }, len)| (slot, offset..offset + len);
    grouped(&mut units, 0, u64::MAX).map(span).map(range).collect()
}

/// The new stripes of the last old region, in the new geometry.
fn rest_of_last_region(old: &Geometry, grown: &Geometry) -> Range<u64> {
    let (first, regions) = (old.stripes(), grown.regions());
    first..regions.stripes_of(regions.of(first - 1)).end
}

/// Where the new room of each slot starts that stripes from `first` on use.
fn beginnings(grown: &Geometry, first: u64) -> BTreeMap<SlotNo, u64> {
    let mut begins = BTreeMap::new();
    let slots = grown.layout.slots();
    for stripe in first..grown.stripes() {
        // Copies may be in rows below each other; within as many stripes each row is complete.
        if stripe >= first + slots as u64 && begins.len() == slots {
            break;
        }
        for unit in grown.units().iter() {
            let (slot, offset) = grown.locate(stripe, unit, 0);
            begins
                .entry(slot)
                .and_modify(|low: &mut u64| *low = offset.min(*low))
                .or_insert(offset);
        }
    }
    begins
}

/// Finds out whether a disk has its last bytes.
async fn probe(disk: &dyn Disk, end: u64) -> Result<(), DiskError> {
    let len = usize::try_from(PROBE_BYTES).expect("a few KiB");
    disk.write(end - PROBE_BYTES, Frozen::zeros(len), WriteOpts { fua: true, ..MAINTENANCE })
        .await?;
    disk.read(end - PROBE_BYTES, Buf::new(len), Class::Maintenance).await.0
}

impl Engine {
    /// What growth would do.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if it is not possible, now or at all.
    pub(crate) fn plan_growth(&self, wanted: Option<u64>) -> Result<GrowthPlan, ArrayError> {
        self.check_writable()?;
        if self.geometries().former().is_some() {
            return refused("the array is being reshaped: wait until that has ended");
        }
        if self.members().slots().any(|slot| self.members().slot(slot) != Slot::Active) {
            return refused(
                "a member is missing, or being rebuilt or replaced: wait until all are active",
            );
        }
        if self.jobs().scrub().is_running() || self.members().superblock().scrub.is_some() {
            return refused("a scrub is running: wait until it has ended, or cancel it");
        }
        self.plan_growth_of_members(wanted)
    }

    fn plan_growth_of_members(&self, wanted: Option<u64>) -> Result<GrowthPlan, ArrayError> {
        let sized = |disk: &Rc<dyn Disk>| (disk.info().name.clone(), disk.size_now());
        let members: Vec<Sized> =
            self.members().disks().iter().map(|(_, disk)| sized(disk)).collect();
        let spares = self.members().spares().all();
        let spares: Vec<Sized> = spares.iter().map(|spare| sized(&spare.disk)).collect();
        plan_growth(&self.members().superblock(), &members, &spares, wanted)
    }

    /// Bytes of each member that growth would add now; 0 if it would add none.
    pub(crate) fn unused_member_bytes(&self) -> u64 {
        if self.geometries().former().is_some() || !self.members().all_active() {
            return 0;
        }
        let plan = self.plan_growth_of_members(None);
        plan.map_or(0, |plan| plan.new_member_bytes - plan.member_bytes)
    }

    /// Lets the array use `wanted` bytes of each member; `None`: what the smallest has. When this
    /// returns the array has its new size.
    ///
    /// # Errors
    /// As [`Engine::plan_growth`]; or if a disk fails meanwhile.
    pub(crate) async fn grow(&self, wanted: Option<u64>) -> Result<GrowthPlan, ArrayError> {
        // A stop waits until this has ended: it writes to the members.
        let _running = self.hold_off_stop().await;
        self.check_settled()?;
        if self.is_growing() {
            return refused("the array is growing already");
        }
        let plan = self.plan_growth(wanted)?;
        let _growing = self.begin_growth();
        let members = self.members().changes().membership();
        let grown = {
            let superblock = self.members().superblock();
            let shape = shape_of(&superblock, plan.new_member_bytes);
            geometry(shape, superblock.generation, &superblock)?
        };
        let all_zeroed = self.clear_new_room(&grown, plan.new_member_bytes).await?;
        let count = self.geometry().regions().count();
        // What an array gave up may have been marked again by a write that was then refused.
        self.map().give_up_from(self, RegionNo(count)).await?;
        self.make_room_in_map(grown.regions().count()).await?;
        // From here on, in one poll and in memory: the superblock's record, and the geometry.
        let now = self.plan_growth(Some(plan.new_member_bytes))?;
        let is_same =
            (now.member_bytes, now.new_member_bytes) == (plan.member_bytes, plan.new_member_bytes);
        if !is_same || self.members().changes().membership() != members {
            return refused("the array has changed meanwhile: try again");
        }
        let changed = self.change(|change| {
            let mut superblock = change.superblock();
            superblock.rows = shape_of(&superblock, plan.new_member_bytes).rows;
            superblock.members_zeroed &= all_zeroed;
            if superblock.map_regions > 0 {
                superblock.map_regions = superblock.map_regions.max(grown.regions().count());
            }
            drop(superblock);
            change.note_size();
            self.geometries().grow(grown.regions());
            self.map().set_live(self.geometries().live());
            // Which losses the code survives may depend on the stripe.
            self.forget_remaining();
        });
        changed.await?;
        self.geometries().end_growth();
        self.move_second_labels().await;
        let size_bytes = self.geometries().size_bytes();
        self.events().emit(Event::Grown { size_bytes, member_bytes: plan.new_member_bytes });
        self.jobs().wake();
        Ok(GrowthPlan { spares_too_small: now.spares_too_small, ..plan })
    }

    /// Checks the new room, and zeroes as much of it as must read as zeros. Returns whether that is
    /// all of it.
    async fn clear_new_room(&self, grown: &Geometry, new_end: u64) -> Result<bool, ArrayError> {
        let disks = self.members().disks();
        let all = self.members_zeroed() && disks.iter().all(|(_, disk)| disk.info().fast_zeroes);
        let old = self.geometry();
        let ranges = match all {
            true => beginnings(grown, old.stripes())
                .into_iter()
                .map(|(s, at)| (s, at..new_end))
                .collect(),
            false => ranges_of(grown, rest_of_last_region(old, grown)),
        };
        let of_disks = disks.iter().map(|(slot, disk)| {
            let own = ranges.iter().filter(move |(of, _)| of == slot);
            async move {
                probe(&**disk, new_end).await?;
                for (_, Range { start, end }) in own {
                    disk.write_zeroes(*start, end - start, MAINTENANCE).await?;
                }
                disk.flush().await
            }
        });
        let done: Result<(), DiskError> = join_all(of_disks).await.into_iter().collect();
        done.map_err(|error| ArrayError::Refused(format!("the new room cannot be used: {error}")))?;
        Ok(all)
    }
}
