//! A file system that a benchmark uses in its own process: neither FUSE nor the page cache counts.

use std::path::Path;
use std::rc::Rc;

use weft_cli::disks::Opener;
use weft_cli::thread;
use weft_disk::Disk;
use weft_fs::{AccessTimes, Fs, Kind, META_CACHE_BYTES, MountOptions, NewFile, Time};

/// Memory for contents, of which half may wait to be written.
const CACHE_BYTES: u64 = 64 << 20;
pub const NOW: Time = Time { s: 1_700_000_000, ns: 0 };

pub fn new(kind: Kind) -> NewFile<'static> {
    NewFile { mode: kind.mode() | 0o755, umask: 0, uid: 1, gid: 1, device: 0, target: b"" }
}

/// The first `count` of the disks `d0` … in a folder.
pub async fn open_disks(opener: &Opener, folder: &Path, count: usize) -> Vec<Rc<dyn Disk>> {
    let mut disks = Vec::new();
    for n in 0..count {
        let place = folder.join(format!("d{n}")).display().to_string();
        disks.push(opener.open(&place, false).await.expect("opens"));
    }
    disks
}

pub async fn mount(opener: &Opener, disks: &[Rc<dyn Disk>]) -> Fs {
    let options = MountOptions {
        degraded: false,
        stale: false,
        read_only: false,
        access_times: AccessTimes::Relative,
        cache_bytes: CACHE_BYTES,
        meta_cache_bytes: META_CACHE_BYTES,
        nonce: u64::from_le_bytes(thread::random().expect("random")),
        now: NOW,
        host: None,
        clock: None,
    };
    Fs::mount(&opener.rt, disks, options).await.expect("mounted")
}
