//! A bench: an array of the engine on modelled disks, in virtual time, with known contents.
//!
//! Every block of 4 KiB is filled with a word made of its number and its version; every read is
//! compared, so that no figure can come from wrong data. A bench lives on one thread and has an
//! executor of its own; several benches run in parallel.

mod above;
mod contents;
mod file_rebuild;
mod files;
mod life;
mod load;
mod open_loop;
mod recovery;
mod service;

use std::rc::Rc;

use weft_array::Array;
use weft_code::{CodeSpec, SlotNo};
use weft_model::{DiskStats, Model, ModelDisk, Scheduler};
use weft_rt::sync::Semaphore;
use weft_rt::{MILLISECOND, Rt, Schedule, virtual_rt};

use crate::modelled::{ArraySetup, array_on, disk, rebuild_onto};
pub(crate) use above::CacheSetup;
pub(crate) use contents::Contents;
pub(crate) use file_rebuild::{FileRebuild, FilesRebuilt, rebuild_files};
pub(crate) use files::{FileLoad, FileSetup, Requests, rate};
pub(crate) use life::{Life, Lived, PHASES, live};
pub(crate) use load::{Access, Ended, Load};
pub(crate) use open_loop::{endless, open_loop, scaled};
pub(crate) use recovery::{Recovered, Recovery, recover};
pub(crate) use service::{Served, Service, serve};

/// Writes in flight while the array is filled.
const FILLS: usize = 16;
/// After the fill the disks rest this long, until their buffers have drained.
const REST: u64 = 2000 * MILLISECOND;

/// Regions of a bench whose disks have a few MiB.
const REGION: u64 = 1 << 20;

/// The parameters that all benches of an experiment share.
#[derive(Clone, Debug)]
pub(crate) struct Bed {
    pub(crate) model: &'static Model,
    /// Bytes used of each disk.
    pub(crate) disk_bytes: u64,
    pub(crate) unit_bytes: u32,
    pub(crate) seed: u64,
}

impl Bed {
    /// With an array on it.
    pub(crate) fn setup(&self, code: CodeSpec, disks: usize) -> ArraySetup {
        ArraySetup {
            code,
            disks,
            model: self.model,
            disk_bytes: Some(self.disk_bytes),
            unit_bytes: self.unit_bytes,
            region_bytes: Some(REGION),
            seed: self.seed,
            scheduler: Scheduler::default(),
        }
    }
}

/// An array, full of known contents, and its disks.
pub(crate) struct Bench {
    pub(crate) rt: Rt,
    pub(crate) array: Array,
    disks: Vec<Rc<ModelDisk>>,
    contents: Rc<Contents>,
    setup: ArraySetup,
}

/// Runs `work` on a bench of its own.
pub(crate) fn on_bench<T: 'static, F>(
    setup: &ArraySetup,
    work: impl FnOnce(Rc<Bench>) -> F + 'static,
) -> Result<T, String>
where
    F: Future<Output = Result<T, String>> + 'static,
{
    let (rt, setup) = (virtual_rt(Schedule::Fifo), setup.clone());
    rt.clone().block_on(async move {
        let bench = Rc::new(Bench::build(&rt, setup).await?);
        let result = work(bench.clone()).await?;
        bench.array.stop().await.map_err(text)?;
        Ok(result)
    })
}

pub(crate) fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Bench {
    async fn build(rt: &Rt, setup: ArraySetup) -> Result<Self, String> {
        let disks: Vec<_> = (0..setup.disks).map(|slot| disk(rt, &setup, slot)).collect();
        let array = array_on(rt, &setup, &disks, None).await.map_err(text)?;
        let contents = Rc::new(Contents::new(array.size_bytes(), setup.seed));
        let bench = Self { rt: rt.clone(), array, disks, contents, setup };
        bench.fill().await?;
        Ok(bench)
    }

    /// Writes everything once.
    async fn fill(&self) -> Result<(), String> {
        let step = self.array.stripe_bytes().max(1 << 20);
        let size = self.contents.size_bytes();
        let places = Rc::new(Semaphore::new(FILLS));
        let mut tasks = Vec::new();
        let mut at = 0;
        while at < size {
            let len = usize::try_from(step.min(size - at)).map_err(text)?;
            let place = places.acquire(1).await;
            let data = self.contents.make(at, len);
            let array = self.array.clone();
            tasks.push(self.rt.spawn(async move {
                let written = array.write(at, data, false).await;
                drop(place);
                written
            }));
            at += len as u64;
        }
        for task in tasks {
            task.await.map_err(text)?;
        }
        self.array.flush().await.map_err(text)?;
        self.rt.sleep(REST).await;
        Ok(())
    }

    /// Reads everything and compares.
    pub(crate) async fn verify(&self) -> Result<(), String> {
        let step = 1 << 20;
        let size = self.contents.size_bytes();
        for at in (0..size).step_by(1 << 20) {
            let len = usize::try_from(size - at).map_err(text)?.min(step);
            let (result, buf) = self.array.read(at, weft_rt::Buf::new(len)).await;
            result.map_err(text)?;
            self.contents.check(at, &buf)?;
        }
        Ok(())
    }

    /// Whether users' repairs avoid busy members; see [`Array::set_load_aware_reconstruction`].
    pub(crate) fn load_aware_repairs(&self, on: bool) {
        self.array.set_load_aware_reconstruction(on);
    }

    /// Fails slots, and lets the array settle.
    pub(crate) async fn fail(&self, slots: impl IntoIterator<Item = usize>) -> Result<(), String> {
        for slot in slots {
            self.array.fail(SlotNo(slot)).await.map_err(text)?;
        }
        self.rt.sleep(10 * MILLISECOND).await;
        Ok(())
    }

    /// Adds a fresh disk; its rebuild starts, at `bytes_s` on each member regardless of users.
    pub(crate) async fn rebuild(&self, bytes_s: u64) -> Result<(), String> {
        let spare = disk(&self.rt, &self.setup, self.disks.len());
        rebuild_onto(&self.array, spare, bytes_s).await.map_err(text)
    }

    /// The work of each slot's disk since [`Bench::count_anew`].
    pub(crate) fn stats(&self) -> Vec<DiskStats> {
        self.disks.iter().map(|disk| disk.stats()).collect()
    }

    pub(crate) fn count_anew(&self) {
        self.disks.iter().for_each(|disk| disk.reset_stats());
    }
}
