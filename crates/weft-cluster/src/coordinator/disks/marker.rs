//! The marker of a disk: it makes the disk a voter of its group.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{Either, select};
use serde::{Deserialize, Serialize};
use weft_disk::{Class, Disk, DiskError};
use weft_rt::Buf;

use super::{BLOCK_BYTES, DiskLeaseConfig, HALF, area_bytes, unreachable};
use crate::clock::Clock;
use crate::coordinator::CoordinatorError;
use crate::frame::{self, Frame};

const MAGIC: [u8; 8] = *b"weftvote";
const BYTES: usize = 4096;
const VERSION: u32 = 1;

/// What makes a disk a voter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    /// The group of disks: a random number.
    pub group: u64,
    /// How many disks and nodes there are.
    pub disks: usize,
    pub nodes: u32,
    /// Which of the disks this is.
    pub place: usize,
    /// Rises when the disk is set up again.
    pub number: u64,
}

/// The disks that vote together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub id: u64,
    /// How many there are.
    pub disks: usize,
}

/// The markers of disks. One that does not answer in time has none.
pub(super) async fn read_markers(
    clock: &dyn Clock,
    disks: &[Rc<dyn Disk>],
    config: &DiskLeaseConfig,
) -> Vec<Option<Marker>> {
    let read = |disk: &Rc<dyn Disk>| {
        let disk = disk.clone();
        async move {
            let marker = Box::pin(read_marker(&*disk, config.offset));
            match select(marker, clock.sleep(config.patience)).await {
                Either::Left((marker, _)) => marker,
                Either::Right(_) => None,
            }
        }
    };
    futures_util::future::join_all(disks.iter().map(read)).await
}

/// The group of which a majority is among these disks.
pub(super) async fn group_of(
    clock: &dyn Clock,
    disks: &[Rc<dyn Disk>],
    config: &DiskLeaseConfig,
) -> Result<Group, CoordinatorError> {
    let markers = read_markers(clock, disks, config).await;
    let mut groups: BTreeMap<(u64, usize), BTreeSet<usize>> = BTreeMap::new();
    let mut seen = Vec::new();
    for marker in markers.into_iter().flatten() {
        if seen.contains(&marker) {
            let why = "two of these disks are copies of one: leave one of them out";
            return Err(CoordinatorError::Refused(why.to_owned()));
        }
        seen.push(marker);
        if marker.nodes == config.nodes {
            groups.entry((marker.group, marker.disks)).or_default().insert(marker.place);
        }
    }
    let majority = groups.into_iter().find(|((_, disks), places)| places.len() > disks / 2);
    majority.map(|((id, disks), _)| Group { id, disks }).ok_or_else(|| {
        unreachable("no majority of the disks was set up for the leases of one cluster")
    })
}

/// Where the two copies are in an area that begins here.
fn copies_at(offset: u64) -> [u64; 2] {
    [offset, offset + BYTES as u64]
}

pub(super) async fn read_marker(disk: &dyn Disk, offset: u64) -> Option<Marker> {
    for at in copies_at(offset) {
        let (result, bytes) = disk.read(at, Buf::new(BYTES), Class::Urgent).await;
        if result.is_ok()
            && let Frame::Sound(_, contents) = frame::decode(&MAGIC, VERSION, &bytes)
            && let Ok(marker) = serde_json::from_slice(&contents)
        {
            return Some(marker);
        }
    }
    None
}

pub(super) async fn write_marker(
    disk: &dyn Disk,
    offset: u64,
    marker: &Marker,
) -> Result<(), DiskError> {
    let contents = serde_json::to_vec(marker).expect("a marker can be written");
    let frame = frame::encode(&MAGIC, VERSION, marker.number, &contents, BYTES);
    frame::write_copies(disk, copies_at(offset), frame.expect("it is short")).await
}

/// Writes the markers of a new group to disks whose areas are blank, or have a marker and no more.
pub(super) async fn set_up(
    disks: &[Rc<dyn Disk>],
    config: &DiskLeaseConfig,
    group: u64,
) -> Result<(), CoordinatorError> {
    for disk in disks {
        if !is_unused(&**disk, config.offset, config.nodes).await? {
            let name = &disk.info().name;
            return Err(CoordinatorError::Refused(format!("{name} holds something")));
        }
    }
    for (place, disk) in disks.iter().enumerate() {
        let (count, nodes) = (disks.len(), config.nodes);
        let marker = Marker { group, disks: count, nodes, place, number: 0 };
        write_marker(&**disk, config.offset, &marker)
            .await
            .map_err(|error| unreachable(&error.to_string()))?;
    }
    Ok(())
}

/// Whether no node has written to an area.
async fn is_unused(disk: &dyn Disk, offset: u64, nodes: u32) -> Result<bool, CoordinatorError> {
    // A set up that a crash has ended leaves markers.
    let has_marker = read_marker(disk, offset).await.is_some_and(|marker| marker.number == 0);
    let from = if has_marker { offset + BLOCK_BYTES } else { offset };
    let blank = is_blank(disk, from..offset + area_bytes(nodes)).await;
    blank.map_err(|error| unreachable(&error.to_string()))
}

/// Whether there are only zeros here.
async fn is_blank(disk: &dyn Disk, bytes: Range<u64>) -> Result<bool, DiskError> {
    for at in bytes.step_by(HALF) {
        let (result, bytes) = disk.read(at, Buf::new(HALF), Class::User).await;
        result?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether what is here on a disk is the place of leases, or blank.
pub(crate) async fn is_for_leases(
    disk: &dyn Disk,
    offset: u64,
    nodes: u32,
) -> Result<bool, DiskError> {
    for at in copies_at(offset) {
        let (result, bytes) = disk.read(at, Buf::new(BYTES), Class::User).await;
        result?;
        if bytes[..8] == MAGIC {
            return Ok(true);
        }
    }
    is_blank(disk, offset..offset + area_bytes(nodes)).await
}
