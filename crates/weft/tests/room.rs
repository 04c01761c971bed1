//! A full file system says so at the write that finds no room: what was written before is there, what
//! was refused is not, and sizes and contents agree.

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};

use common::weftfs::{Mounted, NEEDS};
use rustix::fs::statvfs;
use weft_testkit::{command, have};

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
