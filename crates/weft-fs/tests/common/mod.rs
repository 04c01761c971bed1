//! Shared by the tests of the file system: disks with a power switch, a file system on them, and
//! short names for what tests do with files.

pub mod cluster;
pub mod contender;
/// The disks of the array's crash tests.
#[allow(dead_code, reason = "the array uses the rest")]
#[path = "../../../weft-array/tests/common/disk.rs"]
pub mod disk;
pub mod jobs;
pub mod model;
pub mod moments;
#[allow(dead_code, reason = "the tests of the metadata use the rest")]
pub mod network;
pub mod old_way;
pub mod space;
pub mod test_disks;
pub mod waits;

/// What a simulated network connects.
pub mod links {
    pub use weft_fs::{Connector, KeeperServer, Stream};
}

use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_disk::{Disk, RamDisk};
use weft_fs::{
    AccessTimes, CreateOptions, Fs, Ino, Job, JobReport, Kind, META_CACHE_BYTES, MountOptions,
    NewFile, ROOT, Redundancy, Result, SetXattr, Time, create,
};
use weft_rt::{Frozen, Nanos, Rt, SECOND, Schedule, virtual_rt};

pub const BLOCK: u64 = 4096;
pub const MIB: u64 = 1 << 20;
pub const NOW: Time = Time { s: 1_700_000_000, ns: 5 };

/// A test that lasts so long, in virtual time, waits for what never comes.
const LONGEST: Nanos = 48 * 3600 * SECOND;

/// Runs `test` on its own executor, in virtual time.
pub fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt) -> F + 'static) {
    let rt = virtual_rt(Schedule::Fifo);
    let inner = rt.clone();
    rt.block_on(async move {
        // What happens in the background would keep it running for ever.
        let end = inner.sleep(LONGEST);
        let ended = select(Box::pin(test(inner)), end).await;
        assert!(matches!(ended, Either::Left(_)), "it waits for what never comes");
    });
    rt.kill_all();
}

pub fn ram(sizes_mib: &[u64]) -> Vec<Rc<dyn Disk>> {
    let disk = |(n, mib): (usize, &u64)| {
        Rc::new(RamDisk::new(&format!("disk{n}"), mib * MIB, 512)) as Rc<dyn Disk>
    };
    sizes_mib.iter().enumerate().map(disk).collect()
}

pub fn all(disks: &[Rc<disk::TestDisk>]) -> Vec<Rc<dyn Disk>> {
    disks.iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect()
}

/// What a crash leaves of a disk, by its place among others: each of them tears in its own way.
pub fn left_of(left: disk::Leave, place: usize, medium: &disk::Medium) -> disk::Medium {
    match left {
        disk::Leave::Some(seed) => disk::Leave::Some(disk::mix(seed ^ disk::mix(place as u64 + 1))),
        left => left,
    }
    .of(medium)
}

/// The same of all disks.
pub fn left_of_all(left: disk::Leave, media: &[disk::Medium]) -> Vec<disk::Medium> {
    media.iter().enumerate().map(|(place, medium)| left_of(left, place, medium)).collect()
}

pub fn options() -> CreateOptions {
    CreateOptions {
        name: "test".into(),
        redundancy: Redundancy::Auto,
        slice_bytes: Some(8 * MIB),
        force: false,
        id: [7; 16],
        now: NOW,
    }
}

pub fn mounting() -> MountOptions {
    MountOptions {
        degraded: false,
        stale: false,
        read_only: false,
        access_times: AccessTimes::Relative,
        cache_bytes: 1 << 20,
        meta_cache_bytes: META_CACHE_BYTES,
        nonce: 1,
        now: NOW,
        host: None,
        clock: None,
    }
}

/// A file system with few pages of metadata in memory for two seeds of three: most operations wait
/// for one.
pub fn mounting_by(seed: u64) -> MountOptions {
    let meta_cache_bytes = [0, 512 << 10, META_CACHE_BYTES][(seed % 3) as usize];
    MountOptions { meta_cache_bytes, ..mounting() }
}

pub async fn mount_by(rt: &Rt, disks: &[Rc<dyn Disk>], seed: u64) -> Fs {
    Fs::mount(rt, disks, mounting_by(seed)).await.expect("mounted")
}

pub async fn made_by(rt: &Rt, disks: &[Rc<dyn Disk>], seed: u64) -> Fs {
    create(rt, disks, &options()).await.expect("created");
    mount_by(rt, disks, seed).await
}

pub async fn mount(rt: &Rt, disks: &[Rc<dyn Disk>]) -> Fs {
    Fs::mount(rt, disks, mounting()).await.expect("mounted")
}

pub async fn mount_degraded(rt: &Rt, disks: &[Rc<dyn Disk>]) -> Fs {
    let options = MountOptions { degraded: true, ..mounting() };
    Fs::mount(rt, disks, options).await.expect("mounted")
}

pub async fn made(rt: &Rt, disks: &[Rc<dyn Disk>]) -> Fs {
    create(rt, disks, &options()).await.expect("created");
    mount(rt, disks).await
}

pub fn new_file(kind: Kind) -> NewFile<'static> {
    NewFile { mode: kind.mode() | 0o644, umask: 0, uid: 1, gid: 2, device: 0, target: b"" }
}

pub async fn make(fs: &Fs, name: &str) -> Ino {
    fs.make(ROOT, name.as_bytes(), new_file(Kind::File)).await.expect("made").0
}

/// Makes a file of this redundancy.
pub async fn make_as(fs: &Fs, name: &str, redundancy: &str) -> Ino {
    let ino = make(fs, name).await;
    set(fs, ino, redundancy).await.expect("set");
    ino
}

pub async fn set(fs: &Fs, ino: Ino, redundancy: &str) -> Result<()> {
    fs.set_xattr(ino, b"user.weft.redundancy", redundancy.as_bytes(), SetXattr::default()).await
}

pub async fn find(fs: &Fs, name: &str) -> Ino {
    fs.lookup(ROOT, name.as_bytes()).await.expect("found").0
}

pub async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) {
    fs.write(ino, offset, Frozen::copy_from(bytes)).await.expect("written");
}

pub async fn read_all(fs: &Fs, ino: Ino) -> Vec<u8> {
    let size = fs.attr(ino).await.expect("there").size;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let part = fs.read(ino, bytes.len() as u64, 1 << 20).await.expect("read");
        bytes.extend_from_slice(&part);
    }
    bytes
}

/// Bytes that tell offset and version.
pub fn pattern(len: usize, version: u64) -> Vec<u8> {
    let word = |at: usize| {
        (at as u64 / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xd6e8_feb8)
    };
    (0..len).map(|at| word(at).to_le_bytes()[at % 8]).collect()
}

/// Nothing is wrong, neither with metadata nor data, nor with what is at hand of it.
pub async fn assert_sound(fs: &Fs) {
    let report = fs.check(true).await.expect("checked");
    assert_eq!(report.findings, [], "of {} inodes", report.inodes);
    // Blocks at hand that are not as on the disks would be wrong.
    assert_eq!(fs.status().await.expect("known").at_hand.wrong, 0);
}

/// Gives files a redundancy, and begins to lay out what they hold.
pub async fn begin_set(
    fs: &Fs,
    inos: &[Ino],
    redundancy: Redundancy,
) -> impl Future<Output = Result<JobReport>> + use<> {
    fs.want_redundancy(inos, redundancy).await.expect("set");
    fs.begin_job(Job::Set).expect("nothing else runs")
}
