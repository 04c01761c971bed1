//! A modelled disk as a [`Disk`]: a [`Station`] for the timing, and contents.
//!
//! It works the same in virtual and in real time, depending on the executor. Contents are real
//! bytes, so that an experiment also checks the data: a write is stored when it starts, a read is
//! taken when it completes, which is one of the orders that a disk may choose. Experiments that
//! need only times can do without contents.
//!
//! It has no faults of its own. To fail requests, put [`weft_disk::FaultDisk`] in front of it.
//! Disks that lose unflushed data in a power cut are in the crash simulator (weft-sim), which can
//! use a model's timing.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::join;
use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen, Rt};

use crate::command::{Command, Verb};
use crate::pages::Pages;
use crate::product::{Model, Scheduler};
use crate::station::Station;
use crate::stats::DiskStats;

/// Which contents are stored.
#[derive(Clone)]
pub enum Contents {
    /// Everything, in memory; pages that are all zeros use none.
    Kept,
    /// Only contents below this offset (an array's metadata, for instance); the rest reads as
    /// zeros. 0: nothing.
    KeptBelow(u64),
    /// Everything, on another disk at the same offsets. A request completes when both the model and
    /// that disk have completed it.
    On(Rc<dyn Disk>),
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kept => f.write_str("Kept"),
            Self::KeptBelow(bytes) => write!(f, "KeptBelow({bytes})"),
            Self::On(disk) => write!(f, "On({})", disk.info().name),
        }
    }
}

/// How to open a modelled disk.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// The name in errors and logs; `None`: the model's name.
    pub name: Option<String>,
    /// Offers only this many bytes (the papers use 5 GB of each disk); the mechanics are those of
    /// the whole disk. `None`: all.
    pub size_bytes: Option<u64>,
    /// Which contents are stored.
    pub contents: Contents,
    /// Sets the initial angle of a hard disk's platters: the disks of an array should not rotate in
    /// step.
    pub seed: u64,
    /// Switches a hard disk's write cache on or off; `None`: the product's default.
    pub write_cache: Option<bool>,
    /// Changes a hard disk's scheduler.
    pub scheduler: Scheduler,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            name: None,
            size_bytes: None,
            contents: Contents::Kept,
            seed: 0,
            write_cache: None,
            scheduler: Scheduler::default(),
        }
    }
}

/// A disk with the timing of a product.
#[derive(Debug)]
pub struct ModelDisk {
    info: DiskInfo,
    station: Station,
    contents: Contents,
    pages: RefCell<Pages>,
}

impl ModelDisk {
    /// A fresh disk of `model` on the clock of `rt`.
    pub fn open(rt: &Rt, model: &Model, options: ModelOptions) -> Rc<Self> {
        let sector = u64::from(model.sector_bytes);
        let limit = options.size_bytes.unwrap_or(u64::MAX).min(model.capacity_bytes);
        let size_bytes = match &options.contents {
            Contents::On(disk) => limit.min(disk.info().size_bytes),
            Contents::Kept | Contents::KeptBelow(_) => limit,
        };
        let model = options.write_cache.map_or(*model, |on| model.with_write_cache(on));
        let model = model.with_scheduler(options.scheduler);
        let info = DiskInfo {
            name: options.name.unwrap_or_else(|| model.name.to_owned()),
            size_bytes: size_bytes - size_bytes % sector,
            sector_bytes: model.sector_bytes,
            fast_zeroes: model.zeroes_fast(),
            volatile_cache: model.has_volatile_cache(),
            rotational: model.is_rotational(),
        };
        let station = Station::new(rt, model.mechanism(options.seed));
        Rc::new(Self { info, station, contents: options.contents, pages: RefCell::default() })
    }

    /// Its counters.
    pub fn stats(&self) -> DiskStats {
        self.station.stats()
    }

    /// Resets the counters.
    pub fn reset_stats(&self) {
        self.station.reset_stats();
    }

    /// Reads the stored contents without delay (zeros where nothing is stored in memory).
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.pages.borrow().read(offset, out);
    }

    /// The memory that the contents use, approximately.
    pub fn stored_bytes(&self) -> u64 {
        self.pages.borrow().stored_bytes()
    }

    /// How many bytes of a range are stored in memory.
    fn kept(&self, offset: u64, len: u64) -> u64 {
        match self.contents {
            Contents::Kept => len,
            Contents::KeptBelow(bytes) => bytes.saturating_sub(offset).min(len),
            Contents::On(_) => 0,
        }
    }

    fn command(verb: Verb, offset: u64, len: u64, fua: bool) -> Command {
        Command { verb, offset, len, fua }
    }

    async fn do_read(
        &self,
        offset: u64,
        mut buf: Buf,
        class: Class,
    ) -> (Result<(), DiskError>, Buf) {
        let len = buf.len() as u64;
        if let Err(error) = self.info.check(DiskOp::Read, offset, len) {
            return (Err(error), buf);
        }
        let served = self.station.serve(Command::read(offset, len));
        if let Contents::On(disk) = &self.contents {
            return join(served, disk.read(offset, buf, class)).await.1;
        }
        served.await;
        let kept = usize::try_from(self.kept(offset, len)).unwrap_or(usize::MAX);
        self.pages.borrow().read(offset, &mut buf[..kept]);
        buf[kept..].fill(0);
        (Ok(()), buf)
    }

    async fn do_write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> Result<(), DiskError> {
        let len = data.len() as u64;
        self.info.check(DiskOp::Write, offset, len)?;
        let served = self.station.serve(Self::command(Verb::Write, offset, len, opts.fua));
        if let Contents::On(disk) = &self.contents {
            return join(served, disk.write(offset, data, opts)).await.1;
        }
        let kept = usize::try_from(self.kept(offset, len)).unwrap_or(usize::MAX);
        self.pages.borrow_mut().write_sparse(offset, &data[..kept]);
        drop(data);
        served.await;
        Ok(())
    }

    async fn do_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> Result<(), DiskError> {
        self.info.check(DiskOp::WriteZeroes, offset, len)?;
        let served = self.station.serve(Self::command(Verb::Zero, offset, len, opts.fua));
        if let Contents::On(disk) = &self.contents {
            return join(served, disk.write_zeroes(offset, len, opts)).await.1;
        }
        self.pages.borrow_mut().zero(offset, self.kept(offset, len));
        served.await;
        Ok(())
    }

    async fn do_flush(&self) -> Result<(), DiskError> {
        let served = self.station.serve(Command::FLUSH);
        match &self.contents {
            Contents::On(disk) => join(served, disk.flush()).await.1,
            Contents::Kept | Contents::KeptBelow(_) => {
                served.await;
                Ok(())
            }
        }
    }
}

impl Disk for ModelDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(self.do_read(offset, buf, class))
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.do_write(offset, data, opts))
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(self.do_flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.do_zeroes(offset, len, opts))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            self.info.check(DiskOp::Discard, offset, len)?;
            if !self.info.fast_zeroes {
                // A hard disk has no mapping that a discard could drop.
                return Ok(());
            }
            let opts = WriteOpts::USER;
            self.do_zeroes(offset, len, opts).await
        })
    }
}
