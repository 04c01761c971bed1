//! Shared by the engine's tests: virtual time, RAM disks, an array on them.

pub mod bench;
pub mod cuts;
pub mod disk;
pub mod parts;

use std::rc::Rc;

use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, create};
use weft_code::CodeSpec;
use weft_disk::{Disk, RamDisk};
use weft_rt::{Buf, Frozen, Rt, Schedule, virtual_rt};

/// One code of each kind, with a number of slots.
pub const CODES: [(&str, usize); 7] = [
    ("raid1", 3),
    ("raid5", 4),
    ("raid6", 5),
    ("raid10", 4),
    ("drc-g:4,2,1", 7),
    ("lrc:4,2,1", 7),
    ("rs:3+2", 5),
];

pub fn rt() -> Rt {
    virtual_rt(Schedule::Fifo)
}

pub fn disks(count: usize, mib: u64) -> Vec<Rc<dyn Disk>> {
    (0..count).map(|n| ram(&format!("disk{n}"), mib)).collect()
}

pub fn ram(name: &str, mib: u64) -> Rc<dyn Disk> {
    Rc::new(RamDisk::new(name, mib << 20, 512))
}

pub fn options(code: &str) -> CreateOptions {
    let code: CodeSpec = code.parse().expect("a code");
    CreateOptions {
        name: "test".into(),
        code,
        algorithm: None,
        unit_bytes: 16 << 10,
        consistency: Consistency::default_for(code),
        region_bytes: Some(256 << 10),
        log_bytes: None,
        head_room_bytes: None,
        spares: 0,
        force: false,
        id: [7; 16],
        now_unix_s: 0,
    }
}

pub async fn make(rt: &Rt, code: &str, disks: &[Rc<dyn Disk>]) -> Array {
    create(disks, &options(code)).await.expect("created");
    assemble(rt, disks).await
}

pub async fn assemble(rt: &Rt, disks: &[Rc<dyn Disk>]) -> Array {
    let options = AssembleOptions { nonce: rt.now() + 1, ..AssembleOptions::default() };
    Array::assemble(rt, disks.to_vec(), options).await.expect("assembled")
}

/// Bytes that encode their offset and version.
/// An array of which every region counts as written, as a block of it is: for modelled disks, which
/// keep no data.
pub async fn written(rt: &Rt, code: &str, disks: &[Rc<dyn Disk>]) -> Array {
    const BLOCK: usize = 4096;
    let mut options = options(code);
    (options.unit_bytes, options.region_bytes) = (64 << 10, None);
    options.consistency = Consistency::None;
    options.head_room_bytes = Some(32 << 20);
    create(disks, &options).await.expect("created");
    let array = assemble(rt, disks).await;
    let mut at = 0;
    while at < array.size_bytes() {
        array.write(at, Buf::zeroed(BLOCK).freeze(), false).await.expect("written");
        at = array.region_at(at).end;
    }
    array.flush().await.expect("flushed");
    array
}

pub fn pattern(offset: u64, len: usize, version: u8) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            let at = offset + i;
            let word = (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(version) << 56;
            word.to_le_bytes()[usize::try_from(at % 8).expect("below 8")]
        })
        .collect()
}

pub async fn write(array: &Array, offset: u64, bytes: &[u8]) {
    array.write(offset, Frozen::copy_from(bytes), false).await.expect("written");
}

pub async fn read(array: &Array, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = array.read(offset, Buf::new(len)).await;
    result.expect("read");
    buf.to_vec()
}
