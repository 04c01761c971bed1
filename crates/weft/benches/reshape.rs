//! Growing an array under user load in real time, on modelled hard disks over NBD: by weft, and by
//! Linux MD itself (`mdadm --grow`) in a virtual machine on the same disks; and what each answers
//! after a power cut in the middle.
//!
//! A raid5 of three disks is full, gets a fourth, and grows: once left alone, and once while
//! `weft replay` issues the same generated trace to it, for weft over NBD, for MD to `/dev/md0`
//! inside the guest. Response times are those of the requests that were due during the reshape.
//! Both run with their defaults. Takes some minutes, since the time is real.
//!
//! Then the power is cut when about half has moved (the program is killed, or the guest resets),
//! while single blocks are written, each durably. The array is started again, with all disks and
//! without one. Disks keep what they have answered.

#[path = "../tests/common/mod.rs"]
mod common;
mod modelled;

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use common::Bench;
use modelled::{Disks, Figure, guest, latency_ms, print_row};
use weft_testkit::{Guest, Process, Rng, command, pattern, run, wait_until};

const MODEL: &str = "st3300831as";
const MEMBER_MIB: u64 = 256;
const DISKS: u64 = 3;
const SET: Disks = Disks::raid5(MODEL, MEMBER_MIB, DISKS);
const WORKLOAD: &str = "pro-financial";
/// More than any reshape needs.
const REQUESTS: &str = "40000";
const ROUNDS: usize = 3;
/// The healthy array is measured for this long before.
const HEALTHY_S: &str = "15";
/// What arrays hold whose power is cut.
const DATA: &str = "data";
const DATA_BYTES: usize = 480 << 20;
/// Blocks that are overwritten meanwhile, in this order, and what they get.
const NUMBERS: &str = "numbers";
const BLOCKS: &str = "blocks";
const BLOCK: usize = 4096;
/// What was read back at once, and when all had moved.
const BACK: &str = "back";
const BACK_AT_END: &str = "back-at-end";
const REPLAY: [&str; 7] =
    ["replay", "--trace", "load.csv", "--fit", "exact", "--overwrite", "--json"];

/// The result of growing once alone, and once under load.
struct Turn {
    alone_s: f64,
    healthy_ms: f64,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    loaded_s: f64,
}

fn main() {
    let mut bench = Bench::new("reshape");
    let volume = (((MEMBER_MIB - 32) * (DISKS - 1)) << 20).to_string();
    let generate = ["trace", "generate", WORKLOAD, "--requests", REQUESTS];
    bench.weft(&[&generate[..], &["--volume", &volume, "-o", "load.csv"]].concat());
    let guest = Guest::find(bench.scratch.path());
    let mut names = vec!["weft".to_owned()];
    names.extend(guest.as_ref().map(|guest| format!("Linux MD {}", guest.release())));
    let mut turns: Vec<Vec<Turn>> = names.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for (number, name) in names.iter().enumerate() {
            let turn = if number == 0 { weft(&mut bench) } else { md(&bench) };
            eprintln!(
                "round {round}, {name}: alone {:.1} s; healthy {:.1} ms, growing {:.1} ms, {:.1} s",
                turn.alone_s, turn.healthy_ms, turn.mean_ms, turn.loaded_s
            );
            turns[number].push(turn);
        }
    }
    println!("\n### Growing under user load\n");
    println!(
        "raid5 from {DISKS} to {} modelled {MODEL} of {MEMBER_MIB} MiB, full, units of 64 KiB, \
         {WORKLOAD} (generated);\nmedians of {ROUNDS} reshapes, and the least and the most.\n",
        DISKS + 1
    );
    println!("| | alone: s | healthy: mean ms | growing: mean ms | p50 ms | p99 ms | s |");
    println!("|---|---|---|---|---|---|---|");
    for (name, turns) in names.iter().zip(&turns) {
        let figures: [Figure<Turn>; 6] = [
            (|t| t.alone_s, 1),
            (|t| t.healthy_ms, 1),
            (|t| t.mean_ms, 1),
            (|t| t.p50_ms, 1),
            (|t| t.p99_ms, 1),
            (|t| t.loaded_s, 1),
        ];
        print_row(name, turns, &figures);
    }
    println!("\n### A power cut when half has moved, while blocks are written\n");
    println!(
        "| | started by | writes answered | all right at once | went on by itself | all right at the end |"
    );
    println!("|---|---|---|---|---|---|");
    let contents = Contents::new();
    contents.store(&bench);
    for (what, lost) in [("all disks there", &[][..]), ("one lost in the cut", &[1])] {
        cut_weft(&mut bench, lost, &contents).print("weft", what);
        if guest.is_some() {
            cut_md(&bench, lost, &contents).print(&names[1], what);
        }
    }
}

fn replay(bench: &Bench, uri: &str, found: &str) -> Process {
    let mut replay = bench.command(&[&REPLAY[..], &[uri]].concat());
    Process::spawn(replay.stdout(File::create(bench.path(found)).expect("a file for output")))
}

/// Grows the array by the last of these disks; how long it took.
fn grow(bench: &Bench, uris: &[String]) -> f64 {
    bench.weft(&["add", "t", &uris[uris.len() - 1]]);
    let start = Instant::now();
    bench.weft(&["grow", "t"]);
    start.elapsed().as_secs_f64()
}

fn weft(bench: &mut Bench) -> Turn {
    let (process, uris) = SET.serve(bench);
    SET.array(bench, &uris, &[]);
    let alone_s = grow(bench, &uris);
    bench.terminate();
    assert!(process.terminate().success(), "the disks failed");

    let (process, uris) = SET.serve(bench);
    let uri = SET.array(bench, &uris, &[]);
    let healthy = bench.weft(&[&REPLAY[..], &["--duration", HEALTHY_S, &uri]].concat());
    let replay = replay(bench, &uri, "found.json");
    let loaded_s = grow(bench, &uris);
    assert!(replay.terminate().success(), "the replay failed");
    bench.terminate();
    assert!(process.terminate().success(), "the disks failed");
    let found = fs::read_to_string(bench.path("found.json")).expect("what the replay found");
    turn(alone_s, loaded_s, &healthy, &found)
}

/// What an array holds whose power is cut: data, and then other blocks in their places.
struct Contents {
    data: Vec<u8>,
    numbers: Vec<usize>,
}

impl Contents {
    fn new() -> Self {
        let mut rng = Rng::new(1);
        let mut numbers: Vec<usize> = (0..DATA_BYTES / BLOCK).collect();
        // More than are written until half has moved.
        for at in 0..4000 {
            let further = rng.below((numbers.len() - at) as u64);
            numbers.swap(at, at + usize::try_from(further).expect("a block"));
        }
        numbers.truncate(4000);
        Self { data: pattern::bytes(1, DATA_BYTES), numbers }
    }

    /// The byte that fills a block when it is overwritten.
    fn byte(number: usize) -> u8 {
        u8::try_from(1 + number % 251).expect("at most 251")
    }

    /// For programs: the data; the numbers of the blocks, a line each; and what they get.
    fn store(&self, bench: &Bench) {
        fs::write(bench.path(DATA), &self.data).expect("written");
        let lines: String = self.numbers.iter().map(|number| format!("{number}\n")).collect();
        fs::write(bench.path(NUMBERS), lines).expect("written");
        let blocks = (0..DATA_BYTES).map(|at| Self::byte(at / BLOCK)).collect::<Vec<_>>();
        fs::write(bench.path(BLOCKS), blocks).expect("written");
    }

    /// Whether what was read back has the blocks whose writes were answered, either contents of
    /// that which was being written, and the data everywhere else.
    fn are_in(&self, back: &Path, answered: usize) -> bool {
        let back = fs::read(back).unwrap_or_default();
        let mut wanted = self.data.clone();
        let block = |number: usize| number * BLOCK..(number + 1) * BLOCK;
        for number in &self.numbers[..answered] {
            wanted[block(*number)].fill(Self::byte(*number));
        }
        let under_way = block(self.numbers[answered]);
        if back.get(under_way.clone()) == Some(&vec![Self::byte(self.numbers[answered]); BLOCK]) {
            wanted[under_way.clone()].copy_from_slice(&back[under_way]);
        }
        back.get(..DATA_BYTES) == Some(&wanted)
    }
}

/// What became of an array whose power was cut when about half of it had moved.
struct Answer {
    /// What it took to start it.
    started: String,
    /// Writes that were answered before the cut.
    answered: usize,
    /// Whether all data was right at once, whether the reshape went on by itself to its end, and
    /// whether all data was right then.
    right: bool,
    went_on: bool,
    right_at_end: bool,
}

impl Answer {
    fn print(&self, name: &str, what: &str) {
        let word = |yes: bool| if yes { "yes" } else { "**no**" };
        let (right, end) = (word(self.right), word(self.right_at_end));
        println!(
            "| {name}, {what} | {} | {} | {right} | {} | {end} |",
            self.started,
            self.answered,
            word(self.went_on)
        );
    }
}

/// Cuts the power of an array of weft's, and starts it without the disks `lost`.
fn cut_weft(bench: &mut Bench, lost: &[usize], contents: &Contents) -> Answer {
    let (process, uris) = SET.serve(bench);
    let uri = SET.array(bench, &uris, &[]);
    run(command("nbdcopy").arg(bench.path(DATA)).arg(&uri));
    let writes: String = (contents.numbers.iter())
        .map(|number| {
            format!("write -f -P {} {} {BLOCK}\n", Contents::byte(*number), number * BLOCK)
        })
        .collect();
    let (commands, said) = (bench.path("commands"), bench.path("said"));
    fs::write(&commands, writes).expect("written");
    bench.weft(&["add", "t", &uris[uris.len() - 1]]);
    bench.weft(&["grow", "t", "--no-wait"]);
    let mut writer = command("stdbuf");
    writer.args(["-oL", "qemu-io", "-f", "raw", &uri]);
    writer.stdin(File::open(&commands).expect("just written"));
    writer.stdout(File::create(&said).expect("a file for output"));
    let writer = Process::spawn(&mut writer);
    wait_until("half has moved", || {
        let job = &bench.status("t")["jobs"][0];
        let [done, total] =
            ["stripes_done", "stripes_total"].map(|key| job[key].as_u64().unwrap_or(0));
        done * 2 > total
    });
    bench.kill9();
    writer.kill9();
    let said = fs::read_to_string(&said).expect("what it said");
    let answered = said.lines().filter(|line| line.contains("wrote 4096/4096 ")).count();
    let left: Vec<&str> = (uris.iter().enumerate())
        .filter(|(number, _)| !lost.contains(number))
        .map(|(_, uri)| uri.as_str())
        .collect();
    bench.serve(&left);
    let is_right = || {
        let back = bench.path(BACK);
        run(command("nbdcopy").arg(&uri).arg(&back));
        contents.are_in(&back, answered)
    };
    let right = is_right();
    wait_until("the reshape ends", || bench.status("t")["reshaping"] == false);
    let right_at_end = is_right();
    bench.terminate();
    assert!(process.terminate().success(), "the disks failed");
    Answer { started: "`weft serve`".into(), answered, right, went_on: true, right_at_end }
}

/// The same of Linux MD.
fn cut_md(bench: &Bench, lost: &[usize], contents: &Contents) -> Answer {
    let (process, uris) = SET.serve(bench);
    let cut = guest(bench, &uris).run(&format!("{MD_FUNCTIONS}{MD_CUT}"));
    assert!(cut.status.is_none() && cut.output.contains("half"), "{cut:?}");
    let answered = fs::read_to_string(bench.path("answered")).expect("a list").lines().count();
    let left = (uris.iter().enumerate()).filter(|(number, _)| !lost.contains(number));
    let left: Vec<String> = left.map(|(_, uri)| uri.clone()).collect();
    let output = guest(bench, &left).run(&format!("{MD_FUNCTIONS}{MD_AGAIN}")).success();
    assert!(process.terminate().success(), "the disks failed");
    let answer =
        output.lines().find_map(|line| line.strip_prefix("started by ")).unwrap_or("**–**");
    eprintln!("{output}");
    Answer {
        started: answer.to_owned(),
        answered,
        right: contents.are_in(&bench.path(BACK), answered),
        went_on: output.lines().any(|line| line == "went on"),
        right_at_end: contents.are_in(&bench.path(BACK_AT_END), answered),
    }
}

/// The results of the replays, as JSON: of the healthy array, and while it grew.
fn turn(alone_s: f64, loaded_s: f64, healthy: &str, found: &str) -> Turn {
    let healthy_ms = latency_ms(healthy, "mean_ns");
    let [mean_ms, p50_ms, p99_ms] =
        ["mean_ns", "p50_ns", "p99_ns"].map(|what| latency_ms(found, what));
    Turn { alone_s, healthy_ms, mean_ms, p50_ms, p99_ms, loaded_s }
}

/// Linux MD: the same disks, trace and generator, in a virtual machine.
fn md(bench: &Bench) -> Turn {
    let (process, uris) = SET.serve(bench);
    let script = format!("{MD_FUNCTIONS}{MD}").replace("@HEALTHY@", HEALTHY_S);
    let output = guest(bench, &uris).run(&script).success();
    assert!(process.terminate().success(), "the disks failed");
    let parts: Vec<&str> = output.split("=====\n").collect();
    let [log, healthy, found] = parts[..] else { panic!("{output}") };
    let took: Vec<f64> = log
        .lines()
        .filter_map(|line| {
            let mut times = line.strip_prefix("took ")?.split(' ').map(|at| at.parse::<f64>());
            let (from, to) = (times.next()?.ok()?, times.next()?.ok()?);
            Some(to - from)
        })
        .collect();
    let [alone_s, loaded_s] = took[..] else { panic!("{output}") };
    turn(alone_s, loaded_s, healthy, found)
}

/// As much room before the data as weft leaves.
const MD_FUNCTIONS: &str = "\
create() {
  mdadm --create /dev/md0 --quiet --run --level=5 -n3 --chunk=64 --assume-clean --bitmap=none \\
    --force --homehost=any --data-offset=8M /dev/vd[abc]
}
md=/sys/block/md0/md
moves() { [ \"$(cat $md/sync_action) $(cat $md/reshape_position)\" != 'idle none' ]; }
grow() {
  mdadm /dev/md0 --quiet --add /dev/vdd
  begin=$(cut -d' ' -f1 /proc/uptime)
  mdadm --grow --quiet /dev/md0 -n4
  while moves; do sleep 0.1; done
  echo took $begin $(cut -d' ' -f1 /proc/uptime)
}
";

const MD: &str = "\
cp load.csv /tmp
cd /tmp
create
grow
mdadm --stop --quiet /dev/md0
mdadm --zero-superblock --quiet /dev/vd[abcd]
create
weft replay --trace load.csv --fit exact --overwrite --json --duration @HEALTHY@ /dev/md0 >healthy
weft replay --trace load.csv --fit exact --overwrite --json /dev/md0 >found &
replay=$!
grow
kill -TERM $replay
wait $replay
echo =====
cat healthy
echo =====
cat found
";

/// A guest that resets forgets what it did not send to its disks.
const MD_CUT: &str = "\
create
dd if=data of=/dev/md0 bs=1M conv=fsync
mdadm /dev/md0 --quiet --add /dev/vdd
mdadm --grow --quiet /dev/md0 -n4
rm -f answered
while read -r number; do
  dd if=blocks of=/dev/md0 bs=4k skip=$number seek=$number count=1 conv=notrunc,fsync 2>/dev/null
  echo $number >>answered
done <numbers &
half=$(($(stat -c %s data) / 1024))
while at=$(cat $md/reshape_position) && [ $at = none -o $at -lt $half ]; do sleep 0.1; done
echo half at $at
sync
echo b >/proc/sysrq-trigger
sleep 1000
";

const MD_AGAIN: &str = "\
runs() { [ -e $md/array_state ] && [ $(cat $md/array_state) != inactive ]; }
read_back() { dd if=/dev/md0 of=$1 bs=1M count=$(($(stat -c %s data) >> 20)); }
rm -f back back-at-end
for options in '' --run '--force --run'; do
  mdadm --stop /dev/md0 2>/dev/null || true
  mdadm --assemble $options /dev/md0 /dev/vd* || true
  if runs; then
    echo \"started by \\`mdadm --assemble${options:+ $options}\\`\"
    break
  fi
done
cat /proc/mdstat
read_back back
seconds=0
while moves && [ $seconds -lt 120 ]; do sleep 1; seconds=$((seconds + 1)); done
cat /proc/mdstat
if ! moves; then echo went on; fi
read_back back-at-end
";
