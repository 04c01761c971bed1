//! A file system that a benchmark uses in its own process: neither FUSE nor the page cache counts.
#![allow(dead_code, reason = "each benchmark uses some of it")]

use std::path::Path;
use std::rc::Rc;

use weft_cli::disks::Opener;
use weft_cli::thread;
use weft_disk::Disk;
use weft_fs::{AccessTimes, Fs, Ino, Kind, META_CACHE_BYTES, MountOptions, NewFile, ROOT, Time};
use weft_rt::Frozen;

/// Memory for contents, of which half may wait to be written.
const CACHE_BYTES: u64 = 64 << 20;
const FILES_IN_FOLDER: u64 = 500;
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

/// Makes the small files of these numbers, in folders; `fill` gives each its contents.
pub async fn make_files(
    fs: &Fs,
    files: std::ops::Range<u64>,
    mut fill: impl AsyncFnMut(&Fs, Ino, u64),
) {
    let mut folder = ROOT;
    for n in files {
        if folder == ROOT || n.is_multiple_of(FILES_IN_FOLDER) {
            let name = format!("folder{n}");
            folder = fs.make(ROOT, name.as_bytes(), new(Kind::Folder)).await.expect("made").0;
        }
        let name = format!("file{n}.txt");
        let (ino, _) = fs.make(folder, name.as_bytes(), new(Kind::File)).await.expect("made");
        fill(fs, ino, n).await;
    }
}

/// Writes the contents of a small file.
pub async fn write_small(fs: &Fs, ino: Ino, n: u64) {
    let data = Frozen::copy_from(&n.to_le_bytes().repeat(13));
    fs.write(ino, 0, data).await.expect("written");
}
