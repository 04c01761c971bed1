//! weftfs without a kernel: one file with automatic redundancy and one that survives any two disks,
//! on disks of different sizes, one of which is lost and replaced.
//!
//! `cargo run -p weft-fs --example file_system`. Disks are in memory and time is virtual, as in the
//! tests; `weft fs mount` serves the same calls to the kernel.

use std::rc::Rc;

use weft_disk::{Disk, RamDisk};
use weft_fs::{
    AccessTimes, CreateOptions, Fs, Ino, Kind, META_CACHE_BYTES, MountOptions, NewFile, ROOT,
    Redundancy, Result, SetXattr, Time, create,
};
use weft_rt::{Frozen, Rt, Schedule, virtual_rt};

const MIB: u64 = 1 << 20;
const NOW: Time = Time { s: 1_700_000_000, ns: 0 };

/// Makes the file system, loses a disk, and reads everything.
///
/// # Errors
/// If a step fails.
pub fn main() -> Result<()> {
    let rt = virtual_rt(Schedule::Fifo);
    let inner = rt.clone();
    let result = rt.block_on(async move { life_of_a_file_system(&inner).await });
    rt.kill_all();
    result
}

async fn life_of_a_file_system(rt: &Rt) -> Result<()> {
    let disks: Vec<_> =
        ["a", "b", "c", "d", "e"].into_iter().zip([64, 64, 96, 96, 128]).map(disk).collect();
    let options = CreateOptions {
        name: "home".into(),
        redundancy: Redundancy::Auto,
        slice_bytes: Some(8 * MIB),
        force: false,
        id: [1; 16],
        now: NOW,
    };
    create(rt, &disks, &options).await?;
    let options = MountOptions {
        degraded: false,
        stale: false,
        read_only: false,
        access_times: AccessTimes::Relative,
        cache_bytes: 4 * MIB,
        meta_cache_bytes: META_CACHE_BYTES,
        nonce: 1,
        now: NOW,
        host: None,
        clock: None,
    };
    let fs = Fs::mount(rt, &disks, options).await?;

    let note = file(&fs, "note").await?;
    fs.write(note, 0, Frozen::copy_from(b"mirrored, since it is small")).await?;
    let photo = file(&fs, "photo").await?;
    fs.set_xattr(photo, b"user.weft.redundancy", b"raid6", SetXattr::default()).await?;
    let pixels = vec![7; 1 << 20];
    fs.write(photo, 0, Frozen::copy_from(&pixels)).await?;
    fs.sync().await?;
    for redundancy in [Redundancy::Single, Redundancy::Auto] {
        println!("free for {redundancy}: {} MiB", fs.free_bytes(redundancy) / MIB);
    }

    fs.fail_disk(0).await?;
    fs.add_disk(disk(("f", 128)), false).await?;
    let report = fs.rebuild().await?;
    println!("rebuilt; disks removed: {:?}", report.removed_disks);
    assert_eq!(fs.read(photo, 0, pixels.len()).await?[..], pixels[..]);
    assert_eq!(fs.read(note, 0, 100).await?[..8], b"mirrored"[..]);
    fs.unmount().await
}

fn disk((name, mib): (&str, u64)) -> Rc<dyn Disk> {
    Rc::new(RamDisk::new(name, mib * MIB, 512))
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    let mode = Kind::File.mode() | 0o644;
    let new = NewFile { mode, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
    Ok(fs.make(ROOT, name.as_bytes(), new).await?.0)
}
