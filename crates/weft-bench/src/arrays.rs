//! Arrays to measure.

use std::rc::Rc;

use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, MemberState, create};
use weft_disk::{Disk, RamDisk, WriteOpts};
use weft_rt::{Buf, Frozen, Rt};

/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;

/// RAM disks of `mib` MiB each.
#[must_use]
pub fn ram_disks(count: usize, mib: u64) -> Vec<Rc<dyn Disk>> {
    (0..count).map(|n| ram_disk(&format!("ram{n}"), mib)).collect()
}

/// A RAM disk of `mib` MiB.
#[must_use]
pub fn ram_disk(name: &str, mib: u64) -> Rc<dyn Disk> {
    Rc::new(RamDisk::new(name, mib * MIB, 512))
}

/// Writes a disk, so that every page of its memory is there.
///
/// # Panics
/// If a write fails.
pub async fn touch(disk: &dyn Disk) {
    let piece = Frozen::copy_from(&vec![0x5a; 1 << 20]);
    for n in 0..disk.info().size_bytes / MIB {
        disk.write(n * MIB, piece.clone(), WriteOpts::USER).await.expect("written");
    }
}

/// Options for an array of `code` with units of 64 KiB.
///
/// # Panics
/// If `code` is none.
#[must_use]
pub fn create_options(code: &str, consistency: Consistency) -> CreateOptions {
    CreateOptions {
        name: "bench".into(),
        code: code.parse().expect("a code"),
        algorithm: None,
        unit_bytes: 64 << 10,
        consistency,
        region_bytes: None,
        log_bytes: None,
        head_room_bytes: None,
        spares: 0,
        force: true,
        id: [0xbe; 16],
        now_unix_s: 0,
    }
}

/// Creates and assembles an array.
///
/// # Panics
/// If that fails.
pub async fn make(
    rt: &Rt,
    code: &str,
    consistency: Consistency,
    disks: Vec<Rc<dyn Disk>>,
) -> Array {
    create(&disks, &create_options(code, consistency)).await.expect("created");
    assemble(rt, disks).await
}

/// Assembles an array.
///
/// # Panics
/// If that fails.
pub async fn assemble(rt: &Rt, disks: Vec<Rc<dyn Disk>>) -> Array {
    let options = AssembleOptions { nonce: rt.now() + 1, ..AssembleOptions::default() };
    Array::assemble(rt, disks, options).await.expect("assembled")
}

/// Writes all of an array, so that no region reads as zeros without I/O.
///
/// # Panics
/// If a write fails.
pub async fn fill(array: &Array) {
    let stripe = array.stripe_bytes();
    let step = stripe * (4 * MIB).div_ceil(stripe);
    let mut offset = 0;
    while offset < array.size_bytes() {
        let len = step.min(array.size_bytes() - offset);
        let mut buf = Buf::new(usize::try_from(len).expect("fits memory"));
        let tag = offset.to_le_bytes();
        buf.chunks_mut(8).for_each(|word| word.copy_from_slice(&tag[..word.len()]));
        array.write(offset, buf.freeze(), false).await.expect("filled");
        offset += len;
    }
    array.flush().await.expect("flushed");
}

/// Waits until no member is missing or being rebuilt.
///
/// # Panics
/// If the rebuild cannot go on.
pub async fn rebuilt(rt: &Rt, array: &Array) {
    loop {
        let status = array.status();
        if status.slots.iter().all(|slot| slot.state == MemberState::Active) {
            return;
        }
        assert!(status.broken.is_none(), "the array broke: {:?}", status.broken);
        rt.sleep(weft_rt::MILLISECOND).await;
    }
}
