//! Planning a reshape: to which geometry, where its data starts, and whether it is safe.
//!
//! A grown array has more data in each row of its disks, so its data ends lower on each. Moved data
//! leaves a hole, into which the rest follows (`weft_layout::window`). At the start there is no
//! hole yet, so the new data starts lower than the old: in the *head room* between log and data,
//! which [`Area::plan`] leaves. Nothing is ever copied to a backup, and no file can be lost. md
//! moves the data offset for the same reason.
//!
//! ```text
//!            log    head room     old data
//! member   |#####|.............|d d d d d d d d d d d|
//!          |#####|......|n n n n n n n .     d d d d d|     a grown array, in the middle
//! ```
//!
//! A shrunk array has less data in each row, so its data ends higher. It is moved from its end to
//! its start, and the new data starts higher than the old: addresses beyond the end of the old
//! data are discarded, and some of their space becomes head room.
//!
//! [`Area::plan`]: crate::superblock::area::Area::plan

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use weft_code::CodeSpec;
use weft_layout::window::{Direction, Window};
use weft_layout::{Algorithm, Placement};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::consistency::Consistency;
use crate::region_map;
use crate::superblock::{
    HINT_CHARS_MAX, SPARES_MAX, Shape, SlotMeta, SlotState, Superblock, check_consistency,
};

/// The part of the head room that a reshape takes: some are left for later ones.
const ROOM_SHARE: u64 = 8;

/// The least hole where the new geometry has no more data in each row: the hole then never grows,
/// and a larger one needs fewer checkpoints.
const ROOM_SHARE_CONSTANT: u64 = 3;

/// The part of the head room by which a shrunk array's data starts higher: what an array takes to
/// grow, it gives back when it shrinks again.
const ROOM_SHARE_BACK: u64 = ROOM_SHARE - 1;

/// A geometry to change to. What is not given stays as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReshapeOptions {
    /// The code.
    pub code: Option<CodeSpec>,
    /// The layout of units.
    pub algorithm: Option<Algorithm>,
    /// Bytes of a unit.
    pub unit_bytes: Option<u64>,
    /// Disks to add, of the array's spares.
    pub add: usize,
    /// Disks to remove: those of the last slots, which become spares.
    pub remove: usize,
    /// Bytes of the array in use, if it becomes smaller: data beyond it may be discarded. Without
    /// it, nothing may that was ever written.
    pub used_bytes: Option<u64>,
    /// Bytes of the head room that the new geometry may take, or that it adds if the array becomes
    /// smaller; if not a share of what there is.
    pub head_room_bytes: Option<u64>,
}

/// What a reshape will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshapePlan {
    /// The geometry now.
    pub from: Shape,
    /// The geometry afterwards.
    pub to: Shape,
    /// Bytes of the array now.
    pub size_bytes: u64,
    /// Bytes of the array afterwards.
    pub new_size_bytes: u64,
    /// The order in which addresses are moved.
    #[serde(with = "crate::superblock::direction")]
    pub direction: Direction,
}

impl ReshapePlan {
    /// Where the border is when nothing has moved.
    pub(crate) fn start(&self) -> u64 {
        match self.direction {
            Direction::Up => 0,
            Direction::Down => self.new_size_bytes,
        }
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, ArrayError> {
    Err(ArrayError::Refused(why.into()))
}

fn placement(shape: &Shape) -> Result<Placement, ArrayError> {
    let data_bytes = shape.rows * shape.unit_bytes;
    let Shape { code, algorithm, slots, unit_bytes, .. } = *shape;
    let placement = Placement::new(code, algorithm, slots, data_bytes, unit_bytes);
    let placement = placement.map_err(|error| ArrayError::Refused(error.to_string()))?;
    Ok(placement.with_data_offset(shape.data_offset))
}

/// The window of a reshape between these geometries, in this direction.
pub(crate) fn window(direction: Direction, from: &Shape, to: &Shape) -> Result<Window, ArrayError> {
    Ok(Window::towards(direction, placement(from)?, placement(to)?))
}

/// Plans a reshape of an array with this superblock, in which nothing was written after
/// `written_bytes`.
///
/// # Errors
/// [`ArrayError::Refused`] if there is no such geometry, it is the present one, or the array cannot
/// be moved to it safely.
pub fn plan_reshape(
    superblock: &Superblock,
    options: &ReshapeOptions,
    written_bytes: u64,
) -> Result<ReshapePlan, ArrayError> {
    let from = superblock.shape();
    let slots = check_slots(superblock, options)?;
    let to = Shape {
        code: options.code.unwrap_or(from.code),
        algorithm: options.algorithm.unwrap_or(from.algorithm),
        unit_bytes: options.unit_bytes.unwrap_or(from.unit_bytes),
        slots,
        ..from
    };
    if to == from {
        return refused("the array has this geometry already");
    }
    if check_consistency(to.code, superblock.consistency).is_err() {
        return refused(format!(
            "the array is kept consistent by '{}', which {} cannot have: stop it, and start it again with `--consistency {}`",
            superblock.consistency,
            to.code,
            substitute(to.code, from.code)
        ));
    }
    let log_end = superblock.area.log_offset + superblock.area.log_bytes;
    let room = from.data_offset - log_end;
    let (direction, to) = begin_elsewhere(from, to, room, options.head_room_bytes)?;
    let [size_bytes, new_size_bytes] =
        [placement(&from)?.size_bytes(), placement(&to)?.size_bytes()];
    if new_size_bytes == 0 {
        return refused("the members have no room for a stripe of the new geometry");
    }
    let used_bytes = options.used_bytes.unwrap_or(written_bytes);
    if new_size_bytes < size_bytes && used_bytes > new_size_bytes {
        return refused(too_small(size_bytes, new_size_bytes, used_bytes, options));
    }
    if new_size_bytes < size_bytes && direction == Direction::Up {
        return refused("the array would become smaller: larger units leave a rest at its end");
    }
    check(superblock, &from, &to, direction)?;
    check_window(window(direction, &from, &to)?, room)?;
    Ok(ReshapePlan { from, to, size_bytes, new_size_bytes, direction })
}

/// A policy that suits both codes.
fn substitute(to: CodeSpec, from: CodeSpec) -> Consistency {
    let suits = |code| check_consistency(code, Consistency::Bitmap).is_ok();
    if suits(to) && suits(from) { Consistency::Bitmap } else { Consistency::None }
}

/// The number of slots afterwards.
fn check_slots(superblock: &Superblock, options: &ReshapeOptions) -> Result<usize, ArrayError> {
    let (slots, ReshapeOptions { add, remove, .. }) = (superblock.slots.len(), *options);
    if add > 0 && remove > 0 {
        return refused("disks are either added or removed");
    }
    if remove >= slots {
        return refused(format!("{remove} disks cannot be removed from {slots}"));
    }
    if superblock.spares.len() + remove > SPARES_MAX {
        return refused(format!(
            "the disks removed become spares, of which {SPARES_MAX} are possible"
        ));
    }
    Ok(slots + add - remove)
}

fn too_small(size: u64, new_size: u64, used: u64, options: &ReshapeOptions) -> String {
    let [size, new_size, used] = [size, new_size, used].map(weft_disk::Bytes);
    let what = match options.used_bytes {
        Some(_) => format!("{used:#} are said to be in use"),
        None => format!("bytes up to {used:#} were written"),
    };
    format!(
        "the array would shrink from {size:#} to {new_size:#}, but {what}: first shrink the file system to at most {new_size:#}, then give its size"
    )
}

/// Checks that new stripes find free space everywhere. Where the hole is smallest, at the start
/// of the addresses, it grows with each stripe or is the same within the period of the layouts.
pub(crate) fn check_window(mut window: Window, room: u64) -> Result<(), ArrayError> {
    const STRIPES: u64 = 1024;
    let step = window.placements()[1].stripe_bytes();
    let end = window.addresses().end.min(STRIPES * step);
    let mut at = match window.direction() {
        Direction::Up => 0,
        Direction::Down => end,
    };
    let last = end - at;
    while at != last {
        let next = window.limit(at, step);
        if next == at {
            return refused(no_room(room));
        }
        at = next;
    }
    Ok(())
}

fn no_room(room: u64) -> String {
    format!(
        "the members have {} before their data, which is too little to start: only an array that was created with more head room can be reshaped in this way",
        weft_disk::Bytes(room)
    )
}

/// The geometry with its data start lower, or higher if it has less in each row. Its rows end
/// where the old ones do.
fn begin_elsewhere(
    from: Shape,
    to: Shape,
    room: u64,
    asked: Option<u64>,
) -> Result<(Direction, Shape), ArrayError> {
    let bytes_of = |shape: &Shape| Ok::<u64, ArrayError>(placement(shape)?.size_bytes());
    let end = from.data_offset + from.rows * from.unit_bytes;
    let at = |data_offset: u64| {
        let rows = end.saturating_sub(data_offset) / to.unit_bytes;
        Shape { data_offset, rows, ..to }
    };
    // Whole units, so that their alignment stays.
    let unit = to.unit_bytes.max(from.unit_bytes);
    let wanted =
        |share: u64| asked.unwrap_or_else(|| (room / share).max(2 * unit)).next_multiple_of(unit);
    let lower =
        |share: u64| (Direction::Up, at(from.data_offset - wanted(share).min(room / unit * unit)));
    Ok(match bytes_of(&at(from.data_offset))?.cmp(&bytes_of(&from)?) {
        Ordering::Greater => lower(ROOM_SHARE),
        Ordering::Equal => lower(ROOM_SHARE_CONSTANT),
        Ordering::Less => (Direction::Down, at(from.data_offset + wanted(ROOM_SHARE_BACK))),
    })
}

/// Checks that superblocks can have the new geometry.
fn check(
    superblock: &Superblock,
    from: &Shape,
    to: &Shape,
    direction: Direction,
) -> Result<(), ArrayError> {
    let regions = to.regions(superblock.region_bytes)?;
    if regions.stripe_bytes > superblock.region_bytes {
        return refused("a stripe of the new geometry is larger than a region of the array's map");
    }
    if region_map::area_bytes(regions.count()) > superblock.area.map_bytes {
        return refused("the array's region map has no room for this many regions");
    }
    let mut described = superblock.reshaped(*from, *to, direction, 0)?;
    while described.slots.len() < to.slots {
        let member_id = Some(described.new_member_id());
        let disk_hint = "x".repeat(HINT_CHARS_MAX);
        let (state, left, replacement) = (SlotState::Active, None, None);
        described.slots.push(SlotMeta { member_id, state, disk_hint, left, replacement });
    }
    described.shorten_hints();
    described.encode(superblock.self_id).map_err(ArrayError::from).map(drop)
}

impl Engine {
    /// Fails while the array is being reshaped, or grows.
    pub(crate) fn check_settled(&self) -> Result<(), ArrayError> {
        if self.is_growing() {
            return refused("the array is being enlarged: try again when that has ended");
        }
        match self.geometries().former() {
            Some(_) => refused("the array is being reshaped: wait until that has ended"),
            None => Ok(()),
        }
    }
}
