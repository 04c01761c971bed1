//! Arrays as ublk devices, in a guest whose kernel has the driver: what users of a device see while
//! its daemon is killed, upgraded and started again.

mod common;

use std::time::Duration;

use common::Bench;
use weft_testkit::{Guest, Need, Scratch, have};

const PROGRAMS: [&str; 5] = ["mkfs.ext4", "e2fsck", "fio", "blkdiscard", "losetup"];

/// Runs a story in a guest.
fn tell(name: &str, story: &str) {
    let host = Scratch::new(name);
    let Some(guest) = Guest::find(host.path()).filter(|_| have(&PROGRAMS.map(Need::Tool))) else {
        return;
    };
    let guest = PROGRAMS.iter().fold(guest, |guest, program| guest.program(program));
    let guest = guest.program(env!("CARGO_BIN_EXE_weft"));
    let guest = guest.patience(Duration::from_secs(1500));
    println!("{}", guest.run(&format!("{PRELUDE}{story}")).success());
}

/// Words of the stories.
const PRELUDE: &str = r#"
for module in ublk_drv fuse loop ext4; do modprobe $module; done
mkdir -p /tmp/disks /tmp/mnt
cd /tmp/disks
# The guest's end waits for every file system, and so for a device that waits for a daemon.
ended() {
    cat /tmp/serve
    kill -9 $daemon || true
    for array in tank odd pool; do weft detach --force $array || true; done
}
trap ended EXIT
daemon=
step() { echo "--- $* ($(cut -d' ' -f1 /proc/uptime) s)"; }
fail() { echo "FAILED: $*"; dmesg | tail -n 30; exit 1; }
same() { [ "$2" = "$3" ] || fail "$1 is $2, not $3"; }
has() { grep -q "$1" "$2" || fail "no '$1' in $2: $(cat $2)"; }
# Exit with the code $1, and its words in /tmp/said.
refused() { code=$1; shift; "$@" >/tmp/said 2>&1 && fail "$* succeeded"; same "code of $*" $? $code; }
serve() {
    # What the daemon before has said must not count.
    : >/tmp/out
    weft serve "$@" >>/tmp/out 2>>/tmp/serve & daemon=$!
    until grep -q serving /tmp/out; do kill -0 $daemon || fail "the daemon ended"; sleep 0.1; done
}
killed() { kill -9 $daemon; wait $daemon || true; }
attached() { until weft status | grep -q 'attached as /dev/ublk'; do sleep 0.1; done; }
"#;

#[test]
fn a_device_outlives_its_daemon() {
    tell("ublk-outlives", OUTLIVES);
}

const OUTLIVES: &str = r#"
weft create tank --code raid5 --unit 64K --size 24M --head-room 1M d0 d1 d2 d3 d4
serve .
step limits
same device "$(weft attach tank)" /dev/ublkb0
same link "$(readlink /dev/weft/tank)" ../ublkb0
limits() { (cd /sys/block/ublkb0/queue && cat "$@" | tr '\n' ' '); }
same blocks "$(limits logical_block_size physical_block_size)" "4096 4096 "
same requests "$(limits minimum_io_size optimal_io_size)" "65536 262144 "
same cache "$(limits write_cache fua)" "write back 1 "
same discards "$(limits discard_granularity discard_max_bytes)" "262144 1073741824 "
weft status >/tmp/said; has 'attached as /dev/ublkb0 (ublk)' /tmp/said
weft status --json >/tmp/said; has '"via":"ublk","link":"/dev/weft/tank"' /tmp/said
refused 1 weft attach tank; has 'attached already as /dev/ublkb0' /tmp/said

step "a device in use is not removed"
sleep 1000 </dev/weft/tank & user=$!
refused 1 weft detach tank; has 'sleep' /tmp/said
kill $user; wait $user || true

step "fio, and the daemon killed under it, twice: the second time one disk is lost"
fio --name=v --filename=/dev/weft/tank --rw=randwrite --bsrange=4k-128k --ioengine=libaio \
    --direct=1 --iodepth=16 --size=40M --verify=crc32c --do_verify=1 --verify_fatal=1 \
    --randseed=7 --output=/tmp/fio & fio=$!
writes() { awk '{ print $5 }' /sys/block/ublkb0/stat; }
before=$(writes)
more_writes() {
    until [ $(writes) -gt $((before + $1)) ]; do
        kill -0 $fio || fail "fio was too quick: $(cat /tmp/fio)"
        sleep 0.1
    done
}
# The daemon has been killed: fio waits for the next one, and is served by it.
fio_goes_on() {
    sleep 1
    kill -0 $fio || fail "fio ended with the daemon: $(cat /tmp/fio)"
    serve .
    attached
    before=$(writes)
    more_writes 20
}
fio_ends_well() {
    wait $fio || fail "fio: $(cat /tmp/fio)"
    has 'err= 0' /tmp/fio
}
more_writes 100
for turn in 1 2; do
    killed
    refused 5 weft status; has 'ORPHANED BLOCK DEVICE: /dev/ublkb0' /tmp/said
    fio_goes_on
    [ $turn = 2 ] || weft fail tank d4
done
fio_ends_well
weft add tank d5 --size 24M
weft rebuild tank
weft scrub tank

step zeroes
dd if=/dev/urandom of=/dev/ublkb0 bs=1M count=8 2>/dev/null
/bin/blkdiscard -z -o 4096 -l 3M /dev/ublkb0
dd if=/dev/ublkb0 bs=4096 skip=1 count=768 2>/dev/null | cmp -n 3145728 - /dev/zero
/bin/blkdiscard -o 4M -l 4M /dev/ublkb0
dd if=/dev/ublkb0 bs=1M skip=4 count=4 2>/dev/null | cmp -n 4194304 - /dev/zero

step "a file system, in use while the daemon is killed"
mkfs.ext4 -F /dev/weft/tank >/tmp/said; 
dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
mount /dev/weft/tank /tmp/mnt
refused 1 weft detach tank; has 'mounted on /tmp/mnt' /tmp/said
cp /tmp/data /tmp/mnt/a
(cp /tmp/data /tmp/mnt/b && sync) & copy=$!
killed
serve .
attached
wait $copy || fail "the copy failed"
cmp /tmp/data /tmp/mnt/a; cmp /tmp/data /tmp/mnt/b

step "fio on the file system, and the daemon killed under it"
fio --name=v --filename=/tmp/mnt/fio --rw=randwrite --bs=4k --ioengine=libaio --direct=1 \
    --iodepth=8 --size=16M --fsync=32 --verify=crc32c --do_verify=1 --verify_fatal=1 \
    --randseed=8 --output=/tmp/fio & fio=$!
before=$(writes)
more_writes 100
killed
fio_goes_on
fio_ends_well
rm /tmp/mnt/fio

step "an upgrade in order"
rm /tmp/mnt/a
refused 1 weft stop; has 'mounted on /tmp/mnt' /tmp/said
(cp /tmp/data /tmp/mnt/a && sync) & copy=$!
weft stop --keep-devices
serve .
attached
wait $copy || fail "the copy failed"
cmp /tmp/data /tmp/mnt/a
umount /tmp/mnt
mount /dev/weft/tank /tmp/mnt
cmp /tmp/data /tmp/mnt/a; cmp /tmp/data /tmp/mnt/b
umount /tmp/mnt
e2fsck -fn /dev/weft/tank
weft scrub tank

step "read only"
weft detach tank
[ ! -e /dev/weft/tank ] && [ ! -e /dev/ublkb0 ] && [ ! -e /dev/ublkc0 ] || fail "left behind"
dev=$(weft attach tank --read-only)
same "the state" "$(cat /sys/block/ublkb0/ro)" 1
dd if=/dev/zero of=$dev bs=4096 count=1 oflag=direct 2>/dev/null && fail "it takes writes"
mount -o ro $dev /tmp/mnt
cmp /tmp/data /tmp/mnt/a
umount /tmp/mnt
weft detach tank

step "a stripe of no power of two, blocks of 4096, and growth"
weft create odd --code raid5 --unit 64K --size 8M --head-room 1M e0 e1 e2 e3
weft start e0 e1 e2 e3
weft attach odd --block-size 4096 --json
same requests "$(limits minimum_io_size optimal_io_size logical_block_size)" "65536 0 4096 "
weft add odd e4 --size 8M
weft grow odd >/tmp/said; has 'keeps its size' /tmp/said
before=$(blockdev --getsize64 /dev/weft/odd)
weft status odd >/tmp/said; has 'detach odd and attach it again' /tmp/said
weft detach odd
weft attach odd
[ $(blockdev --getsize64 /dev/weft/odd) -gt $before ] || fail "it did not grow"
same requests "$(limits minimum_io_size optimal_io_size)" "65536 262144 "
weft detach odd
kill $daemon; wait $daemon || fail "the daemon ended with $?"
"#;

#[test]
fn what_a_daemon_leaves_is_found_and_removed() {
    tell("ublk-orphans", ORPHANS);
}

const ORPHANS: &str = r#"
weft create tank --code raid1 --size 16M --head-room 1M d0 d1
mkdir ../more
weft create pool --code raid1 --size 16M --head-room 1M ../more/p0 ../more/p1
serve .
weft attach tank
mkfs.ext4 -qF /dev/weft/tank
mount /dev/weft/tank /tmp/mnt
echo kept >/tmp/mnt/file; sync
losetup -r /dev/loop5 /dev/ublkb0
killed

step "another array's daemon leaves it alone"
serve ../more
weft status >/tmp/said; has 'tank: ORPHANED BLOCK DEVICE: /dev/ublkb0' /tmp/said
has 'mounted on /tmp/mnt' /tmp/said
refused 4 weft status --check
same device "$(weft attach pool)" /dev/ublkb1
weft detach pool

step "the next daemon takes it over, and reads nothing of what is made of it"
weft stop
serve /dev .
attached
losetup -d /dev/loop5
same contents "$(cat /tmp/mnt/file)" kept
echo more >>/tmp/mnt/file; sync

step "an array that is read only does not take over a device that takes writes"
weft stop --keep-devices
serve --read-only .
until grep -q 'ALERT: /dev/ublkb0 is not taken over' /tmp/serve; do sleep 0.1; done
refused 1 weft attach tank; has 'takes writes' /tmp/said
refused 1 weft detach tank; has 'mounted on /tmp/mnt' /tmp/said; has 'weft serve' /tmp/said
weft stop

step "it is removed by force, and its users get errors"
refused 1 weft detach tank
weft detach --force tank
[ ! -e /dev/weft/tank ] || fail "the link is left"
umount /tmp/mnt || umount -l /tmp/mnt
serve .
weft status >/tmp/said; grep ORPHANED /tmp/said && fail "still there"
dev=$(weft attach tank)
mount $dev /tmp/mnt
same contents "$(cat /tmp/mnt/file)" "kept
more"
umount /tmp/mnt

step "an unused device without a daemon"
killed
weft detach tank --json
[ ! -e /dev/ublkc0 ] || fail "left behind"

step "FUSE, as before"
serve .
case $(weft attach tank --via fuse) in /dev/loop*) ;; *) fail "no loop device";; esac
same link "$(readlink /dev/weft/tank)" ../loop0
weft status >/tmp/said; has '(FUSE and loop)' /tmp/said
refused 1 weft stop --keep-devices
weft detach tank
[ ! -e /dev/weft/tank ] || fail "the link is left"
weft stop
"#;

/// Requests that cannot end, or whose array has failed, get no answer: they are the next daemon's.
#[test]
fn what_a_daemon_cannot_finish_is_left_to_the_next() {
    tell("ublk-left", LEFT);
}

const LEFT: &str = r#"
mkdir /tmp/small
mount -t tmpfs -o size=24M small /tmp/small
weft create tank --code raid5 --sparse --size 32M --head-room 1M /tmp/small/d0 d1 d2
dd if=/dev/urandom of=/tmp/data bs=1M count=12 2>/dev/null

step "a stop while writes wait for space"
serve /tmp/small /tmp/disks
weft attach tank
dd if=/dev/zero of=/tmp/small/filler bs=64k 2>/dev/null || true
dd if=/tmp/data of=/dev/weft/tank bs=1M seek=20 oflag=direct 2>/tmp/dd & dd=$!
until weft status | grep -q 'WRITES WAIT FOR SPACE'; do
    kill -0 $dd || fail "it did not wait: $(cat /tmp/dd)"
    sleep 0.1
done
refused 1 timeout 60 weft stop --keep-devices; has 'waiting for space' /tmp/said
wait $daemon || true
has 'ublkb0 stays; .* not ended' /tmp/serve
sleep 1
kill -0 $dd || fail "it got an error: $(cat /tmp/dd)"
rm /tmp/small/filler
serve /tmp/small /tmp/disks
attached
wait $dd || fail "dd: $(cat /tmp/dd)"
dd if=/dev/weft/tank bs=1M skip=20 count=12 iflag=direct 2>/dev/null | cmp - /tmp/data
weft scrub tank

step "an array that fails under a file system"
mkfs.ext4 -qF /dev/weft/tank
weft stop --keep-devices
wait $daemon
export WEFT_PANIC_AT=/tmp/fault
serve /tmp/small /tmp/disks
attached
mount /dev/weft/tank /tmp/mnt
echo kept >/tmp/mnt/file; sync
echo -n "flush /tmp/disks/d1" >$WEFT_PANIC_AT
(cp /tmp/data /tmp/mnt/data && sync) & copy=$!
until grep -q 'ALERT: /dev/ublkb0 stays' /tmp/serve; do
    kill -0 $copy || fail "the copy ended"
    sleep 0.1
done
weft status >/tmp/said; has 'internal error' /tmp/said
refused 4 weft status --check
refused 1 weft detach --force tank; has 'array has failed' /tmp/said; has 'keep-devices' /tmp/said
sleep 2
kill -0 $copy || fail "the copy ended"
dmesg | grep -i 'I/O error' && fail "users got errors"
rm $WEFT_PANIC_AT
weft stop --keep-devices
wait $daemon
serve /tmp/small /tmp/disks
attached
wait $copy || fail "the copy failed"
cmp /tmp/data /tmp/mnt/data
same contents "$(cat /tmp/mnt/file)" kept
umount /tmp/mnt
e2fsck -fn /dev/weft/tank
weft detach tank
kill $daemon; wait $daemon || fail "the daemon ended with $?"
"#;

/// Where there is no ublk, the daemon says why, and FUSE takes its place.
#[test]
fn without_ublk_the_reason_is_told() {
    if !have(&[Need::Root, Need::Fuse, Need::Loop]) {
        return;
    }
    if std::path::Path::new("/dev/ublk-control").exists() {
        return;
    }
    let mut bench = Bench::new("no-ublk");
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "8M", "d0", "d1"]);
    bench.serve(&["."]);
    let said = bench.refused(&["attach", "tank", "--via", "ublk"], 1);
    assert!(said.contains("cannot be attached by ublk") && said.contains("--via fuse"), "{said}");
    let device = bench.weft(&["attach", "tank"]);
    assert!(device.starts_with("/dev/loop"), "{device}");
    bench.weft(&["detach", "tank"]);
    bench.terminate();
}
