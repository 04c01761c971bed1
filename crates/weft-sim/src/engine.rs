//! The engine under test: as a volume for the clients, and the commands that a run gives it.

use std::rc::Rc;

use weft_array::superblock::read_superblock;
use weft_array::{Array, AssembleOptions, Consistency, CreateOptions};
use weft_disk::Disk;
use weft_rt::{Buf, Frozen, Rt};

use crate::setup::{Policy, Setup};
use crate::volume::{Volume, VolumeFuture};

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
            consistency: match setup.policy {
                Policy::Ppl => Consistency::Ppl,
                Policy::Bitmap => Consistency::Bitmap,
                Policy::None => Consistency::None,
            },
            region_bytes: setup.region_bytes,
            log_bytes: None,
            spares: setup.disks.len() - setup.slots,
            force: true,
            id,
            now_unix_s: 0,
        };
        text(weft_array::create(&disks, &options).await).map(drop)
    }

    /// Assembles the array from the members among `disks`.
    pub(crate) async fn assemble(
        rt: &Rt,
        disks: Vec<Rc<dyn Disk>>,
        force_degraded: bool,
        read_only: bool,
        nonce: u64,
    ) -> Result<Self, String> {
        let mut members = Vec::new();
        for disk in disks {
            // A disk that was being added when the crash came has no label yet.
            if !matches!(read_superblock(&*disk).await, Ok(None)) {
                members.push(disk);
            }
        }
        let options =
            AssembleOptions { force_degraded, read_only, nonce, ..AssembleOptions::default() };
        text(Array::assemble(rt, members, options).await).map(Self)
    }
}

impl Volume for Engine {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> VolumeFuture<'_, (Result<(), String>, Buf)> {
        Box::pin(async move {
            let (result, buf) = self.0.read(offset, buf).await;
            (text(result), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> VolumeFuture<'_, Result<(), String>> {
        Box::pin(async move { text(self.0.write(offset, data, fua).await) })
    }

    fn flush(&self) -> VolumeFuture<'_, Result<(), String>> {
        Box::pin(async move { text(self.0.flush().await) })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> VolumeFuture<'_, Result<(), String>> {
        Box::pin(async move { text(self.0.write_zeroes(offset, len, fua, may_deallocate).await) })
    }

    fn discard(&self, offset: u64, len: u64) -> VolumeFuture<'_, Result<(), String>> {
        Box::pin(async move { text(self.0.discard(offset, len).await) })
    }
}
