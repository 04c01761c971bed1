//! Persistent reservations as fences, in a guest with a real SCSI target (LIO) that two machines
//! reach: here two paths of one kernel, each with a nexus of its own.

use std::time::Duration;

use weft_testkit::{Guest, Need, Scratch, have};

const STORY: &str = r#"
for module in configfs sd_mod target_core_mod target_core_file tcm_loop fuse loop; do
    modprobe $module || { echo "SKIPPED: the kernel has no $module"; exit 0; }
done
step() { echo "--- $* ($(cut -d' ' -f1 /proc/uptime) s)"; }
fail() { echo "FAILED: $*"; dmesg | tail -n 30; exit 1; }
has() { grep -q "$1" /tmp/said || fail "no '$1' in: $(cat /tmp/said)"; }
does() { "$@" >/tmp/said 2>&1 || fail "$*: $(cat /tmp/said)"; }
refused() { "$@" >/tmp/said 2>&1 && fail "$* succeeded"; true; }
write() { dd if=/dev/zero of=$1 bs=4096 count=1 seek=1000 oflag=direct conv=notrunc; }

step "one disk, two paths"
mount -t configfs none /sys/kernel/config 2>/dev/null || true
# Where the target keeps reservations.
mkdir -p /var/target/pr
target=/sys/kernel/config/target
mkdir -p $target/core/fileio_0/d
dd if=/dev/zero of=/tmp/lun bs=1M count=16 2>/dev/null
echo fd_dev_name=/tmp/lun,fd_dev_size=16777216 >$target/core/fileio_0/d/control
echo 1 >$target/core/fileio_0/d/enable
for end in 1 2; do
    tpg=$target/loopback/naa.500140500000000$end/tpgt_1
    mkdir -p $tpg
    echo naa.600140500000000$end >$tpg/nexus
    mkdir $tpg/lun/lun_0
    ln -s $target/core/fileio_0/d $tpg/lun/lun_0/port
done
for turn in $(seq 100); do [ -b /dev/sdb ] && break; sleep 0.1; done
[ -b /dev/sda ] && [ -b /dev/sdb ] || fail "no disks: $(ls /dev)"

step "without reservations both write"
does write /dev/sda
does write /dev/sdb

step "registered machines write, others do not"
does weft disks reserve /dev/sda home 1
refused write /dev/sdb
does weft disks reserve /dev/sdb home 2
does write /dev/sda
does write /dev/sdb

step "a fence"
refused weft disks fence /dev/sdb home alpha 1 --own-epoch 7
has 'refuses this node: it was fenced'; has 'weft disks reserve'
refused weft disks fence /dev/sdb home alpha 1
has 'own-epoch'
does weft disks fence /dev/sdb home alpha 1 --own-epoch 2 --no-abort
has 'refuses alpha up to epoch 1'
refused write /dev/sda
does write /dev/sdb
# EBADE is no failure of the disk, and is told as what it is.
refused weft disks prepare /dev/sda
has 'refuses this machine, which was fenced'
refused weft disks fence /dev/sda home beta 2 --own-epoch 1 --no-abort
has 'refuses this node: it was fenced'
does weft disks fence /dev/sdb home alpha 1 --own-epoch 2 --no-abort

step "it joins again in a new epoch, and earlier fences do not hit it"
does weft disks reserve /dev/sda home 3
does write /dev/sda
does weft disks fence /dev/sdb home alpha 1 --own-epoch 2 --no-abort
does write /dev/sda
does weft disks fence /dev/sda home beta 2 --own-epoch 3 --no-abort
refused write /dev/sdb
does write /dev/sda

step "disks without reservations"
dd if=/dev/zero of=/tmp/plain bs=1M count=4 2>/dev/null
losetup /dev/loop0 /tmp/plain
for disk in /dev/loop0 /tmp/plain; do
    refused weft disks reserve $disk home 1
    has 'can be used by one node only'
done
echo PASSED
"#;

#[test]
fn a_machine_that_was_fenced_writes_no_more() {
    let host = Scratch::new("reservations");
    let Some(guest) = Guest::find(host.path()).filter(|_| have(&[Need::Tool("losetup")])) else {
        return;
    };
    let guest = guest.program("losetup").program(env!("CARGO_BIN_EXE_weft"));
    let outcome = guest.patience(Duration::from_secs(600)).run(STORY);
    println!("{}", outcome.success());
}
