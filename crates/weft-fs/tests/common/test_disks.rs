//! Disks of one size with a power switch, file systems on them, and what is left of them.

use std::rc::Rc;

use weft_fs::Fs;
use weft_rt::Rt;

use super::disk::{Leave, Medium, Power, TestDisk, holding};
use super::{all, made, mount};

/// Bytes of a disk.
pub const SIZE: u64 = 24 << 20;

pub fn blank(rt: &Rt, count: usize) -> Vec<Rc<TestDisk>> {
    holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); count])
}

pub async fn on_test_disks(rt: &Rt, count: usize) -> (Vec<Rc<TestDisk>>, Fs) {
    let disks = blank(rt, count);
    let fs = made(rt, &all(&disks)).await;
    (disks, fs)
}

/// What a crash now leaves of disks.
pub fn left_on(disks: &[Rc<TestDisk>], left: Leave) -> Vec<Medium> {
    disks.iter().map(|disk| left.of(&disk.medium.borrow())).collect()
}

/// What is durable now, as a node sees it that reads the disks.
pub async fn seen(rt: &Rt, disks: &[Rc<TestDisk>]) -> Fs {
    let durable = left_on(disks, Leave::Nothing);
    mount(rt, &all(&holding(rt, &Power::new(), SIZE, &durable))).await
}

/// The disks as a host reaches them, of which only the contents are shared.
pub fn for_host(rt: &Rt, disks: &[Rc<TestDisk>], host: u64) -> Vec<Rc<TestDisk>> {
    disks.iter().map(|disk| disk.for_host(rt, &Power::new(), host)).collect()
}
