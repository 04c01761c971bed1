//! Operations of one program on a node of a cluster, beside file systems for several machines that
//! only a kernel has: NFS and GFS2.
//!
//! All of them are in one guest: NFS 4.2 from ext4 and from a node of weftfs, with server and
//! client on loopback; GFS2 for one machine (`lock_nolock`), as what it does without any other;
//! weftfs on one machine and a node of a cluster, whose disks are served there and keep its leases.
//! QEMU emulates the processor: only the ratios say something.
#![allow(
    clippy::cast_possible_truncation,
    reason = "files are filled with the low bytes of numbers"
)]

mod single_operations;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use single_operations::{OPERATIONS, prepare};
use weft_testkit::{Guest, Need, Scratch, have};

/// One for ext4, one for GFS2, three for each file system of weft.
const DISKS: usize = 8;
const DISK_MIB: u64 = 256;
/// The first one warms up.
const ROUNDS: usize = 4;
/// The guest is slow: this part of the operations of other benchmarks.
const PART: u32 = 20;
/// What the others are compared with.
const PEER: &str = "ext4";

const STORY: &str = r#"
for module in ext4 gfs2 nfsd nfsv4 fuse; do modprobe $module; done
ifconfig lo 127.0.0.1 up
mkdir -p /m/ext4 /m/gfs2 /m/nfs /m/weftfs /m/node /var/lib/nfs/v4recovery /etc
echo 'tcp 6 TCP' >/etc/protocols
mkfs.ext4 -q -F /dev/vda; mount -t ext4 /dev/vda /m/ext4
mkfs.gfs2 -O -q -p lock_nolock -j 1 /dev/vdb >/tmp/said 2>&1; mount -t gfs2 /dev/vdb /m/gfs2
# begin LOG WORD COMMAND...: starts a program that stays, and waits until it says the word.
begin() {
    log=$1 word=$2; shift 2
    "$@" >$log 2>&1 & process=$!
    until grep -q "$word" $log; do kill -0 $process || { cat $log; exit 1; }; sleep 0.2; done
}
weft fs create one /dev/vdc /dev/vdd /dev/vde >/dev/null
begin /tmp/one 'is mounted' weft fs mount one /m/weftfs /dev/vdc /dev/vdd /dev/vde
weft disks prepare /dev/vdf /dev/vdg /dev/vdh >/dev/null
begin /tmp/disks 'serving vdh' weft disks serve --listen 127.0.0.1 /dev/vdf /dev/vdg /dev/vdh
disks='nbd://127.0.0.1/vdf nbd://127.0.0.1/vdg nbd://127.0.0.1/vdh'
weft fs create home $disks --cluster disks >/dev/null
begin /tmp/keeper keeps weft fs keeper home $disks --cluster disks --node keeper
begin /tmp/node 'is mounted' weft fs mount home /m/node $disks --cluster disks --node node
# NFS 4 alone needs no port mapper; it serves one folder at a time here.
mount -t nfsd nfsd /proc/fs/nfsd
touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
echo 10 >/proc/fs/nfsd/nfsv4gracetime; echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo '-2 -3 +4 +4.1 +4.2' >/proc/fs/nfsd/versions
rpc.mountd --no-nfs-version 3
echo 2 >/proc/fs/nfsd/threads
sleep 12
over_nfs() {
    exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 127.0.0.1:$1
    mount -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.2,proto=tcp 127.0.0.1:/ /m/nfs
    PROGRAM operations /m/nfs "$2"
    umount /m/nfs
    exportfs -u 127.0.0.1:$1
}
round=0
while [ $round -lt ROUNDS ]; do
    echo ROUND $round
    PROGRAM operations /m/ext4 ext4
    PROGRAM operations /m/gfs2 gfs2
    PROGRAM operations /m/weftfs weftfs
    PROGRAM operations /m/node node
    over_nfs /m/ext4 nfs-of-ext4
    over_nfs /m/node nfs-of-node
    round=$((round + 1))
done
"#;

/// In the guest: carries the operations out, and prints the microseconds of each.
fn operate(at: &Path, way: &str) {
    prepare(at);
    for (n, (_, times, operation)) in OPERATIONS.iter().enumerate() {
        let times = times / PART;
        let start = Instant::now();
        operation(at, times);
        println!("FIGURE {way} {n} {}", start.elapsed().as_secs_f64() * 1e6 / f64::from(times));
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, operations, at, way] = &args[..]
        && operations == "operations"
    {
        return operate(Path::new(at), way);
    }
    let programs = ["mkfs.ext4", "mkfs.gfs2", "rpc.mountd", "exportfs"];
    if !have(&programs.map(Need::Tool)) {
        return;
    }
    let scratch = Scratch::in_memory("cluster-guest");
    let Some(guest) = Guest::find(scratch.path()) else { return };
    let own = std::env::current_exe().expect("this program");
    let own_name = own.file_name().expect("a file").display().to_string();
    let guest = programs.iter().fold(guest, |guest, program| guest.program(program));
    let guest = guest.program(env!("CARGO_BIN_EXE_weft")).program(&own.display().to_string());
    let mut guest = guest.patience(Duration::from_secs(3600));
    for n in 0..DISKS {
        guest =
            guest.disk(&scratch.file(&format!("disk{n}"), DISK_MIB << 20).display().to_string());
    }
    let story = STORY.replace("ROUNDS", &ROUNDS.to_string()).replace("PROGRAM", &own_name);
    let said = guest.run(&story).success();
    // By way and operation, the time of each round.
    let mut figures: BTreeMap<(&str, usize), Vec<f64>> = BTreeMap::new();
    let mut round = 0;
    for line in said.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["ROUND", number] => round = number.parse().expect("a number"),
            ["FIGURE", way, operation, took] if round > 0 => {
                let operation = operation.parse().expect("a number");
                figures.entry((way, operation)).or_default().push(took.parse().expect("a time"));
            }
            _ => {}
        }
    }
    let ways = ["gfs2", "weftfs", "node", "nfs-of-ext4", "nfs-of-node"];
    println!("\n### Operations beside GFS2 and NFS, in a guest\n");
    println!(
        "Software emulation: only the ratios say something. Times as multiples of those of {PEER}: median \
         of {} rounds,\nand the least and the most.\n",
        ROUNDS - 1
    );
    println!("| | {} |\n|---|{}", ways.join(" | "), "---|".repeat(ways.len()));
    for (n, (what, ..)) in OPERATIONS.iter().enumerate() {
        let row = ways.map(|way| {
            let pairs = figures[&(way, n)].iter().zip(&figures[&(PEER, n)]);
            let mut ratios: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
            ratios.sort_by(f64::total_cmp);
            let middle = weft_bench::median(ratios.clone());
            format!("{middle:.1} ({:.1}–{:.1})", ratios[0], ratios[ratios.len() - 1])
        });
        println!("| {what} | {} |", row.join(" | "));
    }
}
