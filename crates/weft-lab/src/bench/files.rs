//! A file of weft's file system on modelled disks, and disks without one, in virtual time.
//!
//! What processors do takes no time. So a write that the cache takes costs nothing, and its size
//! matters only where each request waits for the disks. Everything is read again in the end, and
//! compared.

use std::rc::Rc;

use futures_util::future::{join, join_all};
use serde::Deserialize;
use weft_disk::{Class, Disk, WriteOpts};
use weft_fs::{
    AccessTimes, BLOCK_BYTES, CreateOptions, Fs, Ino, Kind, META_CACHE_BYTES, MountOptions,
    NewFile, ROOT, Redundancy,
};
use weft_model::{Contents as Kept, Model, ModelDisk, ModelOptions};
use weft_rt::{Buf, MILLISECOND, Nanos, Rng, Rt, Schedule, virtual_rt};

use super::contents::Contents;
use super::text;

/// Bytes of a read by which the result is compared.
const STEP: u64 = 1 << 20;
/// Between a small file and the next.
const PAUSE: Nanos = 300 * MILLISECOND;
/// The disks rest before a measurement, until their buffers have drained.
pub(super) const REST: Nanos = 2000 * MILLISECOND;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FileLoad {
    /// A new file is written in order, and made durable.
    Write,
    /// It is read in order.
    Read,
    /// Blocks of it are written at random places, and made durable.
    Overwrite,
    /// While it is written, small files are made and made durable, one after the other.
    Beside,
}

/// Disks, and what a file on them has.
#[derive(Clone, Debug)]
pub(crate) struct FileSetup {
    pub(crate) model: &'static Model,
    pub(crate) disks: usize,
    pub(crate) disk_bytes: u64,
    /// None: the disks are used without a file system, one stream for each.
    pub(crate) redundancy: Option<Redundancy>,
    pub(crate) file_bytes: u64,
    /// Memory for contents: half of it may wait to be written.
    pub(crate) cache_bytes: u64,
    /// Blocks that are overwritten for each that the file has.
    pub(crate) overwrite_times: u64,
    pub(crate) seed: u64,
}

impl FileSetup {
    fn on(&self) -> FileDisks {
        let Self { model, disks, disk_bytes, cache_bytes, seed, .. } = *self;
        FileDisks { model, disks, disk_bytes, cache_bytes, seed }
    }
}

/// Requests of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) bytes: u64,
    /// How many are in flight; of reads only.
    pub(crate) depth: u64,
}

/// Millions of bytes a second of a load; of [`FileLoad::Beside`], seconds until a small file is
/// durable.
pub(crate) fn rate(setup: &FileSetup, load: FileLoad, requests: Requests) -> Result<f64, String> {
    let (rt, setup) = (virtual_rt(Schedule::Fifo), setup.clone());
    let result = rt.clone().block_on({
        let rt = rt.clone();
        async move {
            let disks = setup.on().open(&rt);
            match setup.redundancy {
                Some(redundancy) => file(&rt, &setup, redundancy, &disks, load, requests).await,
                None => raw(&rt, &setup, &disks, load, requests).await,
            }
        }
    });
    rt.kill_all();
    result
}

/// Modelled disks for a file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileDisks {
    pub(super) model: &'static Model,
    pub(super) disks: usize,
    pub(super) disk_bytes: u64,
    /// Memory for contents.
    pub(super) cache_bytes: u64,
    pub(super) seed: u64,
}

impl FileDisks {
    pub(super) fn open(self, rt: &Rt) -> Vec<Rc<dyn Disk>> {
        let disk = |number: usize| {
            let options = ModelOptions {
                name: Some(format!("d{number}")),
                size_bytes: Some(self.disk_bytes),
                contents: Kept::Kept,
                seed: self.seed.wrapping_add(number as u64),
                ..ModelOptions::default()
            };
            ModelDisk::open(rt, self.model, options) as Rc<dyn Disk>
        };
        (0..self.disks).map(disk).collect()
    }

    /// Makes a file system on them, and mounts it.
    pub(super) async fn mount(
        self,
        rt: &Rt,
        disks: &[Rc<dyn Disk>],
        redundancy: Redundancy,
    ) -> Result<Fs, String> {
        let (id, now) = ([1; 16], weft_fs::Time { s: 0, ns: 0 });
        let create = CreateOptions {
            name: "modelled".into(),
            redundancy,
            slice_bytes: None,
            force: false,
            id,
            now,
        };
        weft_fs::create(rt, disks, &create).await.map_err(text)?;
        let mounting = MountOptions {
            degraded: false,
            stale: false,
            read_only: false,
            access_times: AccessTimes::Relative,
            cache_bytes: self.cache_bytes,
            meta_cache_bytes: META_CACHE_BYTES,
            nonce: self.seed,
            now,
            host: None,
            clock: None,
        };
        Fs::mount(rt, disks, mounting).await.map_err(text)
    }
}

/// Millions of bytes a second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn mb_s(bytes: u64, ns: Nanos) -> f64 {
    bytes as f64 * 1e3 / ns.max(1) as f64
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request that fits in memory")
}

async fn file(
    rt: &Rt,
    setup: &FileSetup,
    redundancy: Redundancy,
    disks: &[Rc<dyn Disk>],
    load: FileLoad,
    requests: Requests,
) -> Result<f64, String> {
    let fs = setup.on().mount(rt, disks, redundancy).await?;
    let (ino, _) = fs.make(ROOT, b"file", new_file()).await.map_err(text)?;
    fs.begin_use(ino);
    fs.sync().await.map_err(text)?;
    rt.sleep(REST).await;
    let file = Rc::new(File { fs, ino, contents: Contents::new(setup.file_bytes, setup.seed) });
    let begun = rt.now();
    let mut small_s = None;
    if load == FileLoad::Beside {
        let (written, small) = join(file.write(STEP), file.make_beside(rt)).await;
        written?;
        small_s = Some(small?);
    } else {
        file.write(if load == FileLoad::Write { requests.bytes } else { STEP }).await?;
    }
    let mut ns = rt.now() - begun;
    rt.sleep(REST).await;
    if load == FileLoad::Overwrite {
        ns = file.overwrite(rt, setup.seed, setup.overwrite_times).await?;
        rt.sleep(REST).await;
    }
    let measured =
        if load == FileLoad::Read { requests } else { Requests { bytes: STEP, depth: 4 } };
    let read = file.read(rt, measured).await?;
    file.fs.unmount().await.map_err(text)?;
    let rate = match load {
        FileLoad::Read => mb_s(setup.file_bytes, read),
        FileLoad::Overwrite => mb_s(setup.file_bytes * setup.overwrite_times, ns),
        FileLoad::Write | FileLoad::Beside => mb_s(setup.file_bytes, ns),
    };
    Ok(small_s.unwrap_or(rate))
}

pub(super) fn new_file() -> NewFile<'static> {
    let mode = Kind::File.mode() | 0o644;
    NewFile { mode, umask: 0, uid: 0, gid: 0, device: 0, target: b"" }
}

/// A file with known contents.
struct File {
    fs: Fs,
    ino: Ino,
    contents: Contents,
}

impl File {
    fn size(&self) -> u64 {
        self.contents.size_bytes()
    }

    async fn write(&self, step: u64) -> Result<(), String> {
        let mut at = 0;
        while at < self.size() {
            let data = self.contents.make(at, len(step.min(self.size() - at)));
            self.fs.write(self.ino, at, data).await.map_err(text)?;
            at += step;
        }
        self.fs.fsync(self.ino).await.map_err(text)
    }

    /// Makes small files durable until this one is; the mean of the seconds that each takes.
    async fn make_beside(&self, rt: &Rt) -> Result<f64, String> {
        let (mut count, mut ns) = (0_u32, 0);
        loop {
            rt.sleep(PAUSE).await;
            if self.fs.attr(self.ino).await.map_err(text)?.size == self.size() {
                #[expect(clippy::cast_precision_loss, reason = "a time for people")]
                return Ok(ns as f64 / 1e9 / f64::from(count.max(1)));
            }
            let begun = rt.now();
            let name = format!("small{count}");
            let (ino, _) = self.fs.make(ROOT, name.as_bytes(), new_file()).await.map_err(text)?;
            let block = Buf::zeroed(len(BLOCK_BYTES)).freeze();
            self.fs.write(ino, 0, block).await.map_err(text)?;
            self.fs.fsync(ino).await.map_err(text)?;
            ns += rt.now() - begun;
            count += 1;
        }
    }

    async fn overwrite(&self, rt: &Rt, seed: u64, times: u64) -> Result<Nanos, String> {
        let begun = rt.now();
        let blocks = self.size() / BLOCK_BYTES;
        let mut rng = Rng::new(seed);
        for _ in 0..times * blocks {
            let at = rng.below(blocks) * BLOCK_BYTES;
            let data = self.contents.renew(at, len(BLOCK_BYTES));
            self.fs.write(self.ino, at, data).await.map_err(text)?;
        }
        self.fs.fsync(self.ino).await.map_err(text)?;
        Ok(rt.now() - begun)
    }

    /// Reads everything and compares.
    async fn read(self: &Rc<Self>, rt: &Rt, requests: Requests) -> Result<Nanos, String> {
        let begun = rt.now();
        let next = Rc::new(std::cell::Cell::new(0));
        let reader = || {
            let (file, next) = (self.clone(), next.clone());
            rt.spawn(async move {
                loop {
                    let at = next.replace(next.get() + requests.bytes);
                    if at >= file.size() {
                        return Ok::<(), String>(());
                    }
                    let bytes = len(requests.bytes.min(file.size() - at));
                    let read = file.fs.read(file.ino, at, bytes).await.map_err(text)?;
                    file.contents.check(at, &read)?;
                }
            })
        };
        let readers: Vec<_> = (0..requests.depth).map(|_| reader()).collect();
        for read in join_all(readers).await {
            read?;
        }
        Ok(rt.now() - begun)
    }
}

/// One stream for each disk, each with its share of the bytes, in order.
async fn raw(
    rt: &Rt,
    setup: &FileSetup,
    disks: &[Rc<dyn Disk>],
    load: FileLoad,
    requests: Requests,
) -> Result<f64, String> {
    let share = setup.file_bytes / disks.len() as u64;
    let begun = rt.now();
    let streams = disks.iter().map(|disk| async move {
        let mut at = 0;
        while at < share {
            let bytes = len(requests.bytes.min(share - at).next_multiple_of(BLOCK_BYTES));
            if load == FileLoad::Read {
                disk.read(at, Buf::new(bytes), Class::User).await.0.map_err(text)?;
            } else {
                let data = Buf::zeroed(bytes).freeze();
                disk.write(at, data, WriteOpts::USER).await.map_err(text)?;
            }
            at += requests.bytes;
        }
        disk.flush().await.map_err(text)
    });
    for stream in join_all(streams).await {
        stream?;
    }
    Ok(mb_s(share * disks.len() as u64, rt.now() - begun))
}
