//! Arrays as devices of the kernel's NBD client, in a guest whose kernel has it: what users see
//! while the daemon is killed, upgraded and started again.

use std::time::Duration;

use weft_testkit::{Guest, Need, Scratch, have};

const PROGRAMS: [&str; 3] = ["mkfs.ext4", "e2fsck", "fio"];

const STORY: &str = r#"
for module in nbd ext4; do modprobe $module; done
mkdir -p /tmp/disks /tmp/mnt
cd /tmp/disks
ended() {
    cat /tmp/serve
    kill -9 $daemon || true
    weft detach --force tank || true
}
trap ended EXIT
step() { echo "--- $* ($(cut -d' ' -f1 /proc/uptime) s)"; }
fail() { echo "FAILED: $*"; dmesg | tail -n 30; exit 1; }
same() { [ "$2" = "$3" ] || fail "$1 is $2, not $3"; }
has() { grep -q "$1" "$2" || fail "no '$1' in $2: $(cat $2)"; }
refused() { code=$1; shift; "$@" >/tmp/said 2>&1 && fail "$* succeeded"; same "code of $*" $? $code; }
serve() {
    : >/tmp/out
    weft serve "$@" >>/tmp/out 2>>/tmp/serve & daemon=$!
    until grep -q serving /tmp/out; do kill -0 $daemon || fail "the daemon ended"; sleep 0.1; done
}
killed() { kill -9 $daemon; wait $daemon || true; }
upgraded() { weft stop --keep-devices; wait $daemon; }
attached() { until weft status | grep -q "attached as $device"; do sleep 0.1; done; }
writes() { awk '{ print $5 }' /sys/block/$(basename $device)/stat; }

weft create tank --code raid5 --unit 64K --size 24M d0 d1 d2 d3
serve .
device=$(weft attach tank --via nbd)
case $device in /dev/nbd*) ;; *) fail "the device is $device" ;; esac
step "$device"
same link "$(readlink /dev/weft/tank)" ../$(basename $device)
same array "$(weft udev $device)" WEFT_ARRAY=tank
same blocks "$(cat /sys/block/$(basename $device)/queue/logical_block_size)" 4096
weft status >/tmp/said; has "attached as $device (NBD)" /tmp/said
weft status --json >/tmp/said; has '"via":"nbd","link":"/dev/weft/tank"' /tmp/said
refused 1 weft attach tank; has 'attached already' /tmp/said
refused 1 weft stop; has 'attached as a block device' /tmp/said

mkfs.ext4 -qF /dev/weft/tank
mount /dev/weft/tank /tmp/mnt
refused 1 weft detach tank; has 'mounted on /tmp/mnt' /tmp/said
for turn in killed upgraded; do
    step "$turn under fio"
    fio --name=v --filename=/tmp/mnt/fio --rw=randwrite --bsrange=4k-64k --ioengine=libaio \
        --direct=1 --iodepth=8 --size=24M --fsync=32 --verify=crc32c --do_verify=1 \
        --verify_fatal=1 --output=/tmp/fio & fio=$!
    before=$(writes)
    until [ $(writes) -gt $((before + 60)) ]; do
        kill -0 $fio || fail "fio was too quick: $(cat /tmp/fio)"
        sleep 0.1
    done
    $turn
    refused 5 weft status; has "ORPHANED BLOCK DEVICE: $device" /tmp/said
    refused 1 weft detach tank; has 'weft serve' /tmp/said
    sleep 1
    kill -0 $fio || fail "fio ended with the daemon: $(cat /tmp/fio)"
    serve .
    attached
    wait $fio || fail "fio: $(cat /tmp/fio)"
    has 'err= 0' /tmp/fio
    rm /tmp/mnt/fio
done
umount /tmp/mnt
e2fsck -fn /dev/weft/tank
weft detach tank
[ ! -e /dev/weft/tank ] || fail "the link is left"
weft scrub tank

step "read only, and removed by force"
device=$(weft attach tank --via nbd --read-only)
same "the state" "$(cat /sys/block/$(basename $device)/ro)" 1
killed
weft detach --force tank
serve .
weft status >/tmp/said
grep -q attached /tmp/said && fail "attached: $(cat /tmp/said)"
grep -q ORPHANED /tmp/said && fail "left: $(cat /tmp/said)"
dmesg | grep -i 'I/O error' && fail "users saw errors"
weft stop
"#;

#[test]
fn a_device_of_the_kernels_nbd_client_outlives_its_daemon() {
    let host = Scratch::new("kernel-nbd");
    let Some(guest) = Guest::find(host.path()).filter(|_| have(&PROGRAMS.map(Need::Tool))) else {
        return;
    };
    let guest = PROGRAMS.iter().fold(guest, |guest, program| guest.program(program));
    let guest = guest.program(env!("CARGO_BIN_EXE_weft")).patience(Duration::from_secs(1500));
    println!("{}", guest.run(STORY).success());
}
