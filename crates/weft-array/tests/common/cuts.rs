//! A client whose model says what each sector may hold after a power cut, and the disks at a
//! moment.

use std::cell::RefCell;
use std::rc::Rc;

use weft_array::Array;
use weft_disk::Disk;
use weft_rt::{Buf, Frozen, Rt};

use super::disk::{Medium, Power, TestDisk, mix};

pub const SECTOR: u64 = 512;

/// The versions that a sector may have, oldest first, and how many of them were acknowledged.
#[derive(Clone, Default)]
pub struct Sector {
    pub versions: Vec<u32>,
    pub acknowledged: usize,
}

#[derive(Clone)]
pub struct Model(pub Vec<Sector>);

impl Model {
    pub fn new(sectors: u64) -> Self {
        let zeros = Sector { versions: vec![0], acknowledged: 1 };
        Self((0..sectors).map(|_| zeros.clone()).collect())
    }

    /// For each sector, the version that a flush starting now makes durable.
    pub fn line(&self) -> Vec<u32> {
        self.0.iter().map(|sector| sector.versions[sector.acknowledged - 1]).collect()
    }

    pub fn flushed(&mut self, line: &[u32]) {
        for (sector, version) in self.0.iter_mut().zip(line) {
            let at = sector.versions.iter().position(|v| v == version).expect("a version");
            sector.versions.drain(..at);
            sector.acknowledged -= at;
        }
    }
}

pub fn content(sector: u64, version: u32) -> Vec<u8> {
    if version == 0 {
        return vec![0; SECTOR as usize];
    }
    let word = |i: u64| mix(sector << 32 | u64::from(version) << 8 | i).to_le_bytes();
    (0..SECTOR / 8).flat_map(word).collect()
}

/// A client of the array, which keeps the model.
#[derive(Clone)]
pub struct Client {
    pub array: Array,
    pub model: Rc<RefCell<Model>>,
    pub version: Rc<RefCell<u32>>,
}

impl Client {
    pub fn start(&self, first: u64, count: u64, version: u32) {
        for sector in &mut self.model.borrow_mut().0[first as usize..(first + count) as usize] {
            sector.versions.push(version);
        }
    }

    pub fn end(&self, first: u64, count: u64) {
        for sector in &mut self.model.borrow_mut().0[first as usize..(first + count) as usize] {
            sector.acknowledged = sector.versions.len();
        }
    }

    pub async fn write(&self, first: u64, count: u64) {
        let version = self.version.replace_with(|version| *version + 1);
        self.start(first, count, version);
        let bytes: Vec<u8> =
            (first..first + count).flat_map(|sector| content(sector, version)).collect();
        let data = Frozen::copy_from(&bytes);
        self.array.write(first * SECTOR, data, false).await.expect("written");
        self.end(first, count);
    }

    pub async fn zero(&self, first: u64, count: u64) {
        self.start(first, count, 0);
        let (offset, len) = (first * SECTOR, count * SECTOR);
        self.array.write_zeroes(offset, len, false, true).await.expect("zeroed");
        self.end(first, count);
    }

    pub async fn flush(&self) {
        let line = self.model.borrow().line();
        self.array.flush().await.expect("flushed");
        self.model.borrow_mut().flushed(&line);
    }
}

/// The state of the disks and the client at one step.
pub struct Moment {
    pub media: Vec<Medium>,
    pub model: Model,
}

pub fn disks_of(rt: &Rt, power: &Rc<Power>, size: u64, media: Vec<Medium>) -> Vec<Rc<TestDisk>> {
    let open = |(n, medium)| TestDisk::new(rt, power, n, size, 512, medium);
    media.into_iter().enumerate().map(open).collect()
}

pub fn members(disks: &[Rc<TestDisk>]) -> Vec<Rc<dyn Disk>> {
    disks.iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect()
}

pub async fn read_all(array: &Array, step: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < array.size_bytes() {
        let len = step.min(array.size_bytes() - bytes.len() as u64);
        let (result, buf) = array.read(bytes.len() as u64, Buf::new(len as usize)).await;
        result.expect("read");
        bytes.extend_from_slice(&buf);
    }
    bytes
}
