//! For the tests: file systems on disks in memory, and folders on which they are mounted.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::MountFlags;
use weft_disk::{Disk, RamDisk};
use weft_fs::{
    AccessTimes, CreateOptions, Fs, META_CACHE_BYTES, MountOptions, Redundancy, Time, create,
};
use weft_rt::Rt;
use weft_rt::ring::Ring;

use crate::control::OpenDisk;
use crate::{mount, tree};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ID: [u8; 16] = [7; 16];
const NOW: Time = Time { s: 1_700_000_000, ns: 5 };

pub(crate) const MOUNTING: MountOptions = MountOptions {
    degraded: false,
    stale: false,
    read_only: false,
    access_times: AccessTimes::Relative,
    cache_bytes: 8 * MIB,
    meta_cache_bytes: META_CACHE_BYTES,
    nonce: 1,
    host: None,
    now: NOW,
    clock: None,
};

/// Disks with a new file system.
pub(crate) async fn created(rt: &Rt, disks: u64, mib: u64) -> Vec<Rc<dyn Disk>> {
    let disk = |n| Rc::new(RamDisk::new(&format!("disk{n}"), mib * MIB, 512)) as Rc<dyn Disk>;
    let disks: Vec<_> = (0..disks).map(disk).collect();
    let options = CreateOptions {
        name: "test".into(),
        redundancy: Redundancy::Auto,
        slice_bytes: Some(8 * MIB),
        force: false,
        id: ID,
        now: NOW,
    };
    create(rt, &disks, &options).await.expect("created");
    disks
}

/// No other disks can be opened.
pub(crate) fn no_disk() -> OpenDisk {
    Rc::new(|_| Box::pin(async { Err("there is none".to_owned()) }))
}

/// A new folder.
pub(crate) fn folder(name: &str) -> PathBuf {
    static FOLDERS: AtomicU32 = AtomicU32::new(0);
    let count = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let name = format!("weft-{name}-{}-{count}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir(&folder).expect("made");
    folder
}

/// Mounts a file system on a folder, and serves it until it is unmounted.
pub(crate) fn serve(
    rt: &Rt,
    ring: &Ring,
    fs: &Fs,
    folder: &Path,
) -> impl Future<Output = ()> + use<> {
    let channel = mount::mount_on(folder, "test", None, MountFlags::NODEV).expect("mounted");
    let channel = OwnedFd::from(channel);
    let served = tree::serve(rt.clone(), ring.clone(), channel, fs.clone(), no_disk(), None);
    let served = rt.spawn(served);
    async move { served.await.expect("served") }
}
