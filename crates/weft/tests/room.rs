//! A full file system says so at the write that finds no room: what was written before is there,
//! what was refused is not, and sizes and contents agree.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};

use crate::common::Bench;
use crate::common::weftfs::{Mounted, NEEDS};
use rustix::fs::statvfs;
use weft_testkit::{Need, command, have};

const PIECE: usize = 1 << 20;

fn piece(n: usize) -> Vec<u8> {
    (0..PIECE).map(|at| (at / 512 + n * 7).to_le_bytes()[0]).collect()
}

#[test]
fn the_write_that_finds_no_room_is_refused_and_nothing_before_it_is_lost() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("room-write", 3, 64 << 20);
    let at = mounted.at.clone();
    fs::write(at.join("old"), "old\n").expect("written");
    File::open(at.join("old")).and_then(|old| old.sync_all()).expect("synced");
    let room = statvfs(&at).expect("there");
    let most = usize::try_from(room.f_blocks * room.f_frsize).expect("small") / PIECE + 1;
    let mut file = File::create(at.join("file")).expect("made");
    let mut written = 0;
    // It is never synced.
    let error = loop {
        match file.write(&piece(written / PIECE)[written % PIECE..]) {
            Ok(len) => written += len,
            Err(error) => break error,
        }
        assert!(
            written / PIECE <= most,
            "{written} bytes were taken, and there is room for {most} MiB"
        );
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(written / PIECE > 20, "{written} bytes");
    let full = statvfs(&at).expect("there");
    assert_eq!(full.f_blocks, room.f_blocks, "the size of the file system stays");
    assert!(full.f_bavail < room.f_bavail / 8, "{} of {}", full.f_bavail, room.f_bavail);
    let agrees = |when: &str| {
        let found = fs::read(at.join("file")).expect("read");
        assert_eq!(found.len(), written, "{when}");
        for (n, found) in found.chunks(PIECE).enumerate() {
            assert!(*found == piece(n)[..found.len()], "MiB {n} {when}");
        }
    };
    agrees("in memory");
    // What programs do that sync nothing.
    let script =
        "cat file > other && mv other cfg; head -c 1M /dev/zero >> old && echo more >> old";
    let shell = command("sh").args(["-c", script]).current_dir(&at).output().expect("started");
    let said = String::from_utf8_lossy(&shell.stderr).into_owned();
    assert!(!shell.status.success() && said.contains("No space left"), "{said}");
    assert!(!at.join("cfg").exists(), "an incomplete file has the place of a good one");
    file.sync_all().expect("all that was taken has its room");
    drop(file);
    mounted.unmount();
    mounted.mount_again();
    agrees("on the disks");
    let old = fs::read(at.join("old")).expect("read");
    assert!(old.starts_with(b"old\n") && old[4..].iter().all(|byte| *byte == 0), "a hole");
    // There is room again.
    fs::remove_file(at.join("file")).expect("removed");
    let _ = fs::remove_file(at.join("other"));
    fs::write(at.join("new"), piece(1)).expect("written");
    mounted.ends_sound();
}

/// Fills a mapped file with holes, and reads what a file system without room has of it.
const MAPPED: &str = r"
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4 << 20)
mapped = mmap.mmap(file, 4 << 20)
mapped[:] = b'x' * (4 << 20)
try:
    mapped.flush()
    print('flushed')
except OSError as error:
    print(error.strerror)
for wait in range(100):
    found = os.pread(file, 4 << 20, 0)
    if found.count(b'x') < len(found): break
    __import__('time').sleep(0.05)
print(found.count(b'x') < len(found))
";

#[test]
fn a_mapped_file_that_finds_no_room_reads_as_it_is() {
    if !have(&[NEEDS[0], NEEDS[1], Need::Tool("python3")]) {
        return;
    }
    let mounted = Mounted::on_disks("room-mapped", 3, 32 << 20);
    let at = mounted.at.clone();
    let mut file = File::create(at.join("file")).expect("made");
    for size in [PIECE, 64 << 10, 4096] {
        while file.write_all(&piece(3)[..size]).is_ok() {}
    }
    file.sync_all().expect("all that was taken has its room");
    let python = command("python3").args(["-c", MAPPED, "mapped"]).current_dir(&at).output();
    let said = String::from_utf8(python.expect("started").stdout).expect("text");
    assert_eq!(said.lines().collect::<Vec<_>>(), ["No space left on device", "True"]);
    drop(file);
    mounted.ends_sound();
}

#[test]
fn the_metadata_has_room_for_what_the_disks_have_or_create_says_so() {
    let bench = Bench::new("room-metadata");
    let disks = |name: &str, sizes: [u64; 3]| -> Vec<String> {
        let disk = |(n, bytes): (usize, u64)| {
            let name = format!("{name}{n}");
            let file = File::create(bench.path(&name)).expect("made");
            file.set_len(bytes).expect("sparse");
            name
        };
        sizes.into_iter().enumerate().map(disk).collect()
    };
    let create = |name: &str, disks: &[String]| {
        let mut args = vec!["fs", "create", name];
        args.extend(disks.iter().map(String::as_str));
        bench.weft(&args)
    };
    let said = create("small", &disks("a", [128 << 20, 4 << 30, 4 << 30]));
    assert!(said.contains("room for 3.9") && !said.contains("warning"), "{said}");
    let said = create("large", &disks("b", [1 << 30, 400 << 30, 400 << 30]));
    assert!(said.contains("warning: the disks have room for"), "{said}");
    let said = create("even", &disks("c", [400 << 30; 3]));
    assert!(!said.contains("warning"), "{said}");
}
#[test]
fn what_was_deleted_is_free_to_who_looks() {
    if !have(&NEEDS) {
        return;
    }
    let mounted = Mounted::on_disks("room-deleted", 3, 64 << 20);
    let free = || statvfs(&mounted.at).expect("there").f_bfree;
    let file = mounted.at.join("file");
    let (pieces, before) = (20, free());
    let mut written = File::create(&file).expect("made");
    (0..pieces).for_each(|n| written.write_all(&piece(n)).expect("written"));
    written.sync_all().expect("synced");
    drop(written);
    let missing = || usize::try_from(before.saturating_sub(free())).expect("few blocks") * 4096;
    assert!(missing() >= pieces * PIECE);
    fs::remove_file(&file).expect("removed");
    mounted.has_answered_all();
    assert!(missing() < PIECE, "{} bytes are missing", missing());
    mounted.ends_sound();
}
