//! The marker of a disk: it makes the disk a voter of its group.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::Buf;

use super::block::FRAME_BYTES;
use super::{DiskLeaseConfig, area_bytes, unreachable};
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

/// The group that a majority of the disks belongs to.
pub(super) async fn group_of(
    disks: &[Rc<dyn Disk>],
    config: &DiskLeaseConfig,
) -> Result<u64, CoordinatorError> {
    let read = |disk: &Rc<dyn Disk>| {
        let disk = disk.clone();
        async move { read_marker(&*disk, config.offset).await }
    };
    let markers = futures_util::future::join_all(disks.iter().map(read)).await;
    let mut groups: BTreeMap<u64, usize> = BTreeMap::new();
    for marker in markers.iter().flatten() {
        *groups.entry(marker.group).or_default() += 1;
    }
    let majority = groups.into_iter().find(|(_, count)| *count > disks.len() / 2);
    majority.map(|(group, _)| group).ok_or_else(|| {
        unreachable("no majority of the disks was set up for the leases of one cluster")
    })
}

pub(super) async fn read_marker(disk: &dyn Disk, offset: u64) -> Option<Marker> {
    for at in [offset, offset + BYTES as u64] {
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
    let frame = frame.expect("it is short").freeze();
    let opts = WriteOpts { class: Class::Urgent, fua: true };
    for at in [offset, offset + BYTES as u64] {
        disk.write(at, frame.clone(), opts).await?;
    }
    Ok(())
}

/// Writes the markers of a new group to disks whose areas are blank.
pub(super) async fn set_up(
    disks: &[Rc<dyn Disk>],
    config: &DiskLeaseConfig,
    group: u64,
) -> Result<(), CoordinatorError> {
    for disk in disks {
        let mut at = config.offset;
        while at < config.offset + area_bytes(config.nodes) {
            let (result, bytes) = disk.read(at, Buf::new(FRAME_BYTES), Class::User).await;
            result.map_err(|error| unreachable(&error.to_string()))?;
            if bytes.iter().any(|byte| *byte != 0) {
                let name = &disk.info().name;
                return Err(CoordinatorError::Refused(format!("{name} holds something")));
            }
            at += FRAME_BYTES as u64;
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
