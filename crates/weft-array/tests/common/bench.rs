//! An array on test disks.

use std::rc::Rc;

use weft_array::{Array, ArrayState, CreateOptions, Superblock, create};
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt};

use super::disk::{Medium, Power, TestDisk};

pub const UNIT: u64 = 4096;
/// Where a member holds its superblocks.
pub const SUPERBLOCKS: std::ops::Range<u64> = (128 << 10)..(384 << 10);
const MIB: u64 = 1 << 20;

/// Disks with an array on them.
pub struct Bench {
    pub rt: Rt,
    pub disks: Vec<Rc<TestDisk>>,
    pub array: Array,
    pub superblock: Superblock,
}

/// Runs `test` on its own executor.
pub fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt) -> F + 'static) {
    let rt = super::rt();
    let inner = rt.clone();
    rt.block_on(async move { test(inner).await });
    rt.kill_all();
}

pub fn disk(rt: &Rt, number: usize, sector: u32) -> Rc<TestDisk> {
    sized_disk(rt, number, sector, 2 * MIB + 16 * UNIT)
}

pub fn sized_disk(rt: &Rt, number: usize, sector: u32, size: u64) -> Rc<TestDisk> {
    TestDisk::new(rt, &Power::new(), number, size, sector, Medium::new(512))
}

pub fn members(disks: &[Rc<TestDisk>]) -> Vec<Rc<dyn Disk>> {
    disks.iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect()
}

pub fn options(code: &str) -> CreateOptions {
    let mut options = super::options(code);
    options.unit_bytes = UNIT as u32;
    options.region_bytes = Some(1);
    options
}

impl Bench {
    /// Makes an array of `slots` new disks, with regions of one stripe.
    pub async fn new(rt: &Rt, code: &str, slots: usize) -> Self {
        let disks: Vec<_> = (0..slots).map(|n| disk(rt, n, 512)).collect();
        Self::on(rt, &options(code), disks).await
    }

    pub async fn on(rt: &Rt, options: &CreateOptions, disks: Vec<Rc<TestDisk>>) -> Self {
        let superblock = create(&members(&disks), options).await.expect("created");
        let array = super::assemble(rt, &members(&disks)).await;
        Self { rt: rt.clone(), disks, array, superblock }
    }

    /// Slot and disk offset of a unit of a stripe.
    pub fn place(&self, stripe: u64, unit: usize) -> (usize, u64) {
        let Superblock { code, algorithm, rows, area, slots, .. } = &self.superblock;
        let layout = weft_layout::for_code(*code, *algorithm, slots.len(), *rows).expect("laid");
        let place = layout.place(stripe, unit);
        (place.slot.0, area.data_offset + place.row * UNIT)
    }

    pub fn k(&self) -> usize {
        let Superblock { code, algorithm, slots, .. } = &self.superblock;
        weft_layout::code_for(*code, *algorithm, slots.len()).expect("a code").k()
    }

    pub fn stripe_bytes(&self) -> u64 {
        self.array.stripe_bytes()
    }

    /// Makes sectors of a unit unreadable.
    pub fn spoil(&self, stripe: u64, unit: usize, sectors: std::ops::Range<u64>) {
        let (slot, offset) = self.place(stripe, unit);
        let mut bad = self.disks[slot].faults.unreadable.borrow_mut();
        bad.extend(sectors.map(|sector| offset / 512 + sector));
    }

    /// Changes bytes of a unit silently.
    pub fn rot(&self, stripe: u64, unit: usize) {
        let (slot, offset) = self.place(stripe, unit);
        self.disks[slot].medium.borrow_mut().poke(offset + 512, &[0x5a; 512]);
    }

    pub async fn until(&self, state: ArrayState) {
        for _ in 0..5000 {
            if self.array.status().state == state {
                return;
            }
            self.rt.sleep(MILLISECOND).await;
        }
        panic!("not {state:?} but {:#?}", self.array.status());
    }
}
