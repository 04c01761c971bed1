//! An array of the engine on modelled disks, in virtual time, for external loads (`weft replay`).
//!
//! Its disks may be as large as the product, because unwritten blocks need no storage. An array
//! knows which regions were never written, and answers reads of them without a disk, so one block
//! of zeros is written to each region first. From then on the whole array counts as data that
//! happens to be zero: every read goes to the disks, every rebuild has to process all of it, and
//! parity is correct from the start.

use std::cell::RefCell;
use std::rc::Rc;

use weft_array::{
    Array, ArrayError, AssembleOptions, Consistency, CreateError, CreateOptions, Piggyback,
    RebuildOrder, RebuildPolicy, create,
};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::{Disk, Volume};
use weft_model::{Model, ModelDisk, ModelOptions, Scheduler};
use weft_rt::{Buf, MILLISECOND, Nanos, Rt};
use weft_trace::replay::DiskTimes;

use crate::rebuild::{Parts, Pipelined, Way};

/// Smallest write.
const BLOCK: usize = 4096;
/// After the first writes the disks rest this long, until their buffers have drained.
const REST: Nanos = 2000 * MILLISECOND;

/// Why the array cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelledError {
    /// It cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// It cannot be used.
    #[error(transparent)]
    Array(#[from] ArrayError),
}

/// Parameters of the array.
#[derive(Debug, Clone)]
pub struct ArraySetup {
    /// The stripe code.
    pub code: CodeSpec,
    /// Disks.
    pub disks: usize,
    /// The product.
    pub model: &'static Model,
    /// Bytes used of each; `None`: all.
    pub disk_bytes: Option<u64>,
    /// Bytes of a unit.
    pub unit_bytes: u32,
    /// Bytes of a region; `None`: as many as the product gives an array of this size.
    pub region_bytes: Option<u64>,
    /// Seed of the rotational position.
    pub seed: u64,
    /// Changes to the scheduler of hard disks.
    pub scheduler: Scheduler,
}

/// See the [module](self).
#[derive(Debug)]
pub struct ModelledArray {
    rt: Rt,
    setup: ArraySetup,
    array: Array,
    disks: RefCell<Vec<Rc<ModelDisk>>>,
}

impl ModelledArray {
    /// Creates an array, on the clock of `rt`.
    ///
    /// # Errors
    /// If no such array can be created.
    pub async fn open(rt: &Rt, setup: ArraySetup) -> Result<Self, ModelledError> {
        let disks: Vec<_> = (0..setup.disks).map(|number| disk(rt, &setup, number)).collect();
        let array = array_on(rt, &setup, &disks, None).await?;
        mark_written(&array).await?;
        rt.sleep(REST).await;
        Ok(Self { rt: rt.clone(), setup, array, disks: RefCell::new(disks) })
    }

    /// The array.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// The array, for a replay.
    pub fn volume(&self) -> Rc<dyn Volume> {
        Rc::new(self.array.clone())
    }

    /// Fails the disks of `slots`.
    ///
    /// # Errors
    /// If there is no such slot, or data would be lost.
    pub async fn fail(&self, slots: &[usize]) -> Result<(), ArrayError> {
        for slot in slots {
            self.array.fail(SlotNo(*slot)).await?;
        }
        Ok(())
    }

    /// Adds a fresh disk, onto which the array rebuilds a failed one from the start to the end,
    /// at `bytes_s` regardless of users.
    ///
    /// # Errors
    /// If the array refuses the disk.
    pub async fn rebuild(&self, bytes_s: u64) -> Result<(), ArrayError> {
        let number = self.disks.borrow().len();
        let spare = disk(&self.rt, &self.setup, number);
        self.disks.borrow_mut().push(spare.clone());
        rebuild_onto(&self.array, spare, bytes_s).await
    }
}

impl DiskTimes for ModelledArray {
    fn busy(&self) -> Vec<(String, Nanos)> {
        let disks = self.disks.borrow();
        let busy = |disk: &Rc<ModelDisk>| (disk.info().name.clone(), disk.stats().busy_ns);
        disks.iter().map(busy).collect()
    }
}

/// Creates an array on `disks`, with head room as given, or with what arrays have by default.
/// Without log and bitmap, as Linux MD by default, with which the papers compare.
pub(crate) async fn array_on(
    rt: &Rt,
    setup: &ArraySetup,
    disks: &[Rc<ModelDisk>],
    head_room_bytes: Option<u64>,
) -> Result<Array, ModelledError> {
    let members = || disks.iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect::<Vec<_>>();
    let options = CreateOptions {
        name: "modelled".into(),
        code: setup.code,
        algorithm: None,
        unit_bytes: setup.unit_bytes,
        consistency: Consistency::None,
        region_bytes: setup.region_bytes,
        log_bytes: None,
        head_room_bytes,
        spares: 0,
        force: false,
        id: [1; 16],
        now_unix_s: 0,
    };
    create(&members(), &options).await?;
    let options = AssembleOptions { nonce: setup.seed, ..AssembleOptions::default() };
    Ok(Array::assemble(rt, members(), options).await?)
}

/// Adds `spare`; its rebuild starts, at `bytes_s` on each member regardless of users, as Linux MD
/// does it, with requests that the block layer merged to 64 KiB.
pub(crate) async fn rebuild_onto(
    array: &Array,
    spare: Rc<ModelDisk>,
    bytes_s: u64,
) -> Result<(), ArrayError> {
    array.set_throttle(bytes_s, Some(bytes_s));
    let policy = RebuildPolicy {
        order: RebuildOrder::Ascending,
        piggyback: Piggyback::Off,
        ..RebuildPolicy::default()
    };
    let pipelined = Some(Pipelined { request_bytes: 64 << 10, heads: 16 });
    let way = Way { policy, parts: Parts { pipelined, ..Parts::default() } };
    way.apply(array).await?;
    array.add_spare(spare).await
}

/// Writes zeros to each region of a fresh array, so that all of it counts as written.
pub(crate) async fn mark_written(array: &Array) -> Result<(), ArrayError> {
    mark_written_below(array, array.size_bytes()).await
}

/// Fills the contents below `end`.
pub(crate) async fn mark_written_below(array: &Array, end: u64) -> Result<(), ArrayError> {
    let mut at = 0;
    while at < end {
        array.write(at, Buf::zeroed(BLOCK).freeze(), false).await?;
        at = array.region_at(at).end;
    }
    array.flush().await
}

/// Disk number `number` of an array.
pub(crate) fn disk(rt: &Rt, setup: &ArraySetup, number: usize) -> Rc<ModelDisk> {
    let options = ModelOptions {
        name: Some(format!("d{number}")),
        size_bytes: setup.disk_bytes,
        seed: setup.seed.wrapping_add(number as u64),
        scheduler: setup.scheduler,
        ..ModelOptions::default()
    };
    ModelDisk::open(rt, setup.model, options)
}
