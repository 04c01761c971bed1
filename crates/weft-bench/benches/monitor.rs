//! The cost of the rebuild's access monitor for users' requests.
//!
//! The same program is built twice, unchanged and with the monitor's calls left out of the engine,
//! and the two take turns. Differences of a few nanoseconds also come from where the compiler
//! places code, so each kind of request is a turn of its own process, and ratios are medians of
//! many rounds.
//!
//! Healthy arrays only test one flag. Then a member is lost and a replacement is present, with the
//! rebuild paused: reads of complete members only find that these are complete; a read that the
//! replacement cannot serve yet is recorded, for few zones or for more than the table holds.

use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use weft_array::{Array, Consistency, MemberState, Piggyback, RebuildPolicy};
use weft_bench::{
    Contestant, Load, Race, Row, Table, TrivialDriver, fill, make, ram_disk, ram_disks, run,
};
use weft_code::SlotNo;
use weft_rt::{Buf, Frozen, Rt, Schedule};

const ROUNDS: usize = 21;
const TURN: Duration = Duration::from_millis(150);
const SLOTS: u64 = 5;
const MEMBER_MIB: u64 = 24;
const LEN: u64 = 4 << 10;
/// The share of the healthy rate that must be left.
const TARGET: f64 = 0.98;

/// The place of the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Anywhere,
    /// On members that are whole.
    Whole,
    /// On the lost member, in its first MiB.
    Hot,
    /// On the lost member.
    Lost,
}

struct Kind {
    name: &'static str,
    depth: usize,
    write: bool,
    place: Where,
}

const KINDS: [Kind; 6] = [
    Kind { name: "healthy: reads, depth 1", depth: 1, write: false, place: Where::Anywhere },
    Kind { name: "healthy: reads, depth 32", depth: 32, write: false, place: Where::Anywhere },
    Kind { name: "healthy: writes, depth 32", depth: 32, write: true, place: Where::Anywhere },
    Kind { name: "rebuilding: reads of others", depth: 32, write: false, place: Where::Whole },
    Kind { name: "rebuilding: lost, few zones", depth: 32, write: false, place: Where::Hot },
    Kind { name: "rebuilding: lost, too many zones", depth: 32, write: false, place: Where::Lost },
];

/// One turn, in this process; requests per second of processor time.
fn turn(kind: &Kind) -> f64 {
    let rt = Rt::new(Rc::new(TrivialDriver::default()), Schedule::Fifo);
    let slots = usize::try_from(SLOTS).expect("few");
    let disks = ram_disks(slots, MEMBER_MIB);
    let (rt2, place) = (rt.clone(), kind.place);
    let array = rt.block_on(async move {
        // The slot 0 holds the first unit of each stripe, and no parity.
        let array = make(&rt2, "raid4", Consistency::None, disks).await;
        fill(&array).await;
        if place != Where::Anywhere {
            let policy = RebuildPolicy {
                piggyback: Piggyback::Off,
                zone_stripes: 1,
                zones: if place == Where::Lost { 128 } else { 1024 },
                ..RebuildPolicy::default()
            };
            array.set_rebuild_policy(policy).await.expect("a sound policy");
            // A stripe at most is rebuilt before it rests.
            array.set_throttle(0, Some(1));
            array.fail(SlotNo(0)).await.expect("failed");
            array.add_spare(ram_disk("new", MEMBER_MIB)).await.expect("a replacement");
            while array.status().slots[0].state != MemberState::Rebuilding {
                rt2.sleep(weft_rt::MILLISECOND).await;
            }
            array.set_paused(true);
        }
        array
    });
    let rate = load(&rt, &array, kind);
    rt.kill_all();
    rate
}

fn load(rt: &Rt, array: &Array, kind: &Kind) -> f64 {
    let load = Load { depth: kind.depth, turn: TURN, seed: 42 };
    let unit = array.stripe_bytes() / (SLOTS - 1);
    let stripes = array.size_bytes() / array.stripe_bytes();
    let (write, place, array) = (kind.write, kind.place, array.clone());
    let data = Frozen::copy_from(&vec![0x5a; usize::try_from(LEN).expect("small")]);
    let outcome = run(rt, load, move |random| {
        let (array, data) = (array.clone(), data.clone());
        async move {
            let stripes = if place == Where::Hot { 16 } else { stripes };
            let (stripe, other, column) =
                (random % stripes, (random >> 20) % (SLOTS - 2), (random >> 40) % (unit / LEN));
            let number = match place {
                Where::Anywhere => (random >> 20) % (SLOTS - 1),
                Where::Whole => 1 + other,
                Where::Hot | Where::Lost => 0,
            };
            let offset = stripe * unit * (SLOTS - 1) + number * unit + column * LEN;
            if write {
                array.write(offset, data, false).await.expect("written");
            } else {
                let buf = Buf::new(usize::try_from(LEN).expect("small"));
                array.read(offset, buf).await.0.expect("read");
            }
        }
    });
    outcome.per_core()
}

/// This program, built without the monitor's calls; its path.
fn unmonitored() -> String {
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["build", "--release", "--quiet", "--package", "weft-bench", "--bench", "monitor"])
        .args(["--features", "unmonitored", "--message-format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo");
    let lines = std::io::BufReader::new(cargo.stdout.take().expect("it is piped")).lines();
    let path = lines.map_while(Result::ok).filter_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        rest.split_once('"').map(|(path, _)| path.to_owned())
    });
    let path = path.last();
    assert!(cargo.wait().is_ok_and(|status| status.success()), "it builds");
    path.expect("cargo names the program")
}

fn rate_of(program: &str, kind: usize) -> f64 {
    let output = Command::new(program).args(["--turn", &kind.to_string()]).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|e| panic!("{program}: {e}: {text}"))
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--turn") {
        let kind = args.get(at + 1).and_then(|kind| kind.parse::<usize>().ok());
        println!("{}", turn(&KINDS[kind.expect("the number of a kind")]));
        return;
    }
    let (with, without) = (args[0].clone(), unmonitored());
    let table = Table::new(
        "The access monitor",
        "Requests of 4 KiB to raid4 over five RAM disks, per second of processor time. Peer: the same\n\
         engine without the monitor's calls.",
    );
    for (number, kind) in KINDS.iter().enumerate() {
        let mut contestants: [Contestant<'_>; 2] =
            [Box::new(|| rate_of(&with, number)), Box::new(|| rate_of(&without, number))];
        let race = Race::run(ROUNDS, &mut contestants);
        let (mine, peer) = (race.rate(0), race.rate(1));
        let ns = |rate: f64| 1e9 / rate;
        table.row(&Row {
            what: kind.name.into(),
            weft: format!("{:.0} k/s, {:.0} ns", mine / 1e3, ns(mine)),
            peer: format!("{:.0} k/s, {:.0} ns", peer / 1e3, ns(peer)),
            ratio: Some(race.ratio(0, 1)),
            target: (kind.place == Where::Anywhere).then_some(TARGET),
        });
    }
}
