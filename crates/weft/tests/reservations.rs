//! Persistent reservations as fences, in a guest with a real SCSI target (LIO) that two machines
//! reach: here two paths of one kernel, each with a nexus of its own. Then a file system of such
//! disks: a keeper and a node, which are killed and evicted, with an etcd and without one.

use std::time::Duration;

use weft_testkit::{Guest, Need, Scratch, have};

/// Words of the stories.
const PRELUDE: &str = r#"
for module in configfs sd_mod target_core_mod target_core_file tcm_loop fuse loop; do
    modprobe $module || { echo "SKIPPED: the kernel has no $module"; exit 0; }
done
step() { echo "--- $* ($(cut -d' ' -f1 /proc/uptime) s)"; }
fail() { echo "FAILED: $*"; dmesg | tail -n 30; exit 1; }
has() { grep -q "$1" /tmp/said || fail "no '$1' in: $(cat /tmp/said)"; }
does() { "$@" >/tmp/said 2>&1 || fail "$*: $(cat /tmp/said)"; }
refused() { "$@" >/tmp/said 2>&1 && fail "$* succeeded"; true; }
write() { dd if=/dev/zero of=$1 bs=4096 count=1 seek=1000 oflag=direct conv=notrunc; }
mount -t configfs none /sys/kernel/config 2>/dev/null || true
# Where the target keeps reservations.
mkdir -p /var/target/pr
target=/sys/kernel/config/target
# Disk number $1 of $2 MiB, which both machines reach.
disk() {
    core=$target/core/fileio_$1/d
    mkdir -p $core
    echo fd_dev_name=/tmp/lun$1,fd_dev_size=$(($2 << 20)) >$core/control
    echo 1 >$core/enable
    echo d00$1 >$core/wwn/vpd_unit_serial
    for end in 1 2; do
        tpg=$target/loopback/naa.500140500000000$end/tpgt_1
        if [ ! -d $tpg ]; then
            mkdir -p $tpg
            echo naa.600140500000000$end >$tpg/nexus
        fi
        mkdir $tpg/lun/lun_$1
        ln -s $core $tpg/lun/lun_$1/port
    done
}
"#;

const STORY: &str = r#"
step "one disk, two paths"
dd if=/dev/zero of=/tmp/lun0 bs=1M count=16 2>/dev/null
disk 0 16
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

/// Runs a story in a guest with these programs.
fn tell(name: &str, programs: &[&'static str], story: &str) {
    let host = Scratch::new(name);
    let needs: Vec<_> = programs.iter().copied().map(Need::Tool).collect();
    let Some(guest) = Guest::find(host.path()).filter(|_| have(&needs)) else { return };
    let guest = programs.iter().fold(guest, |guest, program| guest.program(program));
    let guest = guest.program(env!("CARGO_BIN_EXE_weft"));
    let outcome = guest.patience(Duration::from_secs(900)).run(&format!("{PRELUDE}{story}"));
    println!("{}", outcome.success());
}

#[test]
fn a_machine_that_was_fenced_writes_no_more() {
    tell("reservations", &["losetup"], STORY);
}

const CLUSTER_STORY: &str = r#"
say() { echo "--- what $1 said"; cat /tmp/$1.out; }
ended() { for who in etcd one two three; do [ -f /tmp/$who.out ] && say $who; done; kill -9 $(jobs -p) 2>/dev/null || true; }
trap ended EXIT
# The devices of machine $1: those of its host adapter.
devices() {
    for turn in $(seq 100); do [ $(ls -d /sys/block/sd* 2>/dev/null | wc -l) = 4 ] && break; sleep 0.1; done
    all=
    for lun in 0 1; do
        for disk in /sys/block/sd*; do
            at=$(basename $(readlink -f $disk/device))
            host=$(readlink -f $disk/device | grep -o 'tcm_loop_adapter_[0-9]*')
            [ "$host" = tcm_loop_adapter_$(($1 - 1)) ] && [ "${at##*:}" = $lun ] && all="$all /dev/${disk##*/}"
        done
    done
    echo $all
}
# Runs weft fs in the background as node $1, whose words are in /tmp/$1.out.
start() { who=$1; shift; weft fs "$@" --cluster $cluster --node $who >/tmp/$who.out 2>&1 & eval pid_$who=$!; }
# Node $1 says $2.
says() {
    for turn in $(seq 600); do
        grep -q "$2" /tmp/$1.out && return
        eval "kill -0 \$pid_$1" 2>/dev/null || fail "$1 ended before it said '$2'"
        sleep 0.2
    done
    fail "$1 does not say '$2'"
}
# Node $1 ends, and its code is $2.
ends() {
    eval "wait \$pid_$1" && code=0 || code=$?
    [ $code = $2 ] || fail "$1 ended with $code"
}
killed() { eval "kill -9 \$pid_$1; wait \$pid_$1" || true; umount -f -l /tmp/mnt-$1; }
put() { dd if=/dev/urandom of=$1 bs=64k count=$2 conv=fsync 2>/dev/null || fail "$1 was not written"; sha256sum <$1 >/tmp/sum-${1##*/}; }
same() { [ "$(sha256sum <$1)" = "$(cat /tmp/sum-${1##*/})" ] || fail "$1 has changed"; }

step "two disks, two machines"
ifconfig lo 127.0.0.1 up
mkdir -p /tmp/mnt-one /tmp/mnt-two
for number in 0 1; do truncate -s 64M /tmp/lun$number; disk $number 64; done
first=$(devices 1); second=$(devices 2)
[ -z "$evicts" ] || evicts=$first
echo "machine 1 has $first, machine 2 has $second"
step "create"
does weft fs create home $first --cluster $cluster --node admin
start one keeper home $first --no-abort --mount /tmp/mnt-one
says one 'is mounted on'
put /tmp/mnt-one/keepers 5
refused weft fs mount home /tmp/mnt-two $first --cluster $cluster --node other
has 'of the processes of a machine one uses'

step "a node on the other machine"
start two mount home /tmp/mnt-two $second
says two 'is mounted on'
same /tmp/mnt-two/keepers
put /tmp/mnt-two/nodes 5
same /tmp/mnt-one/nodes

step "the node dies, and its machine is fenced"
killed two
says one 'node two .* is gone'
same /tmp/mnt-one/nodes
for disk in $second; do refused write $disk; done

step "it comes again in a new epoch, and ends in order"
start two mount home /tmp/mnt-two $second
says two 'is mounted on'
same /tmp/mnt-two/nodes
put /tmp/mnt-two/again 3
kill $pid_two
ends two 0

step "the keeper dies, and the other machine follows"
start two keeper home $second --no-abort --mount /tmp/mnt-two
says two 'stands by'
killed one
says two 'is mounted on'
for name in keepers nodes again; do same /tmp/mnt-two/$name; done
for disk in $first; do refused write $disk; done
put /tmp/mnt-two/after 3

step "a keeper that was evicted says so, and no disk is lost"
start one keeper home $first --no-abort --mount /tmp/mnt-one
says one 'stands by'
does weft fs evict home two $evicts --cluster $cluster
says one 'is mounted on'
ends two 1
grep -q 'was fenced' /tmp/two.out || fail "two does not say that it was fenced"
for name in keepers nodes again after; do same /tmp/mnt-one/$name; done
does weft fs status /tmp/mnt-one --json
grep -q '"lost":true' /tmp/said && fail "a disk is lost: $(cat /tmp/said)"
does weft fs fsck --data /tmp/mnt-one
kill $pid_one
ends one 0

step "a device without reservations is for one node"
truncate -s 64M /tmp/plain; losetup /dev/loop0 /tmp/plain
for disk in /dev/loop0 /tmp/plain; do
    refused weft fs create other $disk ${first%% *} --cluster $cluster --node admin
    has 'can be used by one node only'
    has 'weft disks serve'
done
set -- $first $second
refused weft fs create other $1 $3 --cluster $cluster --node admin
has 'two of these are paths to one disk'
echo PASSED
"#;

/// One whose record is in an etcd.
const ETCD: &str = r#"
cluster=etcd://127.0.0.1:2379
evicts=
ifconfig lo 127.0.0.1 up
echo 127.0.0.1 localhost >/etc/hosts
etcd --data-dir /tmp/etcd --unsafe-no-fsync >/tmp/etcd.out 2>&1 &
for turn in $(seq 100); do wget -q -O - http://127.0.0.1:2379/health 2>/dev/null | grep -q true && break; sleep 0.2; done
"#;

/// One whose record is on the disks: commands write there beside the machine's process.
const DISKS: &str = r#"
cluster=disks
evicts=disks
"#;

#[test]
fn a_keeper_and_a_node_share_disks_with_reservations() {
    let story = format!("{ETCD}{CLUSTER_STORY}");
    tell("reservations-cluster", &["losetup", "etcd"], &story);
}

#[test]
fn disks_with_reservations_need_no_etcd() {
    tell("reservations-leases", &["losetup"], &format!("{DISKS}{CLUSTER_STORY}"));
}
