//! Modelled targets of `weft replay`, in virtual time.

use std::rc::Rc;

use weft_cli::failure::Failure;
use weft_code::CodeSpec;
use weft_disk::{Disk as _, DiskVolume};
use weft_model::{Model, ModelDisk, ModelOptions, Scheduler, UnknownModel};
use weft_rt::{Nanos, Rt, Schedule, virtual_rt};
use weft_trace::replay::{DiskTimes, Live};

use super::args::ModelledArgs;
use super::{Replay, Replayed};
use crate::modelled::{ArraySetup, ModelledArray, ModelledError};

/// A modelled target.
pub struct Modelled {
    model: &'static Model,
    disk_bytes: Option<u64>,
    array: Option<ArraySetup>,
    failed: Vec<usize>,
    rebuild_bytes_s: Option<u64>,
}

impl Modelled {
    /// The modelled target that the arguments ask for, if any.
    pub fn of(args: &ModelledArgs) -> Result<Option<Self>, Failure> {
        let Some(name) = &args.model else { return Ok(None) };
        let model = Model::find(name).map_err(|e: UnknownModel| {
            Failure::usage(e.to_string()).hint("`weft lab disk --list` describes them")
        })?;
        let array = match (&args.code, args.disks) {
            (Some(code), Some(disks)) => Some(ArraySetup {
                code: code_called(code)?,
                disks,
                model,
                disk_bytes: args.disk_size,
                unit_bytes: u32::try_from(args.unit)
                    .map_err(|_| Failure::usage(format!("--unit {}: too large", args.unit)))?,
                region_bytes: None,
                seed: 1,
                scheduler: Scheduler::default(),
            }),
            _ => None,
        };
        if args.rebuild == Some(0) {
            return Err(Failure::usage("--rebuild 0 would never end"));
        }
        Ok(Some(Self {
            model,
            disk_bytes: args.disk_size,
            array,
            failed: args.failed.clone(),
            rebuild_bytes_s: args.rebuild,
        }))
    }

    /// Its description, in a line.
    pub fn title(&self) -> String {
        match &self.array {
            Some(setup) => {
                format!("modelled {} of {} × {}", setup.code, setup.disks, self.model.name)
            }
            None => format!("modelled {}", self.model.name),
        }
    }

    /// Replays requests to it.
    pub fn run(self, replay: Replay) -> Result<Replayed, Failure> {
        let rt = virtual_rt(Schedule::Fifo);
        rt.clone().block_on(async move {
            match self.array.clone() {
                Some(setup) => self.to_array(&rt, setup, replay).await,
                None => self.to_disk(&rt, replay).await,
            }
        })
    }

    async fn to_disk(&self, rt: &Rt, replay: Replay) -> Result<Replayed, Failure> {
        let options = ModelOptions { size_bytes: self.disk_bytes, ..ModelOptions::default() };
        let disk = ModelDisk::open(rt, self.model, options);
        let volume = Rc::new(DiskVolume::new(disk.clone()));
        replay.to(rt, volume, Live::watching(Rc::new(One(disk)))).await
    }

    async fn to_array(
        &self,
        rt: &Rt,
        setup: ArraySetup,
        replay: Replay,
    ) -> Result<Replayed, Failure> {
        let title = self.title();
        let array = self.array_of(rt, setup).await;
        let array = Rc::new(array.map_err(|e| Failure::new(format!("{title}: {e}")))?);
        replay.to(rt, array.volume(), Live::watching(array)).await
    }

    async fn array_of(&self, rt: &Rt, setup: ArraySetup) -> Result<ModelledArray, ModelledError> {
        let array = ModelledArray::open(rt, setup).await?;
        array.fail(&self.failed).await?;
        if let Some(bytes_s) = self.rebuild_bytes_s {
            array.rebuild(bytes_s).await?;
        }
        Ok(array)
    }
}

fn code_called(text: &str) -> Result<CodeSpec, Failure> {
    text.parse().map_err(|e| Failure::usage(format!("--code {text}: {e}")))
}

/// A single modelled disk.
struct One(Rc<ModelDisk>);

impl DiskTimes for One {
    fn busy(&self) -> Vec<(String, Nanos)> {
        vec![(self.0.info().name.clone(), self.0.stats().busy_ns)]
    }
}
