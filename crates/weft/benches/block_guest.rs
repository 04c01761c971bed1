//! A raid5 of four disks in a guest, with weft and with md: the same disks in the same guest, in
//! turns.
//!
//! The kernel of the guest has what this machine's may lack: ublk, nbd and md. weft's array is a
//! ublk device, a loop device over FUSE, and a device of the kernel's NBD client; md keeps a
//! bitmap, or a partial parity log, as weft does. QEMU emulates the processor: all of this takes
//! many times as long as on a real one, and only the ratios say something.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_testkit::{Guest, Need, Scratch, have};

const DISKS: usize = 4;
const DISK_MIB: u64 = 160;
/// The first one warms up.
const ROUNDS: usize = 4;
/// What weft is compared with.
const PEER: &str = "md_ppl";

const STORY: &str = r#"
for module in ublk_drv fuse loop nbd raid456; do modprobe $module; done
disks='/dev/vda /dev/vdb /dev/vdc /dev/vdd'
# figure NAME DEVICE OPTION...: of fio.
figure() {
    name=$1 device=$2; shift 2
    fio --name=b --filename=$device --direct=1 --ioengine=libaio --size=192m --output-format=terse \
        --terse-version=3 "$@" >/tmp/fio || { cat /tmp/fio; exit 1; }
    tail -n 1 /tmp/fio | awk -F';' -v name="$name" '{ print "FIGURE", name, $7 + $48 }'
}
all() {
    small='--bs=4k --time_based --runtime=2'
    figure "$1 sequential_write" $2 --rw=write --bs=1m --iodepth=8 --end_fsync=1
    figure "$1 sequential_read" $2 --rw=read --bs=1m --iodepth=8
    for depth in 1 32; do
        figure "$1 read_4K_depth_$depth" $2 --rw=randread $small --iodepth=$depth
        figure "$1 write_4K_depth_$depth" $2 --rw=randwrite $small --iodepth=$depth --end_fsync=1
    done
}
wipe() { for disk in $disks; do dd if=/dev/zero of=$disk bs=1M count=2 2>/dev/null; done; }
md() {
    wipe
    mdadm --create /dev/md0 --run --assume-clean --level=5 --raid-devices=4 --chunk=64 "$2" $disks \
        >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    all $1 /dev/md0
    mdadm --stop /dev/md0 2>/dev/null
}
weft_is() {
    wipe
    weft create tank --code raid5 --unit 64K --force $disks >/dev/null
    : >/tmp/out
    weft serve $disks >/tmp/out 2>/tmp/serve & daemon=$!
    until grep -q serving /tmp/out; do kill -0 $daemon; sleep 0.1; done
    all weft_$1 $(weft attach tank --via $1)
    weft detach tank
    weft stop >/dev/null; wait $daemon
}
round=0
while [ $round -lt ROUNDS ]; do
    echo ROUND $round
    md md_bitmap --bitmap=internal
    md md_ppl --consistency-policy=ppl
    for way in ublk fuse nbd; do weft_is $way; done
    round=$((round + 1))
done
"#;

/// The lowest, the middle and the highest value.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[0], weft_bench::median(values.clone()), values[values.len() - 1]]
}

fn main() {
    let programs = ["fio", "losetup"];
    if !have(&programs.map(Need::Tool)) {
        return;
    }
    let scratch = Scratch::in_memory("block-guest");
    let Some(guest) = Guest::find(scratch.path()) else { return };
    let guest = programs.iter().fold(guest, |guest, program| guest.program(program));
    let mut guest = guest.program(env!("CARGO_BIN_EXE_weft")).patience(Duration::from_secs(3600));
    for n in 0..DISKS {
        guest =
            guest.disk(&scratch.file(&format!("disk{n}"), DISK_MIB << 20).display().to_string());
    }
    let said = guest.run(&STORY.replace("ROUNDS", &ROUNDS.to_string())).success();
    // By work and way, the figure of each round.
    let mut figures: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    let mut round = 0;
    for line in said.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["ROUND", number] => round = number.parse().expect("a number"),
            ["FIGURE", way, work, figure] if round > 0 => {
                let figure = figure.parse().expect("a number of fio");
                figures.entry((work, way)).or_default().push(figure);
            }
            _ => {}
        }
    }
    println!("\n### Compared with md in a guest\n");
    println!("Software emulation: only the ratios say something.\n");
    println!("| work                 | way        | to {PEER}: median (lowest to highest) |");
    println!("|----------------------|------------|---------------------------------------|");
    for ((work, way), own) in &figures {
        if *way == PEER {
            continue;
        }
        let pairs = own.iter().zip(&figures[&(*work, PEER)]);
        let [low, middle, high] = spread(pairs.map(|(own, peer)| own / peer).collect());
        println!("| {work:<20} | {way:<10} | {middle:.2} ({low:.2} to {high:.2}) |");
    }
}
