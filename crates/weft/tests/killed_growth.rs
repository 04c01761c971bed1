//! The daemon is killed again and again while an array grows under a mounted file system: the file
//! system and its programs notice nothing but pauses, every byte is right to the end, and the array
//! has grown.
//!
//! A block device whose daemon dies returns errors, which no mounted file system survives. So a
//! virtual machine mounts it, as users with NBD disks do: QEMU makes the requests that were in
//! flight again when the daemon is back. fio writes and verifies in the guest, beside files that
//! are only read at the end. `WEFT_GROWTHS=N` lets the array grow N times, each by one disk.

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::Bench;
use weft_testkit::{Guest, Need, Rng, command, have, pattern, run, wait_until};

const SIZE: &str = "128M";
/// Bytes of the files that are only read.
const STILL_BYTES: usize = 128 << 20;
/// Bytes per second and member, while there are kills.
const PACE: &str = "2M";
/// Kills of each growth, at least.
const KILLS: usize = 4;

const SCRIPT: &str = "\
modprobe ext4
mkdir /tmp/mnt
mount /dev/vda /tmp/mnt
touch mounted
round=0
until [ -e grown ]; do
  round=$((round + 1))
  fio --name=v --directory=/tmp/mnt --thread --numjobs=4 --size=2M --rw=randwrite --bsrange=4k-64k \\
    --ioengine=psync --direct=1 --fsync=16 --verify=crc32c --do_verify=1 --verify_fatal=1 \\
    --randseed=$round --output=fio.out || { cat fio.out; exit 1; }
  echo $round >rounds.new
  mv rounds.new rounds
done
cmp files/still /tmp/mnt/still
umount /tmp/mnt
e2fsck -fn /dev/vda
dmesg | grep -i 'i/o error\\|ext4-fs error' && exit 1
echo $round rounds
";

#[test]
fn a_mounted_file_system_survives_kills_of_the_daemon_while_the_array_grows() {
    let needs = ["fio", "mkfs.ext4", "e2fsck", "nbdcopy"].map(Need::Tool);
    if !have(&needs) {
        return;
    }
    let mut bench = Bench::new("killed-growth");
    let Some(guest) = Guest::find(bench.scratch.path()) else {
        return;
    };
    let growths = std::env::var("WEFT_GROWTHS").map_or(1, |n| n.parse().expect("a number"));
    let create = ["create", "t", "--code", "raid5", "--size", SIZE, "--head-room", "4M"];
    bench.weft(&[&create[..], &["d0", "d1", "d2"]].concat());
    bench.serve(&["."]);
    make_file_system(&bench);
    let uri = bench.uri("t");
    let guest = guest.disk(&uri).program("fio").program("e2fsck").program("cmp");
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| guest.run(SCRIPT).success());
        let counter = bench.path("rounds");
        let rounds = || fs::read_to_string(&counter).unwrap_or_default();
        wait_until("the file system is used", || guest.is_finished() || !rounds().is_empty());
        let grown = Grown(bench.path("grown"));
        let mut rng = Rng::new(1);
        for growth in 0..growths {
            let spare = format!("g{growth}");
            bench.weft(&["add", "t", &spare, "--size", SIZE]);
            bench.weft(&["throttle", "t", "--max", PACE]);
            bench.weft(&["grow", "t", "--no-wait"]);
            grow(&mut bench, &mut rng);
        }
        let before = rounds();
        wait_until("the grown array is used", || guest.is_finished() || rounds() != before);
        drop(grown);
        println!("{}", guest.join().expect("the guest succeeds"));
    });
    assert_eq!(bench.status("t")["slots"].as_array().map(Vec::len), Some(3 + growths));
    let scrubbed = bench.weft(&["scrub", "t"]);
    assert!(scrubbed.contains("0 mismatches"), "{scrubbed}");
    bench.terminate();
}

/// Ends the guest's work when it is dropped.
struct Grown(PathBuf);

impl Drop for Grown {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "");
    }
}

/// Fills the array with a file system that holds a large file.
fn make_file_system(bench: &Bench) {
    let (files, image) = (bench.path("files"), bench.path("image"));
    fs::create_dir(&files).expect("a folder");
    fs::write(files.join("still"), pattern::bytes(1, STILL_BYTES)).expect("written");
    let size = bench.status("t")["size_bytes"].as_u64().expect("a size");
    fs::File::create(&image).and_then(|file| file.set_len(size)).expect("a file");
    run(command("mkfs.ext4").args(["-q", "-d"]).arg(&files).arg(&image));
    run(command("nbdcopy").arg(&image).arg(bench.uri("t")));
    fs::remove_file(image).expect("removed");
}

/// Kills the daemon while the array is reshaped, then lets the reshape end.
fn grow(bench: &mut Bench, rng: &mut Rng) {
    for _ in 0..KILLS {
        // QEMU comes back within a second or two.
        std::thread::sleep(Duration::from_millis(1500 + rng.below(1500)));
        assert_eq!(bench.status("t")["reshaping"], true, "it has grown too fast");
        bench.kill9();
        bench.serve(&["."]);
        bench.weft(&["throttle", "t", "--max", PACE]);
    }
    bench.weft(&["throttle", "t", "--max", "unlimited"]);
    wait_until("the array has grown", || bench.status("t")["reshaping"] == false);
}
