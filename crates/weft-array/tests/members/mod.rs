//! Small arrays on RAM disks.

use std::rc::Rc;

use futures_util::FutureExt;
use weft_array::{Consistency, CreateOptions, Superblock, create};
use weft_disk::{Class, Disk, RamDisk};
use weft_rt::Buf;

pub const MIB: u64 = 1 << 20;

/// RAM disks complete at once.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("a RAM disk never waits")
}

pub fn options(code: &str, id: u8) -> CreateOptions {
    let code = code.parse().expect("a code");
    CreateOptions {
        name: "data".into(),
        code,
        algorithm: None,
        unit_bytes: 64 << 10,
        consistency: Consistency::default_for(code),
        region_bytes: None,
        log_bytes: None,
        head_room_bytes: None,
        spares: 0,
        force: false,
        id: [id; 16],
        now_unix_s: 1_700_000_000,
    }
}

pub fn disks(count: usize, mib: u64) -> Vec<Rc<dyn Disk>> {
    let disk = |n| Rc::new(RamDisk::new(&format!("ram{n}"), mib * MIB, 512)) as Rc<dyn Disk>;
    (0..count).map(disk).collect()
}

/// The superblocks of an array as its members hold them.
pub fn made(code: &str, count: usize, spares: usize, id: u8) -> Vec<Superblock> {
    let disks = disks(count, 16);
    let superblock =
        now(create(&disks, &CreateOptions { spares, ..options(code, id) })).expect("made");
    let own = |n| Superblock { self_id: superblock.array_id.member(0, n), ..superblock.clone() };
    (0..count as u64).map(own).collect()
}

pub fn read(disk: &dyn Disk, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = now(disk.read(offset, Buf::new(len), Class::User));
    result.expect("readable");
    buf.to_vec()
}
