//! The members of one array in memory, as weft's layout and code see them.

use std::fs;
use std::path::Path;

use weft_code::{Code, UnitSet};
use weft_layout::{Layout, UnitLocation, code_for, for_code};
use weft_testkit::md::{DataArea, data_area};

use crate::cases::Case;

/// All members of an array, whole images.
#[derive(Debug)]
pub struct Members {
    name: String,
    images: Vec<Vec<u8>>,
    area: DataArea,
    unit: usize,
    layout: Box<dyn Layout>,
    code: Code,
    stripes: u64,
}

impl Members {
    /// Reads the images that md wrote from `dir`; where their data lie is in their superblocks.
    pub fn load(case: &Case, dir: &Path) -> Self {
        let read = |slot| fs::read(dir.join(format!("{slot}"))).expect("read a member");
        let images: Vec<Vec<u8>> = (0..case.members).map(read).collect();
        let area = data_area(&images[0]);
        for image in &images {
            assert_eq!(data_area(image), area, "{}: members differ", case.name());
        }
        assert_eq!(area.offset, case.data_offset_kib * 1024, "{}", case.name());
        Self::new(case, images, area)
    }

    /// Members of `bytes` bytes that hold `data`, with parity, and no superblock.
    pub fn encode(case: &Case, bytes: u64, data: &[u8]) -> Self {
        let offset = case.data_offset_kib * 1024;
        let images = vec![vec![0; size(bytes)]; case.members];
        let mut members = Self::new(case, images, DataArea { offset, bytes: bytes - offset });
        let k = members.code.k();
        for stripe in 0..members.stripes {
            let first = size(stripe) * k * members.unit;
            let sources = &data[first..first + k * members.unit];
            for (unit, bytes) in sources.chunks(members.unit).enumerate() {
                members.unit_mut(stripe, unit).copy_from_slice(bytes);
            }
            for (parity, bytes) in members.encoded(stripe).into_iter().enumerate() {
                members.unit_mut(stripe, k + parity).copy_from_slice(&bytes);
            }
        }
        members
    }

    fn new(case: &Case, images: Vec<Vec<u8>>, area: DataArea) -> Self {
        let rows = area.bytes / case.unit_bytes as u64;
        let layout = for_code(case.spec, case.algorithm, case.members, rows).expect("a layout");
        let code = code_for(case.spec, case.algorithm, case.members).expect("a code");
        let stripes = layout.stripes(rows);
        let name = case.name();
        Self { name, images, area, unit: case.unit_bytes, layout, code, stripes }
    }

    /// Writes the images into the new folder `dir`.
    pub fn store(&self, dir: &Path) {
        fs::create_dir(dir).expect("make a folder");
        for (slot, image) in self.images.iter().enumerate() {
            fs::write(dir.join(format!("{slot}")), image).expect("write a member");
        }
    }

    pub fn array_bytes(&self) -> u64 {
        self.stripes * (self.code.k() * self.unit) as u64
    }

    fn at(&self, UnitLocation { slot, row }: UnitLocation) -> (usize, usize) {
        (slot.0, size(self.area.offset) + size(row) * self.unit)
    }

    fn unit(&self, stripe: u64, unit: usize) -> &[u8] {
        let (slot, at) = self.at(self.layout.place(stripe, unit));
        &self.images[slot][at..at + self.unit]
    }

    fn unit_mut(&mut self, stripe: u64, unit: usize) -> &mut [u8] {
        let (slot, at) = self.at(self.layout.place(stripe, unit));
        &mut self.images[slot][at..at + self.unit]
    }

    /// The parity that weft computes for a stripe's data.
    fn encoded(&self, stripe: u64) -> Vec<Vec<u8>> {
        let (k, p) = (self.code.k(), self.code.p());
        let sources: Vec<&[u8]> = (0..k).map(|unit| self.unit(stripe, unit)).collect();
        let rows: Vec<&[u8]> = (0..p).map(|parity| self.code.row(stripe, parity)).collect();
        let mut parity = vec![vec![0; self.unit]; p];
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        weft_gf::encode(&rows, &sources, &mut outputs);
        parity
    }

    /// Every data unit lies where the layout says, and holds what was written.
    pub fn check_data(&self, written: &[u8]) {
        self.check_data_without(&[], written);
    }

    /// Every parity unit, and every copy, is what the code computes.
    pub fn check_parity(&self) {
        for stripe in 0..self.stripes {
            for (parity, bytes) in self.encoded(stripe).iter().enumerate() {
                let unit = self.code.k() + parity;
                assert!(
                    self.unit(stripe, unit) == bytes.as_slice(),
                    "{}: stripe {stripe}: parity {parity} differs",
                    self.name
                );
            }
        }
    }

    /// All data can be computed, and rightly, while the members `lost` are not looked at.
    pub fn check_data_without(&self, lost: &[usize], written: &[u8]) {
        let k = self.code.k();
        let width = self.layout.width();
        let mut computed = vec![0; self.unit];
        for stripe in 0..self.stripes {
            let is_lost = |unit: &usize| lost.contains(&self.layout.place(stripe, *unit).slot.0);
            let lost_units = (0..width).filter(is_lost).fold(UnitSet::new(), UnitSet::with);
            let plan = self.code.plan(stripe, lost_units, UnitSet::first(k), &|_| 1);
            let plan = plan.unwrap_or_else(|e| panic!("{}: without {lost:?}: {e}", self.name));
            assert!(!plan.reads.intersects(&lost_units), "{}: reads what is lost", self.name);
            for (unit, terms) in &plan.outputs {
                let sources: Vec<&[u8]> =
                    terms.iter().map(|(source, _)| self.unit(stripe, *source)).collect();
                let row: Vec<u8> = terms.iter().map(|(_, coefficient)| *coefficient).collect();
                weft_gf::encode(&[&row], &sources, &mut [&mut computed]);
                let first = (size(stripe) * k + unit) * self.unit;
                assert!(
                    computed == written[first..first + self.unit],
                    "{}: without {lost:?}: stripe {stripe}, unit {unit} is wrong",
                    self.name
                );
            }
        }
    }
}

fn size(n: u64) -> usize {
    usize::try_from(n).expect("fits in memory")
}
