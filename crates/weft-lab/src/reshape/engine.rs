//! The engine's own reshape, on the same modelled disks.
//!
//! A filled array reads as zeros, which the disks do not store: every region of it is marked as
//! written, so nothing of it is skipped. Like Linux MD by default, and unlike weft's, it keeps
//! neither a log nor a bitmap. Its head room is that of a disk of full size.

use std::rc::Rc;

use weft_array::reshape::ReshapeOptions;
use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, create};
use weft_code::CodeSpec;
use weft_disk::Disk;
use weft_layout::Algorithm;
use weft_model::{Contents, ModelDisk, ModelOptions};
use weft_rt::{MILLISECOND, Rt};

use super::Counted;
use super::given::Run;
use crate::bench::text;
use crate::modelled::mark_written_below;

const HEAD_ROOM_BYTES: u64 = 128 << 20;
/// In front of the head room.
const METADATA_BYTES: u64 = 8 << 20;

/// An array, and the disks that it is to get.
pub(super) struct Engine {
    rt: Rt,
    pub(super) array: Array,
    /// Users have this part of it, which was written.
    pub(super) used_bytes: u64,
    added: Vec<Rc<dyn Disk>>,
    seq: u64,
}

impl Engine {
    /// The array of a run, with `written_percent` of it written.
    pub(super) async fn open(rt: &Rt, given: &Run, written_percent: u64) -> Result<Self, String> {
        let grow = &given.grow;
        let disk = |number: usize| -> Rc<dyn Disk> {
            let options = ModelOptions {
                name: Some(format!("d{number}")),
                size_bytes: Some(METADATA_BYTES + HEAD_ROOM_BYTES + grow.disk_bytes),
                contents: Contents::KeptBelow(METADATA_BYTES),
                seed: given.seed + number as u64,
                ..ModelOptions::default()
            };
            ModelDisk::open(rt, &given.model, options)
        };
        let mut disks: Vec<_> = (0..grow.disks + grow.added).map(disk).collect();
        let added = disks.split_off(grow.disks);
        let options = CreateOptions {
            name: "modelled".into(),
            code: CodeSpec::Raid5,
            algorithm: Some(Algorithm::LeftAsymmetric),
            unit_bytes: u32::try_from(grow.unit_bytes).map_err(text)?,
            consistency: Consistency::None,
            region_bytes: None,
            log_bytes: None,
            head_room_bytes: Some(HEAD_ROOM_BYTES),
            spares: 0,
            force: false,
            id: [1; 16],
            now_unix_s: 0,
        };
        create(&disks, &options).await.map_err(text)?;
        let options = AssembleOptions { nonce: given.seed, ..AssembleOptions::default() };
        let array = Array::assemble(rt, disks, options).await.map_err(text)?;
        let used_bytes = array.size_bytes() / 100 * written_percent.min(100);
        mark_written_below(&array, used_bytes).await.map_err(text)?;
        for disk in &added {
            array.add_spare(disk.clone()).await.map_err(text)?;
        }
        let seq = array.status().seq;
        Ok(Self { rt: rt.clone(), array, used_bytes, added, seq })
    }

    /// Grows the array.
    pub(super) async fn reshape(&self) -> Result<(), String> {
        let options = ReshapeOptions { add: self.added.len(), ..ReshapeOptions::default() };
        self.array.reshape(options).await.map_err(text)?;
        while self.array.is_reshaping() {
            self.rt.sleep(MILLISECOND).await;
        }
        Ok(())
    }

    /// Superblocks written since the start. Its requests are not told from users'.
    pub(super) fn counted(&self) -> Counted {
        let checkpoints = self.array.status().seq - self.seq;
        Counted { checkpoints, ..Counted::default() }
    }
}
