//! Files and block devices as disks: bytes, sectors, ownership, zeros.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use weft_disk::{Class, Disk, DiskErrorKind, FileDisk, FileOptions, IoMode, WriteOpts};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen};
use weft_testkit::{LoopDevice, Mount, Need, Scratch, command, have, run};

const MIB: u64 = 1 << 20;

/// Held by tests that start programs: until such a child calls exec it shares the open block
/// devices of every test in this process, and they stay in use (for files see `owner.rs`).
static PROGRAMS: Mutex<()> = Mutex::new(());

/// A file that is removed when the test ends.
struct Temp(PathBuf);

impl Temp {
    fn new(directory: &str, name: &str, len: u64) -> Self {
        let path = Path::new(directory).join(format!("weft-{}-{name}", std::process::id()));
        let file = std::fs::File::create(&path).expect("a file can be made");
        file.set_len(len).expect("it can grow");
        Self(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn with_ring(body: impl AsyncFnOnce(Ring) + 'static) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
    rt.block_on(async move { body(ring).await });
}

fn pattern(len: usize, seed: usize) -> Frozen {
    let mut buf = Buf::new(len);
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = u8::try_from((i / 512 * 7 + i + seed) % 251).expect("small");
    }
    buf.freeze()
}

async fn read(disk: &dyn Disk, offset: u64, len: usize) -> Buf {
    let (result, buf) = disk.read(offset, Buf::new(len), Class::User).await;
    result.expect("read");
    buf
}

/// Everything that the trait promises, on any disk of at least 4 MiB.
async fn exercise(disk: &dyn Disk) {
    let sector = disk.info().sector_bytes as usize;
    let mut model = vec![0; 4 << 20];
    disk.write_zeroes(0, 4 * MIB, WriteOpts::USER).await.expect("zero");
    let ops = [
        (0, sector, WriteOpts::USER),
        (8 * sector, 1 << 20, WriteOpts::MAINTENANCE),
        (3 * sector, 5 * sector, WriteOpts::USER_FUA),
        ((4 << 20) - sector, sector, WriteOpts::USER),
    ];
    for (seed, (offset, len, opts)) in ops.into_iter().enumerate() {
        let data = pattern(len, seed);
        model[offset..offset + len].copy_from_slice(&data);
        disk.write(offset as u64, data, opts).await.expect("write");
    }
    disk.flush().await.expect("flush");
    let hole = 16 * sector;
    disk.write_zeroes(hole as u64, 2 * sector as u64, WriteOpts::USER_FUA).await.expect("zero");
    model[hole..hole + 2 * sector].fill(0);
    assert!(read(disk, 0, model.len()).await[..] == model[..], "bytes on {}", disk.info().name);
    // Parts of one buffer go to their own places.
    let mut first = Buf::new(4 * sector);
    let second = first.split_off(sector);
    let tail = 3 * sector as u64;
    let (a, b) = (disk.read(0, first, Class::User), disk.read(tail, second, Class::User));
    let ((result_a, a), (result_b, b)) = (a.await, b.await);
    result_a.and(result_b).expect("read");
    assert!(a[..] == model[..sector] && b[..] == model[3 * sector..6 * sector]);
    disk.discard(0, MIB).await.expect("discard");
    assert!(read(disk, MIB, 3 << 20).await[..] == model[1 << 20..]);
}

async fn refuses_bad_requests(disk: &dyn Disk) {
    let (sector, size) = (u64::from(disk.info().sector_bytes), disk.info().size_bytes);
    let one = usize::try_from(sector).expect("small");
    for (offset, len) in [(1, one), (0, one - 1), (size, one), (u64::MAX - sector + 1, one)] {
        let (result, buf) = disk.read(offset, Buf::new(len), Class::User).await;
        assert_eq!(result.expect_err("refused").kind, DiskErrorKind::Invalid);
        assert_eq!(buf.len(), len);
        let data = Frozen::copy_from(&vec![0; len]);
        let error = disk.write(offset, data, WriteOpts::USER).await.expect_err("refused");
        assert_eq!(error.kind, DiskErrorKind::Invalid);
    }
    let skewed = Frozen::copy_from(&vec![0; one + 1]).slice(1, one);
    let error = disk.write(0, skewed, WriteOpts::USER).await.expect_err("refused");
    assert_eq!(error.kind, DiskErrorKind::Invalid);
    let error = disk.write_zeroes(size, sector, WriteOpts::USER).await.expect_err("refused");
    assert_eq!(error.kind, DiskErrorKind::Invalid);
}

#[test]
fn files_keep_their_bytes_in_every_mode_and_sector_size() {
    for directory in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        for io_mode in [None, Some(IoMode::Ring), Some(IoMode::InPlace)] {
            for (direct, sector_bytes) in [(true, None), (true, Some(4096)), (false, Some(512))] {
                let file = Temp::new(directory, "bytes", 6 * MIB + 100);
                with_ring(async move |ring| {
                    let options =
                        FileOptions { io_mode, sector_bytes, direct, ..FileOptions::default() };
                    let disk = FileDisk::open(&ring, &file.0, &options).expect("opens");
                    let sector = u64::from(disk.info().sector_bytes);
                    assert_eq!(disk.info().size_bytes, (6 * MIB + 100) / sector * sector);
                    assert!(disk.info().fast_zeroes);
                    exercise(&disk).await;
                    refuses_bad_requests(&disk).await;
                });
            }
        }
    }
}

#[test]
fn memory_is_used_in_place_and_real_disks_by_the_ring() {
    with_ring(async |ring| {
        let open =
            |file: &Temp| FileDisk::open(&ring, &file.0, &FileOptions::default()).expect("opens");
        let in_memory = Temp::new("/dev/shm", "mode", MIB);
        assert_eq!(open(&in_memory).io_mode(), IoMode::InPlace);
        let on_disk = Temp::new(env!("CARGO_TARGET_TMPDIR"), "mode", MIB);
        let is_memory = matches!(
            rustix::fs::statfs(&on_disk.0).expect("statfs").f_type,
            0x0102_1994 | 0x8584_58f6
        );
        let expected = if is_memory { IoMode::InPlace } else { IoMode::Ring };
        assert_eq!(open(&on_disk).io_mode(), expected);
    });
}

#[test]
fn a_file_has_one_owner_and_any_number_of_onlookers() {
    with_ring(async |ring| {
        let file = Temp::new(env!("CARGO_TARGET_TMPDIR"), "owner", MIB);
        let owner = FileDisk::open(&ring, &file.0, &FileOptions::default()).expect("opens");
        owner.write(0, pattern(4096, 3), WriteOpts::USER).await.expect("write");
        let error = FileDisk::open(&ring, &file.0, &FileOptions::default()).expect_err("owned");
        assert!(error.to_string().contains("it is in use"), "{error}");
        let look = FileOptions { look_only: true, ..FileOptions::default() };
        let onlooker = FileDisk::open(&ring, &file.0, &look).expect("looks");
        assert!(read(&onlooker, 0, 4096).await[..] == pattern(4096, 3)[..]);
        onlooker.write(0, pattern(4096, 4), WriteOpts::USER).await.expect_err("may only look");
        drop(owner);
        FileDisk::open(&ring, &file.0, &FileOptions::default()).expect("free again");
    });
}

#[test]
fn what_cannot_be_a_disk_says_why() {
    with_ring(async |ring| {
        let open = |path: &Path, sector_bytes| {
            let options = FileOptions { sector_bytes, ..FileOptions::default() };
            FileDisk::open(&ring, path, &options).expect_err("refused").to_string()
        };
        let small = Temp::new(env!("CARGO_TARGET_TMPDIR"), "small", 511);
        assert!(open(&small.0, None).contains("smaller than one sector"));
        let good = Temp::new(env!("CARGO_TARGET_TMPDIR"), "good", MIB);
        assert!(open(&good.0, Some(1024)).contains("512 or 4096"));
        assert!(open(Path::new("/dev/null"), None).contains("neither a regular file"));
        assert!(open(Path::new("/nonexistent"), None).contains("cannot open /nonexistent"));
    });
}

#[test]
fn a_file_cut_short_gives_errors_not_stale_bytes() {
    for io_mode in [IoMode::Ring, IoMode::InPlace] {
        let file = Temp::new(env!("CARGO_TARGET_TMPDIR"), "cut", MIB);
        with_ring(async move |ring| {
            let options = FileOptions { io_mode: Some(io_mode), ..FileOptions::default() };
            let disk = FileDisk::open(&ring, &file.0, &options).expect("opens");
            let handle = std::fs::OpenOptions::new().write(true).open(&file.0).expect("opens");
            assert!(!disk.has_shrunk());
            handle.set_len(8192).expect("cut");
            let (result, buf) = disk.read(4096, Buf::new(8192), Class::User).await;
            let error = result.expect_err("cut");
            assert!(error.to_string().contains("shorter"));
            assert_eq!((error.kind, buf.len()), (DiskErrorKind::Shrunk, 8192));
        });
    }
}

/// No request is needed to see it, and it stays so when the file is long again.
#[test]
fn a_file_that_was_cut_short_says_so() {
    let file = Temp::new(env!("CARGO_TARGET_TMPDIR"), "idle-cut", MIB);
    with_ring(async move |ring| {
        let options = FileOptions::default();
        let disk = FileDisk::open(&ring, &file.0, &options).expect("opens");
        let handle = std::fs::OpenOptions::new().write(true).open(&file.0).expect("opens");
        handle.set_len(2 * MIB).expect("longer");
        assert!(!disk.has_shrunk());
        handle.set_len(8192).expect("cut");
        assert!(disk.has_shrunk());
        handle.set_len(MIB).expect("made longer again");
        assert!(disk.has_shrunk());
    });
}

#[test]
fn a_file_that_lost_its_end_stays_lost() {
    for io_mode in [IoMode::Ring, IoMode::InPlace] {
        for first_is_write in [true, false] {
            let file = Temp::new(env!("CARGO_TARGET_TMPDIR"), "lost-end", MIB);
            with_ring(async move |ring| {
                let options = FileOptions { io_mode: Some(io_mode), ..FileOptions::default() };
                let disk = FileDisk::open(&ring, &file.0, &options).expect("opens");
                let last = MIB - 4096;
                disk.write(0, pattern(1 << 20, 1), WriteOpts::USER_FUA).await.expect("write");
                let handle = std::fs::OpenOptions::new().write(true).open(&file.0).expect("opens");
                handle.set_len(8192).expect("cut");
                // A write behind the new end would leave a hole that reads as zeros.
                let result = if first_is_write {
                    disk.write(last, pattern(4096, 2), WriteOpts::USER_FUA).await
                } else {
                    // What it reads is still there, and yet the loss is noticed.
                    disk.read(0, Buf::new(4096), Class::User).await.0
                };
                assert_eq!(result.expect_err("cut").kind, DiskErrorKind::Shrunk);
                assert_eq!(handle.metadata().expect("there").len(), 8192);
                handle.set_len(MIB).expect("made longer again");
                let (result, _) = disk.read(last, Buf::new(4096), Class::User).await;
                assert_eq!(result.expect_err("lost").kind, DiskErrorKind::Shrunk);
                let results = [
                    disk.write(0, pattern(4096, 2), WriteOpts::USER).await,
                    disk.write_zeroes(0, 4096, WriteOpts::USER).await,
                    disk.discard(0, 4096).await,
                    disk.flush().await,
                ];
                let kinds = results.map(|result| result.expect_err("lost").kind);
                assert_eq!(kinds, [DiskErrorKind::Shrunk; 4]);
            });
        }
    }
}

/// Waits until the kernel's clock, of which files get their times, has moved on.
fn pass_a_tick() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// Cut and made longer again between two requests: its size is the old one, and a hole reads as
/// zeros.
#[test]
fn a_file_that_was_shorter_for_a_time_has_lost_its_contents() {
    for directory in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        for io_mode in [IoMode::Ring, IoMode::InPlace] {
            for first in ["read", "write", "flush"] {
                let file = Temp::new(directory, "shorter-for-a-time", MIB);
                with_ring(async move |ring| {
                    let options = FileOptions { io_mode: Some(io_mode), ..FileOptions::default() };
                    let disk = FileDisk::open(&ring, &file.0, &options).expect("opens");
                    disk.write(0, pattern(1 << 20, 1), WriteOpts::USER_FUA).await.expect("write");
                    pass_a_tick();
                    let handle =
                        std::fs::OpenOptions::new().write(true).open(&file.0).expect("opens");
                    handle.set_len(8192).expect("cut");
                    handle.set_len(MIB).expect("made longer again");
                    let result = match first {
                        "read" => disk.read(MIB / 2, Buf::new(4096), Class::User).await.0,
                        "write" => disk.write(0, pattern(4096, 2), WriteOpts::USER).await,
                        _ => disk.flush().await,
                    };
                    let error = result.expect_err("lost");
                    assert_eq!(error.kind, DiskErrorKind::Shrunk, "{directory} {first}: {error}");
                    let (result, _) = disk.read(0, Buf::new(4096), Class::User).await;
                    assert_eq!(result.expect_err("lost").kind, DiskErrorKind::Shrunk);
                });
            }
        }
    }
}

#[test]
fn what_loses_nothing_fails_no_request() {
    for directory in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let file = Temp::new(directory, "loses-nothing", MIB);
        with_ring(async move |ring| {
            let disk = FileDisk::open(&ring, &file.0, &FileOptions::default()).expect("opens");
            let works = async || {
                pass_a_tick();
                let (result, _) = disk.read(0, Buf::new(4096), Class::User).await;
                result.expect("read");
                disk.write(0, pattern(4096, 3), WriteOpts::USER).await.expect("write");
                disk.flush().await.expect("flush");
            };
            let handle = std::fs::OpenOptions::new().write(true).open(&file.0).expect("opens");
            works().await;
            // Its own requests free blocks.
            disk.write(0, pattern(1 << 20, 1), WriteOpts::USER_FUA).await.expect("write");
            disk.discard(0, MIB / 2).await.expect("discarded");
            works().await;
            disk.write_zeroes(0, MIB, WriteOpts::USER).await.expect("zeroed");
            works().await;
            // `touch`, and a file that becomes longer.
            let now = std::time::SystemTime::now();
            handle.set_modified(now).expect("touched");
            works().await;
            handle.set_len(2 * MIB).expect("made longer");
            works().await;
            // A cut behind the part that is in use.
            handle.set_len(MIB).expect("cut");
            works().await;
        });
    }
}

#[test]
fn block_devices_keep_their_bytes_and_have_one_owner() {
    if !have(&[Need::Root, Need::Loop, Need::Tool("losetup")]) {
        return;
    }
    let _alone = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    for sector_bytes in [512, 4096] {
        for scratch in [Scratch::new("loop"), Scratch::in_memory("loop")] {
            let file = scratch.file("backing", 6 * MIB);
            let device = LoopDevice::with_sectors(&file, false, sector_bytes);
            with_ring(async move |ring| {
                let open = |options| FileDisk::open(&ring, device.path(), &options);
                let disk = open(FileOptions::default()).expect("opens");
                assert_eq!(disk.info().sector_bytes, sector_bytes);
                assert_eq!(disk.info().size_bytes, 6 * MIB);
                assert_eq!((disk.io_mode(), disk.is_direct()), (IoMode::Ring, true));
                assert!(disk.info().fast_zeroes, "a loop device punches holes");
                exercise(&disk).await;
                refuses_bad_requests(&disk).await;
                let error = open(FileOptions::default()).expect_err("owned");
                assert!(error.to_string().contains("it is in use"), "{error}");
                open(FileOptions { look_only: true, ..FileOptions::default() }).expect("looks");
                drop(disk);
                let small = FileOptions { sector_bytes: Some(512), ..FileOptions::default() };
                assert_eq!(open(small).is_ok(), sector_bytes == 512);
                let large = FileOptions { sector_bytes: Some(4096), ..FileOptions::default() };
                exercise(&open(large).expect("larger sectors than the device's")).await;
            });
        }
    }
}

#[test]
fn a_mounted_device_is_in_use() {
    if !have(&[Need::Root, Need::Loop, Need::Tool("losetup"), Need::Tool("mkfs.ext4")]) {
        return;
    }
    let _alone = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new("mounted");
    let file = scratch.file("backing", 16 * MIB);
    let device = LoopDevice::attach(&file, false);
    run(command("mkfs.ext4").arg("-q").arg(device.path()));
    std::fs::create_dir(scratch.join("at")).expect("a folder");
    let mount = Mount::new(device.path(), &scratch.join("at"), "");
    let path = device.path().to_owned();
    with_ring(async move |ring| {
        let error = FileDisk::open(&ring, &path, &FileOptions::default()).expect_err("mounted");
        assert!(error.to_string().contains("a mounted file system"), "{error}");
    });
    mount.unmount();
}

/// Zeroing gives the space of a sparse file back, and that of a file without holes never.
#[test]
fn a_file_whose_space_is_reserved_keeps_it() {
    use std::os::unix::fs::MetadataExt as _;
    let scratch = Scratch::new("reserved");
    for directory in [scratch.path(), Path::new("/dev/shm")] {
        for reserved in [false, true] {
            let file = Temp::new(directory.to_str().expect("text"), "reserved", 8 * MIB);
            if reserved {
                run(command("fallocate").args(["-l", "8M"]).arg(&file.0));
            }
            let path = file.0.clone();
            with_ring(async move |ring| {
                let disk = FileDisk::open(&ring, &path, &FileOptions::default()).expect("opens");
                disk.write(0, pattern(1 << 20, 1), WriteOpts::USER).await.expect("write");
                disk.write_zeroes(0, 8 * MIB, WriteOpts::USER).await.expect("zero");
                assert!(read(&disk, 0, 1 << 20).await.iter().all(|byte| *byte == 0));
            });
            let kept = std::fs::metadata(&file.0).expect("a file").blocks() * 512 >= 8 * MIB;
            assert_eq!(kept, reserved, "{}", file.0.display());
        }
    }
}
