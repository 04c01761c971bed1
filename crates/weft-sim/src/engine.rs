//! The engine under test: how a run creates its array and assembles it.

use std::rc::Rc;

use weft_array::superblock::read_superblock;
use weft_array::{Array, AssembleOptions, Consistency, CreateOptions};
use weft_disk::Disk;
use weft_rt::Rt;

use crate::foreign::FOREIGN_ID;
use crate::setup::Setup;

/// An assembled array.
#[derive(Debug, Clone)]
pub(crate) struct Engine(pub Array);

fn text<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

impl Engine {
    /// Creates the array of `setup` on `disks`.
    pub(crate) async fn create(
        disks: Vec<Rc<dyn Disk>>,
        setup: &Setup,
        id: [u8; 16],
    ) -> Result<(), String> {
        let options = CreateOptions {
            name: "sim".into(),
            code: setup.code,
            algorithm: Some(setup.algorithm),
            unit_bytes: setup.unit_bytes,
            consistency: setup.policy,
            region_bytes: setup.region_bytes,
            log_bytes: None,
            head_room_bytes: setup.reshape.map(|_| setup.head_room_bytes()),
            spares: setup.disks.len() - setup.slots,
            force: true,
            id,
            now_unix_s: 0,
        };
        text(weft_array::create(&disks, &options).await).map(drop)
    }

    /// Assembles the array from the members among `disks`, and from now on keeps it consistent by
    /// the `wanted` policy.
    pub(crate) async fn assemble(
        rt: &Rt,
        disks: Vec<Rc<dyn Disk>>,
        force_degraded: bool,
        read_only: bool,
        wanted: Option<Consistency>,
        nonce: u64,
    ) -> Result<Self, String> {
        let mut members = Vec::new();
        for disk in disks {
            // A disk that was being added when the crash came has no label yet, and one that was
            // used elsewhere has another.
            match read_superblock(&*disk).await {
                Ok(None) => {}
                Ok(Some(own)) if own.array_id.0 == FOREIGN_ID => {}
                _ => members.push(disk),
            }
        }
        let options = AssembleOptions {
            force_degraded,
            read_only,
            consistency: wanted,
            nonce,
            ..AssembleOptions::default()
        };
        text(Array::assemble(rt, members, options).await).map(Self)
    }
}
