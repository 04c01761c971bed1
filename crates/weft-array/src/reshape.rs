//! Planning a reshape: to which geometry, where its data begins, and whether it is safe.
//!
//! A grown array has more data in each row of its disks, so its data ends lower on each. What is
//! moved leaves a hole behind, into which the rest follows (`weft_layout::window`). At the beginning
//! there is no hole yet, so the new data begins lower than the old: in the *head room* between log
//! and data, which [`Area::plan`] leaves. Nothing is ever copied to a backup, and no file can be
//! lost. md moves the data offset for the same reason.
//!
//! ```text
//!            log    head room     old data
//! member   |#####|.............|d d d d d d d d d d d|
//!          |#####|......|n n n n n n n .     d d d d d|     a grown array, in the middle
//! ```
//!
//! [`Area::plan`]: crate::area::Area::plan

use serde::{Deserialize, Serialize};
use weft_code::CodeSpec;
use weft_layout::window::{Direction, Window};
use weft_layout::{Algorithm, Placement};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::region_map;
use crate::superblock::{HINT_CHARS_MAX, Shape, SlotMeta, SlotState, Superblock};

/// The part of the head room that a reshape takes: some are left for later ones.
const ROOM_SHARE: u64 = 8;

/// The same where the new geometry has no more data in each row: the hole then never grows, and a
/// larger one needs fewer checkpoints.
const ROOM_SHARE_CONSTANT: u64 = 3;

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
    /// Bytes of the head room that the new geometry may take, if not a share of what there is.
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

/// The window of a reshape between these geometries.
pub(crate) fn window(from: &Shape, to: &Shape) -> Result<Window, ArrayError> {
    Ok(Window::new(placement(from)?, placement(to)?))
}

/// Plans a reshape of an array with this superblock.
///
/// # Errors
/// [`ArrayError::Refused`] if there is no such geometry, it is the present one, or the array cannot
/// be moved to it safely.
pub fn plan_reshape(
    superblock: &Superblock,
    options: &ReshapeOptions,
) -> Result<ReshapePlan, ArrayError> {
    let from = superblock.shape();
    let to = Shape {
        code: options.code.unwrap_or(from.code),
        algorithm: options.algorithm.unwrap_or(from.algorithm),
        unit_bytes: options.unit_bytes.unwrap_or(from.unit_bytes),
        slots: from.slots + options.add,
        ..from
    };
    if to == from {
        return refused("the array has this geometry already");
    }
    if options.add > from.slots {
        return refused(format!(
            "{} disks cannot be added to {} at once: add at most as many as there are, then more",
            options.add, from.slots
        ));
    }
    let log_end = superblock.area.log_offset + superblock.area.log_bytes;
    let room = from.data_offset - log_end;
    let to = begin_lower(from, to, room, options.head_room_bytes)?;
    check(superblock, &from, &to)?;
    let mut window = window(&from, &to)?;
    if window.direction() == Direction::Down {
        return refused(
            "the new geometry has less data in each row of the disks: an array cannot shrink yet",
        );
    }
    let [old, new] = window.placements();
    let (size_bytes, new_size_bytes, step) =
        (old.size_bytes(), new.size_bytes(), new.stripe_bytes());
    if new_size_bytes < size_bytes {
        return refused("the array would become smaller, which is not possible yet");
    }
    // Where the hole does not grow, the pattern of the geometries repeats within these.
    let mut at = 0;
    for _ in 0..1024 {
        if at >= window.addresses().end {
            break;
        }
        let next = window.limit(at, step);
        if next == at {
            return refused(no_room(room));
        }
        at = next;
    }
    Ok(ReshapePlan { from, to, size_bytes, new_size_bytes })
}

fn no_room(room: u64) -> String {
    format!(
        "the members have {} before their data, which is too little to begin: only an array that was created with more head room can be reshaped in this way",
        weft_disk::Bytes(room)
    )
}

/// The geometry with its data beginning lower, and its rows ending where the old ones do.
fn begin_lower(from: Shape, to: Shape, room: u64, asked: Option<u64>) -> Result<Shape, ArrayError> {
    let bytes_of = |shape: &Shape| Ok::<u64, ArrayError>(placement(shape)?.size_bytes());
    let end = from.data_offset + from.rows * from.unit_bytes;
    let at = |taken: u64| {
        let data_offset = from.data_offset - taken;
        Shape { data_offset, rows: (end - data_offset) / to.unit_bytes, ..to }
    };
    let grows = bytes_of(&at(0))? > bytes_of(&from)?;
    let share = if grows { ROOM_SHARE } else { ROOM_SHARE_CONSTANT };
    // Whole units, so that they stay as aligned as they were.
    let unit = to.unit_bytes.max(from.unit_bytes);
    let wanted = asked.unwrap_or_else(|| (room / share).max(2 * unit));
    Ok(at(wanted.next_multiple_of(unit).min(room / unit * unit)))
}

/// Checks that superblocks can have the new geometry.
fn check(superblock: &Superblock, from: &Shape, to: &Shape) -> Result<(), ArrayError> {
    let regions = to.regions(superblock.region_bytes)?;
    if regions.stripe_bytes > superblock.region_bytes {
        return refused("a stripe of the new geometry is larger than a region of the array's map");
    }
    if region_map::area_bytes(regions.count()) > superblock.area.map_bytes {
        return refused("the array's region map has no room for so many regions");
    }
    let mut described = superblock.reshaped(*from, *to, Direction::Up);
    while described.slots.len() < to.slots {
        let member_id = Some(described.new_member_id());
        let disk_hint = "x".repeat(HINT_CHARS_MAX);
        let (state, left, replacement) = (SlotState::Active, None, None);
        described.slots.push(SlotMeta { member_id, state, disk_hint, left, replacement });
    }
    described.encode(superblock.self_id).map_err(ArrayError::from).map(drop)
}

impl Inner {
    /// Fails while the array is being reshaped.
    pub(crate) fn check_settled(&self) -> Result<(), ArrayError> {
        match self.geometries.former() {
            Some(_) => refused("the array is being reshaped: wait until that has ended"),
            None => Ok(()),
        }
    }
}
